"""The checks that a batch must pass before an append: by a leader for a client, or by a follower as its leader wrote it.

Header checks only, in place. Records are decoded (`record_check`) where the topic's settings need it. Nothing here
writes, so that a refused batch leaves no trace. Follows Kafka's LogValidator and UnifiedLog.analyzeAndValidateRecords.
"""

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from barnabas.base.config.log_config import COMPRESSION_PRODUCER, LONG_MAX, LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.log_types import RECORD_ERRORS_MAX, InvalidRecords, Origin, RecordError
from barnabas.broker.storage.record_check import check_records, recompress, target_codec
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    patch_max_timestamp,
)

#: The bytes up to a magic byte: base offset, length, leader epoch (or CRC, in older formats), magic.
_MAGIC_END: Final = 17
_LENGTH: Final = struct.Struct(">i")
_unpack = HEADER.unpack_from
_new_header = tuple.__new__
_CODEC_MAX: Final = max(Codec)
#: A record's length, attributes, timestamp delta, offset delta, key length, value length and header count: a byte each.
RECORD_BYTES_MIN: Final = 7
#: Bytes of records that one byte of a batch can expand to, by codec. The formats of gzip, snappy and lz4 allow no more. zstd
#: does for a repeated byte; but no two records of a batch have the same offset delta.
RATIO_MAX: Final = (1, 1032, 64, 255, 1032)
#: Smallest size of a v0 message; a batch that claims less is invalid in every format.
_LEGACY_OVERHEAD: Final = 14


def check_leader_batch(
    records: bytearray | memoryview, config: LogConfig, origin: Origin, now_ms: int, partition: TopicPartition
) -> tuple[BatchHeader, bytearray | memoryview, bool]:
    """Check the one batch of a leader's append; stamp it or compress it again if the topic requires that.

    Returns the header, as the producer sent it except for fields that were changed in the batch; the batch alone: without
    trailing bytes, with its timestamp and codec as the topic wants them, writable; and whether it was compressed again. It may
    be appended if its producer's state allows it.
    """
    try:
        header: BatchHeader = _new_header(BatchHeader, _unpack(records))
    except struct.error:
        raise _too_short(records, partition) from None
    base_offset, length, _, magic, crc, attributes, last_delta, _, max_timestamp, producer_id, _, sequence, count = (
        header
    )
    size = length + LOG_OVERHEAD
    if magic != MAGIC_V2:
        raise _wrong_magic(magic, partition)
    if length < MIN_BATCH_LENGTH or size > len(records):
        raise _wrong_length(records, length, partition)
    data = records
    if size != len(records):
        _check_nothing_follows(records, size, partition)
        data = memoryview(records)[:size]
    if size > config.max_message_bytes:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {partition} is {size} bytes which exceeds the maximum configured "
            f"value of {config.max_message_bytes}.",
        )
    view = records if records.__class__ is memoryview else memoryview(records)
    if crc32c(view[ATTRIBUTES_AT:size]) != crc:
        raise _corrupt(f"Record is corrupt (stored crc = {crc})", partition)
    if origin is Origin.CLIENT and (
        base_offset
        or config.barnabas_link_name
        or last_delta + 1 != count
        or count <= 0
        or attributes & CONTROL_FLAG
        or attributes & CODEC_MASK > _CODEC_MAX
        or count * RECORD_BYTES_MIN > (size - HEADER_SIZE) * RATIO_MAX[attributes & CODEC_MASK]
        or (producer_id >= 0 > sequence)
    ):
        raise _refuse_client_batch(header, config, partition)
    stamps_append_time = config.stamps_append_time
    check_times = not stamps_append_time and (
        config.message_timestamp_after_max_ms != LONG_MAX or config.message_timestamp_before_max_ms != LONG_MAX
    )
    # A coordinator writes its own records, and gives each of them a key.
    if check_times or (origin is not Origin.COORDINATOR and config.is_compacted):
        check_records(
            data,
            header,
            config=config,
            now_ms=now_ms,
            partition=partition,
            check_times=check_times and not attributes & CONTROL_FLAG,
        )
    recompressed = False
    if config.compression_type != COMPRESSION_PRODUCER and not attributes & CONTROL_FLAG:
        codec = target_codec(config)
        if codec != attributes & CODEC_MASK:
            data = recompress(data, header, codec=codec, config=config, partition=partition)
            header = _new_header(BatchHeader, _unpack(data))
            recompressed = True
    if stamps_append_time:
        if attributes & TIMESTAMP_TYPE_FLAG:
            raise _stamped_by_producer(count, partition)
        patch_max_timestamp(data, 0, now_ms, log_append_time=True)
        header = _new_header(BatchHeader, _unpack(data))
    elif attributes & TIMESTAMP_TYPE_FLAG:
        if max_timestamp == NO_TIMESTAMP:
            raise _stamped_by_producer(count, partition)
        patch_max_timestamp(data, 0, max_timestamp, log_append_time=False)
        header = _new_header(BatchHeader, _unpack(data))
    return header, data, recompressed


def _check_nothing_follows(records: bytearray | memoryview, size: int, partition: TopicPartition) -> None:
    """Ignore a torn batch at the end, as Kafka does; refuse a second whole one."""
    left = len(records) - size
    if left < LOG_OVERHEAD:
        return
    length: int = _LENGTH.unpack_from(records, size + 8)[0]
    if length < _LEGACY_OVERHEAD:
        raise _corrupt(f"a second batch claims a length of {length}", partition)
    if length + LOG_OVERHEAD <= left:
        raise Refused(
            ErrorCode.INVALID_RECORD, f"an append to {partition} must hold one record batch, this one holds more"
        )


def _too_short(records: bytearray | memoryview, partition: TopicPartition) -> Refused:
    if len(records) >= _MAGIC_END and records[_MAGIC_END - 1] < MAGIC_V2:
        return _wrong_magic(records[_MAGIC_END - 1], partition)
    if len(records) < LOG_OVERHEAD:
        return Refused(
            ErrorCode.INVALID_RECORD, f"an append to {partition} must hold a record batch, this one has none"
        )
    return _wrong_length(records, _LENGTH.unpack_from(records, 8)[0], partition)


def _wrong_length(records: bytearray | memoryview, length: int, partition: TopicPartition) -> Refused:
    """Kafka ignores a torn batch; a length that no batch can have is corruption."""
    why = f"a batch of {len(records)} bytes claims a length of {length}"
    if length < _LEGACY_OVERHEAD or length + LOG_OVERHEAD <= len(records):
        return _corrupt(why, partition)
    return Refused(ErrorCode.INVALID_RECORD, f"an append to {partition} must hold a whole record batch: {why}")


def _wrong_magic(magic: int, partition: TopicPartition) -> Refused:
    if magic in (0, 1):
        return Refused(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{magic} is not accepted in {partition}: only record batches v2 are",
        )
    return _corrupt(f"unknown magic {magic}", partition)


def _corrupt(why: str, partition: TopicPartition) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"{why} in topic partition {partition}.")


def read_only(topic: str, link: str) -> Refused:
    """Return the error for a write to a mirror topic that does not come from its link."""
    return Refused(
        ErrorCode.POLICY_VIOLATION,
        f"topic {topic} mirrors another cluster by the link {link} and is read-only here; "
        f"`barnabas link promote {link} --topic {topic}` makes it writable",
    )


def _refuse_client_batch(header: BatchHeader, config: LogConfig, partition: TopicPartition) -> Refused:
    """Find the client-only check that the batch failed, in Kafka's order, and return Kafka's message."""
    if config.barnabas_link_name:
        return read_only(partition.topic, config.barnabas_link_name)
    where = f"in topic partition {partition}"
    span = f"[{header.base_offset}, {header.last_offset}]"
    if header.base_offset:
        why = f"The baseOffset of the record batch in the append to {partition} should be 0, but it is {header.base_offset}"
    elif header.last_offset_delta < 0:
        why = f"Batch has an invalid offset range: {span} {where}"
    elif header.record_count <= 0:
        why = f"Invalid reported count for record batch: {header.record_count} {where}"
    elif header.last_offset_delta + 1 != header.record_count:
        why = f"Inconsistent batch offset range {span} and count of records {header.record_count} {where}"
    elif header.is_control:
        why = f"Clients are not allowed to write control records {where}"
    elif header.codec > _CODEC_MAX:
        return Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {header.codec} {where}")
    elif header.record_count > records_max(header):
        why = (
            f"A batch of {header.size_bytes} bytes cannot hold the {header.record_count} records that it claims {where}"
        )
    else:
        why = f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id} {where}"
    return Refused(ErrorCode.INVALID_RECORD, why)


def records_max(header: BatchHeader) -> int:
    """Return the largest number of records that a batch of this size can hold."""
    return (header.size_bytes - HEADER_SIZE) * RATIO_MAX[header.codec] // RECORD_BYTES_MIN


def _stamped_by_producer(count: int, partition: TopicPartition) -> InvalidRecords:
    why = f"Invalid timestamp type in {partition}. Producer should not set timestamp type to LogAppendTime."
    return InvalidRecords(
        ErrorCode.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
        [RecordError(index, why) for index in range(min(count, RECORD_ERRORS_MAX))],
    )


def follower_batches(
    records: bytes | bytearray | memoryview, *, log_end_offset: int, partition: TopicPartition
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (end position, header) of every whole batch that a leader sent. Checks CRC, magic and order; decodes no records.

    A torn batch at the end, which a fetch response may contain, ends the iteration.
    """
    position, end = 0, len(records)
    next_offset = log_end_offset
    with memoryview(records) as whole:
        while end - position >= HEADER_SIZE:
            header: BatchHeader = _new_header(BatchHeader, _unpack(whole, position))
            length = header.batch_length
            if header.magic != MAGIC_V2:
                raise _wrong_magic(header.magic, partition)
            if length < MIN_BATCH_LENGTH or header.last_offset_delta < 0:
                raise _corrupt(f"the batch at offset {header.base_offset} claims a length of {length}", partition)
            after = position + LOG_OVERHEAD + length
            if after > end:
                return
            with whole[position + ATTRIBUTES_AT : after] as covered:
                if crc32c(covered) != header.crc:
                    raise _corrupt(
                        f"Record is corrupt (stored crc = {header.crc}) at offset {header.base_offset}", partition
                    )
            if header.base_offset < next_offset:
                raise UnexpectedAppendOffset(header, log_end_offset, next_offset, partition)
            next_offset = header.base_offset + header.last_offset_delta + 1
            if next_offset > LONG_MAX:
                raise _corrupt(f"the batch at offset {header.base_offset} ends beyond the largest offset", partition)
            yield after, header
            position = after
        if position == 0 and end >= _MAGIC_END and whole[_MAGIC_END - 1] < MAGIC_V2:
            raise _wrong_magic(whole[_MAGIC_END - 1], partition)


class UnexpectedAppendOffset(Refused):
    """Records from the leader that do not follow on the log end here: the follower truncates, or starts over."""

    def __init__(self, header: BatchHeader, log_end_offset: int, expected: int, partition: TopicPartition) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"Unexpected offset in append to {partition}: batch [{header.base_offset}, {header.last_offset}] "
            f"begins below {expected}; the log ends at {log_end_offset}",
        )
        self.first_offset = header.base_offset
        self.last_offset = header.last_offset
        self.log_end_offset = log_end_offset
