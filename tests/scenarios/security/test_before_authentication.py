"""Unauthenticated peers, against a real broker with SASL and TLS: noise, wrong lengths, floods, silence.

Memory and time stay bounded, and an authenticated client is served meanwhile.
"""

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import client_config
from barnabas.wire import frame
from barnabas.wire.auth.authority import LocalAuthority
from barnabas.wire.auth.jaas import SCRAM_MODULE
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.computed import computed_s
from tests.oauth_provider import SigningKey, key_set
from tests.scenarios.security.secured import ALICE, PLAIN_MODULE, bootstrap_of

#: The most by which a broker may grow during an attack.
GROWTH_BYTES_MAX = 80_000_000
#: The most that the broker's loop may compute between an honest client's request and the answer during an attack.
LATENCY_S_MAX = 2.0
TOKEN_BYTES_MAX = 100_000
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("pki")
    authority = LocalAuthority.create("test")
    (made / "ca.pem").write_text(authority.certificate_pem)
    (made / "broker.pem").write_text(authority.issue("broker", ["localhost", "127.0.0.1"]))
    (made / "keys.json").write_text(key_set(SigningKey("one", "ES256")))
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLEAR://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_PLAINTEXT,SECURE:SASL_SSL",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.clear.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{ALICE[0]}="{ALICE[1]}";',
        "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{ALICE[0]}="{ALICE[1]}";',
        "listener.name.clear.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.clear.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required;",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.server.max.receive.size": str(TOKEN_BYTES_MAX),
        "connection.failed.authentication.delay.ms": "0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "socket.listen.backlog.size": "1000",
    }
    with LocalCluster(brokers=1, config=config) as running:
        yield running


class Victim:
    """The broker as an honest client and its operator see it. Attacks last as long as the block."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self.tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        self._process = psutil.Process(cluster.pid(1))
        self._rss = self._process.memory_info().rss
        self._peers = contextlib.ExitStack()
        address = bootstrap_of(cluster, "SECURE")
        host, port = address.split(":")
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="{ALICE[0]}" password="{ALICE[1]}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
        }
        self._open = lambda: BlockingConnection(host, int(port), client_config(address, settings))
        self._honest = self._peers.enter_context(self._open())

    def __enter__(self) -> "Victim":
        return self

    def __exit__(self, *exc: object) -> None:
        self._peers.close()

    def connect(self, listener: str) -> socket.socket:
        host, port = bootstrap_of(self._cluster, listener).split(":")
        peer = socket.create_connection((host, int(port)), timeout=60)
        self._peers.enter_context(peer)
        return peer

    def is_unhurt(self) -> None:
        """Check that a connected client is answered quickly, a new one can log in, and memory is bounded."""
        began_s = computed_s(self._process.pid)
        self._honest.request(MetadataRequest(topics=[]), MetadataResponse)
        assert computed_s(self._process.pid) - began_s < LATENCY_S_MAX
        with self._open() as another:
            another.request(MetadataRequest(topics=[]), MetadataResponse)
        assert self._process.memory_info().rss - self._rss < GROWTH_BYTES_MAX
        assert self._cluster.member(1).running
        assert "Traceback" not in self.log

    @property
    def log(self) -> str:
        return self._cluster.log(1)


@pytest.fixture
def victim(cluster: LocalCluster, folder: Path) -> Iterator[Victim]:
    with Victim(cluster, folder) as made:
        yield made


def encoded(message: ApiMessage, version: int = 1) -> bytes:
    return frame.encode_request(message, version, 7, "stranger")


def last_words(peer: socket.socket) -> bytes | None:
    """Return what the broker sent before it closed the connection; None if it did not close it in time."""
    said = b""
    try:
        while chunk := peer.recv(65_536):
            said += chunk
    except ConnectionResetError:
        return said
    except TimeoutError:
        return None
    return said


def test_fuzzed_handshakes_and_tokens(victim: Victim) -> None:
    """Send valid messages with bytes flipped, cut off and added: each closes its own connection at most."""
    chance = random.Random(11)
    handshakes = [encoded(SaslHandshakeRequest(mechanism=name)) for name in MECHANISMS]
    tokens = [
        encoded(SaslAuthenticateRequest(auth_bytes=token))
        for token in (
            b"\0alice\0guess",
            b"n,,n=alice,r=nonce",
            b"n,,n=alice,r=nonce,tokenauth=true",
            b"n,,\x01auth=Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.AAAA\x01\x01",
            b"n,,\x01auth=Bearer a.b.c\x01" + b"k=v\x01" * 1000 + b"\x01",
        )
    ]
    for number in range(240):
        data = bytearray(chance.choice(handshakes) + chance.choice(tokens) + chance.choice(tokens))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        with contextlib.suppress(OSError), victim.connect("CLEAR" if number % 2 else "SECURE") as peer:
            peer.sendall(data)
    victim.is_unhurt()


def test_oversized_token_closes_the_connection_before_it_is_received(victim: Victim) -> None:
    handshake = encoded(SaslHandshakeRequest(mechanism="PLAIN"))
    for size in (TOKEN_BYTES_MAX + 1, 2**31 - 1, -1, -(2**31)):
        peer = victim.connect("CLEAR")
        peer.sendall(handshake + size.to_bytes(4, "big", signed=True))
        assert last_words(peer) is not None, size
        # The reason is the size, and not the login timeout, which closes every stranger's connection.
        assert f"frame of {size} bytes, the limit is {TOKEN_BYTES_MAX}" in victim.log
    largest = encoded(SaslAuthenticateRequest(auth_bytes=b"x" * (TOKEN_BYTES_MAX - 100)))
    peer = victim.connect("CLEAR")
    peer.sendall(handshake + largest)
    said = last_words(peer)
    assert said is not None and b"expected 3 tokens, got 1" in said, (
        "a token of the permitted size is received and refused"
    )
    victim.is_unhurt()


def test_lies_about_lengths_cost_next_to_nothing(victim: Victim) -> None:
    for _ in range(400):
        victim.connect("CLEAR").sendall(
            encoded(SaslHandshakeRequest(mechanism="PLAIN")) + TOKEN_BYTES_MAX.to_bytes(4, "big")
        )
    victim.is_unhurt()


@pytest.mark.parametrize("listener", ["CLEAR", "SECURE"])
def test_flood_of_silent_connections(victim: Victim, listener: str) -> None:
    """The same with TLS handshakes that never begin, or never end."""
    for number in range(400):
        peer = victim.connect(listener)
        if number % 2:
            peer.sendall(b"\x16\x03\x01\x02\x00\x01" if listener == "SECURE" else b"\0\0")
    victim.is_unhurt()


def test_flood_of_tls_handshakes_and_wrong_passwords(victim: Victim) -> None:
    wrong = encoded(SaslAuthenticateRequest(auth_bytes=b"\0alice\0guess"))
    for _ in range(40):
        raw = victim.connect("SECURE")
        with victim.tls.wrap_socket(raw, server_hostname="localhost") as peer:
            peer.sendall(encoded(SaslHandshakeRequest(mechanism="PLAIN")) + wrong)
            peer.recv(4096)
    victim.is_unhurt()


def test_nothing_but_the_handshake_is_answered(victim: Victim) -> None:
    for before in (b"", encoded(SaslHandshakeRequest(mechanism="PLAIN"))):
        peer = victim.connect("CLEAR")
        peer.sendall(before + encoded(MetadataRequest(topics=None), 9))
        answer = last_words(peer)
        assert answer is not None and b"127.0.0.1" not in answer
    victim.is_unhurt()
