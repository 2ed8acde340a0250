"""Trino reads the tables of `barnabas tables`: the same rows as in the topic, in both formats, appended and replaced."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from barnabas.testing import Cluster
from tests.interop.trino import JAVA_LEAST, Row, Trino, java_home

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.timeout(900)]  # the first time it downloads 800 MB
PARTITIONS = 2
TABLES = [(kind, mode) for kind in ("delta", "iceberg") for mode in ("append", "upsert")]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Trino's row for a missing value.
_NO_ORDER: dict[str, Any] = dict.fromkeys(("id", "item", "price", "paid", "tags", "buyer"))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def trino(lake: Path) -> Iterator[Trino]:
    home = java_home()
    if home is None:
        pytest.skip(f"needs Java {JAVA_LEAST} or newer, as JAVA_HOME… or in /usr/lib/jvm")
    files = {"fs.native-local.enabled": "true", "local.location": "/"}
    catalogs = {
        "delta": {
            "connector.name": "delta_lake",
            "hive.metastore": "file",
            "hive.metastore.catalog.dir": f"local://{lake}/metastore",
            "delta.register-table-procedure.enabled": "true",
            **files,
        },
        "iceberg": {
            "connector.name": "iceberg",
            "iceberg.catalog.type": "jdbc",
            "iceberg.jdbc-catalog.driver-class": "org.sqlite.JDBC",
            "iceberg.jdbc-catalog.connection-url": f"jdbc:sqlite:{lake}/iceberg.db",
            "iceberg.jdbc-catalog.catalog-name": "barnabas",
            "iceberg.jdbc-catalog.default-warehouse-dir": f"file://{lake}",
            **files,
        },
    }
    with Trino(home, catalogs) as trino:
        yield trino


def test_trino_reads_the_rows_that_the_topic_has(
    kafka_cluster: Callable[..., Cluster], lake: Path, trino: Trino
) -> None:
    kafka = kafka_cluster(brokers=1)
    topic = "orders"
    kafka.create_topic(topic, partitions=PARTITIONS)
    for kind, mode in TABLES:
        name = f"{kind}_{mode}"
        _tables(kafka, "add", topic, "--name", name, "--to", str(lake / name), "--format", kind, "--mode", mode)
    _produce(kafka, topic, range(500))
    _tables(kafka, "run", "--once")
    trino.rows("CREATE SCHEMA delta.lake")
    for mode in ("append", "upsert"):
        place = f"local://{lake}/delta_{mode}"
        trino.rows(f"CALL delta.system.register_table('lake', 'delta_{mode}', '{place}')")
    _assert_same_rows(kafka, topic, trino)

    _produce(kafka, topic, range(500, 700))
    _tables(kafka, "run", "--once")
    _assert_same_rows(kafka, topic, trino)
    [counted] = trino.rows("SELECT count(*) AS n, sum(price) AS paid FROM delta.lake.delta_append WHERE item = 'tea'")
    values = [json.loads(value) for each in _records(kafka, topic) if (value := each.value()) is not None]
    teas = [value["price"] for value in values if value["item"] == "tea"]
    assert (counted["n"], round(counted["paid"], 2)) == (len(teas), round(sum(teas), 2))


def _assert_same_rows(kafka: Cluster, topic: str, trino: Trino) -> None:
    records = _records(kafka, topic)
    newest = {each.key(): each for each in records}
    assert len(newest) < len(records), "keys come several times"
    there = [each for each in newest.values() if each.value() is not None]
    assert len(there) < len(newest), "and some are deleted"
    for kind, mode in TABLES:
        table = f"{'delta.lake' if kind == 'delta' else 'iceberg.default'}.{kind}_{mode}"
        found = trino.rows(f"SELECT * FROM {table}")
        for row in found:
            row["_timestamp"] = _milliseconds(row["_timestamp"])
        wanted = [_row(each) for each in (records if mode == "append" else there)]
        assert sorted(found, key=_place) == sorted(wanted, key=_place), table


def _row(record: Message) -> Row:
    value = record.value()
    headers = [{"key": name, "value": data} for name, data in record.headers() or []]
    beside = {
        "_key": record.key(),
        "_headers": headers or None,
        "_partition": record.partition(),
        "_offset": record.offset(),
        "_timestamp": record.timestamp()[1],
    }
    return {**_NO_ORDER, **({} if value is None else json.loads(value)), **beside}


def _place(row: Row) -> tuple[int, int]:
    return row["_partition"], row["_offset"]


def _milliseconds(text: str) -> int:
    """Parse a text such as `2026-11-17 02:03:36.123 UTC`."""
    return (datetime.fromisoformat(text.removesuffix(" UTC")).replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _produce(kafka: Cluster, topic: str, numbers: range) -> None:
    """Write records: each key has one partition, many records, and now and then a tombstone."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in numbers:
        order = {
            "id": n,
            "item": ("tea", "coffee", "Grüße \u2615")[n % 3],
            "price": n / 4,
            "paid": n % 2 == 0,
            "tags": [f"t{n % 5}", None] if n % 4 else [],
            "buyer": {"name": f"b{n}", "visits": n * 10**12},
        }
        key = n % 83
        value = None if n % 7 == 6 else json.dumps(order).encode()
        headers: list[tuple[str, str | bytes | None]] = [("n", str(n).encode()), ("none", None)] if n % 2 else []
        producer.produce(topic, value, str(key).encode(), key % PARTITIONS, headers=headers)
    assert producer.flush(60) == 0


def _records(kafka: Cluster, topic: str) -> list[Message]:
    """Return all records of the topic, as librdkafka reads them."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    found: list[Message] = []
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None, "the topic's end does not come"
        if message.error():
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return found


def _tables(kafka: Cluster, *arguments: str) -> None:
    command = [sys.executable, "-m", "barnabas", "tables", *arguments, "--bootstrap-server", kafka.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
