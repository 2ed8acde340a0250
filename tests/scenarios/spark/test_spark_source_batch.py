"""Format `barnabas` in batch queries: a real cluster, real Spark, another client's records."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from barnabas.testing import Kafka

Reader = Callable[..., DataFrame]
#: Records here have times long past, which retention would take to heart.
KEEP = {"retention.ms": "-1"}


@pytest.fixture
def load(spark: SparkSession, kafka: Kafka) -> Reader:
    """`load(subscribe="t", minPartitions=3)`: a data frame of format barnabas."""
    import barnabas.spark

    barnabas.spark.register(spark)

    def make(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("barnabas").option("kafka.bootstrap.servers", kafka.bootstrap)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        return (reader.schema(schema) if schema else reader).load()

    return make


def produce(
    kafka: Kafka, topic: str, count: int, *, partition: int = 0, start_ms: int = 1_700_000_000_000, **settings: object
):
    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, **settings})
    for index in range(count):
        producer.produce(
            topic,
            key=None if index % 5 == 4 else f"k{index}",
            value=None if index % 7 == 6 else f"value-{partition}-{index}",
            partition=partition,
            timestamp=start_ms + index * 1000,
            headers=[("n", str(index).encode()), ("n", None)] if index % 3 == 0 else None,
            on_delivery=delivered,
        )
    assert producer.flush(60) == 0


def test_rows_are_those_of_the_official_source(load: Reader, kafka: Kafka):
    topic = kafka.topic(partitions=3, config=KEEP)
    for partition, codec in enumerate(("none", "lz4", "zstd")):
        produce(kafka, topic, 40, partition=partition, **{"compression.type": codec})
    frame = load(subscribe=topic, includeHeaders=True, minPartitions=7)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert frame.rdd.getNumPartitions() == 7
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert len(rows) == 120
    for (partition, offset), row in rows.items():
        assert (row.topic, row.timestampType) == (topic, 0)
        assert row.key == (None if offset % 5 == 4 else b"k%d" % offset)
        assert row.value == (None if offset % 7 == 6 else b"value-%d-%d" % (partition, offset))
        assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(1_700_000_000 + offset, UTC)
        expected = [("n", b"%d" % offset), ("n", None)] if offset % 3 == 0 else None
        assert (None if row.headers is None else [tuple(header) for header in row.headers]) == expected


def offsets_of(frame: DataFrame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}


def test_offsets_timestamps_and_strategies_bound_what_is_read(load: Reader, kafka: Kafka):
    topic, other = kafka.topic("where", partitions=2, config=KEEP), kafka.topic("else", config=KEEP)
    produce(kafka, topic, 10, partition=0, start_ms=1_000_000)
    produce(kafka, topic, 10, partition=1, start_ms=2_000_000)
    produce(kafka, other, 3)

    def offsets(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    everything = {0: list(range(10)), 1: list(range(10))}
    cases: list[tuple[dict[str, object], dict[int, list[int]]]] = [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, everything),
        ({"startingOffsets": offsets(-2, 8), "endingOffsets": offsets(2, -1)}, {0: [0, 1], 1: [8, 9]}),
        ({"startingTimestamp": 1_008_000, "endingTimestamp": 2_001_000}, {0: [8, 9], 1: [0]}),
        ({"startingOffsetsByTimestamp": offsets(1_008_001, 2_009_000)}, {0: [9], 1: [9]}),
        ({"startingTimestamp": 2_009_000, "startingOffsetsByTimestampStrategy": "latest"}, {1: [9]}),
        # The global time wins over times by partition, and those over offsets.
        ({"startingTimestamp": 1_009_000, "startingOffsetsByTimestamp": offsets(0, 0)}, {0: [9], 1: list(range(10))}),
        ({"endingOffsetsByTimestamp": offsets(1_001_000, 0), "endingOffsets": "latest"}, {0: [0]}),
        ({"startingOffsets": offsets(3, 3), "endingOffsets": offsets(3, 4)}, {1: [3]}),
        # -1 is latest and -2 earliest, as in the official connector.
        ({"endingOffsetsByTimestamp": offsets(-1, -2)}, {0: list(range(10))}),
        ({"startingOffsetsByTimestamp": offsets(-1, -2)}, {1: list(range(10))}),
    ]
    for options, expected in cases:
        assert offsets_of(load(subscribe=topic, **options)) == expected, options
    assert offsets_of(load(assign=json.dumps({topic: [1]}), maxRecordsPerPartition=4)) == {1: list(range(10))}
    assert load(assign=json.dumps({topic: [1]}), maxRecordsPerPartition=4).rdd.getNumPartitions() == 3
    both = load(schema="offset long, topic string", subscribePattern=f"{topic}|{other}")
    assert both.columns == ["offset", "topic"]
    counts = {row.topic: row["count"] for row in both.groupBy("topic").count().collect()}
    assert counts == {topic: 20, other: 3}
    prefix = topic.rsplit("-", 1)[0]
    assert load(subscribePattern=f"no-{prefix}").count() == 0  # the whole name must match, and none is no error


def test_errors_say_why_a_query_cannot_be_read(load: Reader, kafka: Kafka):
    topic = kafka.topic("words", partitions=2, config=KEEP)
    produce(kafka, topic, 5, start_ms=1_000_000)
    missing = kafka.name("missing")
    cases: list[tuple[dict[str, object], str]] = [
        ({"subscribe": missing}, f"topic {missing} does not exist"),
        ({"assign": json.dumps({topic: [1, 7]})}, f"option 'assign' names {topic}-7, which the cluster does not have"),
        ({"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1}})}, f"Assigned: {topic}-0, {topic}-1"),
        ({"subscribe": topic, "startingTimestamp": 2_000_000}, f"No offset matched from request of .*{topic}-0"),
        ({"subscribe": topic, "startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"subscribe": topic, "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": topic, "kafka__auto.offset.reset": "earliest"}, "Kafka option 'auto.offset.reset' is not"),
        ({"subscribe": topic, "schema": "value string"}, "column 'value' is binary, not string"),
        ({"subscribe": topic, "schema": "payload binary"}, "there is no column 'payload'"),
        (
            {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 90, "1": 0}})},
            f"{topic}-0 .* offset 90 to 5",
        ),
    ]
    for options, message in cases:
        with pytest.raises(Exception, match=message):
            load(**options).collect()


def test_filters_become_offsets_where_spark_pushes_them(load: Reader, kafka: Kafka, spark: SparkSession):
    topic = kafka.topic("filters", partitions=3, config=KEEP)
    for partition in range(3):
        produce(kafka, topic, 30, partition=partition, start_ms=1_700_000_000_000)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        some = load(subscribe=topic, filterPushdown=True).filter("partition > 0 and offset >= 10 and offset < 12")
        assert offsets_of(some) == {1: [10, 11], 2: [10, 11]}
        assert some.rdd.getNumPartitions() == 2
        late = load(subscribe=topic, filterPushdown=True).filter(
            "partition = 2 and timestamp >= to_timestamp(1700000028)"
        )
        assert offsets_of(late) == {2: [28, 29]}
        assert late.rdd.getNumPartitions() == 1
        none = load(subscribe=topic, filterPushdown=True).filter("offset in (3, 7) and topic = 'elsewhere'")
        assert offsets_of(none) == {}
        few = load(subscribe=topic, filterPushdown=True).filter("offset in (3, 7) and key = 'k7'")
        assert offsets_of(few) == {0: [7], 1: [7], 2: [7]}
        # Spark 4.3 mixes up the filters of a frame that is used twice: without the option nothing is pushed, all is right.
        frame = load(subscribe=topic)
        twice = frame.filter("partition = 0 and offset < 2").union(frame.filter("partition = 1 and offset < 1"))
        assert offsets_of(twice) == {0: [0, 1], 1: [0]}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert load(subscribe=topic, filterPushdown=True).filter("partition = 0 and offset > 27").count() == 2


def test_read_committed_hides_aborted_and_open_transactions(load: Reader, kafka: Kafka):
    topic = kafka.topic("txn", config={"message.timestamp.type": "LogAppendTime"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name("id")})
    producer.init_transactions(60)
    for attempt, commit in enumerate((True, False, True, None)):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, value=f"{attempt}-{index}")
        producer.flush(60)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
    committed = load(subscribe=topic, **{"kafka.isolation.level": "read_committed"})
    rows = committed.orderBy("offset").collect()
    assert [row.value for row in rows] == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]
    assert {row.timestampType for row in rows} == {1}
    assert [row.offset for row in rows] == [0, 1, 2, 8, 9, 10]
    assert load(subscribe=topic).count() == 12
    producer.abort_transaction(60)


def test_many_small_partitions_are_read_by_one_task_without_what_was_aborted(load: Reader, kafka: Kafka):
    topic = kafka.topic("many", partitions=70, config=KEEP)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name("id")})
    producer.init_transactions(60)
    for commits in (True, False, True):
        producer.begin_transaction()
        for partition in range(69):
            producer.produce(topic, "seen" if commits else "aborted", partition=partition)
        assert producer.flush(60) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(60)
    produce(kafka, topic, 5, partition=69)
    frame = load(subscribe=topic, kafka__isolation__level="read_committed", kafka__max__partition__fetch__bytes=90)
    assert frame.rdd.getNumPartitions() == 1
    rows = frame.select("partition", "offset", "value").collect()
    seen = [(partition, offset) for partition in range(69) for offset in (0, 4)]
    assert [(row.partition, row.offset) for row in rows] == [*seen, *((69, offset) for offset in range(5))]
    assert {row.value for row in rows if row.partition != 69} == {b"seen"}


def test_records_that_are_gone_end_the_query_or_are_skipped(load: Reader, kafka: Kafka):
    topic = kafka.topic("gone", config=KEEP)
    produce(kafka, topic, 20)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (future,) = admin.delete_records([KafkaTopicPartition(topic, 0, 15)]).values()
    future.result(60)
    start = json.dumps({topic: {"0": 5}})
    with pytest.raises(Exception, match=f"Cannot fetch offset 5 of {topic}-0.*failOnDataLoss"):
        load(subscribe=topic, startingOffsets=start).collect()
    assert offsets_of(load(subscribe=topic, startingOffsets=start, failOnDataLoss=False)) == {0: [15, 16, 17, 18, 19]}
