"""Connections: framing, the handshake, order, and limits. Owner: the event loop.

Requests of a connection are handled in the order they came and answered in that order. A connection stops being read
while too much waits for the disk, or while its client does not read; a client that leaves too much unread is dropped.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from barnabas.coordination.embedded import fourletter
from barnabas.coordination.embedded.watches import Client
from barnabas.coordination.embedded.wire import INT

if TYPE_CHECKING:
    from barnabas.coordination.embedded.service import Service

_log = logging.getLogger(__name__)

_unpack_int = INT.unpack_from

#: Answers gathered before they are written out: bounds what one turn of the loop makes.
_TURN_BYTES_MAX = 256 << 10


class Connection(Client, asyncio.Protocol):
    """One client.

    Invariant: `_buffer` starts at a frame boundary. While `_stalled`, no frame is handled and nothing is read.
    """

    __slots__ = (
        "_buffer",
        "_close_after",
        "_reading",
        "_service",
        "_transport",
        "_unwritable",
        "address",
        "closing_since_s",
        "established_ms",
        "established_s",
        "is_open",
        "is_ready",
        "is_waiting",
        "last_cxid",
        "last_latency_ms",
        "last_op",
        "last_response_s",
        "last_zxid",
        "latency_max_ms",
        "latency_min_ms",
        "latency_sum_ms",
        "outstanding",
        "peer",
        "received",
        "sent",
        "timeout_ms",
        "turn_started_s",
    )

    def __init__(self, service: "Service") -> None:
        super().__init__()
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._reading = True
        self._unwritable = False
        self._close_after = False
        self.is_open = False
        #: The handshake is over: requests may be handled.
        self.is_ready = False
        #: A handshake is under way, or too much waits for the disk.
        self.is_waiting = False
        self.address = ""
        self.peer = ""
        self.timeout_ms = 0
        self.established_ms = 0
        self.established_s = 0.0
        self.closing_since_s: float | None = None
        self.turn_started_s = 0.0
        #: Answers that have not been sent yet.
        self.outstanding = 0
        self.reset_stats()

    def reset_stats(self) -> None:
        self.received = self.sent = 0
        self.last_op = "NA"
        self.last_cxid = self.last_zxid = -1
        self.last_latency_ms = 0
        self.last_response_s = 0.0
        self.latency_min_ms = self.latency_max_ms = self.latency_sum_ms = 0

    # ---- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but class.
        self._transport = stream = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else "127.0.0.1"
        self.peer = f"/{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.is_open = self._service.admit(self)
        if not self.is_open:
            stream.abort()

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        self._buffer = self._buffer + data if self._buffer else data
        if not self.is_waiting and not self._unwritable:
            self._turn()

    def eof_received(self) -> bool:
        # `echo ruok | nc`: the words come, then the end; the answer must still go out.
        return self._close_after

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._service.departed(self)
        self._transport = None
        self._buffer = b""

    def pause_writing(self) -> None:
        self._unwritable = True
        self._set_reading()

    def resume_writing(self) -> None:
        self._unwritable = False
        self.resume()

    # ---- frames -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Handle the frames that are there, as far as the limits allow, and send the answers together."""
        service = self._service
        buffer = self._buffer
        at = 0
        end = len(buffer)
        out: list[bytes] = []
        budget = _TURN_BYTES_MAX
        self.turn_started_s = service.clock.monotonic_s()
        while end - at >= 4 and not self.is_waiting and not self._close_after:
            length = _unpack_int(buffer, at)[0]
            if (
                not self.is_ready
                and at == 0
                and length > service.config.jute_max_buffer
                and self._four_letter_word(buffer)
            ):
                return
            if not 0 <= length <= service.config.jute_max_buffer:
                _log.warning(
                    "%s: a request of %d bytes, jute.maxbuffer is %d; closed",
                    self.peer,
                    length,
                    service.config.jute_max_buffer,
                )
                self.abort()
                return
            after = at + 4 + length
            if after > end:
                break
            payload = buffer[at + 4 : after]
            at = after
            self.received += 1
            before = len(out)
            service.handle(self, payload, out)
            if not self.is_open:
                return
            budget -= sum(map(len, out[before:]))
            if budget <= 0 or service.is_overloaded:
                break
        self._buffer = buffer[at:] if at < end else b""
        if out:
            self.outstanding += len(out)
            service.commit.send(self, out, close=self._close_after)
        elif self._close_after:
            service.commit.send(self, [], close=True)
        self._wait_if_needed(more=at < end)

    def _wait_if_needed(self, *, more: bool) -> None:
        if not self.is_open or self._close_after or self.is_waiting:
            self._set_reading()
            return
        if self._service.is_overloaded:
            self.is_waiting = True
            self._service.wait(self)
            self._set_reading()
        elif more and not self._unwritable and len(self._buffer) >= 4 + _unpack_int(self._buffer)[0]:
            # The turn was long: others get theirs first.
            self.is_waiting = True
            self._service.wait_turn(self)
            self._set_reading()

    def _four_letter_word(self, buffer: bytes) -> bool:
        word = buffer[:4]
        if not fourletter.is_known(word):
            return False
        answer = fourletter.answer(word, buffer[4:12], self._service)
        self._close_after = True
        self._buffer = b""
        self.received += 1
        self.transmit([answer.encode("utf-8")], close=True)
        return True

    def resume(self) -> None:
        """Go on with what has been received, and read again."""
        if not self.is_open:
            return
        self.is_waiting = False
        if self._buffer and not self._unwritable:
            self._turn()
        self._set_reading()

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = not (self.is_waiting or self._unwritable or self._close_after)
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def close_after_answer(self) -> None:
        """No request after this one is handled; the answer goes out, then the connection ends."""
        self._close_after = True

    # ---- out ----------------------------------------------------------------------------------------------------------

    def transmit(self, pieces: list[bytes], *, close: bool) -> None:
        transport = self._transport
        if transport is None or not self.is_open:
            return
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            transport.write(data)
            self.sent += len(pieces)
            self._service.on_sent(self, len(pieces))
            if transport.get_write_buffer_size() > self._service.config.unread_bytes_max + len(data):
                _log.warning("%s does not read what it asked for; dropped", self.peer)
                self.abort()
                return
        if close:
            self._close_after = True
            self.closing_since_s = self._service.clock.monotonic_s()
            transport.close()

    def abort(self) -> None:
        """End the connection now, whatever is unsent."""
        if self.is_open:
            self.is_open = False
            self._service.departed(self)
        if self._transport is not None:
            self._transport.abort()
