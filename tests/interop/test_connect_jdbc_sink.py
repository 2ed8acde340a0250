"""`barnabas connect` runs the JDBC sink's files as they are, into a real PostgreSQL."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.testing import Cluster
from tests.interop.connect_command import jdbc, records, run_once
from tests.interop.postgresql import ask, server

#: Two starts of Spark, on a machine that may be busy.
pytestmark = pytest.mark.timeout(1_200)

#: From Confluent's documentation of the JDBC sink; the addresses alone are this test's.
ORDERS = {
    "name": "jdbc-sink",
    "config": {
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": "orders",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "connection.url": "",
        "auto.create": "true",
        "auto.evolve": "true",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "pk.mode": "record_key",
        "pk.fields": "id",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "orders-dead",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "transforms": "mask,clock",
        "transforms.mask.type": "org.apache.kafka.connect.transforms.MaskField$Value",
        "transforms.mask.fields": "card",
        "transforms.clock.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        "transforms.clock.offset.field": "place",
    },
}
FIELDS = [
    {"type": "string", "optional": True, "field": "product"},
    {"type": "int32", "optional": False, "field": "quantity"},
    {"type": "double", "optional": True, "field": "price"},
    {"type": "string", "optional": True, "field": "card"},
    {"type": "int64", "optional": True, "name": "org.apache.kafka.connect.data.Timestamp", "version": 1, "field": "at"},
]


def envelope(payload: Mapping[str, Any], *more: Mapping[str, Any]) -> str:
    return json.dumps({"schema": {"type": "struct", "optional": False, "fields": [*FIELDS, *more]}, "payload": payload})


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        yield uri


def test_records_become_rows_once_and_bad_ones_dead_letters(uri: str, tmp_path: Path) -> None:
    document = {**ORDERS, "config": {**ORDERS["config"], "connection.url": jdbc(uri)}}  # type: ignore[dict-item]
    first = {"product": "foo", "quantity": 100, "price": 50.5, "card": "4711", "at": 1_795_000_000_000}
    with Cluster(brokers=1) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("orders", envelope(first), "a")
        producer.produce("orders", envelope(first | {"product": "bar"}), "b")
        producer.produce("orders", b"{oops", "c")
        assert producer.flush(30) == 0
        run_once(tmp_path, cluster.bootstrap, document)
        columns = "SELECT id, product, quantity, price, card, at::text, place FROM orders ORDER BY id"
        at = "2026-11-18 11:06:40"
        assert ask(uri, columns) == [("a", "foo", 100, 50.5, "", at, 0), ("b", "bar", 100, 50.5, "", at, 1)]

        # The second start goes on behind the first: a row changes, one goes, and a column is added.
        new = {"type": "boolean", "optional": True, "field": "gift"}
        producer.produce("orders", envelope(first | {"quantity": 7, "gift": True}, new), "a")
        producer.produce("orders", envelope(first | {"price": None}), "d")
        producer.produce("orders", None, "b")
        assert producer.flush(30) == 0
        run_once(tmp_path, cluster.bootstrap, document)
        found = ask(uri, "SELECT id, quantity, price, gift, place FROM orders ORDER BY id")
        assert found == [("a", 7, 50.5, True, 3), ("d", 100, None, None, 4)]

        [letter] = records(cluster.bootstrap, "orders-dead", 1)
        assert (letter.key(), letter.value()) == (b"c", b"{oops")
        headers = dict(letter.headers() or ())
        assert headers["__connect.errors.topic"] == b"orders"
        assert headers["__connect.errors.offset"] == b"2"
        assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
