"""The metadata of a segment in the tier, and the events that change it. Pure.

The events are the records of `__remote_log_metadata`; `features.tiered.metadata_records` has their bytes.
"""

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition, format_uuid


class SegmentState(IntEnum):
    """Kafka's codes. Only a segment whose copy is finished can be read."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


#: Allowed next states; None: the segment is unknown. A repeated event changes nothing.
TRANSITIONS: Final[dict[SegmentState | None, frozenset[SegmentState]]] = {
    None: frozenset({SegmentState.COPY_STARTED}),
    SegmentState.COPY_STARTED: frozenset(
        {SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}
    ),
    SegmentState.COPY_FINISHED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED}),
}


class Mark(NamedTuple):
    """Additional fields of our events, in the custom metadata that Kafka stores without interpreting it."""

    #: Leader epoch of the writer. A leader does not treat a later leader's copy as abandoned.
    leader_epoch: int
    #: For DELETE_STARTED: the event applies only while the copy is unfinished; else every broker drops it. So a leader that
    #: removes an abandoned copy cannot remove one that was finished meanwhile.
    if_unfinished: bool = False

    def encode(self) -> bytes:
        return _MARK.pack(_MARK_MAGIC, self.if_unfinished, self.leader_epoch)

    @staticmethod
    def of(custom: bytes | None) -> "Mark | None":
        """None: other software wrote it."""
        if custom is None or len(custom) != _MARK.size or not custom.startswith(_MARK_MAGIC):
            return None
        _, if_unfinished, leader_epoch = _MARK.unpack(custom)
        return Mark(leader_epoch, if_unfinished)


_MARK: Final = struct.Struct(">4s?i")
_MARK_MAGIC: Final = b"bnb1"


class TierPartition(NamedTuple):
    """A partition of one incarnation of a topic: a recreated topic has another id and shares nothing with the former one."""

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
    #: 16 bytes: each attempt to copy a segment has its own.
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
    #: Offset of the last record, inclusive as in Kafka.
    end_offset: Offset
    max_timestamp: int
    #: Broker that wrote the last event.
    broker_id: BrokerId
    event_ms: int
    #: Size of the records, without the indexes.
    size_bytes: int
    #: Leader epochs of the records, ascending, with their start offsets within the segment.
    epochs: dict[LeaderEpoch, Offset]
    state: SegmentState = SegmentState.COPY_STARTED
    custom: bytes | None = None
    #: No transaction was aborted in it (KIP-1058): readers need not fetch the transaction index.
    txn_index_empty: bool = False

    @property
    def is_finished(self) -> bool:
        return self.state is SegmentState.COPY_FINISHED

    @property
    def mark(self) -> Mark | None:
        return Mark.of(self.custom)

    def epoch_end(self, epoch: int) -> Offset:
        """Return the last offset of an epoch within the segment."""
        later = [start for other, start in self.epochs.items() if other > epoch]
        return Offset(min(later) - 1) if later else self.end_offset

    def updated(self, update: "SegmentUpdate") -> "RemoteSegment":
        return replace(
            self, state=update.state, broker_id=update.broker_id, event_ms=update.event_ms, custom=update.custom
        )


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """A change of a known segment's state."""

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
    """The removal of a partition from the tier. Kafka defines the record but does not write it either: segments go one by
    one."""

    of: TierPartition
    state: PartitionDeleteState
    event_ms: int
    broker_id: BrokerId


Event = RemoteSegment | SegmentUpdate | PartitionDelete


def partition_of_event(event: Event) -> TierPartition:
    return event.of if isinstance(event, PartitionDelete) else event.id.of
