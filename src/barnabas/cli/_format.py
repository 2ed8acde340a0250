"""Print records as console-consumer does: Kafka's DefaultMessageFormatter with its properties."""

import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from barnabas.base.ids import TopicPartition
from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError, warn
from barnabas.wire.record_batch import LOG_APPEND_TIME, BatchHeader
from barnabas.wire.records import Record

#: Converts a key or a value to the bytes to write.
Deserializer = Callable[[bytes], bytes]
#: Returns the bytes to write for a record.
Formatter = Callable[[TopicPartition, BatchHeader, Record], bytes]
#: Returns how often a record was delivered to a share group.
DeliveryCount = Callable[[TopicPartition, Record], int]


def formatter_of(
    name: str,
    properties: Mapping[str, str],
    by_schema: Deserializer | None = None,
    delivery_count: DeliveryCount | None = None,
) -> Formatter:
    """Return the formatter for Kafka's class name, with or without its package. `by_schema` converts keys and values for which
    no deserializer is named."""
    simple = name.rpartition(".")[2].removesuffix("MessageFormatter").lower()
    if simple == "default":
        return _default(properties, by_schema, delivery_count)
    if simple == "noop":
        return lambda partition, header, record: b""
    if simple == "logging":
        default = _default(properties, by_schema, delivery_count)
        return lambda partition, header, record: (
            _time_line(partition, header, record) + default(partition, header, record)
        )
    raise UsageError(f"--formatter {name}: only the Default, NoOp and Logging formatters are supported")


def _time_line(partition: TopicPartition, header: BatchHeader, record: Record) -> bytes:
    key = "null" if record.key is None else record.key.decode(errors="replace")
    value = "null" if record.value is None else record.value.decode(errors="replace")
    at = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat() if record.timestamp >= 0 else "-"
    return f"{at} {_timestamp(header, record)}, key:{key}, value:{value}\n".encode()


def _timestamp(header: BatchHeader, record: Record) -> str:
    kind = "LogAppendTime" if header.timestamp_type == LOG_APPEND_TIME else "CreateTime"
    return f"{kind}:{record.timestamp}"


_PROPERTIES = (
    *(f"print.{each}" for each in ("timestamp", "key", "offset", "partition", "delivery", "epoch", "headers", "value")),
    *(f"{each}.deserializer" for each in ("key", "value", "headers")),
    *(f"{each}.separator" for each in ("key", "line", "headers")),
    "null.literal",
)


def _default(
    properties: Mapping[str, str], by_schema: Deserializer | None, delivery_count: DeliveryCount | None
) -> Formatter:
    for name in properties:
        if name not in _PROPERTIES and not name.startswith(("key.deserializer.", "value.deserializer.")):
            warn(
                f"--property {name} is not a property of the formatter and is ignored{did_you_mean(name, _PROPERTIES)}"
            )

    def flag(name: str, default: bool = False) -> bool:
        return properties[name].strip().lower() == "true" if name in properties else default

    def text(name: str, default: str) -> bytes:
        return properties.get(name, default).encode()

    separator, line_end = text("key.separator", "\t"), text("line.separator", "\n")
    headers_separator, null = text("headers.separator", ","), text("null.literal", "null")
    key_text, value_text = (
        _deserializer(properties.get(f"{part}.deserializer"), by_schema or _as_it_is) for part in ("key", "value")
    )
    header_text = _deserializer(properties.get("headers.deserializer"), _as_it_is)
    columns: list[Formatter] = []
    if flag("print.timestamp"):
        columns.append(lambda partition, header, record: _timestamp(header, record).encode())
    if flag("print.partition"):
        columns.append(lambda partition, header, record: b"Partition:%d" % partition.partition)
    if flag("print.offset"):
        columns.append(lambda partition, header, record: b"Offset:%d" % record.offset)
    if flag("print.delivery"):
        columns.append(
            lambda partition, header, record: (
                b"Delivery:NOT_PRESENT"
                if delivery_count is None
                else b"Delivery:%d" % delivery_count(partition, record)
            )
        )
    if flag("print.epoch"):
        columns.append(lambda partition, header, record: b"Epoch:%d" % header.leader_epoch)
    if flag("print.headers"):
        columns.append(
            lambda partition, header, record: (
                headers_separator.join(
                    name.encode(errors="surrogateescape") + b":" + header_text(null if value is None else value)
                    for name, value in record.headers
                )
                or b"NO_HEADERS"
            )
        )
    if flag("print.key"):
        columns.append(lambda partition, header, record: key_text(null if record.key is None else record.key))
    if flag("print.value", default=True):
        columns.append(lambda partition, header, record: value_text(null if record.value is None else record.value))
    if len(columns) == 1:
        only = columns[0]
        return lambda partition, header, record: only(partition, header, record) + line_end
    return lambda partition, header, record: (
        separator.join(column(partition, header, record) for column in columns) + line_end if columns else b""
    )


_NUMBERS = {"Integer": ">i", "Long": ">q", "Short": ">h", "Float": ">f", "Double": ">d"}


def _deserializer(name: str | None, default: Deserializer) -> Deserializer:
    """Return the function for one of Kafka's own deserializers, by class name."""
    if name is None:
        return default
    simple = name.rpartition(".")[2].removesuffix("Deserializer")
    if simple in ("String", "ByteArray", "Bytes"):
        return _as_it_is
    if simple == "UUID":
        return lambda data: str(uuid.UUID(data.decode())).encode()
    if simple == "Boolean":
        return lambda data: b"true" if data == b"\x01" else b"false"
    if simple in _NUMBERS:
        return _number(simple, struct.Struct(_NUMBERS[simple]))
    raise UsageError(f"{name} is a Java class that cannot be loaded here: use one of Kafka's own deserializers")


def _number(name: str, layout: struct.Struct) -> Deserializer:
    def read(data: bytes) -> bytes:
        if len(data) != layout.size:
            raise ValueError(f"Size of data received by {name}Deserializer is not {layout.size}")
        return str(layout.unpack(data)[0]).encode()

    return read


def _as_it_is(data: bytes) -> bytes:
    return data
