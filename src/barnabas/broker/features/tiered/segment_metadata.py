"""What is known of a segment in the tier, and the events by which it becomes known. Pure.

The events are the records of `__remote_log_metadata`; `features.tiered.metadata_records` has their bytes.
"""

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition, format_uuid


class SegmentState(IntEnum):
    """Kafka's codes. Only a segment whose copy is finished is read."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


#: What may follow on a state; None: nothing is known of the segment. An event that comes twice changes nothing.
TRANSITIONS: Final[dict[SegmentState | None, frozenset[SegmentState]]] = {
    None: frozenset({SegmentState.COPY_STARTED}),
    SegmentState.COPY_STARTED: frozenset(
        {SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}
    ),
    SegmentState.COPY_FINISHED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED}),
}


class Mark(NamedTuple):
    """What our events say beside Kafka's fields, in the custom metadata, which Kafka keeps and does not read."""

    #: Under which the event was written. A leader takes no copy for an orphan that a later leader has begun.
    leader_epoch: int
    #: Of DELETE_STARTED: it counts only while the copy is not finished, and is dropped otherwise, by everybody. So a leader
    #: that removes what another left in mid-copy does not remove what that one has finished meanwhile.
    if_unfinished: bool = False

    def encode(self) -> bytes:
        return _MARK.pack(_MARK_MAGIC, self.if_unfinished, self.leader_epoch)

    @staticmethod
    def of(custom: bytes | None) -> "Mark | None":
        """None: somebody else wrote it."""
        if custom is None or len(custom) != _MARK.size or not custom.startswith(_MARK_MAGIC):
            return None
        _, if_unfinished, leader_epoch = _MARK.unpack(custom)
        return Mark(leader_epoch, if_unfinished)


_MARK: Final = struct.Struct(">4s?i")
_MARK_MAGIC: Final = b"bnb1"


class TierPartition(NamedTuple):
    """A partition of one life of a topic: deleted and made again, it has another id and shares nothing with its former self."""

    topic_id: TopicId
    topic: str
    partition: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{format_uuid(self.topic_id)}:{self.topic}-{self.partition}"


class RemoteSegmentId(NamedTuple):
    topic_id: TopicId
    topic: str
    partition: int
    #: 16 bytes: each attempt to copy a segment has another.
    uuid: bytes

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def of(self) -> TierPartition:
        return TierPartition(self.topic_id, self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{format_uuid(self.uuid)}"


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    id: RemoteSegmentId
    start_offset: Offset
    #: Of the last record, as Kafka counts.
    end_offset: Offset
    max_timestamp: int
    #: Who wrote the last event.
    broker_id: BrokerId
    event_ms: int
    #: Of the records; the indexes come on top.
    size_bytes: int
    #: Leader epochs of its records, ascending, and where each starts within it.
    epochs: dict[LeaderEpoch, Offset]
    state: SegmentState = SegmentState.COPY_STARTED
    custom: bytes | None = None
    #: No transaction was aborted in it (KIP-1058): nobody needs to fetch its transaction index.
    txn_index_empty: bool = False

    @property
    def is_finished(self) -> bool:
        return self.state is SegmentState.COPY_FINISHED

    @property
    def mark(self) -> Mark | None:
        return Mark.of(self.custom)

    def epoch_end(self, epoch: int) -> Offset:
        """The last offset of an epoch within the segment."""
        later = [start for other, start in self.epochs.items() if other > epoch]
        return Offset(min(later) - 1) if later else self.end_offset

    def updated(self, update: "SegmentUpdate") -> "RemoteSegment":
        return replace(
            self, state=update.state, broker_id=update.broker_id, event_ms=update.event_ms, custom=update.custom
        )


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """Another state of a segment that is known."""

    id: RemoteSegmentId
    state: SegmentState
    event_ms: int
    broker_id: BrokerId
    custom: bytes | None = None


class PartitionDeleteState(IntEnum):
    MARKED = 0
    STARTED = 1
    FINISHED = 2


@dataclass(frozen=True, slots=True)
class PartitionDelete:
    """A partition goes from the tier. Kafka has the record, and does not write it either: its segments go one by one."""

    of: TierPartition
    state: PartitionDeleteState
    event_ms: int
    broker_id: BrokerId


Event = RemoteSegment | SegmentUpdate | PartitionDelete


def partition_of_event(event: Event) -> TierPartition:
    return event.of if isinstance(event, PartitionDelete) else event.id.of
