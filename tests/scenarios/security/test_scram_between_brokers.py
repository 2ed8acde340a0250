"""Brokers that use SCRAM over TLS between each other, with sessions of a few seconds."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from tests.pki import Authority
from tests.scenarios.security.secured import SCRAM_MODULE, bootstrap_of
from tests.support.command_line import CliRunner, Result

PASSWORD = "between-us"


def configs(connect: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["configs", "--zookeeper", connect, *arguments])


@pytest.fixture
def coordinator() -> Iterator[str]:
    """A ZooKeeper that has the brokers' credential before there is a broker."""
    with LocalCluster(brokers=0) as cluster:
        done = configs(
            cluster.zookeeper_connect, "--alter", "--entity-type", "users", "--entity-name", "broker",
            "--add-config", f"SCRAM-SHA-512=[iterations=8192,password={PASSWORD}]",
        )  # fmt: skip
        assert (done.exit_code, done.stdout) == (
            0,
            "Completed updating config for entity: user-principal 'broker'.\n",
        ), done.stderr
        yield cluster.zookeeper_connect


def test_zookeeper_takes_nothing_but_credentials_of_users(coordinator: str) -> None:
    user = ("--alter", "--entity-type", "users", "--entity-name", "broker")
    for refused, words in (
        ((*user, "--add-config", "producer_byte_rate=1"), "only supported for SCRAM credentials"),
        (("--alter", "--entity-type", "topics", "--entity-name", "t", "--add-config", "a=b"), "--bootstrap-server"),
        ((*user, "--delete-config", "SCRAM-SHA-256"), "Invalid config(s): SCRAM-SHA-256"),
        (("--describe", "--entity-type", "users"), "to describe, use --bootstrap-server"),
    ):
        done = configs(coordinator, *refused)
        assert done.exit_code == 1
        assert words in done.stderr
    assert configs(coordinator, *user, "--delete-config", "SCRAM-SHA-512").exit_code == 0
    assert "Invalid config(s)" in configs(coordinator, *user, "--delete-config", "SCRAM-SHA-512").stderr


def test_replication_goes_on_while_sessions_end_and_are_renewed(coordinator: str, tmp_path: Path, topic: str) -> None:
    authority = Authority.create(tmp_path)
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_SSL",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.internal.scram-sha-512.sasl.jaas.config": (
            f'{SCRAM_MODULE} required username="broker" password="{PASSWORD}";'
        ),
        "listener.name.internal.scram-sha-512.connections.max.reauth.ms": "2000",
        "listener.name.internal.ssl.keystore.type": "PEM",
        "listener.name.internal.ssl.keystore.location": str(authority.issue("broker", subject="/CN=broker")),
        "listener.name.internal.ssl.truststore.type": "PEM",
        "listener.name.internal.ssl.truststore.location": str(authority.certificate),
    }
    with LocalCluster(brokers=2, zookeeper=coordinator, config=config) as cluster:
        bootstrap = bootstrap_of(cluster, "PLAINTEXT")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 2, 2, config={"min.insync.replicas": "2"})])[topic].result(60)
        outcome: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s:
            for _ in range(20):
                producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
            producer.flush(60)
        assert outcome and set(outcome) == {None}
        for broker_id in cluster.broker_ids:
            text = cluster.log(broker_id)
            assert "has expired and was not authenticated again" not in text
            assert PASSWORD not in text
