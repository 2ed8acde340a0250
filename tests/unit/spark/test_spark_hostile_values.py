"""A value that would end a Spark worker, or hold it for ever, becomes an error of its own record: a dead letter."""

import json
import resource
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql.types import LongType, StructField, StructType

from barnabas.spark.pipelines.codecs import avro, avro_types, json_types, protobuf, protobuf_types
from barnabas.spark.pipelines.codecs.base import CodecError, convert_all
from barnabas.spark.tables.direct import Direct, DirectReader

FLAT = {"type": "record", "name": "Node", "fields": [{"name": "id", "type": "int"}]}
LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
BOMB = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "int"}, {"name": "none", "type": {"type": "array", "items": "null"}}],
}


class Reader(avro._Reader):
    """Reads what another schema wrote, without a registry."""

    def __init__(self, written_with: Any) -> None:
        super().__init__(json.dumps(FLAT), (), None)
        self._writer = avro_types.parse(json.dumps(written_with))
        self._registry = object()  # type: ignore[assignment]

    def _written_with(self, registry: object, schema_id: int) -> avro_types.AvroType:
        return self._writer

    def whole(self, values: pa.Array, arrow_type: pa.DataType) -> None:
        return None


@pytest.mark.parametrize(
    ("written_with", "good", "bad", "reason"),
    [
        (LIST, b"\x02\x00", b"\x02\x02" * 50_000, "nested more than 200 deep"),
        (BOMB, b"\x02\x00", b"\x02\x80\xd0\xac\xf3\x1d\x00", "stand for more than"),
        (BOMB, b"\x02\x00", b"\x02\xff\xcf\xac\xf3\x1d\x00\x00", "stand for more than"),
    ],
)
def test_a_poisoned_record_is_skipped_while_others_are_read(
    written_with: Any, good: bytes, bad: bytes, reason: str
) -> None:
    """The reader's schema lacks the hostile field: skipping recurses and counts as reading does."""
    head = b"\x00\x00\x00\x00\x01"
    values = pa.array([head + good, head + bad, head + good])
    found = convert_all(values, Reader(written_with), pa.struct([("id", pa.int32())])).to_pylist()
    assert [each["data"] for each in found] == [{"id": 1}, None, {"id": 1}]
    assert reason in found[1]["error"]["message"]


def doubling(levels: int) -> list[Any]:
    types: list[Any] = [{"type": "record", "name": "A0", "fields": [{"name": "i", "type": "int"}]}]
    for i in range(1, levels):
        twice = [{"name": name, "type": f"A{i - 1}"} for name in "ab"]
        types.append({"type": "record", "name": f"A{i}", "fields": twice})
    return types


def test_an_avro_schema_with_a_billion_columns_is_refused_while_planning() -> None:
    *before, last = (json.dumps(each) for each in doubling(30))
    with pytest.raises(CodecError, match="more than 100,000 types"):
        avro_types.parse_for_columns(last, before)


def test_an_avro_schema_that_contains_itself_is_refused_by_its_name() -> None:
    with pytest.raises(CodecError, match="Node contains itself, and no Spark type does"):
        avro_types.parse_for_columns(json.dumps(LIST))


def test_a_json_schema_with_a_billion_columns_is_refused_while_planning() -> None:
    parts: dict[str, Any] = {"A0": {"type": "object", "properties": {"i": {"type": "integer"}}}}
    for i in range(1, 30):
        parts[f"A{i}"] = {
            "type": "object",
            "properties": {name: {"$ref": f"#/definitions/A{i - 1}"} for name in "ab"},
        }
    text = json.dumps({"definitions": parts, "type": "object", "properties": {"r": {"$ref": "#/definitions/A29"}}})
    with pytest.raises(CodecError, match="more than 100,000 types"):
        json_types.spark_type(text, {})


def files(*messages: descriptor_pb2.DescriptorProto) -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3", message_type=messages)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def message(name: str, kinds: list[str | int], *, repeated: bool = False) -> descriptor_pb2.DescriptorProto:
    made = descriptor_pb2.DescriptorProto(name=name)
    for at, kind in enumerate(kinds, 1):
        field = made.field.add(name=f"f{at}", number=at, label=3 if repeated else 1)
        if isinstance(kind, str):
            field.type, field.type_name = 11, f".{kind}"
        else:
            field.type = kind  # type: ignore[assignment]
    return made


def test_a_protobuf_message_with_a_billion_columns_is_refused_while_planning() -> None:
    every = [message("A0", [5])] + [message(f"A{i}", [f"A{i - 1}"] * 2) for i in range(1, 30)]
    with pytest.raises(CodecError, match="more than 100,000 fields"):
        protobuf.spark_type(files(*every), "A29")
    assert protobuf_types.StructType is type(protobuf.spark_type(files(*every), "A5"))


def test_small_messages_that_become_wide_rows_are_counted() -> None:
    made = files(message("Wide", [5] * 2_000), message("Many", ["Wide"], repeated=True))
    read = protobuf.reader(made, "Many", framed=False)
    row = read(b"\x0a\x00" * 3)
    assert isinstance(row, dict) and len(row["f1"]) == 3
    with pytest.raises(ValueError, match="stand for more than 5,000,000 fields"):
        read(b"\x0a\x00" * 100_000)


@pytest.mark.parametrize("hostile", [b'{"id": 1, "x": ' + b"[" * 300_000 + b"]" * 300_000 + b"}",
                                     b'{"id": 1, "x": ' + b'{"a":' * 300_000 + b"1" + b"}" * 300_000 + b"}",
                                     b"{" + b",".join(b'"f%d":1' % at for at in range(100_000)) + b"}"])  # fmt: skip
def test_an_unknown_field_of_a_table_neither_ends_the_process_nor_fills_it(hostile: bytes) -> None:
    """Arrow infers types of unknown fields by recursion in C, and makes a column of each."""
    reader = DirectReader(Direct(StructType([StructField("id", LongType())]), ()))
    values = [b'{"id": 1}'] * 600 + [hostile] + [b'{"id": 2, "none": null}'] * 100
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows, rest = reader.split(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}))
    left = [value for batch in rest for value in batch.column("value").to_pylist()]
    assert hostile in left and sum(batch.num_rows for batch in rows) + len(left) == 701
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 300_000


def test_an_unknown_field_that_is_null_is_read_directly() -> None:
    reader = DirectReader(Direct(StructType([StructField("id", LongType())]), ()))
    values = pa.array([b'{"id": 2, "none": null}'] * 3_000, pa.binary())
    rows, rest = reader.split(pa.RecordBatch.from_pydict({"value": values}))
    assert sum(batch.num_rows for batch in rows) == 3_000 and not rest


@pytest.mark.parametrize("precision", [{}, {"precision": "x"}, {"precision": 1_000}])
def test_a_decimal_that_spark_cannot_have_is_refused_while_planning(precision: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="decimal"):
        avro_types.spark_type(avro_types.parse(json.dumps({"type": "bytes", "logicalType": "decimal"} | precision)))
