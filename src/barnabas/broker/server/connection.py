"""One client connection: receives frames, sends responses in order, and applies all back-pressure.

Small frames are parsed where they were received, in a buffer that all connections of the loop share. The remainder of a
frame that has not fully arrived is received into a buffer of its own. A frame's bytes are valid only while its handler runs.

A connection executes one request at a time, as Kafka does, with one exception: Produce requests that only wait for replicas
do not hold back the next Produce. While a connection may not start the next request, it does not read.

Connections take turns: a connection with many waiting requests executes them for `TURN_S`, then the others get their turn.
The more connections wait, the shorter each turn is.
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
from barnabas.broker.server.ranges import BYTES, Part, release
from barnabas.broker.server.request_memory import RequestMemory
from barnabas.broker.server.writer import SocketWriter, TransportWriter, Writer

log = logging.getLogger(__name__)

_SIZE = Struct(">i").unpack_from
#: Requests of one connection that may wait at the same time, if they may overlap at all.
PIPELINED_MAX = 64
#: A frame's own buffer begins with at most this size, and at most eight times the bytes received; it doubles as bytes arrive.
#: So a false length costs nothing.
FRAME_BUFFER_START_BYTES = 1024 * 1024
FRAME_BUFFER_LEAST_BYTES = 16 * 1024
#: Limit for the unfinished frames of all unauthenticated peers together.
STRANGERS_BYTES_MAX = 64 * 1024 * 1024
SHARED_BUFFER_BYTES = 256 * 1024
#: Answers of one turn leave in one call, unless they are larger than this together.
OUTBOX_BYTES_MAX = 64 * 1024
#: Enough for a hundred requests. But a client may have sent hundreds ahead that each roll a segment.
TURN_S = 0.01
#: The time for all waiting connections before the loop runs other work: they share it, and each executes at least one request.
ROUND_S = 0.02


class SharedBuffer:
    """The receive buffer of a loop. Filled and emptied within one callback, so one is enough for all connections."""

    def __init__(self, memory: RequestMemory, size_bytes: int = SHARED_BUFFER_BYTES) -> None:
        self.view = memoryview(bytearray(size_bytes))
        #: The memory for requests that do not fit in here, or have to wait.
        self.memory = memory
        #: Connections that wait for their next turn.
        self.waiting = 0
        #: Bytes claimed by frames of unauthenticated peers.
        self.strangers_bytes = 0

    @property
    def turn_s(self) -> float:
        return TURN_S if self.waiting < 2 else min(TURN_S, ROUND_S / self.waiting)


class Executes(Protocol):
    """The part of the pipeline that a connection uses."""

    request_bytes_max: int
    bugs: BugLog

    #: Whether no more requests may run.
    is_full: bool

    def wait_for_room(self, connection: "Connection") -> None:
        """Call the connection's `resume` when another request may run."""
        ...

    def start(self, connection: "Connection", frame: memoryview) -> Call:
        """Run the request; raises `Malformed` if it cannot be understood."""
        ...

    def sent(self, call: Call, now_s: float) -> None: ...


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
        #: The loop's own clock does not advance within a turn.
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
        self.software = ("", "")
        self.peer_host = ""
        self.peer_port = 0
        #: When the last request came or the last response went, for `connections.max.idle.ms`.
        self.active_s = loop.time()
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._frame: bytearray | None = None  #: a frame that has not fully arrived
        self._frame_size = 0
        self._frame_got = 0
        #: When the first bytes of that frame came.
        self.frame_since_s: float | None = None
        self._started_bytes = 0  #: size of a separately buffered frame whose handler has not finished
        self._strange_bytes = 0  #: size of the unfinished frame, if the peer is unauthenticated
        self._prefix = b""  #: the first bytes of a length that has not fully arrived
        self._backlog: bytearray | None = None  #: bytes that came while no request could start
        self._in_flight: deque[Call] = deque()
        #: The loop's time when this turn began. It does not advance in a turn, so it is read once.
        self.turn_s = 0.0
        self._turn_ends_s = 0.0  #: 0 until a turn has its second request
        self._has_more = False  #: another whole frame follows the one that is being executed
        self._outbox: list[Part] = []  #: answers of this turn: they leave with the last one, in one call
        self._outbox_bytes = 0
        self._is_clogged = False  #: the peer does not read as fast as it sends requests
        self._awaits_turn = False  #: the backlog continues at the loop's next turn, even if `resume` is called before
        self._starting = False
        self._muted_until_s = 0.0
        self._finishing = False
        #: Cancelled with the connection.
        self.timers: list[asyncio.TimerHandle] = []
        #: Unread bytes of the peer at the last idle check.
        self.unread_bytes_seen = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.peer_host, self.peer_port = peer[0], peer[1]
        sock: socket.socket = transport.get_extra_info("socket")
        refusal = self._on_open(self)
        if refusal is not None:
            log.info("[connection %s:%s] closing it: %s", self.peer_host, self.peer_port, refusal)
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
        # libuv reads up to 32 times per turn of its loop: here these count as one turn, too.
        now_s = self._loop.time()
        if self.turn_s != now_s:
            self.turn_s = self.active_s = now_s
            self._turn_ends_s = 0.0
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
        """Start the requests in `view` that may start within the turn; keep the rest."""
        if self._prefix:
            # Writable, like the receive buffer: a Produce has its offsets written into its frame.
            view = memoryview(bytearray(self._prefix) + view)
            self._prefix = b""
        at, end = 0, len(view)
        while at < end:
            if end - at < 4:
                self._prefix = bytes(view[at:])
                break
            (size,) = _SIZE(view, at)
            if not 0 < size <= self._frame_bytes_max:
                self.fail(f"frame of {size} bytes, the limit is {self._frame_bytes_max}")
                return
            after = at + 4 + size
            if after > end:
                if self._shared.memory.may_begin(self):
                    self._begin_frame(view[at + 4 :], size)
                else:
                    self._keep(view[at:])
                break
            is_idle = not (self._in_flight or self._muted_until_s or self._is_clogged or self._pipeline.is_full)
            if (not is_idle or self._writer is None) and not self._may_start(view, at + 4):
                self._keep(view[at:])
                break
            self._has_more = after < end
            self._start(view[at + 4 : after])
            if self._transport is None or self._transport.is_closing():
                return  # the request ended the connection: the frames after it are not executed
            at = after
            if at < end and self._is_turn_over():
                self._await_turn(view[at:])
                break
        self._has_more = False
        if self._outbox:
            self._flush()

    def _is_turn_over(self) -> bool:
        """Asked before each request but the first of a turn: most turns have one, and need not read the clock."""
        now_s = self._monotonic_s()
        if self._turn_ends_s:
            return now_s > self._turn_ends_s
        self._turn_ends_s = now_s + self._shared.turn_s
        return False

    def _begin_frame(self, received: memoryview, size: int) -> None:
        """Allocate a separate buffer for a frame that has not fully arrived."""
        if self.gate is not None and not self.gate.is_open:
            if self._shared.strangers_bytes + size > STRANGERS_BYTES_MAX:
                self.fail("unauthenticated peers together send too much at once")
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
        """Report the bytes that this connection holds in buffers of its own."""
        memory = self._shared.memory
        arriving = 0 if self._frame is None else self._frame_size if memory.is_pool else len(self._frame)
        kept = 0 if self._backlog is None or memory.is_waiting(self) else len(self._backlog)
        memory.hold(self, arriving + kept + self._started_bytes)

    def _offer(self, frame: memoryview) -> None:
        """Start a separately buffered frame, or keep it until it may start."""
        if self._may_start(frame, 0):
            self._start(frame)
            if self._in_flight and self._in_flight[-1].is_running:
                self._started_bytes = len(frame)  # its handler still uses the frame
            if self._transport is None or self._transport.is_closing():
                return
            if self._is_turn_over():
                self._await_turn(memoryview(b""))
        else:
            self._keep(frame, size_first=True)

    def _may_start(self, view: memoryview, at: int) -> bool:
        if self._muted_until_s or self._is_clogged or self._writer is None:
            return False
        if not self._in_flight:
            if self._pipeline.is_full:
                self._pipeline.wait_for_room(self)
                return False
            return True
        if len(view) < at + 2 or len(self._in_flight) >= PIPELINED_MAX:
            return False
        # Every request in flight started under this rule, so checking the last one is enough.
        return (view[at] << 8 | view[at + 1]) in self._in_flight[-1].overlaps

    def _start(self, frame: memoryview) -> None:
        self._starting = True
        try:
            call = self._pipeline.start(self, frame)
        except Malformed as error:
            self.fail(str(error))
            return
        except Exception as error:
            # The error came before the handler had the request, so there is nothing to answer. It affects only this peer.
            self._pipeline.bugs.note("a request", error)
            self.fail("the broker met a bug, see the message before this one")
            return
        finally:
            self._starting = False
        if call.is_sent:
            return
        if self._transport is None:
            release(call.parts or ())
            return
        if call.parts is not None and not self._in_flight:
            self._send(call, self.turn_s)
        else:
            self._in_flight.append(call)
            if call.parts is not None:
                self._send_ready(self._loop.time())

    def _keep(self, rest: memoryview, *, size_first: bool = False) -> None:
        assert self._transport is not None
        self._backlog = bytearray(len(rest).to_bytes(4, "big") if size_first else b"")
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
        """Start requests that came meanwhile, then continue to read."""
        if self._finishing:
            if not self.busy and self._transport is not None:
                self._transport.close()
            return
        if self._backlog is None or self._transport is None or self._awaits_turn:
            return
        self.turn_s = self._loop.time()
        self._turn_ends_s = self._monotonic_s() + self._shared.turn_s
        backlog, self._backlog = self._backlog, None
        self._consume(memoryview(backlog))
        self._count()
        if self._backlog is None and self._transport is not None:
            self._transport.resume_reading()

    # -- answering --------------------------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        if self._transport is None:
            release(call.parts or ())
            return
        if self._starting and call not in self._in_flight:
            # The handler answered at once. Send the answer before the handler's remaining work: a producer does not wait for
            # the consumers that its record wakes. With other requests in flight, `_start` sends it in order.
            call.answered_s = self.turn_s
            if not self._in_flight and call.meter is None:
                call.is_sent = True
                self._send(call, self.turn_s)
            return
        call.answered_s = self._loop.time()
        self._send_ready(call.answered_s)
        if not self._starting and (self._backlog is not None or self._finishing):
            self.resume()

    def _send_ready(self, now_s: float) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0].parts is not None:
            self._send(in_flight.popleft(), now_s)
        if self._started_bytes and not in_flight:
            self._started_bytes = 0
            self._count()

    def _send(self, call: Call, now_s: float) -> None:
        parts = call.parts
        assert self._writer is not None and parts is not None
        if parts:
            if self._has_more or self._outbox:
                self._outbox.extend(parts)
                self._outbox_bytes += len(parts[0]) if isinstance(parts[0], BYTES) else 0
                if (
                    not self._has_more
                    or len(parts) > 1
                    or self._outbox_bytes > OUTBOX_BYTES_MAX
                    or call.meter is not None
                ):
                    self._flush()
            elif call.meter is None:
                self._is_clogged = not self._writer.write(parts)
            else:
                before_s = self._loop.time()
                self._is_clogged = not self._writer.write(parts)
                call.meter.add(call, self._loop.time() - before_s)
        self.active_s = now_s
        self._pipeline.sent(call, now_s)
        if call.throttle_ms > 0:
            self.mute_for(call.throttle_ms)

    def _flush(self) -> None:
        """Send the answers of this turn."""
        if self._writer is not None:
            self._is_clogged = not self._writer.write(self._outbox)
        else:
            release(self._outbox)
        self._outbox = []
        self._outbox_bytes = 0

    def mute_for(self, delay_ms: int) -> None:
        """Stop reading for a violated quota: the response with the throttle time has been sent."""
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
        self._is_clogged = False
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
        """Whether a request is being executed or a response is being sent."""
        return bool(self._in_flight) or (self._writer is not None and not self._writer.idle)

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the peer has not read."""
        return self._writer.waiting_bytes() if self._writer is not None else 0

    def fail(self, why: str) -> None:
        """Close the connection with a line in the log, because the peer broke the protocol. Other connections continue."""
        log.warning(
            "[connection %s:%s] closing it on listener %s, check this client: %s",
            self.peer_host,
            self.peer_port,
            self.listener_name,
            why,
        )
        if self._outbox:
            self._flush()
        self.close()

    def authenticated(self, principal: Principal) -> None:
        self.principal = principal
        self._frame_bytes_max = self._pipeline.request_bytes_max

    @property
    def peer_subject(self) -> Subject | None:
        """The subject of the peer's certificate, which TLS has checked; None without a certificate."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        certificate = tls.getpeercert() if tls is not None else None
        return certificate["subject"] if certificate else None

    @property
    def in_flight(self) -> Sequence[Call]:
        """Requests without an answer, or whose answer waits for earlier ones: for `features.inside`."""
        return self._in_flight

    def finish(self) -> None:
        """Close the connection after the pending answers; start no further request."""
        self._finishing = True
        self._muted_until_s = float("inf")
        self.resume()

    def _write_failed(self, error: OSError) -> None:
        log.debug("[connection %s:%s] lost: %s", self.peer_host, self.peer_port, error)
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
            # Connection and writer reference each other: without this, each short login would leave garbage.
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
