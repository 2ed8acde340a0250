"""The replication machine: a partition's role, epochs, in-sync replicas and followers' positions on one broker.

Pure: time and offsets come in, decisions come out; the driver (`replication.partition`) has the log and the network.
Owner: the event loop of the broker that hosts the replica. Methods that every produce or fetch calls return shared or
plain values, and use no collection that grows.

Behaviour is that of Kafka 3.9's `Partition` with AlterPartition (KIP-497). There are two deliberate differences, both safe.
A follower's high watermark goes back only by truncation. And `tick` advances the high watermark if a follower that was
returning to the ISR, and held it back (see `record_append`), stops fetching.
"""

from collections.abc import Callable
from typing import Final

from barnabas.base.errors import ErrorCode, IllegalTransition, Refused
from barnabas.base.ids import NO_BROKER, NO_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, Offset
from barnabas.broker.replication.state import (
    NO_BROKER_EPOCH,
    NO_CONTROLLER_EPOCH,
    RECOVERED,
    TRANSITIONS,
    UNKNOWN_OFFSET,
    FetchRecorded,
    FollowerPosition,
    FollowerStarted,
    IsrChange,
    IsrMember,
    IsrSettled,
    KeepsHighWatermark,
    LeaderStarted,
    PartitionLeadership,
    ProposeIsr,
    Role,
    Ticked,
    Watermark,
)

#: With these errors the controller has certainly not applied the proposal: return to the committed ISR.
_NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
#: This leader's state is outdated: keep the proposal pending, and wait for the LeaderAndIsr that must be on the way.
_AWAIT_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)

START: Final = Offset(0)
#: A follower fetches again after `replica.fetch.wait.max.ms` at the latest: 500 ms by default.
SILENT_MS: Final = 1_000
_NOTHING: Final = FetchRecorded(False, False, None)
_HW_MOVED: Final = FetchRecorded(True, False, None)
_LOG_START_MOVED: Final = FetchRecorded(False, True, None)
_BOTH_MOVED: Final = FetchRecorded(True, True, None)
_QUIET: Final = Ticked(False, None)
_LATE: Final = IsrSettled(applied=False)


def any_broker_is_eligible(broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
    return True


class PartitionMachine:
    """Callers read its fields freely, and change them only through its methods."""

    __slots__ = (
        "_followers",
        "_is_eligible",
        "_min_isr",
        "_order",
        "_pending",
        "adding_replicas",
        "controller_epoch",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start",
        "leader_recovery_state",
        "leaderships",
        "local_broker",
        "log",
        "min_insync_replicas",
        "partition_epoch",
        "removing_replicas",
        "replica_lag_time_max_ms",
        "replicas",
        "role",
    )

    def __init__(
        self,
        *,
        local_broker: BrokerId,
        replica_lag_time_max_ms: int,
        min_insync_replicas: int = 1,
        high_watermark: Offset = START,
        is_eligible: Callable[[BrokerId, BrokerEpoch], bool] = any_broker_is_eligible,
    ) -> None:
        """`is_eligible(broker, broker epoch or -1)` returns whether this incarnation of the broker is alive."""
        self.local_broker = local_broker
        self.replica_lag_time_max_ms = replica_lag_time_max_ms
        self.min_insync_replicas = min_insync_replicas
        self._is_eligible = is_eligible
        self.role = Role.IDLE
        self.controller_epoch = NO_CONTROLLER_EPOCH
        self.leader: BrokerId = NO_BROKER
        self.leader_epoch: LeaderEpoch = NO_EPOCH
        #: Log end when this leadership began; -1 when not leading.
        self.leader_epoch_start: Offset = UNKNOWN_OFFSET
        #: Number of this broker's leaderships. Records of an earlier leadership may have been truncated since.
        self.leaderships = 0
        #: Version of the state; -1 before the first one, so that any state is newer.
        self.partition_epoch = -1
        self.leader_recovery_state = RECOVERED
        self.replicas: tuple[BrokerId, ...] = ()
        self.adding_replicas: tuple[BrokerId, ...] = ()
        self.removing_replicas: tuple[BrokerId, ...] = ()
        #: The committed ISR, as it is in ZooKeeper. Empty when not leading.
        self.isr: frozenset[BrokerId] = frozenset()
        #: Stores the high watermark, which the machine advances: the whole maximal ISR has the records below it.
        self.log: KeepsHighWatermark = Watermark(high_watermark)
        self._pending: ProposeIsr | None = None
        self._followers: dict[BrokerId, FollowerPosition] = {}
        #: The values of `_followers`, for iterating.
        self._order: tuple[FollowerPosition, ...] = ()
        #: min.insync.replicas, but at most the number of replicas.
        self._min_isr = 1

    # --- queries -------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def pending(self) -> ProposeIsr | None:
        """The proposal without an answer, if there is one."""
        return self._pending

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """The committed ISR and the brokers proposed for it: high watermark and acks=all wait for all of them."""
        if self._pending is not None and self._pending.change is IsrChange.EXPAND:
            return self.isr | self._pending.broker_ids
        return self.isr

    @property
    def effective_min_isr(self) -> int:
        return self._min_isr

    @property
    def is_under_min_isr(self) -> bool:
        return self.role is Role.LEADER and len(self.isr) < self._min_isr

    @property
    def is_at_min_isr(self) -> bool:
        return self.role is Role.LEADER and len(self.isr) == self._min_isr

    @property
    def is_under_replicated(self) -> bool:
        return self.role is Role.LEADER and self.replication_factor > len(self.isr)

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that a reassignment is adding."""
        return len(self.replicas) - len(set(self.adding_replicas) & set(self.replicas))

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def high_watermark(self) -> Offset:
        return self.log.high_watermark

    @property
    def high_watermark_lags(self) -> bool:
        """Whether the end offset is uncertain, after an election and until the ISR has fetched (KIP-207).

        Meanwhile ListOffsets answers OFFSET_NOT_AVAILABLE, so that the end that a consumer sees never goes back.
        """
        return self.role is Role.LEADER and self.leader_epoch_start > self.high_watermark

    @property
    def followers(self) -> tuple[FollowerPosition, ...]:
        return self._order

    def follower(self, broker_id: BrokerId) -> FollowerPosition | None:
        return self._followers.get(broker_id)

    def check_leader_epoch(self, current_leader_epoch: int, *, require_leader: bool = True) -> ErrorCode:
        """Check the leader epoch of a request (-1: the request has none)."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        role = self.role
        if role is Role.LEADER or (role is Role.FOLLOWER and not require_leader):
            return ErrorCode.NONE
        return ErrorCode.KAFKA_STORAGE_ERROR if role is Role.OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_follower(self, broker_id: BrokerId, current_leader_epoch: int) -> ErrorCode:
        """Check that `broker_id` is a replica; otherwise return an error that makes it retry."""
        if broker_id in self._followers:
            return ErrorCode.NONE
        # With a matching epoch it may be a new replica, whose LeaderAndIsr is on the way.
        return ErrorCode.UNKNOWN_LEADER_EPOCH if current_leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_append(self, required_acks: int) -> ErrorCode:
        """Refuse acks=all before the write if too few replicas are in sync."""
        if self.role is not Role.LEADER:
            return ErrorCode.KAFKA_STORAGE_ERROR if self.role is Role.OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if required_acks == -1 and len(self.isr) < self._min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def silent(self, now_ms: int) -> frozenset[BrokerId]:
        """Return members of the ISR that have not fetched lately. One of them may be the new leader, unknown to this broker."""
        return frozenset(
            follower.broker_id
            for follower in self._order
            if follower.broker_id in self.isr and now_ms - follower.last_fetch_ms > SILENT_MS
        )

    def check_replicated(self, required_offset: int, leadership: int) -> ErrorCode | None:
        """Return the answer to an acks=all produce that ends below `required_offset`; None while it must wait.

        `leadership`: the value of `leaderships` at the append. In a later leadership other records may have its offsets.
        """
        if self.role is not Role.LEADER or self.leaderships != leadership:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < required_offset:
            return None
        if len(self.isr) < self._min_isr and len(self.maximal_isr) < self._min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def low_watermark(self, log_start: Offset) -> Offset:
        """Return the smallest log start of the live replicas: DeleteRecords waits for it."""
        low = log_start
        for follower in self._order:
            if follower.log_start < low and self._is_eligible(follower.broker_id, NO_BROKER_EPOCH):
                low = Offset(follower.log_start)
        return low

    # --- transitions -----------------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionLeadership, *, log_end: Offset, now_ms: int) -> LeaderStarted:
        """Lead: the controller elected this broker, or changed the replicas of a partition that it leads."""
        role = self._step("become_leader")
        if state.leader != self.local_broker or self.local_broker not in state.replicas:
            raise IllegalTransition(f"broker {self.local_broker} cannot lead: it is not the leader of {state}")
        if state.partition_epoch < self.partition_epoch:
            return LeaderStarted(applied=False)
        is_new_leader = self.role is not Role.LEADER
        is_new_epoch = state.leader_epoch > self.leader_epoch
        # If this broker missed an epoch, another broker may have led in it and made followers truncate records that this one
        # has.
        was_led_by_another = is_new_leader or state.leader_epoch > self.leader_epoch + 1
        self._take_assignment(state)
        self._set_followers(tuple(broker for broker in state.replicas if broker != self.local_broker))
        self._commit_isr(frozenset(state.isr))
        # A leader has recovered as soon as it leads: nothing has to be done first.
        self.leader_recovery_state = RECOVERED
        if is_new_epoch:
            for follower in self._order:
                follower.reset(
                    now_ms=now_ms,
                    leader_log_end=log_end,
                    was_led_by_another=was_led_by_another,
                    in_sync=follower.broker_id in self.isr,
                )
            self.leader_epoch = state.leader_epoch
            self.leader_epoch_start = log_end
        self.role = role
        self.leaderships += is_new_leader
        self.leader = self.local_broker
        hw_moved = self.record_append(log_end, now_ms)
        return LeaderStarted(True, is_new_leader, is_new_epoch, self.leader_epoch_start, hw_moved)

    def become_follower(self, state: PartitionLeadership) -> FollowerStarted:
        role = self._step("become_follower")
        if state.leader == self.local_broker:
            raise IllegalTransition(f"broker {self.local_broker} cannot follow: it leads {state}")
        if state.partition_epoch < self.partition_epoch:
            return FollowerStarted(applied=False)
        is_new_epoch = state.leader_epoch > self.leader_epoch
        self._take_assignment(state)
        self._forget_followers()
        self.leader_recovery_state = state.leader_recovery_state
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.role = role
        return FollowerStarted(True, is_new_epoch)

    def go_offline(self) -> None:
        """Serve nothing any more: the log directory failed."""
        self.role = self._step("go_offline")
        self._forget_followers()
        self.leader = NO_BROKER
        self.replicas = self.adding_replicas = self.removing_replicas = ()

    def stop(self) -> None:
        """Stop without deletion: neither lead nor follow until the next LeaderAndIsr. The epochs stay known."""
        self.role = self._step("stop")
        self._forget_followers()
        self.leader = NO_BROKER

    def _step(self, event: str) -> Role:
        target = TRANSITIONS.get((self.role, event))
        if target is None:
            raise IllegalTransition(f"the role {self.role.name} does not allow the event {event}")
        return target

    def _take_assignment(self, state: PartitionLeadership) -> None:
        self.controller_epoch = state.controller_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.removing_replicas = state.removing_replicas

    def _set_followers(self, brokers: tuple[BrokerId, ...]) -> None:
        self._followers = {broker: self._followers.get(broker) or FollowerPosition(broker) for broker in brokers}
        self._order = tuple(self._followers.values())
        self._min_isr = min(self.min_insync_replicas, len(brokers) + 1)

    def _forget_followers(self) -> None:
        self._followers = {}
        self._order = ()
        self._pending = None
        self.isr = frozenset()
        self.leader_epoch_start = UNKNOWN_OFFSET

    def _commit_isr(self, isr: frozenset[BrokerId]) -> None:
        self.isr = isr
        self._pending = None
        for follower in self._order:
            follower.in_maximal_isr = follower.broker_id in isr

    # --- the hot path ----------------------------------------------------------------------------------------------

    def record_follower_fetch(
        self,
        broker_id: BrokerId,
        fetch_offset: int,
        follower_log_start: int,
        broker_epoch: int,
        log_end: int,
        now_ms: int,
    ) -> FetchRecorded:
        """Note that a follower fetches at `fetch_offset`, so it has all records below. Not for fetches that get a diverging
        epoch.

        `log_end` is the leader's log end before the read, so that appends during the read do not keep a follower out of sync.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is not a replica")
        if broker_epoch != follower.broker_epoch and broker_epoch != NO_BROKER_EPOCH:
            if broker_epoch < follower.broker_epoch:
                # KIP-903: a delayed request of the broker's former life, from before its restart.
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker epoch {broker_epoch} of {broker_id} is over")
            follower.broker_epoch = broker_epoch
        if follower.resting is not None:
            follower.rested()  # it rested in a session that the follower has given up
        if fetch_offset >= log_end:
            follower.caught_up(now_ms)
        elif fetch_offset >= follower.last_fetch_leader_log_end:
            # It has what the leader had at its previous fetch, so it was caught up at that time.
            follower.caught_up(follower.last_fetch_ms)
        if log_end > follower.last_fetch_leader_log_end:
            follower.last_fetch_leader_log_end = log_end
        follower.fetched(now_ms)
        moved = fetch_offset != follower.log_end
        follower.log_end = fetch_offset
        log_start_moved = follower_log_start != follower.log_start
        follower.log_start = follower_log_start

        propose = None if follower.in_maximal_isr or self._pending is not None else self._maybe_expand(follower)
        # Expand first: a returning follower must count before the high watermark moves past it.
        hw_moved = moved and self.record_append(log_end, now_ms)
        if propose is not None:
            return FetchRecorded(hw_moved, log_start_moved, propose)
        if hw_moved:
            return _BOTH_MOVED if log_start_moved else _HW_MOVED
        return _LOG_START_MOVED if log_start_moved else _NOTHING

    def record_follower_append(self, *, log_start: int, log_end: int, leader_high_watermark: int) -> bool:
        """As a follower: the leader's records were appended, and its answer had this high watermark."""
        committed = leader_high_watermark if leader_high_watermark < log_end else log_end
        if committed < log_start <= log_end:  # an empty log may end inside the batch of its log start
            committed = log_start
        return self.log.maybe_increment_high_watermark(committed)

    def record_append(self, log_end: int, now_ms: int) -> bool:
        """Note that the leader's log grew, that more of it is on disk, or that a follower has more of it. Move the high
        watermark to the smallest log end of the maximal ISR, or leave it; return whether it moved.

        A live follower that is caught up but not in the ISR yet counts too. Otherwise, with an ISR of one, the high watermark
        would follow the leader's log end, and a returning follower would never reach it. Never moves below min ISR.
        """
        if len(self.isr) < self._min_isr or self.role is not Role.LEADER:
            return False
        high_watermark = self.log.high_watermark
        new = log_end
        for follower in self._order:
            if follower.log_end < new and (
                follower.in_maximal_isr
                or (
                    follower.is_caught_up(log_end, now_ms, self.replica_lag_time_max_ms)
                    and self._is_eligible(follower.broker_id, BrokerEpoch(follower.broker_epoch))
                )
            ):
                new = follower.log_end
                if new <= high_watermark:
                    return False
        return self.log.commit_up_to(new)

    def log_was_cut(self, log_end: Offset) -> None:
        """Limit followers' positions: a link has truncated the log of a mirror's leader.

        Nothing may be appended before the next leader epoch. A follower that does not know of the truncation would take the
        next records for the continuation of its own.
        """
        for follower in self._order:
            if follower.log_end > log_end:
                follower.log_end = log_end
        if self.leader_epoch_start > log_end:
            self.leader_epoch_start = log_end

    # --- the ISR ---------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, log_end: Offset) -> Ticked:
        """Shrink the ISR by followers that lag for too long. Called periodically (Kafka: every half
        `replica.lag.time.max.ms`)."""
        if self.role is not Role.LEADER:
            return _QUIET
        propose = None
        if self._pending is None:
            lagging = self.out_of_sync(now_ms, log_end)
            if lagging:
                # Lagging followers count until the controller agrees: it may refuse, and elect one of them.
                propose = self._propose(IsrChange.SHRINK, self.isr - lagging)
        hw_moved = self.record_append(log_end, now_ms)
        return Ticked(hw_moved, propose) if hw_moved or propose is not None else _QUIET

    def out_of_sync(self, now_ms: int, log_end: Offset) -> frozenset[BrokerId]:
        """Return members of the committed ISR that were not caught up within `replica.lag.time.max.ms`."""
        return frozenset(
            broker
            for broker in self.isr
            if broker != self.local_broker
            and (
                (follower := self._followers.get(broker)) is None
                or not follower.is_caught_up(log_end, now_ms, self.replica_lag_time_max_ms)
            )
        )

    def isr_accepted(
        self,
        proposal: ProposeIsr,
        *,
        isr: frozenset[BrokerId],
        leader_epoch: LeaderEpoch,
        partition_epoch: int,
        log_end: Offset,
        now_ms: int,
        leader_recovery_state: int = RECOVERED,
    ) -> IsrSettled:
        """Apply the state that the controller wrote, or already had (then with the same partition epoch)."""
        if proposal is not self._pending or leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return _LATE
        self._commit_isr(isr)
        self.partition_epoch = partition_epoch
        self.leader_recovery_state = leader_recovery_state
        return IsrSettled(applied=True, hw_moved=self.record_append(log_end, now_ms))

    def isr_rejected(self, proposal: ProposeIsr, error: ErrorCode) -> IsrSettled:
        """Handle a refusal, or a missing answer (then `error` is the error of the connection)."""
        if proposal is not self._pending:
            return _LATE
        if error in _NOT_APPLIED:
            self._commit_isr(self.isr)
            return IsrSettled(applied=True)
        if error in _AWAIT_METADATA:
            return IsrSettled(applied=True)
        # The proposal may have been applied and its answer lost. Sending it again is harmless: its partition epoch is valid
        # only once.
        return IsrSettled(applied=True, retry=proposal)

    def set_min_insync_replicas(self, minimum: int, *, log_end: Offset, now_ms: int) -> bool:
        """Apply the topic's changed setting. Return whether the high watermark moved."""
        self.min_insync_replicas = minimum
        self._min_isr = min(minimum, len(self._order) + 1)
        return self.record_append(log_end, now_ms)

    def _maybe_expand(self, follower: FollowerPosition) -> ProposeIsr | None:
        """Propose a follower for the ISR once it has all committed records *and* all records of earlier leaders.

        Between this leader's high watermark and the start of its epoch there may be records that an earlier leader committed. A
        follower without them must not become electable.
        """
        if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:
            return None
        if not self._is_eligible(follower.broker_id, BrokerEpoch(follower.broker_epoch)):
            return None
        follower.in_maximal_isr = True
        return self._propose(IsrChange.EXPAND, self.isr | {follower.broker_id})

    def _propose(self, change: IsrChange, isr: frozenset[BrokerId]) -> ProposeIsr:
        self._pending = ProposeIsr(
            change=change,
            isr=tuple(IsrMember(broker, self._known_epoch(broker)) for broker in self.replicas if broker in isr),
            leader=self.local_broker,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            controller_epoch=self.controller_epoch,
            leader_recovery_state=self.leader_recovery_state,
        )
        return self._pending

    def _known_epoch(self, broker: BrokerId) -> BrokerEpoch:
        follower = self._followers.get(broker)
        return NO_BROKER_EPOCH if follower is None else BrokerEpoch(follower.broker_epoch)

    def validate(self, *, log_start: Offset, log_end: Offset) -> None:
        """Check invariants, for tests and the simulation. An AssertionError means a bug."""
        assert log_start <= self.high_watermark <= log_end, f"{log_start} <= {self.high_watermark} <= {log_end}"
        if self.role is Role.LEADER:
            assert self.leader == self.local_broker
            assert self.local_broker not in self._followers
            assert set(self._followers) | {self.local_broker} == set(self.replicas)
            members = {follower.broker_id for follower in self._order if follower.in_maximal_isr}
            assert members == self.maximal_isr - {self.local_broker}
            assert 0 <= self.leader_epoch_start <= log_end
        else:
            assert not self._followers
            assert self._pending is None
            assert not self.isr
            assert self.leader != self.local_broker
