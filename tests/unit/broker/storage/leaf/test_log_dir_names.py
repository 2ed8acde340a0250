"""Names of files and directories: the same literals as Kafka, parsed back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names

BROKER = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"
topics = st.text("abcXYZ019._-", min_size=1, max_size=249)


def test_every_name_that_kafka_wrote_is_known():
    for path in BROKER.iterdir():
        if path.is_dir():
            parsed = names.parse_partition_dir(path.name)
            assert names.partition_dir(parsed.partition) == path.name
            assert parsed.suffix == ""
            for file in path.iterdir():
                if file.name not in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA):
                    segment_file = names.parse_segment_file(file.name)
                    assert segment_file is not None, file
                    assert names.offset_prefix(segment_file.base_offset) + segment_file.kind == file.name
        else:
            assert path.name in {
                names.META_PROPERTIES,
                names.RECOVERY_POINT_CHECKPOINT,
                names.REPLICATION_OFFSET_CHECKPOINT,
                names.LOG_START_OFFSET_CHECKPOINT,
                names.CLEANER_OFFSET_CHECKPOINT,
                names.CLEAN_SHUTDOWN,
            }


def test_segment_files_have_twenty_digits():
    assert names.log_file(42) == "00000000000000000042.log"
    assert names.index_file(42, names.SWAP_SUFFIX) == "00000000000000000042.index.swap"
    assert names.time_index_file(42) == "00000000000000000042.timeindex"
    assert names.txn_index_file(42, names.CLEANED_SUFFIX) == "00000000000000000042.txnindex.cleaned"
    assert names.snapshot_file(42, names.DELETED_SUFFIX) == "00000000000000000042.snapshot.deleted"


@pytest.mark.parametrize(
    "name", ["x.log", "42.txt", ".log", "42log", "42.log.bak", "-1.log", "leader-epoch-checkpoint"]
)
def test_other_files_belong_to_no_segment(name: str):
    assert names.parse_segment_file(name) is None
    with pytest.raises(Malformed, match="is not the file of a segment"):
        names.offset_of_file(f"/somewhere/{name}")


def test_offset_is_read_from_a_path():
    assert names.offset_of_file("/data/t-0/00000000000000000042.log.swap") == 42


@given(topic=topics, partition=st.integers(0, 2**31 - 1))
def test_partition_directories_round_trip(topic: str, partition: int):
    wanted = TopicPartition(topic, partition)
    if not topic.endswith(("-delete", "-future", "-stray")):
        assert names.parse_partition_dir(names.partition_dir(wanted)) == (wanted, "")
    future = names.parse_partition_dir(names.future_dir(wanted))
    assert future.partition == wanted
    assert future.is_future
    name = names.delete_dir(wanted)
    assert len(name) <= 255
    parsed = names.parse_partition_dir(name)
    assert parsed.is_delete
    assert wanted.topic.startswith(parsed.partition.topic)
    assert parsed.partition.partition == partition


def test_unique_part_can_be_given():
    assert names.delete_dir(TopicPartition("t", 1), "abc") == "t-1.abc-delete"


@pytest.mark.parametrize(
    "name", ["", "nodash", "-0", "topic-", "topic-x", "topic-1.5", "t-1-delete", "t-0-stray", "x-99999999999", "t-٣"]
)
def test_directories_that_are_not_partitions_are_refused(name: str):
    with pytest.raises(Malformed, match="is not in the form of topic-partition"):
        names.parse_partition_dir(name)
