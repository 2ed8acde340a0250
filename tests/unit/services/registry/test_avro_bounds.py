"""A hostile Avro value is refused before fastavro sees it; a good one is read as before."""

import io
import json
import struct
import subprocess
import sys
import time
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.services.registry.values import avro, bounds
from barnabas.services.registry.values.bounds import Unreadable

LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
    ],
}  # fmt: skip


def parsed(schema: Any) -> avro.AvroType:
    return avro.parse([schema])


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def chain(length: int) -> list[Any]:
    """Records that each hold the one before. No type contains itself, and one number is thousands of records deep."""
    first = {"type": "record", "name": "A0", "fields": [{"name": "i", "type": "int"}]}
    rest = [
        {"type": "record", "name": f"A{i}", "fields": [{"name": "f", "type": f"A{i - 1}"}]} for i in range(1, length)
    ]
    return [first, *rest]


@pytest.mark.parametrize("levels", [250, 20_000])
def test_a_value_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    with pytest.raises(Unreadable, match="nested more than 200 deep"):
        avro.read(b"\x00\x02" * levels + b"\x00\x00", parsed(LIST))


def test_a_list_of_a_hundred_is_read_through_a_recursive_schema() -> None:
    value = avro.read(b"\x02\x02" * 100 + b"\x02\x00", parsed(LIST))
    for _ in range(100):
        value = value["next"]
    assert value == {"v": 1, "next": None}


def test_a_chain_of_named_types_is_as_deep_as_a_type_that_contains_itself() -> None:
    types = chain(900)
    wanted = types[-1]
    schema = avro.parse([*types[:-1], wanted])
    with pytest.raises(Unreadable, match="nested more than 200 deep"):
        avro.read(b"\x02", schema)


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "fixed", "name": "F", "size": 0}, {"type": "record", "name": "E", "fields": []},
     {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}],
)  # fmt: skip
@pytest.mark.parametrize("count", [4_000_000_000, -4_000_000_000])
def test_items_that_take_no_bytes_are_counted(items: Any, count: int) -> None:
    data = number(count) + (number(0) if count < 0 else b"") + b"\x00"
    began_s = time.process_time()
    with pytest.raises(Unreadable, match="stand for more than"):
        avro.read(data, parsed({"type": "array", "items": items}))
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize(
    "items",
    [{"type": "fixed", "name": "F", "size": 1}, "boolean", "float", "double",
     {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}, {"name": "ok", "type": "boolean"}]}],
)  # fmt: skip
def test_an_array_that_is_skipped_ends_with_its_bytes(items: Any) -> None:
    """fastavro does not notice the end of the bytes while it skips values of fixed size."""
    array = {"name": "many", "type": {"type": "array", "items": items}}
    last = {"name": "b", "type": "int"}
    wide, narrow = (parsed({"type": "record", "name": "X", "fields": fields}) for fields in ([array, last], [last]))
    began_s = time.process_time()
    with pytest.raises(Unreadable, match="the value goes on after the last of its"):
        avro.read(number(4_000_000_000) + b"\x00" * 50, wide, read_as=narrow)
    with pytest.raises((EOFError, ValueError, IndexError, struct.error)):
        avro.read(number(4_000_000_000) + b"\x00" * 50, wide)
    assert time.process_time() - began_s < 2
    assert avro.read(b"\x00\x06", wide, read_as=narrow) == {"b": 3}


def test_records_that_double_without_bytes_are_counted() -> None:
    types: list[Any] = [{"type": "record", "name": "A0", "fields": [{"name": "n", "type": "null"}]}]
    for i in range(1, 40):
        twice = [{"name": name, "type": f"A{i - 1}"} for name in "ab"]
        types.append({"type": "record", "name": f"A{i}", "fields": twice})
    schema = avro.parse(types)
    with pytest.raises(Unreadable, match="stand for more than"):
        avro.read(b"", schema)
    with pytest.raises(Unreadable, match="more than 100,000 types"):
        schema.bounds.check_types()


def test_a_decimal_of_a_megabyte_is_refused() -> None:
    schema = parsed({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2})
    with pytest.raises(Unreadable, match="a decimal of 1,000,000 bytes"):
        avro.read(number(1_000_000) + b"\x55" * 1_000_000, schema)
    with pytest.raises(Unreadable, match="a decimal of 1,000,000 bytes"):
        avro.parse(
            [{"type": "fixed", "name": "D", "size": 1_000_000, "logicalType": "decimal", "precision": 9}]
        ).bounds.check(b"")


def test_a_block_whose_size_lies_is_refused_because_fastavro_would_skip_by_it() -> None:
    fields = [{"name": "many", "type": {"type": "array", "items": "null"}}, {"name": "b", "type": "int"}]
    schema = parsed({"type": "record", "name": "X", "fields": fields})
    assert avro.read(number(-2) + number(0) + number(0) + number(9), schema) == {"many": [None, None], "b": 9}
    with pytest.raises(Unreadable, match="a block says that it ends at byte 3, and ends at byte 2"):
        avro.read(number(-2) + number(1) + number(0) + number(9), schema)


def test_a_union_of_thousands_is_refused() -> None:
    union = [{"type": "fixed", "name": f"F{i}", "size": 1} for i in range(1_001)]
    with pytest.raises(Unreadable, match="a union of 1,001 branches"):
        avro.read(b"\x00a", parsed(union))


@pytest.mark.parametrize(
    ("schema", "is_proven"),
    [
        (ORDER, True),
        ("string", True),
        ({"type": "array", "items": "int"}, True),
        ({"type": "array", "items": ["null", "int"]}, True),
        ({"type": "map", "values": "null"}, True),  # each entry has a key
        ({"type": "array", "items": "null"}, False),
        (LIST, False),
    ],
)
def test_which_schemas_need_no_walk(schema: Any, is_proven: bool) -> None:
    assert parsed(schema).bounds.is_proven is is_proven


def test_a_small_limit_is_counted_even_where_nothing_need_be_proven() -> None:
    schema = parsed({"type": "array", "items": "int"})
    data = number(3) + b"\x02\x04\x06" + b"\x00"
    assert avro.read(data, schema, values_max=4) == [1, 2, 3]
    with pytest.raises(Unreadable, match="more than 3 values"):
        avro.read(data, schema, values_max=3)


ATTACK = """
import io, json, sys, fastavro
schema = fastavro.parse_schema(json.loads(sys.argv[1]))
fastavro.schemaless_reader(io.BytesIO(bytes.fromhex(sys.stdin.read())), schema, None)
"""


def test_fastavro_itself_still_needs_the_bounds() -> None:
    """If this fails, fastavro has a limit of its own for recursion, and the walk may go."""
    data = (b"\x00\x02" * 200_000 + b"\x00\x00").hex()
    ended = subprocess.run(
        [sys.executable, "-c", ATTACK, json.dumps(LIST)], input=data, text=True, capture_output=True, check=False
    )
    assert ended.returncode < 0


# -- any schema, any bytes ------------------------------------------------------------------------------------------------

_SCALARS = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


def _named(schemas: Any, names: Any = None) -> Any:
    """Gives records names of their own, as Avro demands."""
    count = iter(range(10_000))

    def within(one: Any) -> Any:
        if isinstance(one, list):
            return [within(each) for each in one]
        if isinstance(one, dict):
            found = {key: within(each) if key in ("items", "values", "type") else each for key, each in one.items()}
            if one["type"] == "record":
                found["name"] = f"R{next(count)}"
                found["fields"] = [{"name": f"f{at}", "type": within(each)} for at, each in enumerate(one["fields"])]
            return found
        return one

    return within(schemas)


_SCHEMAS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"type": st.just("map"), "values": inner}),
        st.fixed_dictionaries({"type": st.just("record"), "fields": st.lists(inner, max_size=4)}),
        st.lists(_SCALARS, unique=True, min_size=1, max_size=3),
    ),
    max_leaves=8,
).map(_named)


def _values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_values, value.values()))
    return 1 + sum(map(_values, value)) if isinstance(value, list) else 1


@settings(max_examples=300, deadline=None)
@given(_SCHEMAS, st.binary(max_size=60) | st.lists(st.integers(-3, 9).map(number), max_size=40).map(b"".join))
def test_value_that_passes_is_as_small_as_proven(schema: Any, data: bytes) -> None:
    written_as = parsed(schema)
    try:
        value = avro.read(data, written_as)
    except (Unreadable, ValueError, EOFError, IndexError, UnicodeDecodeError, KeyError, OverflowError):
        return
    assert _values(value) <= bounds.VALUES_FREE + bounds.VALUES_PER_BYTE * len(data)


@settings(max_examples=200, deadline=None)
@given(_SCHEMAS, st.data())
def test_every_value_that_fastavro_wrote_is_read(schema: Any, data: Any) -> None:
    """The walk must not refuse a value that a writer made: it counts bytes as fastavro does."""
    written_as = parsed(schema)
    value = data.draw(_value(schema))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, written_as.schema, value)
    written_as.bounds.check(out.getvalue(), values_max=500)  # walks all of it
    assert _values(avro.read(out.getvalue(), written_as)) <= 500


def _value(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([_value(each) for each in schema])
    if isinstance(schema, str):
        return {
            "null": st.none(), "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1), "float": st.just(1.5), "double": st.floats(allow_nan=False),
            "bytes": st.binary(max_size=9), "string": st.text(max_size=9),
        }[schema]  # fmt: skip
    if schema["type"] == "array":
        return st.lists(_value(schema["items"]), max_size=3)
    if schema["type"] == "map":
        return st.dictionaries(st.text(max_size=3), _value(schema["values"]), max_size=3)
    return st.fixed_dictionaries({field["name"]: _value(field["type"]) for field in schema["fields"]})
