"""Reads the metrics that a client pushes: OpenTelemetry's MetricsData, as Protobuf. Pure.

Only gauges and sums are read: Kafka's clients send no others. The reader works in one pass over at most FIELDS_MAX fields, and
returns at most SERIES_MAX series whose texts are at most TEXT_BYTES_MAX long together. Its depth is that of the format.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed

#: Fields of all messages together.
FIELDS_MAX: Final = 100_000
#: Series of one push.
SERIES_MAX: Final = 1_000
#: Name and labels of one series.
TEXT_BYTES_MAX: Final = 512
LABELS_MAX: Final = 16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
_DOUBLE: Final = Struct("<d")
_INT64: Final = Struct("<q")
_DELTA: Final = 1
_GAUGE_FIELD, _SUM_FIELD = 5, 7

Labels = tuple[tuple[str, str], ...]


class Series(NamedTuple):
    name: str
    #: Sorted by key.
    labels: Labels
    value: float
    #: Whether the value counts from the last push, and not from the start of the client.
    is_delta: bool


@dataclass(slots=True)
class Pushed:
    series: list[Series]
    #: Series that were left out, because they exceed a bound.
    left_out: int = 0


class _Field(NamedTuple):
    number: int
    kind: int
    #: A varint's value, or the position of the field's bytes.
    value: int
    end: int


class _Reader:
    """Owner: the call of `read`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._fields_left = FIELDS_MAX

    def fields(self, at: int, end: int) -> Iterator[_Field]:
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise Malformed(f"the metrics have more than {FIELDS_MAX} fields")
            tag, at = self._varint(at, end)
            kind = tag & 7
            if kind == _VARINT:
                value, at = self._varint(at, end)
                yield _Field(tag >> 3, kind, value, at)
                continue
            if kind == _BYTES:
                size, at = self._varint(at, end)
            elif kind == _FIXED64:
                size = 8
            elif kind == _FIXED32:
                size = 4
            else:
                raise Malformed(f"unknown wire type {kind} in the metrics")
            if size > end - at:
                raise Malformed(f"a field of {size} bytes runs past the end of its message")
            yield _Field(tag >> 3, kind, at, at + size)
            at += size

    def messages(self, at: int, end: int, number: int) -> Iterator[tuple[int, int]]:
        """Yield the position and the end of each submessage with this number."""
        for field in self.fields(at, end):
            if field.number == number and field.kind == _BYTES:
                yield field.value, field.end

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        stop = min(end, at + _VARINT_BYTES_MAX)
        while at < stop:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise Malformed("a number in the metrics does not end")


def read(data: bytes) -> Pushed:
    """Return the series of a push.

    :raises Malformed: if the data are not MetricsData, or have too many fields.
    """
    reader = _Reader(data)
    pushed = Pushed([])
    for resource in reader.messages(0, len(data), 1):
        for scope in reader.messages(*resource, 2):
            for metric in reader.messages(*scope, 2):
                _read_metric(reader, *metric, pushed)
    return pushed


def with_attributes(data: bytes, attributes: Mapping[str, str]) -> bytes:
    """Return MetricsData whose resources have these attributes, in place of the client's own ones of the same names.

    :raises Malformed: if the data are not MetricsData, or have too many fields.
    """
    reader = _Reader(data)
    added = b"".join(
        _message(1, _message(1, key.encode()) + _message(2, _message(1, text.encode())))
        for key, text in attributes.items()
    )
    parts: list[bytes] = []
    for at, end in reader.messages(0, len(data), 1):
        resource, others = [], []
        for field, raw in _raw_fields(reader, at, end):
            if field.number != 1 or field.kind != _BYTES:
                others.append(raw)
                continue
            for attribute, raw_attribute in _raw_fields(reader, field.value, field.end):
                is_ours = attribute.number == 1 and attribute.kind == _BYTES
                if not is_ours or _read_label(reader, attribute.value, attribute.end)[0] not in attributes:
                    resource.append(raw_attribute)
        parts.append(_message(1, _message(1, b"".join(resource) + added) + b"".join(others)))
    return b"".join(parts)


def _raw_fields(reader: _Reader, at: int, end: int) -> Iterator[tuple[_Field, bytes]]:
    """Yield each field with all its bytes."""
    for field in reader.fields(at, end):
        yield field, reader.data[at : field.end]
        at = field.end


def rejected_points(answer: bytes) -> int:
    """Return how many data points a collector has rejected, from its ExportMetricsServiceResponse.

    :raises Malformed: if it is something else.
    """
    reader = _Reader(answer)
    count = 0
    for partial in reader.messages(0, len(answer), 1):
        for field in reader.fields(*partial):
            if field.number == 1 and field.kind == _VARINT:
                count = field.value
    return count


def _message(number: int, content: bytes) -> bytes:
    """Return a field of kind bytes."""
    size, encoded = len(content), bytearray([number << 3 | _BYTES])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded) + content


def _read_metric(reader: _Reader, at: int, end: int, pushed: Pushed) -> None:
    name = b""
    bodies: list[_Field] = []
    for field in reader.fields(at, end):
        if field.kind != _BYTES:
            continue
        if field.number == 1:
            name = reader.data[field.value : field.end]
        elif field.number in (_GAUGE_FIELD, _SUM_FIELD):
            bodies = [field]  # it is a oneof: the last one counts
    for body in bodies:
        points: list[tuple[int, int]] = []
        is_delta = False
        for field in reader.fields(body.value, body.end):
            if field.number == 1 and field.kind == _BYTES:
                points.append((field.value, field.end))
            elif field.number == 2 and field.kind == _VARINT:
                is_delta = body.number == _SUM_FIELD and field.value == _DELTA
        for point in points:
            if len(pushed.series) == SERIES_MAX:
                pushed.left_out += 1
            else:
                _read_point(reader, *point, name, is_delta, pushed)


def _read_point(reader: _Reader, at: int, end: int, name: bytes, is_delta: bool, pushed: Pushed) -> None:
    """Add a data point, unless it has no value (like the average of nothing) or its texts are too long."""
    value: float | None = None
    labels: dict[str, str] = {}
    text_bytes = len(name)
    for field in reader.fields(at, end):
        if field.kind == _FIXED64 and field.number == 4:
            value = float(_DOUBLE.unpack_from(reader.data, field.value)[0])
        elif field.kind == _FIXED64 and field.number == 6:
            value = float(_INT64.unpack_from(reader.data, field.value)[0])
        elif field.kind == _BYTES and field.number == 7:
            text_bytes += field.end - field.value
            if text_bytes > TEXT_BYTES_MAX or len(labels) == LABELS_MAX:
                pushed.left_out += 1
                return
            key, text = _read_label(reader, field.value, field.end)
            labels[key] = text
    if text_bytes > TEXT_BYTES_MAX:
        pushed.left_out += 1
    elif value is not None and math.isfinite(value):
        pushed.series.append(Series(_text(name), tuple(sorted(labels.items())), value, is_delta))


def _read_label(reader: _Reader, at: int, end: int) -> tuple[str, str]:
    key, text = b"", ""
    for field in reader.fields(at, end):
        if field.kind != _BYTES:
            continue
        if field.number == 1:
            key = reader.data[field.value : field.end]
        elif field.number == 2:
            text = _read_value(reader, field.value, field.end)
    return _text(key), text


def _read_value(reader: _Reader, at: int, end: int) -> str:
    """Return an AnyValue as text; lists, maps and bytes are empty."""
    for field in reader.fields(at, end):
        match field.number, field.kind:
            case 1, 2:
                return _text(reader.data[field.value : field.end])
            case 2, 0:
                return "true" if field.value else "false"
            case 3, 0:
                signed = field.value & (1 << 64) - 1
                return str(signed - (1 << 64) if signed >= 1 << 63 else signed)
            case 4, 1:
                return str(_DOUBLE.unpack_from(reader.data, field.value)[0])
    return ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
