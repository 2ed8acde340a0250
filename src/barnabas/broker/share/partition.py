"""One share partition at the leader of its partition: it loads the state, persists decisions, and takes back timed-out records.

Owner: the event loop. `machine` decides. Decisions made while a write is unanswered go out together in the next write: with
many members on one partition, this is what bounds the writes to the share coordinator.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.words import LATEST, READ_UNCOMMITTED
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.remote_reads import RemoteReads
from barnabas.broker.runtime.purgatory import DelayedOperation
from barnabas.broker.runtime.share_state import SharePartitionKey, SharePersister, StateBatch
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.timers import Deadlines, Timers
from barnabas.broker.share.acquiring import Wish, acquire
from barnabas.broker.share.dead_letters import (
    DELIVERED_TOO_OFTEN,
    REJECTED,
    DeadLetters,
    DeadLetterTopics,
    Source,
)
from barnabas.broker.share.machine import ShareMachine
from barnabas.broker.share.metrics import ShareCounts
from barnabas.broker.share.records import Acknowledgement, Acquired, LogBatch, ShareLimits, Write

log = logging.getLogger(__name__)

#: Gets None, or the reason why the decisions were not carried out.
OnSettled = Callable[[Refused | None], None]

#: Errors of the persister that clients get as they are. The others would not mean the same to them.
_SHOWN: Final = frozenset(
    {
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
_UNAVAILABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
#: How long a load waits until a new leader knows its high watermark.
_HIGH_WATERMARK_WAIT_MS: Final = 30_000


def limits_of(config: GroupConfig) -> ShareLimits:
    return ShareLimits(
        delivery_count_limit=config.share_delivery_count_limit,
        in_flight_max=config.share_partition_max_record_locks,
        lock_ms=config.share_record_lock_duration_ms,
        allows_renewal=config.share_renew_acknowledge_enable,
        has_dead_letters=bool(config.errors_deadletterqueue_topic_name),
    )


def for_clients(refused: Refused) -> Refused:
    """Return the error that a member gets for an error of the persister, as Kafka maps them."""
    if refused.code in _UNAVAILABLE:
        return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message)
    if refused.code is ErrorCode.FENCED_LEADER_EPOCH:
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, refused.message)
    if refused.code in _SHOWN:
        return refused
    return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, refused.message)


class Remote(Protocol):
    @property
    def tier(self) -> RemoteReads | None:
        """Finds records that are in the tier only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHost:
    """The parts of a broker that share partitions use."""

    hosted: HostedPartitions
    remote: Remote
    persister: SharePersister
    config_of: Callable[[str], GroupConfig]
    dead_letters: DeadLetterTopics
    counts: ShareCounts
    #: Monotonic, for locks.
    now_ms: Callable[[], int]
    #: The time of day, which records have.
    wall_ms: Callable[[], int]
    timers: Timers
    spawn: Spawn


class _Decided(NamedTuple):
    write: Write
    on_settled: OnSettled


class SharePartition:
    """`on_over` is called when it cannot go on: the partition moved, its state was fenced, or could not be loaded. `on_idle` is
    called when it is loaded, and when the last write is answered."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        host: ShareHost,
        deadlines: "Deadlines[SharePartition]",
        *,
        on_over: Callable[["SharePartition"], None],
        on_idle: Callable[["SharePartition"], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self._host = host
        self._deadlines = deadlines
        self._on_over = on_over
        self._on_idle = on_idle
        self._leadership = partition.machine.leaderships
        #: The settings that the machine has.
        self._config: GroupConfig | None = None
        #: None until the state is loaded.
        self.machine: ShareMachine | None = None
        #: Why this share partition is over; None while it is loading or in use.
        self.error: Refused | None = None
        self._state_epoch = -1
        #: Records whose delivery is complete, from offset 0 on, as the persisted state has them.
        self._complete_persisted = 0
        self._decided: list[_Decided] = []
        self._is_writing = False
        self._is_burying = False
        #: When the next lock may time out, and the slot of that deadline; 0 if none is set.
        self._deadline_ms = self._slot = 0

    def __repr__(self) -> str:
        return f"SharePartition({self.key.group_id}, {self.tp})"

    @property
    def tp(self) -> TopicPartition:
        return self.partition.tp

    @property
    def config(self) -> GroupConfig:
        return self._host.config_of(self.key.group_id)

    @property
    def is_idle(self) -> bool:
        """Whether no decision waits to be persisted, and no record for its copy to the dead-letter topic."""
        return not self._is_writing and not self._is_burying

    # -- the leadership -----------------------------------------------------------------------------------------------

    def is_led(self) -> bool:
        """Whether this broker still leads the same partition in the same leadership."""
        partition = self.partition
        return (
            partition.is_leader
            and partition.machine.leaderships == self._leadership
            and partition.topic_id == self.key.topic_id
            and self._host.hosted.get(partition.tp) is partition
            and partition.log is not None
        )

    def check(self) -> bool:
        """Whether it is in use or loading. If the leadership is over, so is this."""
        if self.error is None and not self.is_led():
            self.end(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.tp} any more"))
        return self.error is None

    def end(self, error: Refused) -> None:
        """Forget the records in flight. The next leader, or the next request, begins with the persisted state."""
        if self.error is not None:
            return
        self.error = error
        self.machine = None
        self._deadlines.remove(self, self._slot)
        decided, self._decided = self._decided, []
        for each in decided:
            each.on_settled(error)
        self._on_over(self)
        self.wake()

    def wake(self) -> None:
        """Let the fetches look that wait for this share partition."""
        if self in self._host.hosted.fetch_purgatory.watchers:
            self._host.hosted.fetch_purgatory.check(self)

    # -- loading ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        began_ms = self._host.now_ms()
        try:
            machine = await self._loaded()
        except Refused as refused:
            log.warning(
                "[share partition %s of group %s] cannot load its state: %s", self.tp, self.key.group_id, refused
            )
            self.end(for_clients(refused))
            return
        except LogDirFault as fault:
            self.end(Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)))
            return
        if self.check():
            self.machine = machine
            self._host.counts.loaded(self._host.now_ms() - began_ms)
            self._bury()
            self.wake()
            self._on_idle(self)  # the group's last session may have ended meanwhile

    async def _loaded(self) -> ShareMachine:
        state = await self._host.persister.read(self.key, leader_epoch=self.partition.machine.leader_epoch)
        self._require_led()
        self._state_epoch = state.state_epoch
        start = state.start_offset
        if start < 0:
            start = await self._initial_offset()
            self._require_led()
            # Persist it at once: after a fail-over `latest` would be another offset, and the records between would be lost.
            await self._persist(start, 0, ())
            self._require_led()
        log_end = self.partition.local_log.log_end_offset
        if start > log_end:
            log.warning(
                "[share partition %s of group %s] its start offset %d is beyond the log end: the partition has lost records, "
                "and the group continues at %d",
                self.tp,
                self.key.group_id,
                start,
                log_end,
            )
            return ShareMachine(log_end, limits_of(self.config))
        machine = ShareMachine(start, limits_of(self.config), state.batches)
        self._complete_persisted = _complete(machine)
        machine.move_start(self.partition.log_start)
        return machine

    def _require_led(self) -> None:
        if not self.is_led():
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.tp} any more")

    async def _initial_offset(self) -> int:
        """Return where a new group begins, by its `share.auto.offset.reset`."""
        await self._high_watermark_known()
        self._require_led()
        timestamp = self.config.share_auto_offset_reset.timestamp_ms(self._host.wall_ms())
        tier = self._host.remote.tier
        if timestamp >= 0 and tier is not None and tier.may_have(self.partition):
            in_tier = await tier.offset_for(self.partition, timestamp)
            if in_tier is not None:
                return in_tier.offset
            self._require_led()
        found = None
        for wanted in (timestamp, LATEST):
            found = self.partition.offset_for(wanted, isolation_level=READ_UNCOMMITTED, is_from_client=True)
            if found is not None:
                return found.offset
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.tp} has no offset to begin with")

    async def _high_watermark_known(self) -> None:
        wait = _HighWatermarkKnown(self)
        purgatory = self._host.hosted.fetch_purgatory
        purgatory.try_complete_else_watch(wait, [self.partition], timeout_ms=_HIGH_WATERMARK_WAIT_MS)
        await wait.over

    # -- records ------------------------------------------------------------------------------------------------------

    def bound(self) -> int:
        """Return the offset after the last record that members may read."""
        log = self.partition.local_log
        return log.last_stable_offset if self.reads_committed else log.high_watermark

    @property
    def reads_committed(self) -> bool:
        return self.config.share_isolation_level == "read_committed"

    def next_offset(self) -> int | None:
        """Return the offset from which the log has to be read for a member; None if it would get nothing now."""
        machine = self._usable()
        if machine is None or not machine.can_acquire():
            return None
        offset = machine.next_offset()
        return offset if offset < self.bound() else None

    def _usable(self) -> ShareMachine | None:
        """Return the machine with the present settings and log start."""
        machine = self.machine
        if machine is not None and self.check():
            config = self.config
            if config is not self._config:
                self._config, machine.limits = config, limits_of(config)
            machine.move_start(self.partition.log_start)
            if _complete(machine) > self._complete_persisted and not machine.has_locks:
                self._persist_start()
        return self.machine

    def _persist_start(self) -> None:
        """The start offset has passed records about which no member decides: markers, gaps, what retention has deleted. Without
        this write the group would have a lag until its next acknowledgement."""
        if not self._is_writing:
            self._settle(Write(is_final=True), _ignore)

    def acquire(self, member_id: str, batches: Iterable[LogBatch], wish: Wish, *, from_offset: int) -> list[Acquired]:
        machine = self._usable()
        if machine is None:
            return []
        acquired = acquire(machine, member_id, batches, wish, from_offset=from_offset, now_ms=self._host.now_ms())
        if acquired:
            self._watch_locks(machine)
        return acquired

    def acknowledge(self, member_id: str, decisions: Sequence[Acknowledgement], on_settled: OnSettled) -> None:
        """Carry out a member's decisions; `on_settled` is called once they are persisted, perhaps at once."""
        machine = self._usable()
        if machine is None:
            on_settled(
                self.error or Refused(ErrorCode.INVALID_RECORD_STATE, f"the group's state of {self.tp} is loading")
            )
            return
        try:
            write = machine.acknowledge(member_id, decisions, now_ms=self._host.now_ms())
        except Refused as refused:
            on_settled(refused)
            return
        self._watch_locks(machine)
        self._settle(write, on_settled)

    def release(self, member_id: str, on_settled: OnSettled) -> None:
        """Take back the records of a member that has left."""
        machine = self._usable()
        self._settle(machine.release(member_id) if machine is not None else None, on_settled)

    # -- locks --------------------------------------------------------------------------------------------------------

    def _watch_locks(self, machine: ShareMachine) -> None:
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is None or (self._slot and self._deadline_ms <= deadline_ms):
            return
        self._deadlines.remove(self, self._slot)
        self._deadline_ms = deadline_ms
        self._slot = self._deadlines.add(self, max(0, deadline_ms - self._host.now_ms()))

    def locks_due(self) -> None:
        """Take back the records whose locks have timed out."""
        self._slot = 0
        machine = self._usable()
        if machine is None:
            return
        write = machine.expire(self._host.now_ms())
        self._watch_locks(machine)
        if write is not None:
            self._host.counts.lock_timeouts(sum(last - first + 1 for first, last in write.runs))
            self._settle(write, _ignore)
            self._bury()
            self.wake()

    # -- dead letters ---------------------------------------------------------------------------------------------------

    def _bury(self) -> None:
        """Copy the records that were given up to the dead-letter topic."""
        if self.machine is not None and not self._is_burying and self.machine.dead_letters():
            self._is_burying = True
            self._host.spawn(self._bury_all(self.machine), f"dead letters of {self.tp} for {self.key.group_id}")

    async def _bury_all(self, machine: ShareMachine) -> None:
        try:
            while self.machine is machine and (runs := machine.dead_letters()):
                letters = [
                    DeadLetters(
                        run.first, run.last, run.delivery_count, REJECTED if run.is_rejected else DELIVERED_TOO_OFTEN
                    )
                    for run in runs
                ]
                config = self.config
                source = Source(
                    self.key.group_id,
                    self.key.topic_id,
                    self.tp,
                    config.errors_deadletterqueue_topic_name,
                    config.errors_deadletterqueue_copy_record_enable,
                )
                await self._host.dead_letters.send(source, letters, is_wanted=lambda: self.machine is machine)
                if self.machine is machine:
                    for each in letters:
                        self._settle(machine.buried(each.first, each.last), _ignore)
        finally:
            self._is_burying = False
        self._on_idle(self)

    # -- persisting ---------------------------------------------------------------------------------------------------

    def _settle(self, write: Write | None, on_settled: OnSettled) -> None:
        if write is None:
            on_settled(None)
            return
        self._decided.append(_Decided(write, on_settled))
        if not self._is_writing:
            self._is_writing = True
            self._host.spawn(self._write_all(), f"share state of {self.tp} for {self.key.group_id}")

    async def _write_all(self) -> None:
        try:
            while self._decided:
                decided, self._decided = self._decided, []
                await self._write(decided)
        finally:
            self._is_writing = False
        self._on_idle(self)

    async def _write(self, decided: list[_Decided]) -> None:
        machine = self.machine
        failure: Refused | None = None
        if machine is None or not self.check():
            failure = self.error
        else:
            batches = [batch for each in decided for batch in each.write.batches]
            complete = _complete(machine)
            try:
                await self._persist(machine.start, machine.complete_count, batches)
            except Refused as refused:
                failure = for_clients(refused)
            else:
                self._complete_persisted = complete
        if self.machine is not machine or machine is None:
            # Another broker leads: it has the decisions or not, and its members learn that by acknowledging again.
            failure = failure or self.error
        elif failure is None:
            for each in decided:
                machine.commit(each.write)
            self._bury()
        else:
            for each in decided:
                machine.roll_back(each.write, now_ms=self._host.now_ms())
            self._watch_locks(machine)
        if failure is not None and failure.code not in (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ):
            self.end(failure)
        for each in decided:
            each.on_settled(failure)
        self.wake()

    async def _persist(self, start: int, complete_count: int, batches: Sequence[StateBatch]) -> None:
        await self._host.persister.write(
            self.key,
            state_epoch=self._state_epoch,
            leader_epoch=self.partition.machine.leader_epoch,
            start_offset=start,
            delivery_complete_count=complete_count,
            batches=batches,
        )


def _complete(machine: ShareMachine) -> int:
    """Return a number that grows with each record whose delivery is complete."""
    return machine.start + machine.complete_count


def _ignore(refused: Refused | None) -> None:
    """No request waits for this decision."""


class _HighWatermarkKnown(DelayedOperation):
    """A new leader waits until it knows which of its records are committed."""

    __slots__ = ("_share", "over")

    def __init__(self, share: SharePartition) -> None:
        super().__init__()
        self._share = share
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_satisfied(self) -> bool:
        return not self._share.is_led() or not self._share.partition.machine.high_watermark_lags

    def on_complete(self, *, expired: bool) -> None:
        if not self.over.done():
            self.over.set_result(None)
