"""Decides which message of its schema a Protobuf record is: bytes of one message can be read as another, with wrong values."""

import pytest

from barnabas.services.registry import wire
from barnabas.services.registry.formats.protobuf import ProtobufSchema
from barnabas.spark.pipelines.codecs import protobuf
from barnabas.spark.pipelines.codecs.registered import _KnownMessage
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema

FILE = """
syntax = "proto3";
package shop;
message Other { int64 number = 1; }
message Order { int64 id = 1; Line line = 2; message Line { int64 count = 1; } }
"""
ORDER, LINE, OTHER = [1], [1, 0], [0]


class Registry:
    """A registry with one schema."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(FILE, "PROTOBUF")

    def references(self, schema: RegisteredSchema) -> dict[str, str]:
        return {}


def read(indexes: list[int], name: str) -> object:
    """Read a record of the message at these indexes, whose field 1 is 7."""
    files = ProtobufSchema(FILE, {}, as_new=False).descriptor_set()
    convert = _KnownMessage(Registry(), name, protobuf.reader(files, name, framed=True))  # type: ignore[arg-type]
    return convert(wire.frame(1, wire.write_indexes(indexes) + b"\x08\x07"))


def test_record_is_read_as_the_message_that_it_is() -> None:
    assert read(OTHER, "shop.Other") == {"number": 7}
    assert read(ORDER, "shop.Order") == {"id": 7, "line": None}
    assert read(LINE, "shop.Order.Line") == {"count": 7}


@pytest.mark.parametrize(
    ("indexes", "name", "said"),
    [
        (ORDER, "shop.Other", "the record is a shop.Order, not a shop.Other"),
        (LINE, "shop.Order", "the record is a message within shop.Order, not a shop.Order"),
        (ORDER, "shop.Order.Line", "the record is a shop.Order, not a shop.Order.Line"),
        ([1, 0, 0], "shop.Order.Line", "the record is a message within shop.Order, not a shop.Order.Line"),
        ([5], "shop.Order", "schema 1 has 2 messages; the record is of message 5"),
    ],
)
def test_record_of_another_message_is_not_read(indexes: list[int], name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(indexes, name)
