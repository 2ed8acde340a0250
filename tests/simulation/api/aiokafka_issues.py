"""Bugs that others have reported at https://github.com/aio-libs/aiokafka/issues, in aiokafka itself or in applications on it.

Each was found there and written down here as a small application. The mended form has what its user can do about it.
"""

import asyncio
import contextlib
from collections import Counter
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import CommitFailedError, KafkaError

from barnabas.testing.simulation import World, check
from tests.simulation.api.ten_bugs import Collector, Done, consumer_of

# -- 1101: send_and_wait and stop wait for ever while Kafka is down (open; 0.12 to 0.14) ----------------------------------


async def answer_guests(bootstrap: str, waited_s: list[float], *, mended: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=2000)
    await producer.start()
    loop = asyncio.get_running_loop()
    for number in range(60):
        began_s = loop.time()
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(4 if mended else None):
                await producer.send_and_wait("orders", b"order-%d" % number)
        waited_s.append(loop.time() - began_s)
        await asyncio.sleep(0.2)


async def send_without_end(world: World, *, mended: bool) -> None:
    await world.topic("orders")
    waited_s: list[float] = []
    desk = world.process("desk", answer_guests, world.bootstrap, waited_s, mended=mended, restart=False)
    await desk.returned()
    assert max(waited_s) < 5


# -- 197: a request times out, the application sends the record again, and it is there twice (closed) -----------------------


async def send_again(bootstrap: str, *, mended: bool) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=mended, request_timeout_ms=1000
    )
    await producer.start()
    try:
        for number in range(100):
            while True:
                try:
                    await producer.send_and_wait("orders", b"order-%d" % number)
                    break
                except KafkaError:
                    continue
            await asyncio.sleep(0.1)
    finally:
        await producer.stop()


async def written_again(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders")
    desk = world.process("desk", send_again, world.bootstrap, mended=mended, restart=False)
    await desk.returned()
    await world.calm()
    times = Counter(record.value for record in await world.records(orders))
    assert {value: count for value, count in times.items() if count > 1} == {}


# -- 933, 929: the group is rebalanced in the background, and commit() fails in the middle of the work (open) -------------


async def commit_at_the_end(bootstrap: str, done: Done, *, mended: bool) -> None:
    consumer = consumer_of(bootstrap, session_timeout_ms=6000, heartbeat_interval_ms=1000)
    consumer.subscribe(["orders"])
    await consumer.start()
    try:
        async for message in consumer:
            await asyncio.sleep(0.1)
            done.append(message.value)
            try:
                await consumer.commit()
            except CommitFailedError:
                if not mended:
                    raise
    finally:
        await consumer.stop()


async def commit_after_a_rebalance(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders", partitions=2)
    done: Done = []
    workers = [world.process(name, commit_at_the_end, world.bootstrap, done, mended=mended) for name in ("one", "two")]
    await world.load(orders, rate=10)
    await world.calm()
    check.at_least_once(await world.records(orders), done)
    assert [error for worker in workers for _, error in worker.crashes] == []


# -- 1084: the commit of on_partitions_revoked is not awaited (open) -------------------------------------------------------


class Hasty(Collector):
    async def on_partitions_revoked(self, revoked: object) -> None:
        held, self.held = self.held, []
        self.written += held
        if held:
            if self.mended:
                await self.consumer.commit()
            else:
                self.consumer.commit()


async def collect(bootstrap: str, written: Done, *, mended: bool) -> None:
    await Hasty(bootstrap, written, mended=mended).run()


async def commit_not_awaited(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders", partitions=2)
    written: Done = []
    for name in ("one", "two"):
        world.process(name, collect, world.bootstrap, written, mended=mended)
    await world.load(orders, rate=10)
    await world.calm()
    check.exactly_once(await world.records(orders), written)


# -- 666: getone(partition) waits for ever when another member gets the partition (open) ----------------------------------


async def take_in_turn(bootstrap: str, done: Done, *, mended: bool) -> None:
    consumer = consumer_of(bootstrap, session_timeout_ms=6000, heartbeat_interval_ms=1000)
    consumer.subscribe(["orders"])
    await consumer.start()
    try:
        while True:
            for where in sorted(consumer.assignment()):
                if mended:
                    messages = [
                        each for some in (await consumer.getmany(where, timeout_ms=500)).values() for each in some
                    ]
                else:
                    messages = [await consumer.getone(where)]
                done += [message.value for message in messages]
                with contextlib.suppress(KafkaError):
                    await consumer.commit()
            await asyncio.sleep(0.05)
    finally:
        await consumer.stop()


async def getone_without_end(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders", partitions=2)
    done: Done = []
    for name in ("one", "two"):
        world.process(name, take_in_turn, world.bootstrap, done, mended=mended)
    await world.load(orders, rate=10)
    await world.calm()
    check.at_least_once(await world.records(orders), done)


#: Issue -> the world, and how it is run.
ISSUES: dict[int, tuple[Any, dict[str, Any]]] = {
    1101: (send_without_end, {"brokers": 1, "faults": ["kill leader"], "virtual_minutes": 0.3}),
    197: (written_again, {"brokers": 1, "faults": ["pause leader", "slow network"], "virtual_minutes": 0.3}),
    933: (commit_after_a_rebalance, {"brokers": 1, "faults": ["pause process"], "virtual_minutes": 0.3}),
    1084: (commit_not_awaited, {"brokers": 1, "faults": ["stop process"], "virtual_minutes": 0.3}),
    666: (getone_without_end, {"brokers": 1, "faults": ["kill process"], "virtual_minutes": 0.3}),
}
