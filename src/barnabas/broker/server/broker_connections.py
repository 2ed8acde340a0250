"""Connections from this broker to the others, on the inter-broker listener.

Owner: the event loop. Short requests to a broker share one connection for each purpose. A broker answers the requests on one
connection in order, so slow ones (a marker that waits for replicas) must not hold back the others. Parts that keep a connection
busy (replica fetchers, the controller's channels) open their own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from barnabas.base.ids import BrokerId
from barnabas.broker.zookeeper_client.znodes import Endpoint
from barnabas.client.connection import Connection
from barnabas.client.errors import ConnectionLost
from barnabas.wire.messages.base import ApiMessage

R = TypeVar("R", bound=ApiMessage)
#: Opens a connection to an endpoint, with the security of the inter-broker listener.
Opener = Callable[[Endpoint, str], Awaitable[Connection]]


class BrokerConnections:
    def __init__(
        self,
        broker_id: BrokerId,
        *,
        endpoint_of: Callable[[BrokerId], Endpoint | None],
        open_connection: Opener,
    ) -> None:
        self._broker_id = broker_id
        self._endpoint_of = endpoint_of
        self._open_connection = open_connection
        self._lanes: list[Lane] = []
        self._shared = self.lane("link")

    def lane(self, purpose: str) -> "Lane":
        """Return a new lane. It is closed together with all the others."""
        lane = Lane(self, purpose)
        self._lanes.append(lane)
        return lane

    async def open(self, broker_id: BrokerId, *, purpose: str) -> Connection:
        """Open a connection for the caller alone."""
        return await self.open_to(self.require(broker_id), purpose=purpose)

    async def open_to(self, endpoint: Endpoint, *, purpose: str) -> Connection:
        return await self._open_connection(endpoint, f"broker-{self._broker_id}-{purpose}")

    async def request(
        self, broker_id: BrokerId, message: ApiMessage, response_type: type[R], *, timeout_ms: int = 30_000
    ) -> R:
        """Send a request on the shared connection. Raises `ClientError` if the broker cannot be reached or does not answer."""
        connection = await self._shared.to(broker_id)
        return await connection.request(message, response_type, timeout_ms=timeout_ms)

    def require(self, broker_id: BrokerId) -> Endpoint:
        endpoint = self._endpoint_of(broker_id)
        if endpoint is None:
            raise ConnectionLost(f"broker {broker_id} is not known to be alive")
        return endpoint

    def brokers_changed(self) -> None:
        """End requests to brokers that are gone: a host without power sends neither an answer nor a reset."""
        for lane in self._lanes:
            lane.leave(lambda broker: self._endpoint_of(broker) is None)

    def brokers_returned(self, brokers: Collection[int]) -> None:
        """End requests to the former process of a broker. If its host lost power, no reset was sent; and if the broker was away
        only for a moment, the controller never reported it as gone."""
        for lane in self._lanes:
            lane.leave(lambda broker: broker in brokers)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class Lane:
    """One connection to each broker, for one purpose."""

    def __init__(self, owner: BrokerConnections, purpose: str) -> None:
        self._owner = owner
        self._purpose = purpose
        self._connections: dict[BrokerId, tuple[Endpoint, Connection]] = {}
        self._locks: dict[BrokerId, asyncio.Lock] = {}
        self._opening: dict[BrokerId, asyncio.Timeout] = {}

    async def to(self, broker_id: BrokerId) -> Connection:
        """Return a connection to the broker's present address. Raises `ClientError` if it cannot be reached."""
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            endpoint = self._owner.require(broker_id)
            known = self._connections.get(broker_id)
            if known is not None:
                if known[0] == endpoint and not known[1].closed:
                    return known[1]
                known[1].close()
            connection = await self._open(broker_id, endpoint)
            self._connections[broker_id] = (endpoint, connection)
            return connection

    async def _open(self, broker_id: BrokerId, endpoint: Endpoint) -> Connection:
        try:
            async with asyncio.timeout(None) as until_gone:
                self._opening[broker_id] = until_gone
                try:
                    return await self._owner.open_to(endpoint, purpose=self._purpose)
                finally:
                    del self._opening[broker_id]
        except TimeoutError:
            raise ConnectionLost(f"broker {broker_id} is no longer known to be alive") from None

    def leave(self, is_gone: Callable[[BrokerId], bool]) -> None:
        """End the connections to brokers that are gone, and those that are being opened."""
        for broker_id in [broker_id for broker_id in self._connections if is_gone(broker_id)]:
            self._connections.pop(broker_id)[1].close()
        for broker_id, opening in self._opening.items():
            if is_gone(broker_id) and not opening.expired():
                opening.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()
