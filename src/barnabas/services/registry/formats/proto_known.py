"""The files that any .proto file may import without a reference: protobuf's, Google's types, Confluent's. Pure."""

from functools import cache
from importlib import import_module

from barnabas.services.registry.formats import proto_descriptor, proto_parser
from barnabas.services.registry.formats.proto_model import File

_PROTOBUF = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers"),
)
_TYPES = (
    *("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction", "interval"),
    *("latlng", "money", "month", "phone_number", "postal_address", "quaternion", "timeofday"),
)
_MODULES = {f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2" for name in _PROTOBUF} | {
    f"google/type/{name}.proto": f"google.type.{name}_pb2" for name in _TYPES
}
_CONFLUENT = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {
            string doc = 1;
            map<string, string> params = 2;
            repeated string tags = 3;
            repeated Rule rules = 4;
        }
        message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/type/variant.proto": """
        syntax = "proto3";
        package confluent.type;
        message Variant { bytes metadata = 1; bytes value = 2; }
    """,
}


@cache
def known_file(name: str) -> File | None:
    if name in _CONFLUENT:
        return proto_parser.parse(_CONFLUENT[name])
    if name not in _MODULES:
        return None
    return proto_descriptor.from_bytes(import_module(_MODULES[name]).DESCRIPTOR.serialized_pb)
