"""The observed facts of a cluster at one moment, before the checks judge them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.ids import TopicPartition
from barnabas.client.image import ClusterImage, PartitionInfo
from barnabas.client.pushing import PushingClient
from barnabas.services.doctor.free_space import FREE_SHARE_MIN

#: The leader stamps records of these topics with its own clock, because the coordinator writes them.
COORDINATOR_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds above which something is worth a finding."""

    #: Report a certificate that expires within this time.
    certificate_ms: int = 30 * DAY_MS
    #: Report a token that expires within this time, and (below) within the last part of its life.
    token_ms: int = HOUR_MS
    token_share: float = 0.1
    #: Report a transaction that has been open longer than its timeout by this much.
    transaction_late_ms: int = 60_000
    #: Time between two checks of a rebalancing group. A new group waits 3 s for members, which is normal.
    group_gap_s: float = 5.0
    #: Report a group whose position is in this oldest part of a log from which retention deletes.
    retention_share: float = 0.1
    #: Report a clock whose records are newer than our own clock by more than this.
    skew_ms: int = 2_000
    #: Report a disk with a smaller free share.
    disk_share: float = FREE_SHARE_MIN
    #: Report this many uncopied segments. The active one is never copied, and copying runs at intervals.
    tier_segments: int = 3
    #: Report clients whose requests take longer, whose records wait longer in their queues, or (below) whose applications
    #: leave a smaller share of the time to `poll`.
    client_latency_ms: int = 200
    client_queue_ms: int = 1_000
    client_idle_share: float = 0.1
    #: Report an answer that needs ZooKeeper and took longer.
    zookeeper_ms: int = 1_000
    #: Report brokers whose answers to each other take longer.
    neighbour_ms: int = 250


@dataclass(frozen=True, slots=True)
class DirView:
    path: str
    #: The name of an error; empty if the directory is online.
    error: str = ""
    #: -1 if the broker is too old to report it.
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class NeighbourView:
    """A broker as another one sees it."""

    #: For how long it could not be reached; None if it can be.
    failing_ms: int | None = None
    reason: str = ""
    #: Whether the reason is that one of the two does not trust the other.
    is_untrusted: bool = False
    #: None before there are enough answers.
    round_trip_ms: int | None = None
    #: Time since the last answer; None before the first one.
    answered_ms_ago: int | None = None


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of ZooKeeper's ensemble, as a broker sees it."""

    #: For how long it has not served; None if it does.
    failing_ms: int | None = None
    reason: str = ""
    #: Whether its port answers.
    is_up: bool = True
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The state that one broker reports."""

    #: Version range by API key.
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    log_dirs: tuple[DirView, ...] = ()
    #: All reported settings, and (below) the names of those that a file or an option sets.
    settings: Mapping[str, str] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    #: Whether this is a barnabas broker, not Apache's.
    is_ours: bool = False
    #: Names of the features that it has, and of those that the cluster agreed on.
    features: frozenset[str] = frozenset()
    finalized: frozenset[str] = frozenset()
    #: The error if another broker answers at its address; else empty.
    confusion: str = ""
    #: The broker that it names as controller; None if it was not asked.
    controller_id: int | None = None
    #: The error that it reports for ZooKeeper; empty if it can reach it.
    zookeeper_trouble: str = ""
    #: Time of an answer that needs ZooKeeper; -1 if it was not asked.
    zookeeper_ms: float = -1
    #: Expiry of its certificate, on a listener with TLS.
    certificate_ends_ms: int | None = None
    #: By how much its clock is ahead of this machine's; None if it does not report it.
    clock_ahead_ms: int | None = None
    #: The other brokers of the cluster, as this one sees them.
    neighbours: Mapping[int, NeighbourView] = field(default_factory=dict)
    #: Brokers that run and report to this one, but are not in the cluster: for how long they had no connection to ZooKeeper,
    #: None if they had one.
    strangers: Mapping[int, int | None] = field(default_factory=dict)
    #: By address; empty if ZooKeeper is a single server.
    members: Mapping[str, MemberView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ZooKeeperView:
    """The state that ZooKeeper itself reports."""

    connect: str
    #: Why the doctor cannot reach it; empty if it can. Brokers may still reach it.
    trouble: str = ""
    #: Advertised addresses by broker, as registered: `PLAINTEXT://host:9092`.
    registrations: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    #: The broker that /controller names: -1 without such a znode, None if it could not be read.
    controller_id: int | None = None
    #: When the affected partitions last changed leader or ISR.
    changed_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Znodes that clients without credentials can change, or read although they contain secrets.
    open_znodes: tuple[str, ...] = ()
    latency_ms: float = -1
    #: Size of the disk with its log; -1 if unknown.
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class TransactionView:
    transactional_id: str
    state: str
    start_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupPosition:
    group_id: str
    partition: TopicPartition
    committed: int
    log_start: int
    log_end: int


@dataclass(frozen=True, slots=True)
class TierView:
    """A partition of a tiered topic, at its leader."""

    #: The last offset in the tier; -1 without one.
    copied: int
    local_start: int
    log_end: int
    local_bytes: int
    #: `segment.bytes`
    segment_bytes: int

    @property
    def uncopied_bytes(self) -> int:
        """An estimate that assumes records of equal size."""
        local = self.log_end - self.local_start
        waiting = self.log_end - max(self.copied + 1, self.local_start)
        return self.local_bytes * waiting // local if local > 0 else 0


@dataclass(frozen=True, slots=True)
class TokenView:
    token_id: str
    owner: str
    issued_ms: int
    ends_ms: int
    #: It cannot be renewed beyond this time.
    max_ms: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All answers of one moment."""

    image: ClusterImage
    limits: Limits = Limits()
    now_ms: int = 0
    #: By broker: why its advertised address does not answer.
    unreachable: Mapping[int, str] = field(default_factory=dict)
    brokers: Mapping[int, BrokerView] = field(default_factory=dict)
    zookeeper: ZooKeeperView | None = None
    min_isr: Mapping[str, int] = field(default_factory=dict)
    #: `cleanup.policy` by topic.
    cleanup: Mapping[str, str] = field(default_factory=dict)
    #: The newest timestamp that the leader of a coordinator's partition has written.
    newest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    transactions: tuple[TransactionView, ...] = ()
    #: Groups that were rebalancing at both checks.
    rebalancing: Mapping[str, str] = field(default_factory=dict)
    positions: tuple[GroupPosition, ...] = ()
    tokens: tuple[TokenView, ...] = ()
    tiers: Mapping[TopicPartition, TierView] = field(default_factory=dict)
    #: Clients that push their metrics.
    clients: tuple[PushingClient, ...] = ()
    #: Unanswered questions.
    refused: tuple[str, ...] = ()

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        for name, topic in self.image.topics.items():
            for info in topic.partitions:
                yield TopicPartition(name, info.index), info

    def strangers(self) -> dict[int, int | None]:
        """Return the brokers that run, but are not in the cluster, and for how long they had no connection to ZooKeeper."""
        return {
            broker: away_ms
            for each in self.brokers.values()
            for broker, away_ms in each.strangers.items()
            if broker not in self.brokers
        }

    def missing(self) -> list[int]:
        """Return the brokers that have replicas but are not in the cluster."""
        return sorted(
            {each for _, info in self.partitions() for each in info.replicas if each not in self.image.brokers}
        )

    def changed_ms(self, partitions: list[TopicPartition]) -> int | None:
        """Return when the first of these partitions became unhealthy, if ZooKeeper reported it."""
        if self.zookeeper is None:
            return None
        return min((at for each in partitions if (at := self.zookeeper.changed_ms.get(each))), default=None)

    def setting(self, name: str) -> str | None:
        """Return a setting from any broker that reported it: for settings that are equal on all brokers."""
        return next((each.settings[name] for each in self.brokers.values() if name in each.settings), None)
