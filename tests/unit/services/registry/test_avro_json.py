"""Values of Avro from the JSON that a person types."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from barnabas.services.registry.values import avro, by_schema
from barnabas.services.registry.values.avro_json import FromJson, NotOfThisType, Typed

INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int", "default": 3}]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ("null", None, None),
        ("long", 5, 5),
        ("long", 5.0, 5),
        ("double", 5, 5.0),
        ("double", "NaN", pytest.approx(float("nan"), nan_ok=True)),
        ("bytes", "\u0000ÿ", b"\x00\xff"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": ["null", "int"]}, {"a": 1, "b": None}, {"a": 1, "b": None}),
        (["null", "string"], "x", "x"),
        (["null", "string"], {"string": "x"}, "x"),
        (["null", "long", "string"], "x", "x"),
        (["null", INNER], {}, ("Inner", {"x": 3})),
        (["null", INNER], {"Inner": {"x": 1}}, ("Inner", {"x": 1})),
        (logical("bytes", "decimal", precision=5, scale=2), "1.25", Decimal("1.25")),
        (logical("int", "date"), "2026-11-19", date(2026, 11, 19)),
        (logical("int", "date"), 3, 3),
        (logical("int", "time-millis"), "10:00:00", time(10)),
        (logical("long", "timestamp-millis"), "2026-11-19T20:00:00", datetime(2026, 11, 19, 20, tzinfo=UTC)),
        (logical("long", "local-timestamp-millis"), "2026-11-19T20:00:00", datetime(2026, 11, 19, 20)),
    ],
)
def test_value_fits(schema: Any, typed: Any, value: Any) -> None:
    parsed = avro.parse([schema])
    assert Typed(parsed).value(parsed.schema, typed) == value


@pytest.mark.parametrize(
    ("schema", "typed", "words"),
    [
        ("int", 2**31, "is not of type int"),
        ("long", 1.5, "is not of type long"),
        ("long", True, "is not of type long"),
        ("bytes", "€", "characters that are not bytes"),
        ("boolean", 1, "is not of type boolean"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "use one of A"),
        (["null", "int"], "x", "is not of type int"),
        (["null", "int", "long"], "x", "fits no branch"),
        ({"type": "array", "items": "int"}, {}, "is not an array"),
        (INNER, {"y": 1}, "Inner has no field y"),
        (INNER, {"x": "1"}, "x: '1' is not of type int"),
        (logical("int", "date"), "yesterday", "is not a date"),
        (logical("bytes", "decimal", precision=5, scale=2), True, "is not a decimal"),
    ],
)
def test_value_that_does_not_fit_is_refused(schema: Any, typed: Any, words: str) -> None:
    parsed = avro.parse([schema])
    with pytest.raises(NotOfThisType, match=words):
        Typed(parsed).value(parsed.schema, typed)


def test_default_has_only_the_stored_form_of_a_logical_type() -> None:
    parsed = avro.parse([logical("int", "date")])
    assert FromJson(parsed).value(parsed.schema, 1) == date(1970, 1, 2)
    with pytest.raises(NotOfThisType):
        FromJson(parsed).value(parsed.schema, "1970-01-02")


def test_written_value_is_read_again() -> None:
    schema = by_schema.Schema("AVRO", json.dumps(INNER), {})
    payload = by_schema.writer(schema)({"x": 9})
    assert by_schema.reader(schema)(payload) == ("avro", {"x": 9})
    with pytest.raises(ValueError):
        by_schema.writer(by_schema.Schema("AVRO", json.dumps(logical("bytes", "decimal", precision=2, scale=0)), {}))(
            "999"
        )
