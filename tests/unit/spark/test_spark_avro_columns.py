"""Compiled code reads flat Avro records like fastavro, and leaves damaged ones to fastavro."""

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from barnabas.services.registry import wire
from barnabas.spark.pipelines.codecs import avro_columns, avro_types
from barnabas.spark.pipelines.codecs.avro import Avro, _Reader
from barnabas.spark.pipelines.codecs.base import convert_all
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema, UnknownSchema

LONGS, INTS = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": LONGS,
    "int": INTS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "bytes": st.binary(max_size=20),
}
#: Each kind with null in front, with null behind, and by itself.
FIELDS = [
    (f"{kind}_{number}", form)
    for kind in VALUES
    for number, form in enumerate((["null", kind], [kind, "null"], {"type": kind}))
]
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Flat",
    "fields": [{"name": name, "type": form} for name, form in FIELDS] + [{"name": "d", "type": "int", "default": 7}],
}
TEXT = json.dumps(SCHEMA)
TYPE = to_arrow_type(avro_types.spark_type(avro_types.parse(TEXT)), timezone="UTC")
ROWS = st.fixed_dictionaries(
    {
        name: st.none() | VALUES[name.partition("_")[0]] if isinstance(form, list) else VALUES[name.partition("_")[0]]
        for name, form in FIELDS
    }
    | {"d": INTS}
)


def written(row: dict[str, Any], schema: Any = SCHEMA) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def by_record(values: pa.Array, reader: _Reader) -> pa.Array:
    return convert_all(values, lambda data: reader(data), TYPE)


@given(st.lists(st.none() | ROWS, min_size=1, max_size=4), st.integers(0, 3))
def test_a_batch_of_flat_records_is_what_fastavro_reads(rows: list[dict[str, Any] | None], cut: int) -> None:
    reader = _Reader(TEXT, (), None)
    values = pa.array([None if row is None else written(row) for row in rows], pa.binary()).slice(
        min(cut, len(rows) - 1)
    )
    whole = reader.whole(values, TYPE)
    assert (whole is None) == (values.null_count == len(values))
    assert convert_all(values, reader, TYPE).equals(by_record(values, reader))


@given(st.lists(st.binary(max_size=40) | ROWS.map(written), min_size=1, max_size=3), st.data())
def test_random_bytes_have_the_same_result_as_with_fastavro(records: list[bytes], data: st.DataObject) -> None:
    damaged = []
    for record in records:
        at = data.draw(st.integers(0, max(0, len(record) - 1)))
        change = data.draw(st.sampled_from(["none", "byte", "cut", "more"]))
        if change == "byte" and record:
            record = record[:at] + bytes([data.draw(st.integers(0, 255))]) + record[at + 1 :]
        damaged.append(record[:at] if change == "cut" else record + b"\1" if change == "more" else record)
    reader, values = _Reader(TEXT, (), None), pa.array(damaged, pa.binary())

    def as_text(result: pa.Array) -> str:
        """Return text that can be compared: NaN does not equal itself, and messages of fastavro contain addresses."""
        return repr([(row["data"], row["error"] and row["error"]["class"]) for row in result.to_pylist()])

    assert as_text(convert_all(values, reader, TYPE)) == as_text(by_record(values, reader))


def test_good_batches_are_read_whole_and_a_bad_record_among_good_ones_is_an_error() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
    kind = pa.struct([("n", pa.int64()), ("s", pa.string())])
    reader = _Reader(json.dumps(schema), (), None)
    good = [written({"n": number, "s": f"ä{number}"}, schema) for number in range(3)]
    found = reader.whole(pa.array([*good, None], pa.binary()), kind)
    assert found is not None
    assert found.to_pylist() == [*({"n": number, "s": f"ä{number}"} for number in range(3)), None]
    for bad in (good[0] + b"x", good[0][:-1], b"", b"\0\2\xff", b"\0\x7f"):
        values = pa.array([good[1], bad], pa.binary())
        assert reader.whole(values, kind) is None, bad
        result = convert_all(values, reader, kind).to_pylist()
        assert result[0] == {"data": {"n": 1, "s": "ä1"}, "error": None}
        assert result[1]["data"] is None and result[1]["error"], bad


@pytest.mark.parametrize(
    "field",
    [
        {"type": "int", "logicalType": "date"},
        {"type": "array", "items": "int"},
        ["null", "int", "long"],
        ["int", "long"],
        {"type": "enum", "name": "E", "symbols": ["a"]},
        ["null", {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}],
    ],
)
def test_schemas_that_are_not_flat_have_no_plan(field: Any) -> None:
    parsed = avro_types.parse(json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": field}]}))
    assert avro_columns.plan_of(parsed, to_arrow_type(avro_types.spark_type(parsed), timezone="UTC")) is None


class Registry:
    """A registry with two versions; records are read as the second one."""

    def __init__(self) -> None:
        self.texts = {
            1: json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}),
            2: json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}),
        }

    def schema(self, schema_id: int) -> RegisteredSchema:
        if schema_id not in self.texts:
            raise UnknownSchema(f"no schema {schema_id}")
        return RegisteredSchema(self.texts[schema_id])

    def resolve(self, schema: RegisteredSchema) -> tuple[str, ...]:
        return ()


def test_records_of_one_schema_id_are_read_whole_and_others_one_by_one() -> None:
    registry: Any = Registry()
    reader, kind = _Reader(registry.texts[2], (), registry), pa.struct([("n", pa.int64())])

    def record(schema_id: int, number: int) -> bytes:
        return wire.frame(
            schema_id, written({"n": number}, json.loads(registry.texts.get(schema_id, registry.texts[2])))
        )

    same = pa.array([record(2, 1), record(2, -5)], pa.binary())
    whole = reader.whole(same, kind)
    assert whole is not None and whole.to_pylist() == [{"n": 1}, {"n": -5}]
    for values in ([record(1, 1), record(2, 2)], [record(2, 2), record(1, 1)], [record(9, 1)], [b"\1", record(2, 1)]):
        assert reader.whole(pa.array(values, pa.binary()), kind) is None
    mixed = convert_all(pa.array([record(2, 2), record(1, 1), record(9, 0)], pa.binary()), reader, kind).to_pylist()
    assert [each["data"] for each in mixed] == [{"n": 2}, {"n": 1}, None]
    assert "no schema 9" in mixed[2]["error"]["message"]


def test_the_avro_codec_reads_whole_batches() -> None:
    """The function that `Avro` gives to Spark makes a reader for batches."""
    assert Avro(SCHEMA).decoder() is not None
    assert _Reader(TEXT, (), None).whole(pa.array([], pa.binary()), TYPE) is None, "nothing to read"
