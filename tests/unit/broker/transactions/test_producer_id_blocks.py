"""Producer ids: each is used once, from blocks that come early, late, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.transactions.producer_ids import ProducerIdRange, ProducerIds
from tests.support.async_fixture import async_fixture


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


@asynccontextmanager
async def ids_of(controller: Controller, *, wait_max_ms: int = 5_000) -> AsyncIterator[ProducerIds]:
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, None], name: str) -> object:
            return tasks.create_task(work, name=name)

        loop = asyncio.get_running_loop()
        yield ProducerIds(controller.allocate, timers=loop, spawn=spawn, wait_max_ms=wait_max_ms)


@pytest.fixture
def controller() -> Controller:
    return Controller()


@async_fixture
async def ids(controller: Controller) -> AsyncIterator[ProducerIds]:
    async with ids_of(controller) as made:
        yield made


async def test_every_id_is_given_once_across_blocks(controller: Controller, ids: ProducerIds) -> None:
    assert [await ids.next() for _ in range(35)] == list(range(35))
    assert controller.asked == 4


async def test_the_next_block_is_asked_for_before_the_current_one_is_used_up(
    controller: Controller, ids: ProducerIds
) -> None:
    for _ in range(8):
        await ids.next()
    assert controller.asked == 1
    await ids.next()
    await asyncio.sleep(0)
    assert controller.asked == 2
    controller.gate.clear()
    assert ids.take() == 9
    assert ids.take() == 10, "it is there before it is needed"


async def test_waiting_requests_share_one_allocation_and_get_different_ids(
    controller: Controller, ids: ProducerIds
) -> None:
    controller.gate.clear()
    waiting = [asyncio.ensure_future(ids.next()) for _ in range(5)]
    await asyncio.sleep(0)
    assert ids.take() is None
    controller.gate.set()
    assert sorted(await asyncio.gather(*waiting)) == [0, 1, 2, 3, 4]
    assert controller.asked == 1


async def test_more_waiters_than_a_block_has_ids_are_served_by_the_next_one(
    controller: Controller, ids: ProducerIds
) -> None:
    assert sorted(await asyncio.gather(*(ids.next() for _ in range(25)))) == list(range(25))


async def test_a_wait_is_bounded(controller: Controller) -> None:
    controller.gate.clear()
    async with ids_of(controller, wait_max_ms=10) as ids:
        for wait in (ids.next, ids.ready):
            with pytest.raises(Refused) as refusal:
                await wait()
            assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        controller.gate.set()


async def test_a_controller_that_refuses_is_asked_again(controller: Controller, ids: ProducerIds) -> None:
    controller.failures = [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH]
    assert await ids.next() == 0
    assert controller.asked == 3


async def test_a_block_below_the_last_one_is_not_used(controller: Controller, ids: ProducerIds) -> None:
    controller.next_first = 100
    for _ in range(5):
        await ids.next()
    controller.next_first = 95
    for _ in range(5):
        await ids.next()
    await asyncio.sleep(0)
    controller.next_first = 200
    assert await ids.next() == 200
