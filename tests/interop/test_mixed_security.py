"""Brokers of Apache Kafka 3.9.1 and of ours in one secured cluster: TLS between them, one set of users, tokens and secrets."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.tokens import DelegationToken, create_token, expire_token
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.errors import AuthenticationFailed
from barnabas.testing import wait_until
from barnabas.wire.auth.jaas import PLAIN_MODULE, SCRAM_MODULE
from tests.interop.kinds import APACHE, OURS, MixedCluster, free_port
from tests.pki import Authority

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("java")]
PASSWORD = "store-secret"
T = TypeVar("T")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("broker", subject="/CN=broker")
    made.pkcs12("broker", PASSWORD)
    return made


@pytest.fixture(scope="module")
def mixed(authority: Authority) -> Iterator[MixedCluster]:
    """Broker 1 is Apache's, broker 2 ours. Clients come by SASL_SSL, brokers know each other by certificate."""
    config = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.folder / "broker.p12"),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.internal.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.client.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_admin="admin-secret";',
        "listener.name.client.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "delegation.token.secret.key": "token-key",
        "password.encoder.secret": "encoder-secret",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker;User:admin",
    }
    cluster = MixedCluster(kinds={1: APACHE, 2: OURS}, config=config)
    cluster.broker_config = {
        broker_id: {"listeners": f"CLIENT://127.0.0.1:{port},INTERNAL://127.0.0.1:{free_port()}"}
        for broker_id, port in cluster.ports.items()
    }
    with cluster:
        wait_until(lambda: reaches(cluster, authority, 2, "admin", "admin-secret"), what="both brokers are known")
        yield cluster


def librdkafka(mixed: MixedCluster, authority: Authority, user: str = "admin", password: str = "admin-secret",
               mechanism: str = "PLAIN", broker: int | None = None) -> dict[str, object]:  # fmt: skip
    return {
        "bootstrap.servers": mixed.bootstrap if broker is None else mixed.address(broker),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(authority.certificate),
        "log_level": 0,
    }


def reaches(mixed: MixedCluster, authority: Authority, brokers: int, user: str, password: str,
            mechanism: str = "PLAIN", broker: int | None = None) -> bool:  # fmt: skip
    admin = AdminClient(librdkafka(mixed, authority, user, password, mechanism, broker))
    try:
        return len(admin.list_topics(timeout=5).brokers) == brokers
    except KafkaException:
        return False


def own(authority: Authority, line: str, mechanism: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": line,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }


def ask(address: str, settings: dict[str, str], what: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def story() -> T:
        async with AsyncClient(client_config(address, settings)) as client:
            return await what(client)

    return asyncio.run(story())


def test_records_are_replicated_over_tls_either_way(mixed: MixedCluster, authority: Authority) -> None:
    admin = AdminClient(librdkafka(mixed, authority))
    topic = NewTopic("either-way", 2, replica_assignment=[[1, 2], [2, 1]], config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["either-way"].result(30)
    outcome: list[object] = []
    producer = Producer({**librdkafka(mixed, authority), "acks": "all"})
    for number in range(200):
        producer.produce(
            "either-way", b"x" * 5_000, partition=number % 2, on_delivery=lambda error, _: outcome.append(error)
        )
    assert producer.flush(60) == 0
    assert outcome == [None] * 200


def test_users_set_at_one_kind_come_in_at_the_other(mixed: MixedCluster, authority: Authority) -> None:
    admin = AdminClient(librdkafka(mixed, authority))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("alice", credential, b"alice-secret")]
    ).values():
        future.result(30)
    for broker in mixed.kinds:
        wait_until(
            lambda broker=broker: reaches(mixed, authority, 2, "alice", "alice-secret", "SCRAM-SHA-256", broker),
            what=f"alice at broker {broker}",
        )


@pytest.mark.parametrize(("maker", "taker"), [(1, 2), (2, 1)], ids=["apache-makes", "we-make"])
def test_token_of_one_kind_opens_connections_at_the_other(
    mixed: MixedCluster, authority: Authority, maker: int, taker: int
) -> None:
    settings = own(authority, f'{PLAIN_MODULE} required username="admin" password="admin-secret";', "PLAIN")
    token: DelegationToken = ask(mixed.address(maker), settings, create_token)
    line = f'{SCRAM_MODULE} required username="{token.token_id}" password="{token.hmac_base64}" tokenauth="true";'
    with_token = own(authority, line, "SCRAM-SHA-256")

    def opens() -> bool:
        try:
            ask(mixed.address(taker), with_token, lambda client: client.refresh(()))
        except AuthenticationFailed:
            return False
        return True

    wait_until(opens, what="the token is known at the other broker")
    ask(mixed.address(taker), settings, lambda client: expire_token(client, token.hmac))
    wait_until(lambda: not opens(), what="the token is gone")


def serial(authority: Authority, address: str) -> int:
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection((host, int(port)), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        return int(str((secure.getpeercert() or {})["serialNumber"]), 16)


@pytest.mark.parametrize(("first", "then"), [(APACHE, OURS), (OURS, APACHE)])
def test_certificate_and_its_encrypted_password_survive_a_change_of_the_kind(
    mixed: MixedCluster, authority: Authority, first: str, then: str
) -> None:
    """What one kind encrypted in ZooKeeper, the other one opens its key store with."""
    if mixed.kinds[1] != first:
        mixed.stop(1)
        mixed.start(1, first)
        wait_until(lambda: reaches(mixed, authority, 2, "admin", "admin-secret"), what="both brokers are back")
    name, password = f"renewed-{first}", f"secret-of-{first}"
    authority.issue(name, subject="/CN=broker")
    store = authority.pkcs12(name, password)
    admin = AdminClient(librdkafka(mixed, authority, broker=1))
    prefix = "listener.name.client.ssl.keystore"
    entries = [
        ConfigEntry(
            setting, value, source=ConfigSource.DYNAMIC_BROKER_CONFIG, incremental_operation=AlterConfigOpType.SET
        )
        for setting, value in (
            (f"{prefix}.location", str(store)),
            (f"{prefix}.password", password),
            (f"{prefix}.type", "PKCS12"),
            ("listener.name.client.ssl.key.password", password),
        )
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    renewed = x509.load_pem_x509_certificate((authority.folder / f"{name}.crt").read_bytes()).serial_number
    assert serial(authority, mixed.address(1)) != renewed
    admin.incremental_alter_configs([resource])[resource].result(30)
    # Kafka's network threads take it one after the other.
    wait_until(lambda: serial(authority, mixed.address(1)) == renewed, what="the new certificate")
    mixed.stop(1)
    mixed.start(1, then)
    wait_until(lambda: reaches(mixed, authority, 2, "admin", "admin-secret"), what="both brokers are back")
    assert serial(authority, mixed.address(1)) == renewed
    assert password not in mixed.log(1)


def test_digest_acls_at_apache_zookeeper(tmp_path: Path) -> None:
    with MixedCluster(kinds={}, zookeeper_kind=APACHE) as empty:
        settings = {"zookeeper.set.acl": "true", "barnabas.zookeeper.digest": "kafka:secret"}
        with LocalCluster(brokers=1, zookeeper=empty.zookeeper, config=settings) as ours:
            admin = AdminClient({"bootstrap.servers": ours.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
            stranger = KazooClient(hosts=empty.zookeeper)
            stranger.start()
            try:
                assert stranger.get("/brokers/topics/t")[0]
                for path in ("/brokers/topics/t", "/controller"):
                    with pytest.raises(NoAuthError):
                        stranger.set(path, b"{}")
                with pytest.raises(NoAuthError):
                    stranger.get_children("/config/users")
                stranger.add_auth("digest", "kafka:secret")
                assert stranger.get_children("/config/users") == []
            finally:
                stranger.stop()
                stranger.close()
