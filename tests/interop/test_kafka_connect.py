"""Kafka Connect in distributed mode on our brokers: its three internal topics, a source with exactly-once, a sink."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.connect import Worker

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.timeout(600)]


@pytest.fixture
def worker(cluster: LocalCluster, topic: str, tmp_path: Path) -> Iterator[Worker]:
    with Worker(cluster.bootstrap, topic, tmp_path / "first") as worker:
        wait_until(worker.is_ready, what="a worker that answers")
        yield worker


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def committed(bootstrap: str, topic: str) -> list[str]:
    """The values of the topic's one partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        values.append(message.value().decode())
    assert message is not None and message.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return values


def test_lines_of_a_file_reach_another_exactly_once_while_workers_come_and_die(
    cluster: LocalCluster, topic: str, worker: Worker, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    written = [f"line {number}" for number in range(300)]
    source.write_text("".join(f"{line}\n" for line in written[:100]))
    file_source = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(source),
        "topic": topic,
        "tasks.max": "1",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "3",
    }
    file_sink = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": str(sink),
        "topics": topic,
        "tasks.max": "1",
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.auto.offset.reset": "earliest",
    }
    worker.ask("PUT", "/connectors/source/config", file_source)
    worker.ask("PUT", "/connectors/sink/config", file_sink)
    wait_until(lambda: lines(sink) == written[:100], what="the first hundred lines")
    assert worker.states("source") == worker.states("sink") == ["RUNNING", "RUNNING"]

    second = Worker(cluster.bootstrap, topic, tmp_path / "second")
    with second:
        wait_until(second.is_ready, what="a second worker")
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in written[100:200])
        wait_until(lambda: lines(sink) == written[:200], what="two hundred lines")
        second.kill()
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in written[200:])
        wait_until(lambda: set(lines(sink)) == set(written), what="all lines after a worker has died")
    assert committed(cluster.bootstrap, topic) == written  # the sink may repeat lines, the source may not

    worker.ask("PUT", "/connectors/source/stop")
    wait_until(lambda: worker.states("source") == ["STOPPED"], what="a stopped source")
    [offsets] = worker.ask("GET", "/connectors/source/offsets")["offsets"]
    assert offsets["offset"] == {"position": source.stat().st_size}
    worker.ask("DELETE", "/connectors/source/offsets")
    assert worker.ask("GET", "/connectors/source/offsets") == {"offsets": []}
    worker.ask("PUT", "/connectors/sink/stop")
    wait_until(lambda: worker.states("sink") == ["STOPPED"], what="a stopped sink")
    worker.ask("DELETE", "/connectors/sink/offsets")  # of its consumer group
    for connector in ("source", "sink"):
        worker.ask("DELETE", f"/connectors/{connector}")
    assert worker.ask("GET", "/connectors") == []

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    internal = [ConfigResource(ResourceType.TOPIC, f"{topic}-{kind}") for kind in ("config", "offset", "status")]
    for answer in admin.describe_configs(internal).values():
        assert answer.result(30)["cleanup.policy"].value == "compact"
