"""The output of a dump: lines of `name: value` as Kafka's tool prints them, or one JSON object per line.

Findings (mismatches, unreadable data) go to the error stream, as in Kafka's tool.
"""

import json
from typing import Protocol, TypeAlias

Field: TypeAlias = "bool | int | str | list[str] | None"
Fields: TypeAlias = dict[str, Field]


class OptionalLong(int):
    """A number that Java holds in an OptionalLong, and prints as such."""


class TextStream(Protocol):
    def write(self, text: str, /) -> object: ...


class Report:
    """Prints lines. `kind` names the JSON object; the text formats are Kafka's."""

    def __init__(self, out: TextStream, err: TextStream, *, as_json: bool = False) -> None:
        self._out = out
        self._err = err
        self._as_json = as_json
        #: Whether a file could not be dumped. Damage inside a file is a finding and not a failure, as in Kafka's tool.
        self.has_failed = False

    def line(self, text: str, kind: str, fields: Fields) -> None:
        """Print a line of free text."""
        self._out.write(f"{json.dumps({'kind': kind} | fields)}\n" if self._as_json else f"{printable(text)}\n")

    def pairs(self, kind: str, fields: Fields, *, prefix: str = "", end: str = "") -> None:
        """Print `name: value name: value …`."""
        if self._as_json:
            self._out.write(f"{json.dumps({'kind': kind} | fields)}\n")
        else:
            text = " ".join(f"{name}: {show(value)}" for name, value in fields.items())
            self._out.write(printable(f"{prefix}{text}{end}\n"))

    def finding(self, text: str) -> None:
        self._err.write(printable(f"{text}\n"))


def show(value: Field) -> str:
    """Return the value as Java prints it; a missing number is an empty OptionalLong."""
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
    """Replace the lone surrogates that stand for bytes that are not UTF-8: no stream could encode them."""
    return text.encode("utf-8", "replace").decode()
