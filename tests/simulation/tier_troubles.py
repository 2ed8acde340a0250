"""One kind of trouble of an object store and its users: every fourth seed of the world `tier` has one.

Each kind needs moments to coincide that hardly ever do at random. So the trouble waits until a real broker is in a certain
state, and strikes then.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.base.words import READ_COMMITTED, AlterOperation, ConfigResourceType
from barnabas.client.admin.configs import alter_configs
from barnabas.client.admin.partitions import alter_reassignments, delete_records, list_offsets
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.producer import Producer, ProducerConfig
from barnabas.testing.simulation.process import BrokerProcess
from barnabas.wire.records import BatchBuilder
from tests.simulation.load import FORMER, RECKLESS, Client, Persistent, TransactionalProducer, give_up, settle
from tests.simulation.oracle import Fate
from tests.simulation.profiles import Profile

if TYPE_CHECKING:
    from tests.simulation.tier_world import TieredCluster

_FEW: Mapping[str, Any] = {
    "brokers": 3, "seconds": 18.0, "pace_s": (0.02, 0.3), "fault_every_s": (1.0, 3.0), "session_timeout_ms": 2_000,
    "replica_lag_ms": 1_500, "producers": 1, "transactional": 1, "readers": 1, "group_members": 0, "guests": 0,
    "has_acks_one": False, "has_keeper": False, "modern_members": 0, "has_mixed_group": False, "transformers": 0,
    "has_pledger": False, "network_s": 0.002,
}  # fmt: skip
_CALM: Mapping[str, int] = {"kill": 2, "reset_connections": 2, "restart": 1}

TROUBLES: dict[str, Profile] = {
    #: A leader's put takes effect after it was deposed and its successor has removed the object.
    "late": Profile(_FEW, {"reset_connections": 2, "kill": 1}),
    #: The power is cut while the file of a log's leader epochs is not on disk.
    "epochs": Profile({**_FEW, "fault_every_s": (0.3, 1.2)}, {"slow_disk": 5, "kill_leader": 4, "kill": 1}),
    #: Everything is read from the store, and leaves the disks while the store answers.
    "border": Profile({**_FEW, "transactional": 0}, _CALM),
    #: Leaders are overruled in mid-transaction.
    "overruled": Profile(
        {**_FEW, "seconds": 25.0, "fault_every_s": (2.0, 5.0)}, {"reset_connections": 2, "restart": 1}
    ),
    #: A compacted topic becomes one with its history in the store, on brokers that never had its first records.
    "former": Profile({**_FEW, "brokers": 4}, _CALM),
    #: A client writes nonsense to the topic with the metadata of the store's segments.
    "nonsense": Profile(_FEW, _CALM),
    #: All brokers die just after a copy.
    "together": Profile({**_FEW, "seconds": 25.0}, {"reset_connections": 2}),
    #: The power is cut when copied segments have just left the disk, and some of them come back.
    "back": Profile({**_FEW, "fault_every_s": (3.0, 6.0)}, {"reset_connections": 1}),
    #: The power is cut when the file of leader epochs was just rewritten, and the store lacks some of the epochs.
    "newer": Profile({**_FEW, "fault_every_s": (3.0, 6.0)}, {"reset_connections": 1}),
    #: The power is cut when records were deleted while a broker was busy writing its log starts.
    "trimmed": Profile({**_FEW, "fault_every_s": (0.5, 1.5)}, {"slow_disk": 5, "reset_connections": 1}),
    #: Clients disconnect while a broker asks the store for them.
    "leaving": Profile({**_FEW, "fault_every_s": (3.0, 6.0)}, {"reset_connections": 1}),
    #: Leaders are overruled when the store has the end of a transaction of which no other broker has heard.
    "unheard": Profile(
        {**_FEW, "seconds": 30.0, "fault_every_s": (4.0, 8.0), "replica_lag_ms": 700}, {"reset_connections": 1}
    ),
}
#: Troubles that were added later, in turns of earlier ones in which no mutant had been found.
_LATER = {1: "newer", 9: "trimmed", 10: "unheard", 11: "leaving", 12: "back"}
#: Settings with which only memory has the metadata of the store's segments, and for a short time.
_SMALL_CACHES = {
    "remote.log.index.file.cache.total.size.bytes": "1",
    "barnabas.remote.chunk.cache.bytes": "0",
    "remote.fetch.max.wait.ms": "5000",
}
SETTINGS: dict[str, dict[str, str]] = {
    "border": _SMALL_CACHES,
    "leaving": _SMALL_CACHES,
    # Several segments are deleted at once, and those that come back stay for a while.
    "back": {"log.retention.check.interval.ms": "1500", "log.flush.offset.checkpoint.interval.ms": "100"},
    "newer": {
        "log.flush.offset.checkpoint.interval.ms": "100",
        "log.flush.start.offset.checkpoint.interval.ms": "100",
    },
    "trimmed": {"log.retention.check.interval.ms": "200", "log.flush.start.offset.checkpoint.interval.ms": "60000"},
    # Clients without an answer wait for it.
    "unheard": {"request.timeout.ms": "8000", "replica.socket.timeout.ms": "8000"},
}
TOPIC_SETTINGS: dict[str, dict[str, str]] = {"border": {"segment.bytes": "600"}}
#: For the topic that may lose records: (pause between two records outside transactions, size of a segment).
HISTORY: dict[str, tuple[tuple[float, float], str]] = {
    "overruled": ((0.2, 0.5), "1500"),
    "unheard": ((0.05, 0.1), "4000"),
}
WEATHERS: dict[str, tuple[str, ...]] = {
    "border": ("well",),
    "late": ("well", "well", "slow"),
    "back": ("well",),
    "newer": ("well", "away", "away"),
    "unheard": ("well",),
    "leaving": ("well", "slow"),
}
#: Seconds between two looks at the brokers.
LOOK_S = 0.003
_RECKLESS = TopicPartition(RECKLESS, 0)


def trouble_of(seed: int) -> str:
    """Return the kind of trouble; empty for the usual faults only."""
    if seed % 4 != 3:
        return ""
    turn = seed // 4 % 14
    return _LATER.get(turn) or list(TROUBLES)[turn % 7]


class Trouble:
    """Owner: the world. Waits for its moment, strikes, and waits again until `end`."""

    def __init__(self, cluster: "TieredCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.is_over = False
        self._is_armed = False

    def begin(self) -> None:
        self._world.after(self._world.between(2.0, 5.0), self._arm)

    def end(self) -> None:
        self.is_over, self._is_armed = True, False

    #: Whether the topic that may lose records has transactions.
    has_transactions = False

    def clients(self) -> list[Client]:
        return []

    def _arm(self) -> None:
        self._is_armed = not self.is_over

    def _arm_later(self, low_s: float, high_s: float) -> None:
        self._is_armed = False
        self._world.after(self._world.between(low_s, high_s), self._arm)

    # -- what the store asks --------------------------------------------------------------------------------------------

    def takes(self, process: BrokerProcess, key: str) -> bool:
        """Whether this broker's put is to arrive late, by `put_late`."""
        return False

    async def put_late(self, process: BrokerProcess, key: str, content: bytes) -> None:
        raise NotImplementedError

    async def gets(self, process: BrokerProcess, key: str) -> None:
        """Called before the store answers a read."""

    def log_of_leader(self, tp: TopicPartition) -> Any:
        state = self._cluster.partition_states().get(tp)
        return None if state is None else self._cluster.log_of(state.leader, tp)


class NoTrouble(Trouble):
    def begin(self) -> None:
        """Use no random numbers: the run is the same as without this class."""


@dataclass(slots=True, eq=False)
class _Held:
    """A put on its way to the store."""

    process: BrokerProcess
    life: int
    key: str
    content: bytes
    until_s: float
    is_there: bool = False


class LatePuts(Trouble):
    """A broker is paused while it puts an object. The object arrives after the broker's successor has removed it."""

    def takes(self, process: BrokerProcess, key: str) -> bool:
        is_taken = self._is_armed and key.endswith(".log") and process.is_serving
        self._is_armed = self._is_armed and not is_taken
        return is_taken

    async def put_late(self, process: BrokerProcess, key: str, content: bytes) -> None:
        held = _Held(process, process.lives, key, content, self._world.now_s + 9.0)
        self._world.after(0.0, partial(self._pause, held))
        while not held.is_there:
            await asyncio.sleep(0.02)

    def _pause(self, held: _Held) -> None:
        if self._is_at_work(held) and not held.process.is_paused and not self.is_over:
            self._world.note("store", f"{held.key} of {held.process.name} comes late")
            held.process.pause()
        self._look(held)

    def _is_at_work(self, held: _Held) -> bool:
        return held.process.is_up and held.process.lives == held.life

    def _look(self, held: _Held) -> None:
        weather = self._cluster.weather
        if held.key not in weather.deleted and self._world.now_s < held.until_s and not self.is_over:
            self._world.after(0.02, partial(self._look, held))
            return
        weather.objects[held.key] = held.content
        weather.writers[held.key] = (held.process, held.life)
        held.is_there = True
        self._world.note("store", f"{held.key} has come")
        self._world.after(self._world.between(0.0, 0.5), partial(self._resume, held))
        self._arm_later(1.0, 4.0)

    def _resume(self, held: _Held) -> None:
        if self._is_at_work(held) and held.process.is_paused:
            held.process.resume()


class UnsyncedEpochs(Trouble):
    """The power of a broker is cut while its disk lacks the leader epochs of records that otherwise only the store has."""

    def begin(self) -> None:
        super().begin()
        self._look()

    def _look(self) -> None:
        if self.is_over:
            return
        self._world.after(LOOK_S, self._look)
        if not self._is_armed:
            return
        assert self._cluster.faults is not None
        for process in self._cluster.brokers.values():
            if process.is_serving and self._has_unsynced(process) and self._cluster.faults.cut_power_of(process):
                self._arm_later(1.0, 3.0)
                return

    def _has_unsynced(self, process: BrokerProcess) -> bool:
        for tp in self._cluster.tiered_partitions:
            log = self._cluster.log_of(process.id, tp)
            if log is None or not log.is_tiered or log.log_start_offset >= log.local_log_start_offset:
                continue
            file = log._epoch_file
            if file.path in file.unsynced.pending()[1]:
                self._world.note(process.name, f"has not synced the leader epochs of {tp}")
                return True
        return False


class AllAtOnce(Trouble):
    """All brokers are killed as soon as a copied segment has left a disk: the metadata topic's high watermarks are not
    saved.
    """

    def __init__(self, cluster: "TieredCluster") -> None:
        super().__init__(cluster)
        self._borders: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        super().begin()
        self._look()

    def _look(self) -> None:
        if self.is_over:
            return
        self._world.after(0.02, self._look)
        has_moved = False
        for tp in self._cluster.tiered_partitions:
            log = self.log_of_leader(tp)
            if log is not None:
                has_moved |= log.local_log_start_offset > self._borders.get(tp, 1 << 62)
                self._borders[tp] = log.local_log_start_offset
        if self._is_armed and has_moved:
            self._arm_later(6.0, 9.0)
            self._world.after(self._world.between(0.0, 0.6), self._strike)

    def _strike(self) -> None:
        assert self._cluster.faults is not None
        if not self.is_over:
            self._cluster.faults.kill_everybody()


# -- a store that answers when the border has moved -----------------------------------------------------------------------


class MovingBorder(Trouble):
    def clients(self) -> list[Client]:
        cluster = self._cluster
        first, *_, last = cluster.partitions
        return [
            Overlapping(cluster, "overlap", [first]),
            BorderReader(cluster, "border", first),
            Stamper(cluster, "stamper", last),
        ]

    async def gets(self, process: BrokerProcess, key: str) -> None:
        """Delay every second answer until the local log of the asking broker begins elsewhere."""
        if self.is_over or self._world.chance(0.5):
            return
        folder, partition, _ = key.split("/")
        tp = TopicPartition(folder[:-23], int(partition))
        before, until_s = self._border(process, tp), self._world.now_s + 1.0
        while self._border(process, tp) == before and self._world.now_s < until_s and not self.is_over:
            await asyncio.sleep(0.01)

    def _border(self, process: BrokerProcess, tp: TopicPartition) -> int:
        log = self._cluster.log_of(process.id, tp)
        return -1 if log is None else int(log.local_log_start_offset)


class Overlapping(TransactionalProducer):
    """A transaction that is aborted after others that began later, several segments after its first record."""

    async def _live(self) -> None:
        async with (
            self.connect(api_timeout_ms=10_000) as cluster,
            self._producer(cluster, "long") as long,
            self._producer(cluster, "short") as short,
        ):
            while not self.ending:
                await self._overlap(long, short)
                await self.pause(0.1, 0.5)

    def _producer(self, cluster: AsyncClient, name: str) -> Producer:
        config = ProducerConfig(
            transactional_id=f"{self.name}-{name}",
            transaction_timeout_ms=8_000,
            delivery_timeout_ms=6_000,
            request_timeout_ms=2_000,
        )
        return Producer(cluster, config, clock=self.clock, chance=self.chance)

    async def _overlap(self, long: Producer, short: Producer) -> None:
        tp = self.chance.choice(self._partitions)
        await self._aborted(long, tp, lambda: self._several(short, tp))

    async def _several(self, short: Producer, tp: TopicPartition) -> None:
        for _ in range(self.chance.randint(3, 6)):
            await self._aborted(short, tp, None)

    async def _aborted(self, producer: Producer, tp: TopicPartition, meanwhile: Any) -> None:
        assert producer.transaction is not None
        await producer.transaction.begin()
        self._count += 1
        sum_ = self.oracle.begins(f"{self.name}#{self._count}")
        try:
            for _ in range(1 if meanwhile is not None else 2):
                record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True, transaction=sum_)
                delivery = await producer.send(tp.topic, record.name.encode(), partition=tp.partition)
                await settle(self, [(record, delivery)])
            if meanwhile is not None:
                await meanwhile()
            await producer.transaction.abort()
            sum_.fate = Fate.ABORTED
        except ClientError as error:
            give_up(sum_)
            self.note(f"gives up {sum_.name}: {error}")
            raise


class BorderReader(Persistent):
    """Reads committed records, again and again, where records have just left the disk of their leader."""

    cluster: "TieredCluster"

    def __init__(self, cluster: "TieredCluster", name: str, tp: TopicPartition) -> None:
        super().__init__(cluster, name)
        self._tp = tp

    async def _live(self) -> None:
        tp = self._tp
        config = ConsumerConfig(isolation_level=READ_COMMITTED, auto_offset_reset="none", fetch_max_wait_ms=100)
        async with self.connect() as cluster:
            while not self.ending:
                start = self._aim()
                if start is None:
                    await self.pause(0.02, 0.05)
                    continue
                async with Consumer(cluster, config) as consumer:
                    self.oracle.seeks(self.name, tp, start)
                    consumer.assign({tp: start})
                    for fetched in await consumer.poll(4_000):
                        for record in fetched.records(isolation_level=READ_COMMITTED):
                            name = bytes(record.value or b"").decode()
                            self.oracle.consumes(self.name, tp, record.offset, name, isolation=READ_COMMITTED)

    def _aim(self) -> int | None:
        """Return the first offset of an aborted transaction that begins in the store and ends on disk."""
        state = self.cluster.partition_states().get(self._tp)
        log = None if state is None else self.cluster.log_of(state.leader, self._tp)
        if state is None or log is None or self.cluster.brokers[state.leader].storage.faults:
            return None
        border = log.local_log_start_offset
        with self.cluster.brokers[state.leader].looked_at():
            aborted = log.aborted_transactions(0, log.high_watermark)
        over = [
            txn.first_offset for txn in aborted if log.log_start_offset <= txn.first_offset < border <= txn.last_offset
        ]
        return self.chance.choice(over) if over else None


class Stamper(Persistent):
    """Writes a record with a future timestamp now and then, has it deleted when the store has it, and looks up offsets by
    time.
    """

    cluster: "TieredCluster"

    def __init__(self, cluster: "TieredCluster", name: str, tp: TopicPartition) -> None:
        super().__init__(cluster, name)
        self._tp = tp
        self._stamps: dict[int, int] = {}
        self._position = 0
        self._log_start = 0

    async def _live(self) -> None:
        producing = ProducerConfig(delivery_timeout_ms=6_000, request_timeout_ms=2_000)
        reading = ConsumerConfig(auto_offset_reset="none", fetch_max_wait_ms=20)
        async with (
            self.connect(api_timeout_ms=8_000) as cluster,
            self.connect() as other,
            Producer(cluster, producing, clock=self.clock, chance=self.chance) as producer,
            Consumer(other, reading) as consumer,
        ):
            consumer.assign({self._tp: self._position})
            while not self.ending:
                await self._send_from_the_future(cluster, producer)
                for _ in range(25):
                    await self._read(consumer)
                    await self._ask(cluster)
                    await self.pause(0.0, 0.1)

    async def _send_from_the_future(self, cluster: AsyncClient, producer: Producer) -> None:
        tp = self._tp
        record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True)
        ahead_ms = self.clock.now_ms() + 60_000
        delivery = await producer.send(tp.topic, record.name.encode(), partition=tp.partition, timestamp_ms=ahead_ms)
        if await settle(self, [(record, delivery)]):
            return
        for _ in range(60):
            log = self._log()
            if log is not None and log.local_log_start_offset > record.offset:
                break
            if self.ending:
                return
            await self.pause(0.1, 0.1)
        else:
            return
        self.oracle.deletes(tp, record.offset + 1)
        self._log_start = record.offset + 1
        await delete_records(cluster, {tp: record.offset + 1})

    def _log(self) -> Any:
        state = self.cluster.partition_states().get(self._tp)
        return None if state is None else self.cluster.log_of(state.leader, self._tp)

    async def _read(self, consumer: Consumer) -> None:
        try:
            for fetched in await consumer.poll(50):
                self._stamps |= {record.offset: record.timestamp for record in fetched.records()}
                self._position = consumer.position(self._tp)
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE or self._position >= self._log_start:
                raise
            self._position = self._log_start
            consumer.assign({self._tp: self._position})

    async def _ask(self, cluster: AsyncClient) -> None:
        log = self._log()
        if log is None:
            return
        border, log_start = log.local_log_start_offset, self._log_start
        near = [at for at in self._stamps if border <= at < border + 30]
        if not near:
            return
        wanted = self._stamps[self.chance.choice(near)]
        expected = min(at for at, stamp in self._stamps.items() if at >= log_start and stamp >= wanted)
        found = (await list_offsets(cluster, {self._tp: wanted}))[self._tp]
        if found.error is ErrorCode.NONE and found.offset > expected and self._tp not in self.oracle.excused:
            self.world.violate(
                "a timestamp is found at its first offset",
                f"{self._tp}: offset {expected} has {self._stamps[expected]}; for {wanted} {self.name} got {found.offset}",
            )


# -- leaders that are overruled -------------------------------------------------------------------------------------------


class Overruling(Trouble):
    """Cuts off the follower of the topic that may lose records until the leader leads alone. Then the leader dies."""

    has_transactions = True

    def begin(self) -> None:
        super().begin()
        self._look()

    def clients(self) -> list[Client]:
        return [RecklessTransactions(self._cluster, f"rt{number}") for number in range(2)]

    def _look(self) -> None:
        if self.is_over:
            return
        self._world.after(0.1, self._look)
        state = self._cluster.partition_states().get(_RECKLESS)
        if not self._is_armed or state is None or len(state.isr) == 1 or state.leader not in state.isr:
            return
        controller = self._cluster.controller()
        # A leader must ask the controller before it leads alone.
        if controller is not None and (controller.id == state.leader or controller.id not in state.isr):
            self._is_armed = False
            Overrule(self._cluster, _RECKLESS, lambda: self.is_over, alone_s=(1.0, 2.5)).begin()
            self._world.after(self._world.between(6.0, 7.0), self._arm)


class Overrule:
    """One such fault. `is_over`: whether all is calm now."""

    def __init__(
        self, cluster: Any, tp: TopicPartition, is_over: Any, *, alone_s: tuple[float, float] = (0.5, 2.0)
    ) -> None:
        self._alone_s = alone_s
        self._cluster = cluster
        self._world = cluster.world
        self._tp = tp
        self._is_over = is_over
        state = cluster.partition_states()[tp]
        self._leader: BrokerProcess = cluster.brokers[state.leader]
        self._pairs = [
            pair
            for each in state.isr
            if each != state.leader
            for other in [cluster.brokers[each].name]
            for pair in ((self._leader.name, other), (other, self._leader.name))
        ]

    def begin(self) -> None:
        self._world.note("network", f"{self._leader.name} is to lead {self._tp} alone")
        for pair in self._pairs:
            self._cluster.network.cut(*pair)
        self._wait(self._world.now_s + 7.0)

    def _wait(self, until_s: float) -> None:
        state = self._cluster.partition_states().get(self._tp)
        is_alone = state is not None and tuple(state.isr) == (self._leader.id,)
        if self._is_over() or is_alone or self._world.now_s > until_s:
            self._wait_alone(is_alone)
        else:
            self._world.after(0.1, partial(self._wait, until_s))

    def _wait_alone(self, is_alone: bool) -> None:
        self._world.after(self._world.between(*self._alone_s) if is_alone else 0.0, partial(self._strike, is_alone))

    def _strike(self, is_alone: bool) -> None:
        if self._is_over():
            return
        for pair in self._pairs:
            self._cluster.network.mend(*pair)
        if is_alone and self._leader.is_up and self._cluster.faults.may_kill(self._leader):
            self._leader.kill()
            timeout_s = self._cluster.scenario.session_timeout_ms / 1000
            self._world.after(timeout_s + self._world.between(1.0, 2.0), self._start)

    def _start(self) -> None:
        if not self._leader.is_up:
            self._leader.start()


class RecklessTransactions(Persistent):
    """Transactions in the topic that may lose records: most are aborted, and some of their markers are lost."""

    is_transactional = True

    async def _live(self) -> None:
        config = ProducerConfig(
            transactional_id=self.name,
            transaction_timeout_ms=6_000,
            delivery_timeout_ms=4_000,
            request_timeout_ms=2_000,
        )
        async with (
            self.connect(api_timeout_ms=8_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            assert producer.transaction is not None
            while not self.ending:
                await producer.transaction.begin()
                for _ in range(self.chance.randint(1, 3)):
                    await (await producer.send(RECKLESS, b"whatever", partition=0)).offset()
                    await self.pause(0.0, 0.1)
                await (producer.transaction.abort() if self.chance.random() < 0.7 else producer.transaction.commit())
                await self.pause(0.0, 0.05)


# -- a table that becomes a topic with its history in the store --------------------------------------------------------------


class FormerTables(Trouble):
    def clients(self) -> list[Client]:
        return [FormerTable(self._cluster, "former")]


class FormerTable(Persistent):
    """First the topic is compacted until its first records are gone. Then other brokers get its log without them, and then the
    store does.
    """

    cluster: "TieredCluster"
    _BEFORE = {
        "cleanup.policy": "compact",
        "segment.bytes": "400",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
        "min.insync.replicas": "1",
    }
    _step = 0

    async def _live(self) -> None:
        config = ProducerConfig(delivery_timeout_ms=6_000, request_timeout_ms=2_000)
        async with (
            self.connect(api_timeout_ms=8_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            steps = (self._make, self._compact, self._move, self._leave, self._change)
            while not self.ending:
                if self._step < len(steps) and await steps[self._step](cluster):
                    self.note(f"has done {steps[self._step].__name__}")
                    self._step += 1
                if self._step:
                    key = str(self.chance.randint(0, 2)).encode()
                    await (await producer.send(FORMER.topic, b"x" * 60, partition=0, key=key)).offset()
                await self.pause(0.01, 0.1)

    async def _make(self, cluster: AsyncClient) -> bool:
        new = NewTopic(name=FORMER.topic, assignment={0: [1, 2]}, configs=self._BEFORE)
        try:
            await create_topics(cluster, [new])
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return True

    async def _compact(self, cluster: AsyncClient) -> bool:
        """Compact on both brokers: the others fetch from either."""
        return all(self._first(broker) > 0 for broker in (1, 2))

    def _first(self, broker: int) -> int:
        log = self.cluster.log_of(broker, FORMER)
        if log is None or log.is_closed or self.cluster.brokers[broker].storage.faults:
            return -1
        with self.cluster.brokers[broker].looked_at():
            return next((header.base_offset for each in log.segments for _, header in each.headers(0)), -1)

    async def _move(self, cluster: AsyncClient) -> bool:
        outcome = await alter_reassignments(cluster, {FORMER: [3, 4]})
        return outcome[FORMER][0] is ErrorCode.NONE

    async def _leave(self, cluster: AsyncClient) -> bool:
        return self.cluster.settled_replicas(FORMER) == (3, 4)

    async def _change(self, cluster: AsyncClient) -> bool:
        for changes in (
            {"cleanup.policy": "delete"},
            {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1"},
        ):
            wish = {name: (AlterOperation.SET, value) for name, value in changes.items()}
            await alter_configs(cluster, ConfigResourceType.TOPIC, FORMER.topic, wish)
        self.cluster.tiered_partitions.append(FORMER)
        return True


# -- nonsense ---------------------------------------------------------------------------------------------------------------


class Nonsense(Trouble):
    def clients(self) -> list[Client]:
        return [Vandal(self._cluster, "vandal")]


class Vandal(Persistent):
    """Writes nonsense to the metadata topic of the store: batches that cannot be decompressed, and invalid records."""

    async def _live(self) -> None:
        config = ProducerConfig(idempotent=False, delivery_timeout_ms=4_000, request_timeout_ms=2_000)
        async with (
            self.connect(api_timeout_ms=5_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            while not self.ending:
                number = self.chance.randrange(3)
                await producer.produce(TopicPartition(REMOTE_LOG_METADATA_TOPIC, number), self._nonsense())
                self.note(f"writes nonsense to {REMOTE_LOG_METADATA_TOPIC}-{number}")
                await self.pause(0.1, 1.0)

    def _nonsense(self) -> bytes:
        if self.chance.random() < 0.5:
            builder = BatchBuilder()
            for value in (b"", b"\x00\x00\x00", self.chance.randbytes(40)):
                builder.append(None, value, timestamp=self.clock.now_ms())
            return bytes(builder.build())
        builder = BatchBuilder(codec=1)
        builder.append(None, b"x" * 100, timestamp=self.clock.now_ms())
        batch = bytearray(builder.build())
        batch[70:90] = bytes(len(batch[70:90]))
        batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
        return bytes(batch)


KINDS: dict[str, type[Trouble]] = {
    "": NoTrouble,
    "late": LatePuts,
    "epochs": UnsyncedEpochs,
    "border": MovingBorder,
    "overruled": Overruling,
    "former": FormerTables,
    "nonsense": Nonsense,
    "together": AllAtOnce,
}
