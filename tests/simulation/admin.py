"""An administrator that changes topics, replicas, logs and settings all the time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.client.admin.configs import alter_configs
from barnabas.client.admin.partitions import (
    alter_reassignments,
    alter_replica_log_dirs,
    delete_records,
    elect_leaders,
)
from barnabas.client.admin.topics import NewTopic, create_topics, delete_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError
from tests.simulation.load import COMING, Client
from tests.simulation.transform_load import OUTPUT

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster


#: Retention settings that the administrator sets on one topic. The audit does not expect records that retention may delete.
_RETENTION = (("retention.bytes", "2500"), ("retention.bytes", "-1"), ("retention.ms", "600000"))
_COMPACTION = (
    ("min.compaction.lag.ms", "3000"),
    ("min.compaction.lag.ms", "0"),
    ("max.compaction.lag.ms", "4000"),
    ("min.cleanable.dirty.ratio", "0.6"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("delete.retention.ms", "100"),
)


class Administrator(Client):
    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        self._made = 0
        kinds: list[Callable[[AsyncClient], Awaitable[object]]] = [
            self._reassign,
            self._elect,
            self._delete_records,
            self._move_log,
            self._change_topic,
            self._change_broker,
            self._come_and_go,
        ]
        if wanted := cluster.scenario.admin_kinds:
            self._kinds = [getattr(self, f"_{kind}") for kind in wanted]
            return
        self._kinds = [kind for kind in kinds if self.chance.random() < 0.7] or kinds
        if cluster.has_coming:
            self._kinds.append(self._come_and_go)

    async def main(self) -> None:
        while not self.ending:
            await self.pause(*self.cluster.scenario.admin_s)
            if self.ending:
                return
            try:
                async with self.connect(api_timeout_ms=8_000) as cluster:
                    await self.chance.choice(self._kinds)(cluster)
            except ClientError as error:
                self.note(f"is refused: {error}")

    async def _reassign(self, cluster: AsyncClient) -> None:
        tp = self.chance.choice(self.cluster.partitions)
        brokers = list(self.cluster.brokers)
        replicas = self.chance.sample(brokers, min(3, len(brokers)))
        self.note(f"moves {tp} to {replicas}")
        await alter_reassignments(cluster, {tp: replicas})

    async def _elect(self, cluster: AsyncClient) -> None:
        self.note("elects preferred leaders")
        await elect_leaders(cluster, 0, self.cluster.partitions)

    async def _delete_records(self, cluster: AsyncClient) -> None:
        tp = self.chance.choice([each for each in self.cluster.partitions if each != OUTPUT])
        known = [r.offset for r in self.oracle.sent.values() if r.tp == tp and r.offset >= 0]
        if known:
            below = self.chance.choice(known)
            self.note(f"deletes records of {tp} below {below}")
            self.oracle.deletes(tp, below)
            await delete_records(cluster, {tp: below})

    async def _move_log(self, cluster: AsyncClient) -> None:
        tp = self.chance.choice(self.cluster.partitions)
        broker = self.chance.choice(list(self.cluster.brokers))
        folder = self.chance.choice(["/one", "/two"])
        if self.cluster.brokers[broker].storage.faults:
            return
        self.note(f"moves the log of {tp} on broker {broker} to {folder}")
        await alter_replica_log_dirs(cluster, broker, {tp: folder})

    async def _move_back_and_forth(self, cluster: AsyncClient) -> None:
        """Move a log, also a coordinator's, to the other directory and back, before or after the first move has ended."""
        topics = await cluster.all_topics()
        there = [
            (TopicPartition(topic.name, partition.index), partition.replicas)
            for topic in topics.values()
            for partition in topic.partitions
            if topic.name != COMING
        ]
        if not there:
            return
        tp, replicas = self.chance.choice(there)
        broker = self.chance.choice(list(replicas))
        log = self.cluster.log_of(broker, tp)
        if log is None or self.cluster.brokers[broker].storage.faults:
            return
        there, back = ("/two", "/one") if log.log_dir == "/one" else ("/one", "/two")
        self.note(f"moves the log of {tp} on broker {broker} to {there} and back")
        for folder in (there, back):
            await alter_replica_log_dirs(cluster, broker, {tp: folder})
            await self.pause(0.0, 0.02)

    async def _make_twice(self, cluster: AsyncClient) -> None:
        """Create a topic of the same name from two clients, with different settings, at the same time."""
        self._made += 1
        name = f"twice-{self._made}"
        wishes = [
            NewTopic(name=name, partitions=1, replication_factor=2, configs={"segment.ms": f"{n}0000"}) for n in (1, 2)
        ]
        self.note(f"makes {name} twice")
        async with self.connect(api_timeout_ms=8_000) as other:
            outcomes = await asyncio.gather(
                *(create_topics(each, [wish]) for each, wish in zip((cluster, other), wishes, strict=True)),
                return_exceptions=True,
            )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClientError):
                raise outcome
        made = [wish for wish, outcome in zip(wishes, outcomes, strict=True) if not isinstance(outcome, ClientError)]
        exists = [isinstance(each, BrokerRefused) and each.code is ErrorCode.TOPIC_ALREADY_EXISTS for each in outcomes]
        if len(made) == 1 and any(exists):
            found = self.cluster.settings_of(name)
            if found is not None and found != made[0].configs:
                self.world.violate(
                    "a refused request changes nothing", f"{name} has {found}, made with {made[0].configs}"
                )
        await delete_topics(cluster, [name])

    async def _change_topic(self, cluster: AsyncClient) -> None:
        topic = self.chance.choice(list(self.cluster.topics))
        name, value = self.chance.choice(
            [
                ("min.insync.replicas", "1"),
                ("min.insync.replicas", "2"),
                ("min.insync.replicas", "3"),
                ("segment.bytes", "2000"),
                ("segment.bytes", "1000000"),
                ("flush.messages", "1"),
                ("flush.messages", "9223372036854775807"),
                ("segment.ms", "2000"),
                ("index.interval.bytes", "200"),
                *(_RETENTION if topic == "events" else ()),
                *(_COMPACTION if topic == "table" else ()),
            ]
        )
        if name == "flush.messages" and "log.flush.interval.messages" in self.cluster.scenario.fixed:
            return  # this world checks that a power cut loses nothing
        self.note(f"sets {name}={value} of {topic}")
        await alter_configs(cluster, ConfigResourceType.TOPIC, topic, {name: (AlterOperation.SET, value)})

    async def _change_broker(self, cluster: AsyncClient) -> None:
        name, value = self.chance.choice(
            [
                ("transaction.partition.verification.enable", "false"),
                ("transaction.partition.verification.enable", "true"),
                ("num.replica.fetchers", "2"),
                ("num.replica.fetchers", "1"),
                ("log.retention.ms", "600000"),
                ("background.threads", "3"),
            ]
        )
        where = self.chance.choice(["", *map(str, self.cluster.brokers)])
        self.note(f"sets {name}={value} of broker {where or 'default'}")
        await alter_configs(cluster, ConfigResourceType.BROKER, where, {name: (AlterOperation.SET, value)})

    async def _come_and_go(self, cluster: AsyncClient) -> None:
        """Create a topic, delete it, and create it again under the same name."""
        name = COMING
        self.note(f"deletes {name} and creates it again")
        outcome = await delete_topics(cluster, [name])
        if outcome.get(name) not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return
        await asyncio.sleep(self.chance.uniform(0, 1))
        await create_topics(cluster, [NewTopic(name=name, partitions=2, replication_factor=3)])
