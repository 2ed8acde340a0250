"""Dead letters: their contents and headers, and their replay, which sends each one once."""

import asyncio
import contextlib
import io
import json
from datetime import datetime

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from barnabas.base.ids import Offset
from barnabas.base.ids import TopicPartition as Partition
from barnabas.cli.main import app
from barnabas.client import error_headers as names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.replay import ReplayError, ReplayPlan, ReplayReport, judge, replay
from barnabas.spark.destinations import marked
from barnabas.spark.pipelines import sinks
from barnabas.spark.pipelines._fields import TransformError
from barnabas.spark.pipelines.codecs import Json, decode, encode
from barnabas.spark.pipelines.dead_letter import dead_letters, header_text, restore, split, to_topics
from barnabas.testing import Kafka
from barnabas.wire.record_decode import Record

AT = datetime(2024, 5, 6, 7, 8, 9)


@pytest.fixture(scope="module")
def decoded(spark: SparkSession) -> DataFrame:
    """A good record, and one that is not JSON and was a dead letter before."""
    old = [("trace", b"t"), (names.TOPIC, b"older"), (names.REPLAYS, b"1")]
    rows = [
        (b"k1", b'{"id": 1}', "orders", 0, 7, AT, [("trace", b"s")]),
        (b"k2", b"{oops", "orders", 1, 9, AT, old),
    ]
    schema = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>"
    )
    return decode(spark.createDataFrame(rows, schema).coalesce(1), Json("id int"))


def test_good_and_bad_records_are_separated_and_a_dead_letter_has_its_place_and_reason(decoded: DataFrame) -> None:
    good, bad = split(decoded)
    assert [row.data.id for row in good.collect()] == [1]
    (letter,) = dead_letters(bad, "dead", pipeline="shop").collect()
    assert (letter.topic, letter.key, letter.value, letter.timestamp) == ("dead", b"k2", b"{oops", AT)
    message = b"topic orders, partition 1, offset 9: value: not JSON of struct<id:int>: {oops"
    assert [(one.key, bytes(one.value)) for one in letter.headers] == [
        ("trace", b"t"),
        ("__barnabas.replays", b"1"),
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"1"),
        ("__connect.errors.offset", b"9"),
        ("__connect.errors.connector.name", b"shop"),
        ("__connect.errors.task.id", b"1"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", b"barnabas.spark.pipelines.codecs.MalformedJson"),
        ("__connect.errors.exception.class.name", b"barnabas.spark.pipelines.codecs.MalformedJson"),
        ("__connect.errors.exception.message", message),
    ]


def test_a_sink_with_the_name_of_the_good_topic_writes_dead_letters_to_theirs(
    decoded: DataFrame, kafka: Kafka, spark: SparkSession
) -> None:
    """Also through a sink that creates the topic, and so needs its name."""
    clean, dead = kafka.name("clean"), kafka.topic("dead")
    ready = encode(decoded, Json(), into="out", mode="PERMISSIVE")
    sinks.topic(clean, bootstrap=kafka.bootstrap, partitions=1).write(
        to_topics(ready, topic=clean, dead_letter_topic=dead, value="out")
    )

    def values(topic: str) -> list[bytes]:
        reader = spark.read.format("barnabas").option("kafka.bootstrap.servers", kafka.bootstrap)
        return [bytes(row.value) for row in reader.option("subscribe", topic).load().collect()]

    assert (values(clean), values(dead)) == ([b'{"id":1}'], [b"{oops"])


def test_one_dataframe_carries_good_records_and_dead_letters_and_a_letter_can_be_restored(decoded: DataFrame) -> None:
    ready = encode(decoded, Json(), into="out", mode="PERMISSIVE")
    both = to_topics(ready, topic="clean", dead_letter_topic="dead", value="out").cache()
    good, bad = both.collect()
    assert (good.topic, good.key, bytes(good.value), len(good.headers)) == ("clean", b"k1", b'{"id":1}', 1)
    assert (bad.topic, bad.key, bytes(bad.value)) == ("dead", b"k2", b"{oops")
    assert both.schema["topic"].metadata == marked("clean")
    assert dead_letters(split(decoded).bad, "dead").schema["topic"].metadata == marked("dead")
    letters = both.filter("topic = 'dead'")
    (back,) = restore(letters).withColumn("gone", lit(None)).collect()
    assert (back.topic, bytes(back.value), [one.key for one in back.headers]) == (
        "orders",
        b"{oops",
        ["trace", names.REPLAYS],
    )
    assert letters.select(header_text(letters, names.OFFSET), header_text(letters, "none")).first() == ("9", None)
    with pytest.raises(TransformError, match="'value' is struct<id:int>, but a dead letter keeps the bytes"):
        dead_letters(decoded.withColumn("value", decoded["data"]), "dead")
    with pytest.raises(TransformError, match="column 'data' is struct<id:int>: encode it first"):
        to_topics(decoded, topic="clean", dead_letter_topic="dead", value="data")


def letter(*headers: tuple[str, bytes]) -> Record:
    return Record(Offset(3), 0, b"k", b"v", headers)


def test_a_replayed_letter_goes_to_its_topic_unless_it_came_back_too_often_or_has_no_topic() -> None:
    where, plan = Partition("dead", 2), ReplayPlan(from_topic="dead", replays_max=2)
    origin = (names.TOPIC, b"orders")
    assert judge(letter(("a", b"1"), origin), where, plan) == ("orders", (("a", b"1"), (names.REPLAYS, b"1")), 0, True)
    assert judge(letter(origin, (names.REPLAYS, b"1")), where, plan).headers == ((names.REPLAYS, b"2"),)
    assert judge(letter(origin, (names.REPLAYS, b"2")), where, plan).topic is None
    assert judge(letter(origin, (names.REPLAYS, b"junk")), where, plan).replays == 0
    assert judge(letter(), where, ReplayPlan(from_topic="dead", to_topic="x")).topic == "x"
    with pytest.raises(ReplayError, match=r"dead-2 at offset 3 has no header __connect\.errors\.topic"):
        judge(letter(), where, plan)
    with pytest.raises(ReplayError, match="dead-2 at offset 3 would go back to dead itself"):
        judge(letter((names.TOPIC, b"dead")), where, plan)
    chosen = ReplayPlan(from_topic="dead", exception_class="Json")
    assert not judge(letter(origin, (names.EXCEPTION_CLASS_NAME, b"EOFError")), where, chosen).chosen
    assert chosen.group_id == "barnabas-replay-dead-Json"


def consume(kafka: Kafka, topic: str, count: int) -> list[Message]:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "x", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Message] = []
        while len(found) < count:
            found += consumer.consume(count - len(found), timeout=30)
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0))
        assert high - low >= count
        return found
    finally:
        consumer.close()


def replay_command(kafka: Kafka, *arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as done:
        app(["pipeline", "replay", "--bootstrap-server", kafka.bootstrap, *arguments])
    assert not done.value.code, out.getvalue()
    return out.getvalue()


def test_the_replay_command_sends_each_letter_once_and_goes_on_where_it_was(kafka: Kafka) -> None:
    dead, orders = kafka.topic("dead", partitions=2), kafka.topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number in range(3):
        headers = [("trace", b"t"), (names.TOPIC, orders.encode()), (names.EXCEPTION_CLASS_NAME, b"EOFError")]
        producer.produce(dead, f"v{number}", key="k", partition=number % 2, timestamp=1000 + number, headers=headers)
    producer.flush()
    would = json.loads(replay_command(kafka, "--from", dead, "--dry-run", "--json"))
    assert (would["read"], would["replayed"]) == (3, {orders: 3})
    assert f"2 went to {orders}" in replay_command(kafka, "--from", dead, "--max-records", "2")
    assert f"1 went to {orders}" in replay_command(kafka, "--from", dead)
    assert "read 0 dead letters" in replay_command(kafka, "--from", dead)
    found = consume(kafka, orders, 3)
    assert sorted((one.value(), one.timestamp()[1]) for one in found) == [(b"v0", 1000), (b"v1", 1001), (b"v2", 1002)]
    assert {tuple(one.headers() or ()) for one in found} == {(("trace", b"t"), (names.REPLAYS, b"1"))}
    copies = kafka.topic("copies")
    again = replay_command(kafka, "--from", dead, "--to", copies, "--from-beginning", "--exception-class", "EOF")
    assert f"3 went to {copies}" in again
    none = replay_command(kafka, "--from", dead, "--to", copies, "--exception-class", "Json")
    assert "3 are of another exception class" in none


def test_a_replay_that_was_killed_half_way_leaves_nothing_and_the_next_sends_all(kafka: Kafka) -> None:
    dead, orders = kafka.topic("dead"), kafka.topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number in range(2):
        producer.produce(dead, f"v{number}", headers=[(names.TOPIC, orders.encode())])
    producer.flush()
    plan = ReplayPlan(from_topic=dead)
    # A replay that died with its transaction open leaves a record, and the offsets.
    killed = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": plan.group_id, "log_level": 0})
    killed.init_transactions()
    killed.begin_transaction()
    killed.produce(orders, "half")
    killed.flush()
    reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": plan.group_id})
    killed.send_offsets_to_transaction([TopicPartition(dead, 0, 1)], reader.consumer_group_metadata())
    reader.close()

    async def again() -> ReplayReport:
        async with AsyncClient(client_config(kafka.bootstrap, {}, client_id="test")) as cluster:
            return await replay(cluster, plan)

    report = asyncio.run(again())
    assert report.replayed == {orders: 2}
    assert [one.value() for one in consume(kafka, orders, 2)] == [b"v0", b"v1"]
