"""Flat Avro records by compiled code: a whole Arrow batch at once, straight into columns.

Only for the records of most topics: numbers, booleans, strings and bytes, each of which may be null, read with the
schema that they were written with. Other schemas, and a batch in which any record is damaged, are left to `avro`,
which reads record by record and reports errors. Loaded where rows are read: it needs numba.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from barnabas.base.compiled import copy_bytes, int64, kernel
from barnabas.services.registry.values.avro import AvroType
from barnabas.wire.record_kernels import read_varlong

ByteArray = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Booleans = NDArray[np.bool_]

LONG, INT, FLOAT, DOUBLE, BOOLEAN, BYTES = range(6)
_KINDS: Final = {
    "long": (LONG, pa.int64()),
    "int": (INT, pa.int32()),
    "float": (FLOAT, pa.float32()),
    "double": (DOUBLE, pa.float64()),
    "boolean": (BOOLEAN, pa.bool_()),
    "string": (BYTES, pa.string()),
    "bytes": (BYTES, pa.binary()),
}
_NONE: Final = -1


@dataclass(frozen=True)
class Plan:
    #: For each field in order: its encoding, and the branch of its union that is null, or `_NONE`.
    kinds: NDArray[np.int8]
    nulls: NDArray[np.int8]
    type: pa.StructType


def plan_of(parsed: AvroType, arrow_type: pa.DataType) -> Plan | None:
    """Make the plan of a schema; None if it is not flat."""
    schema = parsed.schema
    if not isinstance(schema, dict) or schema.get("type") != "record" or not pa.types.is_struct(arrow_type):
        return None
    fields = [_field(each["type"]) for each in schema["fields"]]
    if not fields or len(fields) != arrow_type.num_fields:
        return None
    kinds, nulls = [], []
    for found, field in zip(fields, arrow_type, strict=True):
        if found is None or found[2] != field.type:
            return None
        kinds.append(found[0])
        nulls.append(found[1])
    return Plan(np.array(kinds, np.int8), np.array(nulls, np.int8), arrow_type)


def _field(schema: Any) -> tuple[int, int, pa.DataType] | None:
    null = _NONE
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            return None
        null = schema.index("null")
        schema = schema[1 - null]
    if isinstance(schema, dict) and "logicalType" not in schema:
        schema = schema.get("type")
    if not isinstance(schema, str) or schema not in _KINDS:
        return None
    kind, arrow_type = _KINDS[schema]
    return kind, null, arrow_type


def read(values: pa.Array, plan: Plan, *, head: bytes = b"") -> pa.StructArray | None:
    """Read the records, each behind `head`; None if one of them cannot be read so."""
    if values.type != pa.binary() or not len(values):
        return None
    count, fields = len(values), len(plan.kinds)
    _, offsets, content = values.buffers()
    data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    numbers = np.zeros((fields, count), np.int64)
    sizes = np.zeros((fields, count), np.int64)
    present = np.zeros((fields, count), np.bool_)
    heads = np.frombuffer(head, np.uint8) if head else np.empty(0, np.uint8)
    if not _read_flat(data, places, valid, heads, plan.kinds, plan.nulls, numbers, sizes, present):
        return None
    try:
        columns = [
            _column(int(kind), field.type, data, numbers[at], sizes[at], present[at])
            for at, (kind, field) in enumerate(zip(plan.kinds, plan.type, strict=True))
        ]
    except pa.ArrowInvalid:  # not UTF-8, or too much for one column
        return None
    return pa.StructArray.from_arrays(columns, fields=list(plan.type), mask=pa.array(~valid))


def _column(
    kind: int, arrow_type: pa.DataType, data: ByteArray, numbers: Int64s, sizes: Int64s, present: Booleans
) -> pa.Array:
    if kind == BYTES:
        ends = np.cumsum(sizes)
        if ends[-1] > np.iinfo(np.int32).max:
            raise pa.ArrowInvalid("a column of more than 2 GB")
        offsets = np.zeros(len(sizes) + 1, np.int32)
        offsets[1:] = ends
        found = np.empty(int(ends[-1]), np.uint8)
        _gather(data, numbers, sizes, offsets, found)
        validity = pa.array(present).buffers()[1]
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(found)]
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers).cast(arrow_type)
    if kind == INT:
        numbers = numbers.astype(np.int32)
    elif kind == FLOAT:
        numbers = numbers.astype(np.int32).view(np.float32)
    elif kind == DOUBLE:
        numbers = numbers.view(np.float64)
    elif kind == BOOLEAN:
        numbers = numbers.astype(np.bool_)
    return pa.array(numbers, arrow_type, mask=~present)


@kernel
def _read_flat(
    data: ByteArray,
    places: Int64s,
    valid: Booleans,
    head: ByteArray,
    kinds: NDArray[np.int8],
    nulls: NDArray[np.int8],
    numbers: Int64s,
    sizes: Int64s,
    present: Booleans,
) -> bool:
    """Fill the columns; strings and bytes as their places and sizes. Return False at the first error."""
    for row in range(len(valid)):
        if not valid[row]:
            continue
        pos, end = places[row], places[row + 1]
        for at in range(len(head)):
            if pos >= end or data[pos] != head[at]:
                return False
            pos += 1
        for field in range(len(kinds)):
            if nulls[field] >= 0:
                branch, pos = _long(data, pos, end)
                if pos < 0 or branch < 0 or branch > 1:
                    return False
                if branch == nulls[field]:
                    continue
            kind = kinds[field]
            if kind in (FLOAT, DOUBLE):
                size = 4 if kind == FLOAT else 8
                if pos + size > end:
                    return False
                bits = int64(0)
                for at in range(size):
                    bits |= int64(data[pos + at]) << (8 * at)
                value = bits
                pos += size
            elif kind == BOOLEAN:
                if pos >= end or data[pos] > 1:
                    return False
                value = int64(data[pos])
                pos += 1
            else:
                value, pos = _long(data, pos, end)
                if pos < 0:
                    return False
                if kind == INT and (value < -0x80000000 or value > 0x7FFFFFFF):
                    return False
                if kind == BYTES:
                    if value < 0 or value > end - pos:
                        return False
                    sizes[field, row] = value
                    value, pos = pos, pos + value
            numbers[field, row] = value
            present[field, row] = True
        if pos != end:
            return False
    return True


@kernel
def _long(data: ByteArray, pos: int, end: int) -> tuple[int, int]:
    """Read a number, as in Kafka's records. Numbers of more than 64 bits are an error here."""
    value, after = read_varlong(data, pos, end)
    if after - pos == 10 and data[after - 1] > 1:
        return int64(0), int64(-1)
    return value, after


@kernel
def _gather(data: ByteArray, starts: Int64s, sizes: Int64s, offsets: NDArray[np.int32], found: ByteArray) -> None:
    for row in range(len(sizes)):
        if sizes[row]:
            copy_bytes(found, int64(offsets[row]), data, starts[row], sizes[row])
