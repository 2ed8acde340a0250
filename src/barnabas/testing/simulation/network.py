"""The network: hosts, sockets with kernel buffers, and links that delay, that are cut one way, and that lose connections.

A socket survives while its process is paused. The kernel closes the sockets of a killed process. A host without power sends
nothing, until it is back and answers packets of old connections with a reset.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.sockets import SEGMENT_BYTES, SimServer, SimSocket, SimTransport
from barnabas.testing.simulation.world import World

#: Bytes of one direction of a connection that were sent and not read.
WINDOW_BYTES = 256 * 1024


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}
        #: (from, to) -> number of cuts; nothing arrives that way.
        self._cuts: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[Callable[[], object]]] = {}
        #: (least, most) seconds of an ordinary delay; now and then a packet is lost and sent again.
        self.delay_s = (0.0001, 0.001)
        self.loss = 0.0
        #: Longest time of a packet when no fault slows the network down.
        self.usual_s = 0.001
        #: Number of connections that are held back, in one direction.
        self.lines_held = 0
        #: Whether some ZooKeeper server is behind others, so that messages through it take longer.
        self.is_behind: Callable[[], bool] = lambda: False

    def calm(self) -> None:
        """End the faults that slow the network down."""
        self.delay_s, self.loss = (0.0001, self.usual_s), 0.0

    def host(self, name: str) -> "Host":
        if name not in self.hosts:
            self.hosts[name] = Host(self, name)
        return self.hosts[name]

    def cut(self, source: str, target: str) -> None:
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        left = self._cuts.get((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
            return
        self._cuts.pop((source, target), None)
        for arrive in self._held.pop((source, target), ()):
            arrive()

    def mend_all(self) -> None:
        for pair in list(self._cuts):
            self._cuts[pair] = 1
            self.mend(*pair)

    @property
    def is_calm(self) -> bool:
        """Whether nothing is cut, and nothing is slower than usual."""
        is_fast = not self.lines_held and not self.loss and self.delay_s[1] <= self.usual_s
        return not self._cuts and is_fast and not self.is_behind()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def is_whole(self, *hosts: str) -> bool:
        """Whether all of these hosts reach each other."""
        return not self._cuts or not any((a, b) in self._cuts for a in hosts for b in hosts)

    def delay(self) -> float:
        low_s, high_s = self.delay_s
        delay_s = low_s + (high_s - low_s) * self.world.random.random()  # as `uniform` does
        if self.loss and self.world.random.random() < self.loss:
            delay_s += self.world.random.uniform(0.2, 0.6)  # sent again, as TCP does
        return delay_s

    def carry(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        """Call `arrive` in the other host's kernel after the delay, or when the cut ends."""
        if (source, target) in self._cuts:
            self._held.setdefault((source, target), []).append(arrive)
        else:
            arrive()


class Host:
    """A machine: its address, its listeners and its open connections."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.is_up = True
        #: Whether it refuses new connections. A host whose process is dead does; here a living one does too.
        self.refuses = False
        #: Host name -> number of its next connections that are refused, as by a full accept queue.
        self.turns_away: dict[str, int] = {}
        self.listening: dict[int, SimSocket] = {}
        self.connections: set[Line] = set()
        #: Connections that this host has forgotten and to which peers have sent something: they get a reset when it is back.
        self._ghosts: list[Line] = []
        self._ports = 40_000

    # -- for a process's loop -------------------------------------------------------------------------------------------

    def listen(
        self, loop: SimLoop, host: str, port: int, *, backlog: int = 50, receive_buffer_bytes: int = -1
    ) -> "SimSocket":
        if port == 0:
            self._ports += 1
            port = self._ports
        if port in self.listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        sock = SimSocket(loop, self.network, address=(self.name, port), backlog=backlog)
        self.listening[port] = sock
        return sock

    def serve(self, loop: SimLoop, protocol_factory: Callable[[], Any], port: int) -> "SimServer":
        sock = self.listen(loop, self.name, port)

        def accept() -> None:
            while sock.pending:
                peer, _ = sock.accept()
                self.adopt(loop, protocol_factory, peer)

        loop.add_reader(sock.fileno(), accept)
        return SimServer(loop, sock)

    def adopt(self, loop: SimLoop, protocol_factory: Callable[[], Any], sock: "SimSocket") -> Any:
        protocol = protocol_factory()
        transport = SimTransport(loop, sock, protocol)
        transport.begin()
        return transport, protocol

    async def connect(self, loop: SimLoop, protocol_factory: Callable[[], Any], name: str, port: int) -> Any:
        network, world = self.network, self.network.world
        answered = loop.create_future()
        target = network.hosts.get(name)

        def settle(sock: "SimSocket | OSError") -> None:
            if answered.done():
                if isinstance(sock, SimSocket):
                    sock.close()
            elif isinstance(sock, OSError):
                answered.set_exception(sock)
            else:
                answered.set_result(sock)

        def reply(what: "SimSocket | OSError") -> None:
            assert target is not None
            network.carry(
                target.name, self.name, lambda: world.after(network.delay(), lambda: loop.call_soon(settle, what))
            )

        def arrive() -> None:
            assert target is not None
            if loop.is_dead or not target.is_up:
                return
            listener = target.listening.get(port)
            if listener is None or target.refuses or target.is_turning_away(self.name):
                reply(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
                return
            if len(listener.pending) >= listener.backlog:
                return
            self._ports += 1
            line = Line(self, target, self._ports, port)
            ours = SimSocket(loop, network, line=line)
            theirs = SimSocket(listener.loop, network, line=line.other)
            listener.pending.append(theirs)
            listener.poll()
            reply(ours)

        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"no host {name}")
        network.carry(self.name, target.name, lambda: world.after(network.delay(), arrive))
        try:
            sock = await answered
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled() and answered.exception() is None:
                answered.result().close()  # the connection was accepted in the same turn
            raise
        return self.adopt(loop, protocol_factory, sock)

    def is_turning_away(self, name: str) -> bool:
        left = self.turns_away.get(name, 0)
        if left:
            self.turns_away[name] = left - 1
        return left > 0

    # -- what happens to it ---------------------------------------------------------------------------------------------

    def process_died(self, loop: SimLoop) -> None:
        """Close the process's sockets, as the kernel does."""
        for sock in list(loop.sockets.values()):
            sock.close()

    def lose_power(self) -> None:
        self.is_up = False
        for sock in self.listening.values():
            sock.vanish()
        self.listening.clear()
        for line in list(self.connections):
            line.is_gone = True
        self.connections.clear()

    def boot(self) -> None:
        self.is_up = True
        ghosts, self._ghosts = self._ghosts, []
        for line in ghosts:
            line.reset_later()

    def knows_not(self, line: "Line") -> None:
        """Handle a packet of a connection that this host has forgotten."""
        if self.is_up:
            line.reset_later()
        else:
            self._ghosts.append(line)


class Line:
    """One side of a connection, in its host's kernel."""

    def __init__(self, host: Host, peer: Host, port: int, peer_port: int, other: "Line | None" = None) -> None:
        self.host = host
        self.peer = peer
        self.address = (host.name, port)
        self.peer_address = (peer.name, peer_port)
        self.network = host.network
        self.received: deque[bytes | None] = deque()
        self.received_bytes = 0
        self.on_way_bytes = 0  #: sent by this side, not yet received by the other
        self.is_reset = False
        self.is_closed = False
        #: Whether the end of what this side sends was sent.
        self.is_ended = False
        self.is_gone = False
        self.descriptors = 0
        self.watchers: list[SimSocket] = []
        #: Bytes that this side may send before the peer reads them.
        self.window_bytes = WINDOW_BYTES
        #: Data that this side has sent since `hold`; None: nothing is held back.
        self.held: list[bytes | None] | None = None
        self._last_s = 0.0
        self._number = host.network.world.number()
        self.other: Line = other or Line(peer, host, peer_port, port, self)
        host.connections.add(self)

    def __hash__(self) -> int:
        return self._number

    @property
    def room(self) -> int:
        return self.window_bytes - self.on_way_bytes - self.other.received_bytes

    def send(self, data: bytes) -> None:
        world = self.network.world
        self.on_way_bytes += len(data)
        at = 0
        while at < len(data):
            size = SEGMENT_BYTES
            if world.random.random() < 0.05:
                size = world.random.randint(1, 200)
            self._transmit(data if at == 0 and size >= len(data) else data[at : at + size])
            at += size

    def hold(self) -> None:
        """Hold back what this side sends until `release`, as when packets of one connection are lost and sent again later."""
        assert self.held is None
        self.held = []
        self.network.lines_held += 1

    def lose(self) -> None:
        """Drop the held data: its host has no power and does not send it again."""
        assert self.held is not None
        self.held.clear()

    def release(self) -> None:
        assert self.held is not None
        held, self.held = self.held, None
        self.network.lines_held -= 1
        for piece in held:
            self._transmit(piece)

    def _transmit(self, piece: bytes | None) -> None:
        """Send a piece; None ends the stream."""
        network = self.network
        if self.held is not None:
            self.held.append(piece)
            return
        if network.is_cut(self.host.name, self.peer.name):
            network.carry(self.host.name, self.peer.name, partial(self._arrive, piece))
        else:
            self._arrive(piece)

    def _arrive(self, piece: bytes | None) -> None:
        network = self.network
        world = network.world
        when_s = world.now_s + network.delay()
        if when_s < self._last_s:
            when_s = self._last_s
        self._last_s = when_s
        world.push(when_s, None, partial(self.other.take, piece))

    def take(self, piece: bytes | None) -> None:
        other = self.other
        if piece is not None:
            other.on_way_bytes -= len(piece)
        if self.is_gone:
            self.host.knows_not(other)
            return
        if self.is_closed:
            if piece is not None:
                other.reset_later()
            return
        self.received.append(piece)
        if piece is not None:
            self.received_bytes += len(piece)
        self.poll()

    def reset_later(self) -> None:
        world = self.network.world
        self.network.carry(self.peer.name, self.host.name, lambda: world.after(self.network.delay(), self._reset))

    def _reset(self) -> None:
        if not self.is_closed and not self.is_gone:
            self.is_reset = True
            self.received.clear()
            self.received_bytes = 0
            self.poll()

    def poll(self) -> None:
        for sock in self.watchers:
            sock.poll()

    def end(self) -> None:
        """End the stream of this side, once."""
        if not self.is_reset and not self.is_ended:
            self.is_ended = True
            self._transmit(None)

    def close(self) -> None:
        """Close the last descriptor: data that was sent still arrives, then the end."""
        if self.is_closed or self.is_gone:
            return
        self.is_closed = True
        self.host.connections.discard(self)
        self.received.clear()
        self.received_bytes = 0
        self.end()
