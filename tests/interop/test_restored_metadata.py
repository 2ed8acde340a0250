"""A backup of Apache Kafka's metadata, and Apache Kafka on its old logs with the metadata restored into an empty ZooKeeper."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.cli.main import app
from barnabas.testing import wait_until
from tests.interop.kinds import APACHE, OURS, MixedCluster
from tests.support.command_line import CliRunner

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("java")]
SETTINGS = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
RECORDS = [b"coffee", b"tea", b"milk"]


def command(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout.splitlines()


def read(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("plain", 0, 0)])
    found: list[bytes | None] = []

    def has_all() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) == count

    wait_until(has_all, 90, what="records")
    consumer.close()
    return found


def write(bootstrap: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce("plain", value)
    assert producer.flush(90) == 0


@pytest.mark.parametrize("kind", [APACHE, OURS])
def test_kafka_finds_its_logs_again_with_restored_metadata(kind: str, tmp_path: Path) -> None:
    with MixedCluster(kinds={1: APACHE}, config=SETTINGS) as cluster:
        at = ("--bootstrap-server", cluster.bootstrap)
        for topic, partitions in (("plain", "1"), ("orders", "3")):
            command(
                "topics",
                *at,
                "--create",
                "--topic",
                topic,
                "--partitions",
                partitions,
                "--config",
                "retention.ms=7200000",
            )
        write(cluster.bootstrap, RECORDS)
        command("acls", *at, "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
        of_alice = ("--alter", "--entity-type", "users", "--entity-name", "alice", "--add-config")
        command("configs", *at, *of_alice, "SCRAM-SHA-512=[password=secret]")
        command("configs", *at, *of_alice, "consumer_byte_rate=1048576")
        by_znodes, by_brokers = tmp_path / "znodes.json", tmp_path / "brokers.json"
        command("metadata", "backup", str(by_znodes), "--zookeeper", cluster.zookeeper)
        command("metadata", "backup", str(by_brokers), *at)
        one, other = json.loads(by_znodes.read_text()), json.loads(by_brokers.read_text())
        for part in ("cluster_id", "topics", "quotas", "acls", "brokers"):
            assert one[part] == other[part], part
        assert one["scram"]["alice"]["SCRAM-SHA-512"].startswith("salt=")

        cluster.stop(1)
        cluster.zookeeper += "/restored"
        command("metadata", "restore", str(by_znodes), "--zookeeper", cluster.zookeeper)
        cluster.start(1, kind)
        write(cluster.bootstrap, [b"more"])
        assert read(cluster.bootstrap, 4) == [*RECORDS, b"more"]
        again = tmp_path / "again.json"
        command("metadata", "backup", str(again), "--zookeeper", cluster.zookeeper)
    found = json.loads(again.read_text())
    for part in ("cluster_id", "quotas", "acls", "brokers", "scram"):
        assert found[part] == one[part], part
    ids = {each["name"]: each["id"] for each in found["topics"]}
    assert all(ids[each["name"]] == each["id"] for each in one["topics"])
