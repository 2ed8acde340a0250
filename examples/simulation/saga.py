"""A saga over three topics: an order is reserved in the stock, then shipped, or cancelled if there is nothing left.

The broken steps write, and the client commits their offsets now and then. The mended ones do both in a transaction of Kafka.
aiokafka does not tell the coordinator which member of a group commits, so a process that was paused could write once more: each
partition therefore has a transactional id of its own, and its next owner fences the last one.
"""

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from barnabas.testing import simulation
from barnabas.testing.simulation import check

PARTITIONS = 2


def decide(stock, order):
    """Reserve an order, as long as there is stock: every fifth article is sold out."""
    return "cancelled" if int(order.rpartition(b"-")[2]) % 5 == 4 else stock


async def broken_step(bootstrap, source, target, partition):
    where = TopicPartition(source, partition)
    consumer, producer = reader(bootstrap, source), AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    consumer.assign([where])
    await consumer.start()
    await producer.start()
    async for message in consumer:
        topic = decide(target, message.value) if source == "orders" else target
        await producer.send_and_wait(topic, message.value, partition=partition)


async def mended_step(bootstrap, source, target, partition):
    where, group = TopicPartition(source, partition), f"after-{source}"
    consumer = reader(bootstrap, source, enable_auto_commit=False)
    consumer.assign([where])
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"{group}-{partition}", transaction_timeout_ms=10_000
    )
    await producer.start()  # its predecessor is fenced, and what it had begun is aborted: only now the offset holds
    await consumer.start()
    async for message in consumer:
        topic = decide(target, message.value) if source == "orders" else target
        async with producer.transaction():
            await producer.send(topic, message.value, partition=partition)
            await producer.send_offsets_to_transaction({where: message.offset + 1}, group)


def reader(bootstrap, source, **settings):
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=f"after-{source}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **settings,
    )


async def every_order_ends_once(world, *, mended=True):
    for name in ("orders", "reserved", "shipped", "cancelled"):
        await world.topic(name, partitions=PARTITIONS)
    step = mended_step if mended else broken_step
    for source, target in (("orders", "reserved"), ("reserved", "shipped")):
        for partition in range(PARTITIONS):
            world.process(f"{target}-{partition}", step, world.bootstrap, source, target, partition)
    await world.load("orders", rate=3)
    await world.calm()
    ends = await world.records("shipped") + await world.records("cancelled")
    check.exactly_once_between(await world.records("orders"), ends)


@simulation.test(seeds=50, brokers=3, faults="all", virtual_minutes=0.5)
async def test_every_order_ends_once(world):
    await every_order_ends_once(world)
