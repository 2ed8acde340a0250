"""Unique producer ids, from blocks that the controller allocates (AllocateProducerIds). The next block is fetched early.

Owner: the event loop. If a broker stops, the unused ids of its block are lost, as in Kafka: there are 2^63.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from barnabas.base.errors import BarnabasError, ErrorCode, Refused
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.timers import Timers

log = logging.getLogger(__name__)

#: The broker asks for the next block when this share of the current one is used.
PREFETCH_AT: Final = 0.9
RETRY_BACKOFF_MS: Final = 50
#: How long a request waits for a block. Clients retry after COORDINATOR_LOAD_IN_PROGRESS.
WAIT_MAX_MS: Final = 2_000
_LONG_MAX: Final = 2**63 - 1


class ProducerIdRange(NamedTuple):
    first: int
    size: int

    @property
    def end(self) -> int:
        """The first id after the block."""
        return self.first + self.size


NO_BLOCK: Final = ProducerIdRange(0, 0)


class ProducerIds:
    def __init__(
        self,
        allocate_block: Callable[[], Awaitable[ProducerIdRange]],
        *,
        timers: Timers,
        spawn: Spawn,
        wait_max_ms: int = WAIT_MAX_MS,
    ) -> None:
        """`allocate_block` asks the controller, and raises a `BarnabasError` if it gets no block."""
        self._allocate_block = allocate_block
        self._timers = timers
        self._spawn = spawn
        self._wait_max_ms = wait_max_ms
        self._block = NO_BLOCK
        self._next_id = 0
        self._next_block: ProducerIdRange | None = None
        #: Ids below this are not given out any more.
        self._floor = 0
        self._asking = False
        self._backing_off = False
        #: Requests that wait for a block. When one comes, all wake and ask for their id again.
        self._waiting: list[asyncio.Future[None]] = []

    def skip_below(self, floor: int) -> None:
        """Give out no id below `floor`, from any block: mirrors of another cluster may have them.

        By then, the controller's next block is above `floor`.
        """
        self._floor = max(self._floor, floor)
        if self._block.first < self._floor:
            self._next_id = self._block.end
        if self._next_block is not None and self._next_block.first < self._floor:
            self._next_block = None

    def take(self) -> int | None:
        """Return an unused id, or None if there is none at the moment."""
        if self._next_id >= self._block.end:
            if self._next_block is None:
                self._ask()
                return None
            self._block, self._next_block = self._next_block, None
            self._next_id = self._block.first
        producer_id = self._next_id
        self._next_id += 1
        if self._next_block is None and self._next_id - self._block.first >= self._block.size * PREFETCH_AT:
            self._ask()
        return producer_id

    async def next(self) -> int:
        """Return an unused id, after a bounded wait for the controller if necessary."""
        deadline_s = asyncio.get_running_loop().time() + self._wait_max_ms / 1000
        while (producer_id := self.take()) is None:
            await self._wait_until(deadline_s)
        return producer_id

    async def ready(self) -> None:
        """Wait until `take` has an id."""
        deadline_s = asyncio.get_running_loop().time() + self._wait_max_ms / 1000
        while self._next_id >= self._block.end and self._next_block is None:
            self._ask()
            await self._wait_until(deadline_s)

    async def _wait_until(self, deadline_s: float) -> None:
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrival)
        try:
            async with asyncio.timeout_at(deadline_s):
                await arrival
        except TimeoutError:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "waiting for a block of producer ids") from None
        finally:
            if arrival in self._waiting:
                self._waiting.remove(arrival)

    def _ask(self) -> None:
        if self._asking or self._backing_off:
            return
        self._asking = True
        self._spawn(self._fetch(), "producer id block")

    async def _fetch(self) -> None:
        try:
            block = await self._allocate_block()
            self._check(block)
        except BarnabasError as error:
            log.warning(
                "[producer ids] the controller allocated no block, trying again; check that the cluster has a controller: %s",
                error,
            )
            self._asking = False
            self._backing_off = True
            self._timers.call_later(RETRY_BACKOFF_MS / 1000, self._try_again)
            return
        self._asking = False
        if block.first < self._floor:
            self._ask()  # the block was allocated before the floor rose
            return
        self._next_block = block
        waiting, self._waiting = self._waiting, []
        for arrival in waiting:
            if not arrival.done():
                arrival.set_result(None)

    def _check(self, block: ProducerIdRange) -> None:
        """Check that blocks only rise: an id that is given out twice would break idempotence for two producers."""
        if block.size <= 0 or block.first < self._block.end or block.end > _LONG_MAX:
            raise Refused(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the controller allocated {block} after {self._block}: blocks must rise",
            )

    def _try_again(self) -> None:
        self._backing_off = False
        if self._waiting:
            self._ask()
