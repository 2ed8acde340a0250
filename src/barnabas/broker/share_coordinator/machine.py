"""The share partitions of one partition of `__share_group_state`: the operations on them, and their effects.

A pure machine. Operations return a `Result`: the record to write, the answer, effects. Only `replay` changes the state, apart
from the topics whose states are being removed, which a fail-over may forget. Every operation has an answer, also an error: an
error may depend on uncommitted records too, so it waits for their commit. Follows Kafka's ShareCoordinatorShard.

A write appends an update; after `share.coordinator.snapshot.update.records.per.snapshot` of them it appends a snapshot, which
is all that a new coordinator needs of the share partition. Records before the oldest snapshot of all share partitions are
deleted. A share partition that does not change would hold that back, so its snapshot is repeated.
"""

from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId
from barnabas.broker.runtime.machine import (
    Effect,
    KeyValue,
    Marker,
    ReplayedRecord,
    Result,
    SendToDriver,
    SetTimer,
    Ticket,
)
from barnabas.broker.runtime.share_state import SharePartitionKey
from barnabas.broker.share_coordinator import records
from barnabas.broker.share_coordinator.batches import combine
from barnabas.broker.share_coordinator.settings import ShareCoordinatorSettings
from barnabas.broker.share_coordinator.state import (
    FIRST_LEADER_EPOCH,
    NO_COUNT,
    NO_EPOCH,
    NO_START_OFFSET,
    Change,
    KeptState,
)

PRUNING: Final = "pruning"
COLD_SNAPSHOTS: Final = "cold snapshots"
REMOVAL: Final = "removal"
#: Records and their bytes in one append of a timer: far less than fits into a batch.
RECORDS_AT_ONCE_MAX: Final = 1000
BYTES_AT_ONCE_MAX: Final = 256 * 1024
#: Tombstones that the log refused are written after this time.
REMOVAL_BACKOFF_MS: Final = 1000


class Answer(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    #: The state before the operation, if there is one.
    state: KeptState | None = None


class Prune(NamedTuple):
    """Records before this offset are not needed any more."""

    offset: int


class ShareCoordinatorMachine:
    def __init__(
        self,
        *,
        settings: Callable[[], ShareCoordinatorSettings],
        partition_exists: Callable[[TopicId, int], bool],
    ) -> None:
        self._settings = settings
        self._partition_exists = partition_exists
        self._states: dict[SharePartitionKey, KeptState] = {}
        #: Offset after the last replayed record.
        self._end_offset = 0
        #: Soft state: deleted topics that may still have states, and since when the metadata does not have a topic.
        self._deleted_topics: set[bytes] = set()
        self._missing_since_ms: dict[bytes, int] = {}

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def states(self) -> dict[SharePartitionKey, KeptState]:
        """States by share partition. Callers must not change them."""
        return self._states

    @property
    def needed_from(self) -> int:
        """The offset of the first record that a new coordinator needs."""
        return min((state.snapshot_offset for state in self._states.values()), default=self._end_offset)

    # -- replay -------------------------------------------------------------------------------------------------------

    def replay(self, record: ReplayedRecord) -> None:
        self._end_offset = record.offset + 1
        decoded = records.decode_key(record.record.key)
        if decoded is None:
            return  # a newer Kafka wrote it before a downgrade
        record_type, key = decoded
        value, before = record.record.value, self._states.get(key)
        if value is None:
            self._states.pop(key, None)
        elif record_type == records.SNAPSHOT:
            self._states[key] = records.decode_snapshot(value, before=before, offset=record.offset)
        elif before is not None:
            # Without a state, the log begins after the snapshot that the update belongs to: a later snapshot has it all.
            self._states[key] = _updated(before, records.decode_update(value))

    def replay_marker(self, marker: Marker, offset: int) -> None:
        """No transaction writes to this topic, so a marker in it has no meaning."""

    def loaded(self, now_ms: int) -> Result[None]:
        settings = self._settings()
        return Result(
            effects=[
                SetTimer(PRUNING, settings.prune_interval_ms),
                SetTimer(COLD_SNAPSHOTS, settings.cold_snapshot_interval_ms),
            ]
        )

    def unloaded(self) -> list[Ticket]:
        """Return no ticket: every operation is answered at once, so none waits."""
        return []

    # -- operations of the group coordinator ------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, *, state_epoch: int, start_offset: int, now_ms: int) -> Result[Answer]:
        """Create the state, or set it back: the group starts at `start_offset`, and forgets all deliveries."""
        known = self._states.get(key)
        if known is not None and _is_below(state_epoch, known.state_epoch):
            return self._fenced_state(known, state_epoch)
        if not self._partition_exists(TopicId(key.topic_id), key.partition):
            return _unknown(key)
        state = KeptState(
            snapshot_epoch=0 if known is None else known.snapshot_epoch + 1,
            state_epoch=max(state_epoch, NO_EPOCH if known is None else known.state_epoch),
            leader_epoch=FIRST_LEADER_EPOCH if known is None else known.leader_epoch,
            start_offset=start_offset,
            # Without a start offset no record counts as delivered (KIP-1226).
            delivery_complete_count=NO_COUNT if start_offset == NO_START_OFFSET else 0,
            batches=(),
            created_ms=now_ms,
            written_ms=now_ms,
            updates=0,
            snapshot_offset=0,
        )
        return Result(records=[records.snapshot(key, state)], response=Answer(state=known))

    def delete(self, key: SharePartitionKey) -> Result[Answer]:
        """Remove the state. It is no error if there is none: the request may be a repetition."""
        if not self._partition_exists(TopicId(key.topic_id), key.partition):
            return _unknown(key)
        known = self._states.get(key)
        if known is None:
            return Result(response=Answer())
        return Result(records=[records.tombstone(key)], response=Answer(state=known))

    def read_summary(self, key: SharePartitionKey) -> Result[Answer]:
        """Return the state, or none if it was never initialized. The caller's leader epoch does not matter."""
        if not self._partition_exists(TopicId(key.topic_id), key.partition):
            return _unknown(key)
        return Result(response=Answer(state=self._states.get(key)))

    def topics_deleted(self, topic_ids: Collection[bytes]) -> Result[None]:
        """Remove the states of deleted topics: no request may name them any more."""
        self._deleted_topics.update({key.topic_id for key in self._states}.intersection(topic_ids))
        return self._remove()

    # -- operations of the partition's leader -------------------------------------------------------------------------------

    def read(self, key: SharePartitionKey, *, leader_epoch: int, now_ms: int) -> Result[Answer]:
        """Return the state. The leader's epoch is kept if it is new: the former leader can no longer write."""
        known = self._states.get(key)
        if known is None:
            return _uninitialized(key)
        if leader_epoch < known.leader_epoch:
            return _fenced_leader(known, leader_epoch)
        if not self._partition_exists(TopicId(key.topic_id), key.partition):
            return _unknown(key)
        answer = Answer(state=known)
        if leader_epoch == known.leader_epoch:
            return Result(response=answer)
        change = Change(
            state_epoch=known.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=known.start_offset,
            delivery_complete_count=known.delivery_complete_count,
            batches=(),
        )
        return Result(records=[self._record(key, known, change, now_ms)], response=answer)

    def write(self, key: SharePartitionKey, change: Change, *, now_ms: int) -> Result[Answer]:
        known = self._states.get(key)
        if known is None:
            return _uninitialized(key)
        if _is_below(change.leader_epoch, known.leader_epoch):
            return _fenced_leader(known, change.leader_epoch)
        if _is_below(change.state_epoch, known.state_epoch):
            return self._fenced_state(known, change.state_epoch)
        if not self._partition_exists(TopicId(key.topic_id), key.partition):
            return _unknown(key)
        wrong = next((each for each in change.batches if not 0 <= each.first_offset <= each.last_offset), None)
        if wrong is not None:
            message = f"a state batch from offset {wrong.first_offset} to {wrong.last_offset} is not valid"
            return Result(response=Answer(ErrorCode.INVALID_REQUEST, message, known))
        # As in Kafka, only a read announces a new leader epoch.
        change = replace(change, leader_epoch=known.leader_epoch)
        return Result(records=[self._record(key, known, change, now_ms)], response=Answer(state=known))

    def _record(self, key: SharePartitionKey, known: KeptState, change: Change, now_ms: int) -> KeyValue:
        if known.updates < self._settings().updates_per_snapshot:
            # A request may contain batches that overlap.
            combined = replace(change, batches=combine((), change.batches, change.start_offset))
            return records.update(key, combined, snapshot_epoch=known.snapshot_epoch)
        state = _updated(known, change)
        state = replace(state, snapshot_epoch=known.snapshot_epoch + 1, created_ms=now_ms, written_ms=now_ms)
        return records.snapshot(key, state)

    # -- timers -------------------------------------------------------------------------------------------------------------

    def timer_fired(self, key: Hashable, now_ms: int) -> Result[None]:
        if key == REMOVAL:
            return self._remove()
        if key == COLD_SNAPSHOTS:
            return self._repeat_snapshots(now_ms)
        assert key == PRUNING
        # The log ignores an offset below its start.
        return Result(
            effects=[
                SendToDriver(Prune(self.needed_from)),
                SetTimer(PRUNING, self._settings().prune_interval_ms),
            ]
        )

    def _repeat_snapshots(self, now_ms: int) -> Result[None]:
        """Write the snapshots again that are older than the interval, unless no share partition has a new one: then there is
        little to prune, and a cluster without traffic writes nothing."""
        interval_ms = self._settings().cold_snapshot_interval_ms
        self._look_for_deleted_topics(now_ms, interval_ms)
        found: list[KeyValue] = []
        if not all(state.is_repeated for state in self._states.values()):
            for key, state in self._states.items():
                # A time in the future comes from a clock that was ahead.
                if not 0 <= now_ms - state.written_ms < interval_ms:
                    repeated = replace(state, snapshot_epoch=state.snapshot_epoch + 1, written_ms=now_ms)
                    found.append(records.snapshot(key, repeated))
        taken = _what_fits(found)
        effects: list[Effect] = [SetTimer(COLD_SNAPSHOTS, interval_ms if len(taken) == len(found) else 0)]
        if self._deleted_topics:
            effects.append(SetTimer(REMOVAL, 0))
        return Result(records=taken, effects=effects)

    def _look_for_deleted_topics(self, now_ms: int, patience_ms: int) -> None:
        """Find topics that were deleted while no coordinator served this partition. Metadata may be incomplete for a moment:
        only a topic that is missing for long is gone."""
        missing = {
            key.topic_id: self._missing_since_ms.get(key.topic_id, now_ms)
            for key in self._states
            if not self._partition_exists(TopicId(key.topic_id), key.partition)
        }
        self._deleted_topics.update(topic for topic, since_ms in missing.items() if now_ms - since_ms >= patience_ms)
        self._missing_since_ms = missing

    def _remove(self) -> Result[None]:
        found = [records.tombstone(key) for key in self._states if key.topic_id in self._deleted_topics]
        if not found:
            self._deleted_topics.clear()
            return Result()
        retry = Result[None](effects=[SetTimer(REMOVAL, REMOVAL_BACKOFF_MS)])
        return Result(records=_what_fits(found), effects=[SetTimer(REMOVAL, 0)], if_refused=lambda: retry)

    def _fenced_state(self, known: KeptState, state_epoch: int) -> Result[Answer]:
        message = f"The state epoch {state_epoch} is older than {known.state_epoch}: the group was reset or deleted."
        return Result(response=Answer(ErrorCode.FENCED_STATE_EPOCH, message, known))


def _updated(state: KeptState, change: Change) -> KeptState:
    start_offset = state.start_offset if change.start_offset == NO_START_OFFSET else change.start_offset
    return replace(
        state,
        start_offset=start_offset,
        leader_epoch=max(change.leader_epoch, state.leader_epoch),
        delivery_complete_count=change.delivery_complete_count,
        batches=combine(state.batches, change.batches, start_offset),
        updates=state.updates + 1,
    )


def _what_fits(found: list[KeyValue]) -> list[KeyValue]:
    """Return the records that one append may have."""
    size_bytes = 0
    for number, record in enumerate(found):
        size_bytes += len(record.key) + len(record.value or b"")
        if number and (number == RECORDS_AT_ONCE_MAX or size_bytes > BYTES_AT_ONCE_MAX):
            return found[:number]
    return found


def _is_below(epoch: int, known: int) -> bool:
    return epoch != NO_EPOCH and epoch < known


def _fenced_leader(known: KeptState, leader_epoch: int) -> Result[Answer]:
    message = f"The leader epoch {leader_epoch} is older than {known.leader_epoch}: another broker leads the partition."
    return Result(response=Answer(ErrorCode.FENCED_LEADER_EPOCH, message, known))


def _uninitialized(key: SharePartitionKey) -> Result[Answer]:
    message = f"The share partition {key.partition} of group {key.group_id} is not initialized."
    return Result(response=Answer(ErrorCode.INVALID_REQUEST, message))


def _unknown(key: SharePartitionKey) -> Result[Answer]:
    message = f"This broker does not know partition {key.partition} of the topic."
    return Result(response=Answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
