"""Clients without the brokers' credentials get nothing from ZooKeeper: `up --secure`, and `zookeeper-security-migration`."""

import socket
import ssl
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from barnabas.broker.zookeeper_client.kazoo_client import TlsHandler
from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.wire.auth.authority import LocalAuthority
from tests.support.command_line import CliRunner

DIGEST = "kafka:zookeeper-secret"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[LocalCluster]:
    """A secure cluster on the folder of a former cluster without security."""
    data = folder / "data"
    with LocalCluster(brokers=1, data=data) as before:
        create_topic(before, "old")
        assert before.zookeeper_connect
    (data / "broker-1.properties").chmod(0o644)
    with LocalCluster(brokers=1, data=data, secure=True) as cluster:
        yield cluster


def create_topic(cluster: LocalCluster, topic: str) -> None:
    settings = cluster.librdkafka_settings("admin") if cluster.secure else {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)


def handshake(cluster: LocalCluster, context: ssl.SSLContext | None) -> bytes:
    """Return the server's answer to a client that opens a session; empty if it closes the connection."""
    host, port = cluster.zookeeper_connect.split(":")
    hello = struct.pack(">iqiq", 0, 0, 10_000, 0) + struct.pack(">i", 16) + bytes(16) + b"\0"
    try:
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            nullcontext(plain) if context is None else context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.sendall(struct.pack(">i", len(hello)) + hello)
            return line.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_strangers_do_not_come_in_whatever_the_znodes_allow(secured: LocalCluster, folder: Path):
    create_topic(secured, "new")
    ca = folder / "data" / "security" / "ca.pem"
    without_certificate = ssl.create_default_context(cafile=str(ca))
    foreign = ssl.create_default_context(cafile=str(ca))
    (folder / "foreign.pem").write_text(LocalAuthority.create("somebody else").issue("broker", ["localhost"]))
    foreign.load_cert_chain(folder / "foreign.pem")
    for stranger in (None, without_certificate, foreign):
        assert handshake(secured, stranger) == b""
    known = ssl.create_default_context(cafile=str(ca))
    known.load_cert_chain(folder / "data" / "security" / "broker.pem")
    assert len(handshake(secured, known)) == 41


def test_files_on_disk_are_readable_only_by_their_owner(secured: LocalCluster, folder: Path):
    data = folder / "data"
    for path in (data, data / "zookeeper", data / "security"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (data / "broker-1.properties", *(data / "security").glob("*.properties")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_shell_comes_in_with_the_clusters_file(secured: LocalCluster, folder: Path):
    file = str(folder / "data" / "security" / "zookeeper-client.properties")
    arguments = ["zookeeper-shell", secured.zookeeper_connect, "-zk-tls-config-file", file, "ls", "/config/users"]
    assert "client" in CliRunner().invoke(app, arguments).output


def test_four_letter_words_about_other_clients_are_refused(secured: LocalCluster, folder: Path):
    host, port = secured.zookeeper_connect.split(":")
    context = ssl.create_default_context(cafile=str(folder / "data" / "security" / "ca.pem"))
    context.load_cert_chain(folder / "data" / "security" / "broker.pem")

    def word(text: bytes) -> bytes:
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.sendall(text)
            return line.recv(1000)

    assert word(b"ruok") == b"imok"
    assert b"not in the whitelist" in word(b"dump")


@contextmanager
def client(cluster: LocalCluster, *credentials: str) -> Iterator[KazooClient]:
    opened = KazooClient(
        hosts=cluster.zookeeper_connect,
        auth_data=[("digest", each) for each in credentials],
        handler=TlsHandler(None),
    )
    opened.start()
    try:
        yield opened
    finally:
        opened.stop()
        opened.close()


def test_migration_closes_all_znodes_and_opens_them_again(tmp_path: Path):
    file = tmp_path / "zookeeper.properties"
    file.write_text(f"barnabas.zookeeper.digest={DIGEST}\n")

    def migrate(to: str, *more: str) -> str:
        arguments = ["zookeeper-security-migration", "--zookeeper.acl", to]
        return CliRunner().invoke(app, [*arguments, "--zookeeper.connect", cluster.zookeeper_connect, *more]).output

    with LocalCluster(brokers=1, config={"barnabas.zookeeper.digest": DIGEST}) as cluster:
        create_topic(cluster, "before")
        assert "no client could change" in migrate("secure")
        assert "znodes are secure now" in migrate("secure", "--zk-tls-config-file", str(file))
        with client(cluster) as stranger:
            for path in ("/latest_producer_id_block", "/controller_epoch", "/controller", "/brokers/topics/before"):
                with pytest.raises(NoAuthError):
                    stranger.delete(path)
                with pytest.raises(NoAuthError):
                    stranger.set(path, b"{}")
            with pytest.raises(NoAuthError):
                stranger.create("/mine", b"")
            with pytest.raises(NoAuthError):
                stranger.set_acls("/", stranger.get_acls("/")[0])
            with pytest.raises(NoAuthError):
                stranger.get_children("/config/users")
        create_topic(cluster, "after")
        assert "znodes are unsecure now" in migrate("unsecure", "--zk-tls-config-file", str(file))
        with client(cluster) as stranger:
            stranger.create("/mine", b"")
