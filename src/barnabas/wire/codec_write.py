"""Generate the source of a write function: `write(obj, out)` for one class at one version, appending to a bytearray.

Records fields take bytes, or a `RecordsRef` for data that is sent separately (a file range). For a ref only the length is
written, and the `PartsBuffer` records its place. An array of structs also takes `EncodedItems`: bytes encoded earlier.
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


class PartsBuffer(bytearray):
    """A bytearray that records the place of each `RecordsRef`."""

    __slots__ = ("cuts",)

    cuts: list[tuple[int, RecordsRef]]


def _cut(out: bytearray, ref: RecordsRef) -> None:
    if not isinstance(out, PartsBuffer):
        raise Unwritable("a RecordsRef can only be written by encode_parts")
    out.cuts.append((len(out), ref))


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


class _WriterSource(Source):
    def __init__(self, cls: type[Message], version: int, flexible: bool) -> None:
        super().__init__(cls, version, flexible)
        self._names |= {
            "append_uvarint": append_uvarint,
            "cut": _cut,
            "null": _null,
            "cut_text": _cut_text,
            "long_string": _long_string,
            "int16": Struct(">h").pack,
            "int32": Struct(">i").pack,
            "EncodedItems": EncodedItems,
            "RecordsRef": RecordsRef,
            "Struct": Struct,
            "Unwritable": Unwritable,
            "struct_error": struct_error,
        }

    def compile(self) -> Callable[..., None]:
        plain, tagged, _ = present_fields(self._cls, self._version)
        self._emit(0, "def write(obj, out):", "    try:")
        for is_fixed, fields in runs(plain):
            if is_fixed:
                self._fixed(2, fields)
            else:
                self._field(2, *fields[0])
        if self._flexible and tagged:
            # A tagged field with its default value is left out. Few messages set one, so the code for them is compiled later.
            later = _WriterSource(self._cls, self._version, self._flexible)
            self._names["write_tags"] = compiled_at_first_call(lambda: later.compile_tagged(tagged))
            self._emit(2, f"if {' or '.join(self._is_set(*field) for field in tagged)}: write_tags(obj, out)")
            self._emit(2, "else: out.append(0)")
        elif self._flexible:
            self._emit(2, "out.append(0)")
        return self._compiled("write")

    def compile_tagged(self, tagged: Fields) -> Callable[..., None]:
        """Compile `write_tags(obj, out)`."""
        self._emit(0, "def write_tags(obj, out):", "    try:", "        count = 0", "        tail = bytearray()")
        for name, spec in tagged:
            self._emit(2, f"if {self._is_set(name, spec)}:", "    part = bytearray()")
            if not spec.is_array and spec.type in FIXED:
                self._fixed(3, [(name, spec)], "part")
            else:
                self._field(3, name, spec, "part")
            self._emit(
                3,
                f"append_uvarint(tail, {spec.tag})",
                "append_uvarint(tail, len(part))",
                "tail += part",
                "count += 1",
            )
        self._emit(2, "append_uvarint(out, count)", "out += tail")
        return self._compiled("write_tags")

    def _compiled(self, function: str) -> Callable[..., Any]:
        title = f"{self._cls.__name__} v{self._version}"
        self._emit(2, "return")
        # The error does not show the message, which may have a password. A text with half of a surrogate pair is not UTF-8.
        self._emit(1, "except (struct_error, UnicodeEncodeError) as error:")
        self._emit(2, f"raise Unwritable({title!r} + f': {{error}}') from None")
        return super()._compiled(function)

    def _fixed(self, depth: int, fields: Fields, out: str = "out") -> None:
        pack = self._name("pack", Struct(">" + "".join(FIXED[spec.type][0] for _, spec in fields)).pack)
        self._emit(depth, f"{out} += {pack}({', '.join(f'obj.{name}' for name, _ in fields)})")

    def _length(self, depth: int, width: str, out: str) -> None:
        """Emit code that writes the length in `n`."""
        if self._flexible:
            self._emit(depth, f"if n < 127: {out}.append(n + 1)", f"else: append_uvarint({out}, n + 1)")
        else:
            self._emit(depth, f"{out} += {width}(n)")

    def _field(self, depth: int, name: str, spec: Wire, out: str = "out") -> None:
        """Emit code that writes a single field outside a run of fixed-size fields."""
        if not spec.is_array and isinstance(spec.type, type):
            self._struct(depth, name, spec, spec.type, out)
            return
        width = "int16" if spec.type == "string" and not spec.is_array else "int32"
        self._emit(depth, f"v = obj.{name}")
        if not is_nullable(spec, self._version):
            self._emit(depth, f"if v is None: raise null({self._what(name)})")
        else:
            null = b"\0" if self._flexible else b"\xff" * (2 if width == "int16" else 4)
            self._emit(depth, f"if v is None: {out} += {null!r}", "else:")
            depth += 1
        if spec.is_array:
            self._array(depth, name, spec, width, out)
            return
        if spec.type == "string":
            self._emit(depth, "v = v.encode()")
        self._emit(depth, "n = len(v)")
        if spec.type == "string" and name == "error_message":
            # It may repeat what a client sent. The answer must come all the same.
            self._emit(depth, f"if n > {STRING_BYTES_MAX}: v = cut_text(v); n = len(v)")
        elif spec.type == "string":
            self._emit(depth, f"if n > {STRING_BYTES_MAX}: raise long_string({self._what(name)}, n)")
        self._length(depth, width, out)
        if spec.type == "records":
            self._emit(depth, f"if v.__class__ is RecordsRef: cut({out}, v)", f"else: {out} += v")
        else:
            self._emit(depth, f"{out} += v")

    def _struct(self, depth: int, name: str, spec: Wire, cls: type[Message], out: str) -> None:
        write = self._name("write_" + cls.__name__, compile_writer(cls, self._version, self._flexible))
        self._emit(depth, f"v = obj.{name}")
        if is_nullable(spec, self._version):  # KIP-893: a byte precedes it
            self._emit(depth, f"if v is None: {out}.append(255)", f"else: {out}.append(1); {write}(v, {out})")
        else:
            self._emit(depth, f"if v is None: raise null({self._what(name)})", f"{write}(v, {out})")

    def _array(self, depth: int, name: str, spec: Wire, width: str, out: str) -> None:
        """Emit code that writes the list in `v`."""
        self._emit(depth, "n = len(v)")
        self._length(depth, width, out)
        if isinstance(spec.type, type):
            write = self._name("write_" + spec.type.__name__, compile_writer(spec.type, self._version, self._flexible))
            self._emit(depth, f"if v.__class__ is EncodedItems: {out} += v.data", "else:")
            self._emit(depth + 1, f"for item in v: {write}(item, {out})")
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
            self._length(depth + 1, "int16" if spec.type == "string" else "int32", out)
            self._emit(depth + 1, f"{out} += item")

    def _is_set(self, name: str, spec: Wire) -> str:
        if isinstance(spec.type, type) and not spec.is_array:
            if is_nullable(spec, self._version):
                return f"obj.{name} is not None"
            # None, or a struct with only default values: Kafka sends neither.
            return f"(obj.{name} is not None and obj.{name} != {self._name('default', spec.type())})"
        if spec.default is list:
            return f"obj.{name} != []"
        if spec.default is None:
            return f"obj.{name} is not None"
        return f"obj.{name} != {spec.default!r}"
