"""Tables of topics for tests: defined and filled as `barnabas tables` does it, and read by other libraries."""

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import polars
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from barnabas.client.config import client_config
from barnabas.spark.tables import filling
from barnabas.spark.tables.catalogue import Catalogue
from barnabas.spark.tables.definition import Definition, checked
from barnabas.spark.tables.filling import Cluster, Filled
from barnabas.spark.tables.storing import catalog_settings
from barnabas.testing import Kafka

#: (key, value, partition)
Record = tuple[str | None, object, int]


class Tables:
    """The tables of one test, filled as `barnabas tables run` does it, but without its loop."""

    def __init__(self, spark: SparkSession, kafka: Kafka, folder: Path) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.cluster = Cluster({"bootstrap.servers": kafka.bootstrap})

    def define(self, name: str, *, partitions: int = 1, **given: Any) -> Definition:
        topic = self.kafka.topic(name, partitions=partitions)
        with Catalogue(client_config(self.kafka.bootstrap)) as catalogue:
            known_by = {"name": name, "topic": topic, "topic_id": catalogue.topic_id(topic)}
        return checked(Definition(**{**known_by, "url": str(self.folder / name), **given}))

    def produce(self, table: Definition, *records: Record) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for key, value, partition in records:
            data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            producer.produce(table.topic, value=data, key=key, partition=partition, headers=[("h", b"1")])
        assert producer.flush(60) == 0

    def fill(self, table: Definition, *, records_max: int = 1_000_000) -> Filled:
        return filling.fill(self.spark, table, self.cluster, records_max=records_max)


def polars_rows(table: Definition) -> list[dict[str, Any]]:
    """Read the rows with Polars' readers of both formats."""
    if table.format == "delta":
        return polars.read_delta(table.url).to_dicts()
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # this planner is installed
    known = load_catalog("barnabas", **catalog_settings(table))
    try:
        return polars.scan_iceberg(known.load_table(table.table)).collect().to_dicts()
    finally:
        known.close()


def duckdb_rows(table: Definition, query: str) -> list[tuple[Any, ...]]:
    """Query the rows with DuckDB over an Arrow dataset (its own extensions for both formats need the network)."""
    if table.format == "delta":
        lake = DeltaTable(table.url.removeprefix("file://")).to_pyarrow_dataset()
    else:
        known = load_catalog("barnabas", **catalog_settings(table))
        lake = known.load_table(table.table).scan().to_arrow()
        known.close()
    return duckdb.connect().register("lake", lake).sql(query).fetchall()
