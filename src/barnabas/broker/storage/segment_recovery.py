"""Reads a segment whole after an unclean stop: checks CRCs, rebuilds indexes, and cuts the file at the first damage.

Any thread. Fast because it does little: big reads into one buffer, one `struct` read and one CRC per batch. It decodes only
transaction markers.
"""

import logging
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from barnabas.base.errors import Malformed, Refused
from barnabas.base.host.disk import TMP_SUFFIX, Disk
from barnabas.broker.storage.epoch_cache import LeaderEpochCache
from barnabas.broker.storage.log_types import RELATIVE_OFFSET_MAX, Origin
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.record_check import read_marker
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segment_batches import CorruptSegment
from barnabas.broker.storage.txn_index import AbortedTxn, TransactionIndex
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CONTROL_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
    BatchHeader,
)

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
#: The start of messages before v2: offset, size, CRC-32 of the rest, magic.
_LEGACY: Final = struct.Struct(">qiIb")
_LEGACY_CRC_FROM: Final = 16
_LEGACY_SIZE_MIN: Final = 14
_unpack = HEADER.unpack_from
_new_header = tuple.__new__


class UnsupportedMessageFormat(CorruptSegment):
    """Whole and valid messages of Kafka before 0.11 (v0, v1): refused, and never cut off as if they were garbage."""


class RecoveredSegment(NamedTuple):
    #: Offset after the last good batch.
    next_offset: int
    cut_bytes: int
    #: Whether offsets are missing between its batches: the segment was compacted.
    has_gaps: bool


class _Damage(Exception):
    """The end of the valid batches. The message is the reason for the cut."""


def recover_segment(
    segment: Segment,
    *,
    producers: ProducerStateManager,
    epochs: LeaderEpochCache,
    start_offset: int,
    end_offset: int | None,
    disk: Disk,
    before_cut: Callable[[], None],
) -> RecoveredSegment:
    """Rebuild all state from the segment's batches, and cut the file after the last good one.

    Valid batches lie in [start_offset, end_offset): after the previous segment, and before the next one. `producers` must
    reflect all earlier segments; afterwards it reflects this one too. `before_cut` is called if there is something to cut.
    """
    next_offset = max(start_offset, segment.base_offset)
    builder = segment.index_builder(segment.size_bytes)
    txn_index = segment.txn_index
    txn_index.reset()
    valid, has_gaps = 0, False
    limit = segment.base_offset + RELATIVE_OFFSET_MAX + 1
    if end_offset is not None:
        limit = min(limit, end_offset)
    latest_epoch = -1 if epochs.latest_epoch is None else int(epochs.latest_epoch)
    try:
        for position, raw, view, at in _checked_batches(segment, disk):
            base, length, epoch, _, _, _, last_delta, _, max_timestamp, producer_id, _, _, _ = raw
            if base != next_offset:
                has_gaps = True
            if base < next_offset or last_delta < 0 or base + last_delta >= limit:
                raise _Damage(f"offsets [{base}, {base + last_delta}] are not within [{next_offset}, {limit})")
            if 0 <= epoch < latest_epoch:
                # The file was truncated and written over, and the end of the new records is lost.
                raise _Damage(f"offset {base} has leader epoch {epoch}, but follows leader epoch {latest_epoch}")
            if producer_id >= 0:
                with view[at : at + length + LOG_OVERHEAD] as batch:
                    _apply(producers, txn_index, _new_header(BatchHeader, raw), batch)
            if epoch > latest_epoch:
                latest_epoch = epoch
                epochs.assign(epoch, base)
            next_offset = base + last_delta + 1
            if max_timestamp > builder.max_timestamp or position > builder.next_entry_after:
                builder.add(position, next_offset - 1, max_timestamp)
            valid = position + length + LOG_OVERHEAD
    except _Damage as damage:
        logger.warning(
            "[segment %s] cutting it at position %d of %d, before offset %d; the leader sends later records again: %s",
            segment.log_path,
            valid,
            segment.size_bytes,
            next_offset,
            damage,
        )
    cut = segment.size_bytes - valid
    if cut:
        before_cut()
        disk.truncate(segment.file.fd, valid)
        segment.size_bytes = valid
    segment.take_indexes(builder)
    producers.update_map_end_offset(next_offset)
    return RecoveredSegment(next_offset, cut, has_gaps)


def _apply(
    producers: ProducerStateManager, txn_index: TransactionIndex, header: BatchHeader, batch: memoryview
) -> None:
    try:
        marker = read_marker(batch, header) if header.attributes & CONTROL_FLAG else None
        plan = producers.analyze(((header, marker),), Origin.REPLICATION)
    except (Malformed, Refused) as error:
        raise _Damage(str(error)) from None
    for append in plan.appends:
        producers.update(append)
    for completed in plan.completed:
        if completed.is_aborted:
            stable = producers.last_stable_offset(completed)
            txn_index.append(AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable))
        producers.complete_txn(completed)


def rebuild_txn_index(segment: Segment, producers: ProducerStateManager, disk: Disk) -> None:
    """Rebuild the index of aborted transactions; `producers` reflects all earlier segments.

    The new file is on disk before it gets its name. A flush skips segments below the recovery point, and an index that lacks
    its last entries looks complete: read_committed consumers would read aborted records.
    """
    path = segment.txn_index.path
    aside = TransactionIndex(path + TMP_SUFFIX, segment.base_offset, disk=disk)
    disk.unlink(aside.path)
    try:
        for position, header in segment.headers(0):
            if header.producer_id >= 0:
                with memoryview(segment.batch_bytes(position, header.size_bytes)) as batch:
                    _apply(producers, aside, header, batch)
    except (CorruptSegment, _Damage) as error:
        # If this is the last segment, it is read whole later. Readers of another one get an error; the other logs must load.
        logger.error(
            "[segment %s] the log is damaged, its index of aborted transactions ends there: %s", segment.log_path, error
        )
    if aside.exists:
        disk.fsync_path(aside.path)
        disk.rename(aside.path, path)
    else:
        disk.unlink(path)
    segment.forget_txn_index()


def _checked_batches(segment: Segment, disk: Disk) -> Iterator[tuple[int, tuple[int, ...], memoryview, int]]:
    """Yield (position, header fields, buffer, index in it) of every batch with a valid CRC; `_Damage` at the first bad one.

    The buffer is valid until the next step.
    """
    fd, end = segment.file.fd, segment.size_bytes
    buffer = bytearray(min(_READ_BYTES, end))
    position = 0
    while position < end:
        with memoryview(buffer) as view:
            filled = _fill(disk, fd, view, position)
            at = 0
            while filled - at >= HEADER_SIZE:
                raw = _unpack(view, at)
                length = raw[1]
                if raw[3] != MAGIC_V2 or length < MIN_BATCH_LENGTH:
                    raise _not_a_batch(segment, raw, position + at, view[at:filled])
                after = at + LOG_OVERHEAD + length
                if after > filled:
                    break
                if crc32c(view[at + ATTRIBUTES_AT : after]) != raw[4]:
                    raise _Damage(f"the batch at offset {raw[0]} fails its CRC")
                yield position + at, raw, view, at
                at = after
            if at == 0:
                needed = LOG_OVERHEAD + length if filled >= HEADER_SIZE else HEADER_SIZE
                if position + needed > end or filled >= needed:
                    raise _torn(segment, view[:filled], position, needed, end)
        if at == 0:
            buffer = bytearray(needed)
        position += at


def _fill(disk: Disk, fd: int, view: memoryview, position: int) -> int:
    filled = 0
    while filled < len(view) and (got := disk.preadinto(fd, view[filled:], position + filled)):
        filled += got
    return filled


def _torn(segment: Segment, view: memoryview, position: int, needed: int, end: int) -> Exception:
    legacy = _legacy_format(view)
    if legacy is not None:
        return _unsupported(segment, legacy, position)
    return _Damage(f"a batch of {needed} bytes is torn, the file has only {end - position} of them")


def _not_a_batch(segment: Segment, raw: tuple[int, ...], position: int, view: memoryview) -> Exception:
    legacy = _legacy_format(view)
    if legacy is not None:
        return _unsupported(segment, legacy, position)
    if not any(view[:HEADER_SIZE]):
        return _Damage("zeros instead of a batch")
    return _Damage(f"no batch: length {raw[1]}, magic {raw[3]}")


def _legacy_format(view: memoryview) -> int | None:
    """Return 0 or 1 if a whole message of that format with a valid CRC begins here, else None."""
    if len(view) < _LEGACY.size:
        return None
    _, size, crc, magic = _LEGACY.unpack_from(view)
    if magic not in (0, 1) or size < _LEGACY_SIZE_MIN or LOG_OVERHEAD + size > len(view):
        return None
    return magic if zlib.crc32(view[_LEGACY_CRC_FROM : LOG_OVERHEAD + size]) == crc else None


def _unsupported(segment: Segment, magic: int, position: int) -> UnsupportedMessageFormat:
    return UnsupportedMessageFormat(
        f"{segment.log_path}: the message at position {position} has format v{magic} of Kafka before 0.11, which is not "
        "supported: convert the topic with Apache Kafka first"
    )
