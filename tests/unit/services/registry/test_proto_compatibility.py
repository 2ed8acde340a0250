"""Confluent's rules for Protobuf schemas: one case for each change, and what they promise, checked with a real decoder.

`PROTO_PAIRS=20000` checks as many generated pairs; the suite checks 150.
"""

import base64
import os
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from barnabas.services.registry.formats import incompatibilities, parse, proto_compatibility
from barnabas.services.registry.formats.proto_compatibility import compare, flatten
from barnabas.services.registry.formats.protobuf import ProtobufSchema

PROTO3 = 'syntax = "proto3"; '
ENUM = "enum E { Z = 0; A = 1; } "


def msg(body: str, name: str = "M") -> str:
    return f"message {name} {{ {body} }} "


def schema(text: str, references: dict[str, str] | None = None) -> ProtobufSchema:
    parsed = parse("PROTOBUF", text if "syntax" in text else PROTO3 + text, references)
    assert isinstance(parsed, ProtobufSchema)
    return parsed


#: Before, after, and what changed. proto3, unless it says otherwise.
RULES = [
    ("package a;" + msg(""), "package b;" + msg(""), "PACKAGE_CHANGED #/"),
    (msg(""), msg("") + msg("", "N"), "MESSAGE_ADDED #/N"),
    (msg("") + msg("", "N"), msg(""), "MESSAGE_REMOVED #/N"),
    (msg(msg("", "N")), msg(""), "MESSAGE_REMOVED #/M/N"),
    (msg("") + msg("", "N"), msg("", "N") + msg(""), "MESSAGE_MOVED #/M; MESSAGE_MOVED #/N"),
    (msg(""), msg("") + ENUM, "ENUM_ADDED #/E"),
    (msg("") + ENUM, msg(""), "ENUM_REMOVED #/E"),
    (ENUM, "enum E { Z = 0; A = 1; B = 2; }", "ENUM_CONST_ADDED #/E/2"),
    (ENUM, "enum E { Z = 0; C = 1; }", "ENUM_CONST_CHANGED #/E/1"),
    (ENUM, "enum E { Z = 0; }", "ENUM_CONST_REMOVED #/E/1"),
    (msg(""), msg("int32 a = 1;"), "FIELD_ADDED #/M/1"),
    (msg("int32 a = 1;"), msg(""), "FIELD_REMOVED #/M/1"),
    (msg("int32 a = 1;"), msg("int32 b = 1;"), "FIELD_NAME_CHANGED #/M/1"),
    (msg("int32 a = 1;"), msg("N a = 1;") + msg("", "N"), "FIELD_KIND_CHANGED #/M/1; MESSAGE_ADDED #/N"),
    (msg("map<string, int32> a = 1;"), msg("string a = 1;"), "FIELD_KIND_CHANGED #/M/1"),
    (msg("int32 a = 1;"), msg("sint32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
    (msg("fixed32 a = 1;"), msg("fixed64 a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
    (msg("float a = 1;"), msg("double a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
    (msg("map<string, int32> a = 1;"), msg("map<string, string> a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
    (
        msg("N a = 1;") + msg("", "N") + msg("", "O"),
        msg("O a = 1;") + msg("", "N") + msg("", "O"),
        "FIELD_NAMED_TYPE_CHANGED #/M/1",
    ),
    (msg("repeated int32 a = 1;"), msg("optional int32 a = 1;"), "FIELD_NUMERIC_LABEL_CHANGED #/M/1"),
    (msg("repeated bytes a = 1;"), msg("optional string a = 1;"), "FIELD_STRING_OR_BYTES_LABEL_CHANGED #/M/1"),
    ('syntax = "proto2";' + msg(""), 'syntax = "proto2";' + msg("required int32 a = 1;"), "REQUIRED_FIELD_ADDED #/M/1"),
    (
        'syntax = "proto2";' + msg("required int32 a = 1;"),
        'syntax = "proto2";' + msg(""),
        "REQUIRED_FIELD_REMOVED #/M/1",
    ),
    (msg(""), msg("oneof o { int32 a = 1; }"), "ONEOF_ADDED #/M/o; ONEOF_FIELD_ADDED #/M/o/1"),
    (msg("oneof o { int32 a = 1; }"), msg(""), "ONEOF_REMOVED #/M/o"),
    (
        msg("oneof o { int32 a = 1; int32 b = 2; }"),
        msg("int32 a = 1;"),
        "ONEOF_REMOVED #/M/o; ONEOF_FIELD_MOVED_TO_TOP_LEVEL #/M/1; ONEOF_FIELD_REMOVED #/M/o/2",
    ),
    (
        msg("oneof o { int32 a = 1; int32 b = 2; }"),
        msg("oneof o { int32 a = 1; }"),
        "ONEOF_FIELD_REMOVED #/M/o/2",
    ),
    (
        msg("int32 a = 1; int32 b = 2;"),
        msg("oneof o { int32 a = 1; int32 b = 2; }"),
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o; ONEOF_ADDED #/M/o",
    ),
    (
        msg("int32 a = 1; oneof o { int32 b = 2; }"),
        msg("oneof o { int32 a = 1; int32 b = 2; }"),
        "FIELD_MOVED_TO_EXISTING_ONEOF #/M/o",
    ),
    (msg("int32 a = 1;"), msg("oneof o { sint32 a = 1; }"), "ONEOF_ADDED #/M/o; FIELD_SCALAR_KIND_CHANGED #/M/o/1"),
]

#: Insignificant changes.
SAME = [
    (msg("int32 a = 1;"), msg("int64 a = 1;")),
    (msg("bool a = 1;"), msg("uint32 a = 1;")),
    (msg("E a = 1;") + ENUM, msg("int32 a = 1;") + ENUM),
    (msg("sint32 a = 1;"), msg("sint64 a = 1;")),
    (msg("fixed32 a = 1;"), msg("sfixed32 a = 1;")),
    (msg("fixed64 a = 1;"), msg("sfixed64 a = 1;")),
    (msg("string a = 1;"), msg("bytes a = 1;")),
    (msg("M a = 1;"), msg(".M a = 1;")),
    (msg("reserved 4; int32 a = 1 [deprecated = true];"), msg("int32 a = 1;")),
    (msg("int32 a = 1; string b = 2;"), msg("string b = 2; int32 a = 1;")),
]


def changes(before: ProtobufSchema, after: ProtobufSchema) -> list[str]:
    found = flatten(compare(before._file, before._names, after._file, after._names))
    return [f"{name} {path}" for name, path in found]


@pytest.mark.parametrize(("before", "after", "said"), RULES, ids=[said for _, _, said in RULES])
def test_change_is_reported_and_breaks_readers_unless_the_table_says_not(before: str, after: str, said: str) -> None:
    assert changes(schema(before), schema(after)) == said.split("; ")
    reasons = incompatibilities(schema(after), schema(before))
    broken = [part.split()[0] for part in said.split("; ") if part.split()[0] not in proto_compatibility.COMPATIBLE]
    assert [reason.split('"')[1] for reason in reasons] == broken
    assert all('description:""' not in reason for reason in reasons)


@pytest.mark.parametrize(("before", "after"), SAME)
def test_insignificant_change_is_not_reported(before: str, after: str) -> None:
    assert changes(schema(before), schema(after)) == []


def test_every_change_has_its_case() -> None:
    cases = {part.split()[0] for _, _, said in RULES for part in said.split("; ")}
    assert (proto_compatibility.COMPATIBLE | proto_compatibility._WORDS.keys()) - cases == set()


def test_message_is_confluents() -> None:
    [said] = incompatibilities(schema(msg("sint32 a = 1;")), schema(msg("int32 a = 1;")))
    assert said == (
        '{errorType:"FIELD_SCALAR_KIND_CHANGED", description:"The kind of a SCALAR field at path \'#/M/1\' in the new '
        'schema does not match its kind in the old schema"}'
    )


def test_change_within_an_imported_type_is_found_where_it_is_used() -> None:
    def using(field: str) -> ProtobufSchema:
        imported = {"n.proto": PROTO3 + "package p;" + msg(f"{field} N again = 2;", "N")}
        return schema(PROTO3 + 'import "n.proto";' + msg("p.N a = 1; repeated p.N b = 2;"), imported)

    assert changes(using("int32 x = 1;"), using("int64 x = 1;")) == []
    assert changes(using("int32 x = 1;"), using("string x = 1;")) == [
        "FIELD_SCALAR_KIND_CHANGED #/N/1",
        "FIELD_NAMED_TYPE_CHANGED #/M/1",
        "FIELD_SCALAR_KIND_CHANGED #/N/1",
        "FIELD_NAMED_TYPE_CHANGED #/M/2",
    ]


def test_type_that_moves_to_an_import_stays_compatible() -> None:
    before = schema("package p;" + msg("N a = 1;") + msg("int32 x = 1;", "N"))
    after = schema(
        'package p; import "n.proto";' + msg("N a = 1;"), {"n.proto": PROTO3 + "package p;" + msg("int32 x = 1;", "N")}
    )
    assert [reason for reason in incompatibilities(after, before) if "MESSAGE_REMOVED" not in reason] == []


FIELD_TYPES = (
    *("int32", "int64", "uint32", "bool", "sint32", "sint64", "fixed32", "sfixed32", "fixed64"),
    *("float", "double", "string", "bytes", "N", "E", "map<string, int32>", "map<int32, N>"),
)


@st.composite
def messages(draw: st.DrawFn, base: dict[int, tuple[str, str, str | None]] | None = None) -> Any:
    """Fields by their numbers: label, type and oneof. With `base`, ones that have grown out of it."""
    fields: dict[int, tuple[str, str, str | None]] = {}
    for tag in range(1, 7):
        if base is not None and tag in base and draw(st.integers(0, 9)) > 1:
            fields[tag] = base[tag]
        elif draw(st.booleans()):
            kind = draw(st.sampled_from(FIELD_TYPES))
            oneof = draw(st.sampled_from([None, None, None, "o", "p"])) if "map" not in kind else None
            label = "" if oneof or "map" in kind else draw(st.sampled_from(["", "", "repeated "]))
            fields[tag] = (label, kind, oneof)
    return fields


def text_of(fields: dict[int, tuple[str, str, str | None]]) -> str:
    def body(oneof: str | None) -> str:
        return "".join(f"{label}{kind} f{tag} = {tag}; " for tag, (label, kind, of) in fields.items() if of == oneof)

    oneofs = "".join(f"oneof {name} {{ {body(name)} }} " for name in ("o", "p") if body(name))
    return PROTO3 + ENUM + msg("int32 x = 1;", "N") + msg(body(None) + oneofs)


def message_class(parsed: ProtobufSchema) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(base64.b64decode(parsed.formatted("serialized")))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))


def fill(message: Any, tag: int, label: str, kind: str, number: int) -> None:
    name = f"f{tag}"
    if kind.startswith("map<"):
        entries = getattr(message, name)
        if kind.endswith("int32>"):
            entries["k"] = number
        else:
            entries[number].x = number
    elif kind == "N":
        (getattr(message, name).add() if label else getattr(message, name)).x = number
    else:
        value: Any = {"string": "t", "bytes": b"t", "bool": True, "E": 1, "float": 0.5, "double": 0.5}.get(kind, number)
        if label:
            getattr(message, name).append(value)
        else:
            setattr(message, name, value)


@settings(
    max_examples=int(os.environ.get("PROTO_PAIRS", "150")),
    deadline=None,
    derandomize="PROTO_PAIRS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_compatible_change_reads_old_data(data: st.DataObject) -> None:
    before = data.draw(messages(), "before")
    after = data.draw(messages(before), "after")
    old, new = schema(text_of(before)), schema(text_of(after))
    if incompatibilities(new, old):
        event("incompatible")
        return
    event("compatible")
    written = message_class(old)()
    for tag, (label, kind, _) in before.items():
        if data.draw(st.booleans()):
            fill(written, tag, label, kind, data.draw(st.integers(1, 5)))
    read = message_class(new).FromString(written.SerializeToString())
    for tag, (label, kind, oneof) in before.items():
        if tag in after and after[tag][:2] == (label, kind):
            if oneof is None and not label and kind == "N":
                assert read.HasField(f"f{tag}") == written.HasField(f"f{tag}")
            assert str(getattr(read, f"f{tag}")) == str(getattr(written, f"f{tag}")), (before, after)


def test_descriptors_of_the_property_are_valid() -> None:
    parsed = schema(text_of({1: ("", "map<int32, N>", None), 2: ("", "E", "o")}))
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(parsed.formatted("serialized")))
    assert [message.name for message in file.message_type] == ["N", "M"]
