"""The valid values of settings, with Kafka's messages."""

import re
from typing import Final
from urllib.parse import urlsplit

from barnabas.base.config.definition import Value, invalid
from barnabas.base.errors import ConfigError


class Range:
    __slots__ = ("maximum", "minimum")

    def __init__(self, minimum: float, maximum: float | None = None) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def check(self, name: str, value: Value) -> None:
        if not isinstance(value, int | float):
            raise invalid(name, value, "Value must be non-null")
        if value < self.minimum:
            raise invalid(name, value, f"Value must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise invalid(name, value, f"Value must be no more than {self.maximum}")

    def __str__(self) -> str:
        return f"[{self.minimum},...]" if self.maximum is None else f"[{self.minimum},...,{self.maximum}]"


class OneOf:
    __slots__ = ("ignore_case", "values")

    def __init__(self, *values: str, ignore_case: bool = False) -> None:
        self.values = values
        self.ignore_case = ignore_case

    def check(self, name: str, value: Value) -> None:
        if self.ignore_case:
            if not isinstance(value, str) or value.upper() not in self.values:
                raise invalid(name, value, f"String must be one of (case insensitive): {', '.join(self.values)}")
        elif value not in self.values:
            raise invalid(name, value, f"String must be one of: {', '.join(self.values)}")

    def __str__(self) -> str:
        return f"{'(case insensitive) ' if self.ignore_case else ''}[{', '.join(self.values)}]"


class HttpUrls:
    """A list of URLs of a web service. They must have no password, because everyone can see such settings."""

    def check(self, name: str, value: Value) -> None:
        for entry in _entries(value):
            parts = urlsplit(entry)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise invalid(name, entry, "use a URL that begins with http:// or https://")
            if parts.username is not None:
                raise invalid(name, "[hidden]", "put the user and the password into their own settings")

    def __str__(self) -> str:
        return "http:// and https:// URLs"


class EachOf:
    """A list whose entries are among these values."""

    __slots__ = ("_one",)

    def __init__(self, *values: str) -> None:
        self._one = OneOf(*values)

    def check(self, name: str, value: Value) -> None:
        for entry in _entries(value):
            self._one.check(name, entry)

    def __str__(self) -> str:
        return str(self._one)


class NonEmptyString:
    __slots__ = ()

    def check(self, name: str, value: Value) -> None:
        if value == "":
            raise invalid(name, value, "String must be non-empty")

    def __str__(self) -> str:
        return "non-empty string"


class NonNull:
    __slots__ = ()

    def check(self, name: str, value: Value) -> None:
        if value is None:
            raise invalid(name, value, "entry must be non null")

    def __str__(self) -> str:
        return "non-null string"


class OneValueOr:
    """A range, and one special value outside it."""

    __slots__ = ("_bounds", "_range", "special")

    def __init__(self, special: int, minimum: int, maximum: int | None = None) -> None:
        self.special = special
        self._range = Range(minimum, maximum)
        self._bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"

    def check(self, name: str, value: Value) -> None:
        if value != self.special:
            try:
                self._range.check(name, value)
            except ConfigError as error:
                raise invalid(name, value, f"Value must be {self._bounds} or equal to {self.special}") from error

    def __str__(self) -> str:
        return f"{self._range} or {self.special}"


class ThrottledReplicas:
    __slots__ = ()
    _PAIR: Final = re.compile(r"([0-9]+:[0-9]+)?")

    def check(self, name: str, value: Value) -> None:
        proposed = [entry.strip() for entry in _entries(value)]
        if "".join(proposed) != "*" and not all(self._PAIR.fullmatch(entry) for entry in proposed):
            raise invalid(
                name,
                f"[{', '.join(proposed)}]",
                f"{name} must be the literal '*' or a list of replicas in the following format: {self}",
            )

    def __str__(self) -> str:
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."


class MetadataVersion:
    """A release of Kafka (`3.9`, `3.9.1`), or an inter-broker protocol version (`3.9-IV0`)."""

    __slots__ = ()
    # fmt: off
    #: How many inter-broker protocol versions a release has (`0.8.0` and similar ones have none).
    _RELEASES: Final = {
        "0.8.0": 0, "0.8.1": 0, "0.8.2": 0, "0.9.0": 0, "0.10.0": 2, "0.10.1": 3, "0.10.2": 1, "0.11.0": 3,
        "1.0": 1, "1.1": 1, "2.0": 2, "2.1": 3, "2.2": 2, "2.3": 2, "2.4": 2, "2.5": 1, "2.6": 1, "2.7": 3, "2.8": 2,
        "3.0": 2, "3.1": 1, "3.2": 1, "3.3": 4, "3.4": 1, "3.5": 3, "3.6": 3, "3.7": 5, "3.8": 1, "3.9": 1, "4.0": 2,
    }
    # fmt: on

    def check(self, name: str, value: Value) -> None:
        if not isinstance(value, str) or not self._is_known(value):
            raise invalid(name, value, f"Version {value} is not a valid version; it must be {self}")

    def _is_known(self, version: str) -> bool:
        kept = 3 if version.startswith("0.") else 2
        release, _, internal = ".".join(version.split(".")[:kept]).partition("-IV")
        count = self._RELEASES.get(release)
        if count is None:
            return False
        return not internal or (internal.isdecimal() and int(internal) < count)

    def __str__(self) -> str:
        releases = tuple(self._RELEASES)
        return f"a release from {releases[0]} to {releases[-1]}, such as 3.9 or 3.9-IV0"


def _entries(value: Value) -> tuple[str, ...]:
    if not isinstance(value, tuple):
        raise AssertionError(f"a list setting holds {value!r}")
    return value


def at_least(minimum: float) -> Range:
    return Range(minimum)


def between(minimum: float, maximum: float) -> Range:
    return Range(minimum, maximum)


def one_of(*values: str) -> OneOf:
    return OneOf(*values)
