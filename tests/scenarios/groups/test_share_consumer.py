"""Our own client's share consumer, with real brokers and a real coordinator."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.client.admin.configs import alter_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.share_consumer import ShareConsumer, ShareRecord
from barnabas.client.share_session import AcknowledgementMode, AcknowledgeType, ShareConfig
from barnabas.testing import Broker, Cluster

FAST = {
    "group.share.record.lock.duration.ms": "2000",
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
EXPLICIT = AcknowledgementMode.EXPLICIT
PATIENCE_MS = 30_000


async def from_start(bootstrap: str, group: str) -> None:
    async with AsyncClient(client_config(bootstrap)) as client:
        change = {"share.auto.offset.reset": (AlterOperation.SET, "earliest")}
        await alter_configs(client, ConfigResourceType.GROUP, group, change)


@asynccontextmanager
async def member(
    kafka: Broker,
    group: str = "g",
    *,
    topics: Collection[str] = ("orders",),
    mode: AcknowledgementMode = AcknowledgementMode.IMPLICIT,
    most: int = 500,
) -> AsyncIterator[ShareConsumer]:
    async with AsyncClient(client_config(kafka.bootstrap)) as client:
        config = ShareConfig(group_id=group, acknowledgement_mode=mode, max_poll_records=most, fetch_max_wait_ms=200)
        async with ShareConsumer(client, config, topics=topics) as consumer:
            yield consumer


def values(records: list[ShareRecord]) -> list[bytes]:
    return [each.record.value or b"" for each in records]


async def poll(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """Poll until there are so many records, without acknowledging the former ones."""
    found = await consumer.poll(PATIENCE_MS)
    assert len(found) >= count, values(found)
    return found


async def test_records_are_accepted_by_the_next_poll_or_commit() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b"])
        await from_start(kafka.bootstrap, "g")
        async with member(kafka) as one:
            assert values(await poll(one, 2)) == [b"a", b"b"]
            assert one.assignment == [TopicPartition("orders", 0)]
            assert await one.commit() == {TopicPartition("orders", 0): ErrorCode.NONE}
            assert await one.commit() == {}
            await kafka.produce("orders", ["c"])
            assert values(await poll(one, 1)) == [b"c"]
            assert await one.poll(500) == []
            await kafka.produce("orders", ["d"])
            assert values(await poll(one, 1)) == [b"d"]
        # The last record was neither committed nor followed by a poll.
        async with member(kafka) as two:
            [again] = await poll(two, 1)
            assert (again.record.value, again.delivery_count) == (b"d", 2)


async def test_each_decision_has_its_effect() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["accept", "release", "reject", "renew"])
        await from_start(kafka.bootstrap, "g")
        async with member(kafka, mode=EXPLICIT) as one:
            accept, release, reject, renew = await poll(one, 4)
            one.acknowledge(accept)
            one.acknowledge(release, AcknowledgeType.RELEASE)
            one.acknowledge(reject, AcknowledgeType.REJECT)
            with pytest.raises(ValueError, match="1 records are not acknowledged, the first is orders-0 offset 3"):
                await one.poll(0)
            with pytest.raises(ValueError, match="orders-0 offset 0 is acknowledged already"):
                one.acknowledge(accept)
            for _ in range(4):  # longer than the lock
                one.acknowledge(renew, AcknowledgeType.RENEW)
                assert await one.commit() == {TopicPartition("orders", 0): ErrorCode.NONE}
                await asyncio.sleep(0.8)
            [again] = await poll(one, 1)
            assert (again.record.value, again.delivery_count) == (b"release", 2)
            one.acknowledge(again)
            one.acknowledge(renew)
            assert await one.commit() == {TopicPartition("orders", 0): ErrorCode.NONE}
            assert await one.poll(500) == []


async def test_implicit_mode_refuses_single_decisions() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a"])
        await from_start(kafka.bootstrap, "g")
        async with member(kafka) as one:
            [record] = await poll(one, 1)
            with pytest.raises(ValueError, match=r"share\.acknowledgement\.mode is implicit"):
                one.acknowledge(record)


async def test_lock_that_timed_out_is_reported() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a"])
        await from_start(kafka.bootstrap, "g")
        async with member(kafka, mode=EXPLICIT) as one, member(kafka, mode=EXPLICIT) as two:
            [first] = await poll(one, 1)
            [again] = await poll(two, 1)
            assert again.delivery_count == 2
            one.acknowledge(first)
            assert await one.commit() == {TopicPartition("orders", 0): ErrorCode.INVALID_RECORD_STATE}
            two.acknowledge(again)
            assert await two.commit() == {TopicPartition("orders", 0): ErrorCode.NONE}


async def test_ten_members_share_one_partition_and_nothing_is_lost_or_accepted_twice() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await from_start(kafka.bootstrap, "g")
        accepted: list[bytes] = []

        async def work(stop: asyncio.Event, index: int) -> int:
            async with member(kafka, mode=EXPLICIT, most=7) as consumer:
                count = 0
                while not stop.is_set():
                    records = await consumer.poll(300)
                    for at, record in enumerate(records):
                        is_released = record.delivery_count == 1 and (at + index) % 5 == 0
                        kind = AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT
                        consumer.acknowledge(record, kind)
                    results = await consumer.commit()
                    assert set(results.values()) <= {ErrorCode.NONE}
                    done = [each for at, each in enumerate(records) if each.delivery_count > 1 or (at + index) % 5]
                    accepted.extend(values(done))
                    count += len(done)
                return count

        stop = asyncio.Event()
        workers = [asyncio.create_task(work(stop, index)) for index in range(10)]
        wanted = [f"{number}" for number in range(500)]
        for start in range(0, 500, 10):  # batches of ten: members get whole batches
            await kafka.produce("orders", wanted[start : start + 10])
        async with asyncio.timeout(60):
            while len(accepted) < 500:
                await asyncio.sleep(0.1)
        stop.set()
        counts = await asyncio.gather(*workers)
        assert sorted(accepted) == sorted(each.encode() for each in wanted)
        assert sum(each > 0 for each in counts) > 3


async def test_records_of_a_member_that_leaves_go_to_another_at_once() -> None:
    async with Broker(config=FAST | {"group.share.record.lock.duration.ms": "60000"}) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b"])
        await from_start(kafka.bootstrap, "g")
        async with member(kafka, mode=EXPLICIT) as two:
            async with member(kafka, mode=EXPLICIT) as one:
                held = await one.poll(PATIENCE_MS)
                one.acknowledge(held[0])
            got = await poll(two, 1)
            assert (values(got), got[0].delivery_count) == ([b"b"], 2)
            two.acknowledge(got[0])


async def test_consumer_follows_the_leader_and_reads_everything_after_a_fail_over() -> None:
    settings = FAST | {"offsets.topic.replication.factor": "3", "share.coordinator.state.topic.replication.factor": "3"}
    with Cluster(brokers=3, config=settings) as cluster:
        cluster.create_topic("orders", replication_factor=3)
        await from_start(cluster.bootstrap, "g")
        await asyncio.to_thread(cluster.produce, "orders", [f"before {number}" for number in range(20)])
        seen: set[bytes] = set()
        failed: list[ErrorCode] = []

        def settled(partition: TopicPartition, offsets: Collection[int], code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                failed.append(code)

        async with AsyncClient(client_config(cluster.bootstrap)) as client:
            config = ShareConfig(group_id="g", fetch_max_wait_ms=200)
            async with ShareConsumer(client, config, topics=["orders"], on_acknowledged=settled) as consumer:
                async with asyncio.timeout(120):
                    while len(seen) < 20:
                        seen.update(values(await consumer.poll(1_000)))
                    await asyncio.to_thread(cluster.kill, cluster.leader_of("orders", 0))
                    await asyncio.to_thread(cluster.produce, "orders", [f"after {number}" for number in range(20)])
                    while len(seen) < 40:
                        seen.update(values(await consumer.poll(1_000)))
                assert set((await consumer.commit()).values()) <= {ErrorCode.NONE}
        assert len(failed) <= 1  # the records that the dead leader had given out are delivered again
