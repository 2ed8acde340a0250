"""Sockets and transports of the simulated network, as a process sees them."""

import asyncio
import errno
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

from barnabas.testing.simulation.loop import SimLoop

if TYPE_CHECKING:
    from barnabas.testing.simulation.network import Line, Network

HIGH_WATER_BYTES = 64 * 1024
#: Largest piece that arrives at once.
SEGMENT_BYTES = 64 * 1024


class SimSocket:
    """The part of `socket.socket` that shipping code and asyncio's applications use, listening or connected."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(
        self,
        loop: SimLoop,
        network: "Network",
        *,
        address: tuple[str, int] | None = None,
        backlog: int = 0,
        line: "Line | None" = None,
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


class SimServer(asyncio.AbstractServer):
    """The result of `create_server`. It serves from the beginning; `wait_closed` does not wait for open connections."""

    def __init__(self, loop: SimLoop, sock: SimSocket) -> None:
        self._loop = loop
        self.sockets = [sock]
        self._ended = loop.create_future()

    def close(self) -> None:
        self.sockets[0].close()
        if not self._ended.done():
            self._ended.set_result(None)

    def get_loop(self) -> SimLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._ended.done()

    async def start_serving(self) -> None:
        """It does already."""

    async def serve_forever(self) -> None:
        try:
            await self._ended
        finally:
            self.close()

    async def wait_closed(self) -> None:
        await self._ended


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
        self._ends_writing = False
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

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End this side's stream when everything is sent; the other side may go on."""
        self._ends_writing = True
        self._flush()

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
        if self._ends_writing:
            self._line.end()
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
