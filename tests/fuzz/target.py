"""The target of the attacks: a broker with a listener for users (SASL) and one with TLS, and its ZooKeeper.

It is one of ours, one of Apache's with the same settings, or one that is already running. Always on this machine.
"""

import contextlib
import ipaddress
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire import frame
from barnabas.wire.auth.authority import LocalAuthority
from barnabas.wire.codec import decode
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.versions import api_of
from tests.fuzz.inputs import TOPIC

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
TOPICS = (TOPIC, "fuzzed-too")


@dataclass
class Target:
    """User alice may do everything, and user eve may use topics `fuzzed…`. Their passwords are their names."""

    client: int
    tls: int | None = None
    zookeeper: int | None = None
    #: Name -> a process whose memory is watched.
    processes: Mapping[str, psutil.Process] = field(default_factory=dict)
    logs: Callable[[], str] = str

    def login(self, user: str) -> socket.socket:
        peer = connect(self.client)
        ask(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1)
        ask(peer, SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 1)
        return peer


def settings(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """Return the settings of the broker, ours or Apache's. `ports` of its three listeners; 0 is any free port."""
    (folder / "broker.pem").write_text(LocalAuthority.create("fuzz").issue("broker", ["127.0.0.1"]))
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in ("INTERNAL", "CLIENT", "TLS")),
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENT:SASL_PLAINTEXT,TLS:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{PLAIN} required user_eve="eve" user_alice="alice";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
        "auto.create.topics.enable": "false",
        "connection.failed.authentication.delay.ms": "0",
        "socket.listen.backlog.size": "1000",
    }


@contextlib.contextmanager
def ours() -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder), dict.fromkeys(("INTERNAL", "CLIENT", "TLS"), 0))
        with LocalCluster(brokers=1, config=config) as cluster:

            def port(listener: str) -> int:
                return int(cluster.listener_address(1, listener).rpartition(":")[2])

            def logs() -> str:
                return cluster.log(1) + (cluster.folder / "zookeeper.log").read_text(errors="replace")

            zookeeper = int(cluster.zookeeper_connect.rpartition(":")[2])
            broker = psutil.Process(cluster.pid(1))
            processes = {"broker": broker, "zookeeper": _listener(zookeeper, among=broker.parent())}
            _let_eve_in(port("INTERNAL"))
            yield Target(port("CLIENT"), port("TLS"), zookeeper, processes, logs)


@contextlib.contextmanager
def apache() -> Iterator[Target]:
    """Run Apache Kafka 3.9.1 and its ZooKeeper, fetched by name as `make interop` does, with Kafka's default heap of 1 GB."""
    from barnabas.testing import wait_until
    from tests.interop.kinds import APACHE, MixedCluster, free_port

    with tempfile.TemporaryDirectory() as folder:
        cluster = MixedCluster(kinds={1: APACHE}, zookeeper_kind=APACHE, heap="1g")
        ports = {"INTERNAL": cluster.ports[1], "CLIENT": free_port(), "TLS": free_port()}
        cluster.config = settings(Path(folder), ports)
        with cluster:
            zookeeper = int(cluster.zookeeper.partition("/")[0].rpartition(":")[2])
            processes = {"broker": _listener(ports["CLIENT"]), "zookeeper": _listener(zookeeper)}
            wait_until(lambda: _let_eve_in(ports["INTERNAL"]), what="topics")
            yield Target(ports["CLIENT"], ports["TLS"], zookeeper, processes, lambda: cluster.log(1))


def given(bootstrap: str, pid: int | None, *, tls: str | None = None, zookeeper: str | None = None) -> Target:
    """Prepare a running broker with the settings above, its topics and ACLs. :raises ValueError: if it is not on this
    machine.
    """
    processes = {} if pid is None else {"broker": psutil.Process(pid)}
    ports = [None if each is None else local_port(each) for each in (bootstrap, tls, zookeeper)]
    assert ports[0] is not None
    return Target(ports[0], ports[1], ports[2], processes)


def local_port(address: str) -> int:
    host, _, port = address.rpartition(":")
    if not ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]")).is_loopback:
        raise ValueError(f"{address}: attacks are for brokers on this machine, at a loopback address")
    return int(port)


def _listener(port: int, among: psutil.Process | None = None) -> psutil.Process:
    """Return the process that listens at a port of this machine."""
    candidates = psutil.process_iter() if among is None else among.children()
    for process in candidates:
        with contextlib.suppress(psutil.Error):
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections()):
                return process
    raise LookupError(f"no process listens at port {port}")


def _let_eve_in(internal: int) -> bool:
    """Create eve's ACLs; return False if the broker is not ready for it."""
    acls = [
        AclCreation(
            resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal="User:eve", host="*",
            operation=2, permission_type=3,
        )
        for kind, name, pattern in ((2, "fuzzed", 4), (3, "*", 3), (5, "*", 3))
    ]  # fmt: skip
    with connect(internal) as admin:
        admin.settimeout(60)
        ask(admin, CreateAclsRequest(creations=acls), 3)
        topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in TOPICS]
        made: Any = ask(admin, CreateTopicsRequest(topics=topics, timeout_ms=10_000), 5)
    return all(topic.error_code in (0, 36) for topic in made.topics)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def receive(peer: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = peer.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise ConnectionResetError("closed")
            data += piece
        return bytes(data)

    return exactly(struct.unpack(">i", exactly(4))[0])


def ask(peer: socket.socket, request: ApiMessage, version: int) -> ApiMessage:
    peer.sendall(frame.encode_request(request, version, 1, "honest"))
    answer = receive(peer)
    _, at = frame.parse_response_header(request.API_KEY, version, answer)
    return decode(api_of(request.API_KEY).response_class, answer, version, at)
