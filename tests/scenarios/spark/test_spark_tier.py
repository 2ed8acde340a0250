"""History in an object store, in queries of Spark: straight from the store, and the store alone."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import barnabas.spark
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST_LOCAL
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.config import client_config
from barnabas.spark.reader import RangePartition, TierTask
from barnabas.spark.tables import filling
from barnabas.spark.tables.catalogue import Catalogue
from barnabas.spark.tables.definition import Definition, checked
from barnabas.spark.tables.filling import Filled
from barnabas.spark.tables.reading import plan_reading
from barnabas.testing import Cluster, wait_until
from tests.topic_tables import polars_rows

RECORDS = 3_000
TIERED = {"remote.storage.enable": "true", "segment.bytes": "16000", "local.retention.bytes": "1"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    root = tmp_path_factory.mktemp("store")
    config = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{root}",
        "remote.log.manager.task.interval.ms": "100",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
    }
    with Cluster(brokers=1, config=config) as cluster:
        cluster.create_topic("history", partitions=1, config=TIERED)
        for first in range(0, RECORDS, 100):
            cluster.produce("history", [f"value {number}" for number in range(first, first + 100)])
        yield cluster, f"file://{root}"


def local_start(cluster: Cluster, topic: str) -> int:
    place = TopicPartition(topic, 0)
    return cluster.ask(lambda client: list_offsets(client, {place: EARLIEST_LOCAL}))[place].offset


def test_queries_read_the_store_and_the_rest_from_brokers(spark: SparkSession, store: tuple[Cluster, str]) -> None:
    cluster, url = store
    barnabas.spark.register(spark)
    wait_until(lambda: local_start(cluster, "history") >= 1_000, timeout_s=60)
    frame = (
        spark.read.format("barnabas")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", "history")
        .option("tierReads", "direct")
        .load()
    )
    assert frame.rdd.getNumPartitions() == 2, "small segments share a task; the tail has another"
    rows = frame.select("offset", frame.value.cast("string").alias("value")).collect()
    assert {(row.offset, row.value) for row in rows} == {(number, f"value {number}") for number in range(RECORDS)}
    assert len(rows) == RECORDS

    everything = spark.read.format("barnabas-log").load(url)
    alone = everything.where("topic = 'history'").selectExpr("max(offset)", "count(*)").first()
    assert alone is not None
    last, count = alone
    assert count == last + 1 >= 1_000


def test_explain_describes_a_query_without_reading(store: tuple[Cluster, str]) -> None:
    cluster, _ = store
    wait_until(lambda: local_start(cluster, "history") >= 1_000, timeout_s=60)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "history"}
    through_brokers = barnabas.spark.explain(
        {**options, "tierReads": "never", "endingOffsets": '{"history": {"0": 2000}}'}
    )
    assert through_brokers.splitlines() == [
        "1 partition, 2,000 offsets: 0 from the object store, 2,000 from brokers. 1 task",
        "  history-0  0 to 2,000: 0 from the store, 2,000 from brokers",
    ]
    direct = barnabas.spark.explain({**options, "tierReads": "direct"})
    found = re.search(r"history-0  0 to 3,000: ([0-9,]+) from the store, ([0-9,]+) from brokers", direct)
    assert found is not None, direct
    in_store, at_brokers = (int(each.replace(",", "")) for each in found.groups())
    assert in_store + at_brokers == RECORDS
    assert in_store >= 1_000


@pytest.mark.parametrize(("kind", "mode"), [("delta", "append"), ("iceberg", "upsert")])
def test_table_has_every_record_of_the_store_and_of_the_tail_once(
    spark: SparkSession, store: tuple[Cluster, str], kind: str, mode: str, tmp_path: Path
) -> None:
    """Batches end before the border of the tier, begin behind it, and one has it in the middle."""
    cluster, _ = store
    topic, keys, count = f"table-{kind}", 100, 2_000
    cluster.create_topic(topic, partitions=1, config=TIERED)

    def produce(first: int, until: int) -> None:
        pieces = [range(at, min(at + 100, until)) for at in range(first, until, 100)]
        for piece in pieces:
            values = [(str(n % keys).encode(), b'{"n": %d, "text": "some more of it"}' % n) for n in piece]
            cluster.produce(topic, values)

    produce(0, count)
    wait_until(lambda: local_start(cluster, topic) > count // 2, timeout_s=60)
    with Catalogue(client_config(cluster.bootstrap)) as catalogue:
        known_by = {"name": "t", "topic": topic, "topic_id": catalogue.topic_id(topic)}
    table = checked(Definition(**known_by, url=str(tmp_path / "t"), format=kind, mode=mode))
    source = filling.Cluster({"bootstrap.servers": cluster.bootstrap}, "direct")
    place = TopicPartition(topic, 0)
    parts = plan_reading(source.options(table), topic, {place: 0}, {place: count}, cores=2).parts
    assert {type(part) for part in parts} == {TierTask, RangePartition}, "some is in the store only, some is not there"
    assert filling.fill(spark, table, source, records_max=700).rows == 700
    assert filling.fill(spark, table, source, records_max=5000).rows == count - 700
    produce(count, count + 50)
    assert filling.fill(spark, table, source, records_max=5000).rows == 50
    assert filling.fill(spark, table, source, records_max=5000) == Filled()
    numbers = range(count + 50) if mode == "append" else range(count + 50 - keys, count + 50)
    found = sorted((row["_offset"], row["n"], row["_key"]) for row in polars_rows(table))
    assert found == [(n, n, str(n % keys).encode()) for n in numbers]
