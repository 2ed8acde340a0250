"""Sinks of pipelines: topics, Parquet, Delta, Iceberg, PostgreSQL, SQLite. No JAR in any of them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from barnabas.spark.pipelines.connector import Sink, register_topics, registering, text_options, topic_options

__all__ = ["Sink", "delta", "iceberg", "make_topic", "parquet", "sql", "topic"]


def topic(
    name: str | None = None,
    *,
    bootstrap: str,
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once",
    partitions: int | None = None,
    replication_factor: int = -1,
    options: Mapping[str, str] | None = None,
) -> Sink:
    """A topic of any Kafka cluster. Rows have `value`, may have `key`, `headers`, `partition`; without `name` also `topic`.

    With `partitions`, the topic is made before the first write if it is missing. `options`: any other of the format `barnabas`,
    such as `kafka.compression.type` or `kafka.security.protocol`.
    """
    given = topic_options(bootstrap) | text_options(deliveryGuarantee=delivery, topic=name)
    given |= dict(options or {})
    make = None
    if partitions is not None:
        if name is None:
            raise ValueError("sinks.topic can only make a topic that it knows by name")
        kafka = {key.removeprefix("kafka."): value for key, value in given.items() if key.startswith("kafka.")}
        make = partial(make_topic, name, kafka, partitions, replication_factor)
    return Sink("barnabas", given, register_topics, prepare=make)


def make_topic(name: str, kafka: Mapping[str, str], partitions: int, replication_factor: int) -> None:
    """Create the topic unless it exists."""
    import asyncio

    from barnabas.client.admin.topics import NewTopic, ensure_topic
    from barnabas.client.asynchronous import AsyncClient
    from barnabas.client.config import client_config

    async def create() -> None:
        settings = {key: value for key, value in kafka.items() if key != "bootstrap.servers"}
        async with AsyncClient(
            client_config(kafka["bootstrap.servers"], settings, client_id="barnabas-pipeline")
        ) as cluster:
            new = NewTopic(name=name, partitions=partitions, replication_factor=replication_factor)
            await ensure_topic(cluster, new)

    asyncio.run(create())


def parquet(path: str, *, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None) -> Sink:
    """Parquet files, by Spark itself; `_spark_metadata` in the folder makes streams exactly-once."""
    return Sink("parquet", {"path": path} | dict(options or {}), partition_by=tuple(partition_by))


def delta(
    path: str,
    *,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    storage: Mapping[str, str] | None = None,
) -> Sink:
    """A Delta table at this folder or URI, made by the first batch. `storage`: options of `deltalake` for object stores.

    Rows that the table cannot take are refused before any is written. With `merge_schema` columns that it lacks are added.
    """
    options = {"path": path} | text_options(partitionBy=list(partition_by) or None, mergeSchema=merge_schema or None)
    options |= {f"storage.{key}": value for key, value in (storage or {}).items()}
    return Sink("barnabas-delta", options, registering("barnabas.spark.pipelines.sinks.delta_table", "DeltaSource"))


def iceberg(table: str, *, catalog: Mapping[str, str], merge_schema: bool = False) -> Sink:
    """An Iceberg table `namespace.name`; `catalog` is what pyiceberg's `load_catalog` takes (`type`, `uri`, `warehouse`, …).

    The catalog's `name`, which some kinds store with the table, is "barnabas" unless `catalog` has another. Rows that the
    table cannot take are refused before any is written. With `merge_schema` columns are added, and widened.
    """
    options = {"table": table} | text_options(mergeSchema=merge_schema or None)
    options |= {f"catalog.{key}": value for key, value in catalog.items()}
    return Sink(
        "barnabas-iceberg", options, registering("barnabas.spark.pipelines.sinks.iceberg_table", "IcebergSource")
    )


def sql(
    uri: str,
    table: str,
    *,
    mode: Literal["append", "upsert"] = "append",
    key: Sequence[str] = (),
    order_by: str | None = None,
    delete_column: str | None = None,
    create: bool = True,
    merge_schema: bool = False,
    options: Mapping[str, str] | None = None,
) -> Sink:
    """A table of PostgreSQL (`postgresql://…`) or SQLite (`sqlite:///…`).

    `upsert` replaces rows by `key`; within a batch the row with the largest `order_by` wins, else the last. Rows whose boolean
    `delete_column` is true are deleted by key. `create`: make the table if it is missing. Rows whose columns the table does not
    have, or has in another type, are refused before any is written; with `merge_schema` columns that it lacks are added.
    Columns that the database fills itself (a default, an identity, a generated column) may be left out. `options`: any other of
    the format `barnabas-sql`, such as `acceptReplannedBatch`.
    """
    given = text_options(
        uri=uri,
        table=table,
        mode=mode,
        key=list(key) or None,
        orderBy=order_by,
        deleteColumn=delete_column,
        createTable=create,
        mergeSchema=merge_schema or None,
    )
    given |= dict(options or {})
    return Sink("barnabas-sql", given, registering("barnabas.spark.pipelines.sources.sql_query", "SqlSource"))
