"""SASL_PLAINTEXT on a real cluster, through common clients: right and wrong credentials, and permissions."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from barnabas.base.config.properties import format_properties
from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import client_config
from barnabas.client.errors import AuthenticationFailed, ConnectionLost
from barnabas.testing import wait_until
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.scenarios.security.secured import ADMIN, ALICE, PLAIN_MODULE, SASL_CONFIG, bootstrap_of
from tests.support.command_line import CliRunner

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def sasl_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, config=SASL_CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(cluster, "PLAINTEXT")})
        users = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for user, password in (ADMIN, ALICE)
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for future in admin.alter_user_scram_credentials(users).values():
            future.result(60)
        wait_until(lambda: all(can_connect(cluster, address) for address in client_bootstrap(cluster).split(",")))
        yield cluster


def can_connect(cluster: LocalCluster, address: str) -> bool:
    """Whether the broker at the address knows the users."""
    host, port = address.split(":")
    try:
        with BlockingConnection(host, int(port), client_config(address, own_settings("SCRAM-SHA-512", ALICE))):
            return True
    except AuthenticationFailed:
        return False


def client_bootstrap(cluster: LocalCluster) -> str:
    return bootstrap_of(cluster, "CLIENT")


def settings(cluster: LocalCluster, mechanism: str, login: tuple[str, str], **more: object) -> dict[str, object]:
    """confluent-kafka's."""
    return {
        "bootstrap.servers": client_bootstrap(cluster),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": login[0],
        "sasl.password": login[1],
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def own_settings(mechanism: str, login: tuple[str, str]) -> dict[str, str]:
    """Return settings for barnabas' client, which are also Java's."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{login[0]}" password="{login[1]}";',
    }


def allow(cluster: LocalCluster, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    admin = AdminClient(settings(cluster, "PLAIN", ADMIN))
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for future in admin.create_acls(bindings).values():
        future.result(60)


def open_topic(cluster: LocalCluster, topic: str) -> None:
    """Create a topic, and permit it and a group of the same name to alice; wait until every broker knows both."""
    admin = AdminClient(settings(cluster, "PLAIN", ADMIN))
    admin.create_topics([NewTopic(topic, 1, 2)])[topic].result(60)
    allow(cluster, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    allow(cluster, ResourceType.GROUP, topic, AclOperation.READ)
    for broker in client_bootstrap(cluster).split(","):
        alice = AdminClient({**settings(cluster, "PLAIN", ALICE), "bootstrap.servers": broker})
        wait_until(lambda alice=alice: topic in alice.list_topics(timeout=60).topics)  # type: ignore[misc]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in_and_uses_its_permissions(
    sasl_cluster: LocalCluster, topic: str, mechanism: str
) -> None:
    open_topic(sasl_cluster, topic)
    outcome: list[KafkaError | None] = []
    producer = Producer(settings(sasl_cluster, mechanism, ALICE))
    producer.produce(topic, b"hello", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    assert outcome == [None]
    consumer = Consumer(settings(sasl_cluster, mechanism, ALICE, group_id=topic, auto_offset_reset="earliest"))
    try:
        consumer.subscribe([topic])
        message = consumer.poll(60)
        assert message is not None and message.error() is None and message.value() == b"hello"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_logs_in_and_uses_its_permissions(
    sasl_cluster: LocalCluster, topic: str, mechanism: str
) -> None:
    open_topic(sasl_cluster, topic)
    secure = {
        "bootstrap_servers": client_bootstrap(sasl_cluster),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ALICE[0],
        "sasl_plain_password": ALICE[1],
    }

    async with asyncio.timeout(60):
        async with AIOKafkaProducer(**secure) as producer:
            await producer.send_and_wait(topic, b"hello")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **secure) as consumer:
            assert (await consumer.getone()).value == b"hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_and_uses_its_permissions(sasl_cluster: LocalCluster, topic: str, mechanism: str) -> None:
    open_topic(sasl_cluster, topic)
    producer = kafka.KafkaProducer(
        bootstrap_servers=client_bootstrap(sasl_cluster),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=ALICE[0],
        sasl_plain_password=ALICE[1],
        enable_idempotence=False,
    )
    try:
        assert producer.send(topic, b"hello").get(60).offset == 0
    finally:
        producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("login", [("alice", "wrong"), ("nobody", "alice-secret")])
def test_wrong_credentials_are_refused_in_words(
    sasl_cluster: LocalCluster, mechanism: str, login: tuple[str, str]
) -> None:
    client_errors: list[KafkaError] = []
    admin = AdminClient({**settings(sasl_cluster, mechanism, login), "error_cb": client_errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(0)
    assert any(error.code() == KafkaError._AUTHENTICATION for error in client_errors)

    async def with_our_own_client() -> None:
        async with AsyncClient(
            client_config(client_bootstrap(sasl_cluster), own_settings(mechanism, login))
        ) as cluster:
            await cluster.refresh(())

    words = "Invalid username or password" if mechanism == "PLAIN" else "invalid credentials with SASL mechanism SCRAM"
    with pytest.raises(AuthenticationFailed, match=words):
        asyncio.run(with_our_own_client())


async def test_aiokafka_with_a_wrong_password_is_refused(sasl_cluster: LocalCluster) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=client_bootstrap(sasl_cluster),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="alice",
        sasl_plain_password="wrong",
    )
    async with asyncio.timeout(60):
        with pytest.raises(AioKafkaError):
            await producer.start()
        await producer.stop()


def test_revoked_acl_takes_effect_on_a_connection_that_is_open(sasl_cluster: LocalCluster, topic: str) -> None:
    open_topic(sasl_cluster, topic)
    outcome: list[KafkaError | None] = []
    producer = Producer(settings(sasl_cluster, "SCRAM-SHA-256", ALICE))

    def send() -> KafkaError | None:
        producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
        producer.flush(60)
        return outcome.pop()

    assert send() is None
    admin = AdminClient(settings(sasl_cluster, "PLAIN", ADMIN))
    everything = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    [removed] = admin.delete_acls([everything]).values()
    assert len(removed.result(60)) == 2

    def is_refused() -> bool:
        error = send()
        return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    wait_until(is_refused)


def test_deleted_scram_user_does_not_come_in_again(sasl_cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_of(sasl_cluster, "PLAINTEXT")})
    gone = ("gone", "pw")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("gone", info, b"pw")])["gone"].result(60)
    described = admin.describe_user_scram_credentials(["gone"])["gone"].result(60)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 8192)
    ]
    address = client_bootstrap(sasl_cluster).split(",")[0]
    host, port = address.split(":")

    def comes_in() -> bool:
        try:
            with BlockingConnection(host, int(port), client_config(address, own_settings("SCRAM-SHA-512", gone))):
                return True
        except AuthenticationFailed:
            return False

    wait_until(comes_in)
    deletion = UserScramCredentialDeletion("gone", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([deletion])["gone"].result(60)
    wait_until(lambda: not comes_in())
    with pytest.raises(KafkaException, match="does not exist"):
        admin.alter_user_scram_credentials([deletion])["gone"].result(60)


def test_nothing_is_served_before_authentication(sasl_cluster: LocalCluster) -> None:
    """A client that expects a plain listener gets no answer, and its connection is closed."""
    address = client_bootstrap(sasl_cluster).split(",")[0]
    host, port = address.split(":")
    with BlockingConnection(host, int(port), client_config(address)) as connection, pytest.raises(ConnectionLost):
        connection.request(MetadataRequest(topics=None), MetadataResponse)


def test_tools_take_the_same_settings(sasl_cluster: LocalCluster, tmp_path: Path, topic: str) -> None:
    def run(login: tuple[str, str], *arguments: str) -> tuple[int, str]:
        file = tmp_path / "client.properties"
        file.write_text(format_properties(own_settings("SCRAM-SHA-256", login)))
        where = ["--bootstrap-server", client_bootstrap(sasl_cluster), "--command-config", str(file)]
        result = CliRunner().invoke(app, [arguments[0], *where, *arguments[1:]])
        return result.exit_code, result.output

    grant = ["--allow-principal", "User:alice", "--operation", "Read", "--topic", topic]
    assert run(ADMIN, "acls", "--add", *grant)[0] == 0
    status, listing = run(ADMIN, "acls", "--list", "--topic", topic)
    assert status == 0 and "principal=User:alice, host=*, operation=READ, permissionType=ALLOW" in listing
    status, said = run(ALICE, "acls", "--list")
    assert status == 1 and "CLUSTER_AUTHORIZATION_FAILED" in said
    status, said = run(("alice", "wrong"), "topics", "--list")
    assert status == 1 and "invalid credentials" in said


def test_secrets_are_in_no_log(sasl_cluster: LocalCluster) -> None:
    for broker_id in sasl_cluster.broker_ids:
        text = sasl_cluster.log(broker_id)
        for secret in ("broker-secret", ADMIN[1], ALICE[1], "stored_key"):
            assert secret not in text
