"""Checkpoints, partition.metadata, the clean-shutdown marker: Kafka's bytes, atomic writes, errors with path and line."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.chance import random_uuid
from barnabas.base.host.disk import REAL_DISK
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import checkpoints
from barnabas.broker.storage.checkpoints import CheckpointError
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache
from barnabas.broker.storage.epoch_file import EpochFile

BROKER = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"


@pytest.mark.parametrize("name", [path.name for path in sorted(BROKER.glob("*-offset-checkpoint"))])
def test_kafkas_offset_checkpoints_are_read_and_written_again(name: str, tmp_path):
    offsets = checkpoints.read_offsets(str(BROKER / name))
    copy = tmp_path / name
    checkpoints.write_offsets(str(copy), offsets)
    assert copy.read_bytes() == (BROKER / name).read_bytes()


def test_offset_checkpoint_of_kafka_is_read():
    offsets = checkpoints.read_offsets(str(BROKER / "recovery-point-offset-checkpoint"))
    assert offsets[TopicPartition("__transaction_state", 0)] == 13
    assert offsets[TopicPartition("segments", 0)] == 200
    assert len(offsets) == 16


def test_kafkas_epoch_checkpoints_are_read_and_written_again(tmp_path):
    for path in BROKER.glob("*/leader-epoch-checkpoint"):
        copy = tmp_path / path.parent.name
        checkpoints.write_epochs(str(copy), checkpoints.read_epochs(str(path)))
        assert copy.read_bytes() == path.read_bytes()
    assert checkpoints.read_epochs(str(BROKER / "keyed-0" / "leader-epoch-checkpoint")) == [(0, 0), (1, 33)]


def test_kafkas_partition_metadata_is_read_and_written_again(tmp_path):
    for path in BROKER.glob("*/partition.metadata"):
        metadata = checkpoints.read_partition_metadata(str(path))
        assert metadata.version == 0
        copy = tmp_path / path.parent.name
        checkpoints.write_partition_metadata(str(copy), metadata.topic_id)
        assert copy.read_bytes() == path.read_bytes()


def test_kafkas_clean_shutdown_marker_is_read_and_written_again(tmp_path):
    golden = BROKER / ".kafka_cleanshutdown"
    assert checkpoints.read_clean_shutdown(str(golden)) == -1
    copy = tmp_path / "marker"
    checkpoints.write_clean_shutdown(str(copy))
    assert copy.read_bytes() == golden.read_bytes()
    checkpoints.write_clean_shutdown(str(copy), 77)
    assert checkpoints.read_clean_shutdown(str(copy)) == 77


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"brokerEpoch":"x"}', b'{"brokerEpoch":true}', b"\xff"])
def test_clean_shutdown_marker_counts_by_being_there(tmp_path, content: bytes):
    path = tmp_path / "marker"
    assert checkpoints.read_clean_shutdown(str(path)) is None
    path.write_bytes(content)
    assert checkpoints.read_clean_shutdown(str(path)) == -1


topic = st.text("abcXYZ._-09", min_size=1, max_size=20)


@given(st.dictionaries(st.builds(TopicPartition, topic, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)))
@settings(deadline=None, max_examples=30)
def test_offsets_round_trip(tmp_path_factory, offsets):
    path = str(tmp_path_factory.mktemp("checkpoint") / "x")
    checkpoints.write_offsets(path, offsets, sync=False)
    assert checkpoints.read_offsets(path) == offsets


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n0\n"])
def test_file_without_entries_has_none(tmp_path, content: bytes):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert checkpoints.read_offsets(str(path)) == {}
    assert checkpoints.read_epochs(str(path)) == []


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        (b"x\n", 1, "'x' is not a number"),
        (b"1\n0\n", 1, "version 1 is not known, expected 0"),
        (b"0\nmany\n", 2, "'many' is not a number"),
        (b"0\n2\nt 0 1\n", 2, "2 entries expected, 1 found"),
        (b"0\n1\nt 0 1\nu 0 1\n", 2, "1 entries expected, 2 found"),
        (b"0\n1\nt 0\n", 3, "not of the form 'topic partition offset'"),
        (b"0\n1\nt 0 1 2\n", 3, "not of the form"),
        (b"0\n2\nt 0 1\nu x 1\n", 4, "'x' is not a number"),
        (b"0\n1\nt 0 99999999999999999999\n", 3, "is not a number"),
        (b"0\n1\nt 2147483648 0\n", 3, "is not a number"),
        (b"0\n1\nt\xff 0 0\n", 3, "not UTF-8 text"),
    ],
)
def test_error_of_a_malformed_offset_checkpoint_names_path_and_line(tmp_path, content: bytes, line: int, why: str):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=why) as caught:
        checkpoints.read_offsets(str(path))
    assert caught.value.path == str(path)
    assert caught.value.line == line
    assert str(path) in str(caught.value)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize("content", [b"0\n1\n1\n", b"0\n1\n1 2 3\n", b"0\n1\n-1 0\n", b"0\n1\n0 -1\n", b"0\n1\na b\n"])
def test_malformed_epoch_checkpoint_raises_an_error(tmp_path, content: bytes):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.read_epochs(str(path))
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"version: 0", b"version: -1\ntopic_id: 2O0N4pj_SDigmVsvtus8Ng", b"version 0\ntopic_id: x",
     b"version: 0\ntopic_id: short", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", b"version: 0\ntopic_id:",
     b"version: 0\ntopic_id: \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"],
)  # fmt: skip
def test_malformed_partition_metadata_raises_an_error(tmp_path, content: bytes):
    path = tmp_path / "partition.metadata"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        checkpoints.read_partition_metadata(str(path))


@given(data=st.binary(max_size=100))
@settings(deadline=None)
def test_garbage_raises_nothing_but_the_typed_error(tmp_path_factory, data: bytes):
    path = tmp_path_factory.mktemp("garbage") / "x"
    path.write_bytes(data)
    for read in (checkpoints.read_offsets, checkpoints.read_epochs, checkpoints.read_partition_metadata):
        try:
            read(str(path))
        except CheckpointError:
            continue
    checkpoints.read_clean_shutdown(str(path))


def test_write_is_atomic_and_durable_step_by_step(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    steps = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("fsync"), real_fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append(path.read_bytes()), real_replace(a, b)))
    REAL_DISK.replace_file(str(path), b"new")
    assert steps == ["fsync", b"old", "fsync"]
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def no_space(fd: int, data: object, position: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_space)
    with pytest.raises(OSError, match="No space left"):
        REAL_DISK.replace_file(str(path), b"new")
    assert path.read_bytes() == b"old"


def test_epoch_cache_behind_its_file(tmp_path):
    store = EpochFile(str(tmp_path), REAL_DISK)
    cache = LeaderEpochCache(store=store)
    cache.assign(3, 100)
    cache.flush()
    assert checkpoints.read_epochs(store.path) == [EpochEntry(3, 100)]
    assert store.unsynced.pending() == (1, [store.path])


def test_topic_id_round_trips(tmp_path):
    topic_id = random_uuid()
    checkpoints.write_partition_metadata(str(tmp_path / "p"), topic_id)
    assert checkpoints.read_partition_metadata(str(tmp_path / "p")) == (0, topic_id)
