"""Protobuf values by protobuf's own C code, within bounds.

upb, that code, recurses at most 100 deep, for groups and unknown fields as well, and a field's length cannot go beyond the
message. So its memory is bounded by the bytes: an empty message takes two of them. The bounds here are for what Python makes
of a message.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from barnabas.services.registry import wire
from barnabas.services.registry.formats.protobuf import ProtobufSchema
from barnabas.services.registry.values.bounds import TYPES_MAX, VALUES_MAX, Unreadable


class ProtobufFile:
    """The messages of one schema, for values in Confluent's format: the bytes say which message they are."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """:raises SchemaError: if the text is not Protobuf; protobuf itself raises TypeError for what it refuses."""
        files = descriptor_pb2.FileDescriptorSet.FromString(
            ProtobufSchema(text, references, as_new=False).descriptor_set()
        )
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self._messages: list[Descriptor] = list(pool.FindFileByName(files.file[-1].name).message_types_by_name.values())

    def read(self, payload: bytes) -> Any:
        """The value as JSON has it."""
        indexes, message = wire.read_indexes(payload)
        level, descriptor = self._messages, None
        for index in indexes:
            if not 0 <= index < len(level):
                raise Unreadable(f"the value is of message {index}, and the schema has {len(level)}")
            descriptor = level[index]
            level = list(descriptor.nested_types)
        parsed = message_factory.GetMessageClass(descriptor).FromString(message)
        return json_format.MessageToDict(parsed, preserving_proto_field_name=True)

    def write(self, value: Any) -> bytes:
        """Encode a value of JSON as the first message of the file.

        :raises ValueError: if it does not fit
        """
        message = message_factory.GetMessageClass(self._messages[0])()
        try:
            json_format.ParseDict(value, message)
        except (json_format.ParseError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None
        return wire.write_indexes([0]) + bytes(message.SerializeToString())


def check_types(message: Descriptor) -> None:
    """:raises Unreadable: if its fields, counted as often as they are used, are too many for the columns of a table.

    A message that contains itself counts once: the caller refuses it by its name.
    """
    counts: dict[str, int] = {}
    waiting: list[tuple[Descriptor, bool]] = [(message, False)]
    while waiting:
        current, is_done = waiting.pop()
        inner = [field.message_type for field in current.fields if field.message_type is not None]
        if is_done:
            counts[current.full_name] = len(current.fields) + sum(counts.get(each.full_name, 0) for each in inner)
        elif current.full_name not in counts:
            counts[current.full_name] = 0
            waiting.append((current, True))
            waiting += [(each, False) for each in inner if each.full_name not in counts]
    if counts[message.full_name] > TYPES_MAX:
        raise Unreadable(f"{message.full_name} has more than {TYPES_MAX:,} fields, counted as often as they are used")


def widest(message: Descriptor) -> int:
    """The most fields that one message has, of this kind or of any kind within it."""
    found, waiting = {message.full_name: len(message.fields)}, [message]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = len(inner.fields)
                waiting.append(inner)
    return max(found.values())


def check_rows(message: Message, payload_bytes: int, fields_max: int) -> None:
    """Before each message becomes a row with all of its fields, set or not: two bytes may stand for thousands of them.

    `fields_max` is what `widest` found. :raises Unreadable: if the rows have too many fields in all.
    """
    if fields_max * (1 + payload_bytes // 2) <= VALUES_MAX:
        return
    fields, waiting = 0, [message]
    while waiting:
        current = waiting.pop()
        fields += len(current.DESCRIPTOR.fields)
        if fields > VALUES_MAX:
            raise Unreadable(f"{payload_bytes:,} bytes stand for more than {VALUES_MAX:,} fields, which is the limit")
        for field, value in current.ListFields():
            if field.message_type is not None:
                waiting += [value] if isinstance(value, Message) else _messages_of(field, value)


def _messages_of(field: Any, repeated: Any) -> list[Message]:
    """A map's values may be scalars; its keys always are."""
    each = repeated.values() if field.message_type.GetOptions().map_entry else repeated
    return [value for value in each if isinstance(value, Message)]
