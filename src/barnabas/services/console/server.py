"""A console as a process: a socket, uvicorn, signals."""

from collections.abc import Callable
from typing import Final

from barnabas.base import garbage
from barnabas.base.hosts import address
from barnabas.services.console.app import create_app
from barnabas.services.console.settings import Settings
from barnabas.services.console.sign_in import check_settings
from barnabas.services.http.server import http_server, listen, run_until_signal

_CONNECTIONS_MAX: Final = 1_000
#: Open event streams would otherwise delay the end forever.
_SHUTDOWN_S: Final = 1


class ConsoleServer:
    def __init__(self, settings: Settings) -> None:
        check_settings(settings)
        self._socket = listen(settings.host, settings.port)
        scheme = "http" if settings.certificate is None else "https"
        self.url = f"{scheme}://{address(settings.host, self._socket.getsockname()[1])}"
        self.app = create_app(settings)
        self._server = http_server(
            self.app,
            lifespan="on",
            certificate=settings.certificate,
            key=settings.key,
            connections_max=_CONNECTIONS_MAX,
            shutdown_s=_SHUTDOWN_S,
        )

    def stop(self) -> None:
        self._server.should_exit = True

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until `stop`. The socket is already open: early clients wait for a moment."""
        ready()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()


def run(settings: Settings, announce: Callable[[str], None]) -> int:
    """Run as this process until SIGTERM or SIGINT. Return the exit code."""

    def ready(server: ConsoleServer) -> None:
        garbage.settle()
        announce(server.url)

    return run_until_signal(lambda: ConsoleServer(settings), ready)
