"""Schemas with pieces cut out, doubled and exchanged: refused with a SchemaError, or taken and then consistent.

`BROKEN_SCHEMAS=20000` tries as many of each format; the suite tries a few hundred.
"""

import os
import random
import re

import pytest

from barnabas.services.registry.formats import SchemaError, incompatibilities, parse

COUNT = int(os.environ.get("BROKEN_SCHEMAS", "300"))
SAMPLES = {
    "AVRO": """{"type": "record", "name": "a.R", "doc": "d", "aliases": ["S", "q.T"], "p": {"b": 1, "a": 2}, "fields": [
        {"name": "f", "type": "int", "default": 0}, {"name": "u", "type": ["null", "R"], "default": null, "order": "ignore"},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2, "precision": 4}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}},
        {"name": "m", "type": {"type": "map", "values": {"type": "fixed", "name": "F", "size": 3}}, "default": {}}]}""",
    "JSON": """{"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://x/y", "type": "object",
        "definitions": {"n": {"type": ["string", "null"], "pattern": "^a", "maxLength": 3}}, "required": ["a"],
        "properties": {"a": {"$ref": "#/definitions/n"}, "b": {"oneOf": [{"type": "integer", "minimum": 1.5}, {"enum": [1]}]},
        "c": {"type": "array", "items": [{"const": 1}], "additionalItems": false}, "d": {"not": {"allOf": [true]}}},
        "patternProperties": {"^x": {"if": {}, "then": {}}}, "additionalProperties": {"default": 1},
        "dependencies": {"a": ["b"], "b": {"minProperties": 1}}}""",
    "PROTOBUF": """syntax = "proto3"; package a.b; import "google/protobuf/timestamp.proto"; option java_package = "x";
        enum E { option allow_alias = true; Z = 0; Y = 0 [deprecated = true]; reserved 5 to 7, 9; reserved "OLD"; }
        message M { reserved 100 to max; map<string, N> things = 4; oneof pick { string s = 2; M o = 3; }
          repeated int32 n = 1 [packed = true, json_name = "nn"]; optional google.protobuf.Timestamp t = 7;
          message N { string a = 1; } .a.b.E e = 9; }
        service S { rpc Get (M) returns (stream M) { option deprecated = true; } }""",
}
STRANGE = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ";",
    "=",
    '"',
    ":",
    ",",
    "-1",
    "99999999999",
    "null",
    "true",
    "é",
    "\x00",
    "map",
    ".",
]


def broken(text: str, chance: random.Random) -> str:
    tokens = re.findall(r'"[^"]*"|\w+|\s+|.', text)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(tokens))
        tokens[at] = chance.choice(["", chance.choice(tokens), chance.choice(STRANGE), tokens[at] * 2])
    return "".join(tokens)


@pytest.mark.parametrize("kind", SAMPLES)
def test_broken_schema_is_refused_or_consistent(kind: str) -> None:
    chance = random.Random(kind)
    whole = parse(kind, SAMPLES[kind])
    taken = 0
    for _ in range(COUNT):
        text = broken(SAMPLES[kind], chance)
        for as_new in (False, True):
            try:
                schema = parse(kind, text, as_new=as_new)
            except SchemaError:
                continue
            incompatibilities(schema, whole)
            incompatibilities(whole, schema)
            if as_new:
                taken += 1
                again = parse(kind, schema.canonical())
                assert again.canonical() == schema.canonical(), text
                assert again.normalized() == schema.normalized(), text
                assert incompatibilities(schema, again) == incompatibilities(again, schema) == [], text
    assert 0 < taken < COUNT
