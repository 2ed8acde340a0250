"""The bugs of docs/ten-bugs.md that are about time and order, with aiokafka, each in its broken and its mended form."""

import asyncio
import contextlib
import signal
from collections import Counter
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from barnabas.testing.simulation import AnswerLost, Conflict, World, check
from barnabas.testing.simulation.services import Database
from tests.simulation.api.applications import no_order_is_lost

Done = list[bytes]


def consumer_of(bootstrap: str, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id="group",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )


def end_at_sigterm() -> None:
    """Cancel this task: without that a process ends at once, and nothing in `finally` runs."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def number_of(value: bytes) -> int:
    return int(value.rpartition(b"-")[2])


# -- 1: auto-commit before the work is done -------------------------------------------------------------------------------


async def auto_commit(world: World, *, mended: bool) -> None:
    await no_order_is_lost(world, auto_commit=not mended)


# -- 2: a sink that counts a record twice ---------------------------------------------------------------------------------


async def count(bootstrap: str, database: Database, *, mended: bool) -> None:
    consumer = consumer_of(bootstrap)
    consumer.subscribe(["orders"])
    await consumer.start()
    try:
        async for message in consumer:
            await counted(database, message, mended=mended)
            await consumer.commit()
    finally:
        await consumer.stop()


async def counted(database: Database, message: Any, *, mended: bool) -> None:
    place = ("next", message.partition)
    while True:
        try:
            async with database.transaction() as transaction:
                if not mended or message.offset >= await transaction.get(place, 0):
                    await transaction.put("count", await transaction.get("count", 0) + 1)
                    await transaction.put(place, message.offset + 1)
            return
        except (AnswerLost, Conflict):
            await asyncio.sleep(0.2)


async def sink_counts_twice(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders", partitions=2)
    database = world.database()
    for name in ("one", "two"):
        world.process(name, count, world.bootstrap, database, mended=mended)
    await world.load(orders, rate=10)
    await world.calm()
    assert database.rows()["count"] == len(await world.records(orders))


# -- 3: a rebalance in the middle of a batch ------------------------------------------------------------------------------


class Collector(ConsumerRebalanceListener):  # type: ignore[misc]
    """Writes ten records at once, or those of two seconds."""

    def __init__(self, bootstrap: str, written: Done, *, mended: bool) -> None:
        self.consumer = consumer_of(bootstrap, heartbeat_interval_ms=1000)
        self.consumer.subscribe(["orders"], listener=self)
        self.held: Done = []
        self.written = written
        self.mended = mended

    async def run(self) -> None:
        end_at_sigterm()
        await self.consumer.start()
        try:
            while True:
                until_s = asyncio.get_running_loop().time() + 2
                while len(self.held) < 10 and asyncio.get_running_loop().time() < until_s:
                    for messages in (await self.consumer.getmany(timeout_ms=200, max_records=1)).values():
                        self.held += [message.value for message in messages]
                await self.flush()
        finally:
            if self.mended:
                await self.flush()
            await self.consumer.stop()

    async def flush(self) -> None:
        held, self.held = self.held, []
        self.written += held
        if held:
            await self.consumer.commit()

    async def on_partitions_revoked(self, revoked: object) -> None:
        if self.mended:
            await self.flush()

    async def on_partitions_assigned(self, assigned: object) -> None:
        """Nothing is to be done."""


async def collect(bootstrap: str, written: Done, *, mended: bool) -> None:
    await Collector(bootstrap, written, mended=mended).run()


async def rebalance_in_a_batch(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders", partitions=2)
    written: Done = []
    for name in ("one", "two"):
        world.process(name, collect, world.bootstrap, written, mended=mended)
    await world.load(orders, rate=10)
    await world.calm()
    check.exactly_once(await world.records(orders), written)


# -- 5: no look at the delivery report -------------------------------------------------------------------------------------


async def take_orders(bootstrap: str, accepted: Done, *, mended: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", request_timeout_ms=2000)
    await producer.start()
    try:
        for number in range(100):
            order = b"order-%d" % number
            await asyncio.sleep(0.15)
            try:
                if mended:
                    await producer.send_and_wait("orders", order)
                else:
                    await producer.send("orders", order)
                accepted.append(order)
            except KafkaError:
                continue  # the guest hears that it did not work
    finally:
        await producer.stop()


async def no_delivery_report(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders")
    accepted: Done = []
    desk = world.process("desk", take_orders, world.bootstrap, accepted, mended=mended, restart=False)
    await desk.returned()
    await world.calm()
    missing = set(accepted) - {record.value for record in await world.records(orders)}
    assert not missing


# -- 6: the program ends before it has sent -------------------------------------------------------------------------------


async def send_late(bootstrap: str, accepted: Done, *, mended: bool) -> None:
    end_at_sigterm()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=500)
    await producer.start()
    try:
        while len(accepted) < 100:
            order = b"order-%d" % len(accepted)
            await producer.send("orders", order)
            accepted.append(order)
            await asyncio.sleep(0.15)
        await producer.flush()
    finally:
        if mended:
            await producer.stop()


async def end_before_sending(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders")
    accepted: Done = []
    world.process("desk", send_late, world.bootstrap, accepted, mended=mended)
    while len(accepted) < 100:
        await asyncio.sleep(1)
    await world.calm()
    missing = set(accepted) - {record.value for record in await world.records(orders)}
    assert not missing


# -- 7: two records that belong together ----------------------------------------------------------------------------------


async def order_and_bill(bootstrap: str, number: list[int], *, mended: bool) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", transactional_id="desk" if mended else None, request_timeout_ms=5000
    )
    await producer.start()
    try:
        while number[0] < 60:
            number[0] += 1
            order = b"order-%d" % number[0]
            if mended:
                async with producer.transaction():
                    await producer.send_and_wait("kitchen", order)
                    await asyncio.sleep(0.05)
                    await producer.send_and_wait("cashier", order)
            else:
                await producer.send_and_wait("kitchen", order)
                await asyncio.sleep(0.05)
                await producer.send_and_wait("cashier", order)
            await asyncio.sleep(0.2)
    finally:
        await producer.stop()


async def not_together(world: World, *, mended: bool) -> None:
    kitchen, cashier = await world.topic("kitchen"), await world.topic("cashier")
    number = [0]
    world.process("desk", order_and_bill, world.bootstrap, number, mended=mended)
    while number[0] < 60:
        await asyncio.sleep(1)
    await world.calm()
    cooked, billed = [{record.value for record in await world.records(topic)} for topic in (kitchen, cashier)]
    assert cooked == billed


# -- 8: no key, no order --------------------------------------------------------------------------------------------------


async def say_events(bootstrap: str, *, mended: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        for number in range(60):
            await producer.send_and_wait("events", b"event-%d" % number, key=b"table" if mended else None)
            await asyncio.sleep(0.02)
    finally:
        await producer.stop()


async def hear_events(bootstrap: str, heard: Done) -> None:
    consumer = consumer_of(bootstrap)
    consumer.subscribe(["events"])
    await consumer.start()
    try:
        async for message in consumer:
            if message.value not in heard:  # it may come again after a fault
                heard.append(message.value)
            await consumer.commit()
    finally:
        await consumer.stop()


async def no_key_no_order(world: World, *, mended: bool) -> None:
    await world.topic("events", partitions=4)
    heard: Done = []
    world.process("reader", hear_events, world.bootstrap, heard)
    world.process("writer", say_events, world.bootstrap, mended=mended, restart=False)
    await asyncio.sleep(world.virtual_minutes * 60)
    await world.calm()
    assert heard == sorted(heard, key=number_of)


# -- 9: a retry that writes twice -----------------------------------------------------------------------------------------


async def write_orders(bootstrap: str, seconds: float, *, mended: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=mended)
    await producer.start()
    try:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        number = 0
        while loop.time() < until_s:
            number += 1
            with contextlib.suppress(KafkaError):  # perhaps it was written; the application does not send it again
                await producer.send_and_wait("orders", b"order-%d" % number)
            await asyncio.sleep(0.02)
    finally:
        await producer.stop()


async def retry_writes_twice(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders")
    seconds = world.virtual_minutes * 60
    desk = world.process("desk", write_orders, world.bootstrap, seconds, mended=mended, restart=False)
    await desk.returned()
    await world.calm()
    times = Counter(record.value for record in await world.records(orders))
    assert {value: count for value, count in times.items() if count > 1} == {}


# -- 10: a committed offset that is one too low ---------------------------------------------------------------------------


async def commit_each(bootstrap: str, done: Done, *, mended: bool) -> None:
    consumer = consumer_of(bootstrap)
    consumer.subscribe(["orders"])
    await consumer.start()
    try:
        while True:
            for where, messages in (await consumer.getmany(timeout_ms=1000)).items():
                for message in messages:
                    done.append(message.value)
                    await consumer.commit({where: message.offset + mended})
    finally:
        await consumer.stop()


async def offset_too_low(world: World, *, mended: bool) -> None:
    orders = await world.topic("orders")
    done: Done = []
    world.process("reader", commit_each, world.bootstrap, done, mended=mended)
    await world.load(orders, rate=5)
    await world.calm()
    check.caught_up(world, "group", within_s=120)


#: Number on the page -> the world, its faults, its minutes.
BUGS: dict[int, tuple[Any, dict[str, Any]]] = {
    1: (auto_commit, {"brokers": 1, "faults": ["kill process"], "virtual_minutes": 0.3}),
    2: (sink_counts_twice, {"brokers": 1, "faults": ["kill process", "pause process"], "virtual_minutes": 0.3}),
    3: (rebalance_in_a_batch, {"brokers": 1, "faults": ["stop process"], "virtual_minutes": 0.3}),
    5: (no_delivery_report, {"brokers": 3, "faults": ["kill leader", "pause leader"], "virtual_minutes": 0.3}),
    6: (end_before_sending, {"brokers": 1, "faults": ["stop process"], "virtual_minutes": 0.3}),
    7: (not_together, {"brokers": 1, "faults": ["kill process"], "virtual_minutes": 0.3}),
    8: (no_key_no_order, {"brokers": 1, "faults": ["slow network"], "virtual_minutes": 0.2}),
    9: (retry_writes_twice, {"brokers": 1, "faults": ["reset connections", "slow network"], "virtual_minutes": 0.3}),
    10: (offset_too_low, {"brokers": 1, "faults": ["kill process"], "virtual_minutes": 0.2}),
}
