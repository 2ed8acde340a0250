"""Listeners: accept connections within the limits, close idle ones, stop in order. They can be added and removed at run time.

Owner: the event loop. At `max.connections` a listener stops accepting until a connection closes or the limit rises, as in
Kafka; over `max.connections.per.ip` the broker closes the new connection (`server.connection_quotas`). If these are not set,
connections may take all descriptors that are not reserved for files and other brokers, and one address half of those.
Unauthenticated peers have a limit of their own (`server.strangers`). `security.connection_rates` implements rates (KIP-612):
over the broker's or the listener's rate, the connection just accepted waits, and the listener accepts no further one meanwhile;
over its address's rate, the connection is held and then closed.
"""

import asyncio
import contextlib
import heapq
import logging
import socket
import ssl
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from barnabas.base.errors import ConfigError
from barnabas.base.host import descriptors
from barnabas.base.metrics.registry import Histogram, Registry
from barnabas.base.tls.contexts import alert_of
from barnabas.base.tls.distinguished_name import Subject
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.security.connection_rates import ConnectionRates
from barnabas.broker.security.principal import Principal
from barnabas.broker.server.call import Gate
from barnabas.broker.server.connection import Connection, Executes, SharedBuffer
from barnabas.broker.server.connection_quotas import ConnectionLimits, ConnectionQuotas
from barnabas.broker.server.request_memory import RequestMemory
from barnabas.broker.server.strangers import Stranger, Strangers

log = logging.getLogger(__name__)

#: Connections accepted from one listener before the loop runs other work.
ACCEPT_BURST = 64
#: Connections held because their address exceeds its rate, before they are closed; more of them are closed at once.
HELD_MAX = 1_000
#: Smallest pause between two log lines about missing descriptors.
DESCRIPTOR_WARNING_S = 10.0
#: The wait before accepting again if there is no free descriptor; a connection that closes ends it.
NO_DESCRIPTOR_WAIT_S = 1.0
#: How long a peer may take to authenticate, in TLS and in SASL.
AUTHENTICATION_TIMEOUT_S = 30.0
#: How long a removed listener keeps its connections: the response to the change itself may be sent on one of them.
ANSWERS_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A listener's address and security. The port is 0 until the OS has chosen one."""

    name: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    #: Creates the gate of a connection that must authenticate by SASL.
    gate: Callable[[], Gate] | None = None
    #: Returns the principal for the subject of a client's certificate. Raises `ValueError` for one that it refuses.
    principal_of: Callable[[Subject], Principal] | None = None


class Listen(Protocol):
    def __call__(self, host: str, port: int, *, backlog: int, receive_buffer_bytes: int) -> socket.socket:
        """Return a listening, non-blocking socket. Raises `OSError`."""
        ...


def listen(host: str, port: int, *, backlog: int, receive_buffer_bytes: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.bind((host or "0.0.0.0", port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class SocketServer:
    """All listeners and connections of a broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pipeline: Executes,
        pool: Executor,
        registry: Registry,
        *,
        limits: ConnectionLimits,
        spawn: Spawn,
        rates: ConnectionRates | None = None,
        backlog: int = 50,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        queued_bytes_max: int = -1,
        listen: Listen = listen,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._listen = listen
        self._monotonic_s = monotonic_s
        self._pipeline = pipeline
        self._pool = pool
        self._quotas = ConnectionQuotas(limits)
        self._spawn = spawn
        self._rates = rates or ConnectionRates(windows=11, window_ms=1_000)
        #: Sockets that wait for their listener's rate before they accept again, and connections held until they are closed.
        self._paused: set[socket.socket] = set()
        #: Sockets that wait for a free place or a free descriptor before they accept again.
        self._full: set[socket.socket] = set()
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        self._backlog = backlog
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes
        self.memory = RequestMemory(loop, queued_bytes_max)
        self._shared = SharedBuffer(self.memory)
        self._listening: dict[socket.socket, Endpoint] = {}
        #: In order of arrival.
        self._connections: dict[Connection, None] = {}
        #: Called with each connection that was closed.
        self.closed_listeners: list[Callable[[Connection], None]] = []
        self._strangers = Strangers()
        self._accepting = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._descriptors_logged_s = float("-inf")
        self._rejected = registry.counter(
            "kafka_server_connections_rejected", "Connections that were refused because of a limit."
        )
        registry.gauge("kafka_server_connection_count", "Open connections.", lambda: len(self._connections))
        registry.gauge(
            "kafka_network_memory_pool_used_bytes",
            "Buffers of requests that have not arrived whole, or that wait.",
            lambda: self.memory.used_bytes,
        )
        registry.gauge(
            "kafka_network_memory_pool_available_bytes",
            "What such buffers may still take: of queued.max.request.bytes, or of a quarter of the machine's memory.",
            lambda: max(0, self.memory.limit_bytes - self.memory.used_bytes),
        )
        registry.gauge(
            "kafka_server_throttled_channels",
            "Connections that are not read from because their client is over a quota.",
            lambda: sum(connection.is_muted for connection in self._connections),
        )

        def throttle(kind: str) -> Histogram:
            return registry.histogram(
                "kafka_server_connection_accept_throttle_time_ms",
                "Time that a connection waited for its listener's rate (listener), or was held for its address's (ip).",
                kind=kind,
            )

        self._listener_throttle, self._ip_throttle = throttle("listener"), throttle("ip")

    def bind(self, endpoint: Endpoint) -> int:
        """Bind the port and return it. Accepting begins at once if the other listeners accept, otherwise with
        `start_accepting`: the broker registers first."""
        sock = self._open_socket(endpoint.name, endpoint.host, endpoint.port)
        self._listening[sock] = endpoint
        self._watch(sock)
        port: int = sock.getsockname()[1]
        return port

    def _open_socket(self, name: str, host: str, port: int) -> socket.socket:
        try:
            return self._listen(host, port, backlog=self._backlog, receive_buffer_bytes=self._receive_buffer_bytes)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host or '0.0.0.0'}:{port} ({name}): {error.strerror}; "
                f"stop what uses the port or change `listeners`"
            ) from error

    def check_free(self, name: str, host: str, port: int) -> None:
        """Check that `bind` would get the port. :raises ConfigError: if not."""
        self._open_socket(name, host, port).close()

    def replace(self, endpoint: Endpoint) -> None:
        """Use this endpoint's security for new connections."""
        for sock, present in self._listening.items():
            if present.name == endpoint.name:
                self._listening[sock] = endpoint

    def move(self, endpoint: Endpoint) -> int:
        """Listen at another address under the same name. Connections stay. Returns the port.

        :raises ConfigError: if the port is taken; then the listener stays where it was.
        """
        [(sock, former)] = [
            (sock, present) for sock, present in self._listening.items() if present.name == endpoint.name
        ]
        former_port: int = sock.getsockname()[1]
        self._close_socket(sock)
        try:
            return self.bind(endpoint)
        except ConfigError:
            self.bind(replace(former, port=former_port))
            raise

    def unbind(self, name: str) -> None:
        """Stop listening there, and close the listener's connections after the pending answers."""
        for sock in [sock for sock, endpoint in self._listening.items() if endpoint.name == name]:
            self._close_socket(sock)
        self._loop.call_later(ANSWERS_WAIT_S, self._close_connections_of, name)

    def _close_socket(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock.fileno())
        del self._listening[sock]
        self._full.discard(sock)
        self._paused.discard(sock)
        sock.close()

    def _close_connections_of(self, name: str) -> None:
        if not self._listens_on(name):
            for connection in [each for each in self._connections if each.listener_name == name]:
                connection.close()

    def _listens_on(self, name: str) -> bool:
        return any(endpoint.name == name for endpoint in self._listening.values())

    @property
    def limits(self) -> ConnectionLimits:
        return self._quotas.limits

    def set_limits(self, limits: ConnectionLimits) -> None:
        """Change the limits; accept waiting connections at once if there is room now."""
        self._quotas.limits = limits
        self._close_excess()
        self._resume_accepting()

    def replace_tls(self, listener_name: str, context: ssl.SSLContext) -> None:
        """Use another certificate for new connections; open ones stay as they are."""
        for sock, endpoint in self._listening.items():
            if endpoint.name == listener_name:
                self._listening[sock] = replace(endpoint, tls=context)

    def start_accepting(self) -> None:
        self._accepting = True
        for sock in self._listening:
            self._watch(sock)
        self._schedule_idle_check()

    def _watch(self, sock: socket.socket) -> None:
        """Accept from a socket, unless it has to wait."""
        if self._accepting and sock in self._listening and sock not in self._paused and sock not in self._full:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        endpoint = self._listening[sock]
        for _ in range(ACCEPT_BURST):
            if not self._quotas.has_room(endpoint.name):
                self._wait_for_room(sock)
                return
            if wait_s := self._strangers.wait_s(endpoint.name, self._loop.time()):
                self._pause(sock)
                self._loop.call_later(wait_s, self._unpause, sock)
                return
            try:
                peer, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._out_of_descriptors(f"cannot accept on {endpoint.name}: {error}")
                return
            if peer.fileno() >= (most := self.limits.descriptors_for(endpoint.name)):
                peer.close()
                self._rejected.add()
                self._out_of_descriptors(
                    f"closing a connection on {endpoint.name}: {most} descriptors are taken, the rest of {descriptors.limit()} "
                    f"is kept for files and brokers; raise the limit of open files, or set max.connections"
                )
                return
            now_ms = int(self._loop.time() * 1000)
            wait_ms = self._rates.accepted(endpoint.name, now_ms)
            if wait_ms:
                # It came before the listener was known to exceed its rate: it is served after the wait.
                self._listener_throttle.observe_ms(wait_ms)
                self._pause(sock)
                self._hold(peer, wait_ms, partial(self._go_on, sock, peer, address[0], endpoint))
                return
            self._admit(peer, address[0], endpoint)

    def _out_of_descriptors(self, why: str) -> None:
        """Stop accepting until a connection closes; new connections wait in the backlog."""
        now_s = self._loop.time()
        if now_s - self._descriptors_logged_s > DESCRIPTOR_WARNING_S:
            self._descriptors_logged_s = now_s
            log.error("%s", why)
        for sock in self._listening:
            self._wait_for_room(sock)
        self._loop.call_later(NO_DESCRIPTOR_WAIT_S, self._resume_accepting)

    def _go_on(self, sock: socket.socket, peer: socket.socket, host: str, endpoint: Endpoint) -> None:
        """Continue after a listener's wait: first the connection that waited, then the backlog."""
        if sock in self._listening:
            self._admit(peer, host, endpoint)
        else:
            peer.close()
        self._unpause(sock)

    def _unpause(self, sock: socket.socket) -> None:
        self._paused.discard(sock)
        self._watch(sock)

    def _admit(self, peer: socket.socket, host: str, endpoint: Endpoint) -> None:
        held_ms = self._rates.came_from(host, endpoint.name, int(self._loop.time() * 1000))
        if held_ms:
            self._ip_throttle.observe_ms(held_ms)
            self._rejected.add()
            if len(self._held) < HELD_MAX:
                self._hold(peer, held_ms, peer.close)
            else:
                peer.close()
            return
        if self._quotas.is_host_full(host):
            # Before the TLS handshake: a client that never ends a handshake must not take all places.
            log.info("[connection %s] closing it: max.connections.per.ip=%s reached", host, self.limits.for_ip(host))
            self._rejected.add()
            peer.close()
            return
        self._take(peer, host, endpoint)

    def _hold(self, peer: socket.socket, delay_ms: int, then: Callable[[], None]) -> None:
        def time_is_up() -> None:
            del self._held[peer]
            then()

        self._held[peer] = self._loop.call_later(delay_ms / 1000, time_is_up)

    def _pause(self, sock: socket.socket) -> None:
        self._paused.add(sock)
        self._loop.remove_reader(sock.fileno())

    def _wait_for_room(self, sock: socket.socket) -> None:
        self._full.add(sock)
        self._loop.remove_reader(sock.fileno())

    def _resume_accepting(self) -> None:
        """Accept again on sockets that waited, if there is room."""
        for sock in [sock for sock in self._full if self._quotas.has_room(self._listening[sock].name)]:
            self._full.discard(sock)
            self._watch(sock)

    def _close_excess(self) -> None:
        """Close the longest idle connections of other listeners: brokers exceeded `max.connections`, or the limit fell."""
        others = [
            connection for connection in self._connections if connection.listener_name != self.limits.broker_listener
        ]
        for connection in heapq.nsmallest(self._quotas.excess, others, key=lambda connection: connection.active_s):
            log.info(
                "[connection %s] closing it: max.connections=%d", connection.peer_host, self.limits.max_connections
            )
            connection.close()

    def _take(self, peer: socket.socket, host: str, endpoint: Endpoint) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._send_buffer_bytes > 0:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        self._quotas.take(endpoint.name, host)
        if endpoint.name == self.limits.broker_listener:
            self._close_excess()
        self._spawn(self._open(peer, host, endpoint), f"accept {endpoint.name}")

    async def _open(self, peer: socket.socket, host: str, endpoint: Endpoint) -> None:
        taken = [host]
        stranger = Stranger(self._loop.time(), peer.close)

        def leave() -> None:
            """Free its place. A handshake that fails late is reported twice."""
            if taken:
                self._quotas.give_back(endpoint.name, taken.pop())
            self._strangers.left(endpoint.name, stranger)
            self._resume_accepting()

        line: socket.socket | None = None
        try:
            if endpoint.tls is not None:
                # The loop closes its socket before it reports the failure; the duplicate lets us send the peer an alert.
                line = peer.dup()
                stranger.leave = partial(self._send_away, partial(_hang_up, line))
            if endpoint.tls is not None or endpoint.gate is not None:
                self._strangers.came(endpoint.name, stranger)
            await self._loop.connect_accepted_socket(
                lambda: Connection(
                    self._loop,
                    self._pipeline,
                    self._shared,
                    self._pool,
                    listener_name=endpoint.name,
                    gate=endpoint.gate() if endpoint.gate is not None else None,
                    on_open=partial(self._opened, endpoint, stranger),
                    on_close=partial(self._closed, leave),
                    monotonic_s=self._monotonic_s,
                ),
                peer,
                ssl=endpoint.tls,
                ssl_handshake_timeout=AUTHENTICATION_TIMEOUT_S if endpoint.tls is not None else None,
            )
        except OSError as error:  # includes ssl.SSLError: a handshake that failed
            log.info("[listener %s] a connection failed before its first request: %s", endpoint.name, error)
            if line is not None and (alert := alert_of(error)):
                with contextlib.suppress(OSError):
                    line.send(alert)
            peer.close()
            leave()
        except Exception:
            log.exception("[listener %s] a connection met a bug, report it", endpoint.name)
            peer.close()
            leave()
        finally:
            if line is not None:
                line.close()

    def _opened(self, endpoint: Endpoint, stranger: Stranger, connection: Connection) -> str | None:
        """Return None, or the reason why the connection is closed."""
        if not self._listens_on(endpoint.name):
            return f"the broker no longer listens on {endpoint.name}"
        if endpoint.principal_of is not None and (subject := connection.peer_subject) is not None:
            try:
                connection.principal = endpoint.principal_of(subject)
            except ValueError as error:
                return str(error)
        self._connections[connection] = None
        if connection.gate is None:
            self._strangers.left(endpoint.name, stranger)
        else:
            gate = connection.gate
            stranger.is_known = lambda: gate.is_open
            stranger.leave = partial(self._send_away, connection.close)
            connection.timers.append(
                self._loop.call_later(AUTHENTICATION_TIMEOUT_S, self._close_unauthenticated, connection)
            )
        return None

    def _send_away(self, end: Callable[[], None]) -> None:
        """Close an unauthenticated connection that took too long while others wait."""
        self._rejected.add()
        end()

    def _close_unauthenticated(self, connection: Connection) -> None:
        if connection in self._connections and connection.gate is not None and not connection.gate.is_open:
            connection.fail(f"not authenticated within {AUTHENTICATION_TIMEOUT_S:.0f} s")

    def _closed(self, leave: Callable[[], None], connection: Connection) -> None:
        """Release a connection's place; called for every connection, also for those that `_opened` refused."""
        leave()
        self._connections.pop(connection, None)
        for listener in self.closed_listeners:
            listener(connection)

    def _schedule_idle_check(self) -> None:
        self._idle_timer = self._loop.call_later(max(0.1, self.limits.idle_ms_max / 1000 / 4), self._close_idle)

    def _close_idle(self) -> None:
        now_s = self._loop.time()
        oldest_s = now_s - self.limits.idle_ms_max / 1000
        for connection in list(self._connections):
            unread_bytes = connection.unread_bytes
            if unread_bytes != connection.unread_bytes_seen:
                connection.unread_bytes_seen = unread_bytes
                connection.active_s = now_s  # the peer reads, if slowly
            elif connection.active_s < oldest_s and (unread_bytes or not connection.busy):
                log.debug("[connection %s] closing it: idle", connection.peer_host)
                connection.close()
        self._schedule_idle_check()

    @property
    def connections(self) -> Collection[Connection]:
        return self._connections.keys()

    @property
    def places_taken(self) -> int:
        """The number of connections, including those in their TLS handshake."""
        return self._quotas.taken

    def stop_accepting(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._accepting = False
        for sock in self._listening:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._listening.clear()
        self._full.clear()
        for peer, timer in self._held.items():
            timer.cancel()
            peer.close()
        self._held.clear()

    def close_all(self) -> None:
        for connection in list(self._connections):
            connection.close()


def _hang_up(line: socket.socket) -> None:
    """End the connection so that the loop sees it as ended by the peer."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
