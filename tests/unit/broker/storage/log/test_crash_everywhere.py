"""A crash at every write, rename, unlink, truncation and fsync of each operation; and with any unsynced tail lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.broker.storage.replacement import create_cleaned, finish_cleaned
from barnabas.broker.storage.segment import Segment
from tests.unit.broker.storage.log.crash_support import Crash, CrashingDisk, Fuse, fuse_under
from tests.unit.broker.storage.log.log_support import (
    NOW_MS,
    Entry,
    Partition,
    batch,
    contents,
    epoch_at,
    replace_segments,
)

CONFIG = LogConfig(
    segment_bytes=1200, index_interval_bytes=100, segment_index_bytes=1200, file_delete_delay_ms=0, retention_ms=-1
)


class Scenario:
    """Prepares a log, does something to it, and says what may be found after a crash."""

    config = CONFIG

    def prepare(self, partition: Partition) -> None:
        partition.fill(30)
        partition.commit()

    def act(self, partition: Partition) -> None:
        raise NotImplementedError

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        raise NotImplementedError


class RollWithAppend(Scenario):
    """An append that rolls, then more appends, by a producer that has a snapshot to write."""

    def act(self, partition: Partition) -> None:
        for number in range(6):
            partition.log.append_as_leader(
                batch([b"new%d" % number * 20], producer_id=9, producer_epoch=0, sequence=number),
                leader_epoch=1,
                now_ms=NOW_MS,
            )
        partition.log.roll(NOW_MS)

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        assert found[: len(before)] == before
        assert [entry.value for entry in found[len(before) :]] == [
            b"new%d" % number * 20 for number in range(len(found) - len(before))
        ]


class Truncation(Scenario):
    def act(self, partition: Partition) -> None:
        partition.log.truncate_to(22)

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        assert found == before[: len(found)]
        assert len(found) >= 22


class TruncationOfCompacted(Truncation):
    """Where holes are allowed, only the order of the deletions keeps a crash from leaving one."""

    config = replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT}))


class Restart(Scenario):
    def act(self, partition: Partition) -> None:
        partition.log.truncate_fully_and_start_at(1000)

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        assert found == before[: len(found)]


class Retention(Scenario):
    config = LogConfig(
        segment_bytes=1200,
        index_interval_bytes=100,
        segment_index_bytes=1200,
        file_delete_delay_ms=0,
        retention_bytes=1500,
    )

    def act(self, partition: Partition) -> None:
        assert partition.log.delete_old_segments(NOW_MS) > 1

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        assert found == before[len(before) - len(found) :]
        assert found[-1] == before[-1]


class RetentionOfAll(Scenario):
    """Every record is too old: the active segment goes too, and a new one comes first."""

    config = LogConfig(
        segment_bytes=1200,
        index_interval_bytes=100,
        segment_index_bytes=1200,
        file_delete_delay_ms=0,
        retention_ms=1000,
    )

    def act(self, partition: Partition) -> None:
        partition.log.delete_old_segments(NOW_MS + 100_000)

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        assert found == before[len(before) - len(found) :]


class Replacement(Scenario):
    """Compaction keeps every other batch of the inactive segments, and merges two into one."""

    config = replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT}))

    def prepare(self, partition: Partition) -> None:
        super().prepare(partition)
        self.kept: set[int] = set()

    def act(self, partition: Partition) -> None:
        log = partition.log
        inactive = list(log.segments)[:-1]
        cleaned = [self._clean(partition, inactive[:2]), self._clean(partition, inactive[2:])]
        replace_segments(log, cleaned, inactive)

    def _clean(self, partition: Partition, group: list[Segment]) -> Segment:
        return self._copy(partition, group, lambda number: number % 2 == 0)

    def _copy(
        self, partition: Partition, group: list[Segment], wanted: Callable[[int], bool], base_offset: int | None = None
    ) -> Segment:
        disk = partition.env.disk
        new = create_cleaned(
            str(partition.directory),
            group[0].base_offset if base_offset is None else base_offset,
            disk=disk,
            config=partition.config,
            now_ms=NOW_MS,
        )
        for segment in group:
            for number, (position, header) in enumerate(segment.headers(0)):
                if wanted(number):
                    new.append(
                        segment.batch_bytes(position, header.size_bytes),
                        first_offset=header.base_offset,
                        last_offset=header.last_offset,
                        max_timestamp=header.max_timestamp,
                        offset_of_max=header.last_offset,
                    )
                    self.kept.update((header.base_offset, header.last_offset))
        finish_cleaned(new, disk)
        return new

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        """Nothing that compaction keeps is lost, nothing is there twice, and all are old records."""
        offsets = [entry.offset for entry in found]
        assert offsets == sorted(set(offsets))
        assert set(found) <= set(before)
        assert found[-1] == before[-1]
        assert self.kept <= set(offsets)
        if step == "done":
            assert len(found) < len(before)


class Split(Replacement):
    """One segment becomes two that hold the same records: half of them must never be taken for all."""

    def act(self, partition: Partition) -> None:
        old = partition.log.segments.at(1)
        batches = [header for _, header in old.headers(0)]
        half = len(batches) // 2
        lower = self._copy(partition, [old], lambda number: number < half)
        upper = self._copy(partition, [old], lambda number: number >= half, batches[half].base_offset)
        replace_segments(partition.log, [lower, upper], [old])

    def check(self, before: list[Entry], found: list[Entry], step: str) -> None:
        assert found == before


SCENARIOS: list[type[Scenario]] = [
    RollWithAppend,
    Truncation,
    TruncationOfCompacted,
    Restart,
    Retention,
    RetentionOfAll,
    Replacement,
    Split,
]


def run_to(root: Path, scenario: Scenario, fuse: Fuse, crash_at: int | None, torn_bytes: int) -> str:
    """Do it until step `crash_at`, crash, recover, check; the step that was not taken, or "done"."""
    disk = CrashingDisk(fuse)
    partition = Partition(root, scenario.config, disk=disk)
    scenario.prepare(partition)
    before = contents(partition.log)
    recovery_point = partition.log.recovery_point
    start = partition.log.log_start_offset
    disk.torn_bytes = torn_bytes
    fuse.arm(crash_at)
    try:
        scenario.act(partition)
        partition.timers.advance_ms(1)
        step = "done"
    except Crash as crash:
        step = str(crash)
    fuse.disarm()
    partition.log.abandon()
    # The checkpoint has the former values: the crash came before it was written.
    recovered = partition.open(clean=False, recovery_point=min(recovery_point, 20), log_start_offset=start)
    found = contents(recovered)
    scenario.check(before, found, step)
    check_usable(partition, found)
    assert not partition.faults
    assert not [name for name in partition.files() if name.endswith((".swap", ".cleaned", ".tmp"))]
    return step


def check_usable(partition: Partition, found: list[Entry]) -> None:
    """Check that the recovered log takes appends, survives a clean stop, and has epochs that agree with its records."""
    log = partition.log
    latest = log.latest_epoch or 0
    for segment in log.segments:
        assert Path(segment.log_path).stat().st_size == segment.size_bytes
    for entry in found:
        assert epoch_at(log, entry.offset) == entry.epoch
    partition.append(b"after", epoch=latest)
    again = contents(partition.reopen())
    assert again[:-1] == found
    assert again[-1].value == b"after"
    partition.log.abandon()


#: How much of the interrupted write arrives matters where there are writes; a header has 61 bytes.
CASES = [(make, 0) for make in SCENARIOS] + [(RollWithAppend, 1), (RollWithAppend, 61), (RollWithAppend, 100)]


@pytest.mark.parametrize(("make", "torn_bytes"), CASES, ids=[f"{make.__name__}-{torn}" for make, torn in CASES])
def test_a_crash_at_any_step_leaves_a_correct_log(tmp_path: Path, make: type[Scenario], torn_bytes: int) -> None:
    with fuse_under(tmp_path) as fuse:
        taken = []
        for crash_at in range(1000):
            root = tmp_path / str(crash_at)
            root.mkdir()
            step = run_to(root, make(), fuse, crash_at, torn_bytes)
            taken.append(step)
            if step == "done":
                break
    assert taken[-1] == "done"
    # The fuse saw real work: writes or renames, not an empty run.
    assert len(taken) > 5


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    steps=st.lists(st.sampled_from(["append", "append", "append", "flush", "roll"]), min_size=1, max_size=25),
    cut=st.floats(0, 1),
    zeroed=st.booleans(),
)
@example(steps=["append", "roll", "append"], cut=0.0, zeroed=False)
@example(steps=["append", "append", "roll", "append", "append"], cut=0.5, zeroed=False)
def test_any_unsynced_tail_may_be_torn_or_zeroed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], cut: float, zeroed: bool
) -> None:
    root = tmp_path_factory.mktemp("tail")
    disk = CrashingDisk(Fuse(root))
    partition = Partition(root, CONFIG, disk=disk, manual_threads=True)
    for number, step in enumerate(steps):
        if step == "append":
            partition.append(b"value-%d" % number, b"." * 30, epoch=number // 8)
        elif step == "flush":
            partition.log.flusher.flush()
        else:
            partition.log.roll(NOW_MS)
    before = contents(partition.log)
    point = partition.log.recovery_point
    partition.log.abandon()
    for path in sorted(partition.directory.glob("*.log")):
        size = path.stat().st_size
        safe = disk.synced.get(str(path), 0)
        keep = safe + int((size - safe) * cut)
        with path.open("r+b") as file:
            file.truncate(keep)
            if zeroed:
                file.truncate(size)
    log = partition.open(clean=False, recovery_point=point)
    found = contents(log)
    assert found == before[: len(found)]
    assert log.log_end_offset >= point
    assert {entry.offset for entry in before if entry.offset < point} <= {entry.offset for entry in found}
    check_usable(partition, found)
