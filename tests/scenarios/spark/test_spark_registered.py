"""`from_registry` and `to_registry`: columns with the schemas of a subject, with a real registry and a real Spark."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from barnabas.services.registry import wire
from barnabas.spark.pipelines.codecs import (
    CodecError,
    Registered,
    SchemaRegistry,
    UnknownSchema,
    decode,
    encode,
    from_registry,
    to_registry,
)
from barnabas.spark.pipelines.codecs.json_types import spark_type
from barnabas.spark.pipelines.dead_letter import split
from barnabas.testing import Cluster, Kafka
from tests.scenarios.registry.conftest import Registry, config_for, running
from tests.topic_tables import Tables, polars_rows

AVRO_1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
AVRO_2 = {**AVRO_1, "fields": [*AVRO_1["fields"], {"name": "note", "type": "string", "default": "none"}]}
PROTO = 'syntax = "proto3"; package shop; import "part.proto"; message Other {} message Order { int64 id = 1; Part part = 2; }'
PART = 'syntax = "proto3"; package shop; message Part { string name = 1; map<string, int32> counts = 2; }'
JSON_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with (
        Cluster(brokers=1, config={"group.min.session.timeout.ms": "500"}) as cluster,
        running(config_for(cluster)) as registry,
    ):
        yield registry


def values(spark: SparkSession, *data: Any, kind: str) -> DataFrame:
    return spark.createDataFrame([(one,) for one in data], f"data {kind}")


def raw(spark: SparkSession, *data: bytes | None) -> DataFrame:
    return spark.createDataFrame([(None if one is None else bytearray(one),) for one in data], "value binary")


def test_avro_is_written_with_the_newest_version_and_older_records_read_as_it_has_them(
    spark: SparkSession, registry: Registry
) -> None:
    registry.register("avro", json.dumps(AVRO_1))
    old = values(spark, (1,), kind="struct<id: long>").select(to_registry("data", registry.url, "avro").alias("value"))
    old = raw(spark, *(row.value for row in old.collect()))
    registry.register("avro", json.dumps(AVRO_2))
    new = values(spark, (2, "x"), None, kind="struct<id: long, note: string>")
    new = new.select(to_registry(F.col("data"), registry.url, "avro").alias("value"))
    read = old.union(new).select(from_registry("value", registry.url, "avro").alias("order"))
    assert [row.order for row in read.collect()] == [Row(id=1, note="none"), Row(id=2, note="x"), None]


def test_avro_with_references_is_written_and_read(spark: SparkSession, registry: Registry) -> None:
    registry.register("part", json.dumps({"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}))
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "part", "type": "Part"}]}
    registry.register("whole", json.dumps(whole), references=[{"name": "Part", "subject": "part", "version": 1}])
    df = values(spark, (Row(n=7),), kind="struct<part: struct<n: int>>")
    df = df.select(to_registry("data", registry.url, "whole").alias("value"))
    [row] = df.select(from_registry("value", registry.url, "whole").alias("whole")).collect()
    assert row.whole == Row(part=Row(n=7))


def test_protobuf_is_read_by_its_text_with_its_imports_and_needs_no_class(
    spark: SparkSession, registry: Registry
) -> None:
    registry.register("part.proto", PART, schemaType="PROTOBUF")
    references = [{"name": "part.proto", "subject": "part.proto", "version": 1}]
    registry.register("proto", PROTO, schemaType="PROTOBUF", references=references)
    kind = "struct<id: long, part: struct<name: string, counts: map<string, int>>>"
    df = values(spark, (5, ("bolt", {"red": 2})), kind=kind)
    written = df.select(to_registry("data", registry.url, "proto", message="shop.Order").alias("value"))
    [row] = written.collect()
    assert row.value[5:7] == b"\x02\x02"  # one index, which is 1: zigzag
    read = written.select(from_registry("value", registry.url, "proto", message="shop.Order").alias("order"))
    assert read.first().order == Row(id=5, part=Row(name="bolt", counts={"red": 2}))
    other = decode(written, Registered(SchemaRegistry(registry.url), "proto")).first()  # the first of the file
    assert (other.data, other.error.message) == (None, "value: the record is a shop.Order, not a shop.Other")
    with pytest.raises(Exception, match="no field 'none'"):
        values(spark, (5,), kind="struct<none: int>").select(to_registry("data", registry.url, "proto")).collect()


def test_json_is_read_as_the_schema_says(spark: SparkSession, registry: Registry) -> None:
    registry.register("json", json.dumps(JSON_SCHEMA), schemaType="JSON")
    df = values(spark, (5, ["a"]), kind="struct<id: long, tags: array<string>>")
    written = df.select(to_registry("data", registry.url, "json").alias("value"))
    assert bytes(written.first().value[5:]) == b'{"id":5,"tags":["a"]}'
    read = written.select(from_registry("value", registry.url, "json").alias("order"))
    assert read.first().order == Row(id=5, tags=["a"])


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_record_of_an_unknown_schema_is_a_dead_letter_and_others_are_read(
    spark: SparkSession, registry: Registry, kind: str
) -> None:
    schema = {"AVRO": json.dumps(AVRO_1), "JSON": json.dumps(JSON_SCHEMA), "PROTOBUF": PART}[kind]
    schema_id = registry.register(f"dead-{kind}", schema, schemaType=kind)["id"]
    good = {"AVRO": b"\x0a", "JSON": b'{"id": 5}', "PROTOBUF": b"\x00\x0a\x01x"}[kind]
    codec = Registered(SchemaRegistry(registry.url, backoff_ms=1), f"dead-{kind}")
    letters = raw(spark, wire.frame(schema_id, good), wire.frame(99_999, good), b"no frame", None)
    decoded = decode(letters, codec)
    fine, dead = split(decoded)
    assert [row.data is None for row in fine.collect()] == [False, True]
    unknown, unframed = (row.error for row in dead.collect())
    assert unknown["class"] == f"{UnknownSchema.__module__}.UnknownSchema" and "99999" in unknown.message
    assert "wire format" in unframed.message
    with pytest.raises(Exception, match="99999"):  # alone: with two bad records, either may be the first to fail
        raw(spark, wire.frame(99_999, good)).select(from_registry("value", codec.registry, codec.subject)).collect()
    nulls = letters.select(from_registry("value", codec.registry, codec.subject, mode="PERMISSIVE").alias("order"))
    assert [row.order is None for row in nulls.collect()] == [False, True, True, True]


def test_codec_writes_and_refuses_columns_that_do_not_fit_on_the_driver(
    spark: SparkSession, registry: Registry
) -> None:
    registry.register("codec", PART, schemaType="PROTOBUF")
    codec = Registered(SchemaRegistry(registry.url), "codec")
    df = encode(values(spark, ("x",), kind="struct<name: string>"), codec)
    assert decode(df.select("value"), codec).first().data == Row(name="x", counts={})
    with pytest.raises(CodecError, match="no field 'none'"):
        encode(values(spark, ("x",), kind="struct<none: string>"), codec)
    with pytest.raises(CodecError, match="is not valid"):
        from_registry("value", registry.url, "codec", mode="DROP")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "object", "properties": {"a": {"type": "number"}}}, "struct<a:double>"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "map<string,boolean>"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "array<bigint>"),
        ({"properties": {"a": {"oneOf": [{"type": "null"}, {"type": "integer"}]}}}, "struct<a:bigint>"),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}, "struct<a:string>"),
        ({"properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"enum": [1]}}}, "struct<a:string,b:string>"),
        (
            {"definitions": {"n": {"properties": {"next": {"$ref": "#/definitions/n"}}}}, "$ref": "#/definitions/n"},
            "struct<next:string>",
        ),
        ({"type": "string"}, "string"),
    ],
)
def test_spark_type_of_a_json_schema(schema: dict[str, Any], kind: str) -> None:
    assert spark_type(json.dumps(schema), {}).simpleString() == kind


NAME = {"name": "name", "type": "string"}
AGE = {"name": "age", "type": "int", "default": 0}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_of_a_topic_has_the_columns_of_its_schema_and_grows_with_it(
    spark: SparkSession, kafka: Kafka, registry: Registry, tmp_path: Path, kind: str
) -> None:
    tables = Tables(spark, kafka, tmp_path)
    subject = f"orders-{kind}"
    table = tables.define(
        "orders", format=kind, schema="registry", subject=subject, registry={"schema.registry.url": registry.url}
    )

    def write(number: str, inner_fields: list[dict[str, object]], *more: dict[str, object], **row: object) -> bytes:
        inner = {"name": "who", "type": {"type": "record", "name": "Who", "fields": inner_fields}}
        fields = [{"name": "id", "type": number}, inner, *more]
        text = json.dumps({"type": "record", "name": "Order", "fields": fields})
        schema_id = registry.register(subject, text)["id"]
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(text)), row)
        return wire.frame(schema_id, out.getvalue())

    tables.produce(table, ("a", write("int", [NAME], id=1, who={"name": "x"}), 0), ("b", b"bare bytes", 0))
    assert tables.fill(table).errors == 1
    note = {"name": "note", "type": "string", "default": "-"}
    wider = write("long", [NAME, AGE], note, id=2**40, who={"name": "y", "age": 3}, note="n")
    tables.produce(table, ("c", wider, 0))
    assert tables.fill(table).rows == 1
    found = sorted(polars_rows(table), key=lambda row: row["_offset"])
    assert [(row["id"], row["who"], row["note"]) for row in found] == [
        (1, {"name": "x", "age": None}, None),
        (2**40, {"name": "y", "age": 3}, "n"),
    ]
    renamed = note | {"name": "remark", "aliases": ["note"]}
    tables.produce(table, ("d", write("long", [NAME, AGE], renamed, id=3, who={"name": "z", "age": 4}, remark="r"), 0))
    assert tables.fill(table).rows == 1
    found = sorted(polars_rows(table), key=lambda row: row["_offset"])
    assert [row["remark"] for row in found] == ([None, "n", "r"] if kind == "iceberg" else [None, None, "r"])
    assert ("note" in found[0]) == (kind == "delta"), "deltalake cannot rename a column"
    [reason] = [row["reason"] for row in polars_rows(table.errors())]
    assert "partition 0, offset 1: value: starts with byte 0x62" in reason


def test_column_follows_its_field_of_protobuf_by_number(
    spark: SparkSession, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    tables = Tables(spark, kafka, tmp_path)
    known_by = {"subject": "by-number", "registry": {"schema.registry.url": registry.url}}
    table = tables.define("numbers", format="iceberg", schema="registry", **known_by)

    def write(field: str) -> bytes:
        text = f'syntax = "proto3"; message Order {{ int64 id = 1; string {field} = 2; }}'
        schema_id = registry.register("by-number", text, schemaType="PROTOBUF")["id"]
        return wire.frame(schema_id, wire.write_indexes([0]) + b"\x08\x07\x12\x01" + field[:1].encode())

    for field in ("note", "remark"):
        tables.produce(table, ("a", write(field), 0))
        assert tables.fill(table).rows == 1
    found = sorted(polars_rows(table), key=lambda row: row["_offset"])
    assert [(row["id"], row["remark"]) for row in found] == [(7, "n"), (7, "r")]
    assert "note" not in found[0]
