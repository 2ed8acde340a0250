"""Connection trouble is reported within seconds, with advice."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.cli._connection import run
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import BrokerRefused, ClientError, ConnectionLost
from tests.pki import Authority
from tests.support.waiting import eventually
from tests.unit.client.client_fake_cluster import FakeCluster

pytestmark = pytest.mark.uvloop


@contextmanager
def port(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that handles each connection with `serve`."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            kept.append(peer)
            try:
                serve(peer)
            except OSError:
                peer.close()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        for peer in kept:
            peer.close()


def trouble(config: ClientConfig, *, blocking: bool) -> str:
    async def ask() -> None:
        async with AsyncClient(config) as cluster:
            await cluster.brokers()

    with pytest.raises(ClientError) as failure:
        if blocking:
            with BlockingClient(config) as client:
                client.any_connection()
        else:
            asyncio.run(ask())
    return str(failure.value)


def settings(where: int, **options: object) -> ClientConfig:
    return ClientConfig(bootstrap=(("127.0.0.1", where),), retry_backoff_ms=1, **options)  # type: ignore[arg-type]


BOTH = pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "blocking"])


@BOTH
def test_client_in_plain_text_names_a_port_that_speaks_tls(blocking: bool, tmp_path: Path) -> None:
    """The error was once just `closed the connection`, without a reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority.create(tmp_path).issue("server", subject="/CN=server"))

    def serve(peer: socket.socket) -> None:
        context.wrap_socket(peer, server_side=True)

    with port(serve) as where:
        assert "If 127.0.0.1" in (error := trouble(settings(where), blocking=blocking))
    assert "speaks TLS, set security.protocol to SSL or SASL_SSL" in error


@BOTH
def test_client_in_tls_names_a_port_that_speaks_plain_text(blocking: bool) -> None:
    with port(lambda peer: peer.close()) as where:
        error = trouble(settings(where, security_protocol="SSL"), blocking=blocking)
    assert "does not answer in TLS. If it speaks plain text, set security.protocol to PLAINTEXT" in error


@BOTH
def test_port_that_accepts_and_never_answers_is_reported_in_time(blocking: bool) -> None:
    """The error once took 63 seconds."""
    with port(lambda peer: None) as where:
        config = settings(where, connect_timeout_ms=200)
        began_s = time.monotonic()
        error = trouble(config, blocking=blocking)
        assert time.monotonic() - began_s < 30
    assert "ApiVersions" in error
    assert "not answered in time" in error


async def test_lost_cluster_is_reported_at_once_and_again_when_it_is_back() -> None:
    """The client was once silent for 100 seconds."""
    fake = FakeCluster()
    reported: list[str] = []

    async def refuse(host: str, port: int) -> None:
        raise ConnectionLost("no listener")

    async with fake.client() as cluster:
        cluster.tell = reported.append
        await cluster.brokers()
        address = f"127.0.0.1:{fake.broker.port}"
        real, cluster.io.connect = cluster.io.connect, refuse  # type: ignore[method-assign]
        fake.broker.drop_connections()
        asking = asyncio.create_task(cluster.brokers())
        await eventually(lambda: reported)
        cluster.io.connect = real  # type: ignore[method-assign]
        await asking
        assert reported == ["no listener; trying again", f"connected to {address} again"]


def test_tool_reports_a_lost_cluster_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """The client's messages reach the person at the terminal."""
    with port(lambda peer: None) as where:

        async def body(cluster: AsyncClient) -> None:
            cluster.tell("no listener; trying again")

        run(settings(where), body)
    assert capsys.readouterr().err == "warning: no listener; trying again\n"


def test_too_few_replicas_are_explained() -> None:
    refused = BrokerRefused(ErrorCode.NOT_ENOUGH_REPLICAS, "t-0")
    assert "fewer replicas are in sync than min.insync.replicas asks for: start the other brokers" in str(refused)
