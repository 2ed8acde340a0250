"""Reports to the other brokers, and remembers what came of it. Owner: the event loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.errors import Malformed
from barnabas.base.ids import BrokerId
from barnabas.client.errors import AuthenticationFailed, ClientError

_log = logging.getLogger(__name__)

#: Pause between two reports to a broker.
REPORT_EVERY_S: Final = 5.0
#: A broker that was heard longer ago is forgotten.
HEARD_FOR_MS: Final = 30_000
#: Only brokers may report, but a broken one must not fill the memory with ids.
HEARD_MAX: Final = 1_000
#: Round trips that are kept of each broker.
ROUND_TRIPS: Final = 3
#: Clocks are compared only when the answer came within this time.
COMPARABLE_MS: Final = 1_000

_FAILURES: Final = (ClientError, Malformed, OSError)

#: Sends one report to a broker, and returns that broker's clock if it has this API. Raises `ClientError`.
Report = Callable[[BrokerId], Awaitable[int | None]]
#: Opens the connection for reports, in place of a former one. Raises `ClientError`.
Connect = Callable[[BrokerId], Awaitable[None]]


@dataclass(slots=True)
class Neighbour:
    """The results of the reports to one broker."""

    #: Start of the first report that failed since one was answered; None if the last one was answered.
    failing_since_ms: int | None = None
    reason: str = ""
    is_untrusted: bool = False
    round_trips_ms: deque[int] = field(default_factory=lambda: deque(maxlen=ROUND_TRIPS))
    clock_ahead_ms: int = 0
    #: None before the first answer.
    answered_at_ms: int | None = None

    @property
    def round_trip_ms(self) -> int | None:
        """The shortest of the last ones, so that one pause of a busy machine does not count; None before there are enough."""
        return min(self.round_trips_ms) if len(self.round_trips_ms) == ROUND_TRIPS else None


@dataclass(frozen=True, slots=True)
class Heard:
    """The last report of another broker."""

    at_ms: int
    host: str
    #: None: that broker had a connection to ZooKeeper.
    zookeeper_away_ms: int | None


class Watch:
    """Times are monotonic, except those of clocks that are compared."""

    def __init__(
        self, clock: Clock, *, others: Callable[[], Collection[BrokerId]], report: Report, reconnect: Connect
    ) -> None:
        self._clock = clock
        self._others = others
        self._report = report
        self._reconnect = reconnect
        self.neighbours: dict[BrokerId, Neighbour] = {}
        self._heard: dict[int, Heard] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Report to all other brokers once."""
        others = set(self._others())
        self.neighbours = {broker: self.neighbours.get(broker) or Neighbour() for broker in others}
        await asyncio.gather(*(self._report_to(broker, neighbour) for broker, neighbour in self.neighbours.items()))

    async def _report_to(self, broker: BrokerId, neighbour: Neighbour) -> None:
        started_ms = self.now_ms()
        try:
            if neighbour.failing_since_ms is not None or not neighbour.round_trips_ms:
                await self._reconnect(broker)
            asked_ms, asked_at_ms = self.now_ms(), self._clock.now_ms()
            their_now_ms = await self._report(broker)
        except _FAILURES as error:
            self._failed(broker, neighbour, started_ms, error)
            return
        if neighbour.failing_since_ms is not None:
            _log.info("[neighbours] broker %d can be reached again", broker)
        neighbour.failing_since_ms, neighbour.reason, neighbour.is_untrusted = None, "", False
        took_ms = self.now_ms() - asked_ms
        neighbour.round_trips_ms.append(took_ms)
        neighbour.answered_at_ms = self.now_ms()
        if their_now_ms is not None and took_ms < COMPARABLE_MS:
            neighbour.clock_ahead_ms = their_now_ms - asked_at_ms - took_ms // 2

    def _failed(self, broker: BrokerId, neighbour: Neighbour, started_ms: int, error: Exception) -> None:
        if neighbour.failing_since_ms is None:
            neighbour.failing_since_ms = started_ms
            _log.warning(
                "[neighbours] broker %d cannot be reached from here: %s; if that broker runs, look at the network between "
                "the two",
                broker,
                error,
            )
        neighbour.reason, neighbour.is_untrusted = str(error), isinstance(error, AuthenticationFailed)

    # -- the other direction --------------------------------------------------------------------------------------------

    def hear(self, broker_id: int, host: str, zookeeper_away_ms: int | None) -> None:
        self._forget()
        if broker_id in self._heard or len(self._heard) < HEARD_MAX:
            self._heard[broker_id] = Heard(self.now_ms(), host, zookeeper_away_ms)

    def strangers(self) -> dict[int, Heard]:
        """Return the brokers that report here, but are not in the cluster."""
        self._forget()
        known = set(self._others())
        return {broker_id: heard for broker_id, heard in self._heard.items() if broker_id not in known}

    def _forget(self) -> None:
        oldest_ms = self.now_ms() - HEARD_FOR_MS
        self._heard = {broker_id: heard for broker_id, heard in self._heard.items() if heard.at_ms >= oldest_ms}

    def now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)
