"""A payment worker: it charges each order at a payment provider and publishes that it did.

The broken worker asks the provider with a new key each time, and publishes after it has noted the payment. The mended one uses
the order as the key, and notes the payment and the event to publish in one transaction: an outbox, which a relay empties.
"""

import asyncio
import json
import uuid

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from barnabas.testing import simulation
from barnabas.testing.simulation import AnswerLost, Conflict, check


def orders_of(bootstrap):
    return AIOKafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="payments",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


def provider_client():
    return httpx.AsyncClient(base_url="http://provider", timeout=3, verify=False)


async def charge(provider, order, key):
    """Ask the provider until it answers. It charges once for each key."""
    while True:
        try:
            answer = await provider.post("/charges", json={"order": order, "key": key})
            answer.raise_for_status()
            return answer.json()["charge"]
        except httpx.HTTPError:
            await asyncio.sleep(0.5)


async def transact(database, work):
    """Run `await work(transaction)` and commit, until it is known to be done: `work` must bear to run again."""
    while True:
        try:
            async with database.transaction() as transaction:
                await work(transaction)
            return
        except (AnswerLost, Conflict):
            await asyncio.sleep(0.2)


async def broken_worker(bootstrap, database):
    consumer, producer = orders_of(bootstrap), AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    provider = provider_client()
    await consumer.start()
    await producer.start()
    async for message in consumer:
        order = message.value.decode()
        charged = await charge(provider, order, key=str(uuid.uuid4()))

        async def note(transaction, order=order, charged=charged):
            await transaction.put(("payment", order), charged)

        await transact(database, note)
        await consumer.commit()
        await producer.send_and_wait("payments", json.dumps({"order": order, "charge": charged}).encode())


async def mended_worker(bootstrap, database):
    consumer, provider = orders_of(bootstrap), provider_client()
    await consumer.start()
    async for message in consumer:
        order = message.value.decode()
        charged = await charge(provider, order, key=order)

        async def note(transaction, order=order, charged=charged):
            if await transaction.get(("payment", order)) is None:
                await transaction.put(("payment", order), charged)
                await transaction.put(("outbox", order), {"order": order, "charge": charged})

        await transact(database, note)
        await consumer.commit()


async def relay(bootstrap, database):
    """Publish what lies in the outbox, and remove it when the brokers have it."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    await producer.start()
    while True:
        for kind, order in sorted(key for key in database.rows() if key[0] == "outbox"):
            event = database.rows()[kind, order]
            await producer.send_and_wait("payments", json.dumps(event).encode(), key=order.encode())

            async def remove(transaction, key=(kind, order)):
                await transaction.put(key, None)

            await transact(database, remove)
        await asyncio.sleep(0.2)


async def every_order_is_paid_once(world, *, mended=True):
    charges, keys = [], {}

    async def provider(method, path, body):
        await asyncio.sleep(0.2)
        if body["key"] not in keys:
            charges.append(body["order"])
            keys[body["key"]] = len(charges)
        return 201, {"charge": keys[body["key"]]}

    orders = await world.topic("orders", partitions=2)
    payments = await world.topic("payments", partitions=2)
    database = world.database()
    world.http("provider", provider)
    worker = mended_worker if mended else broken_worker
    for number in (1, 2):
        world.process(f"payer-{number}", worker, world.bootstrap, database)
    if mended:
        world.process("relay", relay, world.bootstrap, database)
    await world.load(orders, rate=3)
    await world.calm()
    records = await world.records(orders)
    check.exactly_once(records, [order.encode() for order in charges])
    published = [json.loads(record.value)["order"].encode() for record in await world.records(payments)]
    check.at_least_once(records, published)
    check.caught_up(world, "payments", within_s=90)


@simulation.test(seeds=50, brokers=3, faults="all", virtual_minutes=0.5)
async def test_every_order_is_paid_once(world):
    await every_order_is_paid_once(world)
