"""Directories and the logs in them: placement, restart, checkpoints, deletion, moves, periodic tasks."""

import fcntl
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.chance import random_uuid
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ConfigError, ErrorCode, LogDirFault, Refused
from barnabas.base.ids import TopicId
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import read_offsets, read_partition_metadata
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDirLocked
from barnabas.broker.storage.manager_moves import DuplicateLog
from barnabas.broker.storage.manager_settings import ManagerSettings
from barnabas.broker.storage.manager_upkeep import CHECKPOINTS, Periodic
from barnabas.broker.storage.meta_properties import InconsistentMetaProperties
from barnabas.wire.record_batch import MAGIC_AT
from tests.unit.broker.storage.manager.manager_support import CONFIG, Broker, append, has_no_descriptor, tp, values

TOPIC_ID = TopicId(random_uuid())


def checkpoint(root: Path, name: str) -> dict[str, int]:
    return {str(partition): offset for partition, offset in read_offsets(str(root / name)).items()}


# -- directories


def test_directories_are_made_locked_and_marked(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a" / "deep", tmp_path / "b")
    for root in broker.roots:
        assert "broker.id=1" in (Path(root) / "meta.properties").read_text()
        assert "cluster.id=cluster" in (Path(root) / "meta.properties").read_text()
        assert stat.S_IMODE(Path(root).stat().st_mode) == 0o700, "only the broker may read records"
    broker.manager.shutdown()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    second = Broker(tmp_path, start=False)
    with pytest.raises(LogDirLocked, match="another process or thread"):
        second.manager.open_dirs(broker_id=1, cluster_id="cluster")
    broker.manager.shutdown()
    Broker(tmp_path).manager.shutdown()


def test_a_lock_held_by_another_kind_of_broker_is_respected(tmp_path: Path) -> None:
    """The JVM locks with POSIX record locks, which only another process can hold against us."""
    ready, wait = os.pipe()
    release, done = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(wait, b"x")
        os.read(release, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        with pytest.raises(LogDirLocked):
            Broker(tmp_path)
    finally:
        os.write(done, b"x")
        os.waitpid(child, 0)
        for fd in (ready, wait, release, done):
            os.close(fd)


def test_another_brokers_or_clusters_directory_is_refused_and_not_kept_locked(tmp_path: Path) -> None:
    Broker(tmp_path, broker_id=1).manager.shutdown()
    with pytest.raises(InconsistentMetaProperties, match="broker 1"):
        Broker(tmp_path, broker_id=2)
    with pytest.raises(InconsistentMetaProperties, match="cluster"):
        Broker(tmp_path, broker_id=1, cluster_id="other")
    Broker(tmp_path, broker_id=1).manager.shutdown()


def test_a_directory_named_twice_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="twice"):
        Broker(tmp_path / "a", tmp_path / "b" / ".." / "a")


# -- logs


def test_new_logs_go_where_the_fewest_are(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    for number in range(7):
        broker.manager.get_or_create(tp("t", number), topic_id=None)
    counts = [len(broker.manager.logs_in(log_dir)) for log_dir in broker.manager.dirs]
    assert sorted(counts) == [2, 2, 3]
    assert len(broker.manager) == 7
    broker.manager.shutdown()


def test_get_or_create_gives_the_same_log_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    assert broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID) is log
    assert broker.manager.get(tp("t")) is log
    assert broker.manager.get(tp("t", 1)) is None
    assert read_partition_metadata(str(tmp_path / "t-0" / "partition.metadata")).topic_id == TOPIC_ID
    broker.manager.shutdown()


def test_another_topics_id_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    with pytest.raises(Refused) as caught:
        broker.manager.get_or_create(tp("t"), topic_id=TopicId(random_uuid()))
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    broker.manager.shutdown()
    again = Broker(tmp_path)
    log = again.manager.get(tp("t"))
    assert log is not None
    assert log.topic_id == TOPIC_ID
    again.manager.shutdown()


def test_a_topic_id_is_assigned_to_a_log_that_has_none(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    assert log.topic_id is None
    log.assign_topic_id(TOPIC_ID)
    broker.manager.shutdown()
    again = Broker(tmp_path)
    assert next(iter(again.manager)).topic_id == TOPIC_ID
    again.manager.shutdown()


# -- restart


def test_a_clean_stop_is_found_clean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"a", b"b", b"c")
    log.update_high_watermark(2)
    broker.manager.shutdown(broker_epoch=77)
    marker = json.loads((tmp_path / ".kafka_cleanshutdown").read_text())
    assert marker == {"version": 0, "brokerEpoch": 77}
    assert checkpoint(tmp_path, "recovery-point-offset-checkpoint") == {"t-0": 3}
    assert checkpoint(tmp_path, "replication-offset-checkpoint") == {"t-0": 2}
    again = Broker(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert again.manager.previous_broker_epoch == 77
    found = again.manager.get(tp("t"))
    assert found is not None
    assert values(found) == [b"a", b"b", b"c"]
    assert found.high_watermark == 2
    again.manager.shutdown()


def test_after_a_crash_logs_are_recovered_in_parallel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    roots = (tmp_path / "a", tmp_path / "b")
    settings = ManagerSettings(recovery_threads_per_data_dir=4)
    broker = Broker(*roots, settings=settings)
    for number in range(20):
        append(broker.manager.get_or_create(tp("t", number), topic_id=None), *[b"%d" % i for i in range(number)])
    broker.kill()
    caplog.clear()
    again = Broker(*roots, settings=settings)
    assert again.manager.previous_broker_epoch == -1
    for number in range(20):
        log = again.manager.get(tp("t", number))
        assert log is not None
        assert values(log) == [b"%d" % i for i in range(number)]
    assert "recovering them: no clean shutdown" in caplog.text
    assert "(10 of 10 in" in caplog.text
    again.manager.shutdown()


def test_the_log_start_is_kept_where_no_segments_name_tells_it(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, *[b"%d" % i for i in range(9)])
    log.update_high_watermark(9)
    log.maybe_increment_log_start_offset(4)
    broker.manager.get_or_create(tp("u"), topic_id=None)
    broker.manager.shutdown()
    assert checkpoint(tmp_path, "log-start-offset-checkpoint") == {"t-0": 4}
    again = Broker(tmp_path)
    found = again.manager.get(tp("t"))
    assert found is not None
    assert found.log_start_offset == 4
    again.manager.shutdown()


@pytest.mark.parametrize("garbage", [b"", b"0\n9\n", b"\xff\xfe", b"1\n0\n", b"0\n1\nt zero 5\n"])
def test_checkpoints_that_cannot_be_read_cost_a_recovery_and_no_records(tmp_path: Path, garbage: bytes) -> None:
    broker = Broker(tmp_path)
    append(broker.manager.get_or_create(tp("t"), topic_id=None), b"a", b"b")
    broker.run(120_000)
    broker.kill()
    for name in (
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
    ):
        (tmp_path / name).write_bytes(garbage)
    again = Broker(tmp_path)
    log = again.manager.get(tp("t"))
    assert log is not None
    assert values(log) == [b"a", b"b"]
    again.manager.shutdown()


def test_directory_that_is_not_a_partition_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("lost+found", "notes", "__cluster_metadata-0", "t-0.0123456789abcdef-stray"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("x")
    broker = Broker(tmp_path)
    assert len(broker.manager) == 0
    assert "ignoring" in caplog.text
    assert "stray" in caplog.text
    broker.manager.shutdown()
    assert {path.name for path in tmp_path.iterdir()} >= {"lost+found", "notes", "file", "t-0.0123456789abcdef-stray"}


@pytest.mark.parametrize(("one", "other"), [((b"x",), (b"x", b"y")), ((b"x", b"y"), (b"x",))])
def test_of_one_partition_in_two_directories_the_one_that_goes_further_is_used(
    tmp_path: Path, one: tuple[bytes, ...], other: tuple[bytes, ...]
) -> None:
    """A broker that died in the middle of a move leaves both."""
    for root, content in (("a", one), ("b", other)):
        broker = Broker(tmp_path / root)
        append(broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID), *content)
        broker.manager.shutdown()
    broker = Broker(tmp_path / "a", tmp_path / "b")
    log = broker.manager.get(tp("t"))
    assert log is not None
    assert values(log) == [b"x", b"y"]
    aside = "a" if other == (b"x", b"y") else "b"
    [stray] = [path for path in (tmp_path / aside).iterdir() if path.is_dir()]
    assert stray.name.endswith("-stray"), "the operator deletes it"
    broker.manager.shutdown()
    Broker(tmp_path / "a", tmp_path / "b").manager.shutdown()


def test_the_log_of_the_later_leader_epoch_goes_further(tmp_path: Path) -> None:
    for root, epoch, content in (("a", 1, (b"cut off", b"cut off")), ("b", 2, (b"kept",))):
        broker = Broker(tmp_path / root)
        append(broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID), *content, epoch=epoch)
        broker.manager.shutdown()
    broker = Broker(tmp_path / "a", tmp_path / "b")
    log = broker.manager.get(tp("t"))
    assert log is not None
    assert values(log) == [b"kept"]
    broker.manager.shutdown()


def test_of_two_copies_of_one_partition_one_is_deleted(tmp_path: Path) -> None:
    """A move was sent elsewhere, and the power went before the first copy was known to be deleted."""
    broker = Broker(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    broker.manager.prefer_dir(tp("t"), broker.roots[0])
    broker.manager.get_or_create(tp("t"), topic_id=None)
    broker.manager.prefer_dir(tp("t"), broker.roots[1])
    first = Path(broker.manager.get_or_create_future(tp("t")).directory)
    broker.manager.delete_future(tp("t"))
    [deleted] = [path for path in (tmp_path / "b").iterdir() if path.is_dir()]
    deleted.rename(first)
    broker.manager.prefer_dir(tp("t"), broker.roots[2])
    broker.manager.get_or_create_future(tp("t"))
    broker.kill()
    again = Broker(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert again.manager.get_future(tp("t")) is not None
    again.run(60_000)
    again.run()
    left = [path.name for root in ("b", "c") for path in (tmp_path / root).iterdir() if path.is_dir()]
    assert len(left) == 1 and left[0].endswith("-future")
    again.manager.shutdown()


def test_one_name_with_two_topic_ids_in_two_directories_stops_the_start(tmp_path: Path) -> None:
    for root in ("a", "b"):
        broker = Broker(tmp_path / root)
        append(broker.manager.get_or_create(tp("t"), topic_id=TopicId(random_uuid())), b"x")
        broker.manager.shutdown()
    with pytest.raises(DuplicateLog, match="delete the one"):
        Broker(tmp_path / "a", tmp_path / "b")


# -- checkpoints while it runs


def test_start_after_a_crash_saves_log_starts_before_recovery_points(tmp_path: Path) -> None:
    """The previous process had deleted a segment without saving the log start. A power cut brought it back, torn, below the
    recovery point: the broker did not start. Storage seed 1812."""
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    for value in (b"deleted", b"kept"):
        append(log, value)
        log.roll(0)
    broker.run()
    log.update_high_watermark(2)
    log.maybe_increment_log_start_offset(1)
    log.delete_old_segments(0)
    broker.kill()
    assert not (tmp_path / names.LOG_START_OFFSET_CHECKPOINT).exists()
    broker = Broker(tmp_path)
    assert checkpoint(tmp_path, names.LOG_START_OFFSET_CHECKPOINT) == {"t-0": 1}
    broker.kill()
    (tmp_path / "t-0" / names.log_file(0)).write_bytes(bytes(200))  # it comes back
    broker = Broker(tmp_path)
    found = broker.manager.get(tp("t"))
    assert found is not None
    assert (found.log_start_offset, values(found)) == (1, [b"kept"])


def test_killed_broker_finds_the_start_of_a_log_whose_first_segments_are_in_the_tier(tmp_path: Path) -> None:
    """The checkpoint is written before the segments go, by the pass that lets them go."""
    config = replace(CONFIG, remote_storage_enable=True, local_retention_bytes=0, retention_ms=-1)
    broker = Broker(tmp_path, config_of=lambda topic: config, is_tiering=True)
    log = broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    for value in (b"deleted", b"tiered", b"local"):
        append(log, value)
        log.roll(0)
    log.update_high_watermark(3)
    log.maybe_increment_log_start_offset(1)
    log.highest_copied_offset = 1
    log.delete_old_segments(0)
    assert log.segments.first.base_offset == 1, "the second segment waits for the checkpoint"
    broker.threads.run_pending()
    assert log.segments.first.base_offset == 2
    broker.kill()
    broker = Broker(tmp_path, config_of=lambda topic: config, is_tiering=True)
    found = broker.manager.get(tp("t"))
    assert found is not None
    assert (found.log_start_offset, found.local_log_start_offset, found.log_end_offset) == (1, 2, 3)
    broker.manager.shutdown()
    assert checkpoint(tmp_path, names.LOG_START_OFFSET_CHECKPOINT) == {"t-0": 1}
    broker = Broker(tmp_path, config_of=lambda topic: config, is_tiering=True)
    found = broker.manager.get(tp("t"))
    assert found is not None
    assert (found.log_start_offset, found.local_log_start_offset) == (1, 2)
    broker.manager.shutdown()


def test_broker_without_tiering_does_not_start_with_a_tiered_topic(tmp_path: Path) -> None:
    """It would take the first segment for the beginning of the log, and forget what is in the tier."""
    config = replace(CONFIG, remote_storage_enable=True)
    broker = Broker(tmp_path, config_of=lambda topic: config, is_tiering=True)
    broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    broker.manager.shutdown()
    with pytest.raises(ConfigError, match=r"remote\.storage\.enable=true"):
        Broker(tmp_path, config_of=lambda topic: config)


def test_directory_with_copies_from_the_tier_is_not_a_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / names.REMOTE_CACHE_DIR / "x").mkdir(parents=True)
    Broker(tmp_path).manager.shutdown()
    assert names.REMOTE_CACHE_DIR not in caplog.text


def test_checkpoints_are_written_from_time_to_time(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"a", b"b")
    log.update_high_watermark(1)
    broker.run(5_000)
    assert checkpoint(tmp_path, "replication-offset-checkpoint") == {"t-0": 1}
    log.flusher.flush()
    broker.run(60_000)
    broker.run()
    assert checkpoint(tmp_path, "recovery-point-offset-checkpoint") == {"t-0": 2}
    broker.manager.shutdown()


def test_a_truncation_reaches_the_checkpoint_before_the_log_grows_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"a", b"b", b"c")
    log.flusher.flush()
    broker.manager.checkpoint(names.RECOVERY_POINT_CHECKPOINT)
    broker.run()
    log.truncate_to(1)
    broker.run()
    assert checkpoint(tmp_path, "recovery-point-offset-checkpoint") == {"t-0": 1}
    broker.manager.shutdown()


def with_deleted_records(broker: Broker) -> Log:
    """Offsets 90 to 109, of which those below 100 are deleted: a checkpoint says so, and that all of it is on disk."""
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    log.truncate_fully_and_start_at(90)
    append(log, *[b"%d" % i for i in range(90, 110)])
    log.update_high_watermark(110)
    log.maybe_increment_log_start_offset(100)
    log.flusher.flush()
    for name in (names.RECOVERY_POINT_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT):
        broker.manager.checkpoint(name)
    broker.run()
    return log


@pytest.mark.parametrize("offset", [50, 95])
def test_kill_after_a_cut_below_the_log_start_takes_nothing_that_came_next(tmp_path: Path, offset: int) -> None:
    """Both for a log that restarts (50) and for one whose first segment is truncated (95)."""
    broker = Broker(tmp_path)
    log = with_deleted_records(broker)
    outcomes: list[Exception | None] = []
    log.truncate_then(offset, is_wanted=lambda: True, then=outcomes.append)
    assert outcomes == []  # not before the checkpoints are on disk
    broker.run()
    assert outcomes == [None]
    append(log, b"acknowledged")
    broker.kill()
    again = Broker(tmp_path)
    found = again.manager.get(tp("t"))
    assert found is not None
    assert (found.log_start_offset, values(found)) == (offset, [b"acknowledged"])
    again.manager.shutdown()


@pytest.mark.parametrize("steps", range(4))
def test_kill_during_the_restart_of_a_log_leaves_an_empty_log(tmp_path: Path, steps: int) -> None:
    broker = Broker(tmp_path)
    log = with_deleted_records(broker)
    outcomes: list[Exception | None] = []
    log.restart_then(50, is_wanted=lambda: True, then=outcomes.append)
    for _ in range(steps):
        broker.threads.run_one()
    broker.kill()
    again = Broker(tmp_path)
    found = again.manager.get(tp("t"))
    assert found is not None and values(found) == []
    found.restart_then(50, is_wanted=lambda: True, then=outcomes.append)
    again.run()
    append(found, b"next")
    assert found.log_end_offset == 51
    again.manager.shutdown()


def test_restart_of_a_log_that_is_no_longer_wanted_changes_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = with_deleted_records(broker)
    outcomes: list[Exception | None] = []
    log.restart_then(50, is_wanted=lambda: False, then=outcomes.append)
    assert outcomes == [None] and log.log_end_offset == 110
    broker.manager.shutdown()


def test_one_write_of_a_checkpoint_at_a_time_and_the_last_word_wins(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, *[b"x"] * 5)
    for offset in range(1, 6):
        log.update_high_watermark(offset)
        broker.manager.checkpoint(names.REPLICATION_OFFSET_CHECKPOINT)
    assert len(broker.threads) == 1
    broker.run()
    assert checkpoint(tmp_path, "replication-offset-checkpoint") == {"t-0": 5}
    broker.manager.shutdown()


def test_checkpoint_that_has_not_changed_is_written_once_a_minute_only(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"a", b"b")
    log.update_high_watermark(1)
    file = tmp_path / "replication-offset-checkpoint"

    def is_written_within(ms: int) -> bool:
        file.unlink(missing_ok=True)
        broker.run(ms)
        broker.run()
        return file.exists()

    assert is_written_within(5_000)
    assert not is_written_within(30_000)
    log.update_high_watermark(2)
    assert is_written_within(5_000)
    assert checkpoint(tmp_path, "replication-offset-checkpoint") == {"t-0": 2}
    assert not is_written_within(30_000)
    assert is_written_within(35_000)
    broker.manager.shutdown()


# -- upkeep


def test_retention_runs_over_all_logs_but_compacted_ones(tmp_path: Path) -> None:
    compacted = replace(CONFIG, cleanup_policy=frozenset({"compact"}), retention_ms=1000)
    deleted = replace(CONFIG, retention_ms=1000)
    broker = Broker(tmp_path, config_of=lambda topic: compacted if topic == "c" else deleted)
    for topic in ("c", "d"):
        for number in range(70):
            log = broker.manager.get_or_create(tp(topic, number), topic_id=None)
            append(log, b"x")
            log.update_high_watermark(1)
    broker.run(300_000)
    broker.run()
    assert all(log.log_start_offset == (0 if log.partition.topic == "c" else 1) for log in broker.manager)
    broker.manager.shutdown()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("place", "batch"), [(0, 0), (-2, -1)])
def test_damage_in_a_segment_of_long_ago_keeps_no_log_from_loading_nor_from_its_retention(
    tmp_path: Path, clean: bool, place: int, batch: int
) -> None:
    def config_of(topic: str) -> LogConfig:
        return replace(CONFIG, retention_ms=1000)

    broker = Broker(tmp_path, config_of=config_of)
    for topic in ("a", "damaged", "z"):
        log = broker.manager.get_or_create(tp(topic), topic_id=None)
        append(log, *[b"x" * 100] * 30)
        log.roll(broker.clock.now_ms())
        log.update_high_watermark(30)
        log.flusher.flush()
    segment = broker.manager.logs_of("damaged")[0].segments.at(place)
    path = Path(segment.log_path)
    position = [at for at, _ in segment.headers(0)][batch]
    broker.manager.checkpoint(names.RECOVERY_POINT_CHECKPOINT)
    broker.manager.checkpoint(names.REPLICATION_OFFSET_CHECKPOINT)
    broker.run()
    if clean:
        broker.manager.shutdown()
    else:
        broker.kill()
    data = bytearray(path.read_bytes())
    data[position + MAGIC_AT] = 7
    path.write_bytes(data)
    again = Broker(tmp_path, config_of=config_of)
    assert [log.log_end_offset for log in again.manager] == [30] * 3
    for _ in range(3):
        again.run(300_000)
    assert [log.log_start_offset for log in again.manager] == [30] * 3
    again.manager.shutdown()


def test_pass_that_fails_is_followed_by_the_next(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    begun: list[int] = []

    def step() -> None:
        begun.append(broker.clock.now_ms())
        if len(begun) == 1:
            raise ZeroDivisionError

    task = Periodic(broker.env, 1000, step)
    task.start()
    with pytest.raises(ZeroDivisionError):
        broker.timers.advance_ms(1000)
    broker.timers.advance_ms(1000)
    assert len(begun) == 2
    task.stop()
    broker.manager.shutdown()


def test_logs_are_flushed_by_time(tmp_path: Path) -> None:
    settings = ManagerSettings(flush_scheduler_interval_ms=1000, initial_task_delay_ms=1000)
    broker = Broker(tmp_path, settings=settings, config_of=lambda topic: replace(CONFIG, flush_ms=5000))
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"x")
    broker.run(4_000)
    assert log.recovery_point == 0
    broker.run(2_000)
    broker.run()
    assert log.recovery_point == 1
    broker.manager.shutdown()


def test_silent_producers_are_forgotten(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    log.producers.load([], 0, 0)
    log.producers.start_verification(5, 0, 0, broker.clock.now_ms())
    broker.run(2 * 86_400_000)
    assert log.producers.verification(5) is None
    broker.manager.shutdown()


def test_settings_of_a_topic_reach_its_logs(tmp_path: Path) -> None:
    config = {"t": CONFIG}
    broker = Broker(tmp_path, config_of=lambda topic: config.get(topic, CONFIG))
    logs = [broker.manager.get_or_create(tp(topic, n), topic_id=None) for topic in "tu" for n in range(2)]
    changed = replace(CONFIG, max_message_bytes=10)
    broker.manager.topic_settings_changed("t", changed)
    assert [log.config is changed for log in logs] == [True, True, False, False]
    config["u"] = changed
    broker.manager.topic_settings_changed("", changed)
    assert [log.config is changed for log in logs] == [False, False, True, True]
    broker.manager.shutdown()


# -- deletion and strays


def test_a_deleted_log_is_renamed_then_removed(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    append(log, b"x")
    broker.manager.checkpoint(names.REPLICATION_OFFSET_CHECKPOINT)
    broker.manager.delete(tp("t"))
    assert broker.manager.get(tp("t")) is None
    assert next(path.name for path in tmp_path.iterdir() if path.name.startswith("t-0.")).endswith("-delete")
    with pytest.raises(Refused):
        append(log, b"late")
    new = broker.manager.get_or_create(tp("t"), topic_id=TopicId(random_uuid()), is_new=True)
    assert new.log_end_offset == 0
    broker.run(60_000)
    broker.run()
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith("-delete")]
    assert checkpoint(tmp_path, "replication-offset-checkpoint") == {"t-0": 0}
    broker.manager.delete(tp("never there"))
    broker.manager.shutdown()


@pytest.mark.parametrize("is_killed_first", [False, True])
def test_topic_that_is_made_again_does_not_inherit_the_checkpoints_of_the_former_one(
    tmp_path: Path, is_killed_first: bool
) -> None:
    """Its log ended below the log start of the former one: the next start took its files for removed, and dropped the rest."""
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    append(log, *[b"former"] * 20)
    log.update_high_watermark(20)
    log.maybe_increment_log_start_offset(10)
    log.flusher.flush()
    for name in CHECKPOINTS:
        broker.manager.checkpoint(name)
    broker.run()
    broker.manager.delete(tp("t"))
    forgotten: list[bool] = []
    if is_killed_first:
        broker.kill()
        broker = Broker(tmp_path)
    else:
        broker.manager.when_forgotten(lambda: forgotten.append(True))
        while not forgotten:
            assert len(broker.threads)
            broker.threads.run_one()
    for name in CHECKPOINTS:
        assert "t-0" not in checkpoint(tmp_path, name)
    append(broker.manager.get_or_create(tp("t"), topic_id=TopicId(random_uuid()), is_new=True), b"a", b"b")
    broker.kill()
    again = Broker(tmp_path)
    found = again.manager.get(tp("t"))
    assert found is not None
    assert values(found) == [b"a", b"b"]
    assert (found.log_start_offset, found.high_watermark) == (0, 0)
    again.manager.when_forgotten(lambda: forgotten.append(False))
    assert forgotten[-1] is False  # nothing was deleted: at once
    again.manager.shutdown()


def test_a_deleted_log_is_forgotten_when_a_descriptor_is_free_for_the_checkpoints(tmp_path: Path) -> None:
    """The next topic of that name would lose its records to the former one's log start, which the next start found."""
    broker = Broker(tmp_path)
    log = broker.manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    append(log, *[b"former"] * 20)
    log.update_high_watermark(20)
    log.maybe_increment_log_start_offset(10)
    broker.manager.checkpoint(names.LOG_START_OFFSET_CHECKPOINT)
    broker.run()
    broker.disk.has_descriptors = False
    broker.manager.delete(tp("t"))
    forgotten: list[bool] = []
    broker.manager.when_forgotten(lambda: forgotten.append(True))
    broker.run(120_000)
    assert not forgotten
    broker.disk.has_descriptors = True
    while not forgotten:
        broker.run(100)
    assert "t-0" not in checkpoint(tmp_path, names.LOG_START_OFFSET_CHECKPOINT)
    assert not broker.failed
    broker.run(2000)
    broker.run()
    assert not [path.name for path in tmp_path.iterdir() if path.is_dir()], "nor does it take any room"


def test_a_deletion_that_a_restart_interrupted_is_finished(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    append(broker.manager.get_or_create(tp("t"), topic_id=None), b"x")
    broker.manager.delete(tp("t"))
    broker.kill()
    again = Broker(tmp_path)
    assert len(again.manager) == 0
    again.run(60_000)
    again.run()
    assert not [path.name for path in tmp_path.iterdir() if path.is_dir()]
    again.manager.shutdown()


# -- moves between directories


def test_a_log_moves_to_another_directory(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    manager = broker.manager
    manager.prefer_dir(tp("t"), str(tmp_path / "a"))
    log = manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    assert log.log_dir == str(tmp_path / "a")
    append(log, b"x", b"y")
    log.update_high_watermark(2)
    manager.prefer_dir(tp("t"), str(tmp_path / "b"))
    future = manager.get_or_create_future(tp("t"))
    assert manager.get_or_create_future(tp("t")) is future
    assert future.is_future
    assert future.directory.startswith(str(tmp_path / "b"))
    future.append_as_follower(log.read(0, max_bytes=1000, max_offset=2).read(), now_ms=0)
    assert manager.swap_future(tp("t")) is future
    assert manager.get(tp("t")) is future
    assert manager.get_future(tp("t")) is None
    assert future.directory == str(tmp_path / "b" / "t-0")
    assert (future.high_watermark, future.topic_id) == (2, TOPIC_ID)
    append(future, b"z")
    broker.run()
    broker.run(60_000)
    broker.run()
    assert [path.name for path in (tmp_path / "a").iterdir() if path.is_dir()] == []
    manager.shutdown()
    again = Broker(tmp_path / "a", tmp_path / "b")
    found = again.manager.get(tp("t"))
    assert found is not None
    assert values(found) == [b"x", b"y", b"z"]
    assert found.topic_id == TOPIC_ID
    again.manager.shutdown()


def test_a_copy_without_a_descriptor_for_its_topic_id_gets_it_before_it_takes_the_place_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, and left on disk: the next start took it for a copy, and the log that had moved was of no topic."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    manager = broker.manager
    manager.prefer_dir(tp("t"), str(tmp_path / "a"))
    manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    manager.prefer_dir(tp("t"), str(tmp_path / "b"))
    with monkeypatch.context() as patch:
        patch.setattr("barnabas.broker.storage.log.write_partition_metadata", has_no_descriptor)
        future = manager.get_or_create_future(tp("t"))
        with pytest.raises(LogDirFault):
            manager.swap_future(tp("t"))
    assert manager.get_future(tp("t")) is future
    assert manager.swap_future(tp("t")).topic_id == TOPIC_ID
    manager.shutdown()


def test_segments_that_left_a_copy_before_it_took_the_place_of_its_log_are_deleted(tmp_path: Path) -> None:
    """They were looked for where the copy had been, and stayed on the disk until the next start."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    manager = broker.manager
    manager.prefer_dir(tp("t"), str(tmp_path / "a"))
    log = manager.get_or_create(tp("t"), topic_id=TOPIC_ID)
    append(log, b"x", b"y")
    log.update_high_watermark(2)
    manager.prefer_dir(tp("t"), str(tmp_path / "b"))
    future = manager.get_or_create_future(tp("t"))
    data = log.read(0, max_bytes=1000, max_offset=2).read()
    future.append_as_follower(data, now_ms=0)
    future.truncate_fully_and_start_at(0)
    future.append_as_follower(data, now_ms=0)
    manager.swap_future(tp("t"))
    assert [path.name for path in (tmp_path / "b" / "t-0").iterdir() if path.name.endswith(".deleted")]
    broker.run()
    broker.run(60_000)
    broker.run()
    assert not [path.name for path in (tmp_path / "b" / "t-0").iterdir() if path.name.endswith(".deleted")]
    assert values(future) == [b"x", b"y"]
    manager.shutdown()


def test_a_future_log_survives_a_restart_and_can_be_given_up(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    broker.manager.prefer_dir(tp("t"), str(tmp_path / "a"))
    broker.manager.get_or_create(tp("t"), topic_id=None)
    broker.manager.prefer_dir(tp("t"), str(tmp_path / "b"))
    broker.manager.get_or_create_future(tp("t"))
    broker.kill()
    again = Broker(tmp_path / "a", tmp_path / "b")
    assert again.manager.get_future(tp("t")) is not None
    again.manager.delete_future(tp("t"))
    assert again.manager.get(tp("t")) is not None
    assert again.manager.get_future(tp("t")) is None
    again.manager.shutdown()


def test_a_move_to_an_unknown_directory_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a")
    with pytest.raises(Refused) as caught:
        broker.manager.prefer_dir(tp("t"), "/nowhere")
    assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    with pytest.raises(Refused):
        broker.manager.swap_future(tp("t"))
    broker.manager.shutdown()


def test_changed_settings_of_producers_reach_running_logs_and_those_to_come(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    running = broker.manager.get_or_create(tp("a"), topic_id=None)
    assert not running.producers.transaction_verification
    broker.manager.change_producer_settings(expiration_ms=1234, transaction_verification=True)
    for log in (running, broker.manager.get_or_create(tp("b"), topic_id=None)):
        assert log.producers.transaction_verification
        assert log.producers.producer_id_expiration_ms == 1234
    broker.manager.shutdown()
