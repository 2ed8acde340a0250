"""Shared by the compilers of read and write functions: the fields of a version, and the source under construction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from barnabas.wire.messages.base import Message, Wire

#: struct format and size of each fixed-size type. A uuid is its 16 bytes.
FIXED: dict[object, tuple[str, int]] = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}

#: The longest string, in UTF-8. Compact strings have room for more, but Kafka neither reads nor writes it.
STRING_BYTES_MAX: Final = 0x7FFF

Fields = list[tuple[str, Wire]]


def in_range(versions: str, version: int) -> bool:
    """Return whether a range such as "3+", "0-12" or "5" includes the version."""
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    low, _, high = versions.partition("-")
    return int(low) <= version <= int(high or low)


def is_nullable(spec: Wire, version: int) -> bool:
    return spec.nullable is not None and in_range(spec.nullable, version)


def present_fields(cls: type[Message], version: int) -> tuple[Fields, Fields, Fields]:
    """Return the version's fields in order, its tagged fields by tag, and the fields that it lacks."""
    plain: Fields = []
    tagged: Fields = []
    absent: Fields = []
    for name, spec in cls.__wire__.items():
        if not in_range(spec.versions, version):
            absent.append((name, spec))
        elif spec.tag is None:
            plain.append((name, spec))
        else:
            tagged.append((name, spec))
    tagged.sort(key=lambda field: field[1].tag or 0)
    return plain, tagged, absent


def runs(fields: Fields) -> Iterator[tuple[bool, Fields]]:
    """Split fields into runs of fixed-size ones (True) and single others (False)."""
    fixed: Fields = []
    for name, spec in fields:
        if not spec.is_array and spec.type in FIXED:
            fixed.append((name, spec))
            continue
        if fixed:
            yield True, fixed
            fixed = []
        yield False, [(name, spec)]
    if fixed:
        yield True, fixed


class Source:
    """The source of one function: its lines, and the objects that it refers to.

    The code for a struct in a message is part of the message's function: a call per struct would cost more than its fields.
    """

    def __init__(self, cls: type[Message], version: int, flexible: bool) -> None:
        #: The class of the struct that the next lines are for, and the name of their variable.
        self._cls = cls
        self._obj = "obj"
        self._version = version
        self._flexible = flexible
        self._lines: list[str] = []
        #: The class that each line is for.
        self._classes: list[type[Message]] = []
        self._names: dict[str, Any] = {}
        self._variables = 0

    def _compiled(self, function: str) -> Callable[..., Any]:
        title = f"<{function} {self._cls.__name__} v{self._version}>"
        exec(compile("\n".join(self._lines), title, "exec"), self._names)
        self._lines.clear()
        compiled: Callable[..., Any] = self._names[function]
        return compiled

    def _emit(self, depth: int, *lines: str) -> None:
        self._lines.extend("    " * depth + line for line in lines)
        self._classes.extend([self._cls] * len(lines))

    @contextmanager
    def _inside(self, cls: type[Message]) -> Iterator[str]:
        """Emit code for a struct inside of the current one, with a variable of its own."""
        outer = self._cls, self._obj
        self._cls, self._obj = cls, self._variable("obj")
        yield self._obj
        self._cls, self._obj = outer

    def _variable(self, prefix: str) -> str:
        self._variables += 1
        return f"{prefix}{self._variables}"

    def _what(self, name: str) -> str:
        return repr(f"{self._cls.__name__}.{name}")

    def _name(self, prefix: str, value: object) -> str:
        name = f"{prefix}_{len(self._names)}"
        self._names[name] = value
        return name


def compiled_at_first_call(build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    built: Callable[..., Any] | None = None

    def call(*arguments: object) -> Any:
        nonlocal built
        if built is None:
            built = build()
        return built(*arguments)

    return call
