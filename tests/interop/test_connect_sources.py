"""`barnabas connect` runs the files of source connectors on a real PostgreSQL."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from barnabas.testing import Cluster
from tests.interop.connect_command import jdbc, records, run_once
from tests.interop.postgresql import ask, server

pytestmark = pytest.mark.timeout(1_200)

PACKAGE = "org.apache.kafka.connect.transforms."


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        yield uri


def test_tables_become_topics_and_go_on_where_they_ended(uri: str, tmp_path: Path) -> None:
    ask(
        uri,
        "CREATE TABLE orders (id bigserial PRIMARY KEY, item text, price numeric(8,2), at timestamp)",
        "INSERT INTO orders (item, price, at) VALUES ('pen', 1.50, '2026-01-02 03:04:05'), (NULL, NULL, NULL)",
        "CREATE TABLE people (id int PRIMARY KEY, name text)",
        "INSERT INTO people VALUES (1, 'Ann')",
    )
    source = {
        "name": "shop",
        "config": {
            "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
            "connection.url": jdbc(uri),
            "mode": "incrementing",
            "incrementing.column.name": "id",
            "topic.prefix": "pg-",
            "numeric.mapping": "best_fit",
            "table.whitelist": "orders,public.people",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "transforms": "key,id",
            "transforms.key.type": PACKAGE + "ValueToKey",
            "transforms.key.fields": "id",
            "transforms.id.type": PACKAGE + "ExtractField$Key",
            "transforms.id.field": "id",
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
        },
    }
    with Cluster(brokers=1) as cluster:
        run_once(tmp_path, cluster.bootstrap, source)
        ask(uri, "INSERT INTO orders (item) VALUES ('ink')")
        run_once(tmp_path, cluster.bootstrap, source)
        found = records(cluster.bootstrap, "pg-orders", 3)
        assert [each.key() for each in found] == [b"1", b"2", b"3"]
        assert [json.loads(each.value() or b"") for each in found] == [
            {"id": 1, "item": "pen", "price": 1.5, "at": 1_767_323_045_000},
            {"id": 2, "item": None, "price": None, "at": None},
            {"id": 3, "item": "ink", "price": None, "at": None},
        ]
        assert [each.value() for each in records(cluster.bootstrap, "pg-people", 1)] == [b'{"id":1,"name":"Ann"}']


def test_debeziums_file_gives_its_events_and_goes_on_where_it_ended(uri: str, tmp_path: Path) -> None:
    ask(
        uri,
        "CREATE SCHEMA inventory",
        "CREATE TABLE inventory.customers (id SERIAL PRIMARY KEY, first_name VARCHAR(255) NOT NULL, email TEXT)",
        "CREATE TABLE inventory.orders (id INT PRIMARY KEY, total NUMERIC(8,2))",
        "INSERT INTO inventory.customers (first_name, email) VALUES ('Anne', 'a@x')",
    )
    address = urlsplit(uri)
    # The example of Debezium's documentation; the addresses are this test's, and the converters those of the worker there.
    source = {
        "name": "inventory-connector",
        "config": {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": address.hostname,
            "database.port": str(address.port),
            "database.user": "me",
            "database.password": "postgres",
            "database.dbname": "postgres",
            "topic.prefix": "fulfillment",
            "table.include.list": "inventory.customers,inventory.orders",
            "plugin.name": "pgoutput",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
        },
    }
    with Cluster(brokers=1) as cluster:
        run_once(tmp_path, cluster.bootstrap, source)
        ask(
            uri,
            "INSERT INTO inventory.orders VALUES (5, 1.50)",
            "UPDATE inventory.customers SET email = NULL",
            "DELETE FROM inventory.customers",
        )
        run_once(tmp_path, cluster.bootstrap, source)
        found = records(cluster.bootstrap, "fulfillment.inventory.customers", 4)
        assert [json.loads(each.key() or b"") for each in found] == [{"id": 1}] * 4
        events = [json.loads(each.value() or b"null") for each in found]
        row = {"id": 1, "first_name": "Anne", "email": "a@x"}
        assert [(each["op"], each["before"], each["after"]) for each in events[:3]] == [
            ("r", None, row),
            ("u", None, row | {"email": None}),
            ("d", {"id": 1, "first_name": "", "email": None}, None),
        ]
        assert events[3] is None
        source_of = events[1]["source"]
        assert (source_of["db"], source_of["schema"], source_of["table"]) == ("postgres", "inventory", "customers")
        [order] = records(cluster.bootstrap, "fulfillment.inventory.orders", 1)
        assert json.loads(order.value() or b"")["after"] == {"id": 5, "total": "AJY="}
    assert ask(uri, "SELECT slot_name::text, plugin::text FROM pg_replication_slots") == [("debezium", "pgoutput")]
