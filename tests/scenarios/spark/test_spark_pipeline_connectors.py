"""Connectors of pipelines on a real Spark: reading, writing, and batches that come twice but are written once."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from barnabas.spark.pipelines import sinks, sources
from barnabas.spark.pipelines.connector import Sink


def run(sink: Sink, frame: DataFrame, checkpoint: Path) -> None:
    """Read all present rows from the position in the checkpoint."""
    query = sink.writer(frame, checkpoint=str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(300)
    assert not query.isActive


def forget_last_commit(checkpoint: Path) -> None:
    """Make the checkpoint look as if Spark had died after the sink published the last batch, and before Spark noted it."""
    commits = [each for each in (checkpoint / "commits").iterdir() if each.name.isdigit()]
    last = max(commits, key=lambda each: int(each.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def rows_of(database: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def change(database: Path, *statements: str, many: Sequence[tuple[Any, ...]] = ()) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for statement in statements:
            if many:
                connection.executemany(statement, many)
            else:
                connection.execute(statement)
        connection.commit()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    database = tmp_path / "shop.db"
    change(database, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price REAL, at TIMESTAMP, paid BOOLEAN)")
    change(
        database,
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
        many=[(n, f"item {n % 3}", n / 2, f"2026-01-01 00:00:{n:02}", n % 2) for n in range(10)],
    )
    return database


def test_table_is_followed_into_delta_and_a_batch_that_comes_again_is_there_once(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    orders = sources.table(f"sqlite:///{shop}", "orders", incrementing="id", max_rows=4)
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    sink = sinks.delta(str(lake), partition_by=["item"])
    run(sink, orders.stream(spark), checkpoint)
    assert DeltaTable(lake).version() == 3, "created, then 4 + 4 + 2 rows"

    change(shop, "INSERT INTO orders VALUES (10, NULL, NULL, NULL, NULL)")
    run(sink, orders.stream(spark), checkpoint)
    forget_last_commit(checkpoint)
    run(sink, orders.stream(spark), checkpoint)

    table = DeltaTable(lake).to_pyarrow_table().sort_by("id")
    assert table["id"].to_pylist() == list(range(11))
    assert table["item"].to_pylist() == [*(f"item {n % 3}" for n in range(10)), None]
    assert table["paid"].to_pylist()[:2] == [False, True]
    assert table["at"].to_pylist()[9].isoformat() == "2026-01-01T00:00:09"
    on_disk = {each.name for each in lake.rglob("*.parquet")}
    assert on_disk == {Path(uri).name for uri in DeltaTable(lake).file_uris()}, "nothing is left of the second attempt"

    with pytest.raises(
        StreamingQueryException, match="does not take these rows: the rows have no column price, at, paid"
    ):
        run(sink, orders.stream(spark).select("id", "item"), tmp_path / "other")


def test_iceberg_has_a_batch_that_comes_twice_once(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    orders = sources.table(f"sqlite:///{shop}", query="SELECT id, item FROM orders", incrementing="id")
    sink, checkpoint = sinks.iceberg("shop.orders", catalog=catalog), tmp_path / "checkpoint"
    run(sink, orders.stream(spark), checkpoint)
    forget_last_commit(checkpoint)
    run(sink, orders.stream(spark), checkpoint)
    sink.write(orders.batch(spark).where("id < 2"))

    known = load_catalog("barnabas", **catalog)
    table = known.load_table("shop.orders").scan().to_arrow().sort_by("id")
    assert table["id"].to_pylist() == [0, 0, 1, 1, *range(2, 10)]
    known.close()


def test_sql_sink_upserts_the_last_row_of_a_key_and_deletes_once(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    changes = tmp_path / "changes"
    changes.mkdir()

    def arrive(name: str, *rows: dict[str, object]) -> None:
        (changes / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    schema = "id LONG, item STRING, version INT, gone BOOLEAN"
    stream = sources.files(str(changes), format="json", schema=schema, max_files=1).stream(spark)
    sink = sinks.sql(f"sqlite:///{shop}", "stock", mode="upsert", key=["id"], order_by="version", delete_column="gone")
    checkpoint = tmp_path / "checkpoint"
    arrive("1", {"id": 1, "item": "b", "version": 2}, {"id": 1, "item": "a", "version": 1}, {"id": 2, "item": "x"})
    run(sink, stream, checkpoint)
    assert rows_of(shop, "SELECT * FROM stock ORDER BY id") == [(1, "b", 2), (2, "x", None)]

    arrive("2", {"id": 2, "version": 3, "gone": True}, {"id": 3, "item": "c", "version": 1})
    run(sink, stream, checkpoint)
    change(shop, "INSERT INTO stock VALUES (2, 'back by hand', 9)")
    forget_last_commit(checkpoint)
    run(sink, stream, checkpoint)
    assert rows_of(shop, "SELECT * FROM stock ORDER BY id") == [(1, "b", 2), (2, "back by hand", 9), (3, "c", 1)]
    assert rows_of(shop, "SELECT name FROM sqlite_master WHERE name LIKE 'barnabas_stage%'") == []

    appended = sinks.sql(f"sqlite:///{shop}", "log")
    appended.write(spark.range(5).withColumn("at", F.lit("2026-01-01").cast("timestamp")))
    assert rows_of(shop, "SELECT count(*), min(id), max(id) FROM log") == [(5, 0, 4)]


def test_errors_name_a_bad_value_and_missing_columns(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    change(shop, "CREATE TABLE typed (id INTEGER, amount INTEGER)", "INSERT INTO typed VALUES (1, 'a lot')")
    with pytest.raises(Exception, match=r"typed, column amount: not a int64.*a lot"):
        sources.table(f"sqlite:///{shop}", "typed").batch(spark).collect()
    with pytest.raises(Exception, match=r"shop\.db: .*no such table: main\.nowhere|nowhere"):
        sources.table(f"sqlite:///{shop}", "nowhere").batch(spark)
    with pytest.raises(Exception, match="needs the option cursor"):
        run(
            sinks.delta(str(tmp_path / "d")),
            sources.table(f"sqlite:///{shop}", "orders").stream(spark),
            tmp_path / "c",
        )
    nested = spark.createDataFrame([(1, {"a": 1})], "id INT, tags MAP<STRING, INT>")
    with pytest.raises(Exception, match=r"column tags is map<string,int>.*to_json"):
        sinks.sql(f"sqlite:///{shop}", "nested").write(nested)


def test_synthetic_rows_are_the_same_each_time_and_go_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {"n": "sequence:100", "die": "uniform:1..6", "share": "uniform:0.0..1.0", "colour": "choice:red,blue"}
    source = sources.synthetic(kinds | {"at": "timestamp", "ok": "boolean"}, rows_per_second=100, rows=120_000, seed=7)
    frame = source.batch(spark)
    assert frame.rdd.getNumPartitions() == 2
    summary = frame.agg(
        F.count("*"), F.min("n"), F.max("n"), F.min("die"), F.max("die"), F.countDistinct("colour")
    ).first()
    assert summary is not None
    assert tuple(summary) == (120_000, 100, 120_099, 1, 6, 2)
    assert frame.limit(20).drop("at").collect() == source.batch(spark).limit(20).drop("at").collect()

    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    few = sources.synthetic({"n": "sequence"}, rows_per_second=50_000, rows=300)
    for _ in range(2):
        run(sinks.parquet(str(out)), few.stream(spark), checkpoint)
    assert sorted(row.n for row in spark.read.parquet(str(out)).collect()) == list(range(300))
