"""Small micro-batches: which of them the driver reads, and how Spark gets their rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable

from barnabas.base.ids import TopicPartition
from barnabas.client.errors import ConnectionLost
from barnabas.spark import driver_reads, fetching
from barnabas.spark.driver_reads import BYTES_MAX, DriverReads, HasRows
from barnabas.spark.offsets import OffsetRange
from barnabas.spark.options import SourceOptions, source_options
from barnabas.spark.reader import BarnabasStreamReader
from barnabas.testing import Kafka, wait_until

OPTIONS = source_options(
    {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", "driverReadMaxRecords": "100"}, streaming=True
)


class Client:
    """Counts how often it was opened and closed; its rows are the test's."""

    opened = closed = 0

    def __init__(self, config: object) -> None:
        Client.opened += 1

    def close(self) -> None:
        Client.closed += 1


Reads = Callable[..., list[int] | None]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[DriverReads, Reads]]:
    def make(options: SourceOptions = OPTIONS, *, value_bytes: int = 1) -> tuple[DriverReads, Reads]:
        Client.opened = Client.closed = 0
        monkeypatch.setattr(driver_reads, "BlockingClient", Client)

        def read_small(
            client: object, given: object, ranges: Sequence[OffsetRange], columns: object
        ) -> Iterator[pa.RecordBatch]:
            for wanted in ranges:
                if wanted.partition.topic == "lost":
                    raise ConnectionLost("the broker is gone")
                offsets = range(wanted.from_offset, wanted.until_offset)
                values = [b"x" * value_bytes] * wanted.size
                yield pa.RecordBatch.from_arrays([pa.array(offsets), pa.array(values)], names=["offset", "value"])

        monkeypatch.setattr(fetching, "read_small", read_small)
        machine = DriverReads(options, ("offset", "value"))

        def read(*sizes: int, topic: str = "t") -> list[int] | None:
            ranges = [OffsetRange(TopicPartition(topic, index), 0, size) for index, size in enumerate(sizes)]
            rows = machine.read(ranges)
            return None if rows is None else [batch.num_rows for batch in rows]

        return machine, read

    return make


def test_few_records_are_read_on_the_driver_with_one_client_for_all(reads):
    machine, read = reads()
    assert read(60, 40) == [60, 40]
    assert read(1) == [1]
    assert (Client.opened, Client.closed) == (1, 0)
    machine.close()
    assert Client.closed == 1


def test_many_records_and_empty_ranges_are_left_to_tasks(reads):
    _, read = reads()
    assert read(60, 41) is None
    assert read() is None
    assert Client.opened == 0


@pytest.mark.parametrize(
    "chosen",
    [{"driver_read_max_records": 0}, {"min_partitions": 2}, {"max_records_per_partition": 1000}],
    ids=["turned off", "at least so many tasks", "at most so many records each"],
)
def test_queries_with_options_that_divide_the_work_are_read_by_tasks(reads, chosen: dict[str, int]):
    _, read = reads(replace(OPTIONS, **chosen))
    assert read(1) is None


def test_the_limit_of_records_falls_after_a_batch_of_large_records(reads):
    _, read = reads(value_bytes=BYTES_MAX // 50)
    assert read(30, 30) is None
    assert read(31) is None
    assert read(15, 15) == [15, 15]


def test_a_failed_read_is_left_to_tasks_and_the_next_read_has_a_new_connection(reads):
    _, read = reads()
    assert read(5, topic="lost") is None
    assert (Client.opened, Client.closed) == (1, 1)
    assert read(5) == [5]
    assert Client.opened == 2


def test_a_reader_holds_its_rows_until_spark_asks_for_them():
    class Reader(DataSourceStreamReader):
        def read(self, partition):
            raise AssertionError("no code reads here")

    reader, rows = Reader(), [pa.RecordBatch.from_pylist([{"a": 1}])]
    HasRows.hold(reader, rows)
    assert isinstance(reader, _SimpleStreamReaderWrapper)
    assert list(reader.getCache({}, {})) == rows
    assert type(reader) is Reader
    assert vars(reader) == {}


def test_a_running_query_reads_a_topic_that_was_created_again_from_its_start(kafka: Kafka):
    """The driver's client knows the topic as it was before."""
    topic = kafka.topic("again")
    options = source_options(
        {
            "kafka.bootstrap.servers": kafka.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        },
        streaming=True,
    )
    reader = BarnabasStreamReader(options, ("value",))
    place = reader.initialOffset()

    def read(*values: str) -> list[str]:
        nonlocal place
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(60) == 0
        start, place = place, reader.latestOffset(place, ReadAllAvailable())
        reader.partitions(start, place)
        rows = cast(HasRows, reader).getCache(start, place)
        return [value.decode() for batch in rows for value in cast(pa.RecordBatch, batch).column(0).to_pylist()]

    try:
        assert read("a", "b", "c") == ["a", "b", "c"]
        kafka.cluster.delete_topic(topic)
        wait_until(lambda: topic not in kafka.cluster.topics(), timeout_s=60)
        kafka.cluster.create_topic(topic)
        assert read("d", "e", "f", "g", "h") == ["d", "e", "f", "g", "h"]
        assert read("i") == ["i"]
    finally:
        reader.stop()
