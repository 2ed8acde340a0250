"""The properties of a seed's world: worlds differ, and the brokers of one world differ too."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from barnabas.broker.zookeeper_client.features import ANNOUNCED, GROUP_VERSION, TRANSACTION_VERSION
from tests.simulation.profiles import profile_of

#: Settings that a broker may have for itself, and that may change when it restarts.
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
#: Features that a broker may announce: barnabas today, one without KIP-890 part 2, and Apache Kafka 3.9.
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
    #: Seconds between two actions of a client.
    pace_s: tuple[float, float] = (0.3, 1.5)
    #: Seconds between two faults.
    fault_every_s: tuple[float, float] = (0.3, 2.5)
    session_timeout_ms: int = 3_000
    replica_lag_ms: int = 2_000
    segment_bytes: int = 1_048_576
    producers: int = 1
    transactional: int = 1
    readers: int = 1
    group_members: int = 1
    #: Number of foreign clients (`foreign_clients.py`).
    guests: int = 0
    #: Names of their visits; empty: all.
    guest_visits: tuple[str, ...] = ()
    has_acks_one: bool = False
    has_keeper: bool = True
    has_admin: bool = True
    has_table: bool = False
    #: Members of a consumer group of KIP-848, and whether one of them joins the group of the classic members.
    modern_members: int = 0
    has_mixed_group: bool = False
    #: Clients that read, transform, write and commit in one transaction.
    transformers: int = 0
    has_modern_chain: bool = False
    #: Whether there is a client with two-phase transactions.
    has_pledger: bool = False
    #: Whether there is a producer for the topic that the administrator deletes and creates again.
    has_coming: bool = False
    #: Whether there is a topic with unclean elections, which may lose records.
    has_reckless: bool = False
    #: Whether brokers announce different features, also after a restart.
    has_old_brokers: bool = False
    features: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    #: Static members of a classic group, which leave and return.
    static_members: int = 0
    #: Members of groups that act unlike our clients (`unusual_members.py`).
    visitors: int = 0
    #: Number of clients that cause timed faults, and the names of these; empty: all.
    ambushers: int = 0
    ambushes: tuple[str, ...] = ()
    #: Whether there are clients for the encounters (`encounter_clients.py`).
    has_witnesses: bool = False
    #: Whether brokers run out of descriptors (`descriptor_limits.py`); deleted files must leave the disk in time.
    has_scarcity: bool = False
    #: How many bytes of its partition a coordinator reads in one step; 0: the default.
    load_step_bytes: int = 0
    #: Names of the administrator's operations; empty: the seed chooses.
    admin_kinds: tuple[str, ...] = ()
    #: Seconds between two operations of the administrator.
    admin_s: tuple[float, float] = (1.0, 5.0)
    #: Longest time of a packet when no fault slows the network down.
    network_s: float = 0.001
    #: The highest epoch of a producer: with a low one, producer ids are used up.
    last_epoch: int = 32766
    #: Number of transactions between two snapshots of ZooKeeper.
    snap_count: int = 100_000
    #: Whether ZooKeeper is an ensemble of three servers, two of which may be behind (`ensemble.py`).
    has_ensemble: bool = False
    #: Whether another client has znodes in ZooKeeper with restrictive ACLs.
    has_locked_znodes: bool = False
    #: Kind of fault -> its weight. Empty: a mix that the seed chooses.
    faults: Mapping[str, int] = field(default_factory=dict)
    #: Settings of all brokers.
    all_brokers: Mapping[str, str] = field(default_factory=dict)
    settings: dict[int, dict[str, str]] = field(default_factory=dict)
    #: Settings of all brokers that override the varied ones at any time.
    fixed: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(seed: int, *, has_rare: bool = True) -> "Scenario":
        """Return the scenario of a seed. `has_rare`: seeds of a rare profile get it instead of a mix."""
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
    """Add load that not every seed has: each kind costs as much as the rest of the scenario."""
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
    """Return some varied settings with random values."""
    return {name: chance.choice(values) for name, values in VARIED.items() if chance.random() < 0.5}
