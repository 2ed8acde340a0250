"""The port of metrics holds few connections, and none for long."""

import asyncio
import contextlib

import pytest

from barnabas.base.metrics.registry import Registry
from barnabas.broker.server import metrics_http
from barnabas.broker.server.metrics_http import MetricsServer

GET = b"GET /metrics HTTP/1.1\r\n\r\n"


async def ask(port: int, request: bytes = GET) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    with contextlib.closing(writer):
        return await reader.read()


def test_idle_connections_keep_no_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else some connections that send nothing would fail the broker's health check, and an orchestrator would end it."""
    monkeypatch.setattr(metrics_http, "CONNECTIONS_MAX", 5)

    async def run() -> None:
        server = MetricsServer(Registry())
        await server.start("127.0.0.1", 0)
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert len(server._connections) == 5
        for _ in range(20):
            assert (await ask(server.port)).startswith(b"HTTP/1.1 200")
        assert len(server._connections) < 5
        for reader, writer in idle:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        server.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        ("127.0.0.1", b"evil.example:9404", b"421"),
        ("127.0.0.1", b"localhost:9404", b"200"),
        ("127.0.0.1", b"[::1]", b"200"),
        ("127.0.0.1", b"127.0.0.1.evil.example", b"421"),
        ("0.0.0.0", b"broker-1.example:9404", b"200"),
    ],
)
def test_page_of_the_web_cannot_read_a_port_on_loopback_by_its_own_name(bound: str, host: bytes, status: bytes) -> None:
    async def run() -> bytes:
        server = MetricsServer(Registry())
        await server.start(bound, 0)
        answer = await ask(server.port, b"GET /metrics HTTP/1.1\r\nHOST: " + host + b"\r\n\r\n")
        server.stop()
        return answer

    assert asyncio.run(asyncio.wait_for(run(), 20)).startswith(b"HTTP/1.1 " + status)


def test_a_client_that_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_TIMEOUT_S", 0.3)

    async def large() -> bytes:
        return b"#" * 50_000_000

    async def run() -> None:
        server = MetricsServer(large)
        await server.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(GET)
        await asyncio.sleep(0.1)
        assert len(server._connections) == 1
        await asyncio.sleep(0.6)
        assert not server._connections
        writer.transport.abort()
        server.stop()

    asyncio.run(asyncio.wait_for(run(), 20))
