"""The examples on a real Spark and a real cluster, with confluent-kafka on the other side."""

import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import barnabas.spark
from barnabas.testing import Kafka
from barnabas.testing.cluster import Cluster
from barnabas.testing.shared import SharedClusters

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
NOON = datetime(2024, 5, 6, 12, 0)

#: Minutes after noon, and the order: ann's second comes twice; bob's comes in another window; the last moves the time on.
ORDERS: list[tuple[int, dict[str, Any]]] = [
    (1, {"id": 1, "customer": "ann", "card": "4711", "price": 2.5, "pieces": 2}),
    (3, {"id": 2, "customer": "ann", "card": "4711", "price": 1.0, "pieces": 1}),
    (3, {"id": 2, "customer": "ann", "card": "4711", "price": 1.0, "pieces": 1}),
    (12, {"id": 3, "customer": "bob", "card": "0815", "price": 4.0, "pieces": 0}),
    (300, {"id": 4, "customer": "cat", "card": "1", "price": 1.0, "pieces": 1}),
]

Run = Callable[..., None]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shop(kafka_shared_clusters: SharedClusters, kafka_shared_cluster: Cluster) -> Iterator[Kafka]:
    kafka = Kafka(kafka_shared_clusters, kafka_shared_cluster)
    try:
        yield kafka
    finally:
        kafka.close()


def fresh(name: str) -> str:
    """Return a new name for a topic: a test that is run again must not read its former records."""
    return f"{name}-{next(_numbers)}"


def minutes(count: int) -> str:
    return (NOON + timedelta(minutes=count)).isoformat()


def send(shop: Kafka, topic: str, *records: tuple[str | None, object]) -> None:
    producer = Producer({"bootstrap.servers": shop.bootstrap})
    for key, value in records:
        data = value if value is None or isinstance(value, str) else json.dumps(value)
        producer.produce(topic, data, key=key, partition=0)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def orders(shop: Kafka) -> str:
    topic = shop.topic(fresh("orders"), partitions=2)
    send(shop, topic, *[(order["customer"], order | {"at": minutes(at)}) for at, order in ORDERS], (None, "{no order"))
    return topic


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture
def run(spark: SparkSession, shop: Kafka, tmp_path: Path) -> Run:
    """Run an example on all present records."""
    barnabas.spark.register(spark)

    def run(name: str, **parameters: str) -> None:
        checkpoint = str(tmp_path / "checkpoint")
        writer = load(name).pipeline(spark, bootstrap=shop.bootstrap, checkpoint=checkpoint, **parameters)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    return run


def received(shop: Kafka, topic: str, count: int) -> list[tuple[str | None, Any]]:
    """Wait for `count` records; return their keys and values, sorted."""
    settings = {"bootstrap.servers": shop.bootstrap, "group.id": "x", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    found: list[tuple[str | None, Any]] = []
    try:
        partitions = list(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(60)
            assert message is not None, "nothing came"
            if message.error() is not None:
                ended += 1
                continue
            key, value = message.key(), message.value()
            found.append((key.decode() if key else None, json.loads(value) if value else None))
    finally:
        consumer.close()
    assert len(found) == count, found
    return sorted(found, key=repr)


def test_map_values_masks_filters_and_adds_fields(run: Run, shop: Kafka, orders: str) -> None:
    output = shop.topic(fresh("totals"))
    run("map_values", input=orders, output=output)
    found = received(shop, output, 4)
    assert [(key, value["id"], value["total"], value["card"], value["offset"]) for key, value in found] == [
        ("ann", 1, 5.0, "****", 0),
        ("ann", 2, 1.0, "****", 1),
        ("ann", 2, 1.0, "****", 2),
        ("cat", 4, 1.0, "****", 4),
    ]


def test_count_by_key_keeps_a_changelog(run: Run, shop: Kafka, orders: str) -> None:
    output = shop.topic(fresh("customer-totals"))
    run("count_by_key", input=orders, output=output)
    assert received(shop, output, 3) == [
        ("ann", {"orders": 3, "total": 7.0}),
        ("bob", {"orders": 1, "total": 0.0}),
        ("cat", {"orders": 1, "total": 1.0}),
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hopping", [("ann", -5, 5, 3), ("ann", 0, 10, 3), ("bob", 5, 15, 1), ("bob", 10, 20, 1)]),
        ("session", [("ann", 1, 8, 3), ("bob", 12, 17, 1)]),
    ],
)
def test_windows_are_written_to_a_table_once_they_are_closed(
    run: Run, spark: SparkSession, orders: str, tmp_path: Path, kind: str, expected: list[tuple[str, int, int, int]]
) -> None:
    table = str(tmp_path / "sales")
    run("windows", input=orders, table=table, kind=kind)
    rows = spark.read.parquet(table).collect()
    found = [(row.customer, row.start, row.end, row.orders) for row in rows]
    noon = [(customer, NOON + timedelta(minutes=a), NOON + timedelta(minutes=b), n) for customer, a, b, n in expected]
    assert sorted(found) == noon


def test_join_streams_pairs_orders_with_payments_and_reports_unpaid_ones(run: Run, shop: Kafka, orders: str) -> None:
    payments, output = shop.topic(fresh("payments")), shop.topic(fresh("paid"))
    paid = {"order_id": 1, "amount": 5.0, "paid_at": minutes(20)}
    late = {"order_id": 3, "amount": 4.0, "paid_at": minutes(90)}
    send(shop, payments, (None, paid), (None, late), (None, {"order_id": 9, "amount": 0, "paid_at": minutes(300)}))
    run("join_streams", orders=orders, payments=payments, output=output)
    found = [(key, value["id"], value["amount"]) for key, value in received(shop, output, 4)]
    assert found == [("ann", 1, 5.0), ("ann", 2, None), ("ann", 2, None), ("bob", 3, None)]


def test_join_table_takes_the_last_record_of_each_key(run: Run, shop: Kafka, orders: str) -> None:
    customers, output = (
        shop.topic(fresh("customers"), config={"cleanup.policy": "compact"}),
        shop.topic(fresh("labels")),
    )
    ann, moved = {"name": "Ann", "city": "Bonn"}, {"name": "Ann", "city": "Ulm"}
    send(shop, customers, ("ann", ann), ("bob", {"name": "Bob", "city": "Kiel"}), ("ann", moved), ("bob", None))
    run("join_table", orders=orders, customers=customers, output=output)
    found = [(key, value["id"], value["city"]) for key, value in received(shop, output, 5)]
    assert found == [("ann", 1, "Ulm"), ("ann", 2, "Ulm"), ("ann", 2, "Ulm"), ("bob", 3, None), ("cat", 4, None)]


def test_deduplicate_passes_an_order_once(run: Run, shop: Kafka, orders: str) -> None:
    output = shop.topic(fresh("once"))
    run("deduplicate", input=orders, output=output)
    assert [value["id"] for _, value in received(shop, output, 4)] == [1, 2, 3, 4]


def test_timers_remind_of_unpaid_orders(run: Run, spark: SparkSession, shop: Kafka) -> None:
    events, output = shop.topic(fresh("events")), shop.topic(fresh("reminders"))
    known = [(1, "ordered", 0), (2, "ordered", 1), (1, "paid", 5), (3, "ordered", 200)]
    send(shop, events, *[(None, {"order_id": at, "what": what, "at": minutes(when)}) for at, what, when in known])
    setting = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(setting, None)
    example = load("timers")
    cloudpickle.register_pickle_by_value(example)  # executors cannot import it; a script's own classes always travel
    try:
        run("timers", input=events, output=output)
    finally:
        cloudpickle.unregister_pickle_by_value(example)
        spark.conf.unset(setting) if before is None else spark.conf.set(setting, before)
    consumer = Consumer({"bootstrap.servers": shop.bootstrap, "group.id": "y", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(output, 0, 0)])
        message = consumer.poll(60)
        assert message is not None
        assert (message.key(), message.value()) == (b"2", b"order 2 is not paid")
    finally:
        consumer.close()


def test_cdc_to_delta_leaves_the_table_as_the_database_is_also_after_a_restart(
    run: Run, shop: Kafka, tmp_path: Path
) -> None:
    changes, table = shop.topic(fresh("shop.public.customers")), tmp_path / "customers"

    def change(op: str, before: tuple[int, str] | None, after: tuple[int, str] | None) -> dict[str, Any]:
        rows = [None if row is None else {"id": row[0], "name": row[1], "city": "Bonn"} for row in (before, after)]
        return {"op": op, "before": rows[0], "after": rows[1], "ts_ms": 0}

    first = [("1", change("r", None, (1, "Ann"))), ("2", change("c", None, (2, "Bob")))]
    send(shop, changes, *first, ("1", change("u", (1, "Ann"), (1, "Anna"))))
    run("cdc_to_delta", input=changes, table=str(table))
    send(shop, changes, ("2", change("d", (2, "Bob"), None)), ("2", None), ("3", change("c", None, (3, "Cat"))))
    run("cdc_to_delta", input=changes, table=str(table))
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "Anna"), (3, "Cat")]


def test_every_record_is_a_dead_letter_or_a_good_record(run: Run, shop: Kafka, orders: str) -> None:
    output, dead = shop.topic(fresh("clean")), shop.topic(fresh("orders-dead"))
    run("dead_letters", input=orders, output=output, dead=dead)
    assert [value["id"] for _, value in received(shop, output, 4)] == [1, 2, 2, 4]
    consumer = Consumer({"bootstrap.servers": shop.bootstrap, "group.id": "z", "isolation.level": "read_committed"})
    letters = {}
    try:
        consumer.assign([TopicPartition(dead, 0, 0)])
        while len(letters) < 2:
            message = consumer.poll(60)
            assert message is not None
            headers = dict(message.headers() or ())
            letters[message.value()] = (headers or {})["__connect.errors.exception.message"]
    finally:
        consumer.close()
    text = f"topic {orders}, partition 0, offset "
    assert sorted(letter.decode() for letter in letters.values() if letter) == [
        text + "3: expectation 'something to ship' (data.pieces > 0 or error is not null) failed",
        text + "5: value: not JSON of struct<id:bigint,pieces:int>: {no order",
    ]


def test_an_example_prints_its_options_with_help() -> None:
    command = [sys.executable, str(EXAMPLES / "windows.py"), "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    for option in ("--bootstrap", "--input", "--table", "--kind", "--checkpoint", "--continuous"):
        assert option in process.stdout
