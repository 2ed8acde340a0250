"""Transactions of aiokafka."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced

from tests.scenarios.transactions.txn_clients import create_topic, read_all, values


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            await scenario()

    asyncio.run(main())


def unique() -> str:
    return f"aio-{uuid.uuid4().hex[:12]}"


def test_commit_and_abort(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)

    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique()) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept", partition=0)
                await producer.send_and_wait(topic, b"kept too", partition=1)
            with pytest.raises(RuntimeError, match="changed my mind"):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"dropped", partition=0)
                    raise RuntimeError("changed my mind")

    run(scenario)
    assert sorted(values(read_all(bootstrap, topic))) == [b"kept", b"kept too"]


def test_consume_transform_produce(bootstrap: str, topic: str) -> None:
    source, sink, group = topic, f"{topic}-out", f"{topic}-group"
    create_topic(bootstrap, source)
    create_topic(bootstrap, sink)

    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as feeder:
            for number in range(20):
                await feeder.send_and_wait(source, b"%d" % number)
        consumer = AIOKafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        async with consumer, AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique()) as producer:
            done = 0
            while done < 20:
                async with producer.transaction():
                    batch = await consumer.getmany(timeout_ms=1000, max_records=6)
                    offsets: dict[TopicPartition, int] = {}
                    for partition, messages in batch.items():
                        for message in messages:
                            await producer.send(sink, b"x" + message.value)
                        offsets[partition] = messages[-1].offset + 1
                        done += len(messages)
                    if offsets:
                        await producer.send_offsets_to_transaction(offsets, group)
            # EndTxn is answered at the decision; the markers may come a moment later.
            while await consumer.committed(TopicPartition(source, 0)) != 20:
                await asyncio.sleep(0.01)

    run(scenario)
    assert values(read_all(bootstrap, sink)) == [b"x%d" % number for number in range(20)]


def test_a_zombie_is_fenced(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    name = unique()

    async def scenario() -> None:
        zombie = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await zombie.start()
        await zombie.begin_transaction()
        await zombie.send_and_wait(topic, b"zombie")
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as successor:
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
            await zombie.stop()
            async with successor.transaction():
                await successor.send_and_wait(topic, b"successor")

    run(scenario)
    assert values(read_all(bootstrap, topic)) == [b"successor"]
