"""AlterConfigs and IncrementalAlterConfigs: from a resource's settings and a request to its new settings. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from barnabas.base.config.definition import Setting, ValueType
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.base.words import AlterOperation


class ConfigChange(NamedTuple):
    name: str
    #: As it came in the request.
    operation: int
    value: str | None


def replacement(entries: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The new settings that AlterConfigs asks for: the request holds all of them.

    :raises Refused: INVALID_REQUEST, for a name that comes twice or has no value.
    """
    changes = [ConfigChange(name, AlterOperation.SET, value) for name, value in entries]
    return apply_changes({}, changes, {})


def apply_changes(
    current: Mapping[str, str], changes: Iterable[ConfigChange], settings: Mapping[str, Setting]
) -> dict[str, str]:
    """The new settings that IncrementalAlterConfigs asks for. `settings` are the known ones of the kind of resource.

    Whether the result may be used is for `validate_topic_config` and `DynamicConfig.validate_broker_change` to say.

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
    """The error that a client gets for a value that is not valid. `resource_type` is TOPIC or BROKER."""
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
    """The entries that a list has now; where the resource does not set it, those of its default."""
    setting = settings.get(change.name)
    if setting is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}")
    if setting.type is not ValueType.LIST:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {change.name}")
    text = result.get(change.name)
    if text is None:
        text = setting.format(setting.default)
    return text.split(",") if text else []
