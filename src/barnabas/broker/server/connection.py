"""One client connection: frames in, ordered responses out, and all the back-pressure there is.

Small frames are parsed where they were received, in a buffer that every connection of the loop shares; what is left of a
frame that has not arrived whole is received into a buffer of its own. A frame's bytes are valid only while its handler runs.

A connection executes one request at a time, as Kafka does, with one exception: Produce requests that only wait for their
replicas do not hold back the Produce behind them. While it may not start the next request, it does not read.

Connections take turns: one that has sent many requests ahead has them carried out for `TURN_S`, then everybody else's are. The
more wait for their turn, the shorter each of them is.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from struct import Struct
from typing import Protocol, cast

from barnabas.base.bugs import BugLog
from barnabas.base.errors import Malformed
from barnabas.base.tls.distinguished_name import Subject
from barnabas.broker.security.principal import ANONYMOUS, Principal
from barnabas.broker.server.call import Call, Gate
from barnabas.broker.server.ranges import release
from barnabas.broker.server.request_memory import RequestMemory
from barnabas.broker.server.writer import SocketWriter, TransportWriter, Writer

log = logging.getLogger(__name__)

_SIZE = Struct(">i")
#: Requests of one connection that may wait at the same time, where they may overlap at all.
PIPELINED_MAX = 64
#: A frame's own buffer starts no larger than this, and than eight times what is there, and doubles as bytes really arrive: a
#: lie about a length costs nothing.
FRAME_BUFFER_START_BYTES = 1024 * 1024
FRAME_BUFFER_LEAST_BYTES = 16 * 1024
#: What all peers together that have not said who they are may have under way in frames of their own.
STRANGERS_BYTES_MAX = 64 * 1024 * 1024
SHARED_BUFFER_BYTES = 256 * 1024
#: A hundred requests are done in it. Requests that each roll a segment are not, and a client may have sent hundreds ahead.
TURN_S = 0.01
#: What all of them together take before the loop looks around again: each gets its share of it, and one request at least.
ROUND_S = 0.02


class SharedBuffer:
    """The receive buffer of a loop. Filled and emptied within one callback, so one is enough for all connections."""

    def __init__(self, memory: RequestMemory, size_bytes: int = SHARED_BUFFER_BYTES) -> None:
        self.view = memoryview(bytearray(size_bytes))
        #: Of what does not fit in here, or has to wait.
        self.memory = memory
        #: Connections that wait for their next turn.
        self.waiting = 0
        #: Claimed by frames of peers that have not said who they are.
        self.strangers_bytes = 0

    @property
    def turn_s(self) -> float:
        return TURN_S if self.waiting < 2 else min(TURN_S, ROUND_S / self.waiting)


class Executes(Protocol):
    """The pipeline, as a connection sees it."""

    request_bytes_max: int
    bugs: BugLog

    def has_room(self, connection: "Connection") -> bool:
        """Whether one more request may run; if not, the connection's `resume` is called when one may."""
        ...

    def start(self, connection: "Connection", frame: memoryview) -> Call:
        """Run the request; raises `Malformed` for one that cannot be understood."""
        ...

    def sent(self, call: Call) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """Owner: the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pipeline: Executes,
        shared: SharedBuffer,
        pool: Executor,
        *,
        listener_name: str,
        principal: Principal = ANONYMOUS,
        gate: Gate | None = None,
        on_open: Callable[["Connection"], str | None],
        on_close: Callable[["Connection"], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        #: The loop's own time stands still within a turn.
        self._monotonic_s = monotonic_s
        self._pipeline = pipeline
        self._shared = shared
        self._pool = pool
        self._on_open = on_open
        self._on_close = on_close
        self.listener_name = listener_name
        self.principal = principal
        self.gate = gate
        self._frame_bytes_max = pipeline.request_bytes_max if gate is None else gate.frame_bytes_max
        self.client_id = ""
        self.peer_host = ""
        self.peer_port = 0
        #: When the last request came or the last response went, for `connections.max.idle.ms`.
        self.active_s = loop.time()
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._frame: bytearray | None = None  #: a frame that has not arrived whole
        self._frame_size = 0
        self._frame_got = 0
        #: When the frame that has not arrived whole began.
        self.frame_since_s: float | None = None
        self._started_bytes = 0  #: of a frame of its own whose handler has not finished
        self._strange_bytes = 0  #: of the frame under way, as the claim of a stranger
        self._prefix = b""  #: the first bytes of a length that has not arrived whole
        self._backlog: bytearray | None = None  #: bytes that came while no request could start
        self._in_flight: deque[Call] = deque()
        self._turn_s = 0.0  #: the loop's time when this turn began
        self._turn_ends_s = 0.0
        self._awaits_turn = False  #: the backlog goes on at the loop's next turn, whoever calls `resume` before
        self._starting = False
        self._muted_until_s = 0.0
        self._finishing = False
        #: End with the connection.
        self.timers: list[asyncio.TimerHandle] = []
        #: What the peer had not read when it was last looked at.
        self.unread_bytes_seen = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.peer_host, self.peer_port = peer[0], peer[1]
        sock: socket.socket = transport.get_extra_info("socket")
        refusal = self._on_open(self)
        if refusal is not None:
            log.info("closing connection from %s: %s", self.peer_host, refusal)
            transport.abort()  # type: ignore[attr-defined]
            return
        if transport.get_extra_info("ssl_object") is None:
            try:
                self._writer = SocketWriter(
                    self._loop, sock, self._pool, on_drained=self._drained, on_error=self._write_failed
                )
            except OSError as error:  # no descriptor is left
                self._write_failed(error)
        else:
            self._writer = TransportWriter(
                self._loop, self._transport, self._pool, on_drained=self._drained, on_error=self._write_failed
            )

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return self._shared.view
        if self._frame_got == len(frame):
            frame.extend(bytes(min(len(frame), self._frame_size - len(frame))))
            self._count()
        return memoryview(frame)[self._frame_got :]

    def buffer_updated(self, nbytes: int) -> None:
        # libuv reads up to 32 times in a turn of its own: those are one turn here, too.
        self.active_s = self._loop.time()
        if self._turn_s != self.active_s:
            self._turn_s = self.active_s
            self._turn_ends_s = self._monotonic_s() + self._shared.turn_s
        if self._frame is None:
            self._consume(self._shared.view[:nbytes])
            return
        self._frame_got += nbytes
        if self._frame_got == self._frame_size:
            frame, self._frame, self.frame_since_s = self._frame, None, None
            self._shared.strangers_bytes -= self._strange_bytes
            self._strange_bytes = 0
            self._offer(memoryview(frame))
            self._count()

    def _consume(self, view: memoryview) -> None:
        """Start the requests in `view` as far as they may start and the turn lasts; keep the rest."""
        if self._prefix:
            # Writable, as the receive buffer is: a Produce has its offsets written into its frame.
            view = memoryview(bytearray(self._prefix) + view)
            self._prefix = b""
        at, end = 0, len(view)
        while at < end:
            if end - at < 4:
                self._prefix = bytes(view[at:])
                return
            size = _SIZE.unpack_from(view, at)[0]
            if not 0 < size <= self._frame_bytes_max:
                self.fail(f"frame of {size} bytes, the limit is {self._frame_bytes_max}")
                return
            have = end - at - 4
            if have < size:
                if self._shared.memory.may_begin(self):
                    self._begin_frame(view[at + 4 :], size)
                else:
                    self._keep(view[at:])
                return
            if not self._may_start(view, at + 4):
                self._keep(view[at:])
                return
            self._start(view[at + 4 : at + 4 + size])
            if self._transport is None or self._transport.is_closing():
                return  # nothing behind a request that ended the connection is carried out
            at += 4 + size
            if self._monotonic_s() > self._turn_ends_s:
                self._await_turn(view[at:])
                return

    def _begin_frame(self, received: memoryview, size: int) -> None:
        """A frame that has not arrived whole gets a buffer of its own."""
        if self.gate is not None and not self.gate.is_open:
            if self._shared.strangers_bytes + size > STRANGERS_BYTES_MAX:
                self.fail("too much is under way from peers that have not authenticated")
                return
            self._strange_bytes = size
            self._shared.strangers_bytes += size
        have = len(received)
        start = max(have, min(FRAME_BUFFER_START_BYTES, max(FRAME_BUFFER_LEAST_BYTES, 8 * have)))
        self._frame = bytearray(min(size, start))
        self._frame[:have] = received
        self._frame_size, self._frame_got = size, have
        self.frame_since_s = self._loop.time()
        self._count()

    def _count(self) -> None:
        """Say what this connection holds in buffers of its own."""
        memory = self._shared.memory
        arriving = 0 if self._frame is None else self._frame_size if memory.is_pool else len(self._frame)
        kept = 0 if self._backlog is None or memory.is_waiting(self) else len(self._backlog)
        memory.hold(self, arriving + kept + self._started_bytes)

    def _offer(self, frame: memoryview) -> None:
        """A frame in a buffer of its own: start it, or keep it until it may start."""
        if self._may_start(frame, 0):
            self._start(frame)
            if self._in_flight and self._in_flight[-1].is_running:
                self._started_bytes = len(frame)  # its handler still has what was in it
            if self._transport is None or self._transport.is_closing():
                return
            if self._monotonic_s() > self._turn_ends_s:
                self._await_turn(memoryview(b""))
        else:
            self._keep(frame, size_first=True)

    def _may_start(self, view: memoryview, at: int) -> bool:
        if self._muted_until_s or self._writer is None or not self._writer.idle:
            return False
        if not self._in_flight:
            return self._pipeline.has_room(self)
        if len(view) < at + 2 or len(self._in_flight) >= PIPELINED_MAX:
            return False
        # Whatever is in flight started under this rule, so the last one speaks for all.
        return (view[at] << 8 | view[at + 1]) in self._in_flight[-1].overlaps

    def _start(self, frame: memoryview) -> None:
        self._starting = True
        try:
            call = self._pipeline.start(self, frame)
        except Malformed as error:
            self.fail(str(error))
            return
        except Exception as error:
            # Before a handler had it, or nobody would know which request to answer. Only this peer is affected.
            self._pipeline.bugs.note("a request", error)
            self.fail("it met a bug, see above")
            return
        finally:
            self._starting = False
        if call.is_sent:
            return
        if self._transport is None:
            release(call.parts or ())
            return
        if call.parts is not None and not self._in_flight:
            self._send(call)
        else:
            self._in_flight.append(call)
            if call.parts is not None:
                self._send_ready()

    def _keep(self, rest: memoryview, *, size_first: bool = False) -> None:
        assert self._transport is not None
        self._backlog = bytearray(_SIZE.pack(len(rest)) if size_first else b"")
        self._backlog += rest
        self._count()
        self._transport.pause_reading()

    def _await_turn(self, rest: memoryview) -> None:
        self._keep(rest)
        self._awaits_turn = True
        self._shared.waiting += 1
        self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._shared.waiting -= 1
        self.resume()

    def resume(self) -> None:
        """Start what came meanwhile, then read on."""
        if self._finishing:
            if not self.busy and self._transport is not None:
                self._transport.close()
            return
        if self._backlog is None or self._transport is None or self._awaits_turn:
            return
        self._turn_ends_s = self._monotonic_s() + self._shared.turn_s
        backlog, self._backlog = self._backlog, None
        self._consume(memoryview(backlog))
        self._count()
        if self._backlog is None and self._transport is not None:
            self._transport.resume_reading()

    # -- answering --------------------------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        call.answered_s = self._loop.time()
        if self._transport is None:
            release(call.parts or ())
            return
        if self._starting and call not in self._in_flight:
            # By its handler, at once. It goes out before what the handler still does: whoever produces does not wait for the
            # consumers that its record wakes. Behind others it has to wait, and `_start` sees to it.
            if not self._in_flight and call.meter is None:
                call.is_sent = True
                self._send(call)
            return
        self._send_ready()
        if not self._starting:
            self.resume()

    def _send_ready(self) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0].parts is not None:
            self._send(in_flight.popleft())
        if self._started_bytes and not in_flight:
            self._started_bytes = 0
            self._count()

    def _send(self, call: Call) -> None:
        assert self._writer is not None and call.parts is not None
        if call.parts:
            if call.meter is None:
                self._writer.write(call.parts)
            else:
                before_s = self._loop.time()
                self._writer.write(call.parts)
                call.meter.add(call, self._loop.time() - before_s)
        self.active_s = self._loop.time()
        self._pipeline.sent(call)
        if call.throttle_ms > 0:
            self.mute_for(call.throttle_ms)

    def mute_for(self, delay_ms: int) -> None:
        """Quota violated: the answer went out with its throttle time, and nothing more is read until that has passed."""
        self._muted_until_s = max(self._muted_until_s, self._loop.time() + delay_ms / 1000)
        self._loop.call_later(delay_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        if self._muted_until_s and self._loop.time() >= self._muted_until_s - 0.001:
            self._muted_until_s = 0.0
            self.resume()

    @property
    def is_muted(self) -> bool:
        return self._muted_until_s > 0.0

    def _drained(self) -> None:
        self.active_s = self._loop.time()
        self.resume()

    def pause_writing(self) -> None:
        if isinstance(self._writer, TransportWriter):
            self._writer.pause_writing()

    def resume_writing(self) -> None:
        if isinstance(self._writer, TransportWriter):
            self._writer.resume_writing()

    # -- ending -----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A request is being executed or a response is on its way."""
        return bool(self._in_flight) or (self._writer is not None and not self._writer.idle)

    @property
    def unread_bytes(self) -> int:
        """What the peer has asked for and does not read."""
        return self._writer.waiting_bytes() if self._writer is not None else 0

    def fail(self, why: str) -> None:
        """The peer broke the protocol: close it, with a line in the log. Nobody else notices."""
        log.warning("closing connection from %s:%s on %s: %s", self.peer_host, self.peer_port, self.listener_name, why)
        self.close()

    def authenticated(self, principal: Principal) -> None:
        self.principal = principal
        self._frame_bytes_max = self._pipeline.request_bytes_max

    @property
    def peer_subject(self) -> Subject | None:
        """The subject of the peer's certificate, which TLS has checked; None where there is none."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        certificate = tls.getpeercert() if tls is not None else None
        return certificate["subject"] if certificate else None

    @property
    def in_flight(self) -> Sequence[Call]:
        """Requests that have no answer yet, or whose answer waits for its turn: for who looks inside."""
        return self._in_flight

    def finish(self) -> None:
        """Close when what is being answered has gone out; start nothing more."""
        self._finishing = True
        self._muted_until_s = float("inf")
        self.resume()

    def _write_failed(self, error: OSError) -> None:
        log.debug("connection to %s:%s lost: %s", self.peer_host, self.peer_port, error)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._backlog = None
        self._frame = self.frame_since_s = None
        self._started_bytes = 0
        self._shared.memory.leave(self)
        self._shared.strangers_bytes -= self._strange_bytes
        self._strange_bytes = 0
        if self._writer is not None:
            # The two hold each other: whoever logs in and leaves again and again would leave megabytes behind.
            self._writer.close()
            self._writer = None
        for timer in self.timers:
            timer.cancel()
        for call in self._in_flight:
            if call.parts is None and call.on_abandoned is not None:
                call.on_abandoned()
            release(call.parts or ())
        self._in_flight.clear()
        self._on_close(self)
