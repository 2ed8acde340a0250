"""Spark's readers straight from an object store: the same rows as through the brokers, also when segments go.

The readers are driven as Spark drives them, without a JVM;
`tests/scenarios/spark/test_spark_tier.py` has one of them in a query.
"""

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.datasource import DataSourceReader, InputPartition

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition as Place
from barnabas.base.words import EARLIEST_LOCAL
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.blocking import BlockingClient
from barnabas.spark.offsets import DataLoss
from barnabas.spark.options import source_options
from barnabas.spark.reader import BarnabasReader, BarnabasStreamReader, TierTask
from barnabas.spark.segments import SegmentReader, log_options
from barnabas.spark.tier_slices import TierSlice
from tests.soak.workload import QUIET

Row = tuple[int, int, bytes]
COLUMNS = ("partition", "offset", "value")
#: Size of a segment. A batch of a hundred records has some 1,200 bytes.
SEGMENT_BYTES = 16_000


@dataclass
class Tiered:
    """A topic of two partitions, most of it in the store."""

    bootstrap: str
    root: Path
    topic: str
    #: The committed records, as they were acknowledged, and the aborted ones.
    committed: list[Row] = field(default_factory=list)
    aborted: list[Row] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    def options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, **more}

    def segments(self, partition: int) -> list[Path]:
        return sorted(self.root.glob(f"{self.topic}-*/{partition}/*.log"))


def write(tiered: Tiered, values: Iterator[bytes], partition: int, **config: str) -> None:
    producer = Producer({"bootstrap.servers": tiered.bootstrap, **QUIET, **config})
    is_transactional = "transactional.id" in config
    if is_transactional:
        producer.init_transactions()
        producer.begin_transaction()
    send(producer, tiered.topic, values, partition, tiered.committed)
    if is_transactional:
        producer.commit_transaction()


def send(producer: Producer, topic: str, values: Iterator[bytes], partition: int, rows: list[Row]) -> None:
    def acknowledged(error: object, message: object) -> None:
        assert error is None
        rows.append((message.partition(), message.offset(), message.value()))  # type: ignore[attr-defined]

    for number, value in enumerate(values, 1):
        producer.produce(topic, value, partition=partition, on_delivery=acknowledged)
        if number % 100 == 0:
            producer.flush()
    assert producer.flush(60) == 0


def numbered(word: str, count: int) -> Iterator[bytes]:
    return (f"{word} {number}".encode() for number in range(count))


def wait(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    root = tmp_path_factory.mktemp("store")
    config = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{root}",
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "200",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    }
    with LocalCluster(brokers=1, config=config) as cluster:
        made = new_topic(Tiered(cluster.bootstrap, root, ""), "history", 2)
        fill(made)
        wait(lambda: len(made.segments(0)) >= 5 and len(made.segments(1)) >= 2, "segments in the store")
        wait(lambda: local_start(made) > 3_000, "segments to be there only")
        yield made


def local_start(made: Tiered) -> int:
    with BlockingClient(source_options(made.options(), streaming=False).client()) as client:
        first = Place(made.topic, 0)
        return client.list_offsets({first: EARLIEST_LOCAL})[first]


def new_topic(tiered: Tiered, name: str, partitions: int) -> Tiered:
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap, **QUIET})
    settings = {
        "remote.storage.enable": "true",
        "segment.bytes": str(SEGMENT_BYTES),
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(60)
    return Tiered(tiered.bootstrap, tiered.root, name)


def fill(made: Tiered) -> None:
    """Plain records, transactions that are committed and aborted, and one that is aborted above what is tiered."""
    write(made, numbered("plain", 2_000), 0)
    write(made, numbered("plain", 3_000), 1)
    write(made, numbered("committed", 500), 0, **{"transactional.id": "commits"})
    aborts = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": "aborts", **QUIET})
    aborts.init_transactions()
    aborts.begin_transaction()
    send(aborts, made.topic, numbered("aborted", 700), 0, made.aborted)
    aborts.abort_transaction()
    write(made, numbered("between", 3_000), 0)
    aborts.begin_transaction()
    send(aborts, made.topic, numbered("aborted late", 300), 0, made.aborted)
    write(made, numbered("after", 3_000), 0)
    aborts.abort_transaction()  # its marker is in the newest segment


def rows_of(reader: DataSourceReader, parts: "list[InputPartition] | None" = None) -> list[Row]:
    """As executors read: each partition by a reader that came by pickle."""
    planned = list(reader.partitions()) if parts is None else parts
    found: list[Row] = []
    for part in planned:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(part))):
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            found += zip(*columns, strict=True)
    return found


def batch_reader(tiered: Tiered, **options: str) -> BarnabasReader:
    return BarnabasReader(source_options(tiered.options(**options), streaming=False), COLUMNS)


def slices_of(parts: "list[InputPartition]") -> list[TierSlice]:
    return [each for part in parts if isinstance(part, TierTask) for each in part.parts if isinstance(each, TierSlice)]


ISOLATION = pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])


def expected(tiered: Tiered, isolation: str) -> list[Row]:
    rows = tiered.committed if isolation == "read_committed" else tiered.committed + tiered.aborted
    return sorted(rows)


@ISOLATION
def test_rows_from_the_store_and_the_brokers_are_all_there_are_each_once(tiered: Tiered, isolation: str) -> None:
    reader = batch_reader(tiered, tierReads="direct", **{"kafka.isolation.level": isolation})
    there = {str(path.relative_to(tiered.root)) for number in (0, 1) for path in tiered.segments(number)}
    parts = list(reader.partitions())
    assert there <= {each.key for each in slices_of(parts)}
    assert sorted(rows_of(reader, parts)) == expected(tiered, isolation)


@ISOLATION
def test_rows_through_the_brokers_are_the_same(tiered: Tiered, isolation: str) -> None:
    reader = batch_reader(tiered, tierReads="never", **{"kafka.isolation.level": isolation})
    parts = list(reader.partitions())
    assert not slices_of(parts)
    assert sorted(rows_of(reader, parts)) == expected(tiered, isolation)
    consumer = Consumer(
        {"bootstrap.servers": tiered.bootstrap, "group.id": "one", "isolation.level": isolation, **QUIET}
    )
    consumer.assign([TopicPartition(tiered.topic, number, 0) for number in (0, 1)])
    wanted, seen = expected(tiered, isolation), []
    while len(seen) < len(wanted) and (message := consumer.poll(60)) is not None:
        assert message.error() is None
        seen.append((message.partition(), message.offset(), message.value()))
    consumer.close()
    assert sorted(seen) == wanted


def test_offsets_and_options_cut_what_is_read_from_the_store(tiered: Tiered) -> None:
    limits = {
        "startingOffsets": '{"history":{"0":1234,"1":77}}',
        "endingOffsets": '{"history":{"0":5000,"1":1999}}',
    }
    wanted = [
        row for row in expected(tiered, "read_uncommitted") if (1234, 77)[row[0]] <= row[1] < (5000, 1999)[row[0]]
    ]
    for divided in ({}, {"maxRecordsPerPartition": "150"}, {"minPartitions": "40"}):
        reader = batch_reader(tiered, tierReads="direct", **limits, **divided)
        parts = list(reader.partitions())
        assert sorted(rows_of(reader, parts)) == wanted
        if divided:
            assert len(parts) > 20


def test_stream_that_catches_up_reads_the_store_and_keeps_the_order_of_a_partition(tiered: Tiered) -> None:
    options = source_options(tiered.options(startingOffsets="earliest", tierReads="direct"), streaming=True)
    reader = BarnabasStreamReader(options, COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts = list(reader.partitions(start, end))
    assert len(parts) == 2 and slices_of(parts)
    for part in parts:
        rows = [
            row
            for batch in reader.read(part)
            for row in zip(*(batch.column(c).to_pylist() for c in COLUMNS), strict=True)
        ]
        assert rows == sorted(rows)
        assert set(rows) == {row for row in expected(tiered, "read_uncommitted") if row[0] == rows[0][0]}
    reader.stop()


@ISOLATION
def test_store_alone_has_the_tiered_records(tiered: Tiered, isolation: str) -> None:
    reader = SegmentReader(
        log_options({"path": tiered.url, "topic": tiered.topic, "isolationLevel": isolation}), COLUMNS
    )
    found = sorted(rows_of(reader))
    ends = {number: max(row[1] for row in found if row[0] == number) for number in (0, 1)}
    assert all(end > 2_000 for end in ends.values())
    wanted = [row for row in expected(tiered, isolation) if row[1] <= ends[row[0]]]
    assert found == wanted


def test_segment_deleted_between_plan_and_read_is_requested_from_the_brokers_and_reported_as_lost(
    tiered: Tiered,
) -> None:
    leaving = new_topic(tiered, "leaving", 1)
    write(leaving, numbered("gone", 4_000), 0)
    wait(lambda: len(leaving.segments(0)) >= 2, "segments in the store")
    reader, patient = (batch_reader(leaving, tierReads="direct", failOnDataLoss=fails) for fails in ("true", "false"))
    parts = list(reader.partitions())
    (first, *_) = slices_of(parts)
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap, **QUIET})
    ends = admin.delete_records([TopicPartition(leaving.topic, 0, first.until_offset + 10)])
    (low,) = [each.result(60).low_watermark for each in ends.values()]
    wait(lambda: not (tiered.root / first.key).exists(), "the segment to go from the store")
    with pytest.raises(DataLoss):
        rows_of(reader, parts)
    assert [row[1] for row in rows_of(patient)] == list(range(low, 4_000))


def test_as_of_an_offset_or_a_time_is_the_same_whenever_it_is_asked(tiered: Tiered) -> None:
    at_offsets = batch_reader(tiered, asOf='{"history":{"0":2100,"1":3000}}')
    before = sorted(rows_of(at_offsets))
    now = str(int(time.time() * 1000))
    time.sleep(0.01)
    by_time = sorted(rows_of(batch_reader(tiered, asOf=now)))
    assert by_time == expected(tiered, "read_uncommitted")
    write(tiered, numbered("later", 50), 1)
    assert sorted(rows_of(at_offsets)) == before
    assert sorted(rows_of(batch_reader(tiered, asOf=now))) == by_time
    with pytest.raises(ConfigError, match="in the future"):
        batch_reader(tiered, asOf="2126-01-01T00:00Z").partitions()


def test_unreadable_store_is_skipped_unless_it_is_required(
    tiered: Tiered, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = f"file://{tmp_path}"
    with pytest.raises(ConfigError, match="tierReads=direct"):
        batch_reader(tiered, tierReads="direct", tierUrl=empty).partitions()
    parts = list(batch_reader(tiered, tierUrl=empty).partitions())
    assert not slices_of(parts)
    assert "through the brokers" in caplog.text


def test_wrong_options_are_refused() -> None:
    base = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    for options, said in (
        ({"tierReads": "perhaps"}, "use auto, direct or never"),
        ({"asOf": "yesterday"}, "use a time"),
        ({"asOf": "2026-11-01T00:00"}, "without a time zone"),
        ({"asOf": '{"t":{"0":-1}}'}, "the ends of the log move"),
        ({"asOf": "1", "endingOffsets": "latest"}, "give one of them"),
    ):
        with pytest.raises(ConfigError, match=said):
            source_options(base | options, streaming=False)
