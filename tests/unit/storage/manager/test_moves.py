"""Moves between log directories: what they must not bring back, what must not end with them, how they go on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.unit.storage.manager.manager_support import CONFIG, NOW_MS, Broker, append, tp, values

from barnabas.core.errors import ErrorCode, Refused
from barnabas.core.ids import BrokerId, LeaderEpoch
from barnabas.metrics.registry import Registry
from barnabas.protocol.records import BatchBuilder
from barnabas.replication.log_dir_moves import LogDirMoves
from barnabas.replication.machine import PartitionMachine
from barnabas.replication.manager import ReplicaManager
from barnabas.replication.partition import Partition
from barnabas.replication.state import PartitionLeadership
from barnabas.replication.throttle import ReplicationThrottle

ME = BrokerId(1)


class Mover:
    """A broker that leads t-0 in directory a, and moves it to b."""

    def __init__(self, tmp_path: Path) -> None:
        self.a, self.b = str(tmp_path / "a"), str(tmp_path / "b")
        self.broker = Broker(tmp_path / "a", tmp_path / "b")
        logs = self.broker.manager
        if logs.get(tp("t")) is None:
            logs.prefer_dir(tp("t"), self.a)
            logs.get_or_create(tp("t"), topic_id=None)
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        self.partition = Partition(tp("t"), machine, self.broker.clock, on_high_watermark=lambda partition: None)
        log = logs.get(tp("t"))
        assert log is not None
        self.partition.attach(log)
        state = PartitionLeadership(
            leader=ME, leader_epoch=LeaderEpoch(0), isr=(ME,), partition_epoch=0, replicas=(ME,)
        )
        self.partition.become_leader(state, now_ms=0)
        self.replicas = ReplicaManager(
            ME,
            clock=self.broker.clock,
            timers=self.broker.timers,
            registry=Registry(),
            is_known=lambda tp: False,
            submit_isr_change=lambda partition, proposal: None,
            prefers_replica=lambda partition, params, offset: None,
            fetch_bytes_max=1 << 20,
        )
        self.replicas.add(self.partition)
        self.tasks: set[asyncio.Task[None]] = set()
        self.before_chunk: Callable[[], None] = lambda: None
        self.moves = LogDirMoves(
            self.replicas,
            logs,
            self.broker.clock,
            on_thread=self._on_thread,
            spawn=lambda work, name: self.tasks.add(asyncio.get_running_loop().create_task(work)),
        )

    async def _on_thread(self, work: Callable[[], bytes]) -> bytes:
        self.before_chunk()
        return work()

    async def done(self) -> None:
        while not all(task.done() for task in self.tasks):
            self.broker.run()
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks)


def test_records_that_were_deleted_during_a_move_do_not_come_back(tmp_path: Path) -> None:
    async def run() -> None:
        mover = Mover(tmp_path)
        log = mover.partition.local_log
        append(log, b"deleted", b"kept")
        log.update_high_watermark(2)
        mover.before_chunk = lambda: log.maybe_increment_log_start_offset(1, "DeleteRecords") and None
        assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
        await mover.done()
        assert mover.partition.local_log.log_dir == mover.b
        assert mover.partition.local_log.log_start_offset == 1
        assert values(mover.partition.local_log) == [b"kept"]
        mover.broker.manager.shutdown()

    asyncio.run(run())


def test_log_that_starts_inside_a_batch_moves_and_hides_what_was_deleted(tmp_path: Path) -> None:
    """DeleteRecords cuts between any two records; a copy begins with the whole batch."""

    async def run() -> None:
        mover = Mover(tmp_path)
        log = mover.partition.local_log
        builder = BatchBuilder()
        for value in (b"deleted", b"kept", b"kept too"):
            builder.append(b"key", value, timestamp=0)
        log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=0)
        append(log, b"next batch")
        log.update_high_watermark(4)
        log.maybe_increment_log_start_offset(1, "DeleteRecords")
        assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
        await mover.done()
        moved = mover.partition.local_log
        assert moved.log_dir == mover.b
        assert (moved.log_start_offset, moved.high_watermark, moved.log_end_offset) == (1, 4, 4)
        assert values(moved) == [b"deleted", b"kept", b"kept too", b"next batch"]  # what consumers skip
        mover.broker.manager.shutdown()

    asyncio.run(run())


def test_log_that_begins_in_the_tier_moves_with_what_it_knows_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        mover = Mover(tmp_path)
        mover.broker.env.is_tiering = True
        log = mover.partition.local_log
        log.update_config(replace(CONFIG, remote_storage_enable=True, local_retention_bytes=0))
        for sequence, value in enumerate((b"tiered", b"tiered too", b"local")):
            builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=sequence)
            builder.append(b"key", value, timestamp=NOW_MS)
            log.append_as_leader(bytearray(builder.build()), leader_epoch=sequence, now_ms=NOW_MS)
            log.roll(NOW_MS)
        log.update_high_watermark(3)
        log.highest_copied_offset = 1
        log.delete_old_segments(NOW_MS)
        mover.broker.run()
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 2)
        assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
        future = mover.partition.future_log
        assert future is not None
        future.update_config(log.config)
        await mover.done()
        moved = mover.partition.local_log
        assert moved.log_dir == mover.b
        assert (moved.log_start_offset, moved.local_log_start_offset, moved.log_end_offset) == (0, 2, 3)
        assert moved.highest_copied_offset == 1
        assert moved.epochs.entries == log.epochs.entries
        producer = moved.producers.entry(7)
        assert producer is not None
        assert [each.last_sequence for each in producer.batches] == [1, 2]
        mover.broker.manager.shutdown()

    asyncio.run(run())


def test_move_that_a_restart_interrupted_goes_on_when_the_partition_has_a_role_again(tmp_path: Path) -> None:
    async def run() -> None:
        before = Mover(tmp_path)
        append(before.partition.local_log, b"x")
        before.broker.manager.prefer_dir(tp("t"), before.b)
        before.broker.manager.get_or_create_future(tp("t"))
        before.broker.kill()
        mover = Mover(tmp_path)
        mover.moves.leadership_changed([mover.partition], [])
        await mover.done()
        assert mover.partition.local_log.log_dir == mover.b
        mover.broker.manager.shutdown()

    asyncio.run(run())


def test_move_that_failed_can_be_asked_for_again(tmp_path: Path) -> None:
    async def run() -> None:
        mover = Mover(tmp_path)
        append(mover.partition.local_log, b"x")

        def fail() -> None:
            mover.before_chunk = lambda: None
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

        mover.before_chunk = fail
        mover.moves.begin(tp("t"), mover.b)
        await mover.done()
        assert mover.partition.local_log.log_dir == mover.a
        assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
        await mover.done()
        assert mover.partition.local_log.log_dir == mover.b
        mover.broker.manager.shutdown()

    asyncio.run(run())


def test_directory_that_cannot_be_read_during_a_move_goes_offline_and_the_broker_stays(tmp_path: Path) -> None:
    async def run() -> None:
        mover = Mover(tmp_path)
        append(mover.partition.local_log, b"x")

        def fail() -> None:
            raise OSError(5, "a page that cannot be read")

        mover.before_chunk = fail
        mover.moves.begin(tp("t"), mover.b)
        await mover.done()
        assert mover.broker.failed == [(mover.a, [tp("t")])]
        mover.broker.manager.shutdown()

    asyncio.run(run())


def test_directory_that_fails_under_a_future_log_leaves_the_partition_alone(tmp_path: Path) -> None:
    mover = Broker(tmp_path / "a", tmp_path / "b")
    mover.manager.prefer_dir(tp("t"), mover.roots[0])
    mover.manager.get_or_create(tp("t"), topic_id=None)
    mover.manager.prefer_dir(tp("t"), mover.roots[1])
    mover.manager.get_or_create_future(tp("t"))
    mover.manager.fail_dir(mover.roots[1], OSError(5, "pulled out"))
    assert mover.failed == [(mover.roots[1], [])]
    assert mover.manager.get(tp("t")) is not None and mover.manager.get_future(tp("t")) is None
    mover.manager.shutdown()


def test_move_waits_for_its_throttle(tmp_path: Path) -> None:
    async def run() -> None:
        mover = Mover(tmp_path)
        loop = asyncio.get_running_loop()
        throttle = ReplicationThrottle(
            ME, windows=11, window_ms=1_000, now_ms=lambda: int(loop.time() * 1000), replicas_of=lambda topic: ("*",)
        )
        throttle.limit = 10_000
        throttle.record_any(11_000)
        mover.moves._throttle = throttle
        append(mover.partition.local_log, b"x")
        began_s = loop.time()
        mover.moves.begin(tp("t"), mover.b)
        await mover.done()
        assert mover.partition.local_log.log_dir == mover.b
        assert loop.time() - began_s > 0.9  # 11 000 bytes are too many until a second and a tenth have passed
        assert throttle.bytes_per_second() > 0
        mover.broker.manager.shutdown()

    asyncio.run(run())
