"""Moves between log directories: what they must not bring back, what must not end with them, how they go on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from barnabas.base.errors import BarnabasError, ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.host.disk import Disk
from barnabas.base.ids import BrokerId, LeaderEpoch
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.replication.throttle import ReplicationThrottle
from barnabas.broker.storage import names
from barnabas.testing.simulation.disk import SimDisk
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.storage.manager.manager_support import CONFIG, NOW_MS, Broker, FailingDisk, append, tp, values

ME = BrokerId(1)


class Mover:
    """A broker that leads t-0 in directory a, and moves it to b."""

    def __init__(self, tmp_path: Path, disk: Disk | None = None) -> None:
        self.a, self.b = str(tmp_path / "a"), str(tmp_path / "b")
        self.broker = Broker(tmp_path / "a", tmp_path / "b", disk=disk)
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
        self.replicas.hosted.add(self.partition)
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

    async def moved_to(self, path: str) -> None:
        """Until the copy has taken the log's place; it is not on disk yet."""
        while self.partition.local_log.log_dir != path:
            self.broker.threads.run_one()
            await asyncio.sleep(0)

    async def done(self) -> None:
        while not all(task.done() for task in self.tasks):
            self.broker.run()
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks)


async def test_records_that_were_deleted_during_a_move_do_not_come_back(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("epoch", [0, 1])
async def test_log_that_is_cut_and_written_over_while_it_is_read_for_its_copy_is_copied_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """All batches have one size. The records that replaced those to be read also fitted on the copy, which had other records
    before: it replaced the log with records that no other replica had."""
    monkeypatch.setattr("barnabas.broker.replication.log_dir_moves.CHUNK_BYTES", 500)

    mover = Mover(tmp_path)
    log = mover.partition.local_log
    append(log, *[b"old"] * 40)
    chunks = [0]

    def cut() -> None:
        chunks[0] += 1
        if chunks[0] == 3:
            log.truncate_to(2)
            append(log, *[b"new"] * 38, epoch=epoch)

    mover.before_chunk = cut
    assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
    await mover.done()
    moved = mover.partition.local_log
    assert moved.log_dir == mover.b
    assert values(moved) == [b"old"] * 2 + [b"new"] * 38
    assert [tuple(entry) for entry in moved.epochs.entries] == [(0, 0), (1, 2)][: 1 + epoch]
    mover.broker.manager.shutdown()


async def test_log_that_starts_inside_a_batch_moves_and_hides_what_was_deleted(tmp_path: Path) -> None:
    """DeleteRecords cuts between any two records; a copy begins with the whole batch."""

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


async def test_leader_epoch_without_a_record_moves_with_its_log(tmp_path: Path) -> None:
    """A follower that led in the previous epoch, without a record either, got OFFSET_OUT_OF_RANGE until the next
    write. Seed 90."""

    mover = Mover(tmp_path)
    log = mover.partition.local_log
    append(log, b"a record")
    log.assign_epoch_start(7)
    assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
    await mover.done()
    moved = mover.partition.local_log
    assert moved.log_dir == mover.b
    assert moved.epochs.entries[-1] == (7, 1)
    mover.broker.manager.shutdown()


@pytest.mark.parametrize("has_descriptors", [True, False])
async def test_log_that_begins_in_the_tier_moves_with_what_it_knows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    """Without a descriptor for its producers the move goes on later. (That ended the broker.)"""
    monkeypatch.setattr("barnabas.broker.replication.log_dir_moves.RETRY_S", 0.001)

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

    def fail() -> None:
        mover.before_chunk = lambda: None
        raise OSError(24, "Too many open files")

    if not has_descriptors:
        mover.before_chunk = fail
    assert mover.moves.begin(tp("t"), mover.b) is ErrorCode.NONE
    future = mover.partition.future_log
    assert future is not None
    future.update_config(log.config)
    await mover.done()
    moved = mover.partition.local_log
    assert moved.log_dir == mover.b and not mover.broker.failed
    assert (moved.log_start_offset, moved.local_log_start_offset, moved.log_end_offset) == (0, 2, 3)
    assert moved.highest_copied_offset == 1
    assert moved.epochs.entries == log.epochs.entries
    producer = moved.producers.entry(7)
    assert producer is not None
    assert [each.last_sequence for each in producer.batches] == [1, 2]
    mover.broker.manager.shutdown()


async def test_move_that_a_restart_interrupted_goes_on_when_the_partition_has_a_role_again(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "error",
    [
        Refused(ErrorCode.KAFKA_STORAGE_ERROR, "not now"),
        Malformed("a batch that was cut while it was read"),
        LogDirFault("b", OSError(24, "Too many open files")),
    ],
    ids=["refused", "malformed", "no descriptor"],
)
def test_move_that_cannot_go_on_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BarnabasError
) -> None:
    async def run() -> None:
        mover = Mover(tmp_path)
        append(mover.partition.local_log, b"x")

        def fail() -> None:
            mover.before_chunk = lambda: None
            raise error

        mover.before_chunk = fail
        mover.moves.begin(tp("t"), mover.b)
        await mover.done()
        assert mover.partition.local_log.log_dir == mover.b
        mover.broker.manager.shutdown()

    monkeypatch.setattr("barnabas.broker.replication.log_dir_moves.RETRY_S", 0.001)

    asyncio.run(run())


async def test_directory_that_cannot_be_read_during_a_move_goes_offline_and_the_broker_stays(tmp_path: Path) -> None:
    mover = Mover(tmp_path)
    append(mover.partition.local_log, b"x")

    def fail() -> None:
        raise OSError(5, "a page that cannot be read")

    mover.before_chunk = fail
    mover.moves.begin(tp("t"), mover.b)
    await mover.done()
    assert mover.broker.failed == [(mover.a, [tp("t")])]
    mover.broker.manager.shutdown()


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


async def test_move_waits_for_its_throttle(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("seed", range(60))
async def test_power_cut_at_any_step_of_a_move_takes_nothing_that_was_flushed(seed: int) -> None:
    """The directories are on two disks: what one of them keeps says nothing of the other."""

    chance = Random(seed)
    machine = SimDisk(journaled=chance.random() < 0.3)
    mover = Mover(Path("/"), disk=machine.life())
    expected = [b"%d" % number for number in range(12)]
    append(mover.partition.local_log, *expected)
    mover.partition.local_log.update_high_watermark(12)
    mover.partition.local_log.flusher.flush()
    machine.write_back()
    mover.moves.begin(tp("t"), mover.b)
    for _ in range(chance.choice((0, 2, 4, 8, 12, 20, 40))):
        mover.broker.threads.run_one()
        await asyncio.sleep(0)
    machine.power_cut(chance)
    for task in mover.tasks:
        task.cancel()
    again = Mover(Path("/"), disk=machine.life())
    assert values(again.partition.local_log) == expected
    again.broker.manager.shutdown()


@pytest.mark.parametrize("seed", range(20))
async def test_kill_in_a_move_and_a_power_cut_after_that_take_nothing_that_was_flushed(seed: int) -> None:
    """The next process uses the copy, which the page cache alone has, and puts the log aside that is on disk."""

    chance = Random(seed)
    machine = SimDisk(journaled=True)
    life = machine.life()
    mover = Mover(Path("/"), disk=life)
    expected = [b"%d" % number for number in range(12)]
    append(mover.partition.local_log, *expected)
    mover.partition.local_log.update_high_watermark(12)
    machine.write_back()
    mover.partition.local_log.flusher.flush()
    mover.moves.begin(tp("t"), mover.b)
    await mover.moved_to(mover.b)
    append(mover.partition.local_log, b"more")
    machine.process_died(life)
    for task in mover.tasks:
        task.cancel()
    again = Mover(Path("/"), disk=machine.life())
    assert values(again.partition.local_log) == [*expected, b"more"]
    machine.power_cut(chance)
    last = Mover(Path("/"), disk=machine.life())
    assert values(last.partition.local_log)[:12] == expected
    last.broker.manager.shutdown()


@pytest.mark.parametrize("seed", range(40))
async def test_power_cut_in_a_move_back_takes_nothing_that_was_flushed(seed: int) -> None:
    """The checkpoint of the directory may still tell how far the log was on disk that was there before."""

    chance = Random(seed)
    machine = SimDisk(journaled=chance.random() < 0.5)
    mover = Mover(Path("/"), disk=machine.life())
    expected = [b"%03d" % number * 60 for number in range(60)]
    append(mover.partition.local_log, *expected)
    mover.partition.local_log.update_high_watermark(60)
    mover.partition.local_log.flusher.flush()
    mover.broker.manager.checkpoint(names.RECOVERY_POINT_CHECKPOINT)
    mover.broker.run()
    machine.write_back()
    for target in (mover.b, mover.a):
        mover.moves.begin(tp("t"), target)
        while mover.partition.local_log.log_dir != target:
            threads = mover.broker.threads
            threads._pending.rotate(chance.randrange(1 + len(threads._pending)))  # they take turns in any order
            threads.run_one()
            await asyncio.sleep(0)
    machine.power_cut(chance)
    again = Mover(Path("/"), disk=machine.life())
    assert values(again.partition.local_log) == expected
    again.broker.manager.shutdown()


async def test_move_back_waits_until_the_log_of_the_first_move_has_gone(tmp_path: Path) -> None:
    mover = Mover(tmp_path)
    append(mover.partition.local_log, b"x")
    mover.moves.begin(tp("t"), mover.b)
    await mover.moved_to(mover.b)
    assert (tmp_path / "a" / "t-0").is_dir(), "nothing has been synced yet"
    mover.moves.begin(tp("t"), mover.a)
    for _ in range(20):
        await asyncio.sleep(0)
    for _ in range(3):
        mover.broker.threads._pending.rotate(1)  # run the last request first: the copy is ready before the first move
        mover.broker.threads.run_one()
        await asyncio.sleep(0)
    assert mover.partition.local_log.log_dir == mover.b
    await mover.done()
    assert mover.partition.local_log.log_dir == mover.a
    mover.broker.run()
    assert values(mover.partition.local_log) == [b"x"]
    assert not (tmp_path / "b" / "t-0").exists()
    assert mover.broker.failed == []
    mover.broker.manager.shutdown()


async def test_disk_that_fails_before_a_copy_is_safe_leaves_the_old_log_aside(tmp_path: Path) -> None:
    disk = FailingDisk()
    mover = Mover(tmp_path, disk=disk)
    append(mover.partition.local_log, b"x")
    mover.moves.begin(tp("t"), mover.b)
    await mover.moved_to(mover.b)
    disk.bad.add(mover.b)
    await mover.done()
    mover.broker.run()
    assert mover.broker.failed == [(mover.b, [tp("t")])]
    [kept] = [path.name for path in (tmp_path / "a").iterdir() if path.is_dir()]
    assert kept.startswith("t-0.") and kept.endswith("-stray")
    mover.broker.manager.shutdown()


async def test_copy_beside_the_log_that_a_start_goes_on_with_is_deleted(tmp_path: Path) -> None:
    """A kill during a move back, before the log of the move there was deleted. The copy could not have its name, and the
    directory went offline."""

    before = Mover(tmp_path)
    before.broker.manager.prefer_dir(tp("t"), before.b)
    before.broker.manager.get_or_create_future(tp("t"))
    before.broker.kill()
    (tmp_path / "a" / "t-0").rename(tmp_path / "b" / "t-0")
    mover = Mover(tmp_path)
    mover.moves.leadership_changed([mover.partition], [])
    assert mover.broker.manager.get_future(tp("t")) is None
    assert not mover.tasks and mover.broker.failed == []
    mover.broker.kill()


async def test_log_stays_until_a_broker_that_is_out_of_descriptors_can_sync_its_copy(tmp_path: Path) -> None:
    disk = FailingDisk()
    mover = Mover(tmp_path, disk=disk)
    append(mover.partition.local_log, b"x")
    mover.moves.begin(tp("t"), mover.b)
    await mover.moved_to(mover.b)
    disk.has_descriptors = False
    mover.broker.run()
    assert (tmp_path / "a" / "t-0").is_dir()
    assert mover.broker.failed == []
    disk.has_descriptors = True
    mover.broker.run(5_000)
    mover.broker.run()
    assert not (tmp_path / "a" / "t-0").exists()
    assert values(mover.partition.local_log) == [b"x"]
    mover.broker.manager.shutdown()


async def test_topic_that_is_deleted_and_made_again_does_not_find_the_log_that_has_moved(tmp_path: Path) -> None:
    mover = Mover(tmp_path)
    append(mover.partition.local_log, b"x")
    mover.moves.begin(tp("t"), mover.b)
    await mover.moved_to(mover.b)
    manager = mover.broker.manager
    manager.delete(tp("t"))
    manager.prefer_dir(tp("t"), mover.a)
    assert manager.get_or_create(tp("t"), topic_id=None, is_new=True).log_end_offset == 0
    mover.broker.run()
    assert not (tmp_path / "a" / "t-0").exists(), "it is no longer needed"
    manager.shutdown()


class NoEpochs(FailingDisk):
    """Takes no leader epochs under the folders that are bad."""

    __slots__ = ()

    def rename(self, source: str, target: str) -> None:
        if target.endswith(names.LEADER_EPOCH_CHECKPOINT):
            self._check(target)
        Disk.rename(self, source, target)

    def open(self, path: str, **how: Any) -> int:
        self.paths[fd := Disk.open(self, path, **how)] = ""
        return fd


def test_disk_that_fails_as_the_copy_takes_over_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    disk = NoEpochs()
    broker = Broker(tmp_path / "a", tmp_path / "b", disk=disk)
    manager = broker.manager
    manager.prefer_dir(tp("t"), broker.roots[0])
    log = manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"deleted", b"kept")
    log.update_high_watermark(2)
    manager.prefer_dir(tp("t"), broker.roots[1])
    future = manager.get_or_create_future(tp("t"))
    future.append_as_follower(log.read(0, max_bytes=1000, max_offset=2).read(), now_ms=0)
    log.maybe_increment_log_start_offset(1, "DeleteRecords")
    disk.bad.add(broker.roots[1])
    with pytest.raises(LogDirFault):
        manager.swap_future(tp("t"))
    assert broker.failed == [(broker.roots[1], [])]
    assert manager.get(tp("t")) is log and not log.is_closed
    assert manager.get_future(tp("t")) is None
    manager.shutdown()


def test_copy_whose_name_would_be_too_long_is_refused_and_no_directory_goes_offline(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    manager, long = broker.manager, tp("t" * 249)
    manager.prefer_dir(long, broker.roots[0])
    manager.get_or_create(long, topic_id=None)
    manager.prefer_dir(long, broker.roots[1])
    with pytest.raises(Refused) as caught:
        manager.get_or_create_future(long)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert broker.failed == []
    manager.shutdown()
