"""TLS handshakes that do not come to their end: bounded in time and in number, and others are served meanwhile."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from barnabas.base.tls.contexts import TlsSettings, server_context
from barnabas.broker.server import listener, strangers
from barnabas.broker.server.connection_quotas import ConnectionLimits
from barnabas.broker.server.listener import Endpoint
from barnabas.wire.auth.authority import LocalAuthority
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder: Path = tmp_path_factory.mktemp("pki")
    authority = LocalAuthority.create("test")
    (folder / "broker.pem").write_text(authority.issue("broker", ["localhost", "127.0.0.1"]))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "broker.pem")
    return server, ssl.create_default_context(cadata=authority.certificate_pem)


def bounded(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await story()

    uvloop.run(run())


def hello(context: ssl.SSLContext) -> bytes:
    """The first message of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_peer_that_never_ends_its_handshake_is_closed(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "AUTHENTICATION_TIMEOUT_S", 0.3)
    server_side, client_side = contexts
    first = hello(client_side)

    async def story() -> None:
        async with Harness(endpoint=Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side)) as server:
            peers = []
            for said in (b"", first[:1], first[:40], first):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(said)
                peers.append((reader, writer))
            good = await server.client(client_side)
            await good.heartbeat()
            for reader, writer in peers:
                await reader.read()  # to the end
                writer.close()
            await good.heartbeat()
            await good.close()
            await eventually(lambda: not server.server.connections)
            assert server.server.places_taken == 0

    bounded(story)


def test_unfinished_handshakes_count_for_their_address(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server_side, client_side = contexts

    async def story() -> None:
        limits = ConnectionLimits(max_connections_per_ip=3)
        endpoint = Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side)
        async with Harness(endpoint=endpoint, limits=limits) as server:
            good = await server.client(client_side)
            unfinished = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await reader.read() == b""  # the fourth is not even asked who it is
            writer.close()
            await good.heartbeat()
            for _, writer in unfinished:
                writer.close()
                await writer.wait_closed()
            await eventually(lambda: server.server.places_taken == 1)
            again = await server.client(client_side)
            await again.heartbeat()
            for client in (good, again):
                await client.close()

    bounded(story)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", bytes(300), b"\x16\x03\x01\xff\xff" + bytes(70_000)])
def test_peer_that_does_not_speak_tls_is_closed_at_once(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], said: bytes
) -> None:
    async def story() -> None:
        async with Harness(endpoint=Endpoint(name="SSL", host="127.0.0.1", port=0, tls=contexts[0])) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            await eventually(lambda: server.server.places_taken == 0)
            good = await server.client(contexts[1])
            await good.heartbeat()
            await good.close()

    bounded(story)


def test_client_without_a_certificate_gets_an_alert(tmp_path: Path) -> None:
    """By TLS's own alert: a client that only sees its connection end would try again for ever."""
    authority = LocalAuthority.create("test")
    (tmp_path / "broker.pem").write_text(authority.issue("broker", ["localhost", "127.0.0.1"]))
    settings = TlsSettings(
        keystore_type="PEM",
        keystore_location=str(tmp_path / "broker.pem"),
        truststore_certificates=authority.certificate_pem,
        client_auth="required",
    )
    stranger = LocalAuthority.create("stranger")
    (tmp_path / "mallory.pem").write_text(stranger.issue("mallory", ["localhost"]))
    without, wrong = (ssl.create_default_context(cadata=authority.certificate_pem) for _ in range(2))
    wrong.load_cert_chain(tmp_path / "mallory.pem")

    async def story() -> None:
        endpoint = Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_context(settings))
        async with Harness(endpoint=endpoint) as server:
            for context, words in ((without, "CERTIFICATE_REQUIRED"), (wrong, "UNKNOWN_CA")):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
                with pytest.raises(ssl.SSLError, match=words):
                    await reader.readexactly(1)
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    bounded(story)


def test_handshakes_that_do_not_end_make_room_for_others(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs some 60 KiB, and descriptors are too many to bound that."""
    monkeypatch.setattr(strangers, "STRANGERS_MAX", 3)
    monkeypatch.setattr(strangers, "PATIENCE_S", 0.0)
    server_side, client_side = contexts

    async def story() -> None:
        async with Harness(endpoint=Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side)) as server:
            early = await server.client(client_side)
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(10)]
            for reader, _ in peers[:7]:
                assert await reader.read() == b"", "the oldest went"
            late = await server.client(client_side)
            for client in (early, late):
                await client.heartbeat()
                await client.close()
            for _, writer in peers:
                writer.close()
            await eventually(lambda: server.server.places_taken == 0)

    bounded(story)


def test_newcomers_wait_while_earlier_peers_are_within_their_patience(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "STRANGERS_MAX", 2)
    server_side, client_side = contexts

    async def story() -> None:
        async with Harness(endpoint=Endpoint(name="SSL", host="127.0.0.1", port=0, tls=server_side)) as server:
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            await eventually(lambda: server.server.places_taken == 2)
            waiting = asyncio.create_task(server.client(client_side))
            await eventually(lambda: bool(server.server._paused))
            peers[0][1].close()
            client = await waiting
            await client.heartbeat()
            await client.close()
            peers[1][1].close()

    bounded(story)
