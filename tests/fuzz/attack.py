"""The attack itself: a real broker and a real embedded ZooKeeper, strangers, a user with few rights, and a bystander."""

import contextlib
import random
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from barnabas.auth.authority import LocalAuthority
from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.coordination.embedded import wire as zk
from barnabas.protocol import frame
from barnabas.protocol.codec import decode
from barnabas.protocol.messages.base import ApiMessage
from barnabas.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.protocol.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.protocol.versions import api_of
from tests.fuzz.inputs import TOPIC, Inputs

#: What a bystander's requests may take, and what the broker and ZooKeeper may grow by.
P99_S_MAX = 0.25
GROWTH_BYTES_MAX = 200_000_000
#: Frames on one connection before the next one is opened.
FRAMES_MAX = 20
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass
class Report:
    seed: int
    inputs: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    p99_s: float = 0.0
    worst_s: float = 0.0
    growth_bytes: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(self.inputs.values())} inputs, {dict(self.inputs)}"]
        lines.append(f"bystander: p99 {self.p99_s * 1000:.0f} ms, worst {self.worst_s * 1000:.0f} ms")
        lines += [f"{name} grew by {size / 1e6:.0f} MB at most" for name, size in self.growth_bytes.items()]
        return "\n".join(lines + [f"FOUND: {finding}" for finding in self.findings])


class Target:
    """One broker: a listener for itself, one with SASL for users, one with TLS."""

    def __init__(self, folder: Path) -> None:
        authority = LocalAuthority.create("fuzz")
        (folder / "broker.pem").write_text(authority.issue("broker", ["127.0.0.1"]))
        config = {
            "listeners": "INTERNAL://127.0.0.1:0,CLIENT://127.0.0.1:0,TLS://127.0.0.1:0",
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
        self.cluster = LocalCluster(brokers=1, config=config)

    def __enter__(self) -> "Target":
        self.cluster.__enter__()
        self.broker = psutil.Process(self.cluster.pid(1))
        port = int(self.cluster.zookeeper_connect.rpartition(":")[2])
        self.zookeeper = next(
            process
            for process in psutil.process_iter()
            if process.ppid() == self.broker.ppid()
            and any(c.laddr.port == port for c in process.net_connections() if c.status == psutil.CONN_LISTEN)
        )
        self._let_eve_in()
        return self

    def __exit__(self, *exc: object) -> None:
        self.cluster.__exit__(*exc)

    def port(self, listener: str) -> int:
        return int(self.cluster.listener_address(1, listener).rpartition(":")[2])

    def _let_eve_in(self) -> None:
        acls = [
            AclCreation(
                resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal="User:eve", host="*",
                operation=2, permission_type=3,
            )
            for kind, name, pattern in ((2, "fuzzed", 4), (3, "*", 3), (5, "*", 3))
        ]  # fmt: skip
        with connect(self.port("INTERNAL")) as admin:
            ask(admin, CreateAclsRequest(creations=acls), 3)
            topics = [
                CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in (TOPIC, "fuzzed-too")
            ]
            ask(admin, CreateTopicsRequest(topics=topics, timeout_ms=10_000), 5)

    def login(self, user: str) -> socket.socket:
        peer = connect(self.port("CLIENT"))
        ask(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1)
        ask(peer, SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 1)
        return peer


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def receive(peer: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = peer.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("closed")
            data += piece
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def ask(peer: socket.socket, request: ApiMessage, version: int) -> ApiMessage:
    peer.sendall(frame.encode_request(request, version, 1, "honest"))
    answer = receive(peer)
    _, at = frame.parse_response_header(request.API_KEY, version, answer)
    return decode(api_of(request.API_KEY).response_class, answer, version, at)


class Bystander:
    """Alice: connected before, and asking all the time."""

    def __init__(self, target: Target) -> None:
        self._peer = target.login("alice")
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.took_s: list[float] = []
        self.failure: BaseException | None = None

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ends.set()
        self._thread.join()
        self._peer.close()

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                began_s = time.monotonic()
                answer = ask(self._peer, MetadataRequest(topics=None), 9)
                assert isinstance(answer, MetadataResponse) and answer.brokers
                self.took_s.append(time.monotonic() - began_s)
                time.sleep(0.005)
        except BaseException as error:
            self.failure = error


def attack(*, seed: int, count: int | None = None, seconds: float | None = None) -> Report:
    """Until the count is reached, or the time is up. What was found is in the report."""
    report = Report(seed)
    inputs = Inputs(random.Random(seed))
    with tempfile.TemporaryDirectory() as folder, Target(Path(folder)) as target:
        before = {"broker": target.broker.memory_info().rss, "zookeeper": target.zookeeper.memory_info().rss}
        report.growth_bytes = dict.fromkeys(before, 0)
        ends_s = time.monotonic() + seconds if seconds is not None else float("inf")
        with Bystander(target) as bystander:
            while time.monotonic() < ends_s and (count is None or sum(report.inputs.values()) < count):
                try:
                    _one_connection(target, inputs, report)
                except ConnectionRefusedError as error:
                    report.findings.append(f"nobody listens any more: {error}")
                    break
                for name, process in (("broker", target.broker), ("zookeeper", target.zookeeper)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        grown = process.memory_info().rss - before[name]
                        report.growth_bytes[name] = max(report.growth_bytes[name], grown)
        _judge(target, bystander, report)
    return report


def _one_connection(target: Target, inputs: Inputs, report: Report) -> None:
    chance = inputs.chance
    who = chance.choice(("stranger", "eve", "eve", "eve", "zookeeper", "tls"))
    frames = chance.randrange(1, FRAMES_MAX)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError, TimeoutError):
        if who == "zookeeper":
            peer = connect(int(target.cluster.zookeeper_connect.rpartition(":")[2]))
            hello = struct.pack(">iqiq", 0, 0, 4_000, 0) + zk.buffer(bytes(16)) + b"\0"
            first = struct.pack(">i", len(hello)) + hello if chance.random() < 0.9 else b""
            kinds = {"zookeeper": inputs.zookeeper}
        elif who == "tls":
            peer, first, kinds = connect(target.port("TLS")), b"", {"tls": inputs.tls}
        elif who == "stranger":
            peer, first, kinds = connect(target.port("CLIENT")), b"", inputs.kinds
        else:
            peer, first, kinds = target.login("eve"), b"", inputs.kinds
        with peer:
            peer.settimeout(0.02)
            peer.sendall(first)
            for _ in range(frames):
                kind = chance.choice(list(kinds))
                if kind == "noise" and chance.random() < 0.9:
                    continue  # it ends the connection, and what comes behind it
                data = kinds[kind]()
                report.inputs[f"{who}: {kind}" if who in ("eve", "stranger") else who] += 1
                peer.sendall(data)
                if chance.random() < 0.3:
                    with contextlib.suppress(TimeoutError):
                        peer.recv(65_536)


def _judge(target: Target, bystander: Bystander, report: Report) -> None:
    if bystander.failure is not None:
        report.findings.append(f"the bystander was hurt: {bystander.failure!r}")
    took_s = sorted(bystander.took_s)
    if took_s:
        report.p99_s, report.worst_s = took_s[int(len(took_s) * 0.99)], took_s[-1]
    if report.p99_s > P99_S_MAX:
        report.findings.append(f"the bystander's p99 is {report.p99_s * 1000:.0f} ms")
    for name, grown in report.growth_bytes.items():
        if grown > GROWTH_BYTES_MAX:
            report.findings.append(f"{name} grew by {grown:,} bytes")
    for name, process in (("broker", target.broker), ("zookeeper", target.zookeeper)):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            report.findings.append(f"{name} has ended")
    logs = target.cluster.log(1) + (target.cluster.folder / "zookeeper.log").read_text(errors="replace")
    report.findings += _bugs(logs)
    if not report.findings:
        # Whoever comes now is served as ever.
        with target.login("alice") as alice:
            wait_until(lambda: isinstance(ask(alice, MetadataRequest(topics=None), 9), MetadataResponse), 10)


def _bugs(logs: str) -> list[str]:
    """Each traceback, with the line before it."""
    lines = logs.splitlines()
    found = []
    for at, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            found.append("\n".join(lines[max(0, at - 1) : at + 30]))
    return found[:20]
