"""HTTP on `barnabas.metrics.port`: GET /metrics in Prometheus's text form, /health and /ready for who watches over brokers."""

import asyncio
import gc
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from barnabas.core.errors import ConfigError
from barnabas.metrics.exposition import CONTENT_TYPE, render
from barnabas.metrics.registry import Registry

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0
LAG_PERIOD_S = 1.0
#: Yes or no, and what there is to say about it.
Verdict = tuple[bool, dict[str, Any]]


class MetricsServer:
    """Owner: the event loop."""

    def __init__(self, registry: Registry, verdicts: Mapping[bytes, Callable[[], Verdict]] | None = None) -> None:
        """`verdicts` by path: 200 for yes, 503 for no, with a JSON document that says why."""
        self._registry = registry
        self._verdicts = verdicts or {}
        self._server: asyncio.Server | None = None
        self.port = -1

    async def start(self, host: str, port: int) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}; change barnabas.metrics.port"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("metrics at http://%s:%d/metrics", host, self.port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer(head.split(b"\r\n", 1)[0]))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            log.debug("metrics request not served: %s", error)
        finally:
            writer.close()

    def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET is served\n")
        verdict = self._verdicts.get(path)
        if verdict is not None:
            ok, document = verdict()
            body, kind = json.dumps(document).encode() + b"\n", "application/json"
        elif path in (b"/metrics", b"/"):
            ok, body, kind = True, render(self._registry), CONTENT_TYPE
        else:
            known = b", ".join([b"/metrics", *self._verdicts])
            return _response("404 Not Found", b"there are " + known + b"\n")
        status = "200 OK" if ok else "503 Service Unavailable"
        return _response(status, body if method == b"GET" else b"", content_type=kind)


def _response(status: str, body: bytes, *, content_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def add_gc_gauges(registry: Registry) -> None:
    """A search for garbage holds the loop for milliseconds: requests are meant to leave none that needs one."""
    for generation in range(3):
        registry.gauge(
            "python_gc_collections",
            "Times that Python searched the heap for garbage in circles.",
            lambda generation=generation: float(gc.get_stats()[generation]["collections"]),  # type: ignore[misc]
            generation=str(generation),
        )


async def watch_loop_lag(registry: Registry) -> None:
    """How late the event loop runs what is due: the one number that tells whether something blocks it."""
    lag = registry.histogram("barnabas_event_loop_lag_ms", "How late a timer of the event loop fired.")
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lag.observe_ms(max(0.0, loop.time() - due_s) * 1000)
