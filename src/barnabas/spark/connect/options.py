"""Options of connectors, converters and transforms: tables by which they are parsed, checked and documented. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from barnabas.base.errors import BarnabasError
from barnabas.base.names import nearest

Parse: TypeAlias = Callable[[str], Any]


class ConnectorRefused(BarnabasError):
    """A connector's file that cannot be run as it is. The message names each option and what to do."""


def text(value: str) -> str:
    return value


def flag(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("use true or false")
    return lowered == "true"


def number(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("use a whole number") from None


def names(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def pairs(value: str) -> dict[str, str]:
    found = {}
    for part in names(value):
        old, colon, new = part.rpartition(":")
        if not colon or not old or not new:
            raise ValueError(f"{part!r} is not of the form a:b")
        found[old] = new
    return found


def one_of(*choices: str) -> Parse:
    def parse(value: str) -> str:
        found = next((each for each in choices if each.lower() == value.strip().lower()), None)
        if found is None:
            raise ValueError(f"use {', '.join(choices[:-1])} or {choices[-1]}" if choices[1:] else f"use {choices[0]}")
        return found

    return parse


@dataclass(frozen=True)
class Option:
    """An option that is honoured."""

    name: str
    #: Describes in the documents what the option changes here.
    does: str
    parse: Parse = text
    #: None if a connector must give it, unless `needed` is false.
    default: str | None = None
    needed: bool = False
    is_secret: bool = False


@dataclass(frozen=True)
class Without:
    """An option that is accepted and changes nothing, because what it tunes does not exist here."""

    name: str
    why: str


@dataclass(frozen=True)
class Refused:
    """An option that cannot be honoured. `allowed`: values with which it asks for nothing that is missing here."""

    name: str
    advice: str
    allowed: tuple[str, ...] = ()


Row: TypeAlias = Option | Without | Refused


@dataclass(frozen=True)
class Values:
    """The parsed options of one table."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def maybe(self, name: str) -> Any:
        return self.given.get(name)


@dataclass(frozen=True)
class Problem:
    option: str
    message: str

    def __str__(self) -> str:
        return f"{self.option}: {self.message}"


def parse(rows: Sequence[Row], config: Mapping[str, str], *, prefix: str = "") -> tuple[Values, list[Problem]]:
    """Parse the options of one table. Other options of `config` are left alone: see `unknown`."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for row in rows:
        name, value = prefix + row.name, config.get(prefix + row.name)
        match row:
            case Option() if value is None and row.default is None:
                found[row.name] = None
                if row.needed:
                    problems.append(Problem(name, "is missing, and has no default"))
            case Option():
                given = value if value is not None else row.default
                try:
                    found[row.name] = row.parse(given or "")
                except ValueError as error:
                    shown = "[hidden]" if row.is_secret else repr(given)
                    problems.append(Problem(name, f"{shown} is not valid: {error}"))
                    found[row.name] = None
            case Refused() if value is not None and value.strip().lower() not in {each.lower() for each in row.allowed}:
                problems.append(Problem(name, f"{value!r} is not supported here: {row.advice}"))
    return Values(found), problems


def unknown(config: Mapping[str, str], known: Sequence[str], prefixes: Sequence[str]) -> list[Problem]:
    """Name the options that no table has, each with the nearest name that one has."""
    problems = []
    for name in config:
        if name in known or name.startswith(tuple(prefixes)):
            continue
        near = nearest(name, known)
        hint = f"; did you mean {near}?" if near else ": remove it, or say in an issue what it should do"
        problems.append(Problem(name, f"is not an option of this connector{hint}"))
    return problems


def as_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings as Connect reads them from JSON: numbers and booleans as text."""
    return {name: _as_text(value) for name, value in config.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        raise ConnectorRefused(
            "a value of a connector's config is a text, a number or a boolean, not an object or a list"
        )
    return str(value)


#: Shown in place of the value of a secret option.
HIDDEN: Final = "[hidden]"
