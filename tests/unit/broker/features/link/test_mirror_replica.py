"""A mirror's leader, on a real log: it records the source's epochs first, and after a truncation waits for a new epoch."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.base.errors import Malformed, Refused
from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.features.link.replica import MirrorReplica
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.storage.epoch_cache import EpochEntry
from barnabas.broker.zookeeper_client.znodes_link import MirrorPartition
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.record_build import BatchBuilder
from tests.unit.broker.storage.log import log_support

ME, FOLLOWER = BrokerId(1), BrokerId(2)
TP = TopicPartition("topic", 0)


def leadership(epoch: int) -> PartitionLeadership:
    return PartitionLeadership(
        leader=ME, leader_epoch=LeaderEpoch(epoch), isr=(ME,), partition_epoch=epoch, replicas=(ME, FOLLOWER)
    )


def batch(offset: int, epoch: int, count: int = 1) -> bytes:
    builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
    for number in range(count):
        builder.append(None, b"v%d" % number, timestamp=log_support.NOW_MS)
    return builder.build()


class Mirror:
    """This broker leads in epoch 7; the follower sends no requests."""

    def __init__(self, folder: Path) -> None:
        self.stored = log_support.Partition(folder)
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        self.partition = Partition(TP, machine, self.stored.clock, on_high_watermark=lambda partition: None)
        self.partition.attach(self.stored.log)
        self.partition.become_leader(leadership(7), now_ms=0)
        self.renewed: list[int] = []
        loop = asyncio.get_running_loop()
        self.hosted = HostedPartitions(ME, timers=loop, registry=Registry(), is_known=lambda tp: True)
        self.hosted.add(self.partition)
        self.replica = self.new_replica(MirrorPartition())

    def new_replica(self, known: MirrorPartition) -> MirrorReplica:
        return MirrorReplica(self.partition, known, self.hosted, renew_epoch=self.renew, clock=self.stored.clock)

    async def renew(self, tp: TopicPartition, epoch: LeaderEpoch) -> None:
        self.renewed.append(epoch)

    def receive(self, *batches: bytes, high_watermark: int = 100) -> None:
        records = memoryview(bytearray(b"".join(batches)))
        noted = self.replica.to_note(records)
        if noted is not None:
            self.replica.recorded = noted
        self.replica.append_follower(records, high_watermark, 0)

    def stored_batches(self) -> list[tuple[int, int]]:
        """Return (offset, leader epoch) of each batch in the file."""
        data = b"".join(file.read_bytes() for file in sorted(Path(self.stored.log.directory).glob("*.log")))
        return [(header.base_offset, header.leader_epoch) for _, header in iter_batches(data)]


async def test_batches_get_our_epoch_and_the_epochs_of_the_source_are_noted_before(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    records = batch(0, 2) + batch(1, 2) + batch(5, 4)
    noted = mirror.replica.to_note(records)
    assert noted is not None
    assert noted.epochs == ((2, 0), (4, 5))
    mirror.receive(batch(0, 2), batch(1, 2), batch(5, 4))
    assert mirror.stored_batches() == [(0, 7), (1, 7), (5, 7)]
    assert mirror.replica.latest_epoch == 4
    assert mirror.replica.end_offset_for_epoch(2) == (2, 5)
    assert mirror.replica.to_note(batch(6, 4)) is None
    assert mirror.replica.lag_records == 94


async def test_epoch_that_was_noted_by_a_leader_that_died_before_its_records_came_is_not_taken_for_known(
    tmp_path: Path,
) -> None:
    mirror = Mirror(tmp_path)
    mirror.receive(batch(0, 2))
    ahead = MirrorPartition(epochs=((LeaderEpoch(2), Offset(0)), (LeaderEpoch(3), Offset(1))))
    assert mirror.new_replica(ahead).latest_epoch == 2


async def test_epoch_recorded_after_a_truncation_does_not_apply_to_replicas_that_have_not_truncated(
    tmp_path: Path,
) -> None:
    """The source lost records. The leader here truncated them, recorded the next epoch, and failed before its follower learned
    of the truncation. The follower would mistake the lost records for their replacements."""

    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first, second = Mirror(tmp_path / "first"), Mirror(tmp_path / "second")
    for each in (first, second):
        each.receive(batch(0, 2), batch(1, 2), batch(2, 2))
    first.partition.become_leader(leadership(8), now_ms=0)
    first.replica.epochs.truncate_from_end(1)
    await first.partition.truncate_to(1, is_wanted=lambda: True)
    noted = first.replica.to_note(batch(1, 3))
    assert noted is not None
    assert (noted.epochs, noted.noted_in, noted.noted_at) == (((2, 0), (3, 1)), 8, 1)
    assert MirrorPartition.decode("", noted.encode()) == noted
    second.partition.become_leader(leadership(9), now_ms=0)
    heir = second.new_replica(noted)
    assert heir.latest_epoch == 2, "the source says that this epoch ended at 1: what follows is cut here, too"
    first.receive(batch(1, 3), batch(2, 3))
    assert first.new_replica(noted).latest_epoch == 3, "a log with records of that leader has its recorded epochs"


async def test_recorded_epochs_that_never_came_are_corrected(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    mirror.receive(batch(0, 2))
    ahead = MirrorPartition(epochs=((LeaderEpoch(2), Offset(0)), (LeaderEpoch(3), Offset(1))))
    mirror.replica = mirror.new_replica(ahead)
    assert mirror.replica.to_note(batch(1, 3)) is None, "it came after all"
    mirror.receive(batch(1, 2), batch(2, 2))  # the source has lost epoch 3
    assert mirror.replica.recorded.epochs == ((2, 0),)
    assert mirror.replica.to_note(batch(3, 2)) is None
    assert mirror.new_replica(mirror.replica.recorded).latest_epoch == 2


async def test_nothing_is_appended_between_a_cut_and_the_next_leader_epoch(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    mirror.receive(batch(0, 2), batch(1, 2), batch(2, 2))
    position = mirror.partition.machine.follower(FOLLOWER)
    assert position is not None
    position.log_end = 3
    cutting = asyncio.create_task(mirror.replica.truncate_to(Offset(1), is_wanted=lambda: True))
    while not mirror.renewed:
        await asyncio.sleep(0)
    assert mirror.partition.log_end == 1
    assert position.log_end == 1  # the records beyond are not part of this log any more
    with pytest.raises(Refused, match="was truncated in epoch 7"):
        mirror.receive(batch(1, 3))
    assert mirror.renewed == [7]
    mirror.partition.become_leader(leadership(8), now_ms=0)
    mirror.replica.partition_changed.set()
    await cutting
    mirror.receive(batch(1, 3))
    assert mirror.stored_batches() == [(0, 7), (1, 8)]
    # A follower that ended at 3 in epoch 7 finds that epoch 7 ended at 1.
    assert mirror.stored.log.end_offset_for_epoch(7) == (7, 1)
    assert mirror.replica.truncated_records == 2


async def test_former_leader_appends_nothing(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    follows = PartitionLeadership(
        leader=FOLLOWER, leader_epoch=LeaderEpoch(8), isr=(ME,), partition_epoch=8, replicas=(ME, FOLLOWER)
    )
    mirror.partition.become_follower(follows)
    with pytest.raises(Refused, match="no longer leads"):
        mirror.receive(batch(0, 2))
    # Nor when it leads again: other brokers have led in between.
    mirror.partition.become_leader(leadership(9), now_ms=0)
    with pytest.raises(Refused, match="no longer leads"):
        mirror.receive(batch(0, 2))


async def test_source_that_lies_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    mirror.receive(batch(0, 2), batch(1, 2))
    spoilt = bytearray(batch(2, 2))
    spoilt[-1] ^= 1
    endless = bytearray(batch(2, 2))
    endless[8:12] = (0).to_bytes(4, "big")
    for lie in (bytes(spoilt), bytes(endless), batch(0, 2), batch(2, 2) + batch(1, 2)):
        with pytest.raises((Refused, Malformed)):
            mirror.receive(lie)
        assert mirror.partition.log_end == 2
        assert mirror.replica.error is not None
    mirror.receive(batch(2, 2))
    assert mirror.replica.error is None


async def test_source_is_quiet_when_its_end_has_not_moved_for_a_while(tmp_path: Path) -> None:
    """A planned promotion waits while writers continue, and only then ends the mirror."""

    mirror = Mirror(tmp_path)
    replica, clock = mirror.replica, mirror.stored.clock
    assert not replica.is_quiet(10, for_ms=1000)
    clock.advance_ms(900)
    assert not replica.is_quiet(10, for_ms=1000)
    clock.advance_ms(200)
    assert not replica.is_quiet(11, for_ms=1000)  # the source has new records
    clock.advance_ms(1000)
    assert replica.is_quiet(11, for_ms=1000)


async def test_offsets_and_epochs_that_the_source_cannot_have_sent_are_objected_to(tmp_path: Path) -> None:
    """The checksum covers neither field: a flipped bit is enough."""

    mirror = Mirror(tmp_path)
    mirror.replica.source_epoch = 4
    good = batch(0, 2) + batch(1, 4, count=3)
    assert mirror.replica.objection(good, 4) is None
    assert mirror.replica.objection(good, 3) == "the source sent records up to 4, above its high watermark 3"
    assert mirror.replica.objection(batch(1 << 40, 4), 4) is not None
    wrong = mirror.replica.objection(batch(0, 2) + batch(1, 1 << 30) + batch(2, 4), 9)
    assert wrong == "the source sent a batch of epoch 1073741824, above its leader's epoch 4"
    mirror.replica.source_epoch = -1  # a source without leader epochs in its metadata
    assert mirror.replica.objection(batch(0, 9), 4) is None


async def test_epoch_is_never_noted_below_what_the_log_has(tmp_path: Path) -> None:
    """The append refuses records that go back. By then their epochs are in the znode, for the next leader."""

    mirror = Mirror(tmp_path)
    mirror.receive(batch(0, 2, count=10))
    noted = mirror.replica.to_note(batch(3, 5))
    assert noted is not None
    assert noted.epochs == ((2, 0), (5, 10))
    with pytest.raises(Refused, match="begins below 10"):
        mirror.receive(batch(3, 5))
    next_leader = mirror.new_replica(noted)
    assert next_leader.end_offset_for_epoch(2) == (2, 10)
    assert next_leader.latest_epoch == 2


async def test_log_that_begins_inside_of_a_batch_knows_its_epoch(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    await mirror.replica.truncate_fully_and_start_at(Offset(5), is_wanted=lambda: True)
    mirror.receive(batch(0, 3, count=10))
    assert mirror.replica.log_end == 10
    assert mirror.replica.latest_epoch == 3


async def test_batch_beyond_the_largest_offset_is_refused(tmp_path: Path) -> None:
    """No answer could contain the end of the log."""

    mirror = Mirror(tmp_path)
    with pytest.raises(Refused, match="beyond the largest offset"):
        mirror.receive(batch((1 << 63) - 3, 3, count=10))
    assert mirror.replica.log_end == 0


async def test_empty_mirror_that_starts_later_never_loses_its_leader_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 15 of the world `link`: until the new start was on disk, the leader's log had no epoch, and followers ask for it."""
    mirror = Mirror(tmp_path)
    log = mirror.stored.log
    saves: list[Callable[[Exception | None], None]] = []
    monkeypatch.setattr(type(log._truncator), "_save_then", lambda truncator, then: saves.append(then))
    restarting = asyncio.ensure_future(mirror.replica.truncate_fully_and_start_at(Offset(22), is_wanted=lambda: True))
    while not saves:
        await asyncio.sleep(0)
    assert (log.log_end_offset, log.epochs.latest) == (22, EpochEntry(LeaderEpoch(7), Offset(22)))
    saves.pop()(None)
    await restarting
    assert log.epochs.latest == EpochEntry(LeaderEpoch(7), Offset(22))
