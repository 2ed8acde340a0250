"""A log that Apache Kafka 3.9.1 has cleaned, cleaned again by us."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import read_offsets
from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, CompactedLog

pytestmark = pytest.mark.usefixtures("engine")


GOLDEN = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    shutil.copytree(GOLDEN / "compacted-0", tmp_path / "topic-0")
    return opened(tmp_path)


def opened(root: Path) -> CompactedLog:
    log = CompactedLog(root, replace(CONFIG, segment_bytes=1 << 20, segment_index_bytes=1 << 20))
    log.commit()
    log.log.flusher.flush()
    return log


def test_log_cleaned_by_kafka_is_clean_by_its_checkpoint(log: CompactedLog) -> None:
    offsets = read_offsets(str(GOLDEN / names.CLEANER_OFFSET_CHECKPOINT))
    (checkpoint,) = offsets.values()
    log.checkpoint = checkpoint
    assert checkpoint == log.log.segments.active.base_offset
    assert log.job() is None


def test_second_cleaning_from_the_start_drops_only_repeated_keys(log: CompactedLog) -> None:
    before = log.batches()
    end = log.log.segments.active.base_offset
    done = log.clean()
    assert done is not None and done.next_dirty_offset == end
    records = {record.offset: record for batch in before for record in batch.records}
    last = {record.key: record.offset for batch in before for record in batch.records if record.offset < end}
    assert [record.offset for record in log.records()] == sorted(
        offset for offset, record in records.items() if offset >= end or last[record.key] == offset
    )
    assert all(record == records[record.offset] for record in log.records())
    assert log.log.log_end_offset == 300


def test_batches_that_lose_nothing_keep_kafkas_bytes(log: CompactedLog) -> None:
    kept = {batch.header.base_offset: batch for batch in log.batches()}
    log.clean()
    whole = [batch for batch in log.batches() if len(batch.records) == len(kept[batch.header.base_offset].records)]
    assert whole
    for batch in whole:
        if not any(record.value is None for record in batch.records):
            assert batch.data == kept[batch.header.base_offset].data


@pytest.mark.parametrize("topic", ["__consumer_offsets-1", "__transaction_state-0", "keyed-0"])
def test_other_logs_of_kafka_come_to_their_last_values(tmp_path: Path, topic: str) -> None:
    """Among them values of internal topics, empty keys' worth of tombstones, and producers that are long gone."""
    shutil.copytree(GOLDEN / topic, tmp_path / "topic-0")
    log = opened(tmp_path)
    log.roll()
    log.log.flusher.flush()
    last = {record.key: record for record in log.records()}
    log.clean()
    found = log.records()
    assert [record.offset for record in found] == sorted(record.offset for record in last.values())
    assert {record.key: record for record in found} == last
