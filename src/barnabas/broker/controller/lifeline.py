"""A connection that is kept open as long as the broker lives, because its end may mean the broker's end.

The kernel closes a dead process's connections, and refuses new ones. A port that refuses several times in a row means that the
process is dead and its host is alive. A cut network or a dead host gives no such sign: then the ZooKeeper session expires.

Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from barnabas.broker.zookeeper_client.znodes import Endpoint
from barnabas.client.errors import ClientError, ConnectionRefused
from barnabas.wire.messages.base import ApiMessage

_log = logging.getLogger(__name__)

#: Pause before the next attempt, as in Kafka.
RETRY_BACKOFF_S = 0.1
#: Refused connections in a row until a broker counts as dead: some 0.2 s.
REFUSALS = 3


class Link(Protocol):
    """A connection to a broker; `barnabas.client.connection.Connection` is one."""

    async def request(
        self, message: ApiMessage, response_type: None = None, *, version: int | None = None, timeout_ms: int = ...
    ) -> ApiMessage: ...

    def on_closed(self, callback: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


#: Opens a link to a broker. Raises `ClientError` or OSError if that fails.
Connect = Callable[[int, Endpoint], Awaitable[Link]]


class Lifeline:
    def __init__(
        self,
        broker_id: int,
        endpoint: Endpoint,
        *,
        connect: Connect,
        on_refused: Callable[[], None],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._broker_id = broker_id
        self._endpoint = endpoint
        self._connect = connect
        #: Called when the broker's port has refused connections `REFUSALS` times in a row, and again after each further
        #: `REFUSALS`.
        self._on_refused = on_refused
        #: Called when the connection has ended without `drop`.
        self._on_lost = on_lost
        self._link: Link | None = None
        self._refusals = 0
        self._lost = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended without `drop`, and no new one is open yet."""
        return self._lost.is_set()

    async def link(self) -> Link:
        """Return the connection; open it if there is none. Raises `ClientError` or OSError if that fails."""
        if self._link is None:
            try:
                link = await self._connect(self._broker_id, self._endpoint)
            except ConnectionRefused:
                self._refusals += 1
                if self._refusals % REFUSALS == 0:
                    self._on_refused()
                raise
            except (ClientError, OSError):
                self._refusals = 0
                raise
            self._refusals = 0
            self._lost.clear()
            self._link = link
            link.on_closed(lambda: self._closed(link))
        return self._link

    async def keep(self) -> None:
        """Keep the connection open until the task is cancelled."""
        try:
            while True:
                if await self.attempt():
                    await self._lost.wait()
        finally:
            self.drop()

    async def attempt(self) -> bool:
        """Connect, if there is no connection. Return False after a pause if that fails."""
        try:
            await self.link()
        except (ClientError, OSError) as error:
            _log.debug("[controller] no connection to broker %d: %s", self._broker_id, error)
            await asyncio.sleep(RETRY_BACKOFF_S)
            return False
        return True

    def move(self, endpoint: Endpoint) -> None:
        """Use this address from now on; reconnect if it is another one."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self.drop()

    def drop(self) -> None:
        """Close the connection, if there is one. The next call of `link` opens another."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _closed(self, link: Link) -> None:
        if link is self._link:
            self._link = None
            self._lost.set()
            self._on_lost()
