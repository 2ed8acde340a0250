"""Producer ids: each is used once, from blocks that come early, late, or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.transactions.producer_ids import ProducerIdRange, ProducerIds


class Controller:
    """Allocates blocks of ten on request, or fails as the test asks."""

    def __init__(self) -> None:
        self.asked = 0
        self.next_first = 0
        self.failures: list[ErrorCode] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def allocate(self) -> ProducerIdRange:
        self.asked += 1
        await self.gate.wait()
        if self.failures:
            raise Refused(self.failures.pop(0))
        block = ProducerIdRange(self.next_first, 10)
        self.next_first += 10
        return block


def run(scenario: Callable[[Controller, ProducerIds], Awaitable[None]], *, wait_max_ms: int = 5_000) -> None:
    async def main() -> None:
        controller = Controller()
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Coroutine[Any, Any, None], name: str) -> object:
                return tasks.create_task(work, name=name)

            loop = asyncio.get_running_loop()
            ids = ProducerIds(controller.allocate, timers=loop, spawn=spawn, wait_max_ms=wait_max_ms)
            await scenario(controller, ids)

    asyncio.run(main())


def test_every_id_is_given_once_across_blocks() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        assert [await ids.next() for _ in range(35)] == list(range(35))
        assert controller.asked == 4

    run(scenario)


def test_the_next_block_is_asked_for_before_the_current_one_is_used_up() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        for _ in range(8):
            await ids.next()
        assert controller.asked == 1
        await ids.next()
        await asyncio.sleep(0)
        assert controller.asked == 2
        controller.gate.clear()
        assert ids.take() == 9
        assert ids.take() == 10, "it is there before it is needed"

    run(scenario)


def test_waiting_requests_share_one_allocation_and_get_different_ids() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        controller.gate.clear()
        waiting = [asyncio.ensure_future(ids.next()) for _ in range(5)]
        await asyncio.sleep(0)
        assert ids.take() is None
        controller.gate.set()
        assert sorted(await asyncio.gather(*waiting)) == [0, 1, 2, 3, 4]
        assert controller.asked == 1

    run(scenario)


def test_more_waiters_than_a_block_has_ids_are_served_by_the_next_one() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        assert sorted(await asyncio.gather(*(ids.next() for _ in range(25)))) == list(range(25))

    run(scenario)


def test_a_wait_is_bounded() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        controller.gate.clear()
        for wait in (ids.next, ids.ready):
            with pytest.raises(Refused) as refusal:
                await wait()
            assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        controller.gate.set()

    run(scenario, wait_max_ms=10)


def test_a_controller_that_refuses_is_asked_again() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        controller.failures = [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH]
        assert await ids.next() == 0
        assert controller.asked == 3

    run(scenario)


def test_a_block_below_the_last_one_is_not_used() -> None:
    async def scenario(controller: Controller, ids: ProducerIds) -> None:
        controller.next_first = 100
        for _ in range(5):
            await ids.next()
        controller.next_first = 95
        for _ in range(5):
            await ids.next()
        await asyncio.sleep(0)
        controller.next_first = 200
        assert await ids.next() == 200

    run(scenario)
