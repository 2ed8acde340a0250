"""HTTP on `barnabas.metrics.port`: GET /metrics in Prometheus's text form, /health and /ready for who watches over brokers.

With `barnabas.inside.enable` also /inside, which shows how the broker works (`features.inside`).
"""

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.base.hosts import address
from barnabas.base.metrics.exposition import CONTENT_TYPE, render
from barnabas.base.metrics.registry import Registry

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8192
#: For the whole of a connection: its request, the answer, and the client's reading of it.
REQUEST_TIMEOUT_S = 5.0
#: At once. Each more is closed as soon as it is accepted: descriptors are for Kafka's clients.
CONNECTIONS_MAX = 64
LAG_PERIOD_S = 1.0
#: Yes or no, and what there is to say about it.
Verdict = tuple[bool, dict[str, Any]]
#: What a question said after its `?`; the last one of each name.
Query = Mapping[str, str]
Document = dict[str, Any]
View = Callable[[Query], Awaitable[Document]]
_REASONS = {400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class Unanswered(BarnabasError):
    """A view has no answer: what was asked is wrong (400), is not there (404), or cannot be told now (503)."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class MetricsServer:
    """Owner: the event loop."""

    def __init__(
        self,
        metrics: Registry | Callable[[], Awaitable[bytes]],
        verdicts: Mapping[bytes, Callable[[], Verdict]] | None = None,
    ) -> None:
        """`metrics`: what /metrics shows, or who writes that page. `verdicts` by path: 200 for yes, 503 for no, with a JSON
        document that says why."""
        self._metrics = metrics
        self._verdicts = verdicts or {}
        #: By path; empty unless somebody may look inside, and until there is something to see.
        self.views: Mapping[bytes, View] = {}
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.port = -1
        self._host = ""

    @property
    def url(self) -> str:
        """Without a path; for who is on this machine, if it listens everywhere."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"http://{address(host, self.port)}"

    async def start(self, host: str, port: int) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}; change barnabas.metrics.port"
            ) from error
        self._host, self.port = host, self._server.sockets[0].getsockname()[1]
        log.info("metrics at %s/metrics", self.url)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= CONNECTIONS_MAX:
            log.debug("metrics request not served: %d connections are open already", self._connections)
            writer.transport.abort()
            return
        self._connections += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.split(b"\r\n", 1)[0]))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            log.debug("metrics request not served: %s", error)
        finally:
            writer.transport.abort()  # closing waits for the client to read all of it, which it need not do
            self._connections -= 1

    async def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path, _, query = rest.split(b" ", 1)[0].partition(b"?")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET is served\n")
        view = self.views.get(path)
        if view is not None:
            return await _shown(view, query, is_head=method == b"HEAD")
        verdict = self._verdicts.get(path)
        if verdict is not None:
            ok, document = verdict()
            body, kind = json.dumps(document).encode() + b"\n", "application/json"
        elif path in (b"/metrics", b"/"):
            body = render(self._metrics) if isinstance(self._metrics, Registry) else await self._metrics()
            ok, kind = True, CONTENT_TYPE
        else:
            known = b", ".join([b"/metrics", *self._verdicts, *self.views])
            return _response("404 Not Found", b"there are " + known + b"\n")
        status = "200 OK" if ok else "503 Service Unavailable"
        return _response(status, body if method == b"GET" else b"", content_type=kind)


async def _shown(view: View, query: bytes, *, is_head: bool) -> bytes:
    try:
        document = await view(dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)))
    except Unanswered as why:
        document, status = {"error": str(why)}, f"{why.status} {_REASONS[why.status]}"
    else:
        status = "200 OK"
    body = b"" if is_head else json.dumps(document).encode() + b"\n"
    return _response(status, body, content_type="application/json")


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
