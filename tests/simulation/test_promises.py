"""The oracle notices broken promises: each test breaks one by hand that no run breaks by itself."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import pytest

from barnabas.base.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.broker.compose import Broker
from barnabas.broker.groups.records import OffsetCommit, offset_commit
from barnabas.broker.replication.delayed import DelayedProduce
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache
from barnabas.broker.storage.file_handle import OpenFile
from barnabas.testing.simulation.disk_life import Life
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import BrokerProcess, Process
from barnabas.testing.simulation.world import Violation, World
from barnabas.wire.records import BatchBuilder
from tests.simulation import leak_check
from tests.simulation.cluster import SimCluster
from tests.simulation.faults import Damage, Faults
from tests.simulation.leak_check import walk
from tests.simulation.oracle import Fate, Oracle, Read, Sent
from tests.simulation.records import offset_records
from tests.simulation.scenario import Scenario

INPUT, OUTPUT = TopicPartition("orders", 0), TopicPartition("outcome", 0)
COMING = TopicPartition("coming", 0)


class Worker(Process):
    """Runs one piece of disk work, on its loop or on a thread."""

    def __init__(self, world: World, work: Callable[[Life], None], *, on_thread: bool) -> None:
        super().__init__(world, Network(world), "worker")
        self._work = work
        self._on_thread = on_thread

    async def main(self) -> None:
        assert self.loop is not None
        disk = self._take_disk()
        self.loop.is_serving = True
        if self._on_thread:
            await self.loop.run_in_executor(None, self._work, disk)
        else:
            self._work(disk)
        await asyncio.sleep(60)


def sync(disk: Life) -> None:
    disk.fsync(disk.open("/file", create=True))


def write_much(disk: Life) -> None:
    fd = disk.open("/file", create=True)
    for number in range(3_000):
        disk.pwrite(fd, b"x", number)


@pytest.mark.parametrize("work", [sync, write_much])
def test_slow_disk_work_is_a_violation_on_a_loop_and_not_on_a_thread(work: Callable[[Life], None]) -> None:
    world = World(1)
    Worker(world, work, on_thread=True).start()
    world.run_until(world.now_s + 1)
    world = World(1)
    Worker(world, work, on_thread=False).start()
    with pytest.raises(Violation, match="no callback holds the loop"):
        world.run_until(world.now_s + 1)


def test_walk_finds_objects_in_a_closure() -> None:
    waiting = object.__new__(DelayedProduce)

    class Root:
        __module__ = "barnabas.test"

        def __init__(self) -> None:
            self.listeners = {1: [lambda: waiting]}
            self.many = list(range(500))

    kinds, largest, files = walk(Root())
    assert kinds["DelayedProduce"] == 1
    assert largest == ("Root.many", 500)
    assert files == []


def test_file_that_is_being_read_and_unknown_file_are_reported() -> None:
    class Root:
        __module__ = "barnabas.test"
        segments: ClassVar[list[OpenFile]] = []

        def __init__(self) -> None:
            self.known = Root.segments

    world = World(1)

    def open_three(disk: Life) -> None:
        files = [OpenFile(disk, disk.open(f"/{number}.log", create=True), f"/{number}.log") for number in range(3)]
        files[1].pin()
        Root.segments = files[:2]

    process = cast(BrokerProcess, Worker(world, open_three, on_thread=False))
    process.start()
    world.run_until(world.now_s + 1)
    process.broker = cast(Broker, Root())
    left = leak_check.left(cast(SimCluster, SimpleNamespace(brokers={1: process})))
    assert [line for line in left if ".log" in line] == [
        "worker has 1 of files that are being read (['/1.log']), 0 at most are due",
        "worker has 1 of files that belong to no segment (['/2.log']), 0 at most are due",
    ]


def output(oracle: Oracle, source: tuple[TopicPartition, int]) -> Read:
    record = oracle.sends("chain", OUTPUT, is_durable=True, is_idempotent=True)
    record.source = source
    return Read(record.number - 1, record.name)


@pytest.mark.parametrize(("outputs", "broken"), [([0, 1], False), ([0], True), ([0, 1, 1], True)])
def test_an_input_with_no_output_or_two_is_a_violation(outputs: list[int], broken: bool) -> None:
    world = World(1)
    oracle = Oracle(world)
    inputs = [Read(offset, f"input-{offset}") for offset in range(3)]
    read = [output(oracle, (INPUT, offset)) for offset in outputs]
    oracle.audit_chain({INPUT: 2}, {INPUT: inputs, OUTPUT: read}, {INPUT: 0, OUTPUT: 0})
    assert (world.violation is not None) == broken


def acknowledged(oracle: Oracle, topic_id: bytes, offset: int) -> Sent:
    record = oracle.sends("again", COMING, is_durable=True, is_idempotent=True)
    record.fate, record.offset, record.topic_id = Fate.DONE, offset, topic_id
    return record


def test_a_topic_created_again_has_only_its_own_records() -> None:
    for names, broken in (((1,), False), ((), True), ((0, 1), True)):
        world = World(1)
        oracle = Oracle(world)
        records = [acknowledged(oracle, b"former", 0), acknowledged(oracle, b"now", 0)]
        oracle.audit_again(COMING, b"now", 0, [Read(0, records[each].name) for each in names])
        assert (world.violation is not None) == broken, names


def test_cleanly_closed_log_may_be_longer_than_at_the_last_look() -> None:
    """Seed 20207: a stopping follower appends until it closes its logs, between two looks of `Invariants`."""
    cluster = SimCluster(1, Scenario())
    partition = SimpleNamespace(
        tp=INPUT,
        log=SimpleNamespace(log_end_offset=3, epochs=LeaderEpochCache()),
        machine=SimpleNamespace(is_leader=False),
    )
    process = cluster.brokers[1]
    process.broker = cast("Any", SimpleNamespace(replicas=FakeReplicas([partition])))
    watch = cluster.watch
    watch._least[INPUT] = 1
    watch.shown("reader", INPUT, 2)
    with pytest.raises(Violation, match="committed records are on enough replicas"):
        violated_by(cluster.world, lambda: watch.shown("reader", INPUT, 3))
    cluster.world.violation = None
    partition.log = None
    watch.shown("reader", INPUT, 4)
    assert cluster.world.violation is None


def test_truncated_records_that_come_back_after_a_power_cut_are_damage() -> None:
    """Tier seed 97: neither a truncation nor later writes were synced. The log was as long as before, with the records of a
    leader that was overruled.
    """
    cluster = SimCluster(1, Scenario())
    process = cluster.brokers[1]
    faults = Faults(cluster)
    cluster.faults = faults

    def holds(*epochs: tuple[int, int]) -> None:
        entries = [EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs]
        log = SimpleNamespace(log_end_offset=18, epochs=LeaderEpochCache(entries))
        partition = SimpleNamespace(tp=INPUT, log=log)
        process.broker = cast("Any", SimpleNamespace(replicas=FakeReplicas([partition])))
        process.loop = cast("Any", SimpleNamespace(is_paused=False))

    for after, is_damaged in ((((0, 0), (2, 4)), False), (((0, 0),), True)):
        faults.damage = Damage(cluster)
        holds((0, 0), (2, 4))
        faults.damage.cut(process)
        assert faults.damage.is_damaged(1, INPUT)
        holds(*after)
        faults.damage._watch()
        assert faults.damage.is_damaged(1, INPUT) == is_damaged


def test_repeated_commit_counts_at_its_first_offset() -> None:
    """Tier seed 77: the next leader wrote the commit again, and answered with the former one, which was committed."""
    commits = [(5, 1), (6, 1), (6, 1)]
    pieces = []
    for place, (offset, partition) in enumerate(commits):
        builder = BatchBuilder(base_offset=place)
        record = offset_commit(OffsetCommit("g", INPUT.topic, partition, offset, -1, "", 0, -1))
        builder.append(record.key, record.value, timestamp=0)
        pieces.append(builder.build())
    data = b"".join(pieces)
    read = SimpleNamespace(read=lambda: data)
    log = SimpleNamespace(log_start_offset=0, log_end_offset=3, read=lambda *_, **__: read)
    assert offset_records(log, "g") == {(TopicPartition(INPUT.topic, 1), 5): 0, (TopicPartition(INPUT.topic, 1), 6): 1}


class FakeReplicas(list[Any]):
    @property
    def hosted(self) -> Self:
        return self

    def get(self, tp: TopicPartition) -> Any:
        return next(each for each in self if each.tp == tp)


def violated_by(world: World, act: Callable[[], None]) -> None:
    act()
    if world.violation is not None:
        raise world.violation
