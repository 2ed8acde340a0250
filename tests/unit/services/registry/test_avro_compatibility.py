"""Avro's resolution rules: each with its message, and thousands of generated pairs against Apache Avro's own checker.

`AVRO_PAIRS=100000` compares as many pairs; the suite compares 150.
"""

import json
import os
from collections import Counter
from typing import Any

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker
from avro.schema import make_avsc_object
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from barnabas.services.registry.formats import avro_compatibility, avro_types, incompatibilities, parse

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def why(reader: object, writer: object) -> list[str]:
    return incompatibilities(parse("AVRO", json.dumps(reader)), parse("AVRO", json.dumps(writer)))


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def message(kind: str, description: str, info: str) -> str:
    return f"{{errorType:'{kind}', description:'{description}', additionalInfo:'{info}'}}"


F = {"name": "f", "type": "string"}
G = {"name": "g", "type": "int"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "X", "size": 4}


@pytest.mark.parametrize(
    ("reader", "writer", "said"),
    [
        (
            "int",
            "string",
            message(
                "TYPE_MISMATCH",
                "The type (path '/') of a field in the new schema does not match with the old schema",
                "reader type: INT not compatible with writer type: STRING",
            ),
        ),
        (
            record(F, G),
            record(F),
            message(
                "READER_FIELD_MISSING_DEFAULT_VALUE",
                "The field 'g' at path '/fields/1' in the new schema has no default value and is missing in the old schema",
                "g",
            ),
        ),
        (
            record(F, name="S"),
            record(F, namespace="n"),
            message("NAME_MISMATCH", "The name of the schema has changed (path '/name')", "expected: n.R"),
        ),
        (
            {**ENUM, "symbols": ["A"]},
            {**ENUM, "symbols": ["C", "A", "B"]},
            message(
                "MISSING_ENUM_SYMBOLS",
                "The new schema is missing enum symbols '[B, C]' at path '/symbols' in the old schema",
                "[B, C]",
            ),
        ),
        (
            record({"name": "f", "type": {**FIXED, "size": 8}}),
            record({"name": "f", "type": FIXED}),
            message(
                "FIXED_SIZE_MISMATCH",
                "The size of FIXED type field at path '/fields/0/type/size' in the new schema does not match with the old "
                "schema",
                "expected: 4, found: 8",
            ),
        ),
        (
            record({"name": "f", "type": ["null", "int"]}),
            record({"name": "f", "type": ["null", "int", "string"]}),
            message(
                "MISSING_UNION_BRANCH",
                "The new schema is missing a type inside a union field at path '/fields/0/type/2' in the old schema",
                "reader union lacking writer type: STRING",
            ),
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "int"}},
            {"type": "array", "items": {"type": "map", "values": "long"}},
            message(
                "TYPE_MISMATCH",
                "The type (path '/items/values') of a field in the new schema does not match with the old schema",
                "reader type: INT not compatible with writer type: LONG",
            ),
        ),
    ],
)
def test_each_difference_has_confluents_text(reader: object, writer: object, said: str) -> None:
    assert why(reader, writer) == [said]


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("long", "int"),
        ("float", "long"),
        ("double", "float"),
        ("string", "bytes"),
        ("bytes", "string"),
        (["null", "long"], "int"),
        ("string", ["string"]),
        (record(F), record(F, G)),
        (record(F, {**G, "default": 0}), record(F)),
        (record({"name": "new", "type": "string", "aliases": ["f"]}), record(F)),
        (record(F, name="S", aliases=["R"]), record(F)),
        (record(F, namespace="a"), record(F, namespace="b")),
        ({**ENUM, "default": "A"}, {**ENUM, "symbols": ["A", "Z"]}),
        (record({"name": "next", "type": ["null", "R"]}), record({"name": "next", "type": ["null", "R"]})),
    ],
)
def test_reader_resolves(reader: object, writer: object) -> None:
    assert why(reader, writer) == []


def test_field_that_matches_two_of_the_writers_is_refused() -> None:
    reader = record({"name": "f", "type": "string", "aliases": ["h"]})
    [said] = why(reader, record(F, {"name": "h", "type": "string"}))
    assert said.startswith("Unexpected exception during compatibility check: Reader record field f matches multiple")


def test_schema_of_another_type_is_refused_and_names_of_the_schemas_are_the_callers() -> None:
    reader, writer = parse("AVRO", '"int"'), parse("AVRO", '"string"')
    [said] = incompatibilities(reader, writer, reader_name="old", writer_name="new")
    assert "in the old schema does not match with the new schema" in said


@st.composite
def schemas(draw: st.DrawFn, base: object = None) -> Any:
    """A schema; with `base`, one that has grown out of it, so that a good part of the pairs fits."""
    defined: set[str] = set()

    def mutate(old: Any) -> bool:
        return old is None or draw(st.integers(0, 5)) == 0

    def named(old: Any, name: str, depth: int) -> Any:
        if name in defined:
            return name
        defined.add(name)
        kind = old["type"] if isinstance(old, dict) else draw(st.sampled_from(["record", "record", "enum", "fixed"]))
        more = {"aliases": ["A", "B"]} if draw(st.integers(0, 9)) == 0 else {}
        if kind == "fixed":
            return {"type": kind, "name": name, "size": draw(st.integers(1, 2)) if mutate(old) else old["size"], **more}
        if kind == "enum":
            symbols = (
                draw(st.lists(st.sampled_from("PQRS"), min_size=1, unique=True)) if mutate(old) else old["symbols"]
            )
            more |= {"default": symbols[0]} if draw(st.integers(0, 3)) == 0 else {}
            return {"type": kind, "name": name, "symbols": symbols, **more}
        old_fields = {field["name"]: field["type"] for field in old["fields"]} if isinstance(old, dict) else {}
        names = draw(st.lists(st.sampled_from("fgh"), max_size=3, unique=True)) if mutate(old) else list(old_fields)
        fields = []
        for field in names:
            spec: dict[str, Any] = {"name": field, "type": grow(old_fields.get(field), depth + 1)}
            if draw(st.integers(0, 2)) == 0:
                spec["type"], spec["default"] = ["null", *_branches(spec["type"])], None
            if draw(st.integers(0, 9)) == 0:
                spec["aliases"] = [draw(st.sampled_from("fgh"))]
            fields.append(spec)
        return {"type": kind, "name": name, "fields": fields, **more}

    def grow(old: Any, depth: int) -> Any:
        if not mutate(old):
            if isinstance(old, str):
                return old if old in PRIMITIVES else named(None, old, depth)
            if isinstance(old, list):
                return _union([grow(branch, depth) for branch in old])
            if old["type"] in ("array", "map"):
                word = "items" if old["type"] == "array" else "values"
                return {"type": old["type"], word: grow(old[word], depth + 1)}
            return named(old, old["name"], depth)
        kind = draw(st.sampled_from(["plain"] * 3 + (["array", "map", "union", "named", "named"] if depth < 4 else [])))
        if kind == "plain":
            return draw(st.sampled_from(PRIMITIVES))
        if kind == "named":
            return named(None, draw(st.sampled_from("ABC")), depth)
        if kind == "union":
            return _union([grow(None, depth + 1) for _ in range(draw(st.integers(1, 3)))])
        return {"type": kind, "items" if kind == "array" else "values": grow(None, depth + 1)}

    return grow(base, 0)


def _branches(schema: Any) -> list[Any]:
    return [branch for branch in (schema if isinstance(schema, list) else [schema]) if branch != "null"]


def _union(branches: list[Any]) -> list[Any]:
    """One of each kind, no union within: the names of what is left out may be missing then, which the caller skips."""
    kept: dict[str, Any] = {}
    for branch in (inner for outer in branches for inner in (outer if isinstance(outer, list) else [outer])):
        key = branch if isinstance(branch, str) else branch.get("name", branch["type"])
        kept.setdefault(key, branch)
    return list(kept.values())


pairs = schemas().flatmap(lambda writer: st.tuples(schemas(writer), st.just(writer)))


@settings(
    max_examples=int(os.environ.get("AVRO_PAIRS", "150")),
    deadline=None,
    derandomize="AVRO_PAIRS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(pairs)
def test_generated_pairs_differ_as_apache_avro_says(pair: tuple[Any, Any]) -> None:
    reader, writer = (json.dumps(schema) for schema in pair)
    try:
        ours = avro_compatibility.differences(
            avro_types.parse(reader, (), as_new=True)[0], avro_types.parse(writer, (), as_new=True)[0]
        )
    except ValueError:  # a name that was left out, or two fields that match: counted, and few
        event("skipped")
        return
    checker = ReaderWriterCompatibilityChecker()
    theirs = checker.get_compatibility(make_avsc_object(json.loads(reader)), make_avsc_object(json.loads(writer)))
    event("compatible" if not ours else "incompatible")
    assert Counter(item.kind.lower() for item in ours) == Counter(kind.value for kind in theirs.incompatibilities)
    assert (not ours) == (theirs.compatibility.value == "compatible")
