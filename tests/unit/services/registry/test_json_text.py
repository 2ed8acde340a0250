"""JSON Schemas: canonical and normalized text, references, and what is refused."""

import json
from typing import Any

import pytest

from barnabas.services.registry.formats import SchemaError, incompatibilities, parse


def refused(schema: Any, references: dict[str, str] | None = None) -> str:
    with pytest.raises(SchemaError) as failure:
        parse("JSON", schema if isinstance(schema, str) else json.dumps(schema), references)
    return str(failure.value)


def test_canonical_text_keeps_keys_and_digits_as_they_are_written() -> None:
    text = '{ "type" : "number", "maximum":1.50, "multipleOf":1e3,\n"title":"é\\u00e9\\/" }'
    assert parse("JSON", text).canonical() == '{"type":"number","maximum":1.50,"multipleOf":1E+3,"title":"éé/"}'


def test_normalized_text_has_keys_in_order_and_arrays_as_they_are() -> None:
    text = '{"type":"object","properties":{"b":{"type":["string","null"]},"a":{}},"required":["b","a"]}'
    assert parse("JSON", text).normalized() == (
        '{"properties":{"a":{},"b":{"type":["string","null"]}},"required":["b","a"],"type":"object"}'
    )


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "number",
            "maximum": 3,
            "exclusiveMaximum": True,
        },
        {"$schema": "http://json-schema.org/draft-06/schema#", "const": 1},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$defs": {"a": {}}, "$ref": "#/$defs/a"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{}], "items": False},
        {"$schema": "http://example.com/my-own", "type": "string"},
        {"definitions": {"a": {"$id": "#here"}}, "$ref": "#here"},
        {"$id": "http://x/y.json", "definitions": {"a": {"$id": "z.json"}}, "$ref": "z.json"},
        {"definitions": {"a/b~c d": {}}, "$ref": "#/definitions/a~1b~0c%20d"},
        {"definitions": {"a": {}}, "$ref": "#/$defs/a"},
        {"$ref": "#"},
        {"$ref": "http://json-schema.org/draft-07/schema#"},
        {"type": "string", "pattern": "(?=look)ahead"},
    ],
)
def test_schema_of_every_draft_is_taken(schema: Any) -> None:
    parsed = parse("JSON", json.dumps(schema))
    assert json.loads(parsed.canonical()) == schema
    assert incompatibilities(parsed, parsed) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("[]", "object or boolean at the root"),
        ('{"type":', "not JSON"),
        ({"type": "text"}, "unknown type"),
        ({"properties": []}, "properties is an object"),
        ({"properties": {"a": 3}}, "object or a boolean"),
        ({"required": [3]}, "required lists texts"),
        ({"minLength": "a"}, "minLength is a whole number"),
        ({"maximum": "a"}, "maximum is a number"),
        ({"enum": 3}, "enum is an array"),
        ({"allOf": {}}, "allOf is an array"),
        ({"pattern": 3}, "a pattern is a text"),
        ({"uniqueItems": 3}, "uniqueItems is a boolean"),
        ({"$ref": 3}, "$ref is a text"),
        ({"$ref": "#/definitions/none"}, "not resolved"),
        ({"$ref": "http://example.com/elsewhere.json"}, "references are not downloaded"),
        ({"definitions": {"unused": {"type": "text"}}}, "unknown type"),
    ],
)
def test_invalid_schema_is_refused_with_the_reason(schema: Any, said: str) -> None:
    assert said in refused(schema)


REFERENCES = {"inner.json": '{"definitions":{"x":{"type":"string"}},"type":"integer"}'}


@pytest.mark.parametrize("base", [{}, {"$id": "http://example.com/outer.json"}])
@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_reference_to_another_schema_is_found_by_name(base: dict[str, str], draft: str) -> None:
    def outer(pointer: str, references: dict[str, str]) -> Any:
        schema = {"$schema": draft, **base, "properties": {"a": {"$ref": f"inner.json{pointer}"}}, "type": "object"}
        return parse("JSON", json.dumps(schema), references)

    assert incompatibilities(outer("", REFERENCES), outer("", REFERENCES)) == []
    [said] = incompatibilities(outer("#/definitions/x", REFERENCES), outer("", REFERENCES))
    assert "TYPE_CHANGED" in said and "#/properties/a" in said
    assert "not resolved" in refused({"$schema": draft, **base, "$ref": "other.json"}, REFERENCES)
    assert "not resolved" in refused({"$schema": draft, **base, "$ref": "inner.json#/definitions/y"}, REFERENCES)


def test_references_of_old_and_new_are_each_their_own() -> None:
    schema = '{"properties":{"a":{"$ref":"inner.json"}}}'
    changed = {"inner.json": '{"type":"string"}'}
    assert incompatibilities(parse("JSON", schema, changed), parse("JSON", schema, REFERENCES)) != []


def test_negation_finds_references_in_the_document_they_came_from() -> None:
    def schema(kind: str) -> Any:
        return parse("JSON", json.dumps({"definitions": {"a": {"type": kind}}, "not": {"$ref": "#/definitions/a"}}))

    assert incompatibilities(schema("integer"), schema("number")) == []
    assert incompatibilities(schema("number"), schema("integer")) != []


def test_stored_schema_with_a_lost_reference_is_read_and_compared_with_a_reason() -> None:
    lost = parse("JSON", '{"$ref":"gone.json"}', as_new=False)
    [said] = incompatibilities(parse("JSON", "{}"), lost)
    assert "gone.json" in said
