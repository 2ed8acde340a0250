"""A listener with TLS: file ranges are read and sent, slowly read, cut off, too short; subjects become principals."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from barnabas.base.errors import ConfigError
from barnabas.base.tls.contexts import TlsSettings, client_context, server_context
from barnabas.broker.security.principal import Principal
from barnabas.broker.server.listener import Endpoint
from barnabas.wire.messages.fetch import FetchRequest
from barnabas.wire.messages.heartbeat import HeartbeatResponse
from tests.pki import Authority
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness, PinnedRange, fetch_response

SIZE = 3 * 1024 * 1024 + 17


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("broker", subject="/CN=Broker")
    made.issue("alice", subject="/O=Test/CN=Alice")
    return made


def server_side(authority: Authority, **more: Any) -> ssl.SSLContext:
    return server_context(
        TlsSettings(
            keystore_type="PEM",
            keystore_location=str(authority.folder / "broker.pem"),
            truststore_type="PEM",
            truststore_location=str(authority.certificate),
            **more,
        )
    )


def client_side(authority: Authority, name: str | None = None, **more: Any) -> ssl.SSLContext:
    return client_context(
        TlsSettings(
            keystore_type="PEM",
            keystore_location=str(authority.folder / f"{name}.pem") if name else None,
            truststore_certificates=authority.certificate.read_text(),
            **more,
        )
    )


class Files:
    """Answers every Fetch with one range of a file."""

    def __init__(self, folder: Path, claimed: int = SIZE) -> None:
        self.path = folder / "segment"
        self.data = os.urandom(SIZE)
        self.path.write_bytes(self.data)
        self.claimed = claimed
        self.ranges: list[PinnedRange] = []

    def fetch(self, call: Any, request: Any) -> Any:
        self.ranges.append(PinnedRange(str(self.path), 0, self.claimed))
        return fetch_response([self.ranges[-1]])


def harness(authority: Authority, files: Files) -> Harness:
    endpoint = Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side(authority))
    return Harness({"Fetch": files.fetch}, endpoint=endpoint)


def run_case(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    uvloop.run(bounded())


@pytest.mark.parametrize("resident", [True, False])
def test_ranges_arrive_whole_and_are_released(
    authority: Authority, tmp_path: Path, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PinnedRange, "is_resident", lambda self, position, size: resident)
    files = Files(tmp_path)

    async def story() -> None:
        async with harness(authority, files) as server:
            client = await server.client(client_side(authority))
            for number in range(3):
                client.send(FetchRequest(), 4, number)
                assert files.data in await client.receive()
                await client.heartbeat()
            await eventually(lambda: all(each.released == 1 for each in files.ranges))
            await client.close()

    run_case(story)
    assert len(files.ranges) == 3


def test_peer_that_does_not_read_holds_up_only_itself(authority: Authority, tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def story() -> None:
        async with harness(authority, files) as server:
            slow = await server.client(client_side(authority))
            for number in range(20):
                slow.send(FetchRequest(), 4, number)
            await eventually(lambda: len(files.ranges) >= 1)
            quick = await server.client(client_side(authority))
            for _ in range(50):
                await quick.heartbeat()
            assert len(files.ranges) < 20  # it is not read ahead of what it takes
            for _ in range(20):
                assert files.data in await slow.receive()
            await eventually(lambda: all(each.released == 1 for each in files.ranges))
            await slow.close()
            await quick.close()

    run_case(story)


@pytest.mark.parametrize("resident", [True, False])
def test_disconnect_in_the_middle_releases_the_range(
    authority: Authority, tmp_path: Path, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PinnedRange, "is_resident", lambda self, position, size: resident)
    files = Files(tmp_path)

    async def story() -> None:
        async with harness(authority, files) as server:
            client = await server.client(client_side(authority))
            client.send(FetchRequest(), 4, 1)
            await client.reader.readexactly(1000)
            client.writer.transport.abort()
            await eventually(lambda: not server.server.connections)
            await eventually(lambda: [each.released for each in files.ranges] == [1])

    run_case(story)


@pytest.mark.parametrize("resident", [True, False])
def test_file_that_is_shorter_than_its_range_closes_the_connection(
    authority: Authority, tmp_path: Path, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PinnedRange, "is_resident", lambda self, position, size: resident)
    files = Files(tmp_path, claimed=SIZE + 1)

    async def story() -> None:
        async with harness(authority, files) as server:
            client = await server.client(client_side(authority))
            client.send(FetchRequest(), 4, 1)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.receive()
            client.writer.transport.abort()
            await eventually(lambda: not server.server.connections)
            other = await server.client(client_side(authority))
            await other.heartbeat()
            await other.close()
            assert [each.released for each in files.ranges] == [1]

    run_case(story)


def test_subject_of_a_certificate_becomes_the_principal_or_closes(authority: Authority) -> None:
    seen: list[str] = []

    def note(call: Any, request: Any) -> HeartbeatResponse:
        seen.append(str(call.channel.principal))
        return HeartbeatResponse()

    def principal_of(subject: Any) -> Principal:
        name = dict(pair for relative in subject for pair in relative)["commonName"]
        if name != "Alice":
            raise ValueError(f"no rule applies to {name}")
        return Principal("User", name)

    endpoint = Endpoint(
        name="SSL",
        host="127.0.0.1",
        port=0,
        tls=server_side(authority, client_auth="requested"),
        principal_of=principal_of,
    )

    async def story() -> None:
        async with Harness({"Heartbeat": note}, endpoint=endpoint) as server:
            for name in ("alice", None):
                client = await server.client(client_side(authority, name))
                await client.heartbeat()
                await client.close()
            assert seen == ["User:Alice", "User:ANONYMOUS"]
            refused = await server.client(client_side(authority, "broker"))
            refused.send(FetchRequest(), 4, 1)
            assert await refused.is_closed()
            await refused.close()

    run_case(story)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_only_enabled_versions_are_agreed_on(authority: Authority, version: str) -> None:
    other = "TLSv1.3" if version == "TLSv1.2" else "TLSv1.2"
    endpoint = Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side(authority, enabled_protocols=(version,)))

    async def story() -> None:
        async with Harness(endpoint=endpoint) as server:
            client = await server.client(client_side(authority))
            assert client.writer.get_extra_info("ssl_object").version() == version
            await client.close()
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await server.client(client_side(authority, enabled_protocols=(other,)))

    run_case(story)


def test_half_a_handshake_does_not_hold_up_others(authority: Authority) -> None:
    endpoint = Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side(authority))

    async def story() -> None:
        async with Harness(endpoint=endpoint) as server:
            stuck = [await server.client() for _ in range(20)]
            for each in stuck:
                each.writer.write(b"\x16\x03\x01")
            client = await server.client(client_side(authority))
            await client.heartbeat()
            await client.close()
            for each in stuck:
                await each.close()

    run_case(story)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "needs a key"),
        ({"keystore_location": "/nowhere/x.jks"}, "No such file"),
        ({"keystore_type": "PEM", "keystore_location": "/nowhere/x.pem"}, "No such file"),
        ({"keystore_key": "x"}, "belong together"),
        ({"keystore_key": "x", "keystore_certificate_chain": "y"}, "no usable private key"),
        ({"enabled_protocols": ("SSLv3",)}, "use TLSv1.2, TLSv1.3 or both"),
        ({"cipher_suites": ("TLS_NO_SUCH_SUITE",)}, "no TLS suite TLS_NO_SUCH_SUITE"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        server_context(TlsSettings(**settings))


def test_pair_that_openssl_refuses_is_named_with_its_reason(authority: Authority) -> None:
    pair = TlsSettings(
        keystore_key=(authority.folder / "broker.key").read_text(),
        keystore_certificate_chain=authority.certificate.read_text(),
    )
    with pytest.raises(ConfigError, match=r"^ssl\.keystore\.key: .*\(KEY_VALUES_MISMATCH\)$"):
        server_context(pair)


def test_key_given_as_text_leaves_no_file_behind(authority: Authority, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    server_context(
        TlsSettings(
            keystore_key=(authority.folder / "broker.key").read_text(),
            keystore_certificate_chain=(authority.folder / "broker.crt").read_text(),
            cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        )
    )
    assert list(tmp_path.iterdir()) == []


def test_trust_store_without_certificates_is_named(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.certificates: no certificates in PEM"):
        client_context(TlsSettings(truststore_certificates="nothing"))
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location=/nowhere cannot be read"):
        client_context(TlsSettings(truststore_type="PEM", truststore_location="/nowhere"))
