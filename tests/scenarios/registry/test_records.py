"""The records of `_schemas`, in the published format: read, and written back byte for byte."""

import json

import pytest

from barnabas.services.registry import records, writes
from barnabas.services.registry.content import Content
from barnabas.services.registry.formats import Reference
from barnabas.services.registry.records import BadRecord, Key, SchemaVersion, key_of, schema_version_of
from barnabas.services.registry.store import Applied, Store
from barnabas.services.registry.writes import Registration

#: Keys as Confluent's and Karapace's registries write them.
KEYS = {
    b'{"keytype":"SCHEMA","subject":"orders-value","version":3,"magic":1}': Key("SCHEMA", "orders-value", 3),
    b'{"keytype":"CONFIG","subject":null,"magic":0}': Key("CONFIG"),
    b'{"keytype":"CONFIG","subject":"orders-value","magic":0}': Key("CONFIG", "orders-value"),
    b'{"keytype":"MODE","subject":null,"magic":0}': Key("MODE"),
    b'{"keytype":"MODE","subject":":.staging:","magic":0}': Key("MODE", ":.staging:"),
    b'{"keytype":"DELETE_SUBJECT","subject":"orders-value","magic":0}': Key("DELETE_SUBJECT", "orders-value"),
    b'{"keytype":"CLEAR_SUBJECT","subject":"orders-value","magic":0}': Key("CLEAR_SUBJECT", "orders-value"),
    b'{"keytype":"NOOP","magic":0}': Key("NOOP"),
    b'{"keytype":"CONTEXT","tenant":"default","context":".staging","magic":0}': Key("CONTEXT", context=".staging"),
}

#: Values of SCHEMA records, with what they say.
VALUES = {
    b'{"subject":"orders-value","version":1,"id":1,"schema":"\\"string\\"","deleted":false}': SchemaVersion(
        "orders-value", 1, 1, Content("AVRO", '"string"')
    ),
    b'{"subject":"p","version":2,"id":7,"schemaType":"PROTOBUF",'
    b'"references":[{"name":"a.proto","subject":"a","version":1}],'
    b'"schema":"syntax = \\"proto3\\";\\nimport \\"a.proto\\";\\n","deleted":true}': SchemaVersion(
        "p",
        2,
        7,
        Content("PROTOBUF", 'syntax = "proto3";\nimport "a.proto";\n', (Reference("a.proto", "a", 1),)),
        deleted=True,
    ),
    b'{"subject":"j","version":1,"id":9,"schemaType":"JSON","metadata":{"tags":{"a":["PII"]},'
    b'"properties":{"owner":"team"},"sensitive":["owner"]},"ruleSet":{"domainRules":[{"name":"r","kind":"CONDITION",'
    b'"mode":"WRITE","type":"CEL","expr":"size(message.a) > 1","onFailure":"DLQ","disabled":false}]},'
    b'"schema":"{}","deleted":false}': SchemaVersion(
        "j",
        1,
        9,
        Content(
            "JSON",
            "{}",
            (),
            {"tags": {"a": ["PII"]}, "properties": {"owner": "team"}, "sensitive": ["owner"]},
            {
                "domainRules": [
                    {
                        "name": "r",
                        "kind": "CONDITION",
                        "mode": "WRITE",
                        "type": "CEL",
                        "expr": "size(message.a) > 1",
                        "onFailure": "DLQ",
                        "disabled": False,
                    }
                ]
            },
        ),
    ),
    # Jackson: UTF-8 as it is, control characters in capitals.
    '{"subject":"u-é","version":1,"id":2,"schema":"\\"\\u001F\\n\\"","deleted":false}'.encode(): SchemaVersion(
        "u-é", 1, 2, Content("AVRO", '"\x1f\n"')
    ),
}


@pytest.mark.parametrize("data", KEYS)
def test_a_key_is_read_and_written_back_byte_for_byte(data: bytes) -> None:
    assert key_of(data) == KEYS[data]
    assert KEYS[data].to_bytes() == data


@pytest.mark.parametrize("data", VALUES)
def test_a_schema_is_read_and_written_back_byte_for_byte(data: bytes) -> None:
    assert schema_version_of(data) == VALUES[data]
    assert VALUES[data].to_bytes() == data


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            records.config_record(None, {"compatibilityLevel": "FULL"}),
            b'{"keytype":"CONFIG","subject":null,"magic":0}',
            b'{"compatibilityLevel":"FULL"}',
        ),
        (
            records.config_record("s", {"compatibilityLevel": "NONE"}),
            b'{"keytype":"CONFIG","subject":"s","magic":0}',
            b'{"subject":"s","compatibilityLevel":"NONE"}',
        ),
        (
            records.mode_record("s", "IMPORT"),
            b'{"keytype":"MODE","subject":"s","magic":0}',
            b'{"subject":"s","mode":"IMPORT"}',
        ),
        (
            records.delete_subject_record("s", 2),
            b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
            b'{"subject":"s","version":2}',
        ),
        (
            records.clear_subject_record("s"),
            b'{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}',
            b'{"subject":"s"}',
        ),
        (
            records.context_record(".c"),
            b'{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}',
            b'{"tenant":"default","context":".c"}',
        ),
        (records.noop_record(), b'{"keytype":"NOOP","magic":0}', None),
    ],
)
def test_other_records_have_the_published_bytes(record: records.Record, key: bytes, value: bytes | None) -> None:
    assert (record.key, record.value) == (key, value)


def test_records_that_state_avro_and_more_than_this_version_knows_are_read() -> None:
    value = b'{"subject":"s","version":1,"id":1,"md5":"x","schemaType":"AVRO","schema":"\\"int\\"","ts":1,"offset":3}'
    assert schema_version_of(value).content == Content("AVRO", '"int"')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"keytype":"SCHEMA","version":1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":"1","magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":2}',
        b'{"keytype":"CONFIG","subject":3,"magic":0}',
    ],
)
def test_a_key_that_no_registry_writes_is_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        key_of(data)


def test_unreadable_records_are_skipped_and_the_rest_is_applied() -> None:
    store = Store()
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert store.apply(b"nonsense", b"", 0) is Applied.UNREADABLE
    assert store.apply(key, b"nonsense", 1) is Applied.UNREADABLE
    assert store.apply(b'{"keytype":"ASSOC","magic":0}', b"{}", 2) is Applied.UNREADABLE
    assert store.apply(key, b'{"subject":"s","version":1,"id":4,"schema":"\\"int\\""}', 7) is Applied.DONE
    assert (store.next_offset, store.next_id(".")) == (8, 5)


def test_the_digest_of_a_schema_is_confluents() -> None:
    """Confluent's own tests pin these."""
    schema = '{"type":"record","name":"myrecord","fields":[{"type":"string","default":null,"name":"f"}]}'
    pinned = bytes(n % 256 for n in (29, 32, -53, -71, -27, -29, 94, -105, 84, -25, -38, 23, 11, 110, 93, -37))
    assert Content("AVRO", schema).digest == pinned


def test_a_value_keeps_its_members_in_the_published_order() -> None:
    (data,) = [value for value in VALUES if b"ruleSet" in value]
    assert list(json.loads(data)) == [
        "subject", "version", "id", "schemaType", "metadata", "ruleSet", "schema", "deleted",
    ]  # fmt: skip


def test_schema_whose_members_karapace_has_sorted_is_found_again() -> None:
    """Otherwise each producer would register it again after a move, under another id."""
    store = Store()
    text = '{"fields":[{"default":1,"name":"a","type":"int"}],"name":"R","namespace":"shop","type":"record"}'
    value = json.dumps({"subject": "c-value", "version": 1, "id": 4, "schema": text, "deleted": False}).encode()
    key = b'{"keytype":"SCHEMA","subject":"c-value","version":1,"magic":1}'
    assert store.apply(key, value, 0) is Applied.DONE
    wanted = Content(
        "AVRO",
        '{"type":"record","name":"R","namespace":"shop","fields":[{"name":"a","type":"int","default":1}]}',
    )
    assert store.id_of(".", wanted) == 4
    found = writes.registered(store, Registration(subject="c-value", content=wanted))
    assert found is not None and found.version == 1
    elsewhere = writes.register(store, Registration(subject="d-value", content=wanted)).answer
    assert (elsewhere.id, elsewhere.content.text) == (4, text)
    store.apply(key, None, 1)
    assert store.id_of(".", wanted) is None
