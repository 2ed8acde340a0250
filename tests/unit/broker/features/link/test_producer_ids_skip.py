"""A broker that learns of a link drops its remaining producer ids."""

import asyncio

from barnabas.broker.transactions.producer_ids import ProducerIdRange, ProducerIds


async def test_ids_below_the_floor_are_dropped_wherever_they_are() -> None:
    loop = asyncio.get_running_loop()
    blocks = [ProducerIdRange(0, 10), ProducerIdRange(10, 10), ProducerIdRange(1000, 10)]
    tasks: list[asyncio.Task[None]] = []

    async def allocate() -> ProducerIdRange:
        return blocks.pop(0)

    ids = ProducerIds(allocate, timers=loop, spawn=lambda work, name: tasks.append(loop.create_task(work)))
    assert await ids.next() == 0
    ids.skip_below(1000)
    # The block that is requested now was handed out before the floor rose.
    assert await ids.next() == 1000
    assert await ids.next() == 1001
