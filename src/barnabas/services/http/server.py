"""A web application as a process: a socket, uvicorn, signals."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

import uvicorn

from barnabas.base.errors import BarnabasError, ConfigError, leaves
from barnabas.base.host import kernel
from barnabas.services.http.connections import Connections, Place
from barnabas.services.http.protocol import HEAD_S, BoundedProtocol

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
#: Pause when the process has no file descriptor left for another connection.
_ACCEPT_AGAIN_S: Final = 0.2
#: Interval of log lines about too many connections.
_REPORT_S: Final = 60.0


class _Acceptor:
    """Accepts connections from the listener while there are places. uvicorn closes it like one of its own servers."""

    def __init__(self, listener: socket.socket, server: "HttpServer") -> None:
        self._listener = listener
        self._server = server
        self._connecting: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="accept connections")
        self._reported_s = -_REPORT_S

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        connections = self._server.connections
        while True:
            try:
                peer, address = await loop.sock_accept(self._listener)
            except OSError as error:
                if self._listener.fileno() < 0:
                    return
                log.error(
                    "[http] cannot accept a connection, will retry in %s s; raise ulimit -n: %s", _ACCEPT_AGAIN_S, error
                )
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            before = connections.displaced
            place = connections.open(str(address[0]))
            if place is None or connections.displaced > before:
                self._report(str(address[0]))
            if place is None:
                peer.close()
                continue
            task = asyncio.create_task(self._connect(peer, place), name="begin a connection")
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, peer: socket.socket, place: Place) -> None:
        """Serve a connection. The TLS handshake counts towards the time limit of the first headers."""
        current = asyncio.current_task()
        assert current is not None
        place.close = partial(_cancel, current)
        tls: ssl.SSLContext | None = self._server.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._server.protocol(place),
                peer,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HEAD_S,
            )
        except (OSError, TimeoutError) as error:
            log.debug("[http] a connection failed before its first request: %s", error)
            self._drop(peer, place)
        except asyncio.CancelledError:
            self._drop(peer, place)
            raise

    def _drop(self, peer: socket.socket, place: Place) -> None:
        self._server.connections.leave(place)
        peer.close()

    def _report(self, host: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            connections = self._server.connections
            log.warning(
                "[http] %d connections are open, the last from %s: %d idle ones were closed, %d new ones were refused",
                len(connections), host, connections.displaced, connections.refused,
            )  # fmt: skip

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._connecting, return_exceptions=True)


class HttpServer(uvicorn.Server):
    """`run_until_signal` handles signals: parts behind the application may have to end after the last request."""

    def __init__(self, config: uvicorn.Config, *, connections_max: int) -> None:
        super().__init__(config)
        self.connections = Connections(connections_max)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def protocol(self, place: Place) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state, self.connections, place)

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Like uvicorn's, except that our `_Acceptor` accepts: asyncio's servers accept connections without a limit."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise BarnabasError("the application did not start; the log says why")
        self.servers = [_Acceptor(listener, self) for listener in sockets or ()]  # type: ignore[misc]
        self.started = True


def http_server(
    application: Any,
    *,
    lifespan: Literal["on", "off"],
    certificate: str | None,
    key: str | None,
    connections_max: int,
    shutdown_s: int,
) -> HttpServer:
    config = uvicorn.Config(
        application,
        lifespan=lifespan,
        access_log=False,
        log_config=None,
        log_level=logging.ERROR,  # else every request that is not HTTP would log a warning, and any client could fill the log
        server_header=False,
        ws="none",
        # Any local program could set the forwarded header. `peers` reads it only behind a configured proxy.
        proxy_headers=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=shutdown_s,
    )
    return HttpServer(config, connections_max=connections_max)


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket before anything else, so that the port can be announced."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


class Service(Protocol):
    def stop(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until `stop`. `ready` is called when clients can connect."""
        ...


S = TypeVar("S", bound=Service)


def run_until_signal(make: Callable[[], S], announce: Callable[[S], None]) -> int:
    """Run as this process until SIGTERM or SIGINT. Return the exit code."""

    async def main() -> None:
        service = make()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stop)
        await service.run(lambda: announce(service))

    exit_code = 0
    try:
        kernel.run(main())
    except* BarnabasError as errors:
        for error in leaves(errors):
            log.critical("%s", error)
        exit_code = 1
    return exit_code
