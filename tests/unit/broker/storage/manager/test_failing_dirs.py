"""A directory that fails goes offline with its logs, once; the others go on."""

from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.manager import NoLogDirLeft
from tests.unit.broker.storage.manager.manager_support import CONFIG, NOW_MS, Broker, append, tp, values


def two_dirs(tmp_path: Path) -> tuple[Broker, str, str]:
    """A broker with partition 0 in the first directory and 1 in the second."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    for number, root in enumerate(broker.roots):
        broker.manager.prefer_dir(tp("t", number), root)
        append(broker.manager.get_or_create(tp("t", number), topic_id=None), b"first")
    return broker, *broker.roots


def test_a_failed_append_takes_the_directory_offline_and_the_other_goes_on(tmp_path: Path) -> None:
    broker, first, _ = two_dirs(tmp_path)
    log, other = broker.manager.get(tp("t", 0)), broker.manager.get(tp("t", 1))
    assert log is not None
    assert other is not None
    broker.disk.bad.add(first)
    with pytest.raises(LogDirFault):
        append(log, b"lost")
    assert broker.failed == [(first, [tp("t", 0)])]
    assert broker.manager.get(tp("t", 0)) is None
    assert broker.manager.has_offline_dirs()
    append(other, b"second")
    assert values(other) == [b"first", b"second"]
    with pytest.raises(Refused) as caught:
        append(log, b"lost")
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(broker.failed) == 1
    broker.manager.shutdown()
    assert not (Path(first) / names.CLEAN_SHUTDOWN).exists()
    assert (tmp_path / "b" / names.CLEAN_SHUTDOWN).exists()


def test_log_that_may_be_in_a_failed_directory_is_not_created_again(tmp_path: Path) -> None:
    broker, first, second = two_dirs(tmp_path)
    broker.manager.fail_dir(first, OSError(5, "pulled out"))
    with pytest.raises(Refused) as caught:
        broker.manager.get_or_create(tp("t", 0), topic_id=None)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log = broker.manager.get_or_create(tp("new"), topic_id=None, is_new=True)
    assert log.log_dir == second
    broker.manager.shutdown()


def test_a_directory_that_cannot_take_a_new_log_fails_and_the_next_is_tried(tmp_path: Path) -> None:
    broker, first, second = two_dirs(tmp_path)
    broker.disk.bad.add(first)
    broker.manager.prefer_dir(tp("new"), first)
    assert broker.manager.get_or_create(tp("new"), topic_id=None, is_new=True).log_dir == second
    assert [path for path, _ in broker.failed] == [first]
    broker.manager.shutdown()


def test_without_any_directory_left_nothing_can_be_made(tmp_path: Path) -> None:
    broker, first, second = two_dirs(tmp_path)
    broker.disk.bad.update((first, second))
    with pytest.raises(Refused) as caught:
        broker.manager.get_or_create(tp("new"), topic_id=None, is_new=True)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [path for path, _ in broker.failed] == [first, second]
    assert broker.manager.live_dirs == []
    broker.manager.shutdown()


def test_a_failed_checkpoint_takes_its_directory_offline(tmp_path: Path) -> None:
    broker, first, _ = two_dirs(tmp_path)
    (Path(first) / (names.REPLICATION_OFFSET_CHECKPOINT + ".tmp")).mkdir()
    broker.manager.checkpoint(names.REPLICATION_OFFSET_CHECKPOINT)
    broker.run()
    assert [path for path, _ in broker.failed] == [first]
    broker.manager.shutdown()


def test_a_failed_background_flush_takes_its_directory_offline(tmp_path: Path) -> None:
    broker, first, _ = two_dirs(tmp_path)
    log = broker.manager.get(tp("t", 0))
    assert log is not None
    log.flusher.flush_in_background()
    broker.disk.bad.add(first)
    broker.run()
    assert [path for path, _ in broker.failed] == [first]
    broker.manager.shutdown()


def test_a_deletion_that_fails_takes_its_directory_offline(tmp_path: Path) -> None:
    broker, first, _ = two_dirs(tmp_path)
    broker.disk.bad.add(first)
    with pytest.raises(LogDirFault):
        broker.manager.delete(tp("t", 0))
    assert [path for path, _ in broker.failed] == [first]
    broker.manager.shutdown()


def test_a_directory_that_fails_while_it_loads_leaves_the_others(tmp_path: Path) -> None:
    broker, first, _ = two_dirs(tmp_path)
    broker.kill()
    again = Broker(tmp_path / "a", tmp_path / "b", start=False)
    again.disk.bad.add(f"{first}/t-0")
    again.manager.open_dirs(broker_id=1, cluster_id="cluster")
    again.manager.load()
    assert again.manager.get(tp("t", 0)) is None
    assert again.manager.get(tp("t", 1)) is not None
    assert [log_dir.path for log_dir in again.manager.live_dirs] == [str(tmp_path / "b")]
    again.manager.shutdown()


def test_a_directory_that_is_a_file_is_offline_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not a directory")
    broker = Broker(tmp_path / "a", tmp_path / "b")
    assert broker.manager.has_offline_dirs()
    broker.manager.get_or_create(tp("t"), topic_id=None, is_new=True)
    broker.manager.shutdown()
    with pytest.raises(NoLogDirLeft):
        Broker(tmp_path / "a")


def test_a_failed_shutdown_of_one_directory_leaves_the_other_clean(tmp_path: Path) -> None:
    broker, first, second = two_dirs(tmp_path)
    broker.disk.bad.add(first)
    broker.manager.shutdown()
    assert not (Path(first) / names.CLEAN_SHUTDOWN).exists()
    assert (Path(second) / names.CLEAN_SHUTDOWN).exists()
    again = Broker(tmp_path / "a", tmp_path / "b")
    for number in range(2):
        log = again.manager.get(tp("t", number))
        assert log is not None
        assert values(log) == [b"first"]
    again.manager.shutdown()


def test_lack_of_descriptors_is_not_a_disk_fault_and_the_next_append_succeeds(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a")
    log = broker.manager.get_or_create(tp("t"), topic_id=None)
    append(log, b"first", b"x" * 1500)
    broker.disk.has_descriptors = False
    with pytest.raises(LogDirFault):
        append(log, b"y" * 1500)  # does not fit: needs the files of a new segment
    broker.disk.has_descriptors = True
    append(log, b"small", b"z" * 1500)
    assert broker.failed == [] and not broker.manager.has_offline_dirs()
    assert values(log) == [b"first", b"x" * 1500, b"small", b"z" * 1500]
    broker.manager.shutdown()
    again = Broker(tmp_path / "a")
    reopened = again.manager.get(tp("t"))
    assert reopened is not None and values(reopened) == [b"first", b"x" * 1500, b"small", b"z" * 1500]


def test_disk_that_fails_as_a_topic_is_deleted_does_not_keep_its_copy(tmp_path: Path) -> None:
    """A topic of the same name that is made later would go on with the copy of the old one."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    manager = broker.manager
    manager.prefer_dir(tp("t"), broker.roots[0])
    manager.get_or_create(tp("t"), topic_id=None)
    manager.prefer_dir(tp("t"), broker.roots[1])
    manager.get_or_create_future(tp("t"))
    broker.disk.bad.add(broker.roots[0])
    removed: list[TopicPartition] = []
    manager.on_removed = removed.append
    with pytest.raises(LogDirFault):
        manager.delete(tp("t"))
    assert manager.get_future(tp("t")) is None
    assert [path.name for path in (tmp_path / "b").iterdir() if path.name.endswith("-future")] == []
    assert removed == [tp("t")]
    manager.shutdown()


def test_disk_that_fails_as_settings_change_leaves_the_settings_of_other_logs_changed(tmp_path: Path) -> None:
    """A log that leaves the tier writes its leader epochs, for it begins later from then on."""
    tiered = replace(CONFIG, remote_storage_enable=True, local_retention_bytes=0, retention_ms=-1)
    broker = Broker(tmp_path / "a", tmp_path / "b", config_of=lambda topic: tiered, is_tiering=True)
    manager = broker.manager
    for number in range(2):
        manager.prefer_dir(tp("t", number), broker.roots[number])
        log = manager.get_or_create(tp("t", number), topic_id=None)
        append(log, b"x")
        log.roll(NOW_MS)
        append(log, b"y")
        log.update_high_watermark(2)
        log.highest_copied_offset = 0
        log.delete_old_segments(NOW_MS)
    broker.run()
    assert [manager.get(tp("t", number)).local_log_start_offset for number in range(2)] == [1, 1]  # type: ignore[union-attr]
    broker.disk.bad.add(broker.roots[0])
    left = replace(CONFIG, remote_log_delete_on_disable=True)
    manager.topic_settings_changed("t", left)
    assert broker.failed == [(broker.roots[0], [tp("t", 0)])]
    other = manager.get(tp("t", 1))
    assert other is not None
    assert (other.config, other.log_start_offset) == (left, 1)
    manager.shutdown()
