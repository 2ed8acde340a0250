"""Protobuf schemas: Confluent's canonical and normalized text, imports, descriptors, and what protoc says of it all."""

import base64
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from barnabas.services.registry.formats import SchemaError, incompatibilities, parse

OTHER = {"other.proto": 'syntax = "proto3"; package a.b; message Other { int32 i = 1; }'}
EVERYTHING = """
// A comment.
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto"; import "google/protobuf/descriptor.proto";
import public 'other.proto';
option java_package = "x.y"; option (my).sub.a = 1; option (my).sub.b = "q\\n" 'r';
/* A block
of comment. */
enum E { option allow_alias = true; Z = 0; Y = 0 [deprecated = true]; reserved 5 to 7, 9; reserved "OLD"; }
message M {
  reserved 100 to max, 50; reserved "x", "y";
  option deprecated = true;
  map<string, Inner> things = 4;
  oneof pick { string s = 2; Other o = 3; }
  repeated int32 n = 1 [packed = true, json_name = "nn"];
  optional google.protobuf.Timestamp t = 7;
  message Inner { string a = 1; enum Deep { D = 0; } Deep d = 2; };
  .a.b.E e = 9;
}
message Empty {}
extend google.protobuf.FileOptions { My my = 50000; }
message My { Sub sub = 1; repeated double list = 2; message Sub { int32 a = 1; string b = 2; int32 c = 0x3; } }
service S { rpc Get (M) returns (stream Empty) { option deprecated = true; } rpc Put (stream M) returns (Empty); }
"""
CANONICAL = """syntax = "proto3";
package a.b;

import "google/protobuf/timestamp.proto";
import "google/protobuf/descriptor.proto";
import public "other.proto";

option java_package = "x.y";
option (my).sub.a = 1;
option (my).sub.b = "q\\nr";

message M {
  reserved 100 to max, 50;
  reserved "x", "y";

  option deprecated = true;

  map<string, Inner> things = 4;
  repeated int32 n = 1 [
    packed = true,
    json_name = "nn"
  ];
  optional google.protobuf.Timestamp t = 7;
  .a.b.E e = 9;

  oneof pick {
    string s = 2;
    Other o = 3;
  }

  message Inner {
    string a = 1;
    Deep d = 2;
  \n    enum Deep {
      D = 0;
    }
  }
}
message Empty {}
message My {
  Sub sub = 1;
  repeated double list = 2;

  message Sub {
    int32 a = 1;
    string b = 2;
    int32 c = 3;
  }
}
enum E {
  reserved 5 to 7, 9;
  reserved "OLD";
  option allow_alias = true;
  Z = 0;
  Y = 0 [deprecated = true];
}

extend google.protobuf.FileOptions {
  My my = 50000;
}

service S {
  rpc Get (M) returns (stream Empty) {
    option deprecated = true;
  };
  rpc Put (stream M) returns (Empty);
}
"""
NORMALIZED = """syntax = "proto3";
package a.b;

import "google/protobuf/descriptor.proto";
import "google/protobuf/timestamp.proto";
import public "other.proto";

option (a.b.my) = {
  sub: {
    a: 1,
    b: "q\\nr"
  }
};
option java_package = "x.y";

message M {
  reserved 50;
  reserved 100 to max;
  reserved "x";
  reserved "y";

  option deprecated = true;

  repeated int32 n = 1 [
    json_name = "nn",
    packed = true
  ];
  map<string, .a.b.M.Inner> things = 4;
  optional .google.protobuf.Timestamp t = 7;
  .a.b.E e = 9;

  oneof pick {
    string s = 2;
    .a.b.Other o = 3;
  }

  message Inner {
    string a = 1;
    .a.b.M.Inner.Deep d = 2;
  \n    enum Deep {
      D = 0;
    }
  }
}
message Empty {}
message My {
  .a.b.My.Sub sub = 1;
  repeated double list = 2;

  message Sub {
    int32 a = 1;
    string b = 2;
    int32 c = 3;
  }
}
enum E {
  reserved 5 to 7;
  reserved 9;
  reserved "OLD";
  option allow_alias = true;
  Y = 0 [deprecated = true];
  Z = 0;
}

extend .google.protobuf.FileOptions {
  .a.b.My my = 50000;
}

service S {
  rpc Get (.a.b.M) returns (stream .a.b.Empty) {
    option deprecated = true;
  };
  rpc Put (stream .a.b.M) returns (.a.b.Empty);
}
"""
PROTO2 = """syntax = "proto2";
package old;

message A {
  required string s = 1 [default = "say \\"hi\\""];
  optional double d = 2 [default = -1.5];
  optional E e = 3 [default = B];
  repeated bytes b = 4;
  optional bool f = 5 [default = true];

  oneof either {
    int32 x = 6;
    A y = 7;
  }

  optional group Pair = 8 {
    optional string left = 1;
    optional string right = 2;
  }

  extensions 100 to 199;

  extend A {
    optional int32 inner = 101;
  }
}
enum E {
  A_ = -1;
  B = 2;
}

extend A {
  repeated E more = 100;
}
"""


def compiled(directory: Path, files: dict[str, str]) -> descriptor_pb2.FileDescriptorProto:
    """By protoc; of the last file."""
    for name, text in files.items():
        (directory / name).write_text(text)
    out = directory / "out.bin"
    well_known = Path(protoc.__file__).parent / "_proto"
    assert protoc.main(["protoc", f"-I{directory}", f"-I{well_known}", f"-o{out}", *files]) == 0
    found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return found.file[-1]


def without_custom_options(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if "(my)" not in line)


def test_canonical_text_is_confluents() -> None:
    assert parse("PROTOBUF", EVERYTHING, OTHER).canonical() == CANONICAL
    assert parse("PROTOBUF", PROTO2).canonical() == PROTO2


def test_normalized_text_is_confluents() -> None:
    assert parse("PROTOBUF", EVERYTHING, OTHER).normalized() == NORMALIZED


@pytest.mark.parametrize(("text", "references"), [(EVERYTHING, OTHER), (PROTO2, {})])
def test_texts_read_back_as_themselves(text: str, references: dict[str, str]) -> None:
    schema = parse("PROTOBUF", text, references)
    assert parse("PROTOBUF", schema.canonical(), references).canonical() == schema.canonical()
    normalized = parse("PROTOBUF", schema.normalized(), references)
    assert normalized.normalized() == schema.normalized()
    assert incompatibilities(normalized, schema) == incompatibilities(schema, normalized) == []


@pytest.mark.parametrize(("text", "references"), [(EVERYTHING, OTHER), (PROTO2, {})])
def test_descriptor_and_texts_are_what_protoc_makes_of_them(
    tmp_path: Path, text: str, references: dict[str, str]
) -> None:
    schema = parse("PROTOBUF", text, references)
    ours = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.formatted("serialized")))
    ours.name = "main.proto"
    # protoc sorts neither map entries nor groups as we do, and adds names for JSON; all else is the same.
    for written in (text, schema.canonical()):
        theirs = compiled(tmp_path, {**references, "main.proto": written})
        assert simplified(theirs) == simplified(ours)


def simplified(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    pending = list(file.message_type)
    for extension in file.extension:
        extension.ClearField("json_name")
    dependencies = sorted(file.dependency)
    publics = {file.dependency[index] for index in file.public_dependency}
    del file.dependency[:], file.public_dependency[:]
    file.dependency.extend(dependencies)
    file.public_dependency.extend(index for index, name in enumerate(dependencies) if name in publics)
    file.options.DiscardUnknownFields()  # custom options
    if file.syntax == "proto2":
        file.ClearField("syntax")
    while pending:
        message = pending.pop()
        pending += message.nested_type
        for items in (message.field, message.nested_type, message.extension):
            items.sort(key=lambda item: item.name)
        for item in (*message.field, *message.extension):
            if item.json_name != "nn":
                item.ClearField("json_name")
        for item in message.extension_range:
            item.ClearField("options")
    file.message_type.sort(key=lambda item: item.name)
    return file


def test_descriptor_in_base64_is_a_schema_too() -> None:
    schema = parse("PROTOBUF", without_custom_options(EVERYTHING), OTHER)
    again = parse("PROTOBUF", schema.formatted("serialized"), OTHER)
    assert "message ThingsEntry {\n    option map_entry = true;" in again.canonical()
    assert again.normalized() == schema.normalized()
    assert incompatibilities(again, schema) == incompatibilities(schema, again) == []
    assert parse("PROTOBUF", again.canonical(), OTHER).normalized() == schema.normalized()


def test_parts_of_an_option_may_be_custom_themselves() -> None:
    text = 'syntax = "proto3";\n\noption (a.b).(c.d).e = 1;\noption (a.b).f.(g) = X;\noption features.h = "i";\n'
    assert parse("PROTOBUF", text, as_new=False).canonical() == text
    with pytest.raises(SchemaError, match="expected"):
        parse("PROTOBUF", 'syntax = "proto3"; option (a)(b) = 1;')


def test_text_without_extensions_has_confluents_only() -> None:
    text = """syntax = "proto2"; import "confluent/meta.proto"; option (mine) = 1; option (confluent.file_meta).doc = "d";
    message A { extensions 5; } extend A { optional int32 x = 5; }
    extend google.protobuf.FileOptions { optional int32 mine = 50000; }"""
    assert parse("PROTOBUF", text).formatted("ignore_extensions") == (
        'syntax = "proto2";\n\nimport "confluent/meta.proto";\n\noption (confluent.file_meta).doc = "d";\n\nmessage A {}\n'
    )


def test_stored_schema_with_a_lost_import_is_still_read() -> None:
    text = 'syntax = "proto3";\n\nimport "gone.proto";\n\nmessage A {\n  Gone g = 1;\n}\n'
    assert parse("PROTOBUF", text, as_new=False).canonical() == text


@pytest.mark.parametrize(
    "name",
    [
        *("google/protobuf/any.proto", "google/protobuf/descriptor.proto", "google/type/money.proto"),
        *("confluent/meta.proto", "confluent/type/decimal.proto", "confluent/type/variant.proto"),
    ],
)
def test_well_known_files_need_no_reference(name: str) -> None:
    assert name in parse("PROTOBUF", f'syntax = "proto3"; import "{name}";').canonical()


def test_options_within_options_are_written_as_wire_does() -> None:
    text = """syntax = "proto3"; import "confluent/meta.proto";
    message A { string s = 1 [(confluent.field_meta).tags = "PII", (confluent.field_meta) = {
        params: [{key: "k" value: "v"}, { key: 'l' }], doc: "d", tags: ["X", "PII"] }, deprecated = true]; }"""
    schema = parse("PROTOBUF", text)
    assert schema.canonical() == (
        'syntax = "proto3";\n\nimport "confluent/meta.proto";\n\nmessage A {\n  string s = 1 [\n'
        '    (confluent.field_meta).tags = "PII",\n    (confluent.field_meta) = {\n      params: [\n        {\n'
        '          key: "k",\n          value: "v"\n        },\n        {\n          key: "l"\n        }\n      ],\n'
        '      doc: "d",\n      tags: [\n        "X",\n        "PII"\n      ]\n    },\n    deprecated = true\n  ];\n}\n'
    )
    assert '      tags: [\n        "PII",\n        "X"\n      ]\n' in schema.normalized()
    assert schema.normalized().count("field_meta") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message A {", "unexpected end of file"),
        ('syntax = "proto4";', "the syntax is proto2 or proto3"),
        ('message A {} syntax = "proto3";', "stands first"),
        ('edition = "2023";', "editions are not supported"),
        ("message A { int32 a = 1; }", "unexpected label: int32"),
        ('syntax = "proto3"; message A { required int32 a = 1; }', "'required' label forbidden"),
        ('syntax = "proto3"; message A { repeated map<string, string> a = 1; }', "'map' type cannot have label"),
        ('syntax = "proto3"; message A { map<string, map<string, string>> a = 1; }', "a map holds no maps"),
        ('syntax = "proto3"; message A { int32 a = 99999999999; }', "out of range"),
        ('syntax = "proto3"; message A { int32 a = one; }', "expected an integer"),
        ('syntax = "proto3"; message A { int32 a 1; }', "expected '='"),
        ('syntax = "proto3"; message A { int32 a = 1 [deprecated = true }', "expected ','"),
        ('syntax = "proto3"; message A { oneof o { repeated int32 a = 1; } }', "holds no labels"),
        ('syntax = "proto3"; message A {} message A {}', "already defined"),
        ('syntax = "proto3"; message A { string s = 1 [json_name = "x]; }', "unterminated string"),
        ('syntax = "proto3"; message A { Missing m = 1; }', "Could not resolve type: Missing"),
        ('syntax = "proto3"; import "missing.proto";', "missing.proto is not among the references"),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "duplicate field number"),
        ('syntax = "proto3"; message A { int32 a = 0; }', "invalid field number"),
        ('syntax = "proto3"; enum E { A = 1; }', "first value must be zero"),
        ('syntax = "proto3"; message A { int32 a = 1 [jstype = NONE]; }', "NONE is not a value of jstype"),
        ('syntax = "proto3"; option 3 = 1;', "is not the name of an option"),
        ('syntax = "proto3"; option a. = 1;', "a part without a name"),
        ("!!!!", "expected a declaration"),
    ],
)  # fmt: skip
def test_invalid_schema_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said.replace("'", ".").replace("(", ".")):
        parse("PROTOBUF", text)
