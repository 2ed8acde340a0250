"""Certificates that change while a broker serves: in another file, in place, refused, with an encrypted password in
ZooKeeper.
"""

import asyncio
import re
import shlex
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kazoo.client import KazooClient

from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.client.config import client_config
from barnabas.services.doctor.cluster import check_cluster
from barnabas.services.doctor.view import DAY_MS, Limits
from tests.pki import Authority
from tests.scenarios.security.secured import bootstrap_of
from tests.support.command_line import CliRunner

PASSWORD = "key-store-secret"
PREFIX = "listener.name.client.ssl."


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def shown(authority: Authority) -> Path:
    """Return the file with the certificate of the CLIENT listener."""
    path = authority.folder / "shown.pem"
    shutil.copy(authority.issue("first", subject="/O=Test/CN=Broker"), path)
    return path


@pytest.fixture(scope="module")
def cluster(authority: Authority, shown: Path) -> Iterator[LocalCluster]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SSL,INTERNAL:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "password.encoder.secret": "encoder-secret",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        f"{PREFIX}keystore.type": "PEM",
        f"{PREFIX}keystore.location": str(shown),
        "listener.name.internal.ssl.keystore.type": "PEM",
        "listener.name.internal.ssl.keystore.location": str(authority.issue("internal", subject="/CN=Internal")),
        "listener.name.internal.ssl.client.auth": "required",
    }
    with LocalCluster(brokers=2, config=config) as running:
        yield running


def serial(authority: Authority, address: str) -> str:
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection((host, int(port)), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        certificate = secure.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def alter(cluster: LocalCluster, broker: int, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_of(cluster, "PLAINTEXT")})
    resource = ConfigResource(
        ResourceType.BROKER,
        str(broker),
        incremental_configs=[
            ConfigEntry(
                name, value, source=ConfigSource.DYNAMIC_BROKER_CONFIG, incremental_operation=AlterConfigOpType.SET
            )
            for name, value in settings.items()
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_renewed_certificate_in_another_file_in_the_same_file_and_in_a_pkcs12_store(
    cluster: LocalCluster, authority: Authority, shown: Path
) -> None:
    broker = next(iter(cluster.broker_ids))
    address, other = bootstrap_of(cluster, "CLIENT").split(",")
    seen, of_other = [serial(authority, address)], serial(authority, other)
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with socket.create_connection((host, int(port))) as raw, context.wrap_socket(raw, server_hostname=host) as old:
        second = authority.issue("second", subject="/O=Test/CN=Broker")
        alter(cluster, broker, {f"{PREFIX}keystore.type": "PEM", f"{PREFIX}keystore.location": str(second)})
        seen.append(serial(authority, address))
        # In place: the settings are unchanged, so Kafka's users write them once more.
        shutil.copy(authority.issue("third", subject="/O=Test/CN=Broker"), second)
        alter(cluster, broker, {f"{PREFIX}keystore.location": str(second)})
        seen.append(serial(authority, address))
        authority.issue("fourth", subject="/O=Test/CN=Broker")
        alter(
            cluster,
            broker,
            {
                f"{PREFIX}keystore.type": "PKCS12",
                f"{PREFIX}keystore.location": str(authority.pkcs12("fourth", PASSWORD)),
                f"{PREFIX}keystore.password": PASSWORD,
            },
        )
        seen.append(serial(authority, address))
        # ApiVersions v0 on the connection that began with the first certificate, which is still open.
        old.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
        assert old.recv(8)[4:] == (7).to_bytes(4, "big")
    assert len(set(seen)) == 4
    assert serial(authority, other) == of_other  # the other broker's settings were not changed

    zookeeper = KazooClient(hosts=cluster.zookeeper_connect)
    zookeeper.start()
    try:
        stored, _ = zookeeper.get(f"/config/brokers/{broker}")
    finally:
        zookeeper.stop()
        zookeeper.close()
    assert PASSWORD.encode() not in stored and b"encryptedPassword:" in stored


def test_certificate_that_ends_is_replaced_with_the_command_that_doctor_prints(
    cluster: LocalCluster, authority: Authority, tmp_path: Path
) -> None:
    """Doctor once claimed that brokers notice changed files by themselves."""
    address = bootstrap_of(cluster, "CLIENT").split(",")[1]
    client = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.certificate,
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in client.items()))
    config = client_config(address, {name: str(value) for name, value in client.items()})
    report = asyncio.run(check_cluster(config, Limits(certificate_ms=100_000 * DAY_MS)))
    advice = {each.subject: each.advice for each in report.findings if each.check == "certificate-ends"}["broker 2"]
    before = serial(authority, address)
    command = re.search(r"barnabas (configs .*)$", advice)
    assert command
    shown = Path(command.group(1).rpartition("=")[2])
    shutil.copy(authority.issue("next", subject="/O=Test/CN=Broker"), shown)
    assert serial(authority, address) == before, "the files alone change nothing"
    done = CliRunner().invoke(app, shlex.split(command.group(1).replace(" FILE ", f" {file} ")))
    assert done.exit_code == 0, done.output
    assert serial(authority, address) != before


@pytest.mark.parametrize(
    ("subject", "hosts", "words"),
    [
        ("/O=Test/CN=Somebody", "DNS:localhost,IP:127.0.0.1", "DistinguishedName does not match"),
        ("/O=Test/CN=Broker", "DNS:elsewhere", "SubjectAltNames do not match"),
    ],
)
def test_certificate_of_another_host_is_refused(
    cluster: LocalCluster, authority: Authority, subject: str, hosts: str, words: str
) -> None:
    broker, address = cluster.broker_ids[1], bootstrap_of(cluster, "CLIENT").split(",")[1]
    before = serial(authority, address)
    wrong = authority.issue("wrong", subject=subject, hosts=hosts)
    with pytest.raises(KafkaException, match=words):
        alter(cluster, broker, {f"{PREFIX}keystore.location": str(wrong)})
    assert serial(authority, address) == before


def test_file_that_cannot_be_used_is_refused(cluster: LocalCluster, authority: Authority, tmp_path: Path) -> None:
    broker, address = cluster.broker_ids[1], bootstrap_of(cluster, "CLIENT").split(",")[1]
    before = serial(authority, address)
    (tmp_path / "half.pem").write_text("-----BEGIN PRIVATE KEY-----\nnonsense")
    for location in (tmp_path / "half.pem", tmp_path / "missing.pem"):
        with pytest.raises(KafkaException, match="SSLFactory failed"):
            alter(cluster, broker, {f"{PREFIX}keystore.location": str(location)})
    stranger = Authority.create(tmp_path / "stranger").issue("stranger", subject="/CN=Internal")
    with pytest.raises(KafkaException, match="SSLFactory failed"):
        # Brokers that kept the old trust store could not reach this one any more.
        alter(cluster, broker, {"listener.name.internal.ssl.keystore.location": str(stranger)})
    assert serial(authority, address) == before
