"""The definition of a setting: its type, default, valid values and meaning, and the parsing of its text.

Parsing rules and error messages are those of Kafka's ConfigDef, because clients see them through AlterConfigs.
"""

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache
from typing import Final, Protocol

from barnabas.base.errors import ConfigError
from barnabas.base.java_text import java_double

SHORT_MAX: Final = 2**15 - 1
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308

#: The characters that Java's `String.trim` removes: everything up to the blank, but no other Unicode spaces.
_JAVA_BLANK: Final = "".join(chr(code) for code in range(0x21))
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_COMMA: Final = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")


class Password:
    """A secret. It compares by value, and its text does not contain the value."""

    __slots__ = ("value",)
    HIDDEN: Final = "[hidden]"

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return self.HIDDEN


#: A setting's value. CLASS values are Java's names as text, LIST values are tuples, None means "not set".
Value = bool | int | float | str | tuple[str, ...] | Password | None


class ValueType(IntEnum):
    """Numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


#: The type of an unknown name in DescribeConfigs.
UNKNOWN_TYPE_CODE: Final = 0

_INTEGER_MAX: Final = {ValueType.SHORT: SHORT_MAX, ValueType.INT: INT_MAX, ValueType.LONG: LONG_MAX}


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """Whether and how a setting can change while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    #: A topic's own setting, which is always dynamic.
    TOPIC = "topic"
    #: A group's own setting, which is always dynamic.
    GROUP = "group"
    #: A setting of a subscription to metrics of clients, which is always dynamic.
    CLIENT_METRICS = "client-metrics"


class Validator(Protocol):
    """Raises `ConfigError` for an invalid value. `str()` describes the valid values."""

    def check(self, name: str, value: Value) -> None: ...


def invalid(name: str, value: Value, why: str) -> ConfigError:
    shown = format_value(value)
    return ConfigError(f"Invalid value {shown} for configuration {name}: {why}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of Kafka 3.9 or, with the prefix `barnabas.`, of barnabas."""

    name: str
    type: ValueType
    default: Value
    importance: Importance
    validator: Validator | None
    update_mode: UpdateMode
    documentation: str
    #: The broker setting that a topic's or a group's setting inherits from, if any.
    server_default: str | None = None
    #: Kafka leaves internal settings out of its documentation and, unless they are set, out of DescribeConfigs.
    internal: bool = False
    #: Why the setting is accepted but has no effect here; empty if it has an effect.
    no_effect: str = ""

    @property
    def is_effective(self) -> bool:
        return not self.no_effect

    @property
    def is_sensitive(self) -> bool:
        return self.type is ValueType.PASSWORD

    @property
    def attribute(self) -> str:
        return attribute_name(self.name)

    def parse(self, raw: str) -> Value:
        """Parse and validate the text `raw`.

        :raises ConfigError: naming the setting, the value and the valid values.
        """
        value = parse_type(self.name, raw, self.type)
        if self.validator is not None:
            self.validator.check(self.name, value)
        return value

    def format(self, value: Value) -> str | None:
        """Format a value as Kafka does. For the text of a password use its `.value`."""
        return None if value is None else format_value(value)


@cache
def attribute_name(setting_name: str) -> str:
    """Return the attribute's name: `zookeeper.clientCnxnSocket` is `zookeeper_client_cnxn_socket`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", setting_name).lower().replace(".", "_")


def parse_type(name: str, raw: str, kind: ValueType) -> Value:
    trimmed = raw.strip(_JAVA_BLANK)
    match kind:
        case ValueType.STRING | ValueType.CLASS:
            return trimmed
        case ValueType.BOOLEAN:
            lowered = trimmed.lower()
            if lowered not in ("true", "false"):
                raise invalid(name, raw, "Expected value to be either true or false")
            return lowered == "true"
        case ValueType.INT | ValueType.LONG | ValueType.SHORT:
            return _parse_integer(name, raw, trimmed, kind)
        case ValueType.DOUBLE:
            if not _DOUBLE.fullmatch(trimmed):
                raise invalid(name, raw, "Not a number of type DOUBLE")
            return float(trimmed.rstrip("fFdD"))
        case ValueType.LIST:
            return tuple(_COMMA.split(trimmed)) if trimmed else ()
        case ValueType.PASSWORD:
            return Password(trimmed)


def _parse_integer(name: str, raw: str, trimmed: str, kind: ValueType) -> int:
    limit = _INTEGER_MAX[kind]
    # 20 characters are enough for every 64-bit number. Longer texts cost time, and Python refuses thousands of digits.
    if _INTEGER.fullmatch(trimmed) and len(trimmed) <= 20:
        number = int(trimmed)
        if -limit - 1 <= number <= limit:
            return number
    raise invalid(name, raw, f"Not a number of type {kind.name}")


def format_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    if value is None:
        return "null"
    return str(value)
