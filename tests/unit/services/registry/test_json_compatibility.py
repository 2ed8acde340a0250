"""Confluent's rules for JSON Schemas: one case for each change, and what they promise, checked with a real validator.

`JSON_PAIRS=20000` checks as many generated pairs; the suite checks 150.
"""

import json
import os
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from barnabas.services.registry.formats import incompatibilities, json_changes, json_text, parse
from barnabas.services.registry.formats.json_compatibility import compare, flatten
from barnabas.services.registry.formats.json_model import Document

MODERN = "https://json-schema.org/draft/2020-12/schema"
INT, STRING, TEXT_3 = {"type": "integer"}, {"type": "string"}, {"type": "string", "maxLength": 3}


def obj(properties: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", **({"properties": properties} if properties is not None else {}), **more}


def arr(**more: Any) -> dict[str, Any]:
    return {"type": "array", **more}


def modern(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": MODERN, **schema}


def bound(word: str, kind: str, name: str, path: str = "#/") -> list[tuple[Any, Any, str]]:
    """The four changes of a bound."""
    without, low, high = {"type": kind}, {"type": kind, word: 2}, {"type": kind, word: 4}
    return [
        (without, low, f"{name}_ADDED {path}{word}"),
        (low, without, f"{name}_REMOVED {path}{word}"),
        (low, high, f"{name}_INCREASED {path}{word}"),
        (high, low, f"{name}_DECREASED {path}{word}"),
    ]


#: Before, after, and what changed.
RULES: list[tuple[Any, Any, str]] = [
    ({"$id": "http://x/a"}, {"$id": "http://x/b"}, "ID_CHANGED #/"),
    ({"title": "a"}, {"title": "b"}, "TITLE_CHANGED #/"),
    ({"description": "a"}, {"description": "b"}, "DESCRIPTION_CHANGED #/"),
    ({"default": 1}, {"default": 2}, "DEFAULT_CHANGED #/"),
    (arr(), arr(items=INT), "SCHEMA_ADDED #/items"),
    (arr(items=INT), arr(), "SCHEMA_REMOVED #/items"),
    (INT, STRING, "TYPE_CHANGED #/"),
    (INT, {"type": "number"}, "TYPE_EXTENDED #/"),
    ({"type": "number"}, INT, "TYPE_NARROWED #/"),
    *bound("maxLength", "string", "MAX_LENGTH"),
    *bound("minLength", "string", "MIN_LENGTH"),
    (STRING, {**STRING, "pattern": "a"}, "PATTERN_ADDED #/pattern"),
    ({**STRING, "pattern": "a"}, STRING, "PATTERN_REMOVED #/pattern"),
    ({**STRING, "pattern": "a"}, {**STRING, "pattern": "b"}, "PATTERN_CHANGED #/pattern"),
    *bound("maximum", "number", "MAXIMUM"),
    *bound("minimum", "number", "MINIMUM"),
    *bound("exclusiveMaximum", "number", "EXCLUSIVE_MAXIMUM"),
    *bound("exclusiveMinimum", "number", "EXCLUSIVE_MINIMUM"),
    (INT, {**INT, "multipleOf": 2}, "MULTIPLE_OF_ADDED #/multipleOf"),
    ({**INT, "multipleOf": 2}, INT, "MULTIPLE_OF_REMOVED #/multipleOf"),
    ({**INT, "multipleOf": 0.5}, {**INT, "multipleOf": 10}, "MULTIPLE_OF_EXPANDED #/multipleOf"),
    ({**INT, "multipleOf": 10}, {**INT, "multipleOf": 0.5}, "MULTIPLE_OF_REDUCED #/multipleOf"),
    ({**INT, "multipleOf": 2}, {**INT, "multipleOf": 3}, "MULTIPLE_OF_CHANGED #/multipleOf"),
    (obj({"a": INT}), obj({"a": INT}, required=["a"]), "REQUIRED_ATTRIBUTE_ADDED #/required/a"),
    (obj({"a": INT}, required=["a"]), obj({"a": INT}), "REQUIRED_ATTRIBUTE_REMOVED #/required/a"),
    (
        obj({"a": {**INT, "default": 1}}),
        obj({"a": {**INT, "default": 1}}, required=["a"]),
        "REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED #/required/a",
    ),
    *bound("maxProperties", "object", "MAX_PROPERTIES"),
    *bound("minProperties", "object", "MIN_PROPERTIES"),
    (obj(additionalProperties=False), obj(), "ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"),
    (obj(), obj(additionalProperties=False), "ADDITIONAL_PROPERTIES_REMOVED #/additionalProperties"),
    (obj(), obj(additionalProperties=INT), "ADDITIONAL_PROPERTIES_NARROWED #/additionalProperties"),
    (obj(additionalProperties=INT), obj(), "ADDITIONAL_PROPERTIES_EXTENDED #/additionalProperties"),
    (
        modern(obj(unevaluatedProperties=False)),
        modern(obj()),
        "UNEVALUATED_PROPERTIES_ADDED #/unevaluatedProperties",
    ),
    (
        modern(obj()),
        modern(obj(unevaluatedProperties=False)),
        "UNEVALUATED_PROPERTIES_REMOVED #/unevaluatedProperties",
    ),
    (
        modern(obj(unevaluatedProperties=INT)),
        modern(obj(unevaluatedProperties=True)),
        "UNEVALUATED_PROPERTIES_EXTENDED #/unevaluatedProperties",
    ),
    (
        modern(obj(unevaluatedProperties=True)),
        modern(obj(unevaluatedProperties=INT)),
        "UNEVALUATED_PROPERTIES_NARROWED #/unevaluatedProperties",
    ),
    (obj(), obj(dependencies={"a": ["b"]}), "DEPENDENCY_ARRAY_ADDED #/dependencies/a"),
    (obj(dependencies={"a": ["b"]}), obj(), "DEPENDENCY_ARRAY_REMOVED #/dependencies/a"),
    (obj(dependencies={"a": ["b"]}), obj(dependencies={"a": ["b", "c"]}), "DEPENDENCY_ARRAY_EXTENDED #/dependencies/a"),
    (obj(dependencies={"a": ["b", "c"]}), obj(dependencies={"a": ["b"]}), "DEPENDENCY_ARRAY_NARROWED #/dependencies/a"),
    (
        modern(obj(dependentRequired={"a": ["b"]})),
        modern(obj(dependentRequired={"a": ["c"]})),
        "DEPENDENCY_ARRAY_CHANGED #/dependencies/a",
    ),
    (obj(), obj(dependencies={"a": obj()}), "DEPENDENCY_SCHEMA_ADDED #/dependencies/a"),
    (
        modern(obj(dependentSchemas={"a": obj()})),
        modern(obj()),
        "DEPENDENCY_SCHEMA_REMOVED #/dependencies/a",
    ),
    (
        obj(),
        obj({"a": INT}, required=["a"]),
        "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a",
    ),
    (
        obj(),
        obj({"a": {**INT, "default": 1}}, required=["a"]),
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a",
    ),
    (obj(), obj({"a": INT}), "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a"),
    (obj(), obj({"a": {}}), "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a"),
    (
        obj(additionalProperties=False),
        obj({"a": INT}, additionalProperties=False, required=["a"]),
        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
    ),
    (
        obj(additionalProperties=False),
        obj({"a": {**INT, "default": 1}}, additionalProperties=False, required=["a"]),
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
    ),
    (
        obj(additionalProperties=False),
        obj({"a": INT}, additionalProperties=False),
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
    ),
    (obj({"a": INT}), obj(), "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL #/properties/a"),
    (
        obj({"a": False}, additionalProperties=False),
        obj(additionalProperties=False),
        "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/a",
    ),
    (
        obj({"a": INT}, additionalProperties=False),
        obj(additionalProperties=False),
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/a",
    ),
    (
        obj({"a": TEXT_3}, additionalProperties=STRING),
        obj(additionalProperties=STRING),
        "MAX_LENGTH_REMOVED #/properties/a/maxLength; "
        "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/a",
    ),
    (
        obj({"a": INT}, patternProperties={"^a": STRING}),
        obj(patternProperties={"^a": STRING}),
        "TYPE_CHANGED #/properties/a; PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/a",
    ),
    (
        obj(additionalProperties=STRING),
        obj({"a": STRING}, additionalProperties=STRING),
        "PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/a; "
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
    ),
    (
        obj(additionalProperties=STRING),
        obj({"a": TEXT_3}, additionalProperties=STRING),
        "MAX_LENGTH_ADDED #/properties/a/maxLength; "
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/a; "
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
    ),
    *bound("maxItems", "array", "MAX_ITEMS"),
    *bound("minItems", "array", "MIN_ITEMS"),
    *((modern(before), modern(after), said) for before, after, said in bound("maxContains", "array", "MAX_CONTAINS")),
    *((modern(before), modern(after), said) for before, after, said in bound("minContains", "array", "MIN_CONTAINS")),
    (arr(), arr(uniqueItems=True), "UNIQUE_ITEMS_ADDED #/uniqueItems"),
    (arr(uniqueItems=True), arr(), "UNIQUE_ITEMS_REMOVED #/uniqueItems"),
    (
        arr(items=[INT], additionalItems=False),
        arr(items=[INT]),
        "ADDITIONAL_ITEMS_ADDED #/additionalItems",
    ),
    (modern(arr(prefixItems=[INT])), modern(arr(prefixItems=[INT], items=False)), "ADDITIONAL_ITEMS_REMOVED #/additionalItems"),
    (arr(items=[INT], additionalItems=INT), arr(items=[INT]), "ADDITIONAL_ITEMS_EXTENDED #/additionalItems"),
    (arr(items=[INT]), arr(items=[INT], additionalItems=INT), "ADDITIONAL_ITEMS_NARROWED #/additionalItems"),
    (modern(arr(unevaluatedItems=False)), modern(arr()), "UNEVALUATED_ITEMS_ADDED #/unevaluatedItems"),
    (modern(arr()), modern(arr(unevaluatedItems=False)), "UNEVALUATED_ITEMS_REMOVED #/unevaluatedItems"),
    (modern(arr(unevaluatedItems=INT)), modern(arr()), "UNEVALUATED_ITEMS_EXTENDED #/unevaluatedItems"),
    (modern(arr()), modern(arr(unevaluatedItems=INT)), "UNEVALUATED_ITEMS_NARROWED #/unevaluatedItems"),
    (arr(items=[INT]), arr(items=[INT, INT]), "ITEM_ADDED_TO_OPEN_CONTENT_MODEL #/items/1"),
    (arr(items=[INT]), arr(items=[INT, {}]), "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL #/items/1"),
    (
        arr(items=[INT], additionalItems=False),
        arr(items=[INT, INT], additionalItems=False),
        "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL #/items/1",
    ),
    (arr(items=[INT, INT]), arr(items=[INT]), "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL #/items/1"),
    (
        arr(items=[INT, False], additionalItems=False),
        arr(items=[INT], additionalItems=False),
        "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL #/items/1",
    ),
    (
        arr(items=[INT, INT], additionalItems=False),
        arr(items=[INT], additionalItems=False),
        "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL #/items/1",
    ),
    (
        arr(items=[INT, STRING], additionalItems=STRING),
        arr(items=[INT], additionalItems=STRING),
        "ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    (
        arr(items=[INT, INT], additionalItems=STRING),
        arr(items=[INT], additionalItems=STRING),
        "TYPE_CHANGED #/items/1; ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    (
        arr(items=[INT], additionalItems=STRING),
        arr(items=[INT, STRING], additionalItems=STRING),
        "ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    (
        arr(items=[INT], additionalItems=STRING),
        arr(items=[INT, INT], additionalItems=STRING),
        "TYPE_CHANGED #/items/1; ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1",
    ),
    ({"enum": ["a"]}, {"enum": ["b", "a"]}, "ENUM_ARRAY_EXTENDED #/enum"),
    ({"enum": ["b", "a"]}, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED #/enum"),
    ({"enum": ["a"]}, {"enum": ["b"]}, "ENUM_ARRAY_CHANGED #/enum"),
    ({"const": "a"}, {"const": "b"}, "ENUM_ARRAY_CHANGED #/const"),
    ({"oneOf": [INT, STRING]}, {"anyOf": [INT, STRING]}, "COMBINED_TYPE_EXTENDED #/"),
    ({"anyOf": [INT, STRING]}, {"allOf": [INT, STRING]}, "COMBINED_TYPE_CHANGED #/"),
    ({"allOf": [INT]}, {"allOf": [INT, {"enum": [1]}]}, "PRODUCT_TYPE_EXTENDED #/"),
    ({"allOf": [INT, {"enum": [1]}]}, {"allOf": [INT]}, "PRODUCT_TYPE_NARROWED #/"),
    ({"allOf": [INT, {"enum": [1]}]}, INT, "PRODUCT_TYPE_NARROWED #/"),
    ({"anyOf": [INT]}, {"anyOf": [INT, STRING]}, "SUM_TYPE_EXTENDED #/"),
    (INT, {"oneOf": [STRING, INT]}, "SUM_TYPE_EXTENDED #/"),
    (INT, {"type": ["integer", "null"]}, "SUM_TYPE_EXTENDED #/"),
    ({"anyOf": [INT, STRING]}, {"anyOf": [INT]}, "SUM_TYPE_NARROWED #/"),
    ({"anyOf": [INT, STRING]}, {"anyOf": [INT, TEXT_3]}, "COMBINED_TYPE_SUBSCHEMAS_CHANGED #/"),
    ({"not": STRING}, {"not": TEXT_3}, "NOT_TYPE_NARROWED #/not"),
    ({"not": TEXT_3}, {"not": STRING}, "NOT_TYPE_EXTENDED #/not"),
]  # fmt: skip

CHANGES = {name for _, _, said in RULES for name in (part.split()[0] for part in said.split("; "))}


def document(schema: Any) -> Document:
    return Document(json_text.loads(json.dumps(schema), decimals=True), {})


def changes(before: Any, after: Any) -> list[str]:
    return [f"{name} {path}" for name, path in flatten(compare(document(before), document(after)))]


def why(before: Any, after: Any, **more: Any) -> list[str]:
    reader, writer = (parse("JSON", json.dumps(schema)) for schema in (after, before))
    return incompatibilities(reader, writer, **more)


@pytest.mark.parametrize(("before", "after", "said"), RULES, ids=[said for _, _, said in RULES])
def test_change_is_reported(before: Any, after: Any, said: str) -> None:
    assert changes(before, after) == said.split("; ")


@pytest.mark.parametrize(("before", "after", "said"), RULES, ids=[said for _, _, said in RULES])
def test_change_breaks_readers_unless_the_table_says_not(before: Any, after: Any, said: str) -> None:
    names = {part.split()[0] for part in said.split("; ")}
    for lenient, compatible in ((False, json_changes.COMPATIBLE), (True, json_changes.COMPATIBLE_LENIENT)):
        reasons = why(before, after, lenient=lenient)
        assert len(reasons) == len(names - compatible), reasons
        for name in names - compatible:
            assert any(f'{{errorType:"{name}", description:"' in reason for reason in reasons)


def test_every_change_has_its_case() -> None:
    assert (json_changes.COMPATIBLE_LENIENT | json_changes._WORDS_BY_CHANGE.keys()) - CHANGES == set()


def test_message_is_confluents() -> None:
    [said] = why({"maximum": 9}, {"maximum": 8})
    assert said == (
        '{errorType:"MAXIMUM_DECREASED", description:"The value at path \'#/maximum\' in the new schema is less than its '
        "value in the old schema'}"
    )


def test_change_behind_a_recursive_reference_is_found() -> None:
    def tree(leaf: str) -> dict[str, Any]:
        node = obj({"next": {"$ref": "#/definitions/node"}, "leaf": {"$ref": "#/definitions/leaf"}})
        return {"definitions": {"node": node, "leaf": {"type": leaf}}, "oneOf": [{"$ref": "#/definitions/node"}, INT]}

    assert why(tree("string"), tree("string")) == []
    assert why(tree("string"), tree("boolean")) != []


def test_bytes_of_connect_are_of_one_type_however_written() -> None:
    assert why({"type": "string", "connect.type": "bytes"}, {"type": "number", "connect.type": "bytes"}) == []


# A change that is called compatible must keep old data valid. Confluent's rules promise that for all but these: a default
# stands for a required property that is missing, so a validator that fills none in refuses old data; a value may match two
# branches of a wider oneOf; and nothing is said of a required property that `properties` does not name.
WORDS = ("a", "b", "c")


@st.composite
def schemas(draw: st.DrawFn, base: Any = None, depth: int = 0) -> Any:
    """A schema; with `base`, one that has grown out of it by small changes."""

    def number() -> int:
        return draw(st.integers(0, 4))

    def keeps(chance: int = 4) -> bool:
        return draw(st.integers(0, chance)) > 0

    def inner(old: Any = None) -> Any:
        return draw(schemas(old, depth + 1))

    if base is not None and keeps():
        if isinstance(base, bool) or "type" not in base:
            return base
        kind = base["type"]
    else:
        kinds = ["integer", "number", "string", "boolean", "null", "enum", "true"]
        kind = draw(
            st.sampled_from(
                kinds + (["object", "object", "array", "tuple", "anyOf", "allOf", "not"] if depth < 2 else [])
            )
        )
        base = {}
    if kind == "true":
        return {}
    if kind == "enum":
        return {"enum": draw(st.lists(st.sampled_from([1, "a", None, [1]]), min_size=1, max_size=3, unique_by=str))}
    if kind in ("anyOf", "allOf"):
        return {kind: [inner() for _ in range(draw(st.integers(1, 2)))]}
    if kind == "not":
        return {"not": inner()}
    schema: dict[str, Any] = {"type": "array" if kind == "tuple" else kind}
    words = {
        "integer": ("minimum", "maximum", "multipleOf", "exclusiveMaximum"),
        "number": ("minimum", "maximum", "exclusiveMinimum"),
        "string": ("minLength", "maxLength"),
        "array": ("minItems", "maxItems"),
        "object": ("minProperties", "maxProperties"),
    }.get(schema["type"], ())
    for word in words:
        if word in base and keeps():
            schema[word] = base[word]
        elif draw(st.integers(0, 5)) == 0:
            schema[word] = number() + (word == "multipleOf")
    if schema["type"] == "array":
        if kind == "tuple" or isinstance(base.get("items"), list):
            schema["items"] = [inner(old) for old in base.get("items", [None, None])]
            if draw(st.integers(0, 2)) == 0:
                schema["additionalItems"] = draw(st.booleans())
        elif "items" in base or not keeps():
            schema["items"] = inner(base.get("items"))
    if schema["type"] == "object":
        old = base.get("properties", {})
        names = [name for name in WORDS if (keeps(6) if name in old else not keeps(3))]
        schema["properties"] = {name: inner(old.get(name)) for name in names}
        was = base.get("required", [])
        schema["required"] = [name for name in names if (keeps() if name in was else not keeps(5))]
        rest = base.get("additionalProperties") if keeps() else draw(st.sampled_from([None, False, INT]))
        if rest is not None:
            schema["additionalProperties"] = rest
    return schema


def instances(schema: Any) -> st.SearchStrategy[Any]:
    """Values that have a chance to be of a schema; whether they are is for the validator to say."""
    if isinstance(schema, bool) or not schema:
        return st.sampled_from([None, 1, "a", [], {}])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for word in ("anyOf", "allOf"):
        if word in schema:
            return st.one_of([instances(branch) for branch in schema[word]])
    if "not" in schema:
        return st.sampled_from([None, 0, 3, "", "abcd", [], [1], {}, {"a": 1}, True])
    kind = schema["type"]
    if kind == "object":
        properties = {name: instances(inner) for name, inner in schema["properties"].items()}
        required = {name: properties.pop(name) for name in schema["required"]}
        extra = st.dictionaries(st.sampled_from(WORDS), st.sampled_from([1, "x"]), max_size=1)
        known = st.fixed_dictionaries(required, optional=properties)
        return st.tuples(extra, known).map(lambda both: {**both[0], **both[1]})
    if kind == "array":
        items = schema.get("items", {})
        if isinstance(items, list):
            return st.tuples(*(instances(item) for item in items)).map(list) | st.just([])
        return st.lists(instances(items), max_size=4)
    return {
        "integer": st.integers(-1, 6),
        "number": st.integers(-2, 12).map(lambda half: half / 2),
        "string": st.sampled_from(["", "a", "ab", "abc", "abcd", "abcde"]),
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


@settings(
    max_examples=int(os.environ.get("JSON_PAIRS", "150")),
    deadline=None,
    derandomize="JSON_PAIRS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_compatible_change_keeps_old_data_valid(data: st.DataObject) -> None:
    before = data.draw(schemas(), "before")
    after = data.draw(schemas(before), "after")
    if why(before, after):
        event("incompatible")
        return
    old, new = (jsonschema_rs.Draft7Validator(schema) for schema in (before, after))
    read = 0
    for value in data.draw(st.lists(instances(before), max_size=6), "values"):
        if old.is_valid(value):
            read += 1
            assert new.is_valid(value), (before, after, value)
    event("compatible, with data" if read else "compatible")
