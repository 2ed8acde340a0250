"""Schemas made to cost: each is refused with the limit that it breaks, or read and compared at a cost that follows its length.

Nothing here takes a second unless a bound is gone. Without it most would take minutes, or all the memory.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.services.registry.formats import SchemaError, incompatibilities, limits, parse

PROTO3 = 'syntax = "proto3"; '


def chain(count: int, last: Any) -> dict[str, Any]:
    """Definitions that hold each other."""
    links = {f"d{index}": {"properties": {"p": {"$ref": f"#/definitions/d{index + 1}"}}} for index in range(count)}
    return {"definitions": {**links, f"d{count}": last}, "$ref": "#/definitions/d0"}


def record_chain(count: int, last: Any) -> list[Any]:
    """Each is defined before it is used, so the text is flat; only a reader goes deep."""
    first = {"type": "record", "name": "R0", "fields": [{"name": "f", "type": last}]}
    links = [
        {"type": "record", "name": f"R{index}", "fields": [{"name": "f", "type": f"R{index - 1}"}]}
        for index in range(1, count)
    ]
    return [first, *links]


REFUSED: dict[str, tuple[str, Callable[[], Any], str]] = {
    "megabytes": ("AVRO", lambda: '"' + "a" * limits.CHARS_MAX + '"', "1048576 is the limit"),
    "brackets": ("AVRO", lambda: "[" * 500_000, "200 deep, which is the limit"),
    "braces behind a text": ("JSON", lambda: '{"a":"\\"",' + '"not":{' * 100_000, "200 deep, which is the limit"),
    "arrays in arrays": (
        "AVRO",
        lambda: '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000,
        "200 deep, which is the limit",
    ),
    "types that nest once they are written out": (
        "AVRO",
        lambda: list(reversed(record_chain(3000, "int"))),
        "200 deep, which is the limit",
    ),
    "a record that holds itself by its defaults": (
        "AVRO",
        lambda: {"type": "record", "name": "R", "fields": [{"name": "f", "type": "R", "default": {}}]},
        "Invalid default",
    ),
    "quotes without an end": ("AVRO", lambda: '"' + '\\"' * 400_000, "not JSON"),
    "comments without an end": ("AVRO", lambda: "/*" * 400_000, "not JSON"),
    "digits": ("AVRO", lambda: '{"type":"int","x":' + "9" * 500_000 + "}", "not JSON"),
    "negations": ("JSON", lambda: '{"not":' * 100_000 + "{}" + "}" * 100_000, "200 deep, which is the limit"),
    "messages in messages": ("PROTOBUF", lambda: PROTO3 + "message A{" * 80_000, "32 deep, which is the limit"),
    "options in options": (
        "PROTOBUF",
        lambda: PROTO3 + "option (a) = " + "{a:" * 80_000,
        "32 deep, which is the limit",
    ),
    "parts of an option": (
        "PROTOBUF",
        lambda: PROTO3 + "option (a)" + ".b" * 80_000 + " = 1;",
        "parts, which is the limit",
    ),
    "parts of a name": ("PROTOBUF", lambda: PROTO3 + "package a" + ".a" * 80_000 + ";", "parts, which is the limit"),
    "a text without an end": (
        "PROTOBUF",
        lambda: PROTO3 + 'option java_package = "' + '\\"' * 300_000,
        "Could not parse",
    ),
    "junk in base64": ("PROTOBUF", lambda: "A" * 900_000, "Could not parse"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_schema_is_refused(name: str) -> None:
    kind, make, said = REFUSED[name]
    made = make()
    with pytest.raises(SchemaError, match=said):
        parse(kind, made if isinstance(made, str) else json.dumps(made))


#: Two schemas of which neither is refused, and what is said when the first is read with the second.
COMPARED: dict[str, tuple[str, Callable[[], tuple[Any, Any]], str]] = {
    "enums": (
        "AVRO",
        lambda: tuple({"type": "enum", "name": "E", "symbols": [f"{x}{i}" for i in range(10_000)]} for x in "ab"),
        "MISSING_ENUM_SYMBOLS",
    ),
    "a chain of records": (
        "AVRO",
        lambda: tuple({"type": "array", "items": record_chain(2000, last)} for last in ("int", "int")),
        "50000 steps, which is the limit",
    ),
    "unions": (
        "AVRO",
        lambda: tuple([{"type": "record", "name": f"{x}{i}", "fields": []} for i in range(3000)] for x in "ab"),
        "50000 steps, which is the limit",
    ),
    "values": (
        "JSON",
        lambda: ({"enum": list(range(10_000))}, {"enum": list(range(1, 10_001))}),
        "ENUM_ARRAY_CHANGED",
    ),
    "a chain of references": ("JSON", lambda: (chain(2000, {"type": "string"}), chain(2000, {"type": "null"})), "TYPE_CHANGED"),
    "references into a chain": (
        "JSON",
        lambda: tuple(
            {
                "definitions": {f"d{i}": {"$ref": f"#/definitions/d{i + 1}"} for i in range(3000)} | {"d3000": last},
                "properties": {f"p{i}": {"$ref": f"#/definitions/d{i}"} for i in range(3000)},
            }
            for last in ({"type": "string"}, {"type": "null"})
        ),
        "TYPE_CHANGED",
    ),
    "sums": (
        "JSON",
        lambda: tuple({"oneOf": [{"const": sign * i} for i in range(1, 2000)]} for sign in (1, -1)),
        "50000 steps, which is the limit",
    ),
    "sums of each other": (
        "JSON",
        lambda: tuple(
            {
                "definitions": {
                    f"d{i}": {"oneOf": [*({"$ref": f"#/definitions/d{j}"} for j in range(30)), {"const": [kind, i]}]}
                    for i in range(30)
                },
                "$ref": "#/definitions/d0",
            }
            for kind in "ab"
        ),
        "50000 steps, which is the limit",
    ),
    "values in products": (
        "JSON",
        lambda: tuple(
            '{"allOf":[{},' * 60 + json.dumps({"enum": list(range(first, 8000))}) + "]}" * 60 for first in (0, 1)
        ),
        "50000 steps, which is the limit",
    ),
    "patterns that backtrack": (
        "JSON",
        lambda: (
            {"properties": {"a" * 3000 + "!": {"type": "null"}}, "additionalProperties": False},
            {"patternProperties": {"^(a+)+$": {}, "((a{1,99}){1,99}){1,99}": {}}, "additionalProperties": False},
        ),
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    ),
    "patterns": (
        "JSON",
        lambda: (
            {"properties": {f"x{i}": {} for i in range(5000)}, "additionalProperties": False},
            {"patternProperties": {f"^p{i}(a|b)*$": {} for i in range(5000)}, "additionalProperties": False},
        ),
        "50000 steps, which is the limit",
    ),
    "exponents": (
        "JSON",
        lambda: ('{"multipleOf":3,"maximum":1}', '{"multipleOf":1e999999999,"maximum":1e-999999}'),
        "MULTIPLE_OF_CHANGED",
    ),
    "a reference to itself": ("JSON", lambda: ({"$ref": "#"}, {"$ref": "#"}), ""),
    "constants": (
        "PROTOBUF",
        lambda: tuple(PROTO3 + "enum E {" + "".join(f"{x}{i} = {i};" for i in range(8000)) + "}" for x in "ab"),
        "",
    ),
    "a chain of messages": (
        "PROTOBUF",
        lambda: tuple(
            PROTO3 + "".join(f"message M{i} {{ M{i + 1} f = 1; }}" for i in range(4000)) + f"message M4000 {{ {last} a = 1; }}"
            for last in ("int32", "string")
        ),
        "FIELD_SCALAR_KIND_CHANGED",
    ),
    "values of one option": ("PROTOBUF", lambda: (PROTO3 + "option (a) = {" + "x: 1 " * 30_000 + "};",) * 2, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_hostile_pair_is_compared_within_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEPS_MAX", 50_000)
    kind, make, said = COMPARED[name]
    before, after = (parse(kind, made if isinstance(made, str) else json.dumps(made)) for made in make())
    reasons = incompatibilities(after, before)
    assert len(reasons) <= limits.DIFFERENCES_MAX
    assert any(said in reason for reason in reasons) if said else reasons == []
    assert after.normalized()


def test_change_at_the_end_of_a_long_chain_of_imports_is_found() -> None:
    def using(last: str) -> Any:
        count = limits.REFERENCES_MAX - 1
        files = {
            f"f{index}.proto": f'{PROTO3} package p; import "f{index + 1}.proto"; message M{index} {{ M{index + 1} m = 1; }}'
            for index in range(count)
        }
        files[f"f{count}.proto"] = f"{PROTO3} package p; message M{count} {{ {last} a = 1; }}"
        ordered = dict(reversed(files.items()))
        return parse("PROTOBUF", PROTO3 + 'import "f0.proto"; message Top { p.M0 m = 1; }', ordered)

    reasons = incompatibilities(using("string"), using("int32"))
    assert len(reasons) == limits.REFERENCES_MAX + 1 or len(reasons) == limits.DIFFERENCES_MAX


def test_imports_in_a_circle_are_refused() -> None:
    circle = {"a.proto": PROTO3 + 'import "b.proto";', "b.proto": PROTO3 + 'import "a.proto";'}
    with pytest.raises(SchemaError, match="has not been loaded"):
        parse("PROTOBUF", PROTO3 + 'import "a.proto";', circle)


def test_more_references_than_the_limit_are_refused() -> None:
    references = {f"r{index}": "{}" for index in range(limits.REFERENCES_MAX + 1)}
    with pytest.raises(SchemaError, match="1000 is the limit"):
        parse("JSON", "{}", references)


def test_references_of_many_megabytes_are_refused() -> None:
    references = {f"r{index}": '"' + "a" * 900_000 + '"' for index in range(10)}
    with pytest.raises(SchemaError, match="with its references; 8388608 is the limit"):
        parse("JSON", "{}", references)


@pytest.mark.parametrize("number", ["1e99999999999999999999", "-1e-99999999999999999999", "0." + "1" * 5_000])
@pytest.mark.parametrize("text", ['{{"maximum": {}}}', '{{"type": "string", "minLength": {}}}', '{{"default": {}}}'])
def test_number_that_cannot_be_held_is_refused(number: str, text: str) -> None:
    with pytest.raises(SchemaError):
        parse("JSON", text.format(number))


@pytest.mark.parametrize("number", ["1e30", "1e999999999", "1.0", "100e-2"])
def test_large_whole_number_counts_characters(number: str) -> None:
    assert parse("JSON", f'{{"type":"string","minLength":{number}}}').canonical()
    with pytest.raises(SchemaError, match="whole number"):
        parse("JSON", '{"type":"string","minLength":1.5}')
