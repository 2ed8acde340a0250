"""A real S3 server, Versity's gateway over a folder, from Go's module proxy: tiered storage, and a Delta table in a bucket.

`s3/go.mod` pins the version. It refuses a conditional `PUT` of an existing object, on which Delta's commits rely.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.ids import TopicPartition as Place
from barnabas.base.words import EARLIEST_LOCAL
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from barnabas.testing import wait_until

pytestmark = pytest.mark.timeout(1200)
HERE = Path(__file__).resolve().parent
PROGRAM = "github.com/versity/versitygw/cmd/versitygw"
LOGIN = {"AWS_ACCESS_KEY_ID": "barnabas", "AWS_SECRET_ACCESS_KEY": "barnabas-secret", "AWS_REGION": "us-east-1"}
RECORDS = 2_000
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program once; Go's own cache makes the next build quick."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs go")
    built = tmp_path_factory.mktemp("s3") / "versitygw"
    done = subprocess.run(
        [go, "build", "-o", str(built), PROGRAM],
        cwd=HERE / "s3",
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode != 0 and "toolchain" in done.stderr:
        pytest.skip(f"needs a newer go: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the environment variables by which clients find it. It has the buckets `tier` and `lake`."""
    folder, notes = tmp_path_factory.mktemp("objects"), tmp_path_factory.mktemp("notes")
    for bucket in ("tier", "lake"):
        (folder / bucket).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    login = ["--access", LOGIN["AWS_ACCESS_KEY_ID"], "--secret", LOGIN["AWS_SECRET_ACCESS_KEY"]]
    with (folder.parent / "versitygw.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *login, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(notes), str(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: _answers(port), timeout_s=TIMEOUT_S)
        yield {**LOGIN, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def cluster(server: dict[str, str]) -> Iterator[LocalCluster]:
    config = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": "s3://tier/history",
        "rsm.config.aws_endpoint": server["AWS_ENDPOINT_URL"],
        "rsm.config.aws_access_key_id": server["AWS_ACCESS_KEY_ID"],
        "rsm.config.aws_secret_access_key": server["AWS_SECRET_ACCESS_KEY"],
        "rsm.config.aws_region": server["AWS_REGION"],
        "remote.log.manager.task.interval.ms": "200",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "100",
    }
    with LocalCluster(brokers=1, config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    """Return a topic of which most records are only in the bucket."""
    settings = {"remote.storage.enable": "true", "segment.bytes": "20000", "local.retention.bytes": "1"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 1, config=settings)])["orders"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce("orders", json.dumps({"id": number, "item": "tea"}), key=str(number))
        if number % 100 == 99:
            assert producer.flush(TIMEOUT_S) == 0
    place = Place("orders", 0)
    with BlockingClient(client_config(cluster.bootstrap)) as client:
        wait_until(lambda: client.list_offsets({place: EARLIEST_LOCAL})[place] > RECORDS // 2, timeout_s=TIMEOUT_S)
    return "orders"


def test_history_in_the_bucket_is_read_by_consumers(cluster: LocalCluster, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while len(found) < RECORDS:
        messages = consumer.consume(1000, TIMEOUT_S)
        assert messages, f"nothing after {len(found)} records"
        found += [json.loads(message.value())["id"] for message in messages]
    consumer.close()
    assert found == list(range(RECORDS))


@pytest.mark.usefixtures("java")
def test_delta_table_in_the_bucket_has_every_record_of_the_tier_and_the_tail(
    cluster: LocalCluster, topic: str, server: dict[str, str]
) -> None:
    """Polars reads the table. The tasks read history from the bucket, too."""
    command = [str(Path(sys.executable).parent / "barnabas"), "tables"]
    here = ["--bootstrap-server", cluster.bootstrap]
    for arguments in (
        ["add", topic, "--to", "s3://lake/orders"],
        ["run", "--once", "--master", "local[2]", "--tier-reads", "direct", "--batch-records", "900"],
        ["run", "--once", "--master", "local[2]"],
    ):
        done = subprocess.run(
            [*command, *arguments, *here],
            env={**os.environ, **server},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rows = polars.read_delta("s3://lake/orders", storage_options=server).select("id", "_offset").sort("_offset")
    assert rows.rows() == [(number, number) for number in range(RECORDS)]
