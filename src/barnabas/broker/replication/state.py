"""The values that the replication machine takes and returns."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from barnabas.base.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, Offset

#: Broker epoch in a follower's request that has none (Fetch before version 15).
NO_BROKER_EPOCH: Final = BrokerEpoch(-1)
#: Position of a follower that has not fetched from this leader yet.
UNKNOWN_OFFSET: Final = Offset(-1)

#: Controller epoch before the first controller of a cluster.
NO_CONTROLLER_EPOCH: Final = ControllerEpoch(0)

RECOVERED: Final = 0
RECOVERING: Final = 1


class Role(Enum):
    """The role of this broker for the partition."""

    #: The controller has not given it a role yet, or has stopped it.
    IDLE = "idle"
    LEADER = "leader"
    FOLLOWER = "follower"
    #: The log directory failed. Only a restart helps.
    OFFLINE = "offline"


#: Every legal transition: (role, event) -> role. Any other event raises `IllegalTransition`.
TRANSITIONS: Final[dict[tuple[Role, str], Role]] = {
    (Role.IDLE, "become_leader"): Role.LEADER,
    (Role.IDLE, "become_follower"): Role.FOLLOWER,
    (Role.IDLE, "go_offline"): Role.OFFLINE,
    (Role.IDLE, "stop"): Role.IDLE,
    (Role.LEADER, "become_leader"): Role.LEADER,
    (Role.LEADER, "become_follower"): Role.FOLLOWER,
    (Role.LEADER, "go_offline"): Role.OFFLINE,
    (Role.LEADER, "stop"): Role.IDLE,
    (Role.FOLLOWER, "become_leader"): Role.LEADER,
    (Role.FOLLOWER, "become_follower"): Role.FOLLOWER,
    (Role.FOLLOWER, "go_offline"): Role.OFFLINE,
    (Role.FOLLOWER, "stop"): Role.IDLE,
    # A failed directory can fail its partitions more than once, and StopReplica may still arrive for them.
    (Role.OFFLINE, "go_offline"): Role.OFFLINE,
    (Role.OFFLINE, "stop"): Role.OFFLINE,
}


class KeepsHighWatermark(Protocol):
    """The owner of a replica's high watermark, which is its log. log start <= high watermark <= log end."""

    @property
    def high_watermark(self) -> Offset: ...

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Raise it to `offset`; return whether it moved. It never goes back."""
        ...

    def commit_up_to(self, offset: int) -> bool:
        """As leader: all in-sync replicas have the records below `offset`. Return whether the high watermark moved."""
        ...


class Watermark:
    """The high watermark of a replica that has no log yet."""

    __slots__ = ("high_watermark",)

    def __init__(self, high_watermark: Offset) -> None:
        self.high_watermark = high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        self.high_watermark = Offset(offset)
        return True

    commit_up_to = maybe_increment_high_watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLeadership:
    """The controller's decision for one partition: one entry of a LeaderAndIsr request."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    #: The version of the partition's state znode.
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = RECOVERED
    is_new: bool = False


class IsrMember(NamedTuple):
    broker_id: BrokerId
    #: The incarnation that fetched from the leader (KIP-903); -1: not known, or not sent.
    broker_epoch: BrokerEpoch


class IsrChange(Enum):
    EXPAND = "expand"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProposeIsr:
    """Effect: send this to the controller with AlterPartition, and pass this very object back with the answer.

    Compared by identity: an answer to a proposal that is no longer the pending one is ignored.
    """

    change: IsrChange
    isr: tuple[IsrMember, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    #: The controller refuses the proposal if the partition has another epoch by then.
    partition_epoch: int
    controller_epoch: ControllerEpoch
    leader_recovery_state: int

    @property
    def broker_ids(self) -> frozenset[BrokerId]:
        return frozenset(member.broker_id for member in self.isr)


class LeaderStarted(NamedTuple):
    #: False: the state was older than the current one, and nothing changed.
    applied: bool
    #: This broker did not lead before.
    is_new_leader: bool = False
    #: The log must add (leader epoch, epoch_start) to its epoch cache before anything is appended.
    is_new_epoch: bool = False
    epoch_start: Offset = UNKNOWN_OFFSET
    hw_moved: bool = False


class FollowerStarted(NamedTuple):
    applied: bool
    #: The fetcher must start over, even from the same leader.
    is_new_epoch: bool = False


class FetchRecorded(NamedTuple):
    """The changes by a follower's fetch. Frequent values are shared, so that the hot path creates none."""

    hw_moved: bool
    #: The follower's log start moved: a waiting DeleteRecords may be done.
    log_start_moved: bool
    propose: ProposeIsr | None


class Ticked(NamedTuple):
    hw_moved: bool
    propose: ProposeIsr | None


class IsrSettled(NamedTuple):
    """The changes by the answer to a proposal."""

    #: False: the answer was late, and nothing changed.
    applied: bool
    hw_moved: bool = False
    #: Send this again after a pause: the controller may or may not have applied it.
    retry: ProposeIsr | None = None


class LastFetch:
    """Time of a follower's last request in a fetch session; its positions in the session's resting partitions share it."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms = 0


class FollowerPosition:
    """A leader's knowledge of one follower, from that follower's fetches.

    While the partition rests in the follower's session (`fetch_session_cache.FetchSession.rest`), each request of the session
    means that the follower has all records. These requests are not noted here; `resting` has the time of the last one.
    """

    __slots__ = (
        "_last_caught_up_ms",
        "_last_fetch_ms",
        "broker_epoch",
        "broker_id",
        "in_maximal_isr",
        "last_fetch_leader_log_end",
        "log_end",
        "log_start",
        "resting",
    )

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        #: The follower's next fetch offset: it has all records below. -1: it has not fetched in this leadership.
        self.log_end: int = UNKNOWN_OFFSET
        self.log_start: int = UNKNOWN_OFFSET
        #: The leader's log end at the last fetch.
        self.last_fetch_leader_log_end: int = UNKNOWN_OFFSET
        self._last_fetch_ms = 0
        self._last_caught_up_ms = 0
        self.resting: LastFetch | None = None
        #: The greatest broker epoch in its requests; -1: no request had one.
        self.broker_epoch: int = NO_BROKER_EPOCH
        #: Whether it counts for the high watermark: it is in the committed ISR, or proposed for it.
        self.in_maximal_isr = False

    @property
    def last_caught_up_ms(self) -> int:
        """The last time at which the follower had all of the leader's records."""
        if self.resting is not None and self.resting.ms > self._last_caught_up_ms:
            return self.resting.ms
        return self._last_caught_up_ms

    @property
    def last_fetch_ms(self) -> int:
        return self._last_fetch_ms if self.resting is None else self.resting.ms

    def fetched(self, at_ms: int) -> None:
        self._last_fetch_ms = at_ms

    def caught_up(self, at_ms: int) -> None:
        if at_ms > self._last_caught_up_ms:
            self._last_caught_up_ms = at_ms

    def rested(self) -> None:
        """End the rest. Until its last request the follower had all of the leader's records."""
        if self.resting is not None:
            self.caught_up(self.resting.ms)
            self.fetched(self.resting.ms)
            self.resting = None

    def is_caught_up(self, leader_log_end: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.log_end == leader_log_end or now_ms - self.last_caught_up_ms <= lag_max_ms

    def reset(self, *, now_ms: int, leader_log_end: int, was_led_by_another: bool, in_sync: bool) -> None:
        """Begin a new leader epoch. A follower outside the ISR must not hold the high watermark back, so its time is 0."""
        self.resting = None
        self._last_caught_up_ms = now_ms if in_sync else 0
        if was_led_by_another:
            self.log_end = self.log_start = self.last_fetch_leader_log_end = UNKNOWN_OFFSET
            self._last_fetch_ms = 0
            self.broker_epoch = NO_BROKER_EPOCH
        else:
            self.last_fetch_leader_log_end = leader_log_end
            self._last_fetch_ms = now_ms if in_sync else 0

    def __repr__(self) -> str:
        return (
            f"FollowerPosition({self.broker_id}, {self.log_start}..{self.log_end}, caught up {self.last_caught_up_ms})"
        )
