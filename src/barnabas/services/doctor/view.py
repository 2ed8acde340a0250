"""What was seen of a cluster at one moment: facts, before anybody judges them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.ids import TopicPartition
from barnabas.client.image import ClusterImage, PartitionInfo
from barnabas.services.doctor.room import FREE_SHARE_MIN

#: Their records carry the clock of the broker that leads them: the coordinator writes them.
COORDINATOR_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on something is worth a finding."""

    #: A certificate that ends sooner.
    certificate_ms: int = 30 * DAY_MS
    #: A token that ends sooner, and within this last part of its life.
    token_ms: int = HOUR_MS
    token_share: float = 0.1
    #: A transaction that is open for longer than it may, by so much.
    transaction_late_ms: int = 60_000
    #: Between two looks at a group that rebalances. A new group waits for members for 3 s, which is no trouble.
    group_gap_s: float = 5.0
    #: A group whose position is in the oldest part of a log from which retention deletes.
    retention_share: float = 0.1
    #: Newer than our own clock by more than this: a clock is wrong.
    skew_ms: int = 2_000
    #: A disk with a smaller part of it free.
    disk_share: float = FREE_SHARE_MIN
    #: Segments that wait to be copied to the tier. The active one is not copied, and copying has its intervals.
    tier_segments: int = 3
    #: An answer that needs ZooKeeper and took longer.
    zookeeper_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class DirView:
    path: str
    #: The name of an error; empty if it is online.
    error: str = ""
    #: -1 where the broker is too old to say.
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What one broker says of itself."""

    #: API key to version range.
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    log_dirs: tuple[DirView, ...] = ()
    #: All settings that it tells, and which of them a file or an option gave.
    settings: Mapping[str, str] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    #: It is a barnabas broker, not Apache's.
    is_ours: bool = False
    #: Why who answers at its address is another broker; empty if it is itself.
    confusion: str = ""
    #: Whom it takes for controller; None where it was not asked.
    controller_id: int | None = None
    #: Why it says that it cannot reach ZooKeeper; empty if it can.
    zookeeper_trouble: str = ""
    #: How long an answer took that needs ZooKeeper; -1 where it was not asked.
    zookeeper_ms: float = -1
    #: When its certificate ends, on a listener with TLS.
    certificate_ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperView:
    """What ZooKeeper itself says."""

    connect: str
    #: Why we cannot reach it; empty if we can. Brokers may reach it all the same.
    trouble: str = ""
    #: Advertised addresses by broker, as registered: `PLAINTEXT://host:9092`.
    registrations: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    #: Whom /controller names: -1 where there is no such znode, None where it could not be read.
    controller_id: int | None = None
    #: When partitions in trouble last changed leader or ISR.
    changed_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Znodes that clients without credentials can change, or read where secrets are.
    open_znodes: tuple[str, ...] = ()
    latency_ms: float = -1
    #: Of the disk with its log; -1 where it does not tell.
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
    """Of a partition of a tiered topic, at its leader."""

    #: The last offset in the tier; -1: none.
    copied: int
    local_start: int
    log_end: int
    local_bytes: int
    #: `segment.bytes`
    segment_bytes: int

    @property
    def uncopied_bytes(self) -> int:
        """About: records are taken to be of the same size."""
        local = self.log_end - self.local_start
        waiting = self.log_end - max(self.copied + 1, self.local_start)
        return self.local_bytes * waiting // local if local > 0 else 0


@dataclass(frozen=True, slots=True)
class TokenView:
    token_id: str
    owner: str
    issued_ms: int
    ends_ms: int
    #: It cannot be renewed past this.
    max_ms: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything that was asked for, at one moment."""

    image: ClusterImage
    limits: Limits = Limits()
    now_ms: int = 0
    #: Why a broker's advertised address does not answer.
    unreachable: Mapping[int, str] = field(default_factory=dict)
    brokers: Mapping[int, BrokerView] = field(default_factory=dict)
    zookeeper: ZooKeeperView | None = None
    min_isr: Mapping[str, int] = field(default_factory=dict)
    #: `cleanup.policy` by topic.
    cleanup: Mapping[str, str] = field(default_factory=dict)
    #: The newest timestamp that the leader of a coordinator's partition has written.
    newest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    transactions: tuple[TransactionView, ...] = ()
    #: Groups that rebalanced at two looks.
    rebalancing: Mapping[str, str] = field(default_factory=dict)
    positions: tuple[GroupPosition, ...] = ()
    tokens: tuple[TokenView, ...] = ()
    tiers: Mapping[TopicPartition, TierView] = field(default_factory=dict)
    #: Questions that stayed without an answer.
    refused: tuple[str, ...] = ()

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        for name, topic in self.image.topics.items():
            for info in topic.partitions:
                yield TopicPartition(name, info.index), info

    def missing(self) -> list[int]:
        """Brokers that have replicas, and are not in the cluster."""
        return sorted(
            {each for _, info in self.partitions() for each in info.replicas if each not in self.image.brokers}
        )

    def changed_ms(self, partitions: list[TopicPartition]) -> int | None:
        """When the first of these got into trouble, as far as ZooKeeper told."""
        if self.zookeeper is None:
            return None
        return min((at for each in partitions if (at := self.zookeeper.changed_ms.get(each))), default=None)

    def setting(self, name: str) -> str | None:
        """Of any broker that told it: for those that are the same on all."""
        return next((each.settings[name] for each in self.brokers.values() if name in each.settings), None)
