"""The values that `Log` takes and returns."""

from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import LeaderEpoch, Offset
from barnabas.broker.storage.producer_append import AppendOrigin as Origin

if TYPE_CHECKING:
    from barnabas.broker.storage.file_handle import FileRange

__all__ = [
    "AppendInfo",
    "InvalidRecords",
    "OffsetMetadata",
    "Origin",
    "ReadResult",
    "RecordError",
    "TimestampedOffset",
]

NO_LOG_APPEND_TIME: Final = -1
#: Index entries are offsets relative to the segment's base, in 32 bits.
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
#: Refused records that one response lists. Kafka lists all: for a batch of 1 MB the response could have 20 MB.
RECORD_ERRORS_MAX: Final = 100


class RecordError(NamedTuple):
    """The index of a refused record in its batch, and the reason: sent with Produce v8 and later (KIP-467)."""

    batch_index: int
    message: str


class InvalidRecords(Refused):
    """A batch that was refused because of some of its records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class AppendInfo(NamedTuple):
    """The result of an append. For a `duplicate` nothing was written: the offsets are those of the first append."""

    first_offset: Offset
    last_offset: Offset
    #: The broker's time, if the batch was stamped with it; -1 if the topic keeps the producer's time (CreateTime).
    log_append_time_ms: int
    log_start_offset: Offset
    record_count: int
    size_bytes: int
    duplicate: bool = False
    #: `flush.messages` is reached: flush (`LogFlusher.flush_then`) before the append is acknowledged.
    flush_due: bool = False
    #: Whether the records were decoded and encoded again (`compression.type`).
    recompressed: bool = False


class OffsetMetadata(NamedTuple):
    """An offset and the position of its batch, so that distances in bytes need no look-up."""

    offset: Offset
    segment_base_offset: Offset
    position: int


class ReadResult(NamedTuple):
    """Whole batches, the first of which holds or follows the requested offset. Release every range."""

    ranges: "list[FileRange]"
    size_bytes: int
    #: The position at which the read began.
    start: OffsetMetadata
    #: All records of the ranges are below it: the upper bound for `aborted_transactions`.
    upper_offset: Offset
    #: `max_bytes` ended the read inside a segment: the next batch did not fit.
    is_cut: bool = False

    def release(self) -> None:
        for file_range in self.ranges:
            file_range.release()

    def read(self) -> bytes:
        """Return a copy of the bytes, and release the ranges."""
        data = b"".join([file_range.read() for file_range in self.ranges])
        self.release()
        return data


class TimestampedOffset(NamedTuple):
    """Answer of ListOffsets."""

    timestamp: int
    offset: Offset
    leader_epoch: LeaderEpoch | None
