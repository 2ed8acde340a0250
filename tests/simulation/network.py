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

from tests.simulation.loop import SimLoop
from tests.simulation.world import World

#: Bytes of one direction of a connection that were sent and not read.
WINDOW_BYTES = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024
#: Largest piece that arrives at once.
SEGMENT_BYTES = 64 * 1024


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}
        #: (from, to) -> number of cuts; nothing arrives that way.
        self._cuts: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
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

    def carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
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
        self.connections: set[_Line] = set()
        #: Connections that this host has forgotten and to which peers have sent something: they get a reset when it is back.
        self._ghosts: list[_Line] = []
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
            line = _Line(self, target, self._ports, port)
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

    def knows_not(self, line: "_Line") -> None:
        """Handle a packet of a connection that this host has forgotten."""
        if self.is_up:
            line.reset_later()
        else:
            self._ghosts.append(line)


class _Line:
    """One side of a connection, in its host's kernel."""

    def __init__(self, host: Host, peer: Host, port: int, peer_port: int, other: "_Line | None" = None) -> None:
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
        self.is_gone = False
        self.descriptors = 0
        self.watchers: list[SimSocket] = []
        #: Bytes that this side may send before the peer reads them.
        self.window_bytes = WINDOW_BYTES
        #: Data that this side has sent since `hold`; None: nothing is held back.
        self.held: list[bytes | None] | None = None
        self._last_s = 0.0
        self._number = host.network.world.number()
        self.other: _Line = other or _Line(peer, host, peer_port, port, self)
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

    def close(self) -> None:
        """Close the last descriptor: data that was sent still arrives, then the end."""
        if self.is_closed or self.is_gone:
            return
        self.is_closed = True
        self.host.connections.discard(self)
        self.received.clear()
        self.received_bytes = 0
        if not self.is_reset:
            self._transmit(None)


class SimSocket:
    """The part of `socket.socket` that shipping code uses, listening or connected."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        *,
        address: tuple[str, int] | None = None,
        backlog: int = 0,
        line: _Line | None = None,
    ) -> None:
        self.loop = loop
        self._network = network
        self._address = address
        self.line = line
        self.backlog = backlog
        self.pending: deque[SimSocket] = deque()
        self._fd = loop.take_fd()
        self.transport: SimTransport | None = None
        loop.sockets[self._fd] = self
        if line is not None:
            line.descriptors += 1
            line.watchers.append(self)

    def fileno(self) -> int:
        return self._fd

    def getsockname(self) -> tuple[str, int]:
        if self._address is not None:
            return self._address
        assert self.line is not None
        return self.line.address

    def getpeername(self) -> tuple[str, int]:
        assert self.line is not None
        return self.line.peer_address

    def setsockopt(self, *_: object) -> None:
        """Do nothing: the network has its own buffers and keep-alive."""

    def setblocking(self, _: bool) -> None:
        """Nothing blocks."""

    def accept(self) -> "tuple[SimSocket, tuple[str, int]]":
        while self.pending:
            sock = self.pending.popleft()
            return sock, sock.getpeername()
        raise BlockingIOError(errno.EAGAIN, "no reader waits")

    def dup(self) -> "SimSocket":
        assert self.line is not None
        return SimSocket(self.loop, self._network, line=self.line)

    @property
    def is_readable(self) -> bool:
        return bool(self.pending) if self.line is None else bool(self.line.received) or self.line.is_reset

    @property
    def is_writable(self) -> bool:
        return self.line is not None and (self.line.room > 0 or self.line.is_reset or self.line.is_closed)

    def poll(self) -> None:
        """Wake the waiting reader or writer if it can continue. No callback runs here."""
        loop, fd = self.loop, self._fd
        if loop.is_dead:
            return
        if fd in loop.readers and self.is_readable:
            loop.readable(fd)
        if fd in loop.writers and self.is_writable:
            loop.writable(fd)
        if self.transport is not None:
            self.transport.poll()

    def send(self, data: bytes | bytearray | memoryview, _flags: int = 0) -> int:
        line = self.line
        assert line is not None
        if self._fd not in self.loop.sockets:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if line.is_reset or line.is_closed:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        room = line.room
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        piece = bytes(data) if len(data) <= room else bytes(data[:room])
        line.send(piece)
        return len(piece)

    def receive(self, size: int) -> bytes | None:
        """Return up to `size` bytes; None at the end. Only while `is_readable`."""
        line = self.line
        assert line is not None
        if line.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        piece = line.received.popleft()
        if piece is None:
            line.received.appendleft(None)
            return None
        if len(piece) > size:
            line.received.appendleft(piece[size:])
            piece = piece[:size]
        line.received_bytes -= len(piece)
        line.other.poll()
        return piece

    def close(self) -> None:
        if self.loop.sockets.pop(self._fd, None) is None:
            return
        self.loop.remove_reader(self._fd)
        self.loop.remove_writer(self._fd)
        self.loop.free_fd(self._fd)
        if self.line is None:
            self._network.hosts[self.getsockname()[0]].listening.pop(self.getsockname()[1], None)
            for sock in self.pending:
                sock.close()
            return
        self.line.watchers.remove(self)
        self.line.descriptors -= 1
        if self.line.descriptors == 0:
            self.line.close()

    def vanish(self) -> None:
        """Forget the connection: the host has no power, so the peer gets no packet."""
        self.loop.sockets.pop(self._fd, None)


class SimServer:
    """The result of `create_server`."""

    def __init__(self, loop: SimLoop, sock: SimSocket) -> None:
        self._loop = loop
        self.sockets = [sock]

    def close(self) -> None:
        self.sockets[0].close()


class SimTransport(asyncio.Transport):
    def __init__(self, loop: SimLoop, sock: SimSocket, protocol: Any) -> None:
        super().__init__()
        self._loop = loop
        assert sock.line is not None
        self._sock = sock
        self._line = sock.line
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._out = bytearray()
        self._is_reading = False
        self._is_reading_paused = False
        self._is_closing = False
        self._is_lost = False
        self._has_ended = False
        self._is_writing_paused = False
        self._read_is_due = False
        self._number = loop.world.number()

    def __hash__(self) -> int:
        return self._number

    def begin(self) -> None:
        self._protocol.connection_made(self)
        self._is_reading = True
        self._sock.transport = self
        self.poll()

    def poll(self) -> None:
        if self._is_lost or self._read_is_due:
            return
        line = self._line
        if (
            (line.received or line.is_reset)
            and not self._is_reading_paused
            and not self._is_closing
            and not self._has_ended
        ) or (self._out and self._sock.is_writable):
            self._read_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._read_is_due = False
        if self._is_lost:
            return
        if self._out:
            self._flush()
        self._read()
        self.poll()

    def _read(self) -> None:
        line = self._line
        for _ in range(32):
            if (
                not (line.received or line.is_reset)
                or self._is_closing
                or self._is_reading_paused
                or self._has_ended
                or self._is_lost
            ):
                return
            buffer = self._protocol.get_buffer(-1) if self._is_buffered else None
            try:
                piece = self._sock.receive(len(buffer) if buffer is not None else SEGMENT_BYTES)
            except OSError as error:
                self._lose(error)
                return
            if piece is None:
                self._has_ended = True
                if not self._protocol.eof_received():
                    self.close()
                return
            if buffer is None:
                self._protocol.data_received(piece)
            else:
                buffer[: len(piece)] = piece
                self._protocol.buffer_updated(len(piece))

    # -- asyncio.Transport ------------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._sock.getpeername()
        if name == "sockname":
            return self._sock.getsockname()
        return self._sock if name == "socket" else default

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self.poll()

    def is_reading(self) -> bool:
        return not self._is_reading_paused

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost or not data:
            return
        self._out += data
        self._flush()
        if len(self._out) > HIGH_WATER_BYTES and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keep the limits as they are."""

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out)
                if sent == len(self._out):
                    self._out.clear()
                else:
                    del self._out[:sent]
        except BlockingIOError:
            return
        except OSError as error:
            self._out.clear()
            self._loop.call_soon(self._lose, error)
            return
        if self._is_writing_paused:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._loop.call_soon(self._lose, None)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._out:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._is_closing = True
        self._out.clear()
        self._loop.call_soon(self._lose, None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._sock.transport = None
        self._sock.close()
        self._protocol.connection_lost(error)
