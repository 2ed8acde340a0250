"""Empties a sink for a full refresh: its rows are deleted, and all rows are written again. Counts first, then deletes.

Delta, Iceberg   all rows are deleted in one commit; older versions can still be read
SQL              all rows are deleted
Parquet          the folder is deleted, with Spark's list of its batches
topic            all records are deleted (Kafka's DeleteRecords); offsets go on from the end
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.base.errors import BarnabasError
from barnabas.spark.pipelines.connector import Sink
from barnabas.spark.pipelines.database import Database, execute, fetch
from barnabas.spark.pipelines.sinks.delta_table import storage_of
from barnabas.spark.pipelines.sinks.iceberg_table import load_catalog_of


class CannotEmpty(BarnabasError):
    """The sink cannot be emptied. The message says why."""


@dataclass(frozen=True)
class Stock:
    """The contents of a sink."""

    what: str
    rows: int
    unit: str = "rows"

    def __str__(self) -> str:
        return f"{self.what} with {self.rows:,} {self.unit}"


def stock_of(sink: Sink) -> Stock:
    return _visit(sink, empty=False)


def empty(sink: Sink) -> Stock:
    """Empty the sink, and return what was in it."""
    return _visit(sink, empty=True)


def _visit(sink: Sink, *, empty: bool) -> Stock:
    match sink.format:
        case "barnabas-delta" | "barnabas-delta-upsert":
            return _delta(sink, empty=empty)
        case "barnabas-iceberg":
            return _iceberg(sink, empty=empty)
        case "barnabas-sql":
            return _sql(sink, empty=empty)
        case "parquet":
            return _parquet(sink, empty=empty)
        case "barnabas":
            return asyncio.run(_topic(sink, empty=empty))
    raise CannotEmpty(f"format {sink.format} is not ours")


def _delta(sink: Sink, *, empty: bool) -> Stock:
    from deltalake import DeltaTable

    path, storage = sink.options["path"].removeprefix("file://"), storage_of(sink.options) or None
    if not DeltaTable.is_deltatable(path, storage):
        return Stock(f"Delta table {path}", 0)
    table = DeltaTable(path, storage_options=storage)
    rows = table.count()
    if empty and rows:
        table.delete()
    return Stock(f"Delta table {path}, version {table.version()}", rows)


def _iceberg(sink: Sink, *, empty: bool) -> Stock:
    from pyiceberg.exceptions import NoSuchTableError

    name = sink.options["table"]
    catalog = load_catalog_of(sink.options)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return Stock(f"Iceberg table {name}", 0)
    rows = table.scan().count()
    if empty and rows:
        table.delete()
    return Stock(f"Iceberg table {name}", rows)


def _sql(sink: Sink, *, empty: bool) -> Stock:
    database, table = Database(sink.options["uri"]), sink.options["table"]
    what = f"table {table} of {database.name}"
    with database.connect() as connection:
        if not database.table_columns(connection, table):
            return Stock(what, 0)
        [found] = fetch(connection, f"SELECT count(*) AS n FROM {database.quoted(table)}")
        if empty:
            execute(connection, f"DELETE FROM {database.quoted(table)}")
            connection.commit()
    return Stock(what, int(found["n"]))


def _parquet(sink: Sink, *, empty: bool) -> Stock:
    path = sink.options["path"].removeprefix("file://")
    if "://" in path:
        raise CannotEmpty(f"{path} is not a local folder: delete it yourself")
    files = list(Path(path).rglob("*.parquet")) if Path(path).is_dir() else []
    if empty and Path(path).is_dir():
        # Delete it even without files: Spark's list of batches would make a new query leave out its first ones as written.
        shutil.rmtree(path)
    return Stock(f"Parquet folder {path}", len(files), "files")


async def _topic(sink: Sink, *, empty: bool) -> Stock:
    from barnabas.base.ids import TopicPartition
    from barnabas.base.words import EARLIEST, LATEST
    from barnabas.client.admin.partitions import delete_records, list_offsets
    from barnabas.client.asynchronous import AsyncClient
    from barnabas.client.config import client_config
    from barnabas.client.errors import check

    name = sink.options.get("topic")
    if name is None:
        raise CannotEmpty("the rows name their topics: delete their records yourself")
    kafka: dict[str, Any] = {key[6:]: value for key, value in sink.options.items() if key.startswith("kafka.")}
    bootstrap = kafka.pop("bootstrap.servers")
    async with AsyncClient(client_config(bootstrap, kafka, client_id="barnabas-pipeline")) as cluster:
        known = await cluster.topics({name})
        found = known.get(name)
        places = [TopicPartition(name, part.index) for part in found.partitions] if found is not None else []
        first = await list_offsets(cluster, dict.fromkeys(places, EARLIEST))
        ends = await list_offsets(cluster, dict.fromkeys(places, LATEST))
        rows = sum(ends[place].offset - first[place].offset for place in places)
        if empty and rows:
            for place, (_, code) in (await delete_records(cluster, {p: ends[p].offset for p in places})).items():
                check(code, str(place))
    return Stock(f"topic {name}", rows, "offsets")
