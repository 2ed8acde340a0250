"""The canonical and the normalized text of Avro schemas: Java's Schema.toString, and Confluent's normalized form."""

import json

import pytest

from barnabas.base.java_text import java_double
from barnabas.services.registry.formats import SchemaError, parse


def canonical(schema: object, references: dict[str, str] | None = None) -> str:
    return parse("AVRO", schema if isinstance(schema, str) else json.dumps(schema), references).canonical()


def normalized(schema: object) -> str:
    return parse("AVRO", json.dumps(schema)).normalized()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('"string"', '"string"'),
        ('{"type": "string"}', '"string"'),
        ('{"type":"int","logicalType":"date"}', '{"type":"int","logicalType":"date"}'),
        ('[ "null" , "long" ]', '["null","long"]'),
        ('{"items":"int","type":"array"}', '{"type":"array","items":"int"}'),
        ('{"x":1,"values":"int","type":"map"}', '{"type":"map","values":"int","x":1}'),
        ('/* why */ {"type": "long"} // so', '"long"'),
        ('{"type":"fixed","size":4,"name":"F","doc":"d"}', '{"type":"fixed","name":"F","doc":"d","size":4}'),
        (
            '{"symbols":["A","B"],"default":"A","aliases":["G"],"name":"n.E","type":"enum"}',
            '{"type":"enum","name":"E","namespace":"n","symbols":["A","B"],"default":"A","aliases":["G"]}',
        ),
        (
            '{"type":"error","name":"R","fields":[]}',
            '{"type":"error","name":"R","fields":[]}',
        ),
    ],
)
def test_canonical_text_has_java_order_of_keys(schema: str, text: str) -> None:
    assert canonical(schema) == text


def test_field_keeps_default_order_aliases_and_properties_in_java_order() -> None:
    field = {"zz": 1e10, "aliases": ["g"], "order": "DESCENDING", "default": "é\u0001\n", "doc": "", "type": "string"}
    written = canonical({"type": "record", "name": "R", "fields": [{**field, "name": "f"}]})
    assert written == (
        '{"type":"record","name":"R","fields":[{"name":"f","type":"string","doc":"","default":"é\\u0001\\n",'
        '"order":"descending","aliases":["g"],"zz":1.0E10}]}'
    )


def test_inner_type_has_a_namespace_only_where_it_differs() -> None:
    inner = {"type": "fixed", "name": "F", "size": 1}
    fields = [
        {"name": "a", "type": inner},
        {"name": "b", "type": "F"},
        {"name": "c", "type": {**inner, "name": "G", "namespace": ""}},
        {"name": "d", "type": "other.H"},
        {"name": "e", "type": {**inner, "name": "other.H"}},
    ]
    assert canonical({"type": "record", "name": "n.R", "fields": fields}) == (
        '{"type":"record","name":"R","namespace":"n","fields":['
        '{"name":"a","type":{"type":"fixed","name":"F","size":1}},{"name":"b","type":"F"},'
        '{"name":"c","type":{"type":"fixed","name":"G","namespace":"","size":1}},'
        '{"name":"d","type":{"type":"fixed","name":"H","namespace":"other","size":1}},{"name":"e","type":"other.H"}]}'
    )


def test_referenced_type_is_written_by_name_but_types_within_it_in_full() -> None:
    inner = '{"type":"record","name":"Outer","fields":[{"name":"x","type":{"type":"fixed","name":"F","size":2}}]}'
    schema = '{"type":"record","name":"R","fields":[{"name":"o","type":"Outer"},{"name":"f","type":"F"}]}'
    assert canonical(schema, {"Outer": inner}) == (
        '{"type":"record","name":"R","fields":[{"name":"o","type":"Outer"},'
        '{"name":"f","type":{"type":"fixed","name":"F","size":2}}]}'
    )
    assert parse("AVRO", schema, {"Outer": inner}).formatted("resolved") == (
        f'{{"type":"record","name":"R","fields":[{{"name":"o","type":{inner}}},{{"name":"f","type":"F"}}]}}'
    )


def test_normalized_text_orders_properties_and_drops_insignificant_ones() -> None:
    decimal = {"type": "bytes", "zz": 1, "scale": 2, "precision": 4, "logicalType": "decimal", "aa": {"d": 1, "c": 2}}
    field = {"name": "f", "type": decimal, "order": "ascending", "y": 1, "x": 2, "aliases": ["q", "p"]}
    double = {"name": "g", "type": "double", "default": 0}
    schema = {"type": "record", "doc": "", "aliases": ["Z", "A"], "name": "R", "fields": [field, double]}
    assert normalized(schema) == (
        '{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"bytes","logicalType":"decimal",'
        '"precision":4,"scale":2,"aa":{"c":2,"d":1},"zz":1},"aliases":["p","q"],"x":2,"y":1},'
        '{"name":"g","type":"double","default":0.0}],"aliases":["A","Z"]}'
    )


def test_logical_type_that_does_not_fit_is_a_property_like_any_other() -> None:
    assert (
        normalized({"type": "string", "logicalType": "date", "a": 1}) == '{"type":"string","a":1,"logicalType":"date"}'
    )


def test_normalized_text_is_its_own_normalized_text() -> None:
    schema = {"type": "record", "name": "a.R", "fields": [{"name": "f", "type": ["null", "R"], "default": None}]}
    assert normalized(json.loads(normalized(schema))) == normalized(schema)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (-123456789.125, "-1.23456789125E8"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e22, "1.0E22"),
        (2.2392369960169954e254, "2.2392369960169954E254"),
    ],
)
def test_double_is_written_as_java_does(number: float, text: str) -> None:
    assert java_double(number) == text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not JSON"),
        ("3", "not an Avro schema"),
        ('{"name":"x"}', "No type"),
        ('"unknown"', "Undefined schema: unknown"),
        ('{"type":"unknown"}', "Undefined type"),
        ('{"type":"record","fields":[]}', "No name"),
        ('{"type":"record","name":"R"}', "Record has no fields"),
        ('{"type":"record","name":"R","fields":[{"name":"f"}]}', "No field type"),
        ('{"type":"record","name":"R","fields":[{"type":"int"}]}', "No field name"),
        ('{"type":"record","name":"R","fields":[{"name":"f-g","type":"int"}]}', "Illegal character"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"int"},{"name":"f","type":"int"}]}', "Duplicate field"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"int","order":"up"}]}', "order of field f"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":"x"}]}', "Invalid default"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":2147483648}]}', "Invalid default"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"R","default":{}}]}', "Invalid default"),
        ('{"type":"record","name":"int","fields":[]}', "named after primitives"),
        ('{"type":"enum","name":"E"}', "no symbols"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "Duplicate enum symbol"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "not in the enum symbol set"),
        ('{"type":"fixed","name":"F"}', "no size"),
        ('{"type":"array"}', "no items"),
        ('["int","int"]', "Duplicate in union"),
        ('[["int"],"string"]', "Nested union"),
        ('[{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"n.F","size":1},{"type":"array","items":'
         '{"type":"fixed","name":"F","size":2}}]', "Can't redefine: F"),
        ('{"type":"string","x":"\\ud800"}', "surrogate"),
        ('{"type":"string","x":1e999}', "out of range"),
        ('{"type":"string","x":NaN}', "not JSON"),
    ],
)  # fmt: skip
def test_invalid_schema_is_refused_with_the_reason(schema: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse("AVRO", schema)


def test_stored_schema_may_be_older_than_the_checks_of_new_ones() -> None:
    text = '{"type":"record","name":"Ä","fields":[{"name":"f","type":"int","default":"x"}]}'
    with pytest.raises(SchemaError):
        parse("AVRO", text)
    assert parse("AVRO", text, as_new=False).canonical() == text
