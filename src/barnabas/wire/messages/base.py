"""What a message class is: typed fields, each with its place on the wire.

A message class spans all versions of its message, as Kafka's own generated classes do. It reads like a dataclass, and a
type checker takes it for one (keyword-only, every field has a default):

    class FetchTopic(Message):
        topic: str = wire("string", "4-12")
        topic_id: bytes = wire("uuid", "13+")
        partitions: list[FetchPartition] = array(FetchPartition, "4+")

Real dataclasses cost 0.4 ms a class to create, and there are 550: here the class statement only notes the fields, and
`__init__` is compiled at the first call. Codecs come from `barnabas.wire.codec`, by version.

Version ranges are Kafka's: "3+", "0-12", "5". A struct in a tagged field defaults to None, which is an absent tag; every
other default is the schema's.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

ZERO_UUID = bytes(16)

#: Primitive types and what a field of the type holds when nothing is said.
IMPLICIT_DEFAULTS: Mapping[str, object] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "int64": 0,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}


class RecordsRef:
    """Stands in a records field for `size` bytes that are sent from elsewhere; `payload` is the sender's business."""

    __slots__ = ("payload", "size")

    def __init__(self, size: int, payload: object) -> None:
        self.size = size
        self.payload = payload

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"RecordsRef(size={self.size}, payload={self.payload!r})"


T = TypeVar("T")


class EncodedItems(list[T]):
    """Stands in an array of structs for `number` of them that were encoded before, for the version that is being written.

    It has their number and their bytes, not the items: nobody but a writer can do anything with it.
    """

    __slots__ = ("data", "number")

    def __init__(self, number: int, data: bytes) -> None:
        super().__init__()
        self.number = number
        self.data = data

    def __len__(self) -> int:
        return self.number


class Wire:
    """A field's place on the wire. Immutable by convention; shared by all instances of its class."""

    __slots__ = ("default", "is_array", "nullable", "tag", "type", "versions")

    def __init__(
        self,
        type_: "str | type[Message]",
        versions: str,
        *,
        is_array: bool,
        default: object,
        nullable: str | None,
        tag: int | None,
    ) -> None:
        #: A primitive's name, or the class of a struct; of the elements, where it is an array.
        self.type = type_
        self.versions = versions
        self.is_array = is_array
        #: What it holds in a version that lacks it. Lists and structs: None, or the class of which to make a new one.
        self.default = default
        #: The versions that may carry null.
        self.nullable = nullable
        #: Set: a tagged field (KIP-482) in every version that has it. Left out while it holds its default.
        self.tag = tag


_IMPLICIT = object()


def wire(
    type_: str, versions: str, *, default: object = _IMPLICIT, nullable: str | None = None, tag: int | None = None
) -> Any:
    """A primitive field."""
    if default is _IMPLICIT:
        default = IMPLICIT_DEFAULTS[type_]
    return Wire(type_, versions, is_array=False, default=default, nullable=nullable, tag=tag)


def array(
    type_: "str | type[Message]",
    versions: str,
    *,
    default: object = list,
    nullable: str | None = None,
    tag: int | None = None,
) -> Any:
    """A list of primitives or structs; `default=None` where the schema's default is null."""
    return Wire(type_, versions, is_array=True, default=default, nullable=nullable, tag=tag)


def struct(
    type_: "type[Message]",
    versions: str,
    *,
    default: object = _IMPLICIT,
    nullable: str | None = None,
    tag: int | None = None,
) -> Any:
    """A struct. A tagged one is None when it is absent."""
    if default is _IMPLICIT:
        default = None if tag is not None else type_
    return Wire(type_, versions, is_array=False, default=default, nullable=nullable, tag=tag)


@dataclass_transform(kw_only_default=True)
class MessageType(type):
    """Turns the fields of a class body into slots, and keeps their wire specs in `__wire__`."""

    __wire__: dict[str, Wire]

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> "MessageType":
        specs = {field: spec for field, spec in body.items() if type(spec) is Wire}
        for field in specs:
            del body[field]
        body["__slots__"] = tuple(specs)
        body["__wire__"] = specs
        return super().__new__(mcs, name, bases, body)


class Message(metaclass=MessageType):
    """Base of every message and every struct in one. Mutable; equal when all fields are."""

    __wire__: ClassVar[dict[str, Wire]]

    def __init__(self, **fields: Any) -> None:
        # The class gets its own __init__ now, at the first construction.
        cls = type(self)
        cls.__init__ = _compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__wire__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__wire__)})"

    def replace(self, **changes: Any) -> Self:
        """A shallow copy with some fields changed."""
        return type(self)(**{name: getattr(self, name) for name in self.__wire__} | changes)


class Versioned(Message):
    """A message that travels, or is kept, on its own: it has versions, which the structs inside it share."""

    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    #: The first version with compact types and tagged fields; past MAX_VERSION where no version has them.
    FLEXIBLE_FROM: ClassVar[int]


class ApiMessage(Versioned):
    """A request or a response."""

    API_KEY: ClassVar[int]


class Record(Versioned):
    """A key or value of an internal topic, or other data that is kept with an int16 version before it."""


def _compile_init(cls: type[Message]) -> Any:
    names: dict[str, object] = {"_unset": _IMPLICIT}
    parameters, body = [], []
    for field, spec in cls.__wire__.items():
        if isinstance(spec.default, type):
            names[f"_new_{field}"] = spec.default
            parameters.append(f"{field}=_unset")
            body.append(f"    self.{field} = _new_{field}() if {field} is _unset else {field}")
        else:
            names[f"_default_{field}"] = spec.default
            parameters.append(f"{field}=_default_{field}")
            body.append(f"    self.{field} = {field}")
    head = f"def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}):"
    exec("\n".join([head, *body] if body else [head, "    return"]), names)
    function = names["__init__"]
    function.__qualname__ = f"{cls.__qualname__}.__init__"  # type: ignore[attr-defined]
    return function
