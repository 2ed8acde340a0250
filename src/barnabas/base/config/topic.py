"""A topic's settings: its own, and the broker's defaults for the rest."""

from collections.abc import Mapping
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import TOPIC_SETTINGS, UNIT_SYNONYMS
from barnabas.base.config.definition import LONG_MAX, Value, attribute_name
from barnabas.base.config.log_config import AS_RETENTION, CLEANUP_COMPACT, LogConfig, make_log_config
from barnabas.base.errors import ConfigError, ErrorCode, Refused

#: Makes a topic a mirror. Only links set and remove it.
LINK_NAME: Final = "barnabas.link.name"

_LIMITS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
_SCHEMA_CHECKS: Final = ("barnabas.key.schema.validation", "barnabas.value.schema.validation")


def topic_defaults(config: BrokerConfig) -> dict[str, Value]:
    """Return the values of a topic without overrides on this broker, by topic setting."""
    defaults: dict[str, Value] = {}
    for name, setting in TOPIC_SETTINGS.items():
        if setting.server_default is None:
            defaults[name] = setting.default
        elif name in UNIT_SYNONYMS:
            resolved = getattr(config, attribute_name(setting.server_default))
            assert isinstance(resolved, int), setting.server_default
            defaults[name] = resolved
        else:
            defaults[name] = config.values[setting.server_default]
    # As in Kafka since 3.0, the broker's message format is ignored.
    defaults["message.format.version"] = TOPIC_SETTINGS["message.format.version"].default
    _fold_timestamp_difference(defaults)
    return defaults


def topic_values(config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return the value of every topic setting by name. Names that are not topic settings are ignored.

    :raises ConfigError: if a value cannot be used.
    """
    values = topic_defaults(config)
    for name, raw in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is not None:
            values[name] = setting.parse(raw)
    return values


def log_config(config: BrokerConfig, overrides: Mapping[str, str] | None = None) -> LogConfig:
    """:raises ConfigError: if a value cannot be used."""
    overrides = overrides or {}
    values = topic_values(config, overrides)
    _fold_timestamp_difference(values)
    return make_log_config(values, frozenset(name for name in overrides if name in TOPIC_SETTINGS))


def _fold_timestamp_difference(values: dict[str, Value]) -> None:
    """Apply the deprecated limit in both directions unless the newer limits are set."""
    difference = values["message.timestamp.difference.max.ms"]
    for name in _LIMITS:
        if values[name] == LONG_MAX:
            values[name] = difference


def validate_topic_config(
    config: BrokerConfig, proposed: Mapping[str, str], existing: Mapping[str, str] | None = None
) -> None:
    """Refuse settings that a topic cannot have, as CreateTopics and AlterConfigs do. `existing` are its current settings.

    :raises Refused: INVALID_CONFIG, for a name that is not a topic setting and for contradicting settings.
    :raises ConfigError: if a value cannot be used; clients get INVALID_CONFIG.
    """
    for name in proposed:
        if name not in TOPIC_SETTINGS:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    values = topic_values(config, proposed)
    shortest, longest = _integer(values, "min.compaction.lag.ms"), _integer(values, "max.compaction.lag.ms")
    if shortest > longest:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
        )
    for name in _SCHEMA_CHECKS:
        if values[name] and not config.barnabas_schema_registry_url:
            raise Refused(
                ErrorCode.INVALID_CONFIG, f"{name} needs a registry: set barnabas.schema.registry.url on all brokers"
            )
    _validate_remote(config, values, existing or {})


def _validate_remote(config: BrokerConfig, values: Mapping[str, Value], existing: Mapping[str, str]) -> None:
    """Check remote storage as Kafka 3.9 does in KRaft mode: tiering, or only the copying, can be switched off."""
    if not values["remote.storage.enable"]:
        was_enabled = existing.get("remote.storage.enable", "").strip().lower() == "true"
        if was_enabled and not values["remote.log.delete.on.disable"]:
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data "
                "and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to "
                "disable remote storage and delete all remote data, please set "
                "`remote.storage.enable=false,remote.log.delete.on.disable=true`.",
            )
        return
    if not config.values["remote.log.storage.system.enable"]:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
        )
    policy = values["cleanup.policy"]
    if isinstance(policy, tuple) and CLEANUP_COMPACT in policy:
        raise ConfigError("Remote log storage is unsupported for the compacted topics")
    for unit in ("bytes", "ms"):
        _validate_local_retention(values, unit)


def _validate_local_retention(values: Mapping[str, Value], unit: str) -> None:
    whole, local = _integer(values, f"retention.{unit}"), _integer(values, f"local.retention.{unit}")
    if local == AS_RETENTION:
        return
    if whole >= 0 and not 0 <= local <= whole:
        why = (
            f"Value must not be -1 as retention.{unit} value is set as {whole}."
            if local < 0
            else f"Value must not be more than retention.{unit} property value: {whole}"
        )
        raise ConfigError(f"Invalid value {local} for configuration local.retention.{unit}: {why}")
    if values["remote.log.copy.disable"] and local != whole:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and `retention.{unit}` must be set "
            "to the identical value because there will be no more logs copied to the remote storage.",
        )


def _integer(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), name
    return value


def check_not_by_hand(settings: Mapping[str, str | None]) -> None:
    """Allow the default value, because many tools read all settings of a topic and write them back.

    :raises Refused: INVALID_CONFIG, for a setting that only links may set.
    """
    if settings.get(LINK_NAME, "") != "":
        raise _set_by_links()


def keep_link(settings: Mapping[str, str], existing: Mapping[str, str]) -> Mapping[str, str]:
    """Return the new settings of a topic; a mirror stays a mirror.

    :raises Refused: INVALID_CONFIG, if the change would make the topic a mirror, or end that.
    """
    before = existing.get(LINK_NAME, "")
    if settings.get(LINK_NAME, before) != before:
        raise _set_by_links()
    return {**settings, LINK_NAME: before} if before else without_link(settings)


def without_link(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name != LINK_NAME}


def _set_by_links() -> Refused:
    return Refused(ErrorCode.INVALID_CONFIG, f"{LINK_NAME} can be set only by a link: use `barnabas link`")
