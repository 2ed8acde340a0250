"""Share groups on a cluster with faults (KIP-932): members that die with locks, and leaders and coordinators that are killed.

Records are written with and without transactions, deleted, and in a topic that is deleted and created again. Partitions are
added. The promises are in `share_ledger.py`. In the end the members of each group accept what is left, until its lag is zero.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.admin.share_groups import share_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import ConsumerConfig
from barnabas.testing.simulation.process import Process
from barnabas.wire.records import Record
from tests.simulation.cluster import SETTLE_S, SimCluster
from tests.simulation.load import COMING, Client, RecordProducer, TransactionalProducer
from tests.simulation.oracle import Read
from tests.simulation.recreated_topics import PersistentProducer
from tests.simulation.scenario import Scenario
from tests.simulation.share_ledger import ShareLedger, watch_acquisitions
from tests.simulation.share_workers import JOBS, LETTERS, GroupKind, ShareAdministrator, ShareMaker, ShareWorker

LIMIT: Final = 3
_FAULTS = {
    "kill": 3, "kill_leader": 3, "kill_controller": 1, "restart": 2, "pause": 2, "isolate": 1, "cut_link": 2,
    "reset_connections": 3, "slow_network": 1,
}  # fmt: skip
#: Operations of the administrator; a seed has some of them.
_OPERATIONS: Final = ("delete_records", "come_and_go", "add_partitions", "elect", "reassign")
_SETTINGS: Final = {
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.session.timeout.ms": "3000",
    "group.share.session.timeout.ms": "5000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "2000",
    "group.share.delivery.count.limit": str(LIMIT),
    "group.share.partition.max.record.locks": "100",
    "group.share.initialize.retry.interval.ms": "2000",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.snapshot.update.records.per.snapshot": "7",
    "share.coordinator.state.topic.prune.interval.ms": "4000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "6000",
}
_LETTER: Final = "__dlq.errors."


class ShareWorld(SimCluster):
    def __init__(self, seed: int) -> None:
        scenario = replace(
            Scenario.of(seed, has_rare=False),
            seconds=25.0,
            pace_s=(0.1, 0.8),
            segment_bytes=1_048_576,
            faults=_FAULTS,
            fault_every_s=(1.0, 5.0),
            producers=1, transactional=1, readers=0, group_members=0, guests=0, has_acks_one=False, has_keeper=False,
            has_admin=True, has_table=False, modern_members=0, has_mixed_group=False, transformers=0, has_pledger=False,
            has_coming=True, has_reckless=False, has_old_brokers=False, features={}, all_brokers=_SETTINGS,
            admin_kinds=_OPERATIONS,
        )  # fmt: skip
        super().__init__(seed, scenario)
        chance = self.world.random
        self.topics = {JOBS: (2, 3, {"min.insync.replicas": "2"})}
        #: The partitions that producers write to: the administrator adds some.
        self.written = self.partitions
        self.groups = [
            GroupKind("workers", chance.random() < 0.5, begins_at_latest=False, has_letters=chance.random() < 0.7),
            GroupKind("others", chance.random() < 0.5, begins_at_latest=chance.random() < 0.5, has_letters=False),
        ]
        self.is_made = self.is_draining = False
        self.ledger = ShareLedger(self, limit=LIMIT)
        watch_acquisitions(self.ledger, lambda: getattr(asyncio.get_running_loop(), "name", ""))
        self._workers = [
            *(ShareWorker(self, f"w{number}", self.groups[0]) for number in range(chance.choice([2, 3, 4]))),
            *(ShareWorker(self, f"v{number}", self.groups[1]) for number in range(chance.choice([1, 2]))),
        ]
        self._is_over = False

    def _start_clients(self) -> None:
        others: list[Client] = [
            ShareMaker(self, "share maker"),
            RecordProducer(self, "p0", self.written),
            TransactionalProducer(self, "t0", self.written),
            PersistentProducer(self, "again"),
            ShareAdministrator(self, "admin"),
        ]
        self.clients = [*others, *self._workers]
        for client in self.clients:
            client.start()
        self.world.after(3.0, self._trouble)
        self.world.after(1.0, self._look)

    def _look(self) -> None:
        self.ledger.look()
        self.world.after(0.5, self._look)

    # -- trouble ----------------------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        """Kill or pause a member now and then, or kill the broker that leads a group's partition or coordinates it."""
        if self._is_over:
            return
        assert self.faults is not None
        luck = self.world.random.random()
        if luck < 0.25:
            topic = self.world.random.choice([JOBS, SHARE_GROUP_STATE_TOPIC, GROUP_METADATA_TOPIC])
            leaders = {state.leader for tp, state in self.partition_states().items() if tp.topic == topic}
            brokers = [self.brokers[each] for each in sorted(leaders) if each in self.brokers]
            if brokers:
                self.faults.kill(self.world.random.choice(brokers))
        else:
            self._trouble_member(self.world.random.choice(self._workers), luck)
        self.world.after(self.world.between(1.0, 4.0), self._trouble)

    def _trouble_member(self, worker: ShareWorker, luck: float) -> None:
        if not worker.is_up or worker.is_paused:
            return
        if luck < 0.6:
            worker.kill()
            self.world.after(self.world.between(0.1, 3.0), lambda: None if worker.is_up else worker.start())
        else:
            Process.pause(worker)
            self.world.after(self.world.between(0.5, 8.0), lambda: worker.resume() if worker.is_paused else None)

    def calm(self) -> None:
        self._is_over = True
        for worker in self._workers:
            if worker.is_paused:
                worker.resume()
            if not worker.is_up:
                worker.start()
        super().calm()
        self._drain()

    def _drain(self) -> None:
        """End the producers, and let the members accept everything that is left."""
        self.is_draining = True
        others = [client for client in self.clients if client not in self._workers]
        for client in others:
            client.end()
        self._wait(lambda: not any(client.is_up for client in others), "the producers do not end")
        drainer = Drainer(self, "drainer")
        drainer.start()
        self._wait(lambda: not drainer.is_up, lambda: f"the share groups have not read everything: {drainer.waits_for}")

    def _wait(self, is_over: Callable[[], bool], problem: str | Callable[[], str]) -> None:
        world = self.world
        deadline_s = world.now_s + 2 * SETTLE_S
        while not is_over() and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if not is_over():
            world.violate("a healthy cluster serves in time", problem if isinstance(problem, str) else problem())

    # -- the end ----------------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        super().audit()
        for _, _, what in self.world.story:
            # Five attempts fail only while much else has failed.
            if "are given up without a copy in the dead-letter topic" in what:
                self.ledger.letters_failed |= {group.name for group in self.groups if f"[group {group.name}]" in what}
        auditor = ShareAuditor(self, "share auditor")
        auditor.start()
        self._wait(lambda: not auditor.is_up, "the share groups' audit does not end")
        self.world.note(
            "share auditor", f"{self.ledger.deliveries} deliveries, {self.ledger.acknowledged} acknowledged"
        )
        if not self.ledger.acknowledged:
            self.world.violate("a healthy cluster serves in time", "no decision was acknowledged")

    def rest(self) -> None:
        super().rest()
        for process in self.brokers.values():
            left = list(process.broker.share.partitions) if process.broker is not None else []
            if left:
                self.world.violate("memory returns", f"{process.name} keeps {left} without any session")


class ShareReader(Client):
    """Reads partitions and their offsets; starts again after errors."""

    async def main(self) -> None:
        while True:
            try:
                async with self.connect() as cluster:
                    await self._work(cluster)
                return
            except ClientError as error:
                self.note(f"starts again: {error!r}")
                await asyncio.sleep(0.5)

    async def _work(self, cluster: AsyncClient) -> None:
        raise NotImplementedError

    async def _partitions(self, cluster: AsyncClient) -> dict[TopicPartition, bytes]:
        """Return the partitions that the groups read, with the ids of their topics."""
        found: dict[TopicPartition, bytes] = {}
        for topic in (await cluster.topics([JOBS, COMING])).values():
            if topic.error is ErrorCode.NONE:
                found |= {TopicPartition(topic.name, part.index): topic.topic_id for part in topic.partitions}
        return found

    async def _offset(self, cluster: AsyncClient, tp: TopicPartition, time: int) -> int:
        listed = (await list_offsets(cluster, {tp: time}, isolation_level=READ_UNCOMMITTED))[tp]
        if listed.error is not ErrorCode.NONE:
            raise BrokerRefused(listed.error)
        return listed.offset


class Drainer(ShareReader):
    """Waits until the groups have read everything."""

    waits_for = ""

    async def _work(self, cluster: AsyncClient) -> None:
        world: ShareWorld = self.cluster  # type: ignore[assignment]
        wanted = await self._partitions(cluster)
        for group in world.groups:
            while True:
                lags = {tp: found.lag for tp, found in (await share_offsets(cluster, group.name)).items()}
                left = {tp: lags.get(tp) for tp in wanted if lags.get(tp) != 0}
                self.waits_for = f"lag of {group.name}: {left}"
                if not left:
                    break
                await asyncio.sleep(0.5)


class ShareAuditor(ShareReader):
    """Compares what the groups got with what is in the log."""

    async def _work(self, cluster: AsyncClient) -> None:
        world: ShareWorld = self.cluster  # type: ignore[assignment]
        partitions = await self._partitions(cluster)
        letters = await self._letters(cluster)
        for tp, topic_id in partitions.items():
            if self.oracle.is_log_excused(SHARE_GROUP_STATE_TOPIC):
                return
            for group in world.groups:
                level = READ_COMMITTED if group.reads_committed else READ_UNCOMMITTED
                records = await self._read(cluster, tp, level)
                reads = [Read(record.offset, bytes(record.value or b"").decode()) for record in records]
                was_there = tp.topic == COMING or tp.partition < 2
                world.ledger.audit_partition(
                    group.name, topic_id, tp, reads, may_skip_first=group.begins_at_latest and was_there
                )
                if group.has_letters and tp.topic == JOBS:
                    # Of a deleted topic there may be letters, too: offsets would not say which of them it was.
                    start = await self._offset(cluster, tp, EARLIEST)
                    world.ledger.audit_letters(group.name, topic_id, tp, start, letters.get(tp, {}))
        for group in world.groups:
            if group.reads_committed:
                world.ledger.audit_seen(group.name)

    async def _letters(self, cluster: AsyncClient) -> dict[TopicPartition, dict[int, int]]:
        """Return partition -> offset -> the lowest delivery count of its dead letters."""
        found: dict[TopicPartition, dict[int, int]] = {}
        for record in await self._read(cluster, TopicPartition(LETTERS, 0), READ_UNCOMMITTED):
            headers = {name: bytes(value or b"").decode() for name, value in record.headers}
            tp = TopicPartition(headers[f"{_LETTER}topic"], int(headers[f"{_LETTER}partition"]))
            offset, count = int(headers[f"{_LETTER}offset"]), int(headers[f"{_LETTER}delivery.count"])
            of_partition = found.setdefault(tp, {})
            of_partition[offset] = min(count, of_partition.get(offset, count))
        return found

    async def _read(self, cluster: AsyncClient, tp: TopicPartition, level: int) -> list[Record]:
        start, end = await self._offset(cluster, tp, EARLIEST), await self._offset(cluster, tp, LATEST)
        found: list[Record] = []
        config = ConsumerConfig(isolation_level=level, auto_offset_reset="none")
        async with Consumer(cluster, config) as consumer:
            consumer.assign({tp: start})
            while consumer.position(tp) < end:
                for fetched in await consumer.poll(1_000):
                    found += fetched.records(isolation_level=level)
        return found
