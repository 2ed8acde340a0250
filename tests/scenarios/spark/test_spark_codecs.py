"""JSON, Avro and Protobuf: decoding, encoding and bad records, with a registry that speaks the REST API."""

import base64
import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, type_pb2
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, named_struct, struct
from pyspark.sql.pandas.types import to_arrow_type

from barnabas.services.registry import wire
from barnabas.services.registry.values.avro import AvroType
from barnabas.spark.pipelines._fields import TransformError
from barnabas.spark.pipelines.codecs import (
    Avro,
    CodecError,
    Json,
    Protobuf,
    RegistryRefused,
    RegistryUnavailable,
    SchemaRegistry,
    UnknownSchema,
    avro_types,
    decode,
    encode,
    protobuf,
    protobuf_types,
)
from barnabas.spark.pipelines.codecs.base import Convert, convert_all
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema

ORDER_1: Final = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "total", "type": "int"}],
}
ORDER_2: Final = ORDER_1 | {
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ]
}


class Registry(ThreadingHTTPServer):
    """A schema registry after Confluent's REST API, as far as its serializers use it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.calls: Counter[str] = Counter()
        self.credentials: str | None = None
        self.refusals = 0  # so many requests are answered with 503 first
        self.lost = 0  # requests that a proxy answers because it has no registry to ask
        self.url = f"http://127.0.0.1:{self.server_port}"

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def avro(self, subject: str, schema: object, **more: object) -> int:
        return self.add(subject, {"schema": json.dumps(schema), **more})

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        parts = path.strip("/").split("/")
        match method, parts:
            case "GET", ["schemas", "ids", number]:
                at = int(number)
                if 0 < at <= len(self.schemas):
                    return 200, self.schemas[at - 1]
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "GET", ["subjects", subject, "versions", version]:
                ids = self.subjects.get(subject)
                if ids is None:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                at = len(ids) if version == "latest" else int(version)
                return 200, {"subject": subject, "version": at, "id": ids[at - 1]} | self.schemas[ids[at - 1] - 1]
            case "POST", ["subjects", subject, "versions"]:
                if "BAD" in body["schema"]:
                    return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
                return 200, {"id": self.add(subject, body)}
            case "POST", ["subjects", subject]:
                return 200, {"version": self.subjects[subject].index(self.schemas.index(body) + 1) + 1}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.server.calls[f"{self.command} {self.path}"] += 1
        wanted = self.server.credentials
        if self.server.refusals > 0:
            self.server.refusals -= 1
            status, answer = 503, {"error_code": 50301, "message": "starting"}
        elif wanted is not None and self.headers.get("Authorization") != wanted:
            status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, answer = self.server.answer(self.command, self.path, body)
        data = json.dumps(answer).encode()
        if self.server.lost > 0:
            self.server.lost -= 1
            status, data = 404, b"default backend - 404"
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="registry")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client(registry: Registry, **more: Any) -> SchemaRegistry:
    return SchemaRegistry(registry.url, backoff_ms=1, **more)


def avro_bytes(schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


# ----------------------------------------------------------------------------------------------------------- the registry


def test_a_schema_is_fetched_once_a_process_and_a_registry_that_is_starting_is_asked_again(registry: Registry) -> None:
    schema_id = registry.avro("orders-value", ORDER_1)
    registry.refusals = 2
    ours = client(registry)
    assert [json.loads(ours.schema(schema_id).text) for _ in range(3)] == [ORDER_1] * 3
    assert registry.calls[f"GET /schemas/ids/{schema_id}"] == 3  # twice in vain, once for good


def test_a_proxy_that_finds_no_registry_and_a_wrong_url_make_no_bad_record(registry: Registry) -> None:
    """Only the registry itself can say that a schema is unknown. Any other error would make dead letters of good records."""
    schema_id = registry.avro("orders-value", ORDER_1)
    registry.lost = 2
    assert json.loads(client(registry).schema(schema_id).text) == ORDER_1
    registry.lost = 10
    with pytest.raises(RegistryUnavailable, match="404 default backend - 404"):
        client(registry, retries=2).latest("orders-value")
    registry.lost = 0
    with pytest.raises(RegistryUnavailable, match="404 HTTP 404 Not Found"):
        SchemaRegistry(f"{registry.url}/elsewhere", retries=2, backoff_ms=1).schema(schema_id)


def test_a_registry_gets_credentials_and_they_never_show(registry: Registry) -> None:
    registry.avro("orders-value", ORDER_1)
    registry.credentials = "Basic " + base64.b64encode(b"ann:secret").decode()
    settings = {"schema.registry.url": registry.url, "basic.auth.user.info": "ann:secret"}
    ours = SchemaRegistry.from_config(settings)
    assert json.loads(ours.latest("orders-value").text) == ORDER_1
    assert "secret" not in repr(ours)
    with pytest.raises(RegistryRefused, match="401 Unauthorized"):
        client(registry).latest("orders-value")
    registry.credentials = "Bearer xyz"
    assert json.loads(client(registry, token="xyz").latest("orders-value").text) == ORDER_1


def test_a_refusal_by_the_registry_and_an_unavailable_registry_are_different_errors(registry: Registry) -> None:
    ours = client(registry)
    with pytest.raises(UnknownSchema, match="schemas/ids/99: 404 Schema not found"):
        ours.schema(99)
    with pytest.raises(UnknownSchema, match="Subject 'nope' not found"):
        ours.latest("nope")
    with pytest.raises(RegistryRefused, match="409 Schema being registered is incompatible"):
        ours.register("s", RegisteredSchema("BAD"))
    registry.avro("orders-value", ORDER_1)
    two = SchemaRegistry(f"http://127.0.0.1:1, {registry.url}/", retries=0)
    assert json.loads(two.latest("orders-value").text) == ORDER_1
    with pytest.raises(RegistryUnavailable, match=r"asked 2 times; GET http://127.0.0.1:1/.*refused"):
        SchemaRegistry("http://127.0.0.1:1", retries=1, backoff_ms=1).latest("orders-value")
    for wrong in ("", "registry:8081"):
        with pytest.raises(ValueError, match=r"schema\.registry\.url"):
            SchemaRegistry(wrong)


def test_bytes_outside_of_confluents_wire_format_are_an_error() -> None:
    assert wire.frame(258, b"x") == b"\0\0\0\1\2x"
    assert wire.unframe(b"\0\0\0\1\2x") == (258, b"x")
    assert wire.write_indexes([0]) == b"\0"
    assert wire.write_indexes([1, 0]) == b"\4\2\0"  # zigzag: two of them, 1 and 0
    assert wire.skip_indexes(wire.write_indexes([3, 200, 0]) + b"rest") == b"rest"
    assert wire.skip_indexes(b"\0rest") == b"rest"
    for data, complaint in ((b"\0\0", "2 bytes are too few"), (b"{...}..", "starts with byte 0x7b")):
        with pytest.raises(wire.NotFramed, match=complaint):
            wire.unframe(data)
    for data in (b"\x80", b"\x08\x02"):
        with pytest.raises(wire.NotFramed, match="indexes"):
            wire.skip_indexes(data)


# ------------------------------------------------------------------------------------------------- Avro, without a Spark


EVERYTHING: Final = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "number", "type": ["null", "int", "long"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "same", "type": "Kind"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "either", "type": ["null", "string", {"type": "array", "items": "int"}]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "tags", "type": {"type": "map", "values": "string"}}],
                },
            },
        },
    ],
}
EVERYTHING_DDL: Final = (
    "struct<flag:boolean,number:bigint,price:decimal(8,2),day:date,at:timestamp,clock:int,uuid:string,kind:string,same:string,"
    "hash:binary,counts:map<string,bigint>,either:struct<member0:string,member1:array<int>>,"
    "lines:array<struct<tags:map<string,string>>>>"
)


def through(convert: Convert, values: list[Any], source: Any, target: Any) -> tuple[pa.Array, list[Any]]:
    """Convert a column as an executor does."""
    done = convert_all(pa.array(values, source), convert, target)
    return done.field("data"), done.field("error").to_pylist()


def test_every_avro_type_has_a_spark_type_and_goes_there_and_back() -> None:
    text = json.dumps(EVERYTHING)
    kind = avro_types.spark_type(avro_types.parse(text))
    assert kind.simpleString() == EVERYTHING_DDL
    value = {
        "flag": True,
        "number": 5_000_000_000,
        "price": Decimal("12.50"),
        "day": date(2024, 5, 6),
        "at": datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC),
        "clock": 1000,
        "uuid": "0e2c9a3e-0000-4000-8000-000000000001",
        "kind": "A",
        "same": "B",
        "hash": b"\1\2",
        "counts": {"x": 1},
        "either": [1, 2],
        "lines": [{"tags": {"a": "b"}}, {"tags": {}}],
    }
    plain = json.loads(text)
    plain["fields"][6]["type"] = "string"
    plain["fields"][5]["type"] = "int"
    raw = [avro_bytes(plain, value), avro_bytes(plain, value | {"either": "text", "number": None}), None, b"\1"]
    arrow = to_arrow_type(kind, timezone="UTC")
    from barnabas.spark.pipelines.codecs.avro import _Reader, writer

    data, errors = through(_Reader(text, (), None), raw, pa.binary(), arrow)
    first, second = data[0].as_py(), data[1].as_py()
    assert first["either"] == {"member0": None, "member1": [1, 2]}
    assert second["either"] == {"member0": "text", "member1": None}
    assert (first["price"], first["at"], first["uuid"]) == (value["price"], value["at"], value["uuid"])
    assert first["lines"][0]["tags"] == [("a", "b")]
    assert [error is None for error in errors] == [True, True, True, False]
    back, errors = through(writer(text, (), b""), data.to_pylist(), arrow, pa.binary())
    assert back.to_pylist() == [*raw[:3], None]
    assert errors == [None] * 4


def test_avro_schemas_without_a_spark_type_are_refused_while_the_plan_is_made() -> None:
    recursive = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(CodecError, match="Node contains itself"):
        Avro(recursive).decoder()
    with pytest.raises(CodecError, match="not a schema"):
        Avro('{"type": "recrod"}').decoder()
    with pytest.raises(CodecError, match="needs a schema, or a registry and a subject"):
        Avro().decoder()
    with pytest.raises(CodecError, match="needs a schema"):
        Json().decoder()
    with pytest.raises(CodecError, match="needs the subject"):
        Avro(ORDER_1, registry=SchemaRegistry("http://127.0.0.1:1")).encoder(avro_types.spark_type(parsed(ORDER_1)))


def parsed(schema: object) -> AvroType:
    return avro_types.parse(json.dumps(schema))


def test_a_bad_record_has_an_error_of_its_own_and_an_unavailable_registry_fails_the_batch(
    registry: Registry,
) -> None:
    from barnabas.spark.pipelines.codecs.avro import _Reader

    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    registry.avro("money", money)
    reference = {"name": "shop.Money", "subject": "money", "version": 1}
    bill = {"type": "record", "name": "Bill", "namespace": "shop", "fields": [{"name": "sum", "type": "shop.Money"}]}
    bill_id = registry.avro("bill", bill, references=[reference])
    whole = bill | {"fields": [{"name": "sum", "type": money}]}
    reader = _Reader(json.dumps(whole), (), client(registry, retries=0))
    good = wire.frame(bill_id, avro_bytes(whole, {"sum": {"cents": 5}}))
    unknown = wire.frame(77, b"\2")
    raw = [good, b"{}", unknown, unknown, good + b"!", good[:-1]]
    kind = to_arrow_type(avro_types.spark_type(parsed(whole)))
    data, errors = through(reader, raw, pa.binary(), kind)
    assert data.to_pylist() == [{"sum": {"cents": 5}}, *[None] * 5]
    messages = [error and error["message"] for error in errors]
    assert messages[0] is None
    assert "too few" in messages[1]
    assert "Schema not found" in messages[2]
    assert messages[3] == messages[2]
    assert "1 bytes are left over" in messages[4]
    assert errors[5]["class"] == "EOFError"
    assert registry.calls["GET /schemas/ids/77"] == 1  # a flood of them is not a flood of requests
    registry.refusals = 10**6
    with pytest.raises(RegistryUnavailable):
        through(reader, [wire.frame(78, b"\2")], pa.binary(), kind)


# --------------------------------------------------------------------------------------------- Protobuf, without a Spark


def field(name: str, number: int, kind: str, **more: Any) -> descriptor_pb2.FieldDescriptorProto:
    proto = descriptor_pb2.FieldDescriptorProto
    repeated = more.pop("repeated", False)
    label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
    if kind.startswith("."):
        number_of_kind = proto.TYPE_ENUM if kind == ".shop.Kind" else proto.TYPE_MESSAGE
        return proto(name=name, number=number, type=number_of_kind, type_name=kind, label=label, **more)
    return proto(name=name, number=number, type=proto.Type.Value(f"TYPE_{kind.upper()}"), label=label, **more)


@pytest.fixture(scope="module")
def shop() -> bytes:
    """The descriptor set of a proto3 file, in the wrong order and without Protobuf's own types."""
    money = descriptor_pb2.FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    money.message_type.add(name="Money", field=[field("cents", 1, "int64")])
    order = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto",
        package="shop",
        syntax="proto3",
        dependency=[
            "shop/money.proto",
            "google/protobuf/timestamp.proto",
            "google/protobuf/duration.proto",
            "google/protobuf/wrappers.proto",
            "google/protobuf/struct.proto",
        ],
    )
    kind = order.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="ONLINE", number=1)
    order.message_type.add(name="Unrelated")
    message = order.message_type.add(name="Order")
    entry = message.nested_type.add(name="CountsEntry", field=[field("key", 1, "string"), field("value", 2, "int32")])
    entry.options.map_entry = True
    message.oneof_decl.add(name="_note")
    message.field.extend(
        [
            field("id", 1, "int64"),
            field("kind", 2, ".shop.Kind"),
            field("prices", 3, ".shop.Money", repeated=True),
            field("counts", 4, ".shop.Order.CountsEntry", repeated=True),
            field("note", 5, "string", proto3_optional=True, oneof_index=0),
            field("at", 6, ".google.protobuf.Timestamp"),
            field("took", 7, ".google.protobuf.Duration"),
            field("limit", 8, ".google.protobuf.Int32Value"),
            field("extra", 9, ".google.protobuf.Struct"),
            field("big", 10, "uint64"),
            field("tags", 11, "string", repeated=True),
        ]
    )
    return descriptor_pb2.FileDescriptorSet(file=[order, money]).SerializeToString()


ORDER_ROW: Final = {
    "id": 7,
    "kind": "ONLINE",
    "prices": [{"cents": 5}, {"cents": 0}],
    "counts": [("a", 1)],
    "note": "",
    "at": datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC),
    "took": timedelta(seconds=90),
    "limit": 0,
    "extra": '{"a": [1.0, null]}',
    "big": Decimal(2**64 - 1),
    "tags": ["x"],
}


def test_every_protobuf_type_goes_there_and_back_and_unset_is_not_the_default(shop: bytes) -> None:
    files, name = Protobuf("shop.Order", shop)._resolved()
    kind = protobuf_types.spark_type(protobuf._descriptor(files, name))
    assert kind.simpleString() == (
        "struct<id:bigint,kind:string,prices:array<struct<cents:bigint>>,counts:map<string,int>,note:string,at:timestamp,"
        "took:interval day to second,limit:int,extra:string,big:decimal(20,0),tags:array<string>>"
    )
    arrow = to_arrow_type(kind, timezone="UTC")
    nothing = dict.fromkeys(ORDER_ROW)
    odd = nothing | {"kind": "NOPE"}
    writer = protobuf.writer(files, name, kind, b"")
    nullable = to_arrow_type(kind, timezone="UTC")
    raw, errors = through(writer, [ORDER_ROW, nothing, odd], nullable, pa.binary())
    assert errors[:2] == [None, None]
    assert errors[2]["message"] == "field 'kind': 'NOPE' is not valid: use one of UNKNOWN, ONLINE"
    data, errors = through(
        protobuf.reader(files, name, framed=False), [*raw.to_pylist()[:2], b"\xff"], pa.binary(), arrow
    )
    assert data[0].as_py() == ORDER_ROW
    assert data[1].as_py() == nothing | {
        "id": 0,
        "kind": "UNKNOWN",
        "prices": [],
        "counts": [],
        "big": Decimal(0),
        "tags": [],
    }
    assert data[2].as_py() is None
    assert errors[2]["class"] == "google.protobuf.message.DecodeError"


def test_a_generated_class_is_as_good_as_a_descriptor_set_and_the_wrong_set_is_refused(shop: bytes) -> None:
    files, name = Protobuf(type_pb2.Field)._resolved()
    assert name == "google.protobuf.Field"
    message = type_pb2.Field(name="x", number=4, kind=type_pb2.Field.TYPE_INT32)
    row = protobuf.reader(files, name, framed=False)(message.SerializeToString())
    assert isinstance(row, dict)
    assert (row["name"], row["number"], row["kind"], row["packed"]) == ("x", 4, "TYPE_INT32", False)
    kind = protobuf_types.spark_type(protobuf._descriptor(files, name))
    assert protobuf.indexes_of(protobuf._descriptor(*Protobuf("shop.Order", shop)._resolved())) == [1]
    with pytest.raises(CodecError, match=r"no message 'shop\.Nope'"):
        Protobuf("shop.Nope", shop).decoder()
    with pytest.raises(CodecError, match="needs the descriptor set"):
        Protobuf("shop.Order").decoder()
    only = descriptor_pb2.FileDescriptorSet.FromString(shop)
    del only.file[1]
    with pytest.raises(CodecError, match=r"shop/order\.proto imports shop/money\.proto, which the set lacks"):
        Protobuf("shop.Order", only.SerializeToString()).decoder()
    with pytest.raises(CodecError, match=r"shop\.Order has no field .*'name'"):
        Protobuf("shop.Order", shop).encoder(kind)


# -------------------------------------------------------------------------------------------------------------- on Spark


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [("orders", 1, 40 + at, None if value is None else bytearray(value)) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, "topic string, partition int, offset long, value binary").coalesce(1)


def test_json_without_connects_envelope_is_an_error_and_not_null(spark: SparkSession) -> None:
    values = (b'{"id": 3}', b'{"schema": null, "payload": null}', b'{"payload": {"id": 4}}', None)
    bare, *others = decode(records(spark, *values), Json("id int", envelope=True)).collect()
    assert bare.data is None
    assert bare.error.message.endswith('offset 40: value: no payload, as Connect\'s envelope has: {"id": 3}')
    assert [row.error for row in others] == [None, None, None]
    assert [row.data and row.data.id for row in others] == [None, 4, None]


def test_records_that_are_not_json_get_an_error_or_are_dropped_or_fail_the_query(spark: SparkSession) -> None:
    good, cut, typed, missing = b'{"id": 1, "at": "x"}', b'{"id": 1', b'{"id": "one"}', b'{"at": "y"}'
    df = records(spark, good, cut, typed, missing, None, b"\xff\xfe", b"", b"null")
    codec = Json("id int not null, at string")
    rows = decode(df, codec).collect()
    assert [row.data and row.data.asDict() for row in rows] == [{"id": 1, "at": "x"}, *[None] * 7]
    assert [row.error is None for row in rows] == [True, False, False, False, True, False, False, True]
    assert (
        rows[1].error["message"]
        == 'topic orders, partition 1, offset 41: value: not JSON of struct<id:int,at:string>: {"id": 1'
    )
    assert rows[3].error.message.endswith("offset 43: value: field 'id' is missing or null")
    assert rows[5].error.message.endswith("not UTF-8")
    assert [bytes(row.value) for row in rows[:2]] == [good, cut]
    assert [row.offset for row in decode(df, codec, mode="DROP").collect()] == [40, 44, 47]
    with pytest.raises(PySparkException, match=r"topic orders, partition 1, offset 4[1-6]: value: "):
        decode(df, codec, mode="FAIL").collect()
    framed = records(spark, wire.frame(3, b'{"id": 2}'), good)
    first, second = decode(framed, Json("id int", registry=SchemaRegistry("http://127.0.0.1:1"))).collect()
    assert (first.data.id, second.data) == (2, None)
    assert "wire format" in second.error.message
    (row,) = decode(records(spark, b'{"schema": {}, "payload": {"id": 3}}'), Json("id int", envelope=True)).collect()
    assert row.data.id == 3
    back = encode(decode(df, codec, mode="DROP"), Json(), into="out").collect()
    assert [row.out and bytes(row.out) for row in back] == [b'{"id":1,"at":"x"}', None, None]
    with pytest.raises(TransformError, match="column 'offset' is bigint, not bytes"):
        decode(df, codec, column="offset")
    with pytest.raises(TransformError, match="mode 'MAYBE' is not valid"):
        decode(df, codec, mode="MAYBE")  # type: ignore[arg-type]


def test_avro_records_of_an_older_schema_are_read_as_the_newest_and_written_under_their_own_id(
    spark: SparkSession, registry: Registry
) -> None:
    old = registry.avro("orders-value", ORDER_1)
    new = registry.avro("orders-value", ORDER_2)
    ours = client(registry, retries=0)
    df = records(
        spark,
        wire.frame(old, avro_bytes(ORDER_1, {"id": 1, "total": 5})),
        wire.frame(new, avro_bytes(ORDER_2, {"id": 2, "total": 2.5, "note": "n"})),
        wire.frame(99, b"?"),
        None,
    )
    codec = Avro(registry=ours, subject="orders-value")
    rows = decode(df, codec).collect()
    assert [row.data and tuple(row.data) for row in rows] == [(1, 5.0, None), (2, 2.5, "n"), None, None]
    message = rows[2].error.message
    assert re.match(
        r"topic orders, partition 1, offset 42: value: GET .*/schemas/ids/99: 404 Schema not found", message
    )
    written = decode(df, codec, mode="DROP").select(
        struct((col("data.id") + lit(0)).alias("id"), col("data.total").alias("total")).alias("data")
    )
    out = encode(written, Avro(registry=ours, subject="copies-value"), into="value").collect()
    schema_id, payload = wire.unframe(bytes(out[1].value))
    assert registry.subjects["copies-value"] == [schema_id]
    schema = fastavro.parse_schema(json.loads(registry.schemas[schema_id - 1]["schema"]))
    assert fastavro.schemaless_reader(io.BytesIO(payload), schema, None) == {"id": 2, "total": 2.5}
    with pytest.raises(PySparkException, match=r"(?s)offset 42: value: GET .*Schema not found"):
        decode(df, codec, mode="FAIL").collect()


def test_protobuf_messages_cross_spark_with_their_imports_registered(
    spark: SparkSession, registry: Registry, shop: bytes
) -> None:
    codec = Protobuf("shop.Order", shop, registry=client(registry), subject="orders-value")
    row = named_struct(lit("id"), lit(7).cast("long"), lit("kind"), lit("ONLINE"), lit("at"), lit(datetime(2024, 5, 6)))
    df = encode(records(spark, b"", b"").withColumn("data", row), codec, mode="PERMISSIVE")
    first = df.first()
    assert first is not None
    assert bytes(first.value)[:7] == wire.frame(registry.subjects["orders-value"][0], b"\2\2")  # the second message
    order = registry.schemas[registry.subjects["orders-value"][0] - 1]
    assert order["schemaType"] == "PROTOBUF"
    assert order["references"] == [{"name": "shop/money.proto", "subject": "shop/money.proto", "version": 1}]
    read = decode(df.drop("data", "error"), codec, into="order").collect()
    assert [(one.order.id, one.order.kind, one.order.at, one.order.note) for one in read] == [
        (7, "ONLINE", datetime(2024, 5, 6), None)
    ] * 2
    (bad,) = decode(records(spark, b"\0\0\0\0\1\0\xff"), codec).collect()
    assert bad.data is None
    assert bad.error["class"] == "google.protobuf.message.DecodeError"
