"""The first bytes of keys and values in a batch, from which a broker sees the schema of a record. Pure.

Only five bytes of each key and value are copied. Strict like `record_decode`: raises `Malformed` if the records do not match
the header.
"""

from collections.abc import Container
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.wire.record_batch import BatchHeader
from barnabas.wire.record_decode import RECORD_BODY_MIN
from barnabas.wire.varint import read_varint

#: Magic byte and schema id.
PREFIX_BYTES: Final = 5


class Strange(NamedTuple):
    """A key or a value that does not begin with an expected prefix."""

    #: The index of its record in the batch, from 0.
    number: int
    is_key: bool
    #: Shorter if the key or value is.
    prefix: bytes


def strange_records(
    body: bytes, header: BatchHeader, *, keys: Container[bytes] | None, values: Container[bytes] | None
) -> list[Strange]:
    """Return keys and values of decompressed records without an expected prefix. Null ones pass. `None`: all pass."""
    found: list[Strange] = []
    end, pos = len(body), 0
    try:
        for number in range(header.record_count):
            size = body[pos]
            pos += 1
            if size >= 0x80:
                if body[pos] < 0x80:
                    size = size & 0x7F | body[pos] << 7
                    pos += 1
                    size = size >> 1 ^ -(size & 1)
                else:
                    size, pos = read_varint(body, pos - 1)
            else:
                size = size >> 1 ^ -(size & 1)
            stop = pos + size
            if size < RECORD_BODY_MIN or stop > end:
                raise Malformed(f"record of {size} bytes in a body of {end}")
            pos += 1
            while body[pos] >= 0x80:  # skip the timestamp
                pos += 1
            pos += 1
            while body[pos] >= 0x80:  # skip the offset delta
                pos += 1
            pos += 1
            size = body[pos]
            pos += 1
            if size >= 0x80:
                size, pos = read_varint(body, pos - 1)
            else:
                size = size >> 1 ^ -(size & 1)
            if size >= 0:
                if keys is not None:
                    prefix = body[pos : pos + size] if size < PREFIX_BYTES else body[pos : pos + PREFIX_BYTES]
                    if prefix not in keys:
                        found.append(Strange(number, True, prefix))
                pos += size
            elif size != -1:
                raise Malformed(f"key of {size} bytes")
            if values is not None:
                size = body[pos]
                pos += 1
                if size >= 0x80:
                    if body[pos] < 0x80:
                        size = size & 0x7F | body[pos] << 7
                        pos += 1
                        size = size >> 1 ^ -(size & 1)
                    else:
                        size, pos = read_varint(body, pos - 1)
                else:
                    size = size >> 1 ^ -(size & 1)
                if size >= 0:
                    prefix = body[pos : pos + size] if size < PREFIX_BYTES else body[pos : pos + PREFIX_BYTES]
                    if prefix not in values:
                        found.append(Strange(number, False, prefix))
                    pos += size
                elif size != -1:
                    raise Malformed(f"value of {size} bytes")
            if pos >= stop:
                raise Malformed(f"record's value ends at {pos}, its length says {stop}")
            pos = stop
    except IndexError:
        raise Malformed("record runs past the end of its batch") from None
    if pos != end:
        raise Malformed(f"{end - pos} bytes follow the {header.record_count} records of a batch")
    return found
