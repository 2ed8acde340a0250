"""The replica manager on real logs: long polls end when they should, and pins are released."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.config.log_config import LONG_MAX, LogConfig
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.host import descriptors
from barnabas.base.host.disk import Disk
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchKey
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.reads import FetchParams, PartitionRead
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.runtime.timers import SLOT_MS
from barnabas.broker.storage.checkpoints import read_epochs
from barnabas.broker.storage.environment import InlineThreads, LogEnvironment, Threads
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.recovery import open_log
from barnabas.wire.records import BatchBuilder, plain_batch
from tests.manual_time import ManualClock, ManualThreads, ManualTimers

ME, FOLLOWER = BrokerId(1), BrokerId(2)
TP = TopicPartition("t", 0)
CONSUMER = FetchParams(
    replica_id=-1,
    replica_epoch=-1,
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=1 << 20,
    isolation_level=0,
    client_rack="",
    may_read_from_follower=True,
)


class World:
    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = 1 << 20,
        replicas: tuple[BrokerId, ...] = (ME,),
        isr: tuple[BrokerId, ...] = (ME,),
        prefers: BrokerId | None = None,
        flush_messages: int = LONG_MAX,
        threads: Threads | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.clock = ManualClock()
        self._threads = InlineThreads() if threads is None else threads
        self._disk = disk or Disk()
        self.timers = ManualTimers(self.clock)
        self.manager = ReplicaManager(
            ME,
            clock=self.clock,
            timers=self.timers,
            registry=Registry(),
            is_known=lambda tp: False,
            submit_isr_change=lambda partition, proposal: None,
            prefers_replica=lambda partition, params, offset: prefers,
            fetch_bytes_max=1 << 20,
        )
        self._folder = folder
        self._config = LogConfig(segment_bytes=segment_bytes, flush_messages=flush_messages)
        self._replicas = replicas
        self._isr = isr
        self.partition = self.add_partition(0)
        self.log = self.partition.local_log

    def add_partition(self, number: int) -> Partition:
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        tp = TopicPartition("t", number)
        partition = Partition(tp, machine, self.clock, on_high_watermark=self.manager.hosted.high_watermark_moved)
        env = LogEnvironment(
            disk=self._disk,
            clock=self.clock,
            threads=self._threads,
            on_fault=lambda fault: self._fail(partition, fault),
            on_log_start=self.manager.hosted.log_start_moved,
        )
        partition.attach(open_log(str(self._folder / f"t-{number}"), config=self._config, env=env, partition=tp))
        replicas = self._replicas
        state = PartitionLeadership(
            leader=ME, leader_epoch=LeaderEpoch(0), isr=self._isr, partition_epoch=0, replicas=replicas
        )
        partition.become_leader(state, now_ms=self.clock.now_ms())
        self.manager.hosted.add(partition)
        return partition

    def _fail(self, partition: Partition, fault: LogDirFault) -> None:
        """Fail the directory as the broker does."""
        if descriptors.are_exhausted(fault.cause):
            return
        partition.machine.go_offline()
        partition.log = None
        self.manager.hosted.wake_all(partition)

    def move_log(self) -> None:
        """Move the log to another directory, as AlterReplicaLogDirs does at its end."""
        old = self.partition.local_log
        env = LogEnvironment(clock=self.clock, threads=self._threads)
        tp = self.partition.tp
        moved = open_log(str(self._folder / "elsewhere-0"), config=self._config, env=env, partition=tp)
        copied = old.read(0, max_bytes=1 << 20, max_offset=old.log_end_offset).read()
        moved.append_as_follower(copied, now_ms=self.clock.now_ms())
        moved.update_high_watermark(old.high_watermark)
        self.partition.attach(moved)
        old.abandon()
        self.manager.hosted.wake_all(self.partition)

    def append(self, size_bytes: int = 100) -> None:
        """One batch of about `size_bytes`."""
        builder = BatchBuilder()
        builder.append(None, b"v" * (size_bytes - 70), timestamp=self.clock.now_ms())
        self.manager.appends.append(
            [AppendEntry(TP, bytearray(builder.build()))],
            required_acks=1,
            timeout_ms=0,
            origin=Origin.CLIENT,
            on_done=lambda outcomes: None,
        )

    def append_own(self) -> tuple[int, list[ErrorCode]]:
        """Return the first offset, and the list of the callback's results: none yet, or one."""
        heard: list[ErrorCode] = []
        batch = plain_batch([(b"k", b"v"), (b"k", None)], timestamp=self.clock.now_ms())
        first = self.manager.appends.append_own(
            TP, batch, origin=Origin.COORDINATOR, now_ms=self.clock.now_ms(), on_committed=heard.append
        )
        return first, heard

    def fetch(self, params: FetchParams, offset: int, *, max_bytes: int = 1 << 20) -> list[list[PartitionRead]]:
        """Return the answers: none yet, or one."""
        answers: list[list[PartitionRead]] = []
        want = CachedPartition(FetchKey("t", 0), offset, max_bytes, -1, -1, 0)
        self.manager.fetches.fetch(params, [(want, TP)], answers.append)
        return answers

    def fetch_as_follower(
        self, offset: int, *, last_fetched_epoch: int = -1, leader_epoch: int = 0, max_wait_ms: int = 500
    ) -> list[list[PartitionRead]]:
        answers: list[list[PartitionRead]] = []
        want = CachedPartition(FetchKey("t", 0), offset, 1 << 20, leader_epoch, last_fetched_epoch, 0)
        params = CONSUMER._replace(replica_id=FOLLOWER, max_wait_ms=max_wait_ms)
        self.manager.fetches.fetch(params, [(want, TP)], answers.append)
        return answers

    @property
    def pins(self) -> int:
        return sum(segment.file.pins for segment in self.log.segments)


def test_long_poll_ends_when_min_bytes_have_come_though_no_whole_batch_ends_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.append(100)
    answers = world.fetch(CONSUMER._replace(min_bytes=150), 0)
    assert answers == []
    world.append(100)
    [[read]] = answers
    assert read.size_bytes == world.log.size_bytes > 150
    read.release()


def test_limit_that_cuts_a_fetch_counts_as_reached(tmp_path: Path) -> None:
    """Kafka sends the incomplete batch and counts its bytes; here only whole batches are sent."""
    world = World(tmp_path)
    for _ in range(5):
        world.append(100)
    [[read]] = world.fetch(CONSUMER._replace(min_bytes=150), 0, max_bytes=150)
    assert 0 < read.size_bytes < 150
    read.release()
    [[read]] = world.fetch(CONSUMER._replace(min_bytes=250, max_bytes=250), 0)
    assert 0 < read.size_bytes < 250
    read.release()


def test_long_poll_does_not_wait_at_the_end_of_an_older_segment(tmp_path: Path) -> None:
    world = World(tmp_path, segment_bytes=250)
    for _ in range(5):
        world.append(100)
    assert len(world.log.segments) > 1
    [[read]] = world.fetch(CONSUMER._replace(min_bytes=400), 0)
    assert read.size_bytes > 0
    read.release()


def test_long_poll_still_waits_for_min_bytes_in_the_last_segment(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.append(100)
    answers = world.fetch(CONSUMER._replace(min_bytes=1000), 0)
    assert answers == [] and world.pins == 0
    world.timers.advance_ms(500 + SLOT_MS)
    [[read]] = answers
    assert read.size_bytes == world.log.size_bytes
    read.release()


def test_long_poll_ends_when_the_replica_is_stopped(tmp_path: Path) -> None:
    world = World(tmp_path)
    answers = world.fetch(CONSUMER, 0)
    world.partition.machine.stop()
    world.manager.hosted.wake_all(world.partition)
    [[read]] = answers
    assert read.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_follower_that_waits_is_recorded_when_its_request_comes_and_not_again_when_it_is_answered(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    world.append(100)
    came_ms = world.clock.now_ms()
    answers = world.fetch_as_follower(1)
    assert answers == []
    world.clock.advance_ms(200)
    world.append(100)
    [[read]] = answers
    assert read.size_bytes > 0
    read.release()
    position = world.partition.machine.follower(FOLLOWER)
    assert position is not None
    assert (position.log_end, position.last_fetch_ms, position.last_caught_up_ms) == (1, came_ms, came_ms)
    assert position.last_fetch_leader_log_end == 1


def test_waiting_fetch_of_many_partitions_reads_only_changed_ones_again(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    others = [world.add_partition(number) for number in range(1, 5)]
    wanted = [(CachedPartition(FetchKey("t", n), 0, 1 << 20, 0, -1, 0), TopicPartition("t", n)) for n in range(5)]
    answers: list[list[PartitionRead]] = []
    world.manager.fetches.fetch(CONSUMER._replace(replica_id=FOLLOWER), wanted, answers.append)
    assert answers == []
    for other in others:
        other.local_log.abandon()  # any read of them would be refused
    world.append(100)
    [reads] = answers
    assert [read.size_bytes > 0 for read in reads] == [True, False, False, False, False]
    assert all(not read.error for read in reads)
    reads[0].release()
    assert len(world.manager.hosted.fetch_purgatory) == 0 and world.manager.hosted.fetch_purgatory.watched_keys == 0


def test_answer_after_a_wait_has_the_high_watermark_at_its_end(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    world.append(100)
    answers = world.fetch_as_follower(1)
    world.log.update_high_watermark(1)
    world.timers.advance_ms(500 + SLOT_MS)
    [[read]] = answers
    assert (read.size_bytes, read.high_watermark) == (0, 1)


def test_partition_that_changes_its_leader_epoch_ends_the_wait(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    answers = world.fetch_as_follower(0)
    state = PartitionLeadership(
        leader=ME, leader_epoch=LeaderEpoch(1), isr=(ME,), partition_epoch=1, replicas=(ME, FOLLOWER)
    )
    world.partition.become_leader(state, now_ms=world.clock.now_ms())
    world.manager.hosted.wake_all(world.partition)
    [[read]] = answers
    assert read.error is ErrorCode.FENCED_LEADER_EPOCH


def test_follower_with_another_epoch_at_the_same_end_gets_a_diverging_epoch(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    world.append(100)
    world.log.assign_epoch_start(3, 1)
    [[read]] = world.fetch_as_follower(1, last_fetched_epoch=2)
    assert read.diverging_epoch == (0, 1)
    assert world.fetch_as_follower(1, last_fetched_epoch=0) == []


def test_fetch_of_a_followers_former_life_leaves_no_pin(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    world.append(100)
    follower = CONSUMER._replace(replica_id=FOLLOWER, replica_epoch=8)
    [[read]] = world.fetch(follower, 0)
    read.release()
    [[read]] = world.fetch(follower._replace(replica_epoch=7), 0)
    assert read.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.pins == 0


def test_fetch_by_the_id_of_a_recreated_topic_does_not_read_the_old_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.append(100)
    world.partition.topic_id = TopicId(b"o" * 16)
    for topic_id, error in ((b"o" * 16, ErrorCode.NONE), (b"n" * 16, ErrorCode.INCONSISTENT_TOPIC_ID)):
        answers: list[list[PartitionRead]] = []
        want = CachedPartition(FetchKey(topic_id, 0), 0, 1 << 20, -1, -1, 0)
        world.manager.fetches.fetch(CONSUMER, [(want, TP)], answers.append)
        [[read]] = answers
        assert read.error is error
        read.release()


def test_records_for_a_recreated_topic_do_not_go_to_the_old_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition.topic_id = TopicId(b"o" * 16)
    builder = BatchBuilder()
    builder.append(None, b"v", timestamp=world.clock.now_ms())
    outcomes: list[AppendEntry] = []
    for topic_id in (None, b"o" * 16, b"n" * 16):
        world.manager.appends.append(
            [AppendEntry(TP, bytearray(builder.build()), topic_id=topic_id)],
            required_acks=1,
            timeout_ms=0,
            origin=Origin.CLIENT,
            on_done=outcomes.extend,
        )
    assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    assert world.log.log_end_offset == 2


def test_consumer_of_a_former_leader_epoch_is_fenced_before_it_is_sent_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, prefers=FOLLOWER)
    world.append(100)
    for epoch, error in ((-1, ErrorCode.NONE), (0, ErrorCode.NONE), (7, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        answers: list[list[PartitionRead]] = []
        want = CachedPartition(FetchKey("t", 0), 0, 1 << 20, epoch, -1, 0)
        world.manager.fetches.fetch(CONSUMER._replace(client_rack="a"), [(want, TP)], answers.append)
        [[read]] = answers
        assert read.error is error
        assert read.preferred_read_replica == (FOLLOWER if error is ErrorCode.NONE else -1)


def test_counters_of_a_deleted_topic_are_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    registry = world.manager.hosted._registry
    world.manager.hosted.counters("gone").bytes_in.add(5)
    world.manager.hosted.forget_topic("gone")
    assert not any(("topic", "gone") in labels for family in registry.families() for labels in family.series)
    world.manager.hosted.forget_topic("never seen")


def test_own_batch_is_committed_at_once_if_no_other_broker_is_in_sync(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.append_own() == (0, [ErrorCode.NONE])
    assert world.append_own() == (2, [ErrorCode.NONE])
    counters = world.manager.hosted.counters("t")
    assert (counters.messages_in.value, counters.bytes_in.value) == (4, world.log.size_bytes)
    assert len(world.manager.hosted.produce_purgatory) == 0


def test_own_batch_waits_for_the_isr_without_a_time_out(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER))
    _, heard = world.append_own()
    world.timers.advance_ms(24 * 60 * 60 * 1000)
    assert heard == []
    world.fetch_as_follower(2)
    assert heard == [ErrorCode.NONE]
    _, heard = world.append_own()
    world.partition.machine.stop()
    world.manager.hosted.wake_all(world.partition)
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_own_batch_wakes_consumers(tmp_path: Path) -> None:
    world = World(tmp_path)
    answers = world.fetch(CONSUMER, 0)
    world.append_own()
    [[read]] = answers
    assert read.size_bytes == world.log.size_bytes
    read.release()


def test_refused_own_batch_raises_and_never_calls_back(tmp_path: Path) -> None:
    world = World(tmp_path, replicas=(ME, FOLLOWER))
    now_ms = world.clock.now_ms()
    world.partition.machine.set_min_insync_replicas(2, log_end=world.log.log_end_offset, now_ms=now_ms)
    with pytest.raises(Refused) as refused:
        world.append_own()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.log.log_end_offset == 0
    assert world.manager.hosted.counters("t").failed_produce.value == 1
    world.log.abandon()
    world.partition.machine.set_min_insync_replicas(1, log_end=world.log.log_end_offset, now_ms=now_ms)
    with pytest.raises(Refused) as refused:
        world.append_own()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("is_own", [False, True])
def test_record_that_was_truncated_while_the_disk_was_slow_is_not_acknowledged(tmp_path: Path, is_own: bool) -> None:
    """With `flush.messages` an append waits for the disk first. By then this broker may have lost the leadership, truncated the
    record, led again, and committed other records at its offset."""
    threads = ManualThreads()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), flush_messages=1, threads=threads)
    partition = world.partition

    def state(leader: BrokerId, epoch: int) -> PartitionLeadership:
        both = (ME, FOLLOWER)
        return PartitionLeadership(
            leader=leader, leader_epoch=LeaderEpoch(epoch), isr=both, partition_epoch=epoch, replicas=both
        )

    heard: list[ErrorCode] = []
    if is_own:
        _, heard = world.append_own()
    else:
        world.manager.appends.append(
            [AppendEntry(TP, bytearray(plain_batch([(b"k", b"lost"), (b"k", b"too")], timestamp=0)))],
            required_acks=-1,
            timeout_ms=30_000,
            origin=Origin.CLIENT,
            on_done=lambda outcomes: heard.append(outcomes[0].error),
        )
    assert world.log.log_end_offset == 2
    partition.become_follower(state(FOLLOWER, 1))
    world.manager.hosted.wake_all(partition)
    world.log.truncate_to(0)
    partition.become_leader(state(ME, 2), now_ms=world.clock.now_ms())
    world.manager.hosted.wake_all(partition)
    world.append_own()
    world.fetch_as_follower(2, leader_epoch=2)
    assert heard == []
    threads.run_pending()
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.log.high_watermark == 2


def test_leader_commits_what_is_on_its_own_disk_too(tmp_path: Path) -> None:
    """With `flush.messages=1`. The follower has the record on disk. If both lose power now, the leader may lose the record and
    be elected again: so no consumer may have read it."""
    threads = ManualThreads()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), flush_messages=1, threads=threads)
    _, heard = world.append_own()
    world.fetch_as_follower(2, leader_epoch=0)
    assert (world.log.high_watermark, heard) == (0, [])
    threads.run_pending()
    assert (world.log.high_watermark, heard) == (2, [ErrorCode.NONE])


def test_records_that_need_no_flush_yet_are_committed_without_one(tmp_path: Path) -> None:
    threads = ManualThreads()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), flush_messages=5, threads=threads)
    for end in (2, 4):
        world.append_own()
        world.fetch_as_follower(end, leader_epoch=0)
        assert world.log.high_watermark == end
    world.append_own()
    world.fetch_as_follower(6, leader_epoch=0)
    assert world.log.high_watermark == 4
    threads.run_pending()
    assert world.log.high_watermark == 6
    world.append_own()
    world.fetch_as_follower(8, leader_epoch=0)
    assert world.log.high_watermark == 8


async def test_follower_that_is_elected_during_a_flush_commits_after_it(tmp_path: Path) -> None:
    threads = ManualThreads()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), flush_messages=1, threads=threads)
    both = (ME, FOLLOWER)

    def state(leader: BrokerId, epoch: int) -> PartitionLeadership:
        return PartitionLeadership(
            leader=leader, leader_epoch=LeaderEpoch(epoch), isr=both, partition_epoch=epoch, replicas=both
        )

    world.partition.become_follower(state(FOLLOWER, 1))
    assert world.partition.append_follower(memoryview(plain_batch([(b"k", b"v")], timestamp=0)), 0, 0)
    flushing = asyncio.ensure_future(world.partition.flush())
    await asyncio.sleep(0)
    world.partition.become_leader(state(ME, 2), now_ms=world.clock.now_ms())
    world.fetch_as_follower(1, leader_epoch=2)
    assert world.log.high_watermark == 0
    threads.run_pending()
    await flushing
    assert world.log.high_watermark == 1


def test_retry_of_a_batch_that_is_being_flushed_waits_for_the_disk_too(tmp_path: Path) -> None:
    """The producer lost its connection, and sends the batch again on another one."""
    threads = ManualThreads()
    world = World(tmp_path, flush_messages=1, threads=threads)
    heard: list[str] = []

    def send(name: str) -> None:
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0)
        builder.append(b"k", b"v", timestamp=0)
        world.manager.appends.append(
            [AppendEntry(TP, bytearray(builder.build()))],
            required_acks=1,
            timeout_ms=30_000,
            origin=Origin.CLIENT,
            on_done=lambda outcomes: heard.append(f"{name} {outcomes[0].error.name} {outcomes[0].base_offset}"),
        )

    send("first")
    send("retry")
    assert heard == []
    threads.run_pending()
    assert heard == ["first NONE 0", "retry NONE 0"]
    send("late")
    assert heard[2:] == ["late NONE 0"], "it is on disk"
    assert world.log.log_end_offset == 1


def test_records_that_wait_for_the_disk_while_their_log_moves_are_acknowledged(tmp_path: Path) -> None:
    """The second one waits for the flush after the current one, and a closed log does not begin that flush."""
    threads = ManualThreads()
    world = World(tmp_path, flush_messages=1, threads=threads)
    first, second = world.append_own()[1], world.append_own()[1]
    world.move_log()
    threads.run_pending()
    assert (first, second) == ([ErrorCode.NONE], [ErrorCode.NONE])
    assert world.partition.local_log.recovery_point == 4


async def test_follower_reports_that_appended_records_must_be_flushed(tmp_path: Path) -> None:
    threads = ManualThreads()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), flush_messages=2, threads=threads)
    both = (ME, FOLLOWER)
    world.partition.become_follower(
        PartitionLeadership(leader=FOLLOWER, leader_epoch=LeaderEpoch(1), isr=both, partition_epoch=1, replicas=both)
    )
    batches = [plain_batch([(b"k", b"v")], timestamp=0) for _ in range(2)]
    batches[1][:8] = (1).to_bytes(8, "big")
    assert not world.partition.append_follower(memoryview(batches[0]), 0, 0)
    assert world.partition.append_follower(memoryview(batches[1]), 0, 0)
    flushing = asyncio.ensure_future(world.partition.flush())
    await asyncio.sleep(0)
    assert not flushing.done() and world.log.recovery_point == 0
    threads.run_pending()
    await flushing
    assert world.log.recovery_point == 2


class ScarceDisk(Disk):
    """A disk without a descriptor for the next syncs by path."""

    __slots__ = ("refusals",)

    def __init__(self) -> None:
        self.refusals = 0

    def fsync_path(self, path: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        super().fsync_path(path)


async def test_follower_without_a_free_descriptor_acknowledges_only_after_its_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next fetch would acknowledge the records to the leader, which relies on that."""
    monkeypatch.setattr("barnabas.base.host.descriptors.WAIT_S", 0)

    disk = ScarceDisk()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), flush_messages=1, disk=disk)
    both = (ME, FOLLOWER)
    world.partition.become_follower(
        PartitionLeadership(leader=FOLLOWER, leader_epoch=LeaderEpoch(1), isr=both, partition_epoch=1, replicas=both)
    )
    assert world.partition.append_follower(memoryview(plain_batch([(b"k", b"v")], timestamp=0)), 0, 0)
    disk.refusals = 2
    await world.partition.flush()
    assert (disk.refusals, world.log.recovery_point) == (0, 1)


def test_own_record_that_cannot_be_flushed_without_a_descriptor_is_committed_later(tmp_path: Path) -> None:
    """A coordinator that gets an error does not carry out the decision that it wrote: markers would never be sent."""
    disk = ScarceDisk()
    world = World(tmp_path, flush_messages=1, disk=disk)
    disk.refusals = 2
    _, heard = world.append_own()
    assert (heard, world.log.high_watermark) == ([], 0)
    world.timers.advance_ms(1000)
    assert (heard, disk.refusals) == ([], 0)
    world.timers.advance_ms(1000)
    assert (heard, world.log.high_watermark) == ([ErrorCode.NONE], 2)


class FullProcess(Disk):
    """A process that opens no more files once it is full."""

    __slots__ = ("is_full",)

    def __init__(self) -> None:
        self.is_full = False

    def open(self, path: str, **how: Any) -> int:
        if self.is_full:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, **how)


def test_follower_keeps_its_append_if_no_descriptor_is_free_for_the_log_start(tmp_path: Path) -> None:
    """After an error, the fetcher asked for the same records again and again: they did not fit onto the log any more."""
    disk = FullProcess()
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), disk=disk)
    both = (ME, FOLLOWER)
    world.partition.become_follower(
        PartitionLeadership(leader=FOLLOWER, leader_epoch=LeaderEpoch(1), isr=both, partition_epoch=1, replicas=both)
    )
    first, second = (plain_batch([(b"k", b"v")], timestamp=0) for _ in range(2))
    second[:8] = (1).to_bytes(8, "big")
    world.partition.append_follower(memoryview(first), 1, 0)
    disk.is_full = True
    world.partition.append_follower(memoryview(second), 2, 1)
    assert (world.log.log_start_offset, world.log.log_end_offset) == (1, 2)
    disk.is_full = False
    world.log.write_epochs()
    assert read_epochs(f"{world.log.directory}/leader-epoch-checkpoint") == world.log.epochs.entries


class BrokenDisk(Disk):
    """A disk that cannot be read once it is broken."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        if self.is_broken:
            raise OSError(5, "Input/output error")
        return super().pread(fd, size_bytes, position)


def test_disk_that_a_long_poll_finds_broken_ends_every_wait_once(tmp_path: Path) -> None:
    """A produce wakes the first poll. Its read takes the directory offline, and that wakes all of them."""
    disk = BrokenDisk()
    world = World(tmp_path, disk=disk)
    world.append(100)
    patient = CONSUMER._replace(min_bytes=10_000)
    polls = [world.fetch(patient, 0) for _ in range(3)]
    assert polls == [[], [], []]
    world.log.segments.active.tail.clear()  # the poll must read the file to find the position
    disk.is_broken = True
    produced: list[AppendEntry] = []
    world.manager.appends.append(
        [AppendEntry(TP, bytearray(plain_batch([(b"k", b"v")], timestamp=0)))],
        required_acks=1,
        timeout_ms=0,
        origin=Origin.CLIENT,
        on_done=produced.extend,
    )
    assert [outcome.error for outcome in produced] == [ErrorCode.NONE]
    assert [[read.error for reads in answers for read in reads] for answers in polls] == [
        [ErrorCode.KAFKA_STORAGE_ERROR]
    ] * 3
    assert len(world.manager.hosted.fetch_purgatory) == 0


def test_leader_finds_where_a_followers_log_diverges(tmp_path: Path) -> None:
    """A log with records of the epochs 1, 1, 3, 3; this broker leads in epoch 4, without a record yet."""
    world = World(tmp_path, replicas=(ME, FOLLOWER), isr=(ME,))
    for epoch in (1, 1, 3, 3):
        world.log.append_as_leader(plain_batch([(b"k", b"v")], timestamp=0), leader_epoch=epoch, now_ms=0)
    both = (ME, FOLLOWER)
    state = PartitionLeadership(leader=ME, leader_epoch=LeaderEpoch(4), isr=(ME,), partition_epoch=4, replicas=both)
    world.partition.become_leader(state, now_ms=0)

    def ask(offset: int, last_fetched_epoch: int) -> PartitionRead:
        [[read]] = world.fetch_as_follower(offset, last_fetched_epoch=last_fetched_epoch, leader_epoch=4, max_wait_ms=0)
        read.release()
        return read

    assert ask(4, 3).diverging_epoch is None
    assert ask(2, 1).diverging_epoch is None
    assert ask(3, 1).diverging_epoch == (1, 2)
    assert ask(3, 2).diverging_epoch == (1, 2)
    assert ask(3, -1).diverging_epoch is None
    assert ask(3, 5).error is ErrorCode.OFFSET_OUT_OF_RANGE
    world.log.maybe_increment_log_start_offset(1)
    assert ask(0, 1).error is ErrorCode.OFFSET_OUT_OF_RANGE
