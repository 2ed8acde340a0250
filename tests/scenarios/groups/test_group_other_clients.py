"""Groups of aiokafka and kafka-python, alone and together with librdkafka, and groups of many members."""

import asyncio
import threading
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from barnabas.testing import wait_until
from tests.scenarios.groups.group_clients import CLASSIC, Member, create, produce

MANY = 50
GROUPS = 200


class CommitOnRevoke(ConsumerRebalanceListener):  # type: ignore[misc]
    """Gives partitions back in order."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: set[AioPartition]) -> None:
        if revoked:
            await self._consumer.commit()

    async def on_partitions_assigned(self, assigned: set[AioPartition]) -> None:
        return


def aio_consumer(bootstrap: str, group: str, **options: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=30_000,
        heartbeat_interval_ms=300,
        partition_assignment_strategy=(RangePartitionAssignor,),
        **options,
    )


async def drain(consumers: list[AIOKafkaConsumer], values: list[int], count: int) -> None:
    async with asyncio.timeout(60):
        while len(values) < count:
            for consumer in consumers:
                for records in (await consumer.getmany(timeout_ms=20)).values():
                    values += [int(record.value) for record in records]


def test_aiokafka_group_grows_and_shrinks_and_reads_every_record_once(fast: str, topic: str) -> None:
    async def scenario() -> None:
        values: list[int] = []
        consumers: list[AIOKafkaConsumer] = []

        async def join() -> None:
            consumer = aio_consumer(fast, f"g-{topic}")
            consumer.subscribe([topic], listener=CommitOnRevoke(consumer))
            await consumer.start()
            consumers.append(consumer)

        async def balanced() -> None:
            async with asyncio.timeout(60):
                while True:
                    owned = [place for each in consumers for place in each.assignment()]
                    if len(owned) == len(set(owned)) == 6 and all(each.assignment() for each in consumers):
                        return
                    await asyncio.sleep(0.02)

        try:
            for size in (1, 2, 3):
                await join()
                await balanced()
                produce(fast, topic, range(100 * (size - 1), 100 * size), 6)
                await drain(consumers, values, 100 * size)
            first = consumers.pop(0)
            await first.commit()
            await first.stop()
            await balanced()
            produce(fast, topic, range(300, 400), 6)
            await drain(consumers, values, 400)
            assert sorted(values) == list(range(400))
        finally:
            for consumer in consumers:
                await consumer.stop()

    create(fast, topic, 6)
    asyncio.run(scenario())


def test_kafka_python_and_librdkafka_share_a_group(fast: str, topic: str) -> None:
    create(fast, topic, 4)
    group = f"g-{topic}"
    produce(fast, topic, range(100), 4)
    values: list[int] = []
    owned: set[int] = set()
    stop = threading.Event()

    def run() -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=fast,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
        )
        try:
            # kafka-python 3.0 joins before it knows the topic's partitions, and joins again when it does. If a poll's
            # time is up just as that second join ends, it forgets the assignment. Knowing the topic first avoids both.
            assert consumer.partitions_for_topic(topic) == {0, 1, 2, 3}
            while not stop.is_set():
                for records in consumer.poll(timeout_ms=50).values():
                    values.extend(int(record.value) for record in records)
                    consumer.commit()
                owned.clear()
                owned.update(place.partition for place in consumer.assignment())
        finally:
            consumer.close()

    thread = threading.Thread(target=run, name="kafka-python", daemon=True)
    thread.start()
    try:
        wait_until(lambda: len(values) == 100, what="the first reads all")
        other = Member(fast, group, [topic], **CLASSIC, **{"partition.assignment.strategy": "range"})
        try:
            wait_until(lambda: len(owned) == len(other.owned) == 2, what="both have two partitions")
            assert owned.isdisjoint(number for _, number in other.owned)
            produce(fast, topic, range(100, 200), 4)
            wait_until(lambda: len(values) + len(other.values) >= 200, what="together they read all")
            assert sorted([*values, *other.values]) == list(range(200))
        finally:
            other.stop()
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


async def test_group_of_50_members_owns_every_partition_once_and_reads_every_record_once(fast: str, topic: str) -> None:
    create(fast, topic, MANY)
    group = f"g-{topic}"

    consumers = [aio_consumer(fast, group) for _ in range(MANY)]
    values: list[int] = []
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        await asyncio.gather(*(consumer.start() for consumer in consumers))

        async def pump(consumer: AIOKafkaConsumer) -> None:
            while True:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    values.extend(int(record.value) for record in records)

        pumps = [asyncio.ensure_future(pump(consumer)) for consumer in consumers]
        try:
            async with asyncio.timeout(60):
                while any(len(consumer.assignment()) != 1 for consumer in consumers):
                    await asyncio.sleep(0.05)
            owned = {place.partition for consumer in consumers for place in consumer.assignment()}
            assert owned == set(range(MANY))
            await asyncio.to_thread(produce, fast, topic, range(20 * MANY), MANY)
            async with asyncio.timeout(60):
                while len(values) < 20 * MANY:
                    await asyncio.sleep(0.05)
            admin = AdminClient({"bootstrap.servers": fast})
            described = await asyncio.to_thread(lambda: admin.describe_consumer_groups([group])[group].result(60))
            assert (described.state.name, len(described.members)) == ("STABLE", MANY)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        assert sorted(values) == list(range(20 * MANY))
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))


def test_200_groups_read_all_each_for_itself_and_their_successors_go_on_where_they_stopped(
    fast: str, topic: str
) -> None:
    create(fast, topic, 2)
    groups = [f"g-{topic}-{number}" for number in range(GROUPS)]

    async def read(consumer: AIOKafkaConsumer, count: int) -> list[int]:
        values: list[int] = []
        while len(values) < count:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                values += [int(record.value) for record in records]
        await consumer.commit()
        return values

    async def generation(expected: range) -> None:
        """A member of every group, all at the same time: each reads what its predecessor has not read, and leaves."""
        consumers = [aio_consumer(fast, group) for group in groups]
        try:
            for consumer in consumers:
                consumer.subscribe([topic])
            await asyncio.gather(*(consumer.start() for consumer in consumers))
            async with asyncio.timeout(90):
                read_by_each = await asyncio.gather(*(read(consumer, len(expected)) for consumer in consumers))
            assert {len(consumer.assignment()) for consumer in consumers} == {2}
            assert [sorted(values) for values in read_by_each] == [list(expected)] * GROUPS
            admin = AdminClient({"bootstrap.servers": fast})
            listed = await asyncio.to_thread(lambda: admin.list_consumer_groups().result(60))
            ours = {each.group_id: each.state.name for each in listed.valid if each.group_id in set(groups)}
            assert ours == dict.fromkeys(groups, "STABLE")
        finally:
            await asyncio.gather(*(consumer.stop() for consumer in consumers))

    for expected in (range(40), range(40, 60)):
        produce(fast, topic, expected, 2)
        asyncio.run(generation(expected))
