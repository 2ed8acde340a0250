"""A crash at every write, creation, rename, unlink and fsync of a cleaning: nothing that must stay is lost, nothing doubled.

After recovery the cleaning is done again, and comes to what it would have come to.
"""

from pathlib import Path

import pytest

from barnabas.broker.storage.cleaner.job import GroupCleaned, Report
from barnabas.wire.records import Record
from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, DELETE_RETENTION_MS, SETTINGS, CompactedLog
from tests.unit.broker.storage.log.crash_support import Crash, CrashingDisk, Fuse, fuse_under

pytestmark = pytest.mark.usefixtures("engine")


class SyncCheckingLog(CompactedLog):
    """A report may only name files whose every byte a power cut would leave."""

    def take(self, report: Report) -> None:
        if isinstance(report, GroupCleaned):
            disk = self.env.disk
            assert isinstance(disk, CrashingDisk)
            path = f"{self.directory}/{report.base_offset:020d}.log.cleaned"
            assert disk.synced[path] == Path(path).stat().st_size
        super().take(report)


def prepare(root: Path, fuse: Fuse) -> CompactedLog:
    """A pass behind it, and enough for two groups; transactions, tombstones, an idempotent producer."""
    log = SyncCheckingLog(root, CONFIG, disk=CrashingDisk(fuse))
    for number in range(20):
        log.put((b"k%d" % (number % 9), b"%d" % number * 20), producer=(5, 0, number))
        if number % 4 == 1:
            log.put((b"k1", None), (b"t%d" % number, b"x"), producer=(6, 0, number // 4 * 2), transactional=True)
            log.end_txn(6, 0, commit=number % 8 == 1)
        if number == 12:
            log.roll()
            log.clean()
            log.clock.advance_ms(DELETE_RETENTION_MS)
    log.roll()
    log.put((b"active", b"1"))
    log.log.flusher.flush()
    return log


def key_view(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


def test_a_crash_at_any_step_of_a_cleaning_loses_nothing(tmp_path: Path) -> None:
    with fuse_under(tmp_path) as fuse:
        (tmp_path / "whole").mkdir()
        whole = prepare(tmp_path / "whole", fuse)
        whole.clean()
        expected = whole.records()
        taken: list[str] = []
        while not taken or taken[-1] != "done":
            taken.append(crash_once(tmp_path / str(len(taken)), fuse, len(taken), 0, expected))
            assert len(taken) < 500
        for number, step in enumerate(taken):
            if step == "write":
                crash_once(tmp_path / f"torn-{number}", fuse, number, 70, expected)
    assert {step.split()[0] for step in taken} >= {"create", "write", "fsync", "rename", "remove"}


def crash_once(root: Path, fuse: Fuse, crash_at: int, torn_bytes: int, expected: list[Record]) -> str:
    root.mkdir()
    log = prepare(root, fuse)
    disk = log.env.disk
    assert isinstance(disk, CrashingDisk)
    before = log.records()
    checkpoint = log.checkpoint
    disk.torn_bytes = torn_bytes
    fuse.arm(crash_at)
    try:
        log.clean()
        log.timers.advance_ms(1)
        step = "done"
    except Crash as crash:
        step = str(crash)
        log.checkpoint = checkpoint  # it would have been written after all that
    fuse.disarm()
    log.crash()
    log.commit()
    found = log.records()
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert {record.offset for record in expected} <= set(offsets)
    assert all(record in before for record in found)
    assert key_view(found) | key_view(expected) == key_view(found), "the last value of a key is what it was"
    assert not [name for name in log.files() if name.endswith((".swap", ".cleaned", ".deleted"))]
    log.clean(SETTINGS)
    assert log.records() == expected
    assert not log.faults
    log.log.close()
    return step
