"""The broker's jobs for its compaction worker, and the worker's reports: plain values, JSON on the pipe."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class SourceSegment(NamedTuple):
    """An inactive segment to clean. `end_offset` is the base offset of the next segment."""

    base_offset: int
    size_bytes: int
    end_offset: int


class LastRecord(NamedTuple):
    """A producer's batch that must stay: the one with its last data, or its last marker if it has no data (-1)."""

    last_data_offset: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanJob:
    """One cleaning of one log. Everything below `end_offset` is decided, replicated and in inactive segments."""

    partition: str
    directory: str
    #: Ascending, without a gap, from the first segment of the log to the last that is cleanable.
    segments: tuple[SourceSegment, ...]
    #: Base offsets of the later segments, whose index may name aborted transactions of these.
    later_segments: tuple[int, ...]
    first_dirty_offset: int
    #: The first uncleanable offset: the base offset of the first segment after `segments`.
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    #: This worker's share of `log.cleaner.dedupe.buffer.size`, for the map of keys and the flags of records.
    dedupe_buffer_bytes: int
    io_buffer_bytes: int
    #: None: no limit.
    io_bytes_per_second: float | None = None
    #: Active producers whose last batch may be in `segments`, by producer id.
    producers: dict[int, LastRecord] = field(default_factory=dict)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "CleanJob":
        fields: dict[str, Any] = json.loads(data)
        fields["segments"] = tuple(SourceSegment(*segment) for segment in fields["segments"])
        fields["later_segments"] = tuple(fields["later_segments"])
        fields["producers"] = {int(pid): LastRecord(*last) for pid, last in fields["producers"].items()}
        return cls(**fields)


@dataclass(slots=True)
class CleanStats:
    """Numbers of one cleaning. Bytes and records are those of the second pass, as Kafka counts them."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    #: Records without a key, which a compacted topic cannot keep.
    invalid_records: int = 0
    map_s: float = 0.0
    total_s: float = 0.0
    #: How full the map of keys was, from 0 to 1.
    buffer_utilization: float = 0.0


class GroupCleaned(NamedTuple):
    """The `.cleaned` files at `base_offset` are complete and durable: they replace these segments."""

    base_offset: int
    replaced: tuple[int, ...]


class Finished(NamedTuple):
    """Every group has been reported. Everything below `next_dirty_offset` is clean now."""

    next_dirty_offset: int
    stats: CleanStats


class Failed(NamedTuple):
    """The job ended early. `errno` of an I/O error; 0: the log's data is invalid."""

    message: str
    errno: int


class Died(NamedTuple):
    """The worker ended without a report: it was killed, or ran out of memory."""

    message: str
    #: False: it could not be started, for want of descriptors or memory. That does not count against the log.
    was_running: bool = True


Report = GroupCleaned | Finished | Failed | Died


def encode_report(report: Report) -> bytes:
    if isinstance(report, GroupCleaned):
        content: dict[str, Any] = {"group": [report.base_offset, report.replaced]}
    elif isinstance(report, Finished):
        content = {"finished": [report.next_dirty_offset, asdict(report.stats)]}
    elif isinstance(report, Failed):
        content = {"failed": list(report)}
    else:
        raise ValueError(f"{report} cannot be sent through the pipe")
    return json.dumps(content, separators=(",", ":")).encode()


def decode_report(data: bytes) -> Report:
    content: dict[str, Any] = json.loads(data)
    if (group := content.get("group")) is not None:
        return GroupCleaned(group[0], tuple(group[1]))
    if (finished := content.get("finished")) is not None:
        return Finished(finished[0], CleanStats(**finished[1]))
    return Failed(*content["failed"])
