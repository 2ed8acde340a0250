"""Logs after a crash, a disk error or manual deletions: opened, repaired, and reported in the log."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.base.host.disk import Disk
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.recovery import open_log
from barnabas.broker.storage.segment_recovery import UnsupportedMessageFormat
from barnabas.testing.simulation.disk import SimDisk
from barnabas.wire.record_batch import MAGIC_AT
from barnabas.wire.records import end_txn_marker
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, batch, contents

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100, segment_index_bytes=1200)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path, CONFIG)


def first_log(partition: Partition) -> Path:
    return partition.directory / f"{0:020d}.log"


def last_log(partition: Partition) -> Path:
    return max(partition.directory.glob("*.log"))


def index_bytes(partition: Partition) -> dict[str, bytes]:
    """Indexes as they are once the log is closed."""
    return {path.name: path.read_bytes() for path in partition.directory.glob("*index")}


def test_a_torn_tail_is_cut_and_the_rest_stands(partition: Partition, caplog: pytest.LogCaptureFixture) -> None:
    partition.fill(30)
    before = contents(partition.log)
    partition.log.abandon()
    with last_log(partition).open("r+b") as file:
        file.truncate(last_log(partition).stat().st_size - 5)
    log = partition.open(clean=False)
    assert contents(log) == before[:-2]
    assert "cutting" in caplog.text
    assert "is torn" in caplog.text
    assert partition.append(b"next") == 58


def test_offsets_removed_by_compaction_at_a_followers_segment_start_are_not_a_lost_tail(
    partition: Partition,
) -> None:
    """The topic was compacted once, and is no longer. The leader's records have holes, and one is where this replica rolls."""
    offset = 0
    for _ in range(40):
        size = len(batch([b"v" * 60]))
        if partition.log.active_segment.size_bytes + size > CONFIG.segment_bytes:
            offset += 5
        sent = batch([b"v" * 60], base_offset=offset, leader_epoch=3)
        partition.log.append_as_follower(sent, now_ms=NOW_MS)
        offset += 1
    before = contents(partition.log)
    assert len(partition.log.segments) == 3
    assert before[-1].offset == 49
    log = partition.crash(recovery_point=0)
    assert contents(log) == before


def test_after_a_cut_the_segments_behind_it_go(partition: Partition, caplog: pytest.LogCaptureFixture) -> None:
    partition.fill(60)
    before = contents(partition.log)
    assert len(partition.log.segments) > 3
    second = partition.log.segments.at(1)
    partition.log.abandon()
    data = bytearray(Path(second.log_path).read_bytes())
    data[-10] ^= 1
    Path(second.log_path).write_bytes(data)
    log = partition.open(clean=False)
    assert contents(log) == before[: log.log_end_offset]
    assert len(log.segments) == 2
    assert "fails its CRC" in caplog.text
    assert "deleting" in caplog.text


def test_only_segments_from_the_recovery_point_on_are_read(tmp_path: Path) -> None:
    partition = Partition(tmp_path, CONFIG)
    partition.fill(60)
    base = partition.log.segments.at(2).base_offset
    sizes = [segment.size_bytes for segment in partition.log.segments]
    partition.log.abandon()
    read: list[tuple[int, int]] = []
    open_log(
        str(partition.directory),
        config=CONFIG,
        env=LogEnvironment(),
        clean=False,
        recovery_point=base + 3,
        progress=lambda size, cut: read.append((size, cut)),
    )
    assert read == [(size, 0) for size in sizes[2:]]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(where=st.floats(0, 0.999999), bit=st.integers(0, 7), data=st.binary(max_size=80), kind=st.sampled_from("fgz"))
def test_flipped_bits_and_garbage_never_become_records(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int, data: bytes, kind: str
) -> None:
    """Flip a byte anywhere in any log file: the records after recovery are a prefix of the written ones."""
    partition = Partition(tmp_path_factory.mktemp("flip"), CONFIG)
    partition.fill(25, epoch=2)
    before = contents(partition.log)
    partition.log.abandon()
    files = sorted(partition.directory.glob("*.log"))
    path = files[int(where * len(files))]
    content = bytearray(path.read_bytes())
    at = int((where * len(files) % 1) * len(content))
    if kind == "f":
        content[at] ^= 1 << bit
    elif kind == "g":
        content[at : at + len(data)] = data
    else:
        content[at:] = bytes(len(content) - at)
    path.write_bytes(content)
    log = partition.open(clean=False)
    found = contents(log)
    # Not the offsets: those, and the leader epoch, lie outside the CRC.
    assert [entry.value for entry in found] == [entry.value for entry in before[: len(found)]]
    partition.append(b"goes on", epoch=2**31 - 1)


def test_recovery_writes_the_same_indexes_and_epochs_as_a_clean_stop(partition: Partition) -> None:
    partition.fill(60, epoch=4)
    partition.log.close()
    clean = index_bytes(partition)
    for path in partition.directory.glob("*index"):
        path.unlink()
    (partition.directory / "leader-epoch-checkpoint").unlink()
    log = partition.open(clean=False)
    assert [tuple(entry) for entry in log.epochs.entries] == [(4, 0)]
    log.close()
    assert index_bytes(partition) == clean


@pytest.mark.parametrize("clean", [True, False])
def test_missing_indexes_are_rebuilt(partition: Partition, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    partition.fill(60)
    before = contents(partition.log)
    partition.log.close()
    expected = index_bytes(partition)
    for path in [*partition.directory.glob("*.index"), *partition.directory.glob("*1*.timeindex")]:
        path.unlink()
    log = partition.open(clean=clean, recovery_point=1000)
    assert contents(log) == before
    assert "rebuilding the indexes" in caplog.text
    log.close()
    assert index_bytes(partition) == expected


def test_leftovers_are_settled(partition: Partition, caplog: pytest.LogCaptureFixture) -> None:
    partition.fill(10)
    before = contents(partition.log)
    partition.log.close()
    for name in (
        "00000000000000000777.log.deleted",
        "00000000000000000777.index",
        "00000000000000000777.txnindex",
        "00000000000000000005.snapshot.tmp",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.cleaned",
        "00000000000000000004.log.swap",
        "leader-epoch-checkpoint.tmp",
        "something else entirely",
    ):
        (partition.directory / name).write_bytes(b"left over")
    assert contents(partition.open(clean=True)) == before
    left = [name for name in partition.files() if "777" in name or name.endswith((".tmp", ".cleaned", ".swap"))]
    assert left == []
    assert "something else entirely" in partition.files()


@pytest.mark.parametrize("left", [".log.cleaned", ".timeindex.swap"])
def test_indexes_of_a_segment_that_was_being_replaced_are_built_again(partition: Partition, left: str) -> None:
    """Renames that were not synced may survive a power cut in any order: the log is old, its indexes are the new one's."""
    partition.transact(1, commit=False)
    partition.fill(60)
    partition.log.flusher.flush()
    before, end = contents(partition.log), partition.log.log_end_offset
    aborted = partition.log.aborted_transactions(0, end)
    assert aborted
    partition.log.close()
    expected = index_bytes(partition)
    stem = str(partition.directory / f"{0:020d}")
    entries = struct.unpack(f">{len(expected[Path(stem + '.index').name]) // 4}I", Path(stem + ".index").read_bytes())
    Path(stem + ".index").write_bytes(struct.pack(f">{len(entries)}I", *(max(0, each - 7) for each in entries)))
    Path(stem + ".txnindex").unlink()
    Path(stem + left).write_bytes(b"")
    log = partition.open(clean=False, recovery_point=end)
    assert contents(log) == before
    assert log.aborted_transactions(0, end) == aborted
    log.close()
    assert index_bytes(partition) == expected


def test_a_finished_swap_takes_the_old_index_of_aborted_transactions_with_it(partition: Partition) -> None:
    partition.fill(10)
    partition.log.close()
    stem = str(partition.directory / f"{0:020d}")
    for kind in (".log", ".index", ".timeindex"):
        Path(stem + kind + ".swap").write_bytes(Path(stem + kind).read_bytes())
    Path(stem + ".txnindex").write_bytes(b"of the old segment")
    log = partition.open(clean=True)
    assert len(contents(log)) == 20
    assert not Path(stem + ".txnindex").exists()


def test_an_empty_swap_replaces_the_segment_of_its_name_alone(tmp_path: Path) -> None:
    """Compaction left nothing of the first segment; the crash came before the old one was renamed."""
    partition = Partition(tmp_path, replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT})))
    partition.fill(60)
    before = contents(partition.log)
    second = partition.log.segments.at(1).base_offset
    partition.log.close()
    for kind in (".log", ".index", ".timeindex"):
        (partition.directory / f"{0:020d}{kind}.swap").touch()
    assert contents(partition.open(clean=True)) == before[second:]


def test_deleted_segment_that_a_power_cut_brought_back_in_pieces_goes_again(partition: Partition) -> None:
    """Seed 60261: its deletion was not synced, nor was it ever; the new log start and recovery point were."""
    partition.fill(60)
    second = partition.log.segments.at(1).base_offset
    end, expected = partition.log.log_end_offset, contents(partition.log)[second:]
    partition.log.flusher.flush()
    partition.log.abandon()
    first_log(partition).write_bytes(bytes(2000))
    (partition.directory / f"{0:020d}.index").unlink()
    log = partition.open(clean=False, recovery_point=end, log_start_offset=second)
    assert contents(log) == expected
    assert log.segments.first.base_offset == second
    assert not first_log(partition).exists()


def test_segments_in_doubt_that_leave_a_hole_are_dropped(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    """A tail lost between two batches: only the next segment's name tells that something is missing."""
    partition.fill(60)
    before = contents(partition.log)
    first = partition.log.segments.first
    last_batch = list(first.headers(0))[-1]
    partition.log.abandon()
    with first_log(partition).open("r+b") as file:
        file.truncate(last_batch[0])
    log = partition.open(clean=False, recovery_point=0)
    assert contents(log) == before[: last_batch[1].base_offset]
    assert len(log.segments) == 1


def test_holes_stay_if_the_recovery_point_is_unknown(partition: Partition) -> None:
    """A lost checkpoint must not cost a log that was compacted once."""
    for base in (0, 50, 100):
        partition.log.append_as_follower(batch([b"x" * 1200], base_offset=base, leader_epoch=0), now_ms=NOW_MS)
    before = contents(partition.log)
    partition.log.abandon()
    assert contents(partition.open(clean=False)) == before


def test_a_compacted_log_may_have_holes(tmp_path: Path) -> None:
    partition = Partition(tmp_path, replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT})))
    for base in (0, 50, 100):
        partition.log.append_as_follower(
            batch([b"x" * 1200], base_offset=base, leader_epoch=0, key=b"k"), now_ms=NOW_MS
        )
    assert len(partition.log.segments) == 3
    before = contents(partition.log)
    assert contents(partition.crash()) == before
    assert partition.log.log_end_offset == 101


def test_unreadable_epochs_are_read_from_the_records(partition: Partition, caplog: pytest.LogCaptureFixture) -> None:
    partition.fill(30, epoch=1)
    partition.fill(30, epoch=3)
    partition.log.close()
    (partition.directory / "leader-epoch-checkpoint").write_text("0\n7\nnonsense\n")
    log = partition.open(clean=True)
    assert [tuple(entry) for entry in log.epochs.entries] == [(1, 0), (3, 60)]
    assert "leader epochs" in caplog.text


@pytest.mark.parametrize("rolled", [False, True])
def test_an_epoch_whose_write_was_lost_is_read_from_the_records(partition: Partition, rolled: bool) -> None:
    partition.fill(5, epoch=1)
    partition.log.flusher.flush()
    kept = (partition.directory / "leader-epoch-checkpoint").read_bytes()
    partition.fill(30, epoch=2)
    partition.fill(5, epoch=4)
    if rolled:
        partition.log.roll(NOW_MS)
    partition.log.close()
    (partition.directory / "leader-epoch-checkpoint").write_bytes(kept)
    log = partition.open(clean=True)
    assert [tuple(entry) for entry in log.epochs.entries] == [(1, 0), (2, 10), (4, 70)]


def test_new_epochs_reach_the_file_with_a_flush_and_the_records_before(partition: Partition) -> None:
    partition.fill(5, epoch=1)
    partition.log.flusher.flush()
    file = partition.directory / "leader-epoch-checkpoint"
    before = file.read_text()
    partition.log.assign_epoch_start(3)
    partition.fill(5, epoch=3)
    partition.log.assign_epoch_start(4)
    assert file.read_text() == before
    partition.log.abandon()  # killed: the page cache stays
    log = partition.open(clean=False)
    # Epoch 4 has no record, so no other replica can know it either.
    assert [tuple(entry) for entry in log.epochs.entries] == [(1, 0), (3, 10)]
    log.assign_epoch_start(5)
    log.flusher.flush()
    assert file.read_text() == "0\n3\n1 0\n3 10\n5 20\n"


def test_roll_writes_the_epochs_of_the_segment_that_it_ends(partition: Partition) -> None:
    partition.fill(5, epoch=2)
    partition.log.roll(NOW_MS)
    assert (partition.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n2 0\n"


def test_epochs_beyond_the_log_are_forgotten(partition: Partition) -> None:
    partition.fill(3, epoch=1)
    partition.log.assign_epoch_start(9, 6)
    partition.log.close()
    assert [tuple(entry) for entry in partition.open(clean=True).epochs.entries] == [(1, 0)]


def test_a_corrupt_snapshot_is_replaced_by_an_older_one_and_replay(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    for sequence in range(40):
        partition.log.append_as_leader(
            batch([b"x" * 50], producer_id=8, producer_epoch=0, sequence=sequence), leader_epoch=0, now_ms=NOW_MS
        )
    partition.log.close()
    newest = max(partition.directory.glob("*.snapshot"))
    newest.write_bytes(b"\x00\x01garbage that is long enough")
    log = partition.open(clean=True)
    entry = log.producers.entry(8)
    assert entry is not None
    assert entry.last_sequence == 39
    assert "deleting an unreadable producer snapshot" in caplog.text


def test_a_log_start_above_everything_empties_the_log(partition: Partition, caplog: pytest.LogCaptureFixture) -> None:
    partition.fill(10)
    partition.log.close()
    log = partition.open(clean=True, log_start_offset=500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert partition.append(b"x") == 500
    assert "files were removed" in caplog.text


def test_log_whose_files_are_all_gone_starts_at_its_checkpoint(partition: Partition) -> None:
    partition.fill(10)
    partition.log.close()
    for path in partition.directory.iterdir():
        path.unlink()
    log = partition.open(clean=False, log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def legacy_message(magic: int, payload: bytes) -> bytes:
    """As Kafka before 0.11 wrote them."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW_MS) if magic else b"")
    body += struct.pack(">ii", -1, len(payload)) + payload
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("payload", [b"x", b"x" * 200])
@pytest.mark.parametrize("clean", [True, False])
def test_old_message_formats_are_refused_and_not_cut(
    partition: Partition, magic: int, payload: bytes, clean: bool
) -> None:
    partition.log.close()
    data = legacy_message(magic, payload)
    first_log(partition).write_bytes(data)
    with pytest.raises(UnsupportedMessageFormat, match=f"format v{magic}"):
        partition.open(clean=clean)
    assert first_log(partition).read_bytes() == data


def test_zeros_are_not_taken_for_an_old_format(partition: Partition) -> None:
    partition.fill(2)
    before = contents(partition.log)
    partition.log.abandon()
    with first_log(partition).open("ab") as file:
        file.write(bytes(5000))
    assert contents(partition.open(clean=False)) == before
    partition.log.close()
    with first_log(partition).open("ab") as file:
        file.write(bytes(50))
    assert contents(partition.open(clean=True)) == before


def test_a_batch_larger_than_the_read_buffer_is_recovered(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(segment_bytes=1 << 26, max_message_bytes=1 << 26))
    partition.append(b"small")
    partition.append(b"x" * (9 << 20))
    partition.append(b"after")
    assert [len(entry.value or b"") for entry in contents(partition.crash())] == [5, 9 << 20, 5]


def test_an_unreadable_directory_is_an_os_error(tmp_path: Path) -> None:
    class Broken(Disk):
        __slots__ = ()

        def listdir(self, path: str) -> list[str]:
            raise OSError(5, "Input/output error")

    (tmp_path / "topic-0").mkdir()
    with pytest.raises(OSError, match="Input/output error"):
        open_log(str(tmp_path / "topic-0"), config=CONFIG, env=LogEnvironment(disk=Broken()))


# -- transactions


def transactional(partition: Partition, producer_id: int, *values: bytes, sequence: int) -> int:
    data = batch(values, producer_id=producer_id, producer_epoch=0, sequence=sequence, transactional=True)
    return partition.log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS).first_offset


def end(partition: Partition, producer_id: int, *, commit: bool) -> int:
    marker = end_txn_marker(
        commit=commit, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=NOW_MS
    )
    return partition.log.append_as_leader(
        bytearray(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR
    ).first_offset


def keep(partition: Partition) -> None:
    """Nothing happens in between."""


@pytest.mark.parametrize("between", [keep, Partition.reopen, Partition.crash], ids=["live", "clean", "crash"])
def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(
    partition: Partition, between: Callable[[Partition], object]
) -> None:
    partition.append(b"plain")
    transactional(partition, 1, b"a", sequence=0)
    transactional(partition, 2, b"b", sequence=0)
    end(partition, 2, commit=True)
    between(partition)
    partition.commit()
    assert partition.log.last_stable_offset == 1
    end(partition, 1, commit=False)
    assert partition.log.last_stable_offset == 1
    partition.commit()
    assert partition.log.last_stable_offset == 5


@pytest.mark.parametrize("between", [keep, Partition.reopen, Partition.crash], ids=["live", "clean", "crash"])
def test_reads_across_segments_get_aborted_transactions(
    partition: Partition, between: Callable[[Partition], object]
) -> None:
    transactional(partition, 1, b"aborted", b"too", sequence=0)
    transactional(partition, 2, b"committed", sequence=0)
    partition.log.roll(NOW_MS)
    end(partition, 1, commit=False)
    end(partition, 2, commit=True)
    partition.log.roll(NOW_MS)
    transactional(partition, 1, b"again", sequence=2)
    end(partition, 1, commit=False)
    between(partition)
    aborted = partition.log.aborted_transactions(0, 7)
    assert [tuple(txn)[:3] for txn in aborted] == [(1, 0, 3), (1, 5, 6)]
    assert [tuple(txn)[:3] for txn in partition.log.aborted_transactions(0, 3)] == [(1, 0, 3)]
    assert [tuple(txn)[:3] for txn in partition.log.aborted_transactions(4, 7)] == [(1, 5, 6)]
    assert partition.log.aborted_transactions(4, 5) == []


def test_follower_knows_the_aborted_transactions_that_one_fetch_brings_together(
    partition: Partition, tmp_path: Path
) -> None:
    """The first marker comes with the beginnings of later transactions: a search must not stop at it."""
    for sequence in range(2):
        transactional(partition, 1, b"aborted", sequence=sequence)
        end(partition, 1, commit=False)
    transactional(partition, 2, b"open", sequence=0)
    transactional(partition, 1, b"aborted", sequence=2)
    end(partition, 1, commit=False)
    [file] = partition.directory.glob("*.log")
    (tmp_path / "follower").mkdir()
    follower = Partition(tmp_path / "follower")
    follower.log.append_as_follower(bytearray(file.read_bytes()), now_ms=NOW_MS)
    for start in range(7):
        for end_offset in range(start + 1, 8):
            expected = partition.log.aborted_transactions(start, end_offset)
            assert follower.log.aborted_transactions(start, end_offset) == expected, (start, end_offset)
    assert [tuple(txn)[:3] for txn in follower.log.aborted_transactions(2, 3)] == [(1, 2, 3)]


def test_a_damaged_index_of_aborted_transactions_is_rebuilt(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    for round_number in range(4):
        transactional(partition, 1, b"x", sequence=round_number)
        end(partition, 1, commit=False)
    expected = partition.log.aborted_transactions(0, 8)
    assert len(expected) == 4
    partition.log.close()
    path = partition.directory / f"{0:020d}.txnindex"
    path.write_bytes(path.read_bytes()[:-40] + b"\x07" * 40)
    assert partition.open(clean=True).aborted_transactions(0, 8) == expected
    assert "aborted transactions" in caplog.text


def damage_index_of_aborted(partition: Partition) -> None:
    path = partition.directory / f"{0:020d}.txnindex"
    path.write_bytes(path.read_bytes()[:-40] + b"\x07" * 40)


def damage_tail(partition: Partition) -> None:
    path = max(partition.directory.glob("*.log"))
    path.write_bytes(path.read_bytes() + b"\x07" * 100)


@pytest.mark.parametrize("damage", [damage_index_of_aborted, damage_tail])
def test_producers_of_a_log_that_was_closed_cleanly_survive_a_repair(
    partition: Partition, damage: Callable[[Partition], None]
) -> None:
    """A clean stop without a snapshot means that there was no producer. One whose snapshots the repair removed did not."""
    for round_number in range(2):
        transactional(partition, 1, b"x", sequence=round_number)
        end(partition, 1, commit=False)
    transactional(partition, 2, b"open", sequence=0)
    partition.log.close()
    damage(partition)
    log = partition.open(clean=True)
    partition.commit()
    assert log.last_stable_offset == 4
    retry = batch([b"open"], producer_id=2, producer_epoch=0, sequence=0, transactional=True)
    assert log.append_as_leader(retry, leader_epoch=0, now_ms=NOW_MS).duplicate


def test_first_flush_after_a_crash_syncs_the_directory(partition: Partition) -> None:
    """Until then a power cut may bring back a segment that the process before has deleted, among records that were flushed
    since. Storage seed 153."""
    partition.append(b"x")
    partition.log.roll(NOW_MS)
    partition.append(b"y")
    partition.log.flusher.flush()
    partition.log.abandon()
    log = partition.open(clean=False, recovery_point=1)
    partition.append(b"z")
    job = log.flusher.begin()
    assert job is not None and job.directory == log.directory
    job.run()
    log.flusher.finish(job)


class NotesOrder(Disk):
    """Which files were synced, and which were given their names."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def fsync_path(self, path: str) -> None:
        self.done.append(("sync", Path(path).name))

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.done.append(("rename", Path(source).name))


def test_records_of_a_killed_process_are_on_disk_before_they_count_where_flush_messages_wants_that(
    tmp_path: Path,
) -> None:
    """The page cache has them. Leader and followers would count on them, and the power may go before the next append."""
    disk = NotesOrder()
    partition = Partition(tmp_path, replace(CONFIG, flush_messages=1), disk=disk)
    partition.fill(30)
    partition.log.abandon()
    logs = {path.name for path in partition.directory.glob("*.log")}
    assert len(logs) > 1
    disk.done.clear()
    log = partition.open(clean=False, recovery_point=0)
    assert log.recovery_point == log.log_end_offset == 60
    assert logs <= {name for what, name in disk.done if what == "sync"}


def test_indexes_that_are_built_again_are_on_disk_before_they_get_their_names(tmp_path: Path) -> None:
    """Their segment is below the recovery point, so no flush syncs it. They were written over in place. A second power cut left
    the length of the old ones with entries of the new, and timestamps were not found. Storage seed 44287."""
    disk = NotesOrder()
    partition = Partition(tmp_path, disk=disk)
    for number in range(30):
        partition.append(b"%d" % number * 50)
    assert len(partition.log.segments) > 1
    partition.log.flusher.flush()
    first = f"{0:020}"
    partition.log.abandon()
    for suffix in (".index", ".timeindex"):
        with (partition.directory / f"{first}{suffix}").open("ab") as file:
            file.write(bytes(48))  # as the power leaves one that was not cut yet
    disk.done.clear()
    partition.open(clean=False, recovery_point=30)
    for suffix in (".index.tmp", ".timeindex.tmp"):
        name = first + suffix
        assert disk.done.index(("sync", name)) < disk.done.index(("rename", name))


@pytest.mark.parametrize("lost", [".snapshot", ".txnindex"])
@pytest.mark.parametrize("batch_number", [0, 1, 2])
def test_damage_where_producers_or_transactions_are_read_again_keeps_the_log_from_nothing_else(
    partition: Partition, lost: str, batch_number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The segment was flushed long ago. No log of the broker could be loaded: it did not start."""
    for round_number in range(20):
        transactional(partition, 1, b"x" * 50, sequence=round_number)
        end(partition, 1, commit=False)
    segments = partition.log.segments
    assert len(segments) > 1
    [position, *_] = [at for number, (at, _) in enumerate(segments.first.headers(0)) if number == batch_number]
    partition.log.flusher.flush()
    active = segments.active.base_offset
    partition.log.abandon()
    data = bytearray(first_log(partition).read_bytes())
    data[position + MAGIC_AT] = 7
    first_log(partition).write_bytes(data)
    for path in partition.directory.glob(f"*{lost}"):
        if lost == ".snapshot":
            path.unlink()
        else:
            path.write_bytes(b"\x07" * 34)
    log = partition.open(clean=False, recovery_point=active)
    assert log.log_end_offset == 40
    assert "some producers are unknown" in caplog.text or "the log is damaged" in caplog.text
    transactional(partition, 2, b"y", sequence=0)
    end(partition, 2, commit=False)
    assert [txn.producer_id for txn in log.aborted_transactions(40, 42)] == [2]


class NotesCuts(NotesOrder):
    """And which were deleted, and when the directory was synced and a file cut."""

    __slots__ = ()

    def unlink(self, path: str) -> bool:
        self.done.append(("unlink", Path(path).name))
        return super().unlink(path)

    def fsync_dir(self, path: str) -> None:
        self.done.append(("sync", "directory"))

    def truncate(self, fd: int, size_bytes: int) -> None:
        super().truncate(fd, size_bytes)
        self.done.append(("cut", Path(f"/proc/self/fd/{fd}").readlink().name))


def test_segments_after_a_damaged_one_are_gone_for_good_before_it_is_cut(tmp_path: Path) -> None:
    """A second power cut could bring it back, and leave the cut: in a compacted log the hole between them would count as the
    work of compaction, and the missing records would never be fetched."""
    disk = NotesCuts()
    partition = Partition(tmp_path, replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT})), disk=disk)
    partition.fill(20)
    first, second, *_ = partition.log.segments
    partition.log.abandon()
    path = Path(first.log_path)
    path.write_bytes(path.read_bytes()[:-10])
    disk.done.clear()
    log = partition.open(clean=False, recovery_point=0)
    assert len(log.segments) == 1
    gone = disk.done.index(("unlink", Path(second.log_path).name))
    assert gone < disk.done.index(("sync", "directory")) < disk.done.index(("cut", path.name))


def test_index_of_aborted_transactions_that_is_built_again_is_on_disk_before_it_gets_its_name(tmp_path: Path) -> None:
    """It was written over in place, and not synced. After a power cut it was empty, and looked as if nothing was aborted.
    Storage seed 248."""
    disk = NotesOrder()
    partition = Partition(tmp_path, disk=disk)
    partition.transact(1, commit=False)
    partition.fill(60)
    partition.log.flusher.flush()
    expected, end = partition.log.aborted_transactions(0, 2), partition.log.log_end_offset
    assert len(expected) == 1
    partition.log.abandon()
    damage_index_of_aborted(partition)
    disk.done.clear()
    log = partition.open(clean=False, recovery_point=end)
    assert log.aborted_transactions(0, 2) == expected
    name = f"{0:020d}.txnindex.tmp"
    assert disk.done.index(("sync", name)) < disk.done.index(("rename", name))


def test_damaged_tail_keeps_no_damaged_index_of_aborted_transactions_from_being_built_again(
    partition: Partition,
) -> None:
    """The broker did not start: the tail is looked at later. Storage seed 1728."""
    partition.transact(1, commit=False)
    expected = partition.log.aborted_transactions(0, 2)
    partition.log.close()
    damage_index_of_aborted(partition)
    damage_tail(partition)
    log = partition.open(clean=True)
    assert log.log_end_offset == 2
    assert log.aborted_transactions(0, 2) == expected


def test_deleted_segment_whose_log_alone_comes_back_gets_its_indexes_again(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that does not keep the order of names: a power cut undid the rename of the log, and no other one. Nothing
    said any longer which of its records were aborted. Storage seed 292."""
    partition.transact(1, commit=False)
    partition.fill(60)
    partition.log.flusher.flush()
    expected, end = partition.log.aborted_transactions(0, 2), partition.log.log_end_offset
    partition.log.abandon()
    stem = str(partition.directory / f"{0:020d}")
    for suffix in (".index", ".timeindex", ".txnindex"):
        Path(stem + suffix).rename(stem + suffix + ".deleted")
    log = partition.open(clean=False, recovery_point=end)
    assert log.aborted_transactions(0, 2) == expected
    assert not list(partition.directory.glob("*.deleted"))
    # Segments that a compaction replaced still exist for a while, with their logs: that proves nothing about the new ones.
    log.abandon()
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        Path(stem + suffix + ".deleted").write_bytes(b"")
    caplog.clear()
    assert partition.open(clean=False, recovery_point=end).aborted_transactions(0, 2) == expected
    assert "rebuilding" not in caplog.text


@pytest.mark.parametrize("is_killed", [False, True])
def test_deleted_segment_never_comes_back_without_what_was_aborted_in_it(is_killed: bool) -> None:
    """With the same file system. Renamed files were also unlinked by then, and nothing showed that there had been an index of
    aborted transactions. Storage seed 185."""
    for seed in range(60):
        machine = SimDisk(journaled=False)
        life = machine.life()
        partition = Partition(Path("/"), replace(CONFIG, file_delete_delay_ms=0), disk=life)
        partition.transact(1, commit=False)
        partition.fill(60)
        partition.commit()
        partition.log.flusher.flush()
        machine.write_back()
        expected, end = partition.log.aborted_transactions(0, 2), partition.log.log_end_offset
        partition.log.maybe_increment_log_start_offset(partition.log.segments.base_offsets[1])
        partition.log.delete_old_segments(NOW_MS)
        if is_killed:
            machine.process_died(life)
            partition.env.disk = machine.life()
            partition.open(clean=False, recovery_point=end)  # it unlinks what the process before had renamed
        else:
            partition.timers.advance_ms(1)
        machine.power_cut(Random(seed))
        partition.env.disk = machine.life()
        log = partition.open(clean=False, recovery_point=end)
        assert log.log_start_offset > 0 or log.aborted_transactions(0, 2) == expected


def test_truncation_into_a_transaction_opens_it_again(partition: Partition) -> None:
    transactional(partition, 1, b"a", sequence=0)
    end(partition, 1, commit=False)
    partition.commit()
    partition.log.truncate_to(1)
    assert partition.log.aborted_transactions(0, 2) == []
    assert partition.log.last_stable_offset == 0
    end(partition, 1, commit=True)
    partition.commit()
    assert partition.log.last_stable_offset == 2


def test_snapshot_of_records_that_may_not_have_survived_is_not_trusted(partition: Partition) -> None:
    """It is of a segment that is in doubt, and knows of a record that the power took."""
    for sequence in range(2):
        data = batch([b"x"], producer_id=1, producer_epoch=0, sequence=sequence)
        partition.log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
        partition.log.roll(NOW_MS)
    partition.log.abandon()
    first, second = (partition.directory / f"{offset:020d}.snapshot" for offset in (1, 2))
    first.write_bytes(second.read_bytes())
    for path in (*partition.directory.glob(f"{1:020d}.*x*"), *partition.directory.glob(f"{2:020d}.*")):
        path.unlink()
    for base in (1, 2):
        (partition.directory / f"{base:020d}.log").unlink(missing_ok=True)
    log = partition.open(clean=False, recovery_point=0)
    assert log.log_end_offset == 1
    again = batch([b"x"], producer_id=1, producer_epoch=0, sequence=1)
    assert not log.append_as_leader(again, leader_epoch=0, now_ms=NOW_MS).duplicate
