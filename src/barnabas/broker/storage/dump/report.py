"""Where a dump goes: lines of `name: value` as Kafka's tool prints them, or one JSON object a line.

Findings (mismatches, what could not be read) go to the error stream, as Kafka's tool has it.
"""

import json
from typing import Protocol, TypeAlias

Field: TypeAlias = "bool | int | str | list[str] | None"
Fields: TypeAlias = dict[str, Field]


class OptionalLong(int):
    """A number that Java holds in an OptionalLong, and prints so."""


class TextStream(Protocol):
    def write(self, text: str, /) -> object: ...


class Report:
    """`kind` names the JSON object; the text forms are Kafka's."""

    def __init__(self, out: TextStream, err: TextStream, *, as_json: bool = False) -> None:
        self._out = out
        self._err = err
        self._as_json = as_json
        #: Whether a file could not be dumped. What is wrong inside a file is a finding, and no failure: as Kafka has it.
        self.has_failed = False

    def line(self, text: str, kind: str, fields: Fields) -> None:
        """A line of its own words."""
        self._out.write(f"{json.dumps({'kind': kind} | fields)}\n" if self._as_json else f"{printable(text)}\n")

    def pairs(self, kind: str, fields: Fields, *, prefix: str = "", end: str = "") -> None:
        """`name: value name: value …`"""
        if self._as_json:
            self._out.write(f"{json.dumps({'kind': kind} | fields)}\n")
        else:
            text = " ".join(f"{name}: {show(value)}" for name, value in fields.items())
            self._out.write(printable(f"{prefix}{text}{end}\n"))

    def finding(self, text: str) -> None:
        self._err.write(printable(f"{text}\n"))


def show(value: Field) -> str:
    """As Java prints it; a missing number is an empty OptionalLong."""
    if value is None:
        return "OptionalLong.empty"
    if isinstance(value, OptionalLong):
        return f"OptionalLong[{int(value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return str(value)


def printable(text: str) -> str:
    """Without the lone surrogates that stand for bytes which are not UTF-8: no stream could encode them."""
    return text.encode("utf-8", "replace").decode()
