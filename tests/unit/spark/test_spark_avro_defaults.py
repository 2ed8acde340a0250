"""Old Avro records, read with a newer schema: missing fields have the defaults of the specification."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from barnabas.services.registry import wire
from barnabas.spark.pipelines.codecs.avro import _Reader
from barnabas.spark.pipelines.codecs.base import CodecError
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema

OLD = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}


class Registry:
    def schema(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(json.dumps(OLD))

    def resolve(self, schema: RegisteredSchema) -> tuple[str, ...]:
        return ()


def read(*fields: dict[str, Any], times: int = 2) -> Any:
    """Read an old record with a newer schema that has these fields."""
    newer = json.dumps(OLD | {"fields": [*OLD["fields"], *fields]})  # type: ignore[misc]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, OLD, {"id": 7})
    reader = _Reader(newer, (), Registry())  # type: ignore[arg-type]
    found = [reader(wire.frame(1, out.getvalue())) for _ in range(times)]
    assert found[0] == found[-1], "a default is the same for every record"
    assert found[0]["id"] == 7
    return found[-1][fields[-1]["name"]]


INNER = {
    "type": "record",
    "name": "inner",
    "fields": [
        {"name": "a", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1_700_000_000_000},
        {"name": "b", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\u00ff"}},
        {"name": "c", "type": ["null", "string"], "default": None},
    ],
}
INNER_VALUE = {"a": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "b": [("k", b"\xff")], "c": None}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_000, INNER_VALUE["a"]),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1_700_000_000_000_000, INNER_VALUE["a"]),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 0, datetime(1970, 1, 1)),
        ({"type": "int", "logicalType": "date"}, 19_000, date(2022, 1, 8)),
        ("bytes", "\u00ff\u0000", b"\xff\x00"),
        ({"type": "fixed", "name": "f", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}, "\u0004\u00d2", Decimal("12.34")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}, "\u00ff", Decimal(-1)),
        (["null", {"type": "long", "logicalType": "timestamp-millis"}], None, None),
        ([{"type": "long", "logicalType": "timestamp-millis"}, "null"], 1_700_000_000_000, INNER_VALUE["a"]),
        ("double", 3, 3.0),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "bytes"}, ["\u00fe"], [b"\xfe"]),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        (INNER, {}, INNER_VALUE),
        (INNER, {"c": None, "b": {}}, INNER_VALUE | {"b": []}),
        (["int", "string"], 5, {"member0": 5}),
        ("string", "plain", "plain"),
        ("boolean", False, False),
    ],
)
def test_a_field_that_was_not_written_has_its_default(kind: Any, default: Any, value: Any) -> None:
    assert read({"name": "x", "type": kind, "default": default}) == value


def test_a_default_of_a_type_that_is_named_elsewhere() -> None:
    first = {"name": "x", "type": INNER, "default": {}}
    assert read(first, {"name": "y", "type": "inner", "default": {"c": None}}) == INNER_VALUE
    assert read(first, {"name": "z", "type": {"type": "array", "items": "inner"}, "default": [{}]}) == [INNER_VALUE]


@pytest.mark.parametrize(
    ("kind", "default", "said"),
    [
        ("bytes", "\u0100", "characters that are not bytes"),
        (
            {"type": "record", "name": "q", "fields": [{"name": "n", "type": "int"}]},
            {},
            "lacks n, which has no default",
        ),
        ("int", 2**40, "is not of type int"),
    ],
)
def test_an_invalid_default_is_refused_when_the_query_is_made(kind: Any, default: Any, said: str) -> None:
    with pytest.raises(CodecError, match=said):
        read({"name": "x", "type": kind, "default": default})
