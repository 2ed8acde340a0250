"""The functions that look inside a batch for the log: keys of compacted topics, timestamps with limits, another codec,
transaction markers, and the search for a timestamp. Pure."""

from typing import Final

from barnabas.base.config.log_config import COMPRESSION_UNCOMPRESSED, LONG_MAX, LogConfig
from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.log_types import RECORD_ERRORS_MAX, InvalidRecords, RecordError
from barnabas.wire.compression import Codec, TooLarge, compress
from barnabas.wire.record_batch import CODEC_MASK, LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader, Buffer
from barnabas.wire.records import (
    EndTxnMarker,
    assemble,
    decode_body,
    iter_keys,
    iter_records,
    read_end_txn_marker,
    records_body,
    validate_records,
)

_ERRORS_SHOWN: Final = 3
#: Limit for decompressing and decoding a batch to find a timestamp. Only a crafted batch is larger: the answer is then an
#: offset in the batch that is not after the right one.
LOOKUP_BYTES_MAX: Final = 16 * 1024 * 1024
LOOKUP_RECORDS_MAX: Final = 50_000


def read_marker(batch: Buffer, header: BatchHeader) -> EndTxnMarker | None:
    """Return a control batch's transaction marker; None if compaction has emptied it."""
    return read_end_txn_marker(batch, 0, header)


def check_framing(batch: Buffer, header: BatchHeader, *, partition: TopicPartition) -> None:
    """Raise `Refused` if the records contradict the header: lengths, offset deltas, count, or bytes after the last record."""
    try:
        validate_records(batch, 0, header)
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}") from None


def check_records(
    batch: Buffer, header: BatchHeader, *, config: LogConfig, now_ms: int, partition: TopicPartition, check_times: bool
) -> None:
    """Raise `InvalidRecords` for records without a key in a compacted topic, and for timestamps out of range."""
    errors: list[RecordError] = []
    error_count = 0
    bad_times = False
    try:
        if not check_times:
            for index, span in enumerate(iter_keys(records_body(batch, 0, header), header)):
                if span.key is None:
                    error_count += 1
                    if error_count <= RECORD_ERRORS_MAX:
                        errors.append(_no_key(index, partition))
        else:
            oldest, newest = (
                now_ms - config.message_timestamp_before_max_ms,
                now_ms + config.message_timestamp_after_max_ms,
            )
            for index, record in enumerate(iter_records(batch, 0, header)):
                has_key = not config.is_compacted or record.key is not None
                if has_key and (record.timestamp == NO_TIMESTAMP or oldest <= record.timestamp <= newest):
                    continue
                error_count += 1
                bad_times = bad_times or has_key
                if error_count <= RECORD_ERRORS_MAX:
                    errors.append(
                        _bad_time(index, record.timestamp, oldest, newest) if has_key else _no_key(index, partition)
                    )
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}") from None
    if bad_times:
        raise InvalidRecords(
            ErrorCode.INVALID_TIMESTAMP, "One or more records have been rejected due to invalid timestamp", errors
        )
    if errors:
        raise invalid_records(error_count, errors)


def invalid_records(error_count: int, errors: list[RecordError]) -> InvalidRecords:
    """Return the error for a batch. `errors`: the first of them, as many as the response lists."""
    shown = "; ".join(error.message for error in errors[:_ERRORS_SHOWN])
    return InvalidRecords(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {error_count} record errors in total, and only showing the "
        f"first three errors at most: {shown}",
        errors,
    )


def _no_key(index: int, partition: TopicPartition) -> RecordError:
    return RecordError(index, f"Compacted topic cannot accept message without key in topic partition {partition}")


def _bad_time(index: int, timestamp: int, oldest: int, newest: int) -> RecordError:
    return RecordError(
        index,
        f"Timestamp {timestamp} of message with offset {index} is out of range. "
        f"The timestamp should be within [{oldest}, {newest}]",
    )


def target_codec(config: LogConfig) -> Codec:
    """Return the codec that `compression.type` demands, if that is not `producer`."""
    if config.compression_type == COMPRESSION_UNCOMPRESSED:
        return Codec.NONE
    return Codec[config.compression_type.upper()]


def recompress(
    batch: Buffer, header: BatchHeader, *, codec: Codec, config: LogConfig, partition: TopicPartition
) -> bytearray:
    """Return the same records in a batch of another codec. Decodes them once, so that no garbage is stored."""
    level = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }.get(codec)
    try:
        body = records_body(batch, 0, header)
        for _ in decode_body(body, header):
            pass
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}") from None
    return bytearray(
        assemble(
            compress(codec, body, level),
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            record_count=header.record_count,
            attributes=header.attributes & ~CODEC_MASK | codec,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    )


def first_record_at_or_after(
    batch: Buffer, header: BatchHeader, *, timestamp: int, from_offset: int
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record with at least this timestamp and this offset."""
    if header.timestamp_type == LOG_APPEND_TIME and header.record_count == header.last_offset_delta + 1:
        # Every record has the batch's append time: no need to decode.
        if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
            return header.max_timestamp, max(header.base_offset, from_offset)
        return None
    try:
        for number, record in enumerate(iter_records(batch, 0, header, max_decompressed_bytes=LOOKUP_BYTES_MAX)):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return min(record.timestamp, LONG_MAX), record.offset
            if number >= LOOKUP_RECORDS_MAX and record.offset >= from_offset:
                return header.max_timestamp, record.offset
    except TooLarge:
        # The record is somewhere in this batch, if the header is right. A reader that starts at the batch misses nothing.
        return header.max_timestamp, max(header.base_offset, from_offset)
    return None
