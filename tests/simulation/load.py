"""Clients under load: producers, transactional producers, readers, groups. They are our clients, each in its own process."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, ClassVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import TRANSACTION_STATE_TOPIC
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.group import GroupConsumer
from barnabas.client.membership import GroupConfig
from barnabas.client.producer import Delivery, Producer, ProducerConfig
from barnabas.testing.simulation.process import Process
from tests.simulation.oracle import Fate, Oracle, Read, Sent, Sum

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster


#: The group of the clients that read, transform and write.
CHAIN_GROUP = "chain"
#: The topic that is deleted and created again.
COMING = "coming"
RECKLESS = "reckless"
#: Prefix of the names of topics that a client of `encounter_clients.py` deletes and creates again.
RECREATED = "remade-"
#: A partition that was compacted once, and whose history is now in an object store.
FORMER = TopicPartition("former", 0)


def _ended(client: Process, error: BaseException | None) -> None:
    """Report an exception that ended a client: clients handle error codes, and anything else is a bug here or in shipping
    code.
    """
    if error is not None:
        client.world.failure = error
        client.world.violate("no exception is left unhandled", f"{client.name} has ended: {error!r}")


class Client(Process):
    """A client that works until `end` is called, and then finishes what it has begun."""

    #: Whether it has a transactional id and cannot continue if the coordinator has lost its state.
    is_transactional: ClassVar[bool] = False

    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster.world, cluster.network, f"{cluster.prefix}{name}")
        self.cluster = cluster
        self.oracle: Oracle = cluster.oracle
        self.chance = Random(cluster.world.random.getrandbits(64))
        self.ending = False
        self.on_end = _ended

    def end(self) -> None:
        self.ending = True

    def connect(
        self,
        *,
        request_timeout_ms: int = 3_000,
        api_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 10_000,
        client_id: str | None = None,
    ) -> AsyncClient:
        return AsyncClient(
            ClientConfig(
                bootstrap=self.cluster.bootstrap,
                client_id=client_id or self.name,
                request_timeout_ms=request_timeout_ms,
                api_timeout_ms=api_timeout_ms,
                connect_timeout_ms=2_000,
                metadata_max_age_ms=metadata_max_age_ms,
            ),
            chance=self.chance,
        )

    async def pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self.chance.uniform(low_s, high_s))

    def note(self, what: str) -> None:
        self.world.note(self.name, what)


class Persistent(Client):
    """A client that starts again after an error that its own retries did not fix."""

    async def main(self) -> None:
        while not self.ending:
            try:
                await self._live()
            except* ClientError as errors:
                self.note(f"starts again: {errors.exceptions[0]!r}")
                await self.pause(0.1, 0.5)

    async def _live(self) -> None:
        raise NotImplementedError


class RecordProducer(Persistent):
    """Sends records one after the other, sometimes several at once: idempotent with acks=all, or with acks=1."""

    def __init__(
        self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition], *, acks: int = -1
    ) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._acks = acks

    async def _live(self) -> None:
        config = ProducerConfig(
            acks=self._acks,
            idempotent=self._acks == -1,
            delivery_timeout_ms=20_000,
            request_timeout_ms=3_000,
            batch_bytes=self.chance.choice([200, 16_384]),
        )
        async with (
            self.connect() as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
            asyncio.TaskGroup() as waiting,
        ):
            while not self.ending:
                tp = self.chance.choice(self._partitions)
                for _ in range(self.chance.choice([1, 1, 1, 2, 5])):
                    record = self.oracle.sends(
                        self.name, tp, is_durable=self._acks == -1, is_idempotent=self._acks == -1
                    )
                    delivery = await producer.send(
                        tp.topic, record.name.encode(), partition=tp.partition, key=str(record.number % 7).encode()
                    )
                    waiting.create_task(self._wait(record, delivery))
                await self.pause(*self.cluster.pace_s)

    async def _wait(self, record: Sent, delivery: Delivery) -> None:
        try:
            offset = await delivery.offset()
        except ClientError as error:
            record.fate = Fate.UNKNOWN
            self.note(f"gives up {record.name}: {error}")
        else:
            self.oracle.acknowledges(record, offset)


class TableKeeper(Persistent):
    """Sets rows of a compacted table: a few keys, again and again."""

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)

    async def _live(self) -> None:
        config = ProducerConfig(delivery_timeout_ms=20_000, request_timeout_ms=3_000)
        async with (
            self.connect() as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            while not self.ending:
                tp = self.chance.choice(self._partitions)
                key = f"key-{self.chance.randint(0, 4)}"
                record = self.oracle.sets(tp, key)
                value = record.name.encode() + b" " * self.chance.choice([0, 0, 400])
                delivery = await producer.send(tp.topic, value, partition=tp.partition, key=key.encode())
                try:
                    self.oracle.acknowledges(record, await delivery.offset())
                except ClientError as error:
                    record.fate = Fate.UNKNOWN
                    self.note(f"gives up {record.name}: {error}")
                await self.pause(*self.cluster.pace_s)


class TransactionalProducer(Persistent):
    """Commits or aborts transactions over several partitions. After an error it starts again with the same transactional id."""

    is_transactional = True

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._count = 0

    async def _live(self) -> None:
        config = ProducerConfig(
            transactional_id=self.name,
            transaction_timeout_ms=8_000,
            delivery_timeout_ms=6_000,
            request_timeout_ms=2_000,
        )
        async with (
            self.connect(api_timeout_ms=10_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            while not self.ending:
                await self._one(producer)
                await self.pause(*self.cluster.pace_s)

    async def _one(self, producer: Producer) -> None:
        assert producer.transaction is not None
        await producer.transaction.begin()
        self._count += 1
        sum_ = self.oracle.begins(f"{self.name}#{self._count}")
        deliveries: list[tuple[Sent, Delivery]] = []
        try:
            for _ in range(self.chance.randint(1, 4)):
                tp = self.chance.choice(self._partitions)
                record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True, transaction=sum_)
                deliveries.append((record, await producer.send(tp.topic, record.name.encode(), partition=tp.partition)))
                if self.chance.random() < 0.3:
                    await self.pause(0.0, 0.3)
            failed = await settle(self, deliveries)
            if failed or self.chance.random() < 0.25:
                await producer.transaction.abort()
                sum_.fate = Fate.ABORTED
            else:
                await producer.transaction.commit()
                sum_.fate = Fate.DONE
                self.oracle.acknowledged += 1
        except ClientError as error:
            give_up(sum_)
            self.note(f"gives up {sum_.name}: {error}")
            raise


async def settle(client: Client, deliveries: Sequence[tuple[Sent, Delivery]]) -> bool:
    """Wait for all deliveries. Return whether one failed."""
    failed = False
    for record, delivery in deliveries:
        try:
            client.oracle.acknowledges(record, await delivery.offset())
        except ClientError as error:
            record.fate = Fate.UNKNOWN
            client.note(f"gives up {record.name}: {error}")
            failed = True
    return failed


def give_up(sum_: Sum) -> None:
    sum_.fate = Fate.UNKNOWN
    for record in sum_.records:
        if record.fate is Fate.OPEN:
            record.fate = Fate.UNKNOWN


class Reader(Persistent):
    """Reads partitions in order, and now and then asks for their end offsets."""

    def __init__(
        self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition], *, isolation: int
    ) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._isolation = isolation
        self._positions = dict.fromkeys(partitions, 0)

    async def _live(self) -> None:
        config = ConsumerConfig(
            isolation_level=self._isolation,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=self.chance.choice([500, 2_000]),
            partition_max_bytes=self.chance.choice([300, 1024 * 1024]),
        )
        async with self.connect() as cluster, Consumer(cluster, config) as consumer:
            consumer.assign(self._positions)
            while not self.ending:
                for fetched in await consumer.poll(1_000):
                    tp = fetched.partition
                    for record in fetched.records(isolation_level=self._isolation):
                        name = bytes(record.value or b"").decode()
                        self.oracle.consumes(self.name, tp, record.offset, name, isolation=self._isolation)
                    self._positions[tp] = consumer.position(tp)
                if self.chance.random() < 0.2:
                    tp = self.chance.choice(self._partitions)
                    known = self.oracle.asks_for_end(tp, self._isolation)
                    found = await list_offsets(cluster, {tp: LATEST}, isolation_level=self._isolation)
                    listed = found[tp]
                    if listed.error is ErrorCode.NONE:
                        self.oracle.gets_end(self.name, tp, self._isolation, listed.leader_epoch, listed.offset, known)


class GroupReader(Persistent):
    """A member of a consumer group: reads its partitions and commits by hand now and then."""

    def __init__(self, cluster: "SimCluster", name: str, group: str, topics: Sequence[str]) -> None:
        super().__init__(cluster, name)
        self._group = group
        self._topics = list(topics)

    async def _live(self) -> None:
        group = GroupConfig(
            group_id=self._group,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=8_000,
            heartbeat_interval_ms=1_000,
            enable_auto_commit=False,
        )
        config = ConsumerConfig(isolation_level=READ_COMMITTED, auto_offset_reset="earliest", fetch_max_wait_ms=1_500)
        async with (
            self.connect(api_timeout_ms=10_000) as cluster,
            GroupConsumer(cluster, group, topics=self._topics, config=config) as consumer,
        ):
            until_s = self.world.now_s + self.chance.uniform(5, 20)
            while not self.ending and self.world.now_s < until_s:
                for fetched in await consumer.poll(1_000):
                    consumer.consumed(fetched.partition, fetched.next_position)
                if self.chance.random() < 0.5:
                    await consumer.commit()


class OffsetKeeper(Client):
    """Commits increasing offsets for a group without members: acknowledged commits must stay."""

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._offset = 0

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"

    async def main(self) -> None:
        while not self.ending:
            try:
                async with (
                    self.connect(api_timeout_ms=10_000) as cluster,
                    # A second connection: on the first one the look would wait for the commit.
                    self.connect(api_timeout_ms=10_000) as looking,
                ):
                    while not self.ending:
                        await self._commit(cluster, looking)
                        await self.pause(*self.cluster.pace_s)
            except ClientError as error:
                self.note(f"starts again: {error!r}")
                await self.pause(0.1, 0.5)

    async def _commit(self, cluster: AsyncClient, other: AsyncClient) -> None:
        self._offset += 1
        offsets = {tp: self._offset for tp in self._partitions if self.chance.random() < 0.7}
        if not offsets:
            return
        self.oracle.commits(self.group, offsets)
        looking = asyncio.create_task(self._look(other)) if self.chance.random() < 0.4 else None
        try:
            outcome = await commit_offsets(
                cluster, self.group, {tp: CommittedOffset(offset) for tp, offset in offsets.items()}
            )
            done = {tp: offsets[tp] for tp, code in outcome.items() if code is ErrorCode.NONE}
            self.oracle.committed(self.group, done)
        finally:
            if looking is not None:
                await looking

    async def _look(self, cluster: AsyncClient) -> None:
        """Read the group's offsets while a commit is in progress: every offset in an answer must be committed."""
        await self.pause(0.0, 0.1)
        try:
            found = await committed_offsets(cluster, self.group, require_stable=True)
        except ClientError as error:
            self.note(f"cannot look: {error}")
            return
        offsets = {tp: entry.offset for tp, entry in found.items()}
        self.oracle.finds(self.group, offsets)
        self.cluster.shown_group_offsets(self.name, self.group, offsets)


class Auditor(Client):
    """Waits until every replica is in sync, reads everything, and lets the oracle compare."""

    def __init__(self, cluster: "SimCluster", groups: Sequence[str]) -> None:
        super().__init__(cluster, "auditor")
        self._groups = list(groups)
        self.is_done = False

    async def main(self) -> None:
        while True:
            try:
                async with self.connect() as cluster:
                    await self._wait_until_in_sync(cluster)
                    await self._audit(cluster)
            except ClientError as error:
                self.note(f"starts again: {error!r}")
                await asyncio.sleep(0.5)
            else:
                self.note("all is well")
                self.is_done = True
                return

    async def _wait_until_in_sync(self, cluster: AsyncClient) -> None:
        last_trouble = ""
        while True:
            topics = await cluster.all_topics()
            trouble = [
                f"{topic.name}-{partition.index} leader {partition.leader} isr {partition.isr} of {partition.replicas}"
                for topic in topics.values()
                for partition in topic.partitions
                if partition.leader < 0 or set(partition.isr) != set(partition.replicas)
            ]
            missing = [name for name in self.cluster.topics if name not in topics]
            if not trouble and not missing:
                return
            if last_trouble != (last_trouble := "; ".join(trouble[:3]) or f"missing {missing}"):
                self.note(f"waits: {last_trouble}")
            await asyncio.sleep(0.5)

    async def _audit(self, cluster: AsyncClient) -> None:
        starts: dict[TopicPartition, int] = {}
        committed: dict[TopicPartition, list[Read]] = {}
        for tp in self.cluster.partitions:
            try:
                everything, starts[tp] = await self._read(cluster, tp, READ_UNCOMMITTED)
                committed[tp], _ = await self._read(cluster, tp, READ_COMMITTED)
            except BrokerRefused as refused:
                if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE or tp not in self.oracle.excused:
                    raise
                self.note(f"{tp} has a hole: {refused}")
                everything, starts[tp], committed[tp] = [], 0, []
            self.oracle.audit_partition(tp, log_start=starts[tp], everything=everything, committed=committed[tp])
        self.oracle.audit_sums(committed, starts)
        for tp in self.cluster.table_partitions:
            self.oracle.audit_table(tp, await self._rows(cluster, tp))
        for group in self._groups:
            found = await committed_offsets(cluster, group, require_stable=True)
            self.oracle.audit_group(group, {tp: entry.offset for tp, entry in found.items()})
        if self.cluster.scenario.transformers:
            found = await committed_offsets(cluster, CHAIN_GROUP, require_stable=True)
            self.oracle.audit_chain({tp: entry.offset for tp, entry in found.items()}, committed, starts)
        await self._audit_coming(cluster)
        self.cluster.compare_replicas()

    async def _audit_coming(self, cluster: AsyncClient) -> None:
        """Audit the last of all topics with this name, if it exists."""
        topics = await cluster.topics([COMING])
        if COMING not in topics or topics[COMING].error is not ErrorCode.NONE:
            return
        for partition in topics[COMING].partitions:
            tp = TopicPartition(COMING, partition.index)
            found, start = await self._read(cluster, tp, READ_UNCOMMITTED)
            self.oracle.audit_again(tp, topics[COMING].topic_id, start, found)

    async def _rows(self, cluster: AsyncClient, tp: TopicPartition) -> dict[str, str]:
        end = await self._offset(cluster, tp, LATEST, READ_UNCOMMITTED)
        rows: dict[str, str] = {}
        async with Consumer(cluster, ConsumerConfig(auto_offset_reset="none")) as consumer:
            consumer.assign({tp: await self._offset(cluster, tp, EARLIEST, READ_UNCOMMITTED)})
            while consumer.position(tp) < end:
                for fetched in await consumer.poll(1_000):
                    for record in fetched.records():
                        rows[bytes(record.key or b"").decode()] = bytes(record.value or b"").decode().strip()
        return rows

    async def _read(self, cluster: AsyncClient, tp: TopicPartition, isolation: int) -> tuple[list[Read], int]:
        start = await self._offset(cluster, tp, EARLIEST, isolation)
        while True:
            end = await self._offset(cluster, tp, LATEST, isolation)
            if tp in self.oracle.excused or self.oracle.is_log_excused(TRANSACTION_STATE_TOPIC):
                break  # no client knows whether a transaction that is still open will end
            if isolation == READ_UNCOMMITTED or end == await self._offset(cluster, tp, LATEST, READ_UNCOMMITTED):
                break
            await asyncio.sleep(0.5)  # a transaction is open: it times out, or its producer ends it
        reads: list[Read] = []
        async with Consumer(cluster, ConsumerConfig(isolation_level=isolation, auto_offset_reset="none")) as consumer:
            consumer.assign({tp: start})
            while consumer.position(tp) < end:
                for fetched in await consumer.poll(1_000):
                    reads += [
                        Read(record.offset, bytes(record.value or b"").decode())
                        for record in fetched.records(isolation_level=isolation)
                    ]
        return reads, start

    async def _offset(self, cluster: AsyncClient, tp: TopicPartition, time: int, isolation: int) -> int:
        listed = (await list_offsets(cluster, {tp: time}, isolation_level=isolation))[tp]
        if listed.error is not ErrorCode.NONE:
            raise BrokerRefused(listed.error)
        return listed.offset
