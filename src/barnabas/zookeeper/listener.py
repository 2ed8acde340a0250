"""Connections: framing, the handshake, order, and limits. Owner: the event loop.

Requests of a connection are processed and answered in the order in which they arrive. The server stops reading from a
connection while too much waits for the disk, or while its client does not read. It closes the connection of a client that
leaves too much unread.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from barnabas.base.errors import BrokenInvariant
from barnabas.base.tls.distinguished_name import format_subject
from barnabas.zookeeper import fourletter
from barnabas.zookeeper.watches import Client
from barnabas.zookeeper.wire import INT

if TYPE_CHECKING:
    from barnabas.zookeeper.service import Service

_log = logging.getLogger(__name__)

_unpack_int = INT.unpack_from

#: Bound of the responses that are gathered in one turn before they are sent.
_TURN_BYTES_MAX = 256 << 10
#: How long one connection's requests are processed before other connections have their turn.
_TURN_S_MAX = 0.01


class Connection(Client, asyncio.Protocol):
    """One client.

    Invariant: `_buffer` holds the unprocessed bytes from a frame boundary on; a turn is only worthwhile once it has `_needed`
    bytes.
    """

    __slots__ = (
        "_buffer",
        "_close_after",
        "_needed",
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
        self._buffer = bytearray()
        self._needed = 4
        self._reading = True
        self._unwritable = False
        self._close_after = False
        self.is_open = False
        #: Set after the handshake: requests may be processed.
        self.is_ready = False
        #: Set during a handshake, and while too much waits for the disk.
        self.is_waiting = False
        self.address = ""
        self.peer = ""
        self.timeout_ms = 0
        self.established_ms = 0
        self.established_s = 0.0
        self.closing_since_s: float | None = None
        self.turn_started_s = 0.0
        #: Number of responses that have not been sent.
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
        # uvloop's transports do not inherit from asyncio's.
        self._transport = stream = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else "127.0.0.1"
        self.peer = f"/{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        if certificate:
            self.identities.append(("x509", format_subject(certificate["subject"])))
        self.is_open = self._service.admit(self)
        if not self.is_open:
            stream.abort()

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        if self._buffer or self.is_waiting or self._unwritable:
            self._buffer += data
            self._turn_if_possible()
        else:
            self._turn(data)

    def _turn_if_possible(self) -> None:
        if len(self._buffer) >= self._needed and not self.is_waiting and not self._unwritable:
            received = bytes(self._buffer)
            self._buffer.clear()
            self._turn(received)

    def eof_received(self) -> bool:
        # `echo ruok | nc`: the end of input follows the word, but the answer must still be sent.
        return self._close_after

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._service.departed(self)
        self._transport = None
        self._buffer.clear()

    def pause_writing(self) -> None:
        self._unwritable = True
        self._set_reading()

    def resume_writing(self) -> None:
        self._unwritable = False
        self._turn_if_possible()
        self._set_reading()

    # ---- frames -------------------------------------------------------------------------------------------------------

    def _turn(self, received: bytes) -> None:
        """Process the frames in the buffer, as far as the limits allow, and send the responses together."""
        service = self._service
        at, end = 0, len(received)
        out: list[bytes] = []
        budget = _TURN_BYTES_MAX
        limited = False
        self.turn_started_s = service.clock.monotonic_s()
        self._needed = 4
        while end - at >= 4 and not self._close_after:
            length = _unpack_int(received, at)[0]
            if not 0 <= length <= service.config.jute_max_buffer:
                if self.is_ready or not self._four_letter_word(received):
                    self._too_long(length)
                return
            after = at + 4 + length
            if after > end:
                self._needed = 4 + length
                break
            before = len(out)
            self.received += 1
            try:
                service.handle(self, received[at + 4 : after], out)
            except BrokenInvariant as error:
                service.on_bug(error)
                return
            except Exception as error:
                # Nothing was changed, so only this connection is closed.
                service.bugs.note(f"a request of {self.peer}", error)
                self.abort()
                return
            at = after
            if not self.is_open:
                return
            budget -= sum(map(len, out[before:]))
            is_late = service.clock.monotonic_s() - self.turn_started_s > _TURN_S_MAX
            if budget <= 0 or is_late or service.is_overloaded:
                limited = True
                break
        if at < end:
            self._buffer += received[at:]
        if out or self._close_after:
            self.outstanding += len(out)
            service.commit.send(self, out, close=self._close_after)
        if limited and self.is_open and not self._close_after:
            self._pause()

    def _pause(self) -> None:
        """Wait until the disk has caught up or, after a long turn, until other connections have had theirs."""
        self.is_waiting = True
        if self._service.is_overloaded:
            self._service.wait(self)
        else:
            self._service.wait_turn(self)
        self._set_reading()

    def _too_long(self, length: int) -> None:
        limit = self._service.config.jute_max_buffer
        _log.warning("%s: a request of %d bytes, jute.maxbuffer is %d; closed", self.peer, length, limit)
        self.abort()

    def _four_letter_word(self, received: bytes) -> bool:
        """Answer a four-letter word. Before the handshake, such a word cannot be a length: as one it would be far too large."""
        word = received[:4]
        if not fourletter.is_known(word):
            return False
        answer = fourletter.answer(word, received[4:12], self._service)
        self._close_after = True
        self.received += 1
        self.transmit([answer.encode("utf-8")], close=True)
        return True

    def resume(self) -> None:
        """Process what has been received, and read again."""
        if not self.is_open:
            return
        self.is_waiting = False
        self._turn_if_possible()
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
        """Process no later request; close the connection after the response is sent."""
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
                _log.warning("%s does not read its responses, closing the connection", self.peer)
                self.abort()
                return
        if close:
            self._close_after = True
            self.closing_since_s = self._service.clock.monotonic_s()
            transport.close()

    def abort(self) -> None:
        """Close the connection now, without sending the rest."""
        if self.is_open:
            self.is_open = False
            self._service.departed(self)
        if self._transport is not None:
            self._transport.abort()
