"""A connector that is created, paused, set back and resumed by requests, on Spark and a real PostgreSQL."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from barnabas.testing import Cluster, wait_until
from tests.interop.connect_command import jdbc
from tests.interop.postgresql import ask, server

pytestmark = pytest.mark.timeout(3_600)


@contextmanager
def served(folder: Path, bootstrap: str) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "barnabas", "connect", "--bootstrap-server", bootstrap, "--rest-port", "0"]
    options = ["--state", str(folder / "state"), "--master", "local[2]"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready connectors="), line
            with httpx.Client(base_url=line.rpartition("rest=")[2].strip(), timeout=120) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(120) == 0


def test_connector_by_requests(tmp_path: Path) -> None:
    fields = [{"type": "int32", "field": "id"}, {"type": "string", "optional": True, "field": "item"}]
    schema = {"type": "struct", "fields": fields}

    def record(number: int) -> str:
        return json.dumps({"schema": schema, "payload": {"id": number, "item": f"item {number}"}})

    def ids() -> list[int]:
        exists = ask(uri, "SELECT count(*) FROM pg_tables WHERE tablename = 'orders'") == [(1,)]
        return [int(number) for (number,) in ask(uri, "SELECT id FROM orders ORDER BY id")] if exists else []

    with server() as uri, Cluster(brokers=1) as cluster, served(tmp_path, cluster.bootstrap) as rest:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

        def send(*numbers: int) -> None:
            for number in numbers:
                producer.produce("orders", record(number))
            assert producer.flush(30) == 0

        send(1, 2)
        config = {
            "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
            "topics": "orders",
            "connection.url": jdbc(uri),
            "auto.create": "true",
            "insert.mode": "upsert",
            "pk.mode": "record_value",
            "pk.fields": "id",
        }
        made = rest.post("/connectors", json={"name": "orders", "config": config})
        assert made.status_code == 201, made.text
        wait_until(lambda: ids() == [1, 2], timeout_s=900)

        assert rest.put("/connectors/orders/stop").status_code == 204
        send(3)
        ask(uri, "DELETE FROM orders")
        back = {"partition": {"kafka_topic": "orders", "kafka_partition": 0}, "offset": {"kafka_offset": 1}}
        changed = rest.patch("/connectors/orders/offsets", json={"offsets": [back]})
        assert changed.status_code == 200, changed.text
        assert rest.put("/connectors/orders/resume").status_code == 202
        wait_until(lambda: ids() == [2, 3], timeout_s=900)

        assert rest.put("/connectors/orders/stop").status_code == 204
        assert rest.delete("/connectors/orders/offsets").status_code == 200
        assert rest.put("/connectors/orders/resume").status_code == 202
        wait_until(lambda: ids() == [1, 2, 3], timeout_s=900)
        status = rest.get("/connectors/orders/status").json()
        assert [status["connector"]["state"], status["tasks"][0]["state"]] == ["RUNNING", "RUNNING"]
