"""The response of DescribeConfigs: every setting of a topic, group or broker with the source of its value, without secrets."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    DYNAMIC_NAMES,
    TOPIC_SETTINGS,
    broker_setting,
    broker_synonyms,
)
from barnabas.base.config.client_metrics_config import CLIENT_METRICS_SETTINGS, client_metrics_values
from barnabas.base.config.definition import UNKNOWN_TYPE_CODE, Setting, Value
from barnabas.base.config.definitions.extra import SETTINGS as EXTRA_SETTINGS
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.group_config import GROUP_SETTINGS, group_values
from barnabas.base.config.topic import topic_values
from barnabas.base.words import ConfigSource


class ConfigSynonym(NamedTuple):
    name: str
    #: None for a secret.
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    name: str
    #: None for a secret, and for a setting without value and default.
    value: str | None
    read_only: bool
    source: ConfigSource
    is_sensitive: bool
    #: All values that apply, the winning one first. Empty unless requested.
    synonyms: tuple[ConfigSynonym, ...]
    type_code: int
    #: None unless requested.
    documentation: str | None


class Shown(NamedTuple):
    """The part of a description that a client asks for."""

    #: Empty for all settings.
    names: frozenset[str] = frozenset()
    synonyms: bool = False
    documentation: bool = False

    def has(self, name: str) -> bool:
        return not self.names or name in self.names


EVERY_SETTING: Final = Shown()


def describe_topic(
    dynamic: DynamicConfig, overrides: Mapping[str, str], shown: Shown = EVERY_SETTING
) -> list[ConfigEntry]:
    """Describe a topic whose own settings are `overrides`."""
    values = topic_values(dynamic.broker, overrides)
    return _describe_entity(dynamic, TOPIC_SETTINGS, values, overrides, ConfigSource.DYNAMIC_TOPIC_CONFIG, shown)


def describe_group(
    dynamic: DynamicConfig, overrides: Mapping[str, str], shown: Shown = EVERY_SETTING
) -> list[ConfigEntry]:
    """Describe a group whose own settings are `overrides`."""
    values = group_values(dynamic.broker, overrides)
    return _describe_entity(dynamic, GROUP_SETTINGS, values, overrides, ConfigSource.DYNAMIC_GROUP_CONFIG, shown)


def describe_client_metrics(
    dynamic: DynamicConfig, own: Mapping[str, str], shown: Shown = EVERY_SETTING
) -> list[ConfigEntry]:
    """Describe a subscription to metrics of clients whose settings are `own`."""
    values = client_metrics_values(own)
    source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
    return _describe_entity(dynamic, CLIENT_METRICS_SETTINGS, values, own, source, shown)


def _describe_entity(
    dynamic: DynamicConfig,
    settings: Mapping[str, Setting],
    values: Mapping[str, Value],
    overrides: Mapping[str, str],
    own: ConfigSource,
    shown: Shown,
) -> list[ConfigEntry]:
    entries: list[ConfigEntry] = []
    for name, value in values.items():
        if not shown.has(name):
            continue
        setting = settings[name]
        text = setting.format(value)
        server = setting.server_default
        synonyms = () if server is None else _synonyms(dynamic, server, is_sensitive=False)
        if name in overrides:
            synonyms = (ConfigSynonym(name, text, own), *synonyms)
        entries.append(
            ConfigEntry(
                name=name,
                value=text,
                read_only=False,
                source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
                is_sensitive=False,
                synonyms=synonyms if shown.synonyms else (),
                type_code=setting.type,
                documentation=setting.documentation if shown.documentation else None,
            )
        )
    return entries


def describe_broker(dynamic: DynamicConfig, shown: Shown = EVERY_SETTING) -> list[ConfigEntry]:
    """Describe this broker: all known settings, and unknown ones that are set."""
    config = dynamic.broker
    texts: dict[str, str | None] = dict(config.originals)
    for name, setting in BROKER_SETTINGS.items():
        # Internal settings are shown only if they are set. So are the authorizer's and barnabas's, which Kafka's tools do not
        # know.
        if name in config.originals or not (setting.internal or _is_extra(setting)):
            texts[name] = setting.format(config.values[name])
    return [_broker_entry(dynamic, name, text, shown, cluster=False) for name, text in texts.items() if shown.has(name)]


def describe_cluster_default(dynamic: DynamicConfig, shown: Shown = EVERY_SETTING) -> list[ConfigEntry]:
    """Describe the cluster's dynamic defaults: only those that are set."""
    return [
        _broker_entry(dynamic, name, text, shown, cluster=True)
        for name, text in dynamic.cluster_default.items()
        if shown.has(name)
    ]


_EXTRA: Final = frozenset(EXTRA_SETTINGS)


def _is_extra(setting: Setting) -> bool:
    return setting in _EXTRA


def _broker_entry(dynamic: DynamicConfig, name: str, text: str | None, shown: Shown, *, cluster: bool) -> ConfigEntry:
    setting = broker_setting(name)
    # An unknown name may be a secret of a plug-in.
    is_sensitive = setting is None or setting.is_sensitive
    found = _synonyms(dynamic, name, is_sensitive=is_sensitive)
    if cluster:
        found = tuple(each for each in found if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    return ConfigEntry(
        name=name,
        value=None if is_sensitive else text,
        read_only=name not in DYNAMIC_NAMES,
        source=found[0].source if found else ConfigSource.DEFAULT_CONFIG,
        is_sensitive=is_sensitive,
        synonyms=found if shown.synonyms else (),
        type_code=UNKNOWN_TYPE_CODE if setting is None else setting.type,
        documentation=setting.documentation if shown.documentation and setting is not None else None,
    )


def _synonyms(dynamic: DynamicConfig, name: str, *, is_sensitive: bool) -> tuple[ConfigSynonym, ...]:
    """Return every value of `name` and its synonyms, the winning one first."""
    names = broker_synonyms(name)
    found: list[ConfigSynonym] = []
    layers = (
        (dynamic.own, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (dynamic.cluster_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (dynamic.static, ConfigSource.STATIC_BROKER_CONFIG),
    )
    for layer, source in layers:
        found += [ConfigSynonym(each, None if is_sensitive else layer[each], source) for each in names if each in layer]
    for each in names:
        setting = BROKER_SETTINGS.get(each)
        if setting is not None and setting.default is not None:
            text = None if is_sensitive else setting.format(setting.default)
            found.append(ConfigSynonym(each, text, ConfigSource.DEFAULT_CONFIG))
    # As in Kafka: leave out names that precede `name`, above all a listener's own value.
    first = next((at for at, synonym in enumerate(found) if synonym.name == name), len(found))
    return tuple(found[first:])
