"""A web application as a process: a socket, uvicorn, signals. The console, which stands above, is one too."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from typing import Any, Final, Literal, Protocol, TypeVar

import uvicorn

from barnabas.base.errors import BarnabasError, ConfigError, leaves

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_KEEP_ALIVE_S: Final = 60


class HttpServer(uvicorn.Server):
    """Signals are `run_until_signal`'s: what is behind the application may have to end after the last request."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def uvicorn_config(
    application: Any,
    *,
    lifespan: Literal["on", "off"],
    certificate: str | None,
    key: str | None,
    connections_max: int,
    shutdown_s: int,
) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        lifespan=lifespan,
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        limit_concurrency=connections_max,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=shutdown_s,
    )


def listen(host: str, port: int) -> socket.socket:
    """Before anything else: others have to be told the port."""
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
        """Until `stop`. `ready` is called when clients may come."""
        ...


S = TypeVar("S", bound=Service)


def run_until_signal(make: Callable[[], S], announce: Callable[[S], None]) -> int:
    """As this process, until SIGTERM or SIGINT. Returns the exit code."""
    import uvloop

    async def main() -> None:
        service = make()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stop)
        await service.run(lambda: announce(service))

    exit_code = 0
    try:
        uvloop.run(main())
    except* BarnabasError as errors:
        for error in leaves(errors):
            log.critical("%s", error)
        exit_code = 1
    return exit_code
