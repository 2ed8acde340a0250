"""One HTTP/1.1 connection: uvicorn's protocol, with time limits for headers and for clients that do not read."""

import asyncio
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from barnabas.services.http.connections import Connections, Place, State

#: Time limit for a request's headers, from the connection or from the first byte after the last answer.
HEAD_S: Final = 10.0
#: Time limit for the next request to begin.
KEEP_ALIVE_S: Final = 60.0
#: Time limit for a client that does not read while more data waits to be sent.
STALL_S: Final = 60.0


class BoundedProtocol(H11Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        connections: Connections,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._connections = connections
        self._place = place
        self._waiting: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._head_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place.close = transport.abort
        self._wait(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self._place)
        for timer in (self._waiting, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._place.state is State.RESTING and not self._head_begun:
            self._head_begun = True
            self._wait(HEAD_S)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._connections.enter(self._place, State.ARRIVING if cycle.more_body else State.SERVED)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP. A complete request before them is answered first; then the connection ends."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                self.flow.pause_reading()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()  # an answer has already begun

    def on_response_complete(self) -> None:
        self._connections.enter(self._place, State.RESTING)
        self._head_begun = False
        self._wait(KEEP_ALIVE_S)
        super().on_response_complete()  # the next request may already be in the buffer

    def _wait(self, seconds: float) -> None:
        """Limit the time for the next request's headers. Their first bytes do not extend it."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
