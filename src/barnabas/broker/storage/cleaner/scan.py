"""Reads only the parts of records that compaction needs: keys in one pass, lengths in the other. The worker's hot loops.

Strict where it costs nothing: the CRC has been checked, so only a faulty producer can have written invalid records. They raise
`Malformed`, and the partition becomes uncleanable.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.wire.varint import encode_varint, read_varint, read_varlong

#: Longer keys are replaced by a digest, which is one byte longer, so that no key equals a digest. Both take 64 bytes of memory
#: as Python allocates bytes.
RAW_KEY_BYTES_MAX: Final = 30
DIGEST_BYTES: Final = 31
#: The first byte of a key's length, zig-zag, if the key is short enough to be used unchanged.
_RAW_KEY_LENGTH_BYTE: Final = RAW_KEY_BYTES_MAX * 2
#: Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each.
RECORD_BYTES_MIN: Final = 7

#: The length of a missing value: -1, zig-zag.
_NO_VALUE: Final = 1
#: Nonzero for a byte of a varint that is followed by another.
_GOES_ON: Final = bytes(byte & 0x80 for byte in range(256))
#: Runs of fewer equal records are read one by one, which is faster.
RUN_MIN: Final = 6

Key = bytes | None


def key_digest(key: bytes) -> bytes:
    """Return the key, or its digest, as the map stores it."""
    return key if len(key) <= RAW_KEY_BYTES_MAX else blake2b(key, digest_size=DIGEST_BYTES).digest()


def scan_keys(body: bytes, pos: int, end: int, count: int, first: int, keys: list[Key], tombstones: list[int]) -> None:
    """Append the key of each record of `body[pos:end]` to `keys`, None without a key; collect records without a value.

    Records are numbered from `first`. Timestamps and offsets are skipped: compaction uses the order of records.
    """
    if count * RECORD_BYTES_MIN > end - pos:
        raise Malformed(f"{count} records in {end - pos} bytes")
    try:
        last = first + count
        while last - first >= RUN_MIN:
            taken, size = _scan_run(body, pos, end, last - first, first, keys, tombstones)
            if not taken:
                break
            first += taken
            pos += taken * size
        pos = _scan_each(body, pos, first, last, keys.append, tombstones)
    except IndexError:
        raise Malformed("record runs past the end of its batch") from None
    if pos != end:
        raise Malformed(f"{count} records end at {pos}, their batch at {end}")


def _scan_run(
    body: bytes, pos: int, end: int, count: int, first: int, keys: list[Key], tombstones: list[int]
) -> tuple[int, int]:
    """Read neighbouring records of one size and layout; return (how many, their size). (0, …): none was read.

    Records of a topic often have one layout. Then a field of all records is a slice with a step, and no record is read alone.
    """
    count, size = _alike_in_size(body, pos, end, count)
    at = pos + (2 if body[pos] < 0x80 else 3)
    for _ in ("timestamp", "offset"):
        goes_on = 0x80
        while goes_on:
            if count < RUN_MIN:
                return 0, 0
            count = _leading(body[at : pos + count * size : size].translate(_GOES_ON))
            goes_on = body[at] & 0x80
            at += 1
    count = min(count, _leading(body[at : pos + count * size : size]))
    key_bytes = body[at] >> 1
    start = at + 1
    value = start + key_bytes
    if count < RUN_MIN or body[at] > _RAW_KEY_LENGTH_BYTE or body[at] & 1 or value >= pos + size:
        return 0, 0
    stop = pos + count * size
    keys += [body[at : at + key_bytes] for at in range(start, stop, size)]
    values = body[value:stop:size]
    number = values.find(_NO_VALUE)
    while number >= 0:
        tombstones.append(first + number)
        number = values.find(_NO_VALUE, number + 1)
    return count, size


def _alike_in_size(body: bytes, pos: int, end: int, count: int) -> tuple[int, int]:
    """Return how many of `count` records from `pos` on are as long as the first, and that size; (0, 0) if it is too long."""
    size = body[pos]
    if size < 0x80:
        size = 1 + (size >> 1)
    elif body[pos + 1] < 0x80:
        size = 2 + ((size & 0x7F | body[pos + 1] << 7) >> 1)
    else:
        return 0, 0
    if size < RECORD_BYTES_MIN or body[pos : pos + 2] != body[pos + size : pos + size + 2]:
        return 0, 0
    count = min(count, (end - pos) // size)
    count = _leading(body[pos : pos + count * size : size])
    if body[pos] >= 0x80:
        count = _leading(body[pos + 1 : pos + count * size : size])
    return count, size


def _leading(column: bytes) -> int:
    """Return how many bytes at the beginning are equal."""
    return len(column) - len(column.lstrip(column[:1]))


def _scan_each(
    body: bytes, pos: int, first: int, last: int, append: Callable[[Key], None], tombstones: list[int]
) -> int:
    """Read the records `first` to `last` one by one; return where the last of them ends."""
    for number in range(first, last):
        size = body[pos]
        if size < 0x80:
            at = pos + 2
            stop = pos + 1 + (size >> 1)
        else:
            more = body[pos + 1]
            if more < 0x80:
                at = pos + 3
                stop = pos + 2 + ((size & 0x7F | more << 7) >> 1)
            else:
                stop, at = _long_record(body, pos)
        while body[at] >= 0x80:
            at += 1
        at += 1
        while body[at] >= 0x80:
            at += 1
        size = body[at + 1]
        at += 2
        if size <= _RAW_KEY_LENGTH_BYTE and not size & 1:
            pos = at + (size >> 1)
            append(body[at:pos])
        else:
            key, pos = _other_key(body, at - 1)
            append(key)
        if body[pos] == _NO_VALUE:
            tombstones.append(number)
        if pos >= stop:
            raise Malformed(f"record's key ends at {pos}, its length says {stop}")
        pos = stop
    return pos


def scan_one(
    body: bytes, pos: int, end: int, number: int, append: Callable[[Key], None], tombstones: list[int]
) -> bool:
    """Read a batch of one record, as a producer without linger writes it; False if it is not that simple.

    Its timestamp and offset deltas are 0, a byte each, and its key is short.
    """
    if end - pos < RECORD_BYTES_MIN or body[pos + 1] >= 0x80:
        return False
    size = body[pos]
    if size < 0x80:
        at = pos + 2
        size >>= 1
    else:
        at = pos + 3
        size = (size & 0x7F | body[pos + 1] << 7) >> 1
    if at - 1 + size != end or body[at] or body[at + 1]:
        return False
    size = body[at + 2]
    if size > _RAW_KEY_LENGTH_BYTE or size & 1:
        return False
    stop = at + 3 + (size >> 1)
    if stop >= end:
        return False
    append(body[at + 3 : stop])
    if body[stop] == _NO_VALUE:
        tombstones.append(number)
    return True


def _long_record(body: bytes, pos: int) -> tuple[int, int]:
    """Return (where the record ends, where its timestamp begins)."""
    size, at = read_varint(body, pos)
    if size < 0:
        raise Malformed(f"record of {size} bytes")
    return at + size, at + 1


def _other_key(body: bytes, pos: int) -> tuple[Key, int]:
    size, at = read_varint(body, pos)
    if size == -1:
        return None, at
    if size < 0 or at + size > len(body):
        raise Malformed(f"key of {size} bytes")
    return key_digest(body[at : at + size]), at + size


def record_starts(body: bytes, pos: int, end: int, count: int) -> list[int]:
    """Return where each record begins, and where the last one ends: `count + 1` positions."""
    starts: list[int] = []
    append = starts.append
    left = count
    try:
        while left >= RUN_MIN:
            alike, size = _alike_in_size(body, pos, end, left)
            if alike < RUN_MIN:
                break
            starts += range(pos, pos + alike * size, size)
            pos += alike * size
            left -= alike
        for _ in range(left):
            append(pos)
            size = body[pos]
            if size < 0x80:
                pos += 1 + (size >> 1)
            else:
                more = body[pos + 1]
                if more < 0x80:
                    pos += 2 + ((size & 0x7F | more << 7) >> 1)
                else:
                    size, pos = read_varint(body, pos)
                    pos += size
    except IndexError:
        raise Malformed("record runs past the end of its batch") from None
    if pos != end:
        raise Malformed(f"{count} records end at {pos}, their batch at {end}")
    append(pos)
    return starts


def largest_timestamp_delta(body: bytes, starts: Iterable[int]) -> int:
    """Return the largest timestamp delta of the records at `starts`, at least one."""
    return max(_timestamp_delta(body, start) for start in starts)


def _timestamp_delta(body: bytes, start: int) -> int:
    # A byte of attributes lies between the record's length and its timestamp.
    if body[start] < 0x80:
        at = start + 2
    elif body[start + 1] < 0x80:
        at = start + 3
    else:
        at = read_varint(body, start)[1] + 1
    low = body[at]
    if low < 0x80:
        return low >> 1 ^ -(low & 1)
    return read_varlong(body, at)[0]


def shift_timestamp(body: bytes, start: int, stop: int, shift: int) -> tuple[bytes, int]:
    """Return the record `body[start:stop]` with `shift` added to its timestamp delta, and the former delta."""
    _, at = read_varint(body, start)
    delta, rest = read_varlong(body, at + 1)
    record = body[at : at + 1] + encode_varint(delta + shift) + body[rest:stop]
    return encode_varint(len(record)) + record, delta
