"""Brokers that speak SCRAM over TLS with each other, whose sessions end every few seconds."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from secured import SCRAM_MODULE, bootstrap_of
from tests.pki import Authority

from barnabas.auth.scram import ScramCredential, ScramMechanism
from barnabas.cli.local_cluster import LocalCluster
from barnabas.coordination import paths
from barnabas.coordination.config_store import ConfigStore
from barnabas.coordination.registration import create_top_level_paths
from barnabas.coordination.session import ZooKeeperSession
from barnabas.coordination.session_config import SessionConfig
from barnabas.core.clock import SystemClock

PASSWORD = "between-us"


@pytest.fixture
def coordinator() -> Iterator[str]:
    """A ZooKeeper that knows the brokers' credential before there is a broker."""

    async def store(connect: str) -> None:
        session = ZooKeeperSession(SessionConfig(hosts=connect))
        await session.start()
        try:
            await create_top_level_paths(session)
            mechanism = ScramMechanism.SHA_512
            held = ScramCredential.of_password(mechanism, PASSWORD, salt=secrets.token_bytes(16), iterations=4096)
            config = ConfigStore(session, SystemClock())
            await config.write(paths.USERS, "broker", {mechanism.sasl_name: held.encode()})
        finally:
            await session.stop()

    with LocalCluster(brokers=0) as cluster:
        asyncio.run(store(cluster.zookeeper_connect))
        yield cluster.zookeeper_connect


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
        admin.create_topics([NewTopic(topic, 2, 2, config={"min.insync.replicas": "2"})])[topic].result(30)
        outcome: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s:
            for _ in range(20):
                producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
            producer.flush(30)
        assert outcome and set(outcome) == {None}
        for broker_id in cluster.broker_ids:
            text = cluster.log(broker_id)
            assert "has expired and was not authenticated again" not in text
            assert PASSWORD not in text
