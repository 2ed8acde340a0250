"""The driver: which log it picks, how it handles reports, and changes of a log under a worker."""

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.derived import derive
from barnabas.base.config.log_config import CLEANUP_COMPACT, CLEANUP_DELETE, LogConfig
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import read_offsets
from barnabas.broker.storage.cleaner.cleaner import Cleaner
from barnabas.broker.storage.cleaner.job import Died, Failed, Finished, GroupCleaned, Report
from barnabas.broker.storage.cleaner.settings import CleanerSettings
from barnabas.broker.storage.cleaner.worker import run_job
from barnabas.broker.storage.log import Log
from barnabas.wire.record_batch import MAGIC_AT
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, InlineWorker
from tests.unit.broker.storage.manager.manager_support import NOW_MS, Broker, tp, values

BACKOFF_MS = 1000
SETTINGS = CleanerSettings(backoff_ms=BACKOFF_MS, io_buffer_size=4096)


class Rig:
    """A manager, a cleaner, and workers that the test runs by hand."""

    def __init__(self, *roots: Path, settings: CleanerSettings = SETTINGS) -> None:
        self.configs: dict[str, LogConfig] = {}
        self.broker = Broker(*roots, config_of=lambda topic: self.configs.get(topic, CONFIG))
        self.manager = self.broker.manager
        self.workers: list[InlineWorker] = []
        self.cleaner = Cleaner(self.manager, self.manager._env, settings, self.new_worker)
        self.cleaner.start()

    def new_worker(self) -> InlineWorker:
        self.workers.append(InlineWorker())
        return self.workers[-1]

    @property
    def worker(self) -> InlineWorker:
        return self.workers[-1]

    def log(self, topic: str = "t") -> Log:
        return self.manager.get_or_create(tp(topic), topic_id=None)

    def fill(self, topic: str = "t", *, keys: int = 3, rounds: int = 4) -> Log:
        """`rounds` inactive segments with the same keys."""
        log = self.log(topic)
        for number in range(rounds):
            self.put(log, *[b"k%d" % key for key in range(keys)], value=b"%d" % number)
            log.roll(NOW_MS)
            self.broker.run()
        return log

    def put(self, log: Log, *keys: bytes, value: bytes) -> None:
        builder = BatchBuilder()
        for key in keys:
            builder.append(key, value, timestamp=self.broker.clock.now_ms())
        log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=self.broker.clock.now_ms())
        log.update_high_watermark(log.log_end_offset)

    def tick(self) -> None:
        """Run the work for threads, then a survey of the cleaner."""
        self.broker.run()
        self.broker.run(BACKOFF_MS)

    def work(self, *reports: Report) -> None:
        """The worker's whole job, or what it reports of it, and what the cleaner asks of threads then."""
        if not reports:
            self.worker.run()
        for report in reports:
            self.worker.tell(report)
        self.broker.run()

    def checkpoint(self, root: Path) -> dict[TopicPartition, int]:
        self.broker.run()
        return dict(read_offsets(str(root / names.CLEANER_OFFSET_CHECKPOINT)))

    def leftovers(self, log: Log) -> list[str]:
        return [path.name for path in Path(log.directory).iterdir() if path.name.endswith((".cleaned", ".swap"))]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.broker.kill()


def test_a_dirty_log_is_cleaned_swapped_and_checkpointed(rig: Rig, tmp_path: Path) -> None:
    log = rig.fill()
    rig.tick()
    assert rig.cleaner.is_cleaning(tp("t"))
    assert rig.cleaner.metrics.max_dirty_percent == 100
    rig.work()
    assert not rig.cleaner.is_cleaning(tp("t"))
    assert values(log) == [b"3", b"3", b"3"]
    assert rig.checkpoint(tmp_path) == {tp("t"): 12}
    assert rig.leftovers(log) == []
    metrics = rig.cleaner.metrics
    assert 20 < metrics.cleaner_recopy_percent < 30
    assert metrics.uncleanable_partitions_count == {str(tmp_path): 0}


def test_nothing_is_done_for_logs_that_are_clean_or_not_compacted(rig: Rig) -> None:
    rig.configs["plain"] = LogConfig()
    rig.fill("plain")
    rig.fill("t", rounds=1)
    rig.tick()
    rig.work()
    for _ in range(3):
        rig.tick()
    assert rig.workers[0].job is None and len(rig.workers) == 1


def test_the_filthiest_comes_first_then_the_next_without_a_pause(rig: Rig) -> None:
    rig.fill("a", rounds=1)
    rig.tick()
    rig.work()
    rig.put(rig.log("a"), b"k0", value=b"new")
    rig.log("a").roll(NOW_MS)
    rig.fill("b")
    rig.tick()
    job = rig.worker.job
    assert job is not None and job.partition == "b-0"
    rig.work()
    rig.broker.run(0)
    job = rig.worker.job
    assert job is not None and job.partition == "a-0"


def test_two_threads_clean_two_logs_and_share_the_buffers(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settings=replace(SETTINGS, threads=2, io_max_bytes_per_second=1e9))
    for topic in "abc":
        rig.fill(topic)
    rig.tick()
    assert len(rig.workers) == 2
    jobs = [worker.job for worker in rig.workers]
    assert all(
        job is not None and job.dedupe_buffer_bytes == int(SETTINGS.dedupe_buffer_size * 0.9) // 2 for job in jobs
    )
    assert all(job is not None and job.io_bytes_per_second == 5e8 for job in jobs)
    for _ in range(3):
        for worker in rig.workers:
            if worker.job is not None:
                worker.run()
        rig.broker.run(1)
    assert [values(rig.log(topic)) for topic in "abc"] == [[b"3"] * 3] * 3
    assert len(rig.workers) == 2
    rig.broker.kill()


def test_a_disabled_cleaner_does_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settings=replace(SETTINGS, enable=False))
    rig.fill()
    rig.tick()
    rig.cleaner.survey()
    assert rig.workers == []
    asyncio.run(rig.cleaner.stop())
    rig.broker.kill()


def test_a_restart_goes_on_from_the_checkpoint(rig: Rig, tmp_path: Path) -> None:
    rig.fill()
    rig.tick()
    rig.work()
    rig.broker.run()
    rig.manager.shutdown()
    again = Rig(tmp_path)
    assert again.cleaner.checkpoints.get(tp("t")) == 12
    again.tick()
    assert again.workers == []
    again.broker.kill()


def test_a_truncated_log_keeps_its_segments_and_forgets_its_checkpoint(rig: Rig, tmp_path: Path) -> None:
    log = rig.fill()
    rig.tick()
    rig.work()
    rig.put(log, b"k0", value=b"new")
    log.roll(NOW_MS)
    rig.tick()
    reports = run_aside(rig.worker)
    assert rig.leftovers(log)
    log.truncate_to(10)
    assert rig.worker.killed == 1
    assert rig.checkpoint(tmp_path) == {tp("t"): 10}
    for report in reports:
        rig.work(report)
    rig.broker.run()
    assert not rig.cleaner.is_cleaning(tp("t"))
    assert rig.leftovers(log) == []
    assert log.log_end_offset == 10
    assert rig.checkpoint(tmp_path) == {tp("t"): 10}


def run_aside(worker: InlineWorker) -> list[Report]:
    """Run the job, but deliver no report yet."""
    assert worker.job is not None
    reports: list[Report] = []
    run_job(worker.job, reports.append)
    return reports


def test_a_log_cut_off_above_its_checkpoint_keeps_it(rig: Rig, tmp_path: Path) -> None:
    log = rig.fill()
    rig.tick()
    rig.work()
    rig.put(log, b"a", b"b", value=b"new")
    rig.put(log, b"a", b"b", value=b"new")
    log.truncate_to(14)
    assert rig.checkpoint(tmp_path) == {tp("t"): 12}


def test_a_deleted_log_ends_its_cleaning_and_its_checkpoint(rig: Rig, tmp_path: Path) -> None:
    rig.fill("gone")
    rig.fill("kept")
    for _ in range(2):
        rig.tick()
        rig.work()
    assert set(rig.checkpoint(tmp_path)) == {tp("gone"), tp("kept")}
    rig.put(rig.log("gone"), b"k0", value=b"new")
    rig.log("gone").roll(NOW_MS)
    rig.tick()
    reports = run_aside(rig.worker)
    rig.manager.delete(tp("gone"))
    assert rig.worker.killed == 1
    assert rig.checkpoint(tmp_path) == {tp("kept"): 12}
    made_again = rig.fill("gone", rounds=2)
    for report in reports:
        rig.work(report)
    rig.broker.run()
    assert values(made_again) == [b"0"] * 3 + [b"1"] * 3
    rig.tick()
    job = rig.worker.job
    assert job is not None and job.first_dirty_offset == 0


def test_a_swap_is_refused_where_a_segment_has_left_the_log(rig: Rig) -> None:
    log = rig.fill()
    rig.tick()
    reports = run_aside(rig.worker)
    log.update_config(replace(CONFIG, cleanup_policy=frozenset({CLEANUP_DELETE}), retention_bytes=0))
    log.delete_old_segments(NOW_MS)
    for report in reports:
        rig.work(report)
    rig.broker.run()
    assert rig.worker.killed == 1
    assert rig.leftovers(log) == []
    assert len(log.segments) == 1


def test_log_that_is_no_longer_compacted_has_its_retention_after_its_cleaning(rig: Rig) -> None:
    log = rig.fill()
    rig.tick()
    no_longer = replace(CONFIG, cleanup_policy=frozenset({CLEANUP_DELETE}), retention_bytes=0)
    rig.configs["t"] = no_longer
    rig.manager.topic_settings_changed("t", no_longer)
    rig.broker.run(rig.manager.settings.initial_task_delay_ms)
    rig.work()
    assert rig.broker.failed == [], "the worker missed a segment, and the disk was blamed"
    assert not rig.cleaner.is_cleaning(tp("t"))
    assert values(log) == [b"3"] * 3
    rig.broker.run(rig.manager.settings.retention_check_interval_ms)
    assert values(log) == []


def test_compact_and_delete_has_its_retention_between_cleanings(rig: Rig) -> None:
    rig.configs["t"] = replace(CONFIG, cleanup_policy=frozenset({CLEANUP_COMPACT, CLEANUP_DELETE}), retention_ms=5000)
    log = rig.fill()
    rig.tick()
    rig.work()
    assert values(log) == [b"3"] * 3
    rig.broker.run(5000 + BACKOFF_MS)
    assert values(log) == []
    assert log.log_start_offset == 12


def test_a_moving_log_is_not_cleaned_and_its_checkpoint_moves_with_it(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    rig = Rig(first, second)
    log = rig.fill()
    home, other = (first, second) if log.log_dir == str(first) else (second, first)
    rig.tick()
    rig.work()
    rig.put(log, b"k0", value=b"new")
    log.roll(NOW_MS)
    rig.broker.run()
    rig.manager.prefer_dir(tp("t"), str(other))
    future = rig.manager.get_or_create_future(tp("t"))
    rig.tick()
    assert rig.worker.job is None
    copy = log.read(0, max_bytes=1 << 20, max_offset=log.log_end_offset)
    future.append_as_follower(copy.read(), now_ms=NOW_MS)
    rig.manager.swap_future(tp("t"))
    rig.broker.run()
    rig.tick()
    assert rig.checkpoint(other) == {tp("t"): 12}
    assert rig.checkpoint(home) == {}
    rig.broker.kill()


def test_broken_bytes_make_one_log_uncleanable_and_others_go_on(rig: Rig, tmp_path: Path) -> None:
    bad = rig.fill("bad")
    path = Path(bad.segments.first.log_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    rig.fill("good")
    for _ in range(3):
        rig.tick()
        if rig.worker.job is not None:
            rig.work()
    assert rig.cleaner.is_uncleanable(tp("bad")) and not rig.cleaner.is_uncleanable(tp("good"))
    assert values(rig.log("good")) == [b"3"] * 3
    metrics = rig.cleaner.metrics
    assert metrics.uncleanable_partitions_count == {str(tmp_path): 1}
    assert metrics.uncleanable_bytes[str(tmp_path)] == bad.size_bytes
    rig.manager.delete(tp("bad"))
    assert not rig.cleaner.is_uncleanable(tp("bad"))


def test_log_whose_first_batch_is_damaged_is_counted_whole_among_the_uncleanable(rig: Rig, tmp_path: Path) -> None:
    rig.configs["bad"] = replace(CONFIG, max_compaction_lag_ms=1000)
    bad = rig.fill("bad")
    path = Path(bad.segments.first.log_path)
    data = bytearray(path.read_bytes())
    data[MAGIC_AT] = 7
    path.write_bytes(data)
    bad.segments.first._first_timestamp = None  # as after a start
    rig.tick()
    assert rig.cleaner.is_uncleanable(tp("bad"))
    assert rig.cleaner.metrics.uncleanable_bytes == {str(tmp_path): bad.size_bytes}


def test_survey_that_fails_is_followed_by_the_next(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.fill()
    with monkeypatch.context() as patch:
        patch.setattr(rig.cleaner.checkpoints, "get", lambda partition: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            rig.tick()
    rig.tick()
    rig.work()
    assert values(log) == [b"3"] * 3


def test_an_io_error_of_the_worker_takes_the_directory_offline(rig: Rig, tmp_path: Path) -> None:
    rig.fill()
    rig.tick()
    rig.worker.tell(Failed("No space left on device", 28))
    assert rig.broker.failed == [(str(tmp_path), [tp("t")])]
    rig.broker.run()
    assert not rig.cleaner.is_cleaning(tp("t"))


def test_a_worker_without_descriptors_tries_again_after_a_pause(rig: Rig) -> None:
    """It was given the same log again at once, thousands of times a second."""
    rig.fill()
    rig.tick()
    rig.worker.tell(Failed("Too many open files", errno.EMFILE))
    rig.broker.run()
    assert rig.broker.failed == [] and not rig.cleaner.is_cleaning(tp("t"))
    rig.tick()
    assert rig.cleaner.is_cleaning(tp("t"))


def test_error_of_an_aborted_job_is_ignored(rig: Rig) -> None:
    rig.fill()
    rig.tick()
    rig.manager.delete(tp("t"))
    rig.worker.tell(Failed("No such file", 2))
    rig.broker.run()
    assert rig.broker.failed == []
    assert not rig.cleaner.is_cleaning(tp("t"))


def test_a_log_that_kills_its_worker_three_times_is_left_alone(rig: Rig) -> None:
    log = rig.fill()
    for attempt in range(3):
        rig.tick()
        assert rig.cleaner.is_cleaning(tp("t")), attempt
        run_aside(rig.worker)
        rig.worker.die()
        rig.broker.run()
        assert rig.leftovers(log) == []
    assert rig.cleaner.metrics.dead_worker_count == 3
    rig.tick()
    assert not rig.cleaner.is_cleaning(tp("t"))
    assert rig.cleaner.is_uncleanable(tp("t"))
    assert values(log) == [b"%d" % number for number in range(4) for _ in range(3)]


def test_a_log_whose_worker_cannot_be_started_is_cleaned_when_it_can(rig: Rig) -> None:
    """No descriptor was free for three attempts: the log was not cleaned any more until the next start, and grew."""
    rig.fill()
    for _ in range(5):
        rig.tick()
        rig.worker.tell(Died("cannot start the compaction worker: Too many open files", was_running=False))
        rig.broker.run()
    rig.tick()
    assert rig.cleaner.is_cleaning(tp("t")) and not rig.cleaner.is_uncleanable(tp("t"))
    assert rig.cleaner.metrics.dead_worker_count == 5


def test_a_fault_in_the_swap_ends_the_job(rig: Rig, tmp_path: Path) -> None:
    rig.fill()
    rig.tick()
    reports = run_aside(rig.worker)
    rig.broker.disk.bad.add(str(tmp_path))
    for report in reports:
        rig.work(report)
    rig.broker.disk.bad.clear()
    rig.broker.run()
    assert len(rig.broker.failed) == 1
    assert not rig.cleaner.is_cleaning(tp("t"))


def test_groups_are_swapped_as_they_come(rig: Rig) -> None:
    rig.configs["t"] = replace(CONFIG, segment_bytes=200)
    log = rig.fill(rounds=4)
    rig.tick()
    reports = run_aside(rig.worker)
    groups = [report for report in reports if isinstance(report, GroupCleaned)]
    assert len(groups) > 1
    rig.work(groups[0])
    assert values(log) == [b"2"] * 3 + [b"3"] * 3, "the first two rounds are gone, the others wait for their group"
    assert rig.cleaner.checkpoints.get(tp("t")) is None
    for report in reports[1:]:
        rig.work(report)
    assert isinstance(reports[-1], Finished)
    assert values(log) == [b"3"] * 3


async def test_stop_kills_the_job_and_waits_for_pending_work(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    log = rig.fill()
    rig.tick()
    run_aside(rig.worker)
    asyncio.get_running_loop().call_soon(rig.broker.run)
    stopping = asyncio.ensure_future(rig.cleaner.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rig.broker.run()
    await stopping
    assert rig.worker.closed
    assert rig.leftovers(log) == []
    rig.broker.run(10 * BACKOFF_MS)
    assert rig.worker.job is None
    rig.broker.kill()


def test_many_logs_are_looked_at_in_slices(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(70):
        rig.log(f"t{number}")
    log = rig.fill("last")
    rig.tick()
    rig.broker.run(1)
    rig.work()
    assert values(log) == [b"3"] * 3
    rig.broker.kill()


def test_settings_come_from_the_brokers() -> None:
    config = BrokerConfig.parse(
        {
            "zookeeper.connect": "localhost:2181",
            "log.cleaner.threads": "2",
            "log.cleaner.backoff.ms": "77",
            "log.cleaner.io.max.bytes.per.second": "1000.5",
            "log.cleaner.dedupe.buffer.size": "4000000",
            "log.cleaner.enable": "false",
        }
    )
    settings = derive(CleanerSettings, config)
    assert (settings.threads, settings.backoff_ms, settings.enable) == (2, 77, False)
    assert (settings.io_max_bytes_per_second, settings.dedupe_buffer_size) == (1000.5, 4_000_000)
    assert derive(CleanerSettings, BrokerConfig.parse({"zookeeper.connect": "x:1"})).io_max_bytes_per_second is None
