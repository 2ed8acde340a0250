"""AlterConfigs and IncrementalAlterConfigs: from a resource's settings and a request to its new settings. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from barnabas.base.config.definition import Setting, ValueType
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.base.words import AlterOperation


class ConfigChange(NamedTuple):
    name: str
    #: As in the request.
    operation: int
    value: str | None


def replacement(entries: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the new settings for AlterConfigs, whose request has all settings of the resource.

    :raises Refused: INVALID_REQUEST, if a name comes twice or has no value.
    """
    changes = [ConfigChange(name, AlterOperation.SET, value) for name, value in entries]
    return apply_changes({}, changes, {})


def apply_changes(
    current: Mapping[str, str], changes: Iterable[ConfigChange], settings: Mapping[str, Setting]
) -> dict[str, str]:
    """Return the new settings for IncrementalAlterConfigs. `settings` are the known ones for this kind of resource.

    `validate_topic_config`, `validate_group_config` or `DynamicConfig.validate_broker_change` must then check the result.

    :raises Refused: INVALID_REQUEST or INVALID_CONFIG, as Kafka does.
    """
    changes = list(changes)
    _check_form(changes)
    result = dict(current)
    for change in changes:
        match _operation(change):
            case AlterOperation.SET:
                result[change.name] = change.value or ""
            case AlterOperation.DELETE:
                result.pop(change.name, None)
            case AlterOperation.APPEND:
                present = _present(result, change, "append", settings)
                added = [entry for entry in (change.value or "").split(",") if entry not in present]
                result[change.name] = ",".join(present + added)
            case AlterOperation.SUBTRACT:
                present = _present(result, change, "subtract", settings)
                for entry in (change.value or "").split(","):
                    if entry in present:
                        present.remove(entry)
                result[change.name] = ",".join(present)
    return result


def invalid_value(resource_type: str, resource_name: str, error: ConfigError) -> Refused:
    """Return the error for an invalid value. `resource_type` is the name of a ConfigResourceType."""
    resource = f"ConfigResource(type={resource_type}, name='{resource_name}')"
    return Refused(ErrorCode.INVALID_CONFIG, f"Invalid config value for resource {resource}: {error}")


def _check_form(changes: list[ConfigChange]) -> None:
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [change.name for change in changes if change.value is None and change.operation != AlterOperation.DELETE]
    if nulls:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _operation(change: ConfigChange) -> AlterOperation:
    try:
        return AlterOperation(change.operation)
    except ValueError:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}") from None


def _present(result: Mapping[str, str], change: ConfigChange, verb: str, settings: Mapping[str, Setting]) -> list[str]:
    """Return the current entries of a list; if the resource does not set it, those of its default."""
    setting = settings.get(change.name)
    if setting is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}")
    if setting.type is not ValueType.LIST:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {change.name}")
    text = result.get(change.name)
    if text is None:
        text = setting.format(setting.default)
    return text.split(",") if text else []
