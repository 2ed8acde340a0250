"""What a seed's world looks like: no two are alike, and the brokers of one are not alike either."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from barnabas.broker.zookeeper_client.features import ANNOUNCED, GROUP_VERSION, TRANSACTION_VERSION
from tests.simulation.profiles import profile_of

#: Settings that a broker may have for itself, changed when it starts again.
VARIED: dict[str, tuple[str, ...]] = {
    "transaction.partition.verification.enable": ("true", "true", "true", "false"),
    "transaction.two.phase.commit.enable": ("false", "true", "true"),
    "replica.fetch.wait.max.ms": ("100", "500", "500"),
    "num.replica.fetchers": ("1", "2"),
    "log.flush.interval.messages": ("9223372036854775807", "9223372036854775807", "1", "10"),
    "log.flush.interval.ms": ("9223372036854775807", "1000"),
    "auto.leader.rebalance.enable": ("true", "false"),
    "unclean.leader.election.enable": ("false",),
    "num.recovery.threads.per.data.dir": ("1", "4"),
    "group.coordinator.rebalance.protocols": ("classic,consumer",) * 5 + ("classic",),
}
#: What a broker may announce: ours of today, one without KIP-890 part 2, and one of Apache Kafka 3.9.
RELEASES: tuple[Mapping[str, tuple[int, int]], ...] = (
    *(ANNOUNCED,) * 5,
    {GROUP_VERSION: (0, 1), TRANSACTION_VERSION: (0, 1)},
    {},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    brokers: int = 3
    #: Virtual seconds of faults under load.
    seconds: float = 25.0
    #: Between two actions of a client.
    pace_s: tuple[float, float] = (0.3, 1.5)
    #: Between two faults.
    fault_every_s: tuple[float, float] = (0.3, 2.5)
    session_timeout_ms: int = 3_000
    replica_lag_ms: int = 2_000
    segment_bytes: int = 1_048_576
    producers: int = 1
    transactional: int = 1
    readers: int = 1
    group_members: int = 1
    #: Clients of other makes.
    guests: int = 0
    #: What they do, by name; empty: everything.
    guest_visits: tuple[str, ...] = ()
    has_acks_one: bool = False
    has_keeper: bool = True
    has_admin: bool = True
    has_table: bool = False
    #: Members of a consumer group of KIP-848, all of them, and one in the group of the classic members.
    modern_members: int = 0
    has_mixed_group: bool = False
    #: Clients that read, transform, write and commit in one transaction.
    transformers: int = 0
    has_modern_chain: bool = False
    #: A client with transactions in two phases.
    has_pledger: bool = False
    #: A producer for the topic that the administrator deletes and makes again.
    has_coming: bool = False
    #: A topic that may lose records: whoever is alive may lead it.
    has_reckless: bool = False
    #: Some brokers announce other features than others, and others after a restart.
    has_old_brokers: bool = False
    features: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    #: Members of a classic group with ids of their own, who go away and come back.
    static_members: int = 0
    #: Members of groups of other makes.
    visitors: int = 0
    #: Clients that have something happen at the very moment at which it hurts, and what they do, by name; empty: everything.
    ambushers: int = 0
    ambushes: tuple[str, ...] = ()
    #: Clients of the meetings that faults bring about (`encounter_clients.py`).
    has_witnesses: bool = False
    #: Brokers run out of descriptors (`descriptor_limits.py`), and what is deleted leaves the disk in time.
    has_scarcity: bool = False
    #: How much of its partition a coordinator reads in one step; 0: as much as it does where nobody says otherwise.
    load_step_bytes: int = 0
    #: What the administrator does, by name; empty: the seed chooses.
    admin_kinds: tuple[str, ...] = ()
    #: Between two actions of the administrator.
    admin_s: tuple[float, float] = (1.0, 5.0)
    #: How long a packet takes at most, where no fault makes it slower.
    network_s: float = 0.001
    #: The highest epoch that a producer gets: with a low one, producer ids are used up.
    last_epoch: int = 32766
    #: Transactions between two snapshots of ZooKeeper.
    snap_count: int = 100_000
    #: ZooKeeper is three servers, two of which may be behind (`ensemble.py`).
    has_ensemble: bool = False
    #: Somebody has znodes in ZooKeeper that are not open to all.
    has_locked_znodes: bool = False
    #: Kind of fault -> how often, beside the others. Empty: a mix that the seed chooses.
    faults: Mapping[str, int] = field(default_factory=dict)
    #: Settings that all brokers have.
    all_brokers: Mapping[str, str] = field(default_factory=dict)
    settings: dict[int, dict[str, str]] = field(default_factory=dict)
    #: Settings that no broker has otherwise, at any time.
    fixed: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(seed: int, *, has_rare: bool = True) -> "Scenario":
        """`has_rare`: seeds with a profile of what is rare have it, and are no mix."""
        chance = Random(seed * 7919 + 13)
        brokers = chance.choice([3, 3, 3, 4, 5])
        mixed = Scenario(
            brokers=brokers,
            seconds=chance.choice([15.0, 25.0, 40.0]),
            pace_s=chance.choice([(0.05, 0.4), (0.3, 1.5), (0.3, 1.5), (0.0, 3.0)]),
            fault_every_s=chance.choice([(0.1, 1.0), (0.3, 2.5), (0.3, 2.5), (2.0, 6.0)]),
            session_timeout_ms=chance.choice([2_000, 3_000, 6_000]),
            replica_lag_ms=chance.choice([1_500, 2_500, 5_000]),
            segment_bytes=chance.choice([1_048_576, 4_000, 1_500]),
            producers=chance.choice([1, 1, 2]),
            transactional=chance.choice([0, 1, 1, 2]),
            readers=chance.choice([1, 2]),
            group_members=chance.choice([0, 1, 2, 3]),
            guests=chance.choice([0, 0, 1]),
            has_acks_one=chance.random() < 0.2,
            has_keeper=chance.random() < 0.7,
            has_admin=chance.random() < 0.6,
            has_table=chance.random() < 0.3,
            settings={number: vary(chance) for number in range(1, brokers + 1)},
        )
        profile = profile_of(seed, has_rare=has_rare)
        return _with_more(Random(seed * 104_729 + 7), replace(mixed, faults=profile.faults_of(seed), **profile.fields))


def _with_more(chance: Random, scenario: Scenario) -> Scenario:
    """Load that not every seed has: each costs as much as the rest does."""
    has_old_brokers = chance.random() < 0.25
    brokers = range(1, scenario.brokers + 1)
    return replace(
        scenario,
        modern_members=chance.choice([0, 0, 0, 0, 0, 1, 2, 3]),
        has_mixed_group=scenario.group_members > 0 and chance.random() < 0.2,
        transformers=chance.choice([0, 0, 0, 0, 1, 2]),
        has_modern_chain=chance.random() < 0.5,
        has_pledger=chance.random() < 0.2,
        has_coming=chance.random() < 0.5,
        has_old_brokers=has_old_brokers,
        features={number: chance.choice(RELEASES) for number in brokers} if has_old_brokers else {},
    )


def vary(chance: Random) -> dict[str, str]:
    """Some settings, from time to time another one."""
    return {name: chance.choice(values) for name, values in VARIED.items() if chance.random() < 0.5}
