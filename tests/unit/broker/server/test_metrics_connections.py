"""The port of metrics holds few connections, and none for long."""

import asyncio
import contextlib

import pytest

from barnabas.base.metrics.registry import Registry
from barnabas.broker.server import metrics_http
from barnabas.broker.server.metrics_http import MetricsServer

GET = b"GET /metrics HTTP/1.1\r\n\r\n"


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    with contextlib.closing(writer):
        return await reader.read()


def test_connections_beyond_the_limit_are_closed_and_others_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "CONNECTIONS_MAX", 5)

    async def run() -> None:
        server = MetricsServer(Registry())
        await server.start("127.0.0.1", 0)
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        await asyncio.sleep(0.05)
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                assert await ask(server.port) == b""
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(0.05)
        for _ in range(20):
            assert (await ask(server.port)).startswith(b"HTTP/1.1 200")
        server.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


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
        assert server._connections == 1
        await asyncio.sleep(0.6)
        assert server._connections == 0
        writer.transport.abort()
        server.stop()

    asyncio.run(asyncio.wait_for(run(), 20))
