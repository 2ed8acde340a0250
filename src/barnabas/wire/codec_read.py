"""Generate the source of a read function: `read(buf, pos, end) -> (obj, pos)` for one class at one version.

The generated code checks every length against `end` before use. Adjacent fields of fixed size need one check and one
`unpack_from`. An array's count is checked against the minimum size of so many elements, so a count alone never causes an
allocation. A string has at most 32,767 bytes, as in Kafka: older versions of a message, and Java clients, have that limit.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from barnabas.base.errors import Malformed
from barnabas.wire.codec_source import (
    FIXED,
    STRING_BYTES_MAX,
    Fields,
    Source,
    compiled_at_first_call,
    is_nullable,
    present_fields,
    runs,
)
from barnabas.wire.messages.base import Message, Wire
from barnabas.wire.varint import read_uvarint
from barnabas.wire.wire import read_tag, skip_tagged_fields


def least_size(cls: type[Message], version: int, flexible: bool) -> int:
    """Return the fewest bytes that the struct can take."""
    plain, _, _ = present_fields(cls, version)
    return sum(_least_field_size(spec, version, flexible) for _, spec in plain) + flexible


def _least_field_size(spec: Wire, version: int, flexible: bool) -> int:
    if spec.is_array:
        return 1 if flexible else 4
    if isinstance(spec.type, type):
        return 1 if is_nullable(spec, version) else least_size(spec.type, version, flexible)
    if spec.type in FIXED:
        return FIXED[spec.type][1]
    if flexible:
        return 1
    return 2 if spec.type == "string" else 4


#: How many more array elements may be read, as a list with one number.
Budget = list[int]
_compiled: dict[tuple[type[Message], int, bool, int], Callable[..., Any]] = {}


def compile_reader(
    cls: type[Message], version: int, flexible: bool, budget: Budget | None = None
) -> Callable[..., Any]:
    """With a budget, the reader subtracts the elements of its arrays, and raises `TooManyElements` when it is used up."""
    key = (cls, version, flexible, id(budget))
    if key not in _compiled:
        _compiled[key] = _ReaderSource(cls, version, flexible, budget).compile()
    return _compiled[key]


class TooManyElements(Malformed):
    """More elements than the reader's limit: the message may be valid, but decoding it would take too long."""


def short(what: str, needed: int, pos: int, end: int) -> Malformed:
    return Malformed(f"{what}: {needed} bytes needed at {pos}, {end - pos} left")


def bad_length(what: str, size: int, pos: int, end: int) -> Malformed:
    if size < 0:
        return Malformed(f"{what}: null or a negative length where the version has none")
    return Malformed(f"{what}: claims {size} bytes or elements at {pos}, {end - pos} bytes left")


def long_string(what: str, size: int) -> Malformed:
    return Malformed(f"{what}: a string of {size} bytes; {STRING_BYTES_MAX} is the limit")


def bad_text(what: str, error: UnicodeDecodeError) -> Malformed:
    return Malformed(f"{what}: not UTF-8 ({error.reason})")


class _ReaderSource(Source):
    def __init__(self, cls: type[Message], version: int, flexible: bool, budget: Budget | None = None) -> None:
        super().__init__(cls, version, flexible)
        self._budget = budget
        self._names |= {
            "new": object.__new__,
            "uvarint": read_uvarint,
            "read_tag": read_tag,
            "skip_tagged_fields": skip_tagged_fields,
            "short": short,
            "bad_length": bad_length,
            "bad_text": bad_text,
            "long_string": long_string,
            "budget": budget,
            "TooManyElements": TooManyElements,
            "Malformed": Malformed,
            "int16": Struct(">h").unpack_from,
            "int32": Struct(">i").unpack_from,
        }

    def compile(self) -> Callable[..., Any]:
        self._emit(0, "def read(buf, pos, end):")
        self._body(1)
        self._emit(1, "return obj, pos")
        return self._compiled("read")

    def _body(self, depth: int) -> None:
        """Emit code that reads the current struct to its variable."""
        obj = self._obj
        plain, tagged, absent = present_fields(self._cls, self._version)
        self._emit(depth, f"{obj} = new({self._name('cls', self._cls)})")
        for name, spec in absent + tagged:
            self._emit(depth, f"{obj}.{name} = {self._default(name, spec)}")
        for is_fixed, fields in runs(plain):
            if is_fixed:
                self._fixed(depth, fields)
            else:
                self._field(depth, *fields[0])
        if not self._flexible:
            return
        self._emit(depth, "if pos < end and buf[pos] == 0: pos += 1")
        if tagged:
            # Most messages have no tagged fields, so the code for them is compiled when the first message has one.
            later = _ReaderSource(self._cls, self._version, self._flexible, self._budget)
            read_tags = self._name("read_tags", compiled_at_first_call(lambda: later.compile_tagged(tagged)))
            self._emit(depth, f"else: pos = {read_tags}({obj}, buf, pos, end)")
        else:
            self._emit(depth, f"else: pos = skip_tagged_fields(buf, pos, end, {self._what('tagged fields')})")

    def compile_tagged(self, tagged: Fields) -> Callable[..., Any]:
        """Compile `read_tags(obj, buf, pos, end) -> pos`, for a section that is not empty."""
        what = self._what("tagged fields")
        self._emit(
            0,
            "def read_tags(obj, buf, pos, end):",
            f"    count, pos = uvarint(buf, pos, end, {what})",
            "    tag = -1",
            "    whole = end",
            "    for _ in range(count):",
            f"        tag, pos, end = read_tag(buf, pos, whole, tag, {what})",
        )
        for at, (name, spec) in enumerate(tagged):
            self._emit(2, f"{'el' if at else ''}if tag == {spec.tag}:")
            if not spec.is_array and spec.type in FIXED:
                self._fixed(3, [(name, spec)])
            else:
                self._field(3, name, spec)
            self._emit(
                3, f"if pos != end: raise Malformed({self._what(name)} + f': {{end - pos}} bytes left over at {{pos}}')"
            )
        # Unknown tags are skipped, so that newer peers can add fields.
        self._emit(2, "pos = end")
        self._emit(1, "return pos")
        return self._compiled("read_tags")

    def _default(self, name: str, spec: Wire) -> str:
        """Return an expression for the field's value if the input does not have it."""
        if spec.default is list:
            return "[]"
        if isinstance(spec.default, type):
            return f"{self._name('new_' + name, spec.default)}()"
        return repr(spec.default)

    def _fixed(self, depth: int, fields: Fields) -> None:
        formats = [FIXED[spec.type] for _, spec in fields]
        size = sum(each for _, each in formats)
        unpack = self._name("unpack", Struct(">" + "".join(code for code, _ in formats)).unpack_from)
        targets = ", ".join(f"{self._obj}.{name}" for name, _ in fields)
        self._emit(
            depth,
            f"if end - pos < {size}: raise short({self._what(fields[0][0])}, {size}, pos, end)",
            f"{targets}{',' if len(fields) == 1 else ''} = {unpack}(buf, pos)",
            f"pos += {size}",
        )

    def _length(self, depth: int, what: str, width: str) -> None:
        """Emit code that leaves the length in `n`, -1 for null."""
        if self._flexible:
            self._emit(
                depth,
                "if pos < end and (n := buf[pos]) < 128: pos += 1",
                "elif pos + 1 < end and (high := buf[pos + 1]) < 128: n = n & 127 | high << 7; pos += 2",
                f"else: n, pos = uvarint(buf, pos, end, {what})",
                "n -= 1",
            )
        else:
            size = 2 if width == "int16" else 4
            self._emit(
                depth,
                f"if end - pos < {size}: raise short({what}, {size}, pos, end)",
                f"n, = {width}(buf, pos)",
                f"pos += {size}",
            )

    def _field(self, depth: int, name: str, spec: Wire) -> None:
        """Emit code that reads a single field of variable size to `obj.name`."""
        if not spec.is_array and isinstance(spec.type, type):
            self._struct(depth, name, spec, spec.type)
            return
        what, obj = self._what(name), self._obj
        self._length(depth, what, "int16" if spec.type == "string" and not spec.is_array else "int32")
        if is_nullable(spec, self._version):
            # As in Kafka, any negative length means null.
            self._emit(depth, f"if n < 0: {obj}.{name} = None", "else:")
            depth += 1
            too_much = "n > end - pos"
        else:
            too_much = "n < 0 or n > end - pos"
        if spec.is_array:
            self._array(depth, name, spec)
            return
        self._emit(depth, f"if {too_much}: raise bad_length({what}, n, pos, end)", "stop = pos + n")
        if spec.type == "string":
            if self._flexible:
                self._emit(depth, f"if n > {STRING_BYTES_MAX}: raise long_string({what}, n)")
            self._emit(
                depth,
                f"try: {obj}.{name} = str(buf[pos:stop], 'utf-8')",
                f"except UnicodeDecodeError as error: raise bad_text({what}, error) from None",
            )
        elif spec.type == "bytes":
            self._emit(depth, f"{obj}.{name} = bytes(buf[pos:stop])")
        else:  # records: a slice of the input, not a copy
            self._emit(depth, f"{obj}.{name} = (buf if buf.__class__ is memoryview else memoryview(buf))[pos:stop]")
        self._emit(depth, "pos = stop")

    def _struct(self, depth: int, name: str, spec: Wire, cls: type[Message]) -> None:
        outer = self._obj
        if is_nullable(spec, self._version):  # KIP-893: a byte precedes it, negative for null
            self._emit(
                depth,
                f"if end - pos < 1: raise short({self._what(name)}, 1, pos, end)",
                "pos += 1",
                f"if buf[pos - 1] > 127: {outer}.{name} = None",
                "else:",
            )
            depth += 1
        with self._inside(cls) as obj:
            self._body(depth)
        self._emit(depth, f"{outer}.{name} = {obj}")

    def _array(self, depth: int, name: str, spec: Wire) -> None:
        """Emit code that reads the elements; their count is in `n`."""
        what, obj = self._what(name), self._obj
        if isinstance(spec.type, type):
            least = max(1, least_size(spec.type, self._version, self._flexible))
        else:
            least = FIXED[spec.type][1] if spec.type in FIXED else 1 if self._flexible else 2
        self._emit(depth, f"if n < 0 or n * {least} > end - pos: raise bad_length({what}, n, pos, end)")
        if self._budget is not None:
            self._emit(
                depth,
                "budget[0] -= n",
                f"if budget[0] < 0: raise TooManyElements({what} + f': {{n}} elements are too many')",
            )
        if spec.type in FIXED and spec.type not in ("bool", "uuid"):
            code, size = FIXED[spec.type]
            self._names["Struct"] = Struct
            self._emit(
                depth,
                f"{obj}.{name} = list(Struct(f'>{{n}}{code}').unpack_from(buf, pos)) if n else []",
                f"pos += n * {size}",
            )
            return
        items = self._variable("items")
        self._emit(depth, f"{items} = {obj}.{name} = []", "for _ in range(n):")
        if isinstance(spec.type, type):
            with self._inside(spec.type) as item:
                self._body(depth + 1)
            self._emit(depth + 1, f"{items}.append({item})")
        else:
            read = self._name("read_" + spec.type, _element_reader(spec.type, self._flexible))
            self._emit(depth + 1, f"item, pos = {read}(buf, pos, end, {what})", f"{items}.append(item)")


def _element_reader(type_: str, flexible: bool) -> Callable[..., Any]:
    """Return the reader for array elements of a type that has no struct format."""
    if type_ in ("string", "bytes"):
        return _ELEMENTS[type_, flexible]
    if type_ in ("bool", "uuid"):
        return _ELEMENTS[type_, False]
    raise TypeError(f"an array of {type_} is not part of the protocol")


def _string(buf: Any, pos: int, end: int, what: str) -> tuple[str, int]:
    if end - pos < 2:
        raise short(what, 2, pos, end)
    return _text(buf, pos + 2, Struct(">h").unpack_from(buf, pos)[0], end, what)


def _compact_string(buf: Any, pos: int, end: int, what: str) -> tuple[str, int]:
    size, pos = read_uvarint(buf, pos, end, what)
    if size - 1 > STRING_BYTES_MAX:
        raise long_string(what, size - 1)
    return _text(buf, pos, size - 1, end, what)


def _text(buf: Any, pos: int, size: int, end: int, what: str) -> tuple[str, int]:
    if size < 0 or size > end - pos:
        raise bad_length(what, size, pos, end)
    try:
        return str(buf[pos : pos + size], "utf-8"), pos + size
    except UnicodeDecodeError as error:
        raise bad_text(what, error) from None


def _bytes(buf: Any, pos: int, end: int, what: str) -> tuple[bytes, int]:
    if end - pos < 4:
        raise short(what, 4, pos, end)
    size = Struct(">i").unpack_from(buf, pos)[0]
    pos += 4
    if size < 0 or size > end - pos:
        raise bad_length(what, size, pos, end)
    return bytes(buf[pos : pos + size]), pos + size


def _compact_bytes(buf: Any, pos: int, end: int, what: str) -> tuple[bytes, int]:
    size, pos = read_uvarint(buf, pos, end, what)
    size -= 1
    if size < 0 or size > end - pos:
        raise bad_length(what, size, pos, end)
    return bytes(buf[pos : pos + size]), pos + size


def _bool(buf: Any, pos: int, end: int, what: str) -> tuple[bool, int]:
    return buf[pos] != 0, pos + 1  # the check of the count has ensured enough bytes


def _uuid(buf: Any, pos: int, end: int, what: str) -> tuple[bytes, int]:
    return bytes(buf[pos : pos + 16]), pos + 16


_ELEMENTS: dict[tuple[str, bool], Callable[..., Any]] = {
    ("string", False): _string,
    ("string", True): _compact_string,
    ("bytes", False): _bytes,
    ("bytes", True): _compact_bytes,
    ("bool", False): _bool,
    ("uuid", False): _uuid,
}
