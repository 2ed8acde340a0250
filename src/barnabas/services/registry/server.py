"""A registry as a process: settings, a socket, the node behind it, and a shutdown that loses no write."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ConfigError
from barnabas.base.hosts import is_loopback
from barnabas.client.config import ClientConfig
from barnabas.services.http.server import HttpServer, http_server, listen, run_until_signal
from barnabas.services.registry.access import OPEN, Access
from barnabas.services.registry.api import BODY_BYTES_MAX, Api
from barnabas.services.registry.election import Identity
from barnabas.services.registry.forwarding import Forwarder
from barnabas.services.registry.node import Node, NodeConfig

_CONNECTIONS_MAX: Final = 5_000
_SHUTDOWN_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    client: ClientConfig
    host: str = "127.0.0.1"
    port: int = 8081
    #: Address under which other instances reach this one. Default: `host` if that is an address, else the machine's name.
    advertised_host: str | None = None
    access: Access = OPEN
    certificate: str | None = None
    key: str | None = None
    #: Authorities that signed the certificates of the other instances.
    ca: str | None = None
    topic: str = "_schemas"
    group_id: str = "schema-registry"
    compatibility: str = "BACKWARD"
    allow_mode_changes: bool = True
    eligible: bool = True
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    write_timeout_ms: int = 15_000
    read_timeout_ms: int = 5_000
    body_bytes_max: int = BODY_BYTES_MAX


class RegistryServer:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._socket = listen(config.host, config.port)
        port = self._socket.getsockname()[1]
        self.identity = Identity(
            host=config.advertised_host or _reachable(config.host),
            port=port,
            scheme="https" if config.certificate else "http",
            is_eligible=config.eligible,
        )
        self._stopping: asyncio.Event | None = None
        self.node = Node(
            NodeConfig(
                client=config.client,
                identity=self.identity,
                topic=config.topic,
                group_id=config.group_id,
                default_compatibility=config.compatibility,
                allow_mode_changes=config.allow_mode_changes,
                session_timeout_ms=config.session_timeout_ms,
                heartbeat_interval_ms=config.heartbeat_interval_ms,
                write_timeout_ms=config.write_timeout_ms,
                read_timeout_ms=config.read_timeout_ms,
            )
        )

    @property
    def url(self) -> str:
        return self.identity.url

    def stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until `stop`. `ready` is called when clients can connect."""
        config = self._config
        self._stopping = asyncio.Event()
        forwarder = Forwarder(timeout_s=30.0, tls=_forward_tls(config))
        server = self._server(Api(self.node, forwarder, config.access))
        try:
            async with asyncio.TaskGroup() as tasks:
                started = asyncio.Event()
                running = tasks.create_task(self.node.run(started.set), name="registry")
                serving = tasks.create_task(self._serve(server, started, ready), name="http")
                keys = tasks.create_task(config.access.run(), name="keys of signed tokens")
                await self._stopping.wait()
                server.should_exit = True
                await asyncio.wait([serving], timeout=_SHUTDOWN_S + 5)
                for task in (serving, running, keys):
                    task.cancel()
        finally:
            await forwarder.close()
            self._socket.close()

    async def _serve(self, server: HttpServer, started: asyncio.Event, ready: Callable[[], None]) -> None:
        await started.wait()
        ready()
        await server.serve(sockets=[self._socket])

    def _server(self, api: Api) -> HttpServer:
        config = self._config
        # Without an access file every client may do everything: on loopback, only programs of this machine can connect.
        is_private = config.access.is_open and is_loopback(config.host)
        names = {self.identity.host.lower()} if is_private else None
        return http_server(
            api.application(body_bytes_max=config.body_bytes_max, only_names=names),
            lifespan="off",
            certificate=config.certificate,
            key=config.key,
            connections_max=_CONNECTIONS_MAX,
            shutdown_s=_SHUTDOWN_S,
        )


def _reachable(host: str) -> str:
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host


def _forward_tls(config: ServerConfig) -> ssl.SSLContext | None:
    if config.ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=config.ca)
    except OSError as error:
        raise ConfigError(f"{config.ca}: {error}") from None


def run(config: ServerConfig, announce: Callable[[str], None]) -> int:
    """Run as this process until SIGTERM or SIGINT. Return the exit code."""
    return run_until_signal(lambda: RegistryServer(config), lambda server: announce(server.url))
