"""An aggregator: it adds payments up by account, in a database.

The broken one notes the sum, then commits the offset in Kafka. The mended one keeps the offset beside the sum, in the same
transaction, begins where the database says, and leaves a partition to another one as soon as the database is ahead of it.
"""

import asyncio
import json

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

from barnabas.testing import simulation
from barnabas.testing.simulation import AnswerLost, Conflict


def payments_of(bootstrap):
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id="totals",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


async def broken_aggregator(bootstrap, database):
    consumer = payments_of(bootstrap)
    consumer.subscribe(["payments"])
    await consumer.start()
    async for message in consumer:
        payment = json.loads(message.value)
        account = ("account", payment["account"])
        while True:
            try:
                async with database.transaction() as transaction:
                    await transaction.put(account, await transaction.get(account, 0) + payment["amount"])
                break
            except (AnswerLost, Conflict):
                await asyncio.sleep(0.2)
        await consumer.commit()


class BeginsWhereTheDatabaseSays(ConsumerRebalanceListener):
    def __init__(self, consumer, database):
        self.consumer = consumer
        self.database = database

    async def on_partitions_revoked(self, revoked):
        """Nothing is held back."""

    async def on_partitions_assigned(self, assigned):
        for where in sorted(assigned):
            self.consumer.seek(where, await next_offset(self.database, where.partition))


async def next_offset(database, partition):
    while True:
        try:
            async with database.transaction() as transaction:
                return await transaction.get(("offset", partition), 0)
        except AnswerLost:
            await asyncio.sleep(0.2)


async def mended_aggregator(bootstrap, database):
    consumer = payments_of(bootstrap)
    consumer.subscribe(["payments"], listener=BeginsWhereTheDatabaseSays(consumer, database))
    await consumer.start()
    async for message in consumer:
        payment, offset = json.loads(message.value), ("offset", message.partition)
        account = ("account", payment["account"])
        while True:
            try:
                async with database.transaction() as transaction:
                    # Of a record that is counted already, this one has lost the answer, or another member was faster.
                    if message.offset >= await transaction.get(offset, 0):
                        await transaction.put(account, await transaction.get(account, 0) + payment["amount"])
                        await transaction.put(offset, message.offset + 1)
                break
            except (AnswerLost, Conflict):
                await asyncio.sleep(0.2)


async def every_payment_counts_once(world, *, mended=True):
    payments = await world.topic("payments", partitions=3)
    database = world.database()

    def a_payment(number):
        return json.dumps({"account": number % 4, "amount": world.random.randint(1, 100)})

    aggregator = mended_aggregator if mended else broken_aggregator
    for number in (1, 2):
        world.process(f"aggregator-{number}", aggregator, world.bootstrap, database)
    await world.load(payments, rate=4, make=a_payment)
    await world.calm(quiet_s=45)  # nothing is committed in Kafka: sessions of members that are gone must end
    expected = {}
    for record in await world.records(payments):
        payment = json.loads(record.value)
        expected[payment["account"]] = expected.get(payment["account"], 0) + payment["amount"]
    totals = {key[1]: value for key, value in database.rows().items() if key[0] == "account"}
    assert totals == expected


@simulation.test(seeds=50, brokers=3, faults="all", virtual_minutes=0.5)
async def test_every_payment_counts_once(world):
    await every_payment_counts_once(world)
