"""The values that go into and come out of the replication machine."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from barnabas.base.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, Offset

#: What a follower's request says of its broker epoch when it has none to tell (Fetch before version 15).
NO_BROKER_EPOCH: Final = BrokerEpoch(-1)
#: The leader has not heard from that follower yet.
UNKNOWN_OFFSET: Final = Offset(-1)

#: Before the first controller of a cluster.
NO_CONTROLLER_EPOCH: Final = ControllerEpoch(0)

RECOVERED: Final = 0
RECOVERING: Final = 1


class Role(Enum):
    """What this broker is for the partition."""

    #: No controller has said anything yet, or it said to stop.
    IDLE = "idle"
    LEADER = "leader"
    FOLLOWER = "follower"
    #: Its log directory failed. There is no way back but a restart.
    OFFLINE = "offline"


#: Every legal step: (role, event) -> role. Anything else raises `IllegalTransition`.
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
    # A failed directory can fail its partitions more than once, and StopReplica may still come for them.
    (Role.OFFLINE, "go_offline"): Role.OFFLINE,
    (Role.OFFLINE, "stop"): Role.OFFLINE,
}


class KeepsHighWatermark(Protocol):
    """Who owns a replica's high watermark: its log. log start <= high watermark <= log end."""

    @property
    def high_watermark(self) -> Offset: ...

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Move it on to `offset`; True where it moved. Never back."""
        ...

    def commit_up_to(self, offset: int) -> bool:
        """As leader: the others in sync have everything below `offset`. True where the high watermark moved."""
        ...


class Watermark:
    """A high watermark alone: of a replica that has no log yet."""

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
    """What the controller decided for one partition: one entry of a LeaderAndIsr request."""

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
    #: The incarnation that the leader heard from (KIP-903); -1: not known, or not sent.
    broker_epoch: BrokerEpoch


class IsrChange(Enum):
    EXPAND = "expand"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProposeIsr:
    """Effect: send this to the controller with AlterPartition, and feed the answer back with this very object.

    Compared by identity: an answer to a proposal that is no longer the pending one is ignored.
    """

    change: IsrChange
    isr: tuple[IsrMember, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    #: The controller refuses the proposal when the partition's epoch is another one by then.
    partition_epoch: int
    controller_epoch: ControllerEpoch
    leader_recovery_state: int

    @property
    def broker_ids(self) -> frozenset[BrokerId]:
        return frozenset(member.broker_id for member in self.isr)


class LeaderStarted(NamedTuple):
    #: False: the state was older than what is known, nothing changed.
    applied: bool
    #: This broker did not lead before.
    is_new_leader: bool = False
    #: The log must note (leader epoch, epoch_start) in its epoch cache before anything is appended.
    is_new_epoch: bool = False
    epoch_start: Offset = UNKNOWN_OFFSET
    hw_moved: bool = False


class FollowerStarted(NamedTuple):
    applied: bool
    #: The fetcher must start over, even from the same leader.
    is_new_epoch: bool = False


class FetchRecorded(NamedTuple):
    """What a follower's fetch changed. The frequent values are shared, so that none is made on the hot path."""

    hw_moved: bool
    #: The follower's log start moved: a waiting DeleteRecords may be done.
    log_start_moved: bool
    propose: ProposeIsr | None


class Ticked(NamedTuple):
    hw_moved: bool
    propose: ProposeIsr | None


class IsrSettled(NamedTuple):
    """What the answer to a proposal changed."""

    #: False: the answer was late, the machine had moved on.
    applied: bool
    hw_moved: bool = False
    #: Send it again (after a pause): the controller may or may not have seen it.
    retry: ProposeIsr | None = None


class LastFetch:
    """When a follower last sent a request of one fetch session. Its positions in the partitions that rest there share it."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms = 0


class FollowerPosition:
    """What the leader knows of one follower, all of it from that follower's fetches.

    While the partition rests in the follower's session (`fetch_session_cache.FetchSession.rest`), each request of the session
    says that the follower has all that the leader has, and none of them is noted here: `resting` has their time.
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
        #: Its next fetch offset: it has everything below. -1: not heard from in this leadership.
        self.log_end: int = UNKNOWN_OFFSET
        self.log_start: int = UNKNOWN_OFFSET
        #: The leader's log end when the last fetch came.
        self.last_fetch_leader_log_end: int = UNKNOWN_OFFSET
        self._last_fetch_ms = 0
        self._last_caught_up_ms = 0
        self.resting: LastFetch | None = None
        #: The greatest that it ever sent; -1: none yet.
        self.broker_epoch: int = NO_BROKER_EPOCH
        #: It counts for the high watermark: in the committed ISR, or proposed for it.
        self.in_maximal_isr = False

    @property
    def last_caught_up_ms(self) -> int:
        """The last time at which it had all that the leader had."""
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
        """The rest is over. Its last request said that it had all that the leader had until now."""
        if self.resting is not None:
            self.caught_up(self.resting.ms)
            self.fetched(self.resting.ms)
            self.resting = None

    def is_caught_up(self, leader_log_end: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.log_end == leader_log_end or now_ms - self.last_caught_up_ms <= lag_max_ms

    def reset(self, *, now_ms: int, leader_log_end: int, was_led_by_another: bool, in_sync: bool) -> None:
        """A new leader epoch begins. A follower outside the ISR must not hold the high watermark back: its time is 0."""
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
