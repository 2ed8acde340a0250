"""Clients for the encounters of `encounters.py`: each sets up one encounter of two faults and checks the result."""

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
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.load import RECREATED, Client, Persistent

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: More bytes than a partition ever has.
PATIENT_BYTES: Final = 1_000_000
PATIENT_MS: Final = 3_000
#: How often a client checks whether its turn has come.
TURN_S: Final = 0.02
#: How often, and for how long at most, a client looks at a broker while it waits for a moment.
STEP_S: Final = 0.0005
LIMIT_S: Final = 3.0
#: Pause before a lone record: a fetch begins to wait at any time in it, and waits for a second.
QUIET_S: Final = (1.2, 2.2)
#: The longest time for its acknowledgement: ten times the usual time on a busy loop.
PROMPT_S: Final = 0.4
#: Factor by which the disk slows down: a checkpoint takes most of a second.
SLOWNESS: Final = 200


class PatientReader(Persistent):
    """Reads from the first record on and asks for more bytes than there are, so its fetches wait until their time is up."""

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


class EncounterClient(Client):
    """A client that sets up an encounter when invited, and checks the result."""

    #: How long the encounter takes: no other one begins in this time.
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
        """Wait for the condition; return whether it came true in time."""
        until_s = self.world.now_s + limit_s
        while not has_come():
            if self.world.now_s >= until_s:
                return False
            await asyncio.sleep(STEP_S)
        return True

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is broken that would spoil the encounter."""
        is_well = self.cluster.zookeeper.is_serving and self.cluster.network.is_calm
        return is_well and all(each.is_serving and not each.storage.faults for each in self.cluster.brokers.values())


class TwinMaker(EncounterClient):
    """Two clients create a topic of the same name, and the controller that got the first request loses ZooKeeper before it
    creates anything. If a client gets "already exists", the topic must exist.
    """

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
            self.note(f"creates {name} twice while {controller.name} does not reach ZooKeeper")
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
                self.world.violate("a topic that a broker says exists does exist", f"{name} does not exist: {outcomes}")

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
        """End the controller's session while it waits for ZooKeeper, so that another broker becomes controller."""
        await asyncio.sleep(0.1)
        self.cluster.expire_session(controller)
        return ErrorCode.NONE


class TopicRemaker(EncounterClient):
    """Deletes a topic while a broker with a slow disk checkpoints that its first records were deleted, and creates it again.
    The broker is killed after it has acknowledged records of the new topic: they must survive the restart.
    """

    takes_s = 3.5

    async def _meet(self, cluster: AsyncClient) -> None:
        broker = self.chance.choice(list(self.cluster.brokers.values()))
        self._made += 1
        tp = TopicPartition(f"{RECREATED}{self._made}", 0)
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
        self.note(f"kills {broker.name} after it has acknowledged two records of the new {tp}")
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
        """Delete the topic when a checkpoint on disk has its log start. Return False if that did not happen in time."""
        # This checkpoint takes long to be durable, so the next one has to wait.
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
        """Whether the log-start checkpoint on disk has this log, with the log start after the deletion."""
        line = f"{tp.topic} {tp.partition} 6\n".encode()
        return any(
            line in data
            for path, data in broker.storage.files("/").items()
            if path.endswith(LOG_START_OFFSET_CHECKPOINT)
        )

    def _is_hosted(self, broker: BrokerProcess, tp: TopicPartition) -> bool:
        return self.cluster.log_of(broker.id, tp) is not None


class QuietWriter(Client):
    """Writes one record at a time when all faults are over and every replica is in sync. The partition is idle, so followers'
    fetch sessions leave it out. The record must be acknowledged at once, and not only when waiting fetches time out.
    """

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
        """Write a record; return the seconds until its acknowledgement."""
        began_s = self.world.now_s
        record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True)
        delivery = await producer.send(tp.topic, record.name.encode(), partition=tp.partition)
        self.oracle.acknowledges(record, await delivery.offset())
        return self.world.now_s - began_s


def encounter_clients(cluster: "SimCluster", partitions: Sequence[TopicPartition]) -> list[Client]:
    return [
        *(PatientReader(cluster, f"patient{number}", partitions) for number in range(3)),
        TwinMaker(cluster, "twin"),
        TopicRemaker(cluster, "remaker"),
    ]
