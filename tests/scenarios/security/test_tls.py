"""SSL and SASL_SSL on a real cluster whose brokers speak TLS with each other: good, wrong and missing certificates."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import ClusterFailed, LocalCluster
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import client_config
from barnabas.client.errors import AuthenticationFailed, ClientError
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.pki import Authority
from tests.scenarios.security.secured import ALICE, PLAIN_MODULE, bootstrap_of

RECORD = b"x" * 900_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pki"))


def config(authority: Authority, broker: Path) -> dict[str, str]:
    return {
        "listeners": "SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "listener.security.protocol.map": "SSL:SSL,MUTUAL:SSL,SASL_SSL:SASL_SSL",
        "inter.broker.listener.name": "MUTUAL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/L,DEFAULT",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{ALICE[0]}="{ALICE[1]}";',
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker;User:alice",
        "message.max.bytes": "2000000",
    }


@pytest.fixture(scope="module")
def tls_cluster(authority: Authority) -> Iterator[LocalCluster]:
    broker = authority.issue("broker", subject="/O=Test/CN=Broker")
    with LocalCluster(brokers=2, config=config(authority, broker)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Path:
    return authority.issue("alice", subject="/O=Test/CN=Alice")


def mutual(cluster: LocalCluster, authority: Authority, key: Path, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap_of(cluster, "MUTUAL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(key),
        "ssl.key.location": str(key),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def own(authority: Authority, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_large_records_travel_both_ways_for_the_owner_of_a_certificate(
    tls_cluster: LocalCluster, authority: Authority, alice: Path, topic: str
) -> None:
    """Acknowledged by both brokers, which replicate over TLS, and read from files that no socket can send itself."""
    settings = mutual(tls_cluster, authority, alice)
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 2, config={"min.insync.replicas": "2"})])[topic].result(60)
    outcome: list[KafkaError | None] = []
    producer = Producer({**settings, "acks": "all", "message.max.bytes": 2_000_000})
    for number in range(12):
        producer.produce(topic, b"%d" % number + RECORD, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    assert outcome == [None] * 12
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        for number in range(12):
            message = consumer.poll(60)
            assert message is not None and message.error() is None
            assert message.value() == b"%d" % number + RECORD
    finally:
        consumer.close()


def test_sasl_over_tls_with_aiokafka_and_kafka_python(
    tls_cluster: LocalCluster, authority: Authority, topic: str
) -> None:
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    secure = {
        "bootstrap_servers": bootstrap_of(tls_cluster, "SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": ALICE[0],
        "sasl_plain_password": ALICE[1],
        "ssl_context": trust,
    }
    producer = kafka.KafkaProducer(**secure)
    try:
        assert producer.send(topic, RECORD).get(60).offset == 0
    finally:
        producer.close()

    async def story() -> None:
        async with asyncio.timeout(60):
            async with AIOKafkaProducer(**secure) as producer:
                await producer.send_and_wait(topic, b"hello")
            async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **secure) as consumer:
                assert (await consumer.getone()).value == RECORD
                assert (await consumer.getone()).value == b"hello"

    asyncio.run(story())


def test_principal_of_a_certificate_decides(tls_cluster: LocalCluster, authority: Authority) -> None:
    bob = authority.issue("bob", subject="/O=Test/CN=Bob")
    admin = AdminClient(mutual(tls_cluster, authority, bob))
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("bobs", 1, 1)])["bobs"].result(60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def reach(address: str, settings: dict[str, str]) -> None:
    host, port = address.split(":")
    with BlockingConnection(host, int(port), client_config(address, settings)) as connection:
        connection.request(MetadataRequest(topics=[]), MetadataResponse)


def test_client_without_a_certificate_is_refused_where_one_is_required(
    tls_cluster: LocalCluster, authority: Authority
) -> None:
    reach(bootstrap_of(tls_cluster, "SSL").split(",")[0], own(authority))
    address = bootstrap_of(tls_cluster, "MUTUAL").split(",")[0]
    with pytest.raises(AuthenticationFailed, match="certificate required"):
        reach(address, own(authority))

    async def with_our_async_client() -> None:
        async with AsyncClient(client_config(address, own(authority))) as cluster:
            await cluster.refresh(())

    with pytest.raises(AuthenticationFailed, match="certificate required"):
        asyncio.run(with_our_async_client())


def test_client_with_a_certificate_of_another_authority_is_refused(
    tls_cluster: LocalCluster, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority.create(tmp_path, "Stranger").issue("mallory", subject="/CN=Alice")
    address = bootstrap_of(tls_cluster, "MUTUAL").split(",")[0]
    with pytest.raises(AuthenticationFailed, match="unknown ca"):
        reach(address, own(authority, ssl_keystore_type="PEM", ssl_keystore_location=str(stranger)))


async def test_client_does_not_trust_a_broker_of_another_authority(tls_cluster: LocalCluster, tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path, "Stranger")
    address = bootstrap_of(tls_cluster, "SSL").split(",")[0]
    with pytest.raises(AuthenticationFailed, match="is not trusted"):
        reach(address, own(stranger))

    async def with_our_async_client() -> None:
        async with AsyncClient(client_config(address, own(stranger))) as cluster:
            await cluster.refresh(())

    with pytest.raises(AuthenticationFailed, match="is not trusted"):
        await with_our_async_client()

    trust = ssl.create_default_context(cafile=str(stranger.certificate))
    producer = AIOKafkaProducer(bootstrap_servers=address, security_protocol="SSL", ssl_context=trust)
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()


def test_plain_client_on_a_tls_listener_is_closed_and_others_are_unhurt(
    tls_cluster: LocalCluster, authority: Authority
) -> None:
    address = bootstrap_of(tls_cluster, "SSL").split(",")[0]
    with pytest.raises(ClientError):
        reach(address, {})
    reach(address, own(authority))


@pytest.mark.parametrize(
    ("subject_hosts", "days", "words"),
    [("DNS:elsewhere.example", 2, "mismatch"), ("IP:127.0.0.1", -1, "expired")],
)
def test_broker_with_a_wrong_name_or_an_expired_certificate_is_not_trusted(
    authority: Authority, tmp_path: Path, subject_hosts: str, days: int, words: str
) -> None:
    bad = authority.issue("bad", subject="/CN=Broker", hosts=subject_hosts, days=days)
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "listener.name.ssl.ssl.keystore.type": "PEM",
        "listener.name.ssl.ssl.keystore.location": str(bad),
    }
    with LocalCluster(brokers=1, config=settings) as cluster:
        address = bootstrap_of(cluster, "SSL")
        with pytest.raises(AuthenticationFailed, match=words):
            reach(address, own(authority))
        if words == "mismatch":
            reach(address, own(authority, ssl_endpoint_identification_algorithm=""))


def test_key_store_in_another_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kafka.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.location": str(tmp_path / "kafka.jks"),
    }
    with pytest.raises(ClusterFailed, match=r"JKS, which is not supported.*keytool"):
        LocalCluster(brokers=1, config=settings).__enter__()
