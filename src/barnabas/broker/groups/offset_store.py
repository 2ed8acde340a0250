"""The committed offsets of one shard, and offsets whose transaction is open. Pure; only replay changes them."""

from collections.abc import Iterator
from typing import NamedTuple


class OffsetCommit(NamedTuple):
    """The content of a record that commits an offset."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    #: -1: the offset expires with the group (KIP-211); otherwise at this time, as clients before Kafka 2.1 could ask.
    expire_timestamp_ms: int
    #: Offset of this record in the log. The later record wins if a transaction commits late.
    record_offset: int


#: Offsets by topic and partition.
GroupOffsets = dict[str, dict[int, CommittedOffset]]


class _Offsets:
    """Offsets by group, topic and partition, without empty entries."""

    __slots__ = ("by_group",)

    def __init__(self) -> None:
        self.by_group: dict[str, GroupOffsets] = {}

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        topics = self.by_group.get(group_id)
        if topics is None:
            return None
        partitions = topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, group_id: str, topic: str, partition: int, offset: CommittedOffset) -> None:
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = offset

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.by_group.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is None or partitions is None or partitions.pop(partition, None) is None:
            return
        if not partitions:
            del topics[topic]
        if not topics:
            del self.by_group[group_id]


class OffsetStore:
    def __init__(self) -> None:
        self._committed = _Offsets()
        #: Offsets of open transactions, by producer id.
        self._pending: dict[int, _Offsets] = {}
        #: Producer ids with pending offsets, by group.
        self._open: dict[str, set[int]] = {}

    # -- queries -----------------------------------------------------------------------------------------------------

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group_id, topic, partition)

    def of_group(self, group_id: str) -> GroupOffsets:
        """Return the group's offsets. The caller must not change them."""
        return self._committed.by_group.get(group_id, {})

    def has_open_transaction(self, group_id: str) -> bool:
        return group_id in self._open

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for the partition."""
        return any(
            self._pending[producer_id].get(group_id, topic, partition) is not None
            for producer_id in self._open.get(group_id, ())
        )

    def pending_of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        for producer_id in self._open.get(group_id, ()):
            for topic, partitions in self._pending[producer_id].by_group.get(group_id, {}).items():
                for partition in partitions:
                    yield topic, partition

    def holding(self, topic: str) -> set[tuple[str, int]]:
        """Return groups and partitions that have an offset for the topic, including pending ones."""
        found: set[tuple[str, int]] = set()
        for offsets in (self._committed, *self._pending.values()):
            for group_id, topics in offsets.by_group.items():
                found.update((group_id, partition) for partition in topics.get(topic, ()))
        return found

    @property
    def count(self) -> int:
        return sum(len(each) for topics in self._committed.by_group.values() for each in topics.values())

    # -- replay --------------------------------------------------------------------------------------------------------

    def replay(self, commit: OffsetCommit, *, record_offset: int, producer_id: int) -> None:
        group_id, topic, partition, offset, leader_epoch, metadata, commit_ms, expire_ms = commit
        committed = CommittedOffset(offset, leader_epoch, metadata, commit_ms, expire_ms, record_offset)
        if producer_id < 0:
            self._committed.put(group_id, topic, partition, committed)
        else:
            self._pending.setdefault(producer_id, _Offsets()).put(group_id, topic, partition, committed)
            self._open.setdefault(group_id, set()).add(producer_id)

    def replay_tombstone(self, group_id: str, topic: str, partition: int) -> None:
        self._committed.remove(group_id, topic, partition)
        for each in self._open.get(group_id, ()):
            self._pending[each].remove(group_id, topic, partition)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        pending = self._pending.pop(producer_id, None)
        if pending is None:
            return
        for group_id in [group_id for group_id, open_ids in self._open.items() if producer_id in open_ids]:
            self._open[group_id].discard(producer_id)
            if not self._open[group_id]:
                del self._open[group_id]
        if not is_commit:
            return
        for group_id, topics in pending.by_group.items():
            for topic, partitions in topics.items():
                for partition, offset in partitions.items():
                    current = self._committed.get(group_id, topic, partition)
                    # A plain commit with a later record wins, although the marker is even later.
                    if current is None or offset.record_offset > current.record_offset:
                        self._committed.put(group_id, topic, partition, offset)
