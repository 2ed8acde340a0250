"""Clients for the meetings of `encounters.py`: each is there when two things come together, and says what it saw."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.broker.storage.names import LOG_START_OFFSET_CHECKPOINT
from barnabas.broker.zookeeper_client import paths
from barnabas.client.admin.partitions import delete_records, list_offsets
from barnabas.client.admin.topics import NewTopic, create_topics, delete_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.producer import Producer, ProducerConfig
from tests.simulation.load import REMADE, Client, Persistent
from tests.simulation.process import BrokerProcess

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: More than a partition ever has.
PATIENT_BYTES: Final = 1_000_000
PATIENT_MS: Final = 3_000
#: How often a client looks whether it is its turn.
TURN_S: Final = 0.02
#: How closely a broker is looked at, and for how long.
STEP_S: Final = 0.0005
LIMIT_S: Final = 3.0
#: Before a record that comes alone: fetches begin to wait, at any time before it, and wait for a second.
QUIET_S: Final = (1.2, 2.2)
#: How long its acknowledgement takes at most: ten times what it does on a busy loop.
PROMPT_S: Final = 0.4
#: A checkpoint takes the better part of a second.
SLOWNESS: Final = 200


class PatientReader(Persistent):
    """Wants more than there is, from the first record on: its fetches wait until their time is up."""

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)

    async def _live(self) -> None:
        config = ConsumerConfig(
            auto_offset_reset="earliest", fetch_min_bytes=PATIENT_BYTES, fetch_max_wait_ms=PATIENT_MS
        )
        async with self.connect(request_timeout_ms=2 * PATIENT_MS) as cluster, Consumer(cluster, config) as consumer:
            while not self.ending:
                consumer.assign(dict.fromkeys(self._partitions, 0))
                await consumer.poll(PATIENT_MS)


class Schemer(Client):
    """When it is its turn, it brings something about, and looks what came of it."""

    #: How long that takes: nothing else begins meanwhile.
    takes_s: ClassVar[float]

    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        self._made = 0
        self._is_its_turn = False

    def invite(self) -> None:
        self._is_its_turn = True

    async def main(self) -> None:
        while not self.ending:
            await asyncio.sleep(TURN_S)
            if not self._is_its_turn:
                continue
            self._is_its_turn = False
            try:
                async with self.connect(api_timeout_ms=1_000, request_timeout_ms=1_000) as cluster:
                    if await self._until(lambda: self._is_quiet, 1.0):
                        await self._meet(cluster)
            except ClientError as error:
                self.note(f"is refused: {error}")

    async def _meet(self, cluster: AsyncClient) -> None:
        raise NotImplementedError

    async def _until(self, has_come: Callable[[], object], limit_s: float = LIMIT_S) -> bool:
        """Whether the moment has come in time."""
        until_s = self.world.now_s + limit_s
        while not has_come():
            if self.world.now_s >= until_s:
                return False
            await asyncio.sleep(STEP_S)
        return True

    @property
    def _is_quiet(self) -> bool:
        """Nothing is broken that would spoil it."""
        is_well = self.cluster.zookeeper.is_serving and self.cluster.network.is_calm
        return is_well and all(each.is_serving and not each.storage.faults for each in self.cluster.brokers.values())


class TwinMaker(Schemer):
    """Two people make a topic of the same name, and the controller that was asked first loses ZooKeeper: nothing is made.
    Who is told that the topic exists must find it."""

    takes_s = 2.5

    async def _meet(self, cluster: AsyncClient) -> None:
        controller = self.cluster.controller()
        if controller is None:
            return
        self._made += 1
        name = f"twin-{self._made}"
        async with self.connect(api_timeout_ms=1_000, request_timeout_ms=1_000) as other:
            await cluster.refresh(())
            await other.refresh(())
            for each in (cluster, other):
                await each.link(controller.id)
            pairs = [(controller.name, self.cluster.zookeeper.name), (self.cluster.zookeeper.name, controller.name)]
            for pair in pairs:
                self.cluster.network.cut(*pair)
            self.note(f"has {name} made twice while {controller.name} does not reach ZooKeeper")
            try:
                outcomes = await asyncio.gather(
                    *(self._make(each, name, 0.002 * number) for number, each in enumerate((other, cluster))),
                    self._lose(controller),
                )
            finally:
                for pair in pairs:
                    self.cluster.network.mend(*pair)
        if ErrorCode.TOPIC_ALREADY_EXISTS in outcomes:
            is_there = await self._until(lambda: self.cluster.data_at(paths.topic(name)) is not None)
            if not is_there and self.cluster.zookeeper.is_serving:
                self.world.violate("a topic that is said to exist is there", f"{name} does not exist: {outcomes}")

    async def _make(self, cluster: AsyncClient, name: str, after_s: float) -> ErrorCode:
        await asyncio.sleep(after_s)
        try:
            await create_topics(cluster, [NewTopic(name=name, partitions=1, replication_factor=2)])
        except BrokerRefused as refused:
            return ErrorCode(refused.code)
        except ClientError as error:
            self.note(f"has no answer about {name}: {error}")
            return ErrorCode.REQUEST_TIMED_OUT
        return ErrorCode.NONE

    async def _lose(self, controller: BrokerProcess) -> ErrorCode:
        """Its session ends while it waits for ZooKeeper, and another one is controller."""
        await asyncio.sleep(0.1)
        self.cluster.expire_session(controller)
        return ErrorCode.NONE


class Remaker(Schemer):
    """Deletes a topic while a broker with a slow disk notes that its first records were deleted, and makes it again. The
    broker is killed when it has acknowledged records of the new topic: they are there when it is back."""

    takes_s = 3.5

    async def _meet(self, cluster: AsyncClient) -> None:
        broker = self.chance.choice(list(self.cluster.brokers.values()))
        self._made += 1
        tp = TopicPartition(f"{REMADE}{self._made}", 0)
        topic = NewTopic(name=tp.topic, assignment={0: [broker.id]}, configs={"min.insync.replicas": "1"})
        await create_topics(cluster, [topic])
        await self._write(cluster, tp, 8)
        await delete_records(cluster, {tp: 6})
        if not await self._delete_what_is_named(cluster, broker, tp):
            return
        async with self.connect(api_timeout_ms=3_000) as other:
            await create_topics(other, [topic])
            await self._write(other, tp, 2)
        life = broker.lives
        self.note(f"has {broker.name} killed, which has acknowledged two records of the new {tp}")
        assert self.cluster.faults is not None
        if not self.cluster.faults.may_kill(broker):
            return
        broker.kill()
        broker.start()
        if await self._until(lambda: broker.is_serving and self._is_hosted(broker, tp)) and broker.lives == life + 1:
            async with self.connect(api_timeout_ms=3_000) as other:
                first = (await list_offsets(other, {tp: EARLIEST}))[tp]
                last = (await list_offsets(other, {tp: LATEST}))[tp]
                if first.error is last.error is ErrorCode.NONE and (first.offset, last.offset) != (0, 2):
                    self.world.violate(
                        "acknowledged records survive",
                        f"{tp} was made again, and its records 0 and 1 are gone: [{first.offset}, {last.offset})",
                    )
                await delete_topics(other, [tp.topic])

    async def _delete_what_is_named(self, cluster: AsyncClient, broker: BrokerProcess, tp: TopicPartition) -> bool:
        """Delete the topic when a checkpoint on disk has its log start. False: none had, in time."""
        # The checkpoint that says so takes long to be durable, so the next one has to wait.
        broker.disk_slowness = SLOWNESS
        try:
            is_named = await self._until(lambda: self._is_named(broker, tp))
        finally:
            broker.disk_slowness = 1
        if is_named:
            await self._delete(cluster, tp)
        return is_named

    async def _write(self, cluster: AsyncClient, tp: TopicPartition, count: int) -> None:
        config = ProducerConfig(delivery_timeout_ms=3_000, request_timeout_ms=2_000)
        async with Producer(cluster, config, clock=self.clock, chance=self.chance) as producer:
            for number in range(count):
                await (await producer.send(tp.topic, b"%d" % number, partition=0)).offset()

    async def _delete(self, cluster: AsyncClient, tp: TopicPartition) -> None:
        try:
            await delete_topics(cluster, [tp.topic])
        except ClientError as error:
            self.note(f"has no answer about {tp}: {error}")

    def _is_named(self, broker: BrokerProcess, tp: TopicPartition) -> bool:
        """Whether the checkpoint of log starts on disk has this log, with what is deleted of it."""
        line = f"{tp.topic} {tp.partition} 6\n".encode()
        return any(
            line in data
            for path, data in broker.storage.files("/").items()
            if path.endswith(LOG_START_OFFSET_CHECKPOINT)
        )

    def _is_hosted(self, broker: BrokerProcess, tp: TopicPartition) -> bool:
        return self.cluster.log_of(broker.id, tp) is not None


class QuietWriter(Client):
    """When all is over and every replica is in sync: a record that comes alone, to a partition that followers' sessions leave
    out since nothing has happened there, is acknowledged at once, and not when their fetches have waited long enough."""

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self.is_done = False

    async def main(self) -> None:
        config = ProducerConfig(delivery_timeout_ms=20_000, request_timeout_ms=3_000)
        async with (
            self.connect() as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            while not self._are_all_in_sync:
                await asyncio.sleep(0.5)
            for tp in self._partitions:
                await self._write(producer, tp)
            for tp in self._partitions:
                await asyncio.sleep(self.chance.uniform(*QUIET_S))
                took_s = await self._write(producer, tp)
                if took_s > PROMPT_S:
                    self.world.violate(
                        "a quiet cluster acknowledges at once", f"a record of {tp} took {took_s * 1000:.0f} ms"
                    )
        self.is_done = True

    @property
    def _are_all_in_sync(self) -> bool:
        states = self.cluster.partition_states()
        return bool(states) and all(
            state.leader >= 0 and len(state.isr) == len(self.cluster.settled_replicas(tp)) > 0
            for tp, state in states.items()
        )

    async def _write(self, producer: Producer, tp: TopicPartition) -> float:
        """How long it takes."""
        began_s = self.world.now_s
        record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True)
        delivery = await producer.send(tp.topic, record.name.encode(), partition=tp.partition)
        self.oracle.acknowledges(record, await delivery.offset())
        return self.world.now_s - began_s


def witnesses(cluster: "SimCluster", partitions: Sequence[TopicPartition]) -> list[Client]:
    return [
        *(PatientReader(cluster, f"patient{number}", partitions) for number in range(3)),
        TwinMaker(cluster, "twin"),
        Remaker(cluster, "remaker"),
    ]
