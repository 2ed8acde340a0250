"""What goes into a log and what comes out: the values that callers of `Log` hold."""

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
#: Indexes hold offsets relative to their segment's base, in 32 bits.
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
#: Records of a refused batch that the answer lists. Kafka lists all: a batch of 1 MB would get an answer of 20 MB.
RECORD_ERRORS_MAX: Final = 100


class RecordError(NamedTuple):
    """Which record of the batch was refused, and why: goes out with Produce v8 and later (KIP-467)."""

    batch_index: int
    message: str


class InvalidRecords(Refused):
    """A batch refused for what some of its records are."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class AppendInfo(NamedTuple):
    """What an append did. For a `duplicate` nothing was written: the offsets are those of the first time."""

    first_offset: Offset
    last_offset: Offset
    #: The broker's time that the batch was stamped with; -1 where the topic keeps the producer's (CreateTime).
    log_append_time_ms: int
    log_start_offset: Offset
    record_count: int
    size_bytes: int
    duplicate: bool = False
    #: `flush.messages` is reached: flush (`LogFlusher.flush_then`) before the append is acknowledged.
    flush_due: bool = False
    #: Whether the records had to be decoded and encoded again (`compression.type`).
    recompressed: bool = False


class OffsetMetadata(NamedTuple):
    """An offset and where its batch is, so that distances in bytes need no look-up."""

    offset: Offset
    segment_base_offset: Offset
    position: int


class ReadResult(NamedTuple):
    """Whole batches, the first of which holds or follows the offset asked for. Release every range."""

    ranges: "list[FileRange]"
    size_bytes: int
    #: Where the read began.
    start: OffsetMetadata
    #: No record of the ranges is at or above it: the upper bound for `aborted_transactions`.
    upper_offset: Offset
    #: `max_bytes` ended the read, in the middle of a segment: the next batch did not fit.
    is_cut: bool = False

    def release(self) -> None:
        for file_range in self.ranges:
            file_range.release()

    def read(self) -> bytes:
        """The bytes, copied; then released."""
        data = b"".join([file_range.read() for file_range in self.ranges])
        self.release()
        return data


class TimestampedOffset(NamedTuple):
    """Answer of ListOffsets."""

    timestamp: int
    offset: Offset
    leader_epoch: LeaderEpoch | None
