"""Protobuf's messages and Spark's types, both ways.

A message is a struct, an enum its value's name, a map a map. A field with presence (a message, `optional`, one of a oneof) is
null if it is not set; other fields then have their default, as in Protobuf. `Timestamp` is a timestamp, `Duration` an interval,
the wrappers (`Int64Value`, …) are nullable values, and `Struct`, `Value` and `ListValue` are JSON text. Unsigned numbers
have the next wider type.
"""

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.services.registry.values.bounds import Unreadable
from barnabas.services.registry.values.protobuf import check_types
from barnabas.spark.pipelines.codecs.base import CodecError

Read: TypeAlias = Callable[[Any], Any]
#: Puts a value from Arrow into a message.
Write: TypeAlias = Callable[[Any, Any], None]

_F: Final = FieldDescriptor
_SCALARS: Final[Mapping[int, DataType]] = {
    _F.TYPE_DOUBLE: DoubleType(),
    _F.TYPE_FLOAT: FloatType(),
    _F.TYPE_INT64: LongType(),
    _F.TYPE_SINT64: LongType(),
    _F.TYPE_SFIXED64: LongType(),
    _F.TYPE_UINT64: DecimalType(20, 0),
    _F.TYPE_FIXED64: DecimalType(20, 0),
    _F.TYPE_INT32: IntegerType(),
    _F.TYPE_SINT32: IntegerType(),
    _F.TYPE_SFIXED32: IntegerType(),
    _F.TYPE_UINT32: LongType(),
    _F.TYPE_FIXED32: LongType(),
    _F.TYPE_BOOL: BooleanType(),
    _F.TYPE_STRING: StringType(),
    _F.TYPE_BYTES: BinaryType(),
    _F.TYPE_ENUM: StringType(),
}
_UINT64: Final = (_F.TYPE_UINT64, _F.TYPE_FIXED64)
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_AS_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"


def _is_repeated(field: FieldDescriptor) -> bool:
    """Whether the field is repeated. Protobuf 6 has a property for it; `label`, which 5 has, warns there."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == _F.LABEL_REPEATED)


def _is_map(field: FieldDescriptor) -> bool:
    inner = field.message_type
    return inner is not None and _is_repeated(field) and bool(inner.GetOptions().map_entry)


def spark_type(message: Descriptor) -> StructType:
    try:
        check_types(message)
    except Unreadable as error:
        raise CodecError(f"Protobuf: {error}") from error
    return _message_type(message, ())


def _message_type(message: Descriptor, above: tuple[str, ...]) -> StructType:
    if message.full_name in above:
        raise CodecError(f"Protobuf: {message.full_name} contains itself, and no Spark type does")
    above = (*above, message.full_name)
    return StructType([_field_type(field, above) for field in message.fields])


def _field_type(field: FieldDescriptor, above: tuple[str, ...]) -> StructField:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return StructField(field.name, MapType(_one_type(key, above), _one_type(value, above), False), False)
    one = _one_type(field, above)
    if _is_repeated(field):
        return StructField(field.name, ArrayType(one, False), False)
    return StructField(field.name, one, bool(field.has_presence))


def _one_type(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    inner = field.message_type
    if inner is None:
        return _SCALARS[field.type]
    match inner.full_name:
        case name if name in _WRAPPERS:
            return _SCALARS[inner.fields_by_name["value"].type]
        case name if name in _AS_JSON:
            return StringType()
        case name if name == _TIMESTAMP:
            return TimestampType()
        case name if name == _DURATION:
            return DayTimeIntervalType()
    return _message_type(inner, above)


def reading(message: Descriptor) -> Read:
    """Return a function that turns a message into the dictionary that Arrow takes."""
    fields = [(field.name, _field_reader(field)) for field in message.fields]

    def read(value: Message) -> dict[str, Any]:
        return {name: reader(value) for name, reader in fields}

    return read


def _field_reader(field: FieldDescriptor) -> Read:
    name = field.name
    if _is_map(field):
        key, value = (_one_reader(field.message_type.fields_by_name[part]) for part in ("key", "value"))
        return lambda message: [(key(k), value(v)) for k, v in getattr(message, name).items()]
    one = _one_reader(field)
    if _is_repeated(field):
        return lambda message: [one(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    return lambda message: one(getattr(message, name))


def _one_reader(field: FieldDescriptor) -> Read:
    inner = field.message_type
    if inner is None:
        if field.type == _F.TYPE_ENUM:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, str(number))
        return _same
    if inner.full_name in _WRAPPERS:
        return lambda wrapper: wrapper.value
    if inner.full_name in _AS_JSON:
        return lambda value: json_format.MessageToJson(value, indent=None)
    if inner.full_name == _TIMESTAMP:
        return lambda value: value.ToDatetime(tzinfo=datetime.UTC)
    if inner.full_name == _DURATION:
        return lambda value: value.ToTimedelta()
    return reading(inner)


def _same(value: Any) -> Any:
    return value


def writing(message: Descriptor, kind: DataType) -> Write:
    """Return a function that fills a message with a row. Raises for a column without a field, which would be lost."""
    if not isinstance(kind, StructType):
        raise CodecError(f"Protobuf: {message.full_name} is written from a struct, not from {kind.simpleString()}")
    if strange := [name for name in kind.names if name not in message.fields_by_name]:
        raise CodecError(f"Protobuf: {message.full_name} has no field {', '.join(map(repr, strange))}")
    writers = [(field.name, _field_writer(message.fields_by_name[field.name], field.dataType)) for field in kind.fields]

    def write(target: Message, row: Mapping[str, Any]) -> None:
        for name, writer in writers:
            if (value := row[name]) is not None:
                try:
                    writer(target, value)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"field {name!r}: {error}") from error

    return write


def _field_writer(field: FieldDescriptor, kind: DataType) -> Write:
    name = field.name
    if _is_map(field):
        if not isinstance(kind, MapType):
            raise CodecError(f"Protobuf: field {name!r} is a map, and the column is {kind.simpleString()}")
        return _map_writer(field, kind)
    if _is_repeated(field):
        if not isinstance(kind, ArrayType):
            raise CodecError(f"Protobuf: field {name!r} is repeated, and the column is {kind.simpleString()}")
        return _repeated_writer(field, kind.elementType)
    if field.message_type is not None:
        fill = _message_writer(field, kind)

        def write_message(target: Any, value: Any) -> None:
            inner = getattr(target, name)
            inner.SetInParent()  # set an empty message, too
            fill(inner, value)

        return write_message
    one = _scalar(field)
    return lambda target, value: setattr(target, name, one(value))


def _map_writer(field: FieldDescriptor, kind: MapType) -> Write:
    name, value_field = field.name, field.message_type.fields_by_name["value"]
    key = _scalar(field.message_type.fields_by_name["key"])
    if value_field.message_type is not None:
        fill = _message_writer(value_field, kind.valueType)

        def write_messages(target: Any, pairs: Any) -> None:
            for k, v in pairs:
                fill(getattr(target, name)[key(k)], v)

        return write_messages
    one = _scalar(value_field)

    def write_scalars(target: Any, pairs: Any) -> None:
        for k, v in pairs:
            getattr(target, name)[key(k)] = one(v)

    return write_scalars


def _repeated_writer(field: FieldDescriptor, kind: DataType) -> Write:
    name = field.name
    if field.message_type is not None:
        fill = _message_writer(field, kind)

        def add_messages(target: Any, values: Any) -> None:
            for value in values:
                fill(getattr(target, name).add(), value)

        return add_messages
    one = _scalar(field)
    return lambda target, values: getattr(target, name).extend([one(value) for value in values])


def _message_writer(field: FieldDescriptor, kind: DataType) -> Write:
    inner = field.message_type
    if inner.full_name in _WRAPPERS:
        one = _scalar(inner.fields_by_name["value"])
        return lambda target, value: setattr(target, "value", one(value))
    if inner.full_name in _AS_JSON:
        return lambda target, text: json_format.Parse(text, target)
    if inner.full_name == _TIMESTAMP:
        return lambda target, value: target.FromDatetime(value)
    if inner.full_name == _DURATION:
        return lambda target, value: target.FromTimedelta(value)
    return writing(inner, kind)


def _scalar(field: FieldDescriptor) -> Read:
    if field.type == _F.TYPE_ENUM:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}
        return lambda name: _number(numbers, name)
    return int if field.type in _UINT64 else _same


def _number(numbers: Mapping[str, int], name: str) -> int:
    try:
        return numbers[name] if name in numbers else int(name)
    except ValueError:
        raise ValueError(f"{name!r} is not valid: use one of {', '.join(numbers)}") from None
