"""Unions of Avro: a value is in the member of the branch that it was written with, even if other branches would fit."""

import io
import json
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from barnabas.services.registry import wire
from barnabas.spark.pipelines.codecs import avro
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


CREATED, DELETED = record("Created", ("id", "long")), record("Deleted", ("id", "long"))
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
COUNTS = {"type": "map", "values": "long"}
TIME = {"type": "long", "logicalType": "timestamp-micros"}


def written(schema: Any, value: Any) -> bytes:
    """Write a record by fastavro alone."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


@pytest.mark.parametrize(
    ("union", "branch", "value", "member"),
    [
        ([CREATED, DELETED], "Deleted", {"id": 1}, 1),
        ([CREATED, DELETED], "Created", {"id": 1}, 0),
        (["null", record("More", ("id", "long"), ("name", ["null", "string"])), DELETED], "Deleted", {"id": 1}, 1),
        ([COUNTS, CREATED], "Created", {"id": 1}, 1),
        (["string", COLOUR], "Colour", "RED", 1),
        ([COLOUR, "string"], "string", "RED", 1),
        (["double", "long", "string"], "long", 2**60 + 1, 1),
        (["float", "int", "string"], "int", 2**24 + 1, 1),
        (["float", "double", "string"], "double", 0.1, 1),
        (["float", "double", "string"], "double", 1e300, 1),
        (["float", "double", "string"], "float", 0.5, 0),
        (["string", TIME], "long", datetime(2026, 11, 1, tzinfo=UTC), 1),
    ],
)
def test_value_is_in_the_member_of_its_branch(union: list[Any], branch: str, value: Any, member: int) -> None:
    schema = record("Event", ("what", union))
    read = avro._Reader(json.dumps(schema), (), None)
    assert read(written(schema, {"what": (branch, value)})) == {"what": {f"member{member}": value}}


@pytest.mark.parametrize(
    ("union", "member", "value"),
    [
        ([CREATED, DELETED], 1, {"id": 1}),
        (["double", "long", "string"], 1, 2**60 + 1),
        (["float", "double", "string"], 1, 0.1),
        ([COLOUR, "string"], 1, "RED"),
        (["string", COLOUR], 1, "RED"),
        (["string", TIME], 1, datetime(2026, 11, 1, tzinfo=UTC)),
    ],
)
def test_member_is_written_as_its_branch(union: list[Any], member: int, value: Any) -> None:
    schema = record("Event", ("what", union))
    row = {f"member{number}": value if number == member else None for number in range(len(union))}
    data = avro.writer(json.dumps(schema), (), b"")({"what": row})
    assert isinstance(data, bytes)
    assert data[0] >> 1 == member
    assert avro._Reader(json.dumps(schema), (), None)(data) == {"what": {f"member{member}": value}}


class Registry:
    """A registry with one schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = RegisteredSchema(json.dumps(schema))

    def schema(self, schema_id: int) -> RegisteredSchema:
        return self._schema

    def resolve(self, schema: RegisteredSchema) -> tuple[str, ...]:
        return ()


def test_branch_is_known_if_the_writer_had_fewer_branches_or_only_one() -> None:
    """Then fastavro returns names with all values of named types, even if there is no other branch."""
    one, both = ["null", DELETED], ["null", CREATED, DELETED]
    old = record("Event", ("what", one), ("colour", ["null", COLOUR]), ("again", "Colour"))
    new = record("Event", ("what", both), ("colour", ["null", COLOUR]), ("again", "Colour"))
    read = avro._Reader(json.dumps(new), (), Registry(old))  # type: ignore[arg-type]
    data = written(old, {"what": {"id": 7}, "colour": "RED", "again": "RED"})
    assert read(wire.frame(1, data)) == {"what": {"member1": {"id": 7}}, "colour": "RED", "again": "RED"}
    assert read(wire.frame(1, written(old, {"what": None, "colour": None, "again": "RED"}))) == {
        "what": None,
        "colour": None,
        "again": "RED",
    }


def test_branch_that_one_version_defines_and_another_refers_to_is_read() -> None:
    old = record("Event", ("what", ["null", COLOUR, "long"]))
    new = record("Event", ("what", ["null", "Colour", "long"]), ("more", "int"))
    new["fields"][1]["default"] = 0
    new["fields"].insert(0, {"name": "first", "type": COLOUR, "default": "RED"})
    read = avro._Reader(json.dumps(new), (), Registry(old))  # type: ignore[arg-type]
    assert read(wire.frame(1, written(old, {"what": ("Colour", "RED")}))) == {
        "first": "RED",
        "what": {"member0": "RED"},
        "more": 0,
    }
    assert read(wire.frame(1, written(old, {"what": 5})))["what"] == {"member1": 5}  # type: ignore[index]
