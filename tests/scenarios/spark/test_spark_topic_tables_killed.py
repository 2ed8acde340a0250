"""Tables in a bucket compared row by row with their topics, while the processes that fill them are killed. Minutes: `make
soak`."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.cli.main import app
from barnabas.client.config import client_config
from barnabas.spark.tables.catalogue import Catalogue
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.places import place_of
from barnabas.testing import Cluster, wait_until
from tests.moto_server import s3_server
from tests.soak.proxy import Proxy
from tests.soak.spark_chain_driver import home_of_its_own
from tests.spark_python import spark_environment
from tests.support.command_line import CliRunner
from tests.topic_tables import polars_rows

PARTITIONS = 3
KILLS = 4
KEYS = 200


@contextlib.contextmanager
def running(bootstrap: str, folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `barnabas tables run` with a Spark of its own, which ends with it: two executors, each a process."""
    program = [str(Path(sys.executable).parent / "barnabas"), "tables", "run", "--bootstrap-server", bootstrap]
    options = ["--master", "local-cluster[2,1,1024]", "--interval", "0.5", "--batch-records", "2000"]
    with open(folder / "run.log", "ab") as log:
        process = subprocess.Popen(
            [*program, *options],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={
                **os.environ,
                **spark_environment(folder),
                **environment,
                "SPARK_HOME": str(home_of_its_own(folder / "home")),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def kill_an_executor(run: subprocess.Popen[bytes], rng: random.Random) -> None:
    """Kill an executor: Spark starts another one, and its tasks again."""

    def executors() -> list[psutil.Process]:
        found = []
        for each in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("CoarseGrainedExecutorBackend" in word for word in each.cmdline()):
                    found.append(each)
        return found

    wait_until(executors, timeout_s=120)
    rng.choice(executors()).kill()


class Store:
    """A server of S3 behind a proxy that can refuse requests."""

    def __init__(self, environment: dict[str, str]) -> None:
        host, _, port = environment["AWS_ENDPOINT_URL"].removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        self._refuses = False
        self.proxy = Proxy(self._target)
        #: Environment of the processes under test, whose requests go through the proxy.
        self.environment = environment | {"AWS_ENDPOINT_URL": f"http://{self.proxy.address}"}

    def _target(self) -> tuple[str, int]:
        if self._refuses:
            raise ConnectionRefusedError
        return self._address

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self._refuses = True
        self.proxy.drop()
        try:
            yield
        finally:
            self._refuses = False


def write(bootstrap: str, topics: list[str], stopped: threading.Event, rng: random.Random) -> None:
    """Write rows, tombstones and now and then bytes that do not fit to all topics."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    number = 0
    while not stopped.wait(0.1):
        for _ in range(20):
            number += 1
            key = rng.randrange(KEYS)
            value = None if number % 11 == 0 else b"bad" if number % 97 == 0 else b'{"n": %d, "k": %d}' % (number, key)
            for topic in topics:
                producer.produce(topic, key=str(key), value=value)
        producer.poll(0)
    assert producer.flush(120) == 0


def records_of(bootstrap: str, topic: str) -> dict[tuple[int, int], tuple[bytes, bytes | None]]:
    """Return the records that a consumer sees, by their place."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "auto.offset.reset": "earliest"})
    places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    ends = sum(consumer.get_watermark_offsets(place, timeout=60)[1] for place in places)
    consumer.assign(places)
    found: dict[tuple[int, int], tuple[bytes, bytes | None]] = {}
    while len(found) < ends:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None
            found[message.partition(), message.offset()] = (message.key(), message.value())
    consumer.close()
    return found


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_every_record_is_in_its_table_once_while_processes_are_killed_and_the_store_refuses(
    kafka_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server("lake") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)  # for the comparison in this process
        store = Store(environment)
        try:
            count_under_kills(kafka_cluster(brokers=3), store, tmp_path)
        finally:
            store.proxy.close()


def count_under_kills(cluster: Cluster, store: Store, tmp_path: Path) -> None:
    rng = random.Random(26)
    topics = {}
    for kind in ("delta", "iceberg"):
        for mode in ("append", "upsert"):
            name = f"{kind}-{mode}"
            cluster.create_topic(name, partitions=PARTITIONS, replication_factor=3)
            given = ["--format", kind, "--mode", mode, "--to", f"s3://lake/{name}", "--compact-files", "8"]
            given += ["--catalog", "type=sql", "--catalog", f"uri=sqlite:///{tmp_path}/lake.db"] * (kind == "iceberg")
            added = CliRunner().invoke(app, ["tables", "add", name, *given, "--bootstrap-server", cluster.bootstrap])
            assert added.exit_code == 0, added.output
            topics[name] = mode
    with Catalogue(client_config(cluster.bootstrap)) as catalogue:
        tables = dict(catalogue.read().tables)
    stopped = threading.Event()
    writer = threading.Thread(target=write, args=(cluster.bootstrap, list(topics), stopped, rng))
    writer.start()
    try:
        for _ in range(KILLS):
            log = tmp_path / "run.log"
            written = log.stat().st_size if log.exists() else 0
            with running(cluster.bootstrap, tmp_path, store.environment) as run:
                # Once it is at work, at any moment of a batch.
                wait_until(lambda: log.read_bytes()[written:].count(b" filling: ") >= 4, timeout_s=300)  # noqa: B023
                time.sleep(rng.uniform(0, 5))
                kill_an_executor(run, rng)
                time.sleep(rng.uniform(0, 3))
                with store.refusing():
                    time.sleep(rng.uniform(0, 3))
                broker = rng.choice(cluster.broker_ids)
                cluster.kill(broker)
                time.sleep(rng.uniform(0, 5))
                assert run.poll() is None, log.read_text()[-2000:]
            cluster.start_broker(broker)
    finally:
        stopped.set()
        writer.join()
    with running(cluster.bootstrap, tmp_path, store.environment):
        for table in tables.values():
            wait_until(lambda: is_complete(cluster.bootstrap, table), timeout_s=600)  # noqa: B023


def is_complete(bootstrap: str, table: Definition) -> bool:
    """Whether the table equals the topic; raises if it never can."""
    if place_of(table).columns() is None or place_of(table.errors()).columns() is None:
        return False
    records = records_of(bootstrap, table.topic)
    bad = {place for place, (_, value) in records.items() if value == b"bad"}
    errors = [(row["_partition"], row["_offset"]) for row in polars_rows(table.errors())]
    assert len(errors) == len(set(errors)), "an error is there twice"
    assert set(errors) <= bad
    rows = polars_rows(table)
    places = [(row["_partition"], row["_offset"]) for row in rows]
    assert len(places) == len(set(places)), "a row is there twice"
    good = {place: record for place, record in records.items() if place not in bad}
    if table.mode == "append":
        wanted = {place: _number(value) for place, (_, value) in good.items()}
    else:
        last = {key: (place, value) for place, (key, value) in sorted(good.items())}
        wanted = {place: _number(value) for place, value in last.values() if value is not None}
    found = {place: row["n"] for place, row in zip(places, rows, strict=True)}
    if table.mode == "append":
        assert found.items() <= wanted.items(), "a row that no record has"
    return found == wanted and set(errors) == bad


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value.split(b'"n": ')[1].split(b",")[0])
