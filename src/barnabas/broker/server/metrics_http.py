"""HTTP on `barnabas.metrics.port`: GET /metrics in Prometheus's text format, /health and /ready for monitoring.

With `barnabas.inside.enable` also /inside, which shows how the broker works (`features.inside`).
"""

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.base.hosts import address, host_of, is_loopback
from barnabas.base.metrics.exposition import CONTENT_TYPE, render
from barnabas.base.metrics.registry import Registry

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8192
#: Time limit for a whole connection: its request, the answer, and until the client has read it.
REQUEST_TIMEOUT_S = 5.0
#: Connections at the same time: descriptors are for Kafka's clients. For a further one the oldest is closed, so that idle
#: connections do not keep a health check out.
CONNECTIONS_MAX = 64
LAG_PERIOD_S = 1.0
#: The verdict, and a JSON document with the reasons.
Verdict = tuple[bool, dict[str, Any]]
#: The parameters of a request's query; of equal names, the last one.
Query = Mapping[str, str]
Document = dict[str, Any]
View = Callable[[Query], Awaitable[Document]]
_REASONS = {400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class Unanswered(BarnabasError):
    """A view has no answer: the query is wrong (400), the object does not exist (404), or is unavailable now (503)."""

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
        """`metrics`: the registry for /metrics, or a function that returns that page. `verdicts` by path: 200 for true, 503 for
        false, with a JSON document of the reasons."""
        self._metrics = metrics
        self._verdicts = verdicts or {}
        #: Views by path; empty without `barnabas.inside.enable`, and until the broker has started.
        self.views: Mapping[bytes, View] = {}
        #: Return further metrics for /metrics, in Prometheus's text format.
        self.pages: list[Callable[[], bytes]] = []
        self._server: asyncio.Server | None = None
        #: The oldest comes first.
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self.port = -1
        self._host = ""

    @property
    def url(self) -> str:
        """The address without a path; a local address if the server listens on all interfaces."""
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
        log.info("[http] metrics at %s/metrics", self.url)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            log.debug("[metrics] %d connections are open, closing the oldest", CONNECTIONS_MAX)
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(*head.split(b"\r\n")))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            log.debug("[metrics] request not served: %s", error)
        finally:
            writer.transport.abort()  # a normal close would wait until the client has read everything
            self._connections.pop(writer, None)

    async def _answer(self, request_line: bytes, *headers: bytes) -> bytes:
        if is_loopback(self._host) and not _is_for_loopback(headers):
            return _response(
                "421 Misdirected Request",
                b"this port is open to this machine only: call it localhost, 127.0.0.1 or [::1]\n",
            )
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
            body += b"".join(page() for page in self.pages)
            ok, kind = True, CONTENT_TYPE
        else:
            known = b", ".join([b"/metrics", *self._verdicts, *self.views])
            return _response("404 Not Found", b"unknown path, choose one of " + known + b"\n")
        status = "200 OK" if ok else "503 Service Unavailable"
        return _response(status, body if method == b"GET" else b"", content_type=kind)


def _is_for_loopback(headers: Iterable[bytes]) -> bool:
    """Whether a request names this machine, or no host.

    A page of the web can point its own host name to a loopback address (DNS rebinding), and read what is there.
    """
    named = [value.strip() for name, _, value in (each.partition(b":") for each in headers) if name.lower() == b"host"]
    return all(is_loopback(host_of(each.decode("latin-1"))) for each in named)


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
    """Add gauges of Python's garbage collections. Each blocks the loop for milliseconds; requests should cause none."""
    for generation in range(3):
        registry.gauge(
            "python_gc_collections",
            "Times that Python searched the heap for garbage in circles.",
            lambda generation=generation: float(gc.get_stats()[generation]["collections"]),  # type: ignore[misc]
            generation=str(generation),
        )


async def watch_loop_lag(registry: Registry) -> None:
    """Measure how late the event loop runs its timers: the best sign that something blocks it."""
    lag = registry.histogram("barnabas_event_loop_lag_ms", "How late a timer of the event loop fired.")
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lag.observe_ms(max(0.0, loop.time() - due_s) * 1000)
