"""The parts of a .proto file that Square's Wire keeps: Confluent writes its canonical text from these. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SCALARS = frozenset(
    {
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    }
)
TAG_MAX = 536_870_911


@dataclass(frozen=True, slots=True)
class Primitive:
    """A value within the braces of an option that is not a text: a number, a boolean or a name."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    #: STRING, BOOLEAN, NUMBER, ENUM, MAP, LIST, or OPTION: a part of the option, `(name).part = value`.
    kind: str
    value: Any
    #: Written in parentheses: not one of Protobuf's own options.
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    start: int
    end: int  # included


@dataclass(slots=True, eq=False)
class Field:
    label: str | None
    type: str
    name: str
    tag: int
    default: Option | None = None
    json_name: str | None = None
    options: list[Option] = field(default_factory=list)

    @property
    def map_types(self) -> tuple[str, str] | None:
        if not self.type.startswith("map<"):
            return None
        key, _, value = self.type[4:-1].partition(",")
        return key.strip(), value.strip()


@dataclass(slots=True, eq=False)
class Group:
    label: str | None
    name: str
    tag: int
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class OneOf:
    name: str
    fields: list[Field] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Extensions:
    values: list[int | Range]
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Extend:
    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Constant:
    name: str
    tag: int
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Enum:
    name: str
    constants: list[Constant] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[list[int | str | Range]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Message:
    name: str
    fields: list[Field] = field(default_factory=list)
    oneofs: list[OneOf] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    types: "list[Message | Enum]" = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[list[int | str | Range]] = field(default_factory=list)
    extensions: list[Extensions] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)

    @property
    def is_map_entry(self) -> bool:
        return any(option.name == "map_entry" and str(option.value) == "true" for option in self.options)


@dataclass(slots=True, eq=False)
class Rpc:
    name: str
    request: str
    response: str
    request_streams: bool = False
    response_streams: bool = False
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Service:
    name: str
    rpcs: list[Rpc] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class File:
    syntax: str | None = None
    package: str | None = None
    imports: list[str] = field(default_factory=list)
    public_imports: list[str] = field(default_factory=list)
    weak_imports: list[str] = field(default_factory=list)
    types: list[Message | Enum] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)

    @property
    def all_imports(self) -> list[str]:
        return [*self.imports, *self.public_imports, *self.weak_imports]


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A message or an enum, and the file that defines it."""

    package: str
    element: Message | Enum
    #: Defined in the file itself, not in an imported one.
    is_local: bool

    @property
    def map_type(self) -> str | None:
        if not isinstance(self.element, Message) or not self.element.is_map_entry:
            return None
        types = {item.name: item.type for item in self.element.fields}
        return f"map<{types.get('key')}, {types.get('value')}>"


class Names:
    """Types and extensions of a file and of all that it imports, by their full names."""

    def __init__(self, file: File, imported: list[File]) -> None:
        self.types: dict[str, Type] = {}
        self.extensions: dict[str, Field] = {}
        for other in imported:
            self._collect(other, is_local=False)
        self._collect(file, is_local=True)
        self.package = file.package or ""

    def resolve(self, name: str, scope: str) -> str | None:
        """Return the full name of a type as named within a scope: the innermost match wins."""
        return _resolve(self.types, name, scope)

    def resolve_extension(self, name: str, scope: str) -> str | None:
        return _resolve(self.extensions, name, scope)

    def type(self, name: str, scope: str) -> Type | None:
        full = self.resolve(name, scope)
        return self.types[full] if full is not None else None

    def _collect(self, file: File, *, is_local: bool) -> None:
        package = file.package or ""
        for item in _extension_fields(file.extends):
            self.extensions[joined(package, item.name)] = item
        pending: list[tuple[str, Message | Enum]] = [(package, item) for item in file.types]
        while pending:
            scope, element = pending.pop()
            full = joined(scope, element.name)
            self.types[full] = Type(package, element, is_local)
            if isinstance(element, Message):
                for item in _extension_fields(element.extends):
                    self.extensions[joined(full, item.name)] = item
                pending += [(full, inner) for inner in element.types]


def joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _resolve(known: "dict[str, Any]", name: str, scope: str) -> str | None:
    if name.startswith("."):
        return name[1:] if name[1:] in known else None
    while scope:
        full = f"{scope}.{name}"
        if full in known:
            return full
        scope = scope.rpartition(".")[0]
    return name if name in known else None


def _extension_fields(extends: list[Extend]) -> Iterator[Field]:
    for extend in extends:
        yield from extend.fields
