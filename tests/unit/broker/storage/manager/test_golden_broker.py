"""The data directory of an Apache Kafka 3.9.1 broker, opened as ours: every record read, nothing lost on the way back."""

import shutil
from pathlib import Path

import pytest

from barnabas.base.config.log_config import LogConfig
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.wire.record_batch import check_crc, iter_batches
from barnabas.wire.records import iter_records
from tests.unit.broker.storage.manager.manager_support import Broker, append, tp, values

GOLDEN = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"

#: Where each partition ends, from the broker's own checkpoint.
ENDS = {
    tuple(line.split()[:2]): int(line.split()[2])
    for line in (GOLDEN / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]
}


def config_of(topic: str) -> LogConfig:
    """As the golden topics were made: see the broker's own indexes."""
    return LogConfig(index_interval_bytes=4096 if topic != "segments" else 512)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "broker-0"))


def start(root: Path) -> Broker:
    return Broker(root, broker_id=0, cluster_id=None, config_of=config_of)


def golden_batches(partition: TopicPartition) -> list[tuple[int, list[bytes | None]]]:
    """Straight from the files."""
    found = []
    for path in sorted((GOLDEN / names.partition_dir(partition)).glob("*.log")):
        data = path.read_bytes()
        for position, header in iter_batches(data):
            found.append((header.base_offset, [record.value for record in iter_records(data, position, header)]))
    return found


@pytest.mark.parametrize("clean", [True, False])
def test_every_partition_is_there_and_every_record_readable(root: Path, clean: bool) -> None:
    if not clean:
        (root / names.CLEAN_SHUTDOWN).unlink()
        (root / names.RECOVERY_POINT_CHECKPOINT).unlink()
    broker = start(root)
    assert len(broker.manager) == len(ENDS) == 16
    for log in broker.manager:
        assert log.topic_id is not None
        assert log.log_end_offset == ENDS[log.partition.topic, str(log.partition.partition)]
        assert log.high_watermark == log.log_end_offset
        batches = []
        offset = 0
        while offset < log.log_end_offset:
            data = log.read(offset, max_bytes=500, max_offset=log.log_end_offset).read()
            if not data:
                break
            for position, header in iter_batches(data):
                check_crc(data, position, header)
                batches.append((header.base_offset, [r.value for r in iter_records(data, position, header)]))
                offset = header.next_offset
        assert batches == golden_batches(log.partition)
    broker.manager.shutdown()


def test_nothing_but_our_own_marks_changes_in_the_files(root: Path) -> None:
    """A start and a stop: logs, indexes, snapshots and topic ids stay byte for byte."""
    before = {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    start(root).manager.shutdown(broker_epoch=0)
    after = {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    changed = {path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    # The epoch that the stopped leader had begun without a record goes, as in Kafka; checkpoints keep another order.
    assert changed <= {
        "leader-epoch-checkpoint",
        names.CLEAN_SHUTDOWN,
        names.LOCK,
        names.RECOVERY_POINT_CHECKPOINT,
        names.REPLICATION_OFFSET_CHECKPOINT,
    }


def test_recovery_builds_the_indexes_that_kafka_wrote(root: Path) -> None:
    """For logs that were appended batch by batch: logs written by a follower or the cleaner have other intervals."""
    before = {path.relative_to(root): path.read_bytes() for path in root.rglob("txn-0/*index")}
    assert len(before) == 3
    (root / names.CLEAN_SHUTDOWN).unlink()
    (root / names.RECOVERY_POINT_CHECKPOINT).unlink()
    for path in root.rglob("*index"):
        path.unlink()
    start(root).manager.shutdown()
    assert {path: (root / path).read_bytes() for path in before} == before


def test_transactions_of_kafka_are_known(root: Path) -> None:
    broker = start(root)
    log = broker.manager.get(tp("txn"))
    assert log is not None
    assert log.last_stable_offset == log.log_end_offset
    assert len(log.aborted_transactions(0, log.log_end_offset)) > 0
    broker.manager.shutdown()


def test_a_golden_log_can_be_written_on(root: Path) -> None:
    broker = start(root)
    log = broker.manager.get(tp("plain-none"))
    assert log is not None
    append(log, b"ours", epoch=5)
    assert values(log)[-1] == b"ours"
    assert len(values(log)) == 21
    broker.kill()
    again = start(root)
    found = again.manager.get(tp("plain-none"))
    assert found is not None
    assert values(found)[-1] == b"ours"
    again.manager.shutdown()
