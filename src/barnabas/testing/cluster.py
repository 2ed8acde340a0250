"""`Cluster`: a local cluster with a test's operations and faults. Blocking; one thread at a time."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from barnabas.cli.local_cluster import wait_until
from barnabas.cli.local_settings import SettingValue, setting_texts
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.testing.faults import FaultyCluster
from barnabas.testing.names import check_topic_settings, no_such_topic
from barnabas.testing.records import RecordHelpers
from barnabas.testing.snapshot import Snapshot, restore, take

TIMEOUT_S = 60.0

#: Defaults for tests, besides those for local clusters: the first group of a cluster waits for all partitions of its topic.
DEFAULTS: Mapping[str, str] = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5"}
#: The settings of `short_sessions`: failures are noticed within about a second. Kafka's defaults are for real networks.
SHORT_SESSIONS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "1000",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "0",
}
_SHORT_ZOOKEEPER = ("--tick-time", "100", "--max-session-timeout", "60000")


@dataclass(frozen=True, slots=True)
class PartitionView:
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(kw_only=True)
class Cluster(FaultyCluster, RecordHelpers):
    """`with Cluster(brokers=3) as cluster: cluster.bootstrap`. Brokers have the ids 1..N."""

    #: Notice a broker or consumer that dies after about a second instead of six or more. Only for machines that are not busy.
    short_sessions: bool = False

    def __post_init__(self) -> None:
        if self.short_sessions:
            self.config = {**SHORT_SESSIONS, **self.config}
            self.zookeeper_options = (*_SHORT_ZOOKEEPER, *self.zookeeper_options)
        self.config = {**DEFAULTS, **self.config}
        super().__post_init__()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.stop)

    # -- topics -----------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, SettingValue] | None = None,
    ) -> None:
        """Create a topic, and wait until every broker knows a leader for each of its partitions."""
        check_topic_settings(config or {})
        new = topic_admin.NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=setting_texts(config or {}),
        )
        self.ask(lambda client: topic_admin.create_topics(client, [new]))
        self.wait_until_led(name)

    def delete_topic(self, name: str) -> None:
        self.ask(lambda client: topic_admin.delete_topics(client, [name]))

    def partitions(self, topic: str, *, seen_by: int | None = None) -> dict[int, PartitionView]:
        """Return leader, replicas and ISR by partition as a broker (by default any) knows them; empty for an unknown topic."""

        async def look(client: AsyncClient) -> dict[int, PartitionView]:
            found = (await client.topics([topic])).get(topic)
            partitions = found.partitions if found is not None else ()
            return {each.index: PartitionView(each.leader, each.replicas, each.isr) for each in partitions}

        return self.ask(look, of=seen_by)

    def topics(self) -> list[str]:
        """Return the names of topics without Kafka's internal ones."""

        async def look(client: AsyncClient) -> list[str]:
            return sorted(name for name in await client.all_topics() if not name.startswith("__"))

        return self.ask(look)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the leader's id; -1 while there is none."""
        known = self.partitions(topic)
        if not known:
            raise no_such_topic(topic, self.topics())
        if partition not in known:
            raise ValueError(f"{topic} has no partition {partition}: it has 0 to {max(known)}")
        return known[partition].leader

    # -- waiting ----------------------------------------------------------------------------------------------------------

    def wait_until_led(self, topic: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until every running broker knows a running leader for each partition, so that no client goes to a dead one."""
        running = [each for each in self.broker_ids if self._can_obey(each)]

        def led(seen_by: int) -> bool:
            known = self.partitions(topic, seen_by=seen_by)
            return bool(known) and all(each.leader in running for each in known.values())

        wait_until(
            lambda: all(led(each) for each in running), timeout_s, what=f"leaders of {topic}, known to all brokers,"
        )

    def wait_for_isr(self, topic: str, size: int, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until every partition of the topic has `size` replicas in sync."""
        wait_until(
            lambda: all(len(p.isr) == size for p in self.partitions(topic).values()),
            timeout_s,
            what=f"{size} in-sync replicas of {topic}",
        )

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Copy everything that the cluster has on disk. Its processes stop for some milliseconds, which clients do not
        notice."""
        return take(self)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore that state, at the same addresses. The processes start again, and clients reconnect."""
        restore(self, snapshot)
