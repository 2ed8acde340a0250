"""History in an object store, in queries of Spark: straight from the store, and the store alone."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import barnabas.spark
from barnabas.testing import Cluster

RECORDS = 3_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    root = tmp_path_factory.mktemp("store")
    config = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{root}",
        "remote.log.manager.task.interval.ms": "100",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    }
    with Cluster(brokers=1, config=config) as cluster:
        settings = {"remote.storage.enable": "true", "segment.bytes": "16000", "local.retention.bytes": "1"}
        cluster.create_topic("history", partitions=1, config=settings)
        for first in range(0, RECORDS, 100):
            cluster.produce("history", [f"value {number}" for number in range(first, first + 100)])
        yield cluster, f"file://{root}"


def test_queries_read_the_store_and_the_rest_from_brokers(spark: SparkSession, store: tuple[Cluster, str]) -> None:
    cluster, url = store
    barnabas.spark.register(spark)
    deadline_s = time.monotonic() + 60
    while len(list(Path(url[7:]).rglob("*.indexes"))) < 2:
        assert time.monotonic() < deadline_s, "no segments in the store"
        time.sleep(0.05)
    frame = (
        spark.read.format("barnabas")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", "history")
        .option("tierReads", "direct")
        .load()
    )
    assert frame.rdd.getNumPartitions() >= 3
    rows = frame.select("offset", frame.value.cast("string").alias("value")).collect()
    assert {(row.offset, row.value) for row in rows} == {(number, f"value {number}") for number in range(RECORDS)}
    assert len(rows) == RECORDS

    alone = spark.read.format("barnabas-log").load(url).selectExpr("max(offset)", "count(*)").first()
    assert alone is not None
    last, count = alone
    assert count == last + 1 >= 1_000
