"""A console as a process: a socket, uvicorn, signals."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from typing import Final

import uvicorn

from barnabas.console.app import create_app
from barnabas.console.settings import Settings
from barnabas.console.sign_in import check_settings
from barnabas.core.errors import BarnabasError, ConfigError

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_CONNECTIONS_MAX: Final = 1_000
_KEEP_ALIVE_S: Final = 60
#: Those who watch would never go by themselves.
_SHUTDOWN_S: Final = 1


class _Server(uvicorn.Server):
    """Signals are this module's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class ConsoleServer:
    def __init__(self, settings: Settings) -> None:
        check_settings(settings)
        self._socket = _listen(settings.host, settings.port)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        scheme = "http" if settings.certificate is None else "https"
        self.url = f"{scheme}://{host}:{self._socket.getsockname()[1]}"
        self.app = create_app(settings)
        self._server = _Server(
            uvicorn.Config(
                self.app,
                lifespan="on",
                access_log=False,
                log_config=None,
                log_level=logging.WARNING,
                server_header=False,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
                limit_concurrency=_CONNECTIONS_MAX,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
        )

    def stop(self) -> None:
        self._server.should_exit = True

    async def run(self, ready: Callable[[], None]) -> None:
        """Until `stop`. The socket listens already: who comes early waits for a moment."""
        ready()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
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


def run(settings: Settings, announce: Callable[[str], None]) -> int:
    """As this process, until SIGTERM or SIGINT. Returns the exit code."""
    import uvloop

    async def main() -> None:
        server = ConsoleServer(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        await server.run(lambda: announce(server.url))

    try:
        uvloop.run(main())
    except BarnabasError as error:
        log.critical("%s", error)
        return 1
    return 0
