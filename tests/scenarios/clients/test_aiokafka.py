"""aiokafka, used as by its users."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


async def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        response = await admin.create_topics([NewTopic(topic, partitions, 3, topic_configs=settings)])
        for name, code, *_ in response.topic_errors:
            if code == TopicAlreadyExistsError.errno:
                raise TopicAlreadyExistsError(name)
            assert code == 0, response
    finally:
        await admin.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(bootstrap: str, topic: str, codec: str | None) -> None:
    async def test() -> None:
        await create(bootstrap, topic)
        sent = [
            (
                b"k%d" % n,
                None if n % 7 == 0 else b"v%d" % n * n,
                [("h", b"%d" % n)] if n % 2 else [],
            )
            for n in range(100)
        ]
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, acks="all") as producer:
            for n, (key, value, headers) in enumerate(sent):
                await producer.send(topic, value, key, headers=headers, timestamp_ms=1_700_000_000_000 + n)
        async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            got = [await consumer.getone() for _ in sent]
        assert [(m.key, m.value, list(m.headers)) for m in got] == sent
        assert [m.timestamp for m in got] == [1_700_000_000_000 + n for n in range(100)]

    run(test)


def test_idempotent_producer(bootstrap: str, topic: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            sent = [await producer.send_and_wait(topic, b"%d" % n) for n in range(50)]
        assert [m.offset for m in sent] == list(range(50))

    run(test)


def test_offsets_by_time_and_ends(bootstrap: str, topic: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            for n in range(20):
                await producer.send_and_wait(topic, b"x", timestamp_ms=1_700_000_000_000 + n * 10)
        tp = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([tp])
            found = await consumer.offsets_for_times({tp: 1_700_000_000_055})
            assert found[tp].offset == 6
            assert await consumer.beginning_offsets([tp]) == {tp: 0}
            assert await consumer.end_offsets([tp]) == {tp: 20}

    run(test)


def test_too_large_record_is_refused(bootstrap: str, topic: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic, max_message_bytes="1000")
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 5000)

    run(test)


def test_two_consumers_of_a_group_share_the_partitions(bootstrap: str, topic: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic, 4)
        options: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with AIOKafkaConsumer(topic, **options) as first:
            await _until(lambda: len(first.assignment()) == 4)
            async with AIOKafkaConsumer(topic, **options) as second:
                await _until(lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2)
                assert not first.assignment() & second.assignment()
            await _until(lambda: len(first.assignment()) == 4)

    run(test)


def test_group_resumes_from_its_committed_offset(bootstrap: str, topic: str) -> None:
    async def test() -> None:
        await create(bootstrap, topic)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            for n in range(10):
                await producer.send_and_wait(topic, b"%d" % n)
        options: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with AIOKafkaConsumer(topic, **options) as consumer:
            for _ in range(4):
                last = await consumer.getone()
            await consumer.commit({TopicPartition(topic, 0): last.offset + 1})
        async with AIOKafkaConsumer(topic, **options) as consumer:
            assert (await consumer.getone()).value == b"4"

    run(test)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)
