"""Bounds of Avro values: a walk over the bytes before fastavro decodes them. Pure.

fastavro trusts the bytes. It recurses in C once for each level, so that 20 KB behind a recursive schema end the process. It
believes a block's count, so that ten bytes hold four billion items that take no bytes. It converts decimals of any size.

Most schemas allow none of this, and `AvroBounds` proves it once for each schema. Give every type an excess: the values that
it has beyond `VALUES_PER_BYTE` for each of its bytes. A null has 1, a number 1 - 4, a record 1 and the sum of its fields, a
union the largest of its branches and -4 for its index. An array has 1 - 4 if its items have an excess of at most 0, else no
bound. If no type contains itself, the types are at most `VALUE_DEPTH_MAX` deep, and the root's excess is at most `VALUES_FREE`,
then by induction no bytes of this schema go beyond the bounds, and nothing is walked. All other schemas have each of their
values walked, without recursion.

fastavro notices the end of the bytes wherever it reads, but not where it skips a value of fixed size, because the reader's
schema has no use for it: an array of doubles with a count of four billion takes minutes. So values with such arrays are
walked if they are read as another schema.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.services.registry.values.bounds import (
    BRANCHES_MAX,
    DECIMAL_BYTES_MAX,
    TYPES_MAX,
    VALUE_DEPTH_MAX,
    VALUES_FREE,
    VALUES_MAX,
    VALUES_PER_BYTE,
    Unreadable,
)

_PLAIN, _LONG, _BYTES, _DECIMAL, _RECORD, _ARRAY, _MAP, _UNION = range(8)
#: Bytes of the primitives that always take the same number.
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NO_BOUND: Final = 10**9


class _Type:
    __slots__ = ("children", "depth", "excess", "is_finished", "kind", "size", "stops", "types")

    def __init__(self, kind: int, size: int = 0) -> None:
        self.kind = kind
        self.size = size
        self.children: list[_Type] = []
        #: Whether the following are known: they need all its children. The module's text says what the excess is.
        self.is_finished = False
        self.excess = 0
        self.depth = 0
        self.types = 1
        #: Each value has a number of variable length, at which fastavro notices the end of the bytes.
        self.stops = kind not in (_PLAIN, _RECORD)


class AvroBounds:
    """Of one schema, as fastavro parsed it, with the named types that it mentions."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        """:raises Unreadable: if the schema itself goes beyond a bound."""
        builder = _Builder(named)
        self._root = builder.build(schema)
        #: The name of a type that contains itself; "" if there is none.
        self.recursive = builder.recursive
        self._has_decimals = builder.has_decimals
        self._skips_safely = builder.skips_safely
        root = self._root
        self._is_proven = not self.recursive and root.depth <= VALUE_DEPTH_MAX and root.excess <= VALUES_FREE

    @property
    def is_proven(self) -> bool:
        """No bytes of this schema go beyond the bounds, apart from large decimals."""
        return self._is_proven

    def check_types(self) -> None:
        """:raises Unreadable: if the schema contains itself, or has too many types: no table's columns can be made of it."""
        if self.recursive:
            raise Unreadable(f"{self.recursive} contains itself, and no Spark type does")
        if self._root.types > TYPES_MAX:
            raise Unreadable(f"the schema has more than {TYPES_MAX:,} types, counted as often as they are used")

    def check(self, data: bytes, values_max: int = VALUES_MAX, *, skips: bool = False) -> None:
        """`skips`: the value is read as another schema, so that fastavro may skip parts of it.

        :raises Unreadable: if decoding `data` would go beyond a bound, or if it is not a value of this schema.
        """
        allowed = VALUES_FREE + VALUES_PER_BYTE * len(data)
        may_be_decimal = self._has_decimals and len(data) > DECIMAL_BYTES_MAX
        may_skip_forever = skips and not self._skips_safely
        if self._is_proven and allowed <= values_max and not may_be_decimal and not may_skip_forever:
            return
        _walk(self._root, data, min(allowed, values_max))


class _Builder:
    """Turns a schema into `_Type`s, each after those that it contains, without recursion."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        #: By name; types in the making have no children yet.
        self._known: dict[str, _Type] = {}
        self._open: set[int] = set()
        self.recursive = ""
        self.has_decimals = False
        self.skips_safely = True

    def build(self, schema: Any) -> _Type:
        root, inner, _ = self._begin(schema)
        waiting: list[tuple[_Type, list[Any]]] = [(root, inner)]
        self._open.add(id(root))
        while waiting:
            current, inner = waiting[-1]
            if len(current.children) == len(inner):
                self._finish(current)
                waiting.pop()
                continue
            child, below, name = self._begin(inner[len(current.children)])
            current.children.append(child)
            if id(child) in self._open:
                self.recursive = self.recursive or name
            elif not child.is_finished:
                waiting.append((child, below))
                self._open.add(id(child))
        return root

    def _begin(self, schema: Any) -> tuple[_Type, list[Any], str]:
        """The type, the schemas that it contains, and its name. A known type contains nothing more to look at."""
        name = ""
        if isinstance(schema, str) and schema in self._named:
            name = schema
            schema = self._named[name]
        if isinstance(schema, dict) and (isinstance(schema["type"], dict | list) or schema["type"] in self._named):
            inner = schema["type"]
            logical = schema.get("logicalType")
            return self._begin({"logicalType": logical, **inner} if isinstance(inner, dict) and logical else inner)
        if isinstance(schema, dict) and "name" in schema and schema["type"] in ("record", "error", "enum", "fixed"):
            name = schema["name"]
            if name in self._known:
                return self._known[name], [], name
        made, inner = self._made(schema)
        if name:
            self._known[name] = made
        return made, inner, name

    def _made(self, schema: Any) -> tuple[_Type, list[Any]]:
        if isinstance(schema, list):
            if len(schema) > BRANCHES_MAX:
                raise Unreadable(f"the schema has a union of {len(schema):,} branches; {BRANCHES_MAX:,} is the limit")
            return _Type(_UNION), schema
        details: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
        kind = details.get("type", schema)
        is_decimal = details.get("logicalType") == "decimal"
        if kind in _SIZES:
            return _Type(_PLAIN, _SIZES[kind]), []
        if kind in ("int", "long", "enum"):
            return _Type(_LONG), []
        if kind == "fixed":
            if is_decimal and details["size"] > DECIMAL_BYTES_MAX:
                raise Unreadable(
                    f"the schema has a decimal of {details['size']:,} bytes; {DECIMAL_BYTES_MAX:,} is the limit"
                )
            return _Type(_PLAIN, details["size"]), []
        if kind in ("bytes", "string"):
            self.has_decimals |= is_decimal
            return _Type(_DECIMAL if is_decimal else _BYTES), []
        if kind in ("record", "error"):
            return _Type(_RECORD), [field["type"] for field in details["fields"]]
        if kind in ("array", "map"):
            return _Type(_ARRAY if kind == "array" else _MAP), [details["items" if kind == "array" else "values"]]
        raise Unreadable(f"the schema has a type that Avro does not know: {str(kind)[:100]}")

    def _finish(self, made: _Type) -> None:
        """What its children say of it. A child that is still in the making is the type itself: then nothing is proven."""
        self._open.discard(id(made))
        made.is_finished = True
        children = made.children
        if made.kind == _RECORD:
            made.stops = any(child.stops for child in children)
        elif made.kind == _ARRAY and not children[0].stops:
            self.skips_safely = False
        made.types = min(1 + sum(child.types for child in children), _NO_BOUND)
        nesting = 0 if made.kind == _UNION else 1
        made.depth = nesting + max((child.depth for child in children), default=0)
        if made.kind == _PLAIN:
            excess = 1 - VALUES_PER_BYTE * made.size
        elif made.kind == _RECORD:
            excess = 1 + sum(child.excess for child in children)
        elif made.kind == _UNION:
            excess = max((child.excess for child in children), default=0) - VALUES_PER_BYTE
        else:
            item = sum(child.excess for child in children) + (1 - VALUES_PER_BYTE if made.kind == _MAP else 0)
            excess = _NO_BOUND if item > 0 else 1 - VALUES_PER_BYTE
        made.excess = min(excess, _NO_BOUND)


class _Block:
    """Items of an array, or entries of a map, that are still to come."""

    __slots__ = ("end", "left", "type")

    def __init__(self, type_: _Type) -> None:
        self.type = type_
        self.left = 0
        #: Where the block says that it ends, or -1.
        self.end = -1


def _walk(root: _Type, data: bytes, values_max: int) -> None:
    """Go through the bytes as fastavro would, and count. Its own stack holds what is still to come; None ends a level."""
    stack: list[_Type | _Block | None] = [root]
    size, pos, depth, values = len(data), 0, 0, 0
    while stack:
        task = stack.pop()
        if task is None:
            depth -= 1
            continue
        if isinstance(task, _Block):
            pos = _next_item(task, stack, data, pos)
            continue
        values += 1
        if values > values_max:
            raise Unreadable(f"{size:,} bytes stand for more than {values_max:,} values, which is the limit")
        kind = task.kind
        if kind == _PLAIN:
            pos += task.size
        elif kind == _LONG:
            _, pos = _long(data, pos)
        elif kind in (_BYTES, _DECIMAL):
            length, pos = _long(data, pos)
            if kind == _DECIMAL and length > DECIMAL_BYTES_MAX:
                raise Unreadable(f"a decimal of {length:,} bytes; {DECIMAL_BYTES_MAX:,} is the limit")
            if length < 0:
                raise Unreadable(f"bytes of length {length}")
            pos += length
        elif kind == _UNION:
            branch, pos = _long(data, pos)
            if not 0 <= branch < len(task.children):
                raise Unreadable(f"branch {branch} of a union of {len(task.children)}")
            values -= 1  # the union is its branch
            stack.append(task.children[branch])
        else:
            depth += 1
            if depth > VALUE_DEPTH_MAX:
                raise Unreadable(f"nested more than {VALUE_DEPTH_MAX} deep, which is the limit")
            stack.append(None)
            stack += reversed(task.children) if kind == _RECORD else (_Block(task),)
        if pos > size:
            raise Unreadable(f"the value goes on after the last of its {size:,} bytes")


def _next_item(block: _Block, stack: list[_Type | _Block | None], data: bytes, pos: int) -> int:
    """Puts the next item on the stack, and reads the head of the next block before it if the last one is over."""
    if not block.left:
        if block.end not in (-1, pos):
            # fastavro trusts the size where it skips, and the count where it reads: both must say the same.
            raise Unreadable(f"a block says that it ends at byte {block.end}, and ends at byte {pos}")
        block.end = -1
        block.left, pos = _long(data, pos)
        if not block.left:
            return pos
        if block.left < 0:
            block.left = -block.left
            length, pos = _long(data, pos)
            block.end = pos + length
    block.left -= 1
    if block.type.kind == _MAP:
        length, pos = _long(data, pos)
        if not 0 <= length <= len(data) - pos:
            raise Unreadable(f"a key of length {length}")
        pos += length
    stack += (block, *block.type.children)
    return pos


def _long(data: Sequence[int], pos: int) -> tuple[int, int]:
    """A zigzag number of at most 64 bits."""
    value = shift = 0
    for at in range(pos, min(pos + 10, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise Unreadable(f"no number of 64 bits at byte {pos} of {len(data):,}")


__all__ = ["AvroBounds"]
