"""Generate the source of a write function: `write(obj, out)` for one class at one version, appending to a bytearray.

A function for a whole response frame returns its parts: a records field of it takes bytes, or a `RecordsRef` for data that is
sent separately (a file range), which becomes a part. An array of structs also takes `EncodedItems`: bytes encoded earlier.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Any

from barnabas.base.errors import BarnabasError
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
from barnabas.wire.messages.base import EncodedItems, Message, RecordsRef, Wire
from barnabas.wire.varint import append_uvarint


class Unwritable(BarnabasError):
    """The version cannot express the message: a bug of the caller."""


#: A piece of a response frame.
FramePart = bytearray | RecordsRef


def _misplaced_ref(what: str) -> Unwritable:
    return Unwritable(f"{what}: a RecordsRef can only be written into the frame of a response")


def _null(what: str) -> Unwritable:
    return Unwritable(f"{what} is null, which this version does not allow")


def _long_string(what: str, size: int) -> Unwritable:
    return Unwritable(f"{what}: a string of {size} bytes; {STRING_BYTES_MAX} is the limit")


def _cut_text(text: bytes) -> bytes:
    return text[:STRING_BYTES_MAX].decode(errors="ignore").encode()


_compiled: dict[tuple[type[Message], int, bool], Callable[..., None]] = {}


def compile_writer(cls: type[Message], version: int, flexible: bool) -> Callable[..., None]:
    key = (cls, version, flexible)
    if key not in _compiled:
        _compiled[key] = _WriterSource(cls, version, flexible).compile()
    return _compiled[key]


def compile_frame_writer(
    cls: type[Message], version: int, flexible: bool, *, flexible_header: bool
) -> Callable[[Any, int], list[FramePart]]:
    """Compile `write(obj, correlation_id) -> parts`: a response with its header, and the frame's size before both."""
    return _WriterSource(cls, version, flexible).compile_frame(flexible_header)


def _has_records(cls: type[Message]) -> bool:
    return any(
        _has_records(spec.type) if isinstance(spec.type, type) else spec.type == "records"
        for spec in cls.__wire__.values()
    )


class _WriterSource(Source):
    def __init__(self, cls: type[Message], version: int, flexible: bool) -> None:
        super().__init__(cls, version, flexible)
        self._out = "out"
        #: Format of the header, which is written in one call with the first fields; empty once it is written.
        self._head = ""
        #: Whether a `RecordsRef` may be written: it becomes a part of its own.
        self._in_parts = False
        self._names |= {
            "append_uvarint": append_uvarint,
            "misplaced_ref": _misplaced_ref,
            "null": _null,
            "cut_text": _cut_text,
            "long_string": _long_string,
            "int16": Struct(">h").pack,
            "int32": Struct(">i").pack,
            "EncodedItems": EncodedItems,
            "RecordsRef": RecordsRef,
            "Struct": Struct,
            "unwritable": self._unwritable,
            "struct_error": struct_error,
        }

    def compile(self) -> Callable[..., None]:
        self._emit(0, "def write(obj, out):", "    try:")
        self._body(2)
        return self._compiled("write")

    def compile_frame(self, flexible_header: bool) -> Callable[[Any, int], list[FramePart]]:
        self._head = "iix" if flexible_header else "ii"
        self._in_parts = _has_records(self._cls)
        self._names["put_size"] = Struct(">i").pack_into
        self._emit(0, "def write(obj, correlation_id):", "    try:")
        if not self._in_parts:
            self._body(2)
            self._emit(2, "put_size(out, 0, len(out) - 4)")
            return self._compiled("write", "[out]")
        self._emit(2, "parts = []", "sent = 0")
        self._body(2)
        self._emit(2, "sent += len(out)", "if out: parts.append(out)", "put_size(parts[0], 0, sent - 4)")
        return self._compiled("write", "parts")

    def _body(self, depth: int) -> None:
        """Emit code that writes the current struct."""
        plain, tagged, _ = present_fields(self._cls, self._version)
        out = self._out
        is_closed = not self._flexible
        in_order = list(runs(plain))
        if self._head and not (in_order and in_order[0][0]):
            self._fixed(depth, [])
        for number, (is_fixed, fields) in enumerate(in_order, 1):
            if not is_fixed:
                self._field(depth, *fields[0])
            elif number == len(in_order) and self._flexible and not tagged:
                self._fixed(depth, fields, "x")  # the zero byte of no tagged fields
                is_closed = True
            else:
                self._fixed(depth, fields)
        if is_closed:
            return
        if not tagged:
            self._emit(depth, f"{out}.append(0)")
            return
        # A tagged field with its default value is left out. Few messages set one, so the code for them is compiled later.
        later = _WriterSource(self._cls, self._version, self._flexible)
        write_tags = self._name("write_tags", compiled_at_first_call(lambda: later.compile_tagged(tagged)))
        self._emit(
            depth,
            f"if {' or '.join(self._is_set(*field) for field in tagged)}: {write_tags}({self._obj}, {out})",
            f"else: {out}.append(0)",
        )

    def compile_tagged(self, tagged: Fields) -> Callable[..., None]:
        """Compile `write_tags(obj, out)`."""
        self._out = "part"
        self._emit(0, "def write_tags(obj, out):", "    try:", "        count = 0", "        tail = bytearray()")
        for name, spec in tagged:
            self._emit(2, f"if {self._is_set(name, spec)}:", "    part = bytearray()")
            if not spec.is_array and spec.type in FIXED:
                self._fixed(3, [(name, spec)])
            else:
                self._field(3, name, spec)
            self._emit(
                3,
                f"append_uvarint(tail, {spec.tag})",
                "append_uvarint(tail, len(part))",
                "tail += part",
                "count += 1",
            )
        self._emit(2, "append_uvarint(out, count)", "out += tail")
        return self._compiled("write_tags")

    def _compiled(self, function: str, result: str = "None") -> Callable[..., Any]:
        self._emit(2, f"return {result}")
        # The error does not show the message, which may have a password. A text with half of a surrogate pair is not UTF-8.
        self._emit(1, "except (struct_error, UnicodeEncodeError) as error:", "    raise unwritable(error) from None")
        return super()._compiled(function)

    def _unwritable(self, error: Exception) -> Unwritable:
        """Return the error with the name of the struct whose line failed."""
        assert error.__traceback__ is not None
        cls = self._classes[error.__traceback__.tb_lineno - 1]
        return Unwritable(f"{cls.__name__} v{self._version}: {error}")

    def _fixed(self, depth: int, fields: Fields, after: str = "") -> None:
        layout = "".join(FIXED[spec.type][0] for _, spec in fields) + after
        values = [f"{self._obj}.{name}" for name, _ in fields]
        if self._head:
            pack = self._name("pack", Struct(">" + self._head + layout).pack)
            self._emit(depth, f"{self._out} = bytearray({pack}({', '.join(['0', 'correlation_id', *values])}))")
            self._head = ""
            return
        pack = self._name("pack", Struct(">" + layout).pack)
        self._emit(depth, f"{self._out} += {pack}({', '.join(values)})")

    def _length(self, depth: int, width: str) -> None:
        """Emit code that writes the length in `n`."""
        out = self._out
        if self._flexible:
            self._emit(
                depth,
                f"if n < 127: {out}.append(n + 1)",
                f"elif n < 16383: {out}.append((n + 1) & 127 | 128); {out}.append((n + 1) >> 7)",
                f"else: append_uvarint({out}, n + 1)",
            )
        else:
            self._emit(depth, f"{out} += {width}(n)")

    def _field(self, depth: int, name: str, spec: Wire) -> None:
        """Emit code that writes a single field outside a run of fixed-size fields."""
        out = self._out
        if not spec.is_array and isinstance(spec.type, type):
            self._struct(depth, name, spec, spec.type)
            return
        width = "int16" if spec.type == "string" and not spec.is_array else "int32"
        self._emit(depth, f"v = {self._obj}.{name}")
        if not is_nullable(spec, self._version):
            self._emit(depth, f"if v is None: raise null({self._what(name)})")
        else:
            null = b"\0" if self._flexible else b"\xff" * (2 if width == "int16" else 4)
            self._emit(depth, f"if v is None: {out} += {null!r}", "else:")
            depth += 1
        if spec.is_array:
            self._array(depth, name, spec, width)
            return
        if spec.type == "string":
            self._emit(depth, "v = v.encode()")
        self._emit(
            depth, "n = v.size if v.__class__ is RecordsRef else len(v)" if spec.type == "records" else "n = len(v)"
        )
        if spec.type == "string" and name == "error_message":
            # It may repeat what a client sent. The answer must come all the same.
            self._emit(depth, f"if n > {STRING_BYTES_MAX}: v = cut_text(v); n = len(v)")
        elif spec.type == "string":
            self._emit(depth, f"if n > {STRING_BYTES_MAX}: raise long_string({self._what(name)}, n)")
        self._length(depth, width)
        if spec.type == "records":
            if self._in_parts:
                self._emit(
                    depth,
                    "if v.__class__ is RecordsRef:",
                    "    sent += len(out) + n",
                    "    parts += (out, v)",
                    "    out = bytearray()",
                    "else: out += v",
                )
            else:
                self._emit(
                    depth, f"if v.__class__ is RecordsRef: raise misplaced_ref({self._what(name)})", f"{out} += v"
                )
        else:
            self._emit(depth, f"{out} += v")

    def _struct(self, depth: int, name: str, spec: Wire, cls: type[Message]) -> None:
        outer, out, what = self._obj, self._out, self._what(name)
        with self._inside(cls) as obj:
            self._emit(depth, f"{obj} = {outer}.{name}")
            if is_nullable(spec, self._version):  # KIP-893: a byte precedes it
                self._emit(depth, f"if {obj} is None: {out}.append(255)", "else:", f"    {out}.append(1)")
                depth += 1
            else:
                self._emit(depth, f"if {obj} is None: raise null({what})")
            self._body(depth)

    def _array(self, depth: int, name: str, spec: Wire, width: str) -> None:
        """Emit code that writes the list in `v`."""
        out = self._out
        self._emit(depth, "n = len(v)")
        self._length(depth, width)
        if isinstance(spec.type, type):
            self._emit(depth, f"if v.__class__ is EncodedItems: {out} += v.data", "else:")
            with self._inside(spec.type) as item:
                self._emit(depth + 1, f"for {item} in v:")
                self._body(depth + 2)
        elif spec.type == "uuid":
            pack = self._name("pack", Struct("16s").pack)
            self._emit(depth, f"for item in v: {out} += {pack}(item)")
        elif spec.type in FIXED:
            self._emit(depth, f"if n: {out} += Struct(f'>{{n}}{FIXED[spec.type][0]}').pack(*v)")
        else:
            self._emit(depth, "for item in v:")
            if spec.type == "string":
                self._emit(depth + 1, "item = item.encode()")
            self._emit(depth + 1, "n = len(item)")
            if spec.type == "string":
                self._emit(depth + 1, f"if n > {STRING_BYTES_MAX}: raise long_string({self._what(name)}, n)")
            self._length(depth + 1, "int16" if spec.type == "string" else "int32")
            self._emit(depth + 1, f"{out} += item")

    def _is_set(self, name: str, spec: Wire) -> str:
        if isinstance(spec.type, type) and not spec.is_array:
            if is_nullable(spec, self._version):
                return f"{self._obj}.{name} is not None"
            # None, or a struct with only default values: Kafka sends neither.
            return f"({self._obj}.{name} is not None and {self._obj}.{name} != {self._name('default', spec.type())})"
        if spec.default is list:
            return f"{self._obj}.{name} != []"
        if spec.default is None:
            return f"{self._obj}.{name} is not None"
        return f"{self._obj}.{name} != {spec.default!r}"
