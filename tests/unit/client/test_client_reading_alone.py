"""`console-consumer` without a group: it reads added topics and partitions, and respects its time limit."""

import asyncio

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.cli.console_consumer import Selection, _source
from barnabas.client.fetching import ConsumerConfig
from barnabas.wire.records import BatchBuilder
from tests.unit.client.client_fake_cluster import LIST_OFFSETS, FakeCluster

pytestmark = pytest.mark.uvloop


def record() -> bytes:
    builder = BatchBuilder()
    builder.append(None, b"a", timestamp=1)
    return builder.build()


@pytest.mark.parametrize(("topic", "include", "new"), [("t", None, "t"), (None, "t.*", "t2")])
async def test_partitions_and_topics_that_are_added_are_read_from_their_start(
    topic: str | None, include: str | None, new: str
) -> None:
    """Existing partitions are read from their end, which is the default."""
    fake = FakeCluster()
    fake.append("t", record())
    async with fake.client(metadata_max_age_ms=50) as cluster:
        config = ConsumerConfig(auto_offset_reset="latest")
        async with _source(cluster, config, Selection(topic=topic, include=include), None, None) as source:
            assert await source.poll(100) == []
            fake.topics[new] = 2
            fake.append(new, record(), 1)
            (fetched,) = await source.poll(60_000)
            assert fetched.partition == TopicPartition(new, 1)


async def test_time_limit_holds_while_offsets_cannot_be_looked_up() -> None:
    """`--timeout-ms` was once ignored while a leader did not answer."""
    fake = FakeCluster()
    fake.broker.handlers[LIST_OFFSETS] = lambda call: None
    async with (
        fake.client(api_timeout_ms=600_000) as cluster,
        _source(cluster, ConsumerConfig(), Selection(topic="t"), None, None) as source,
        asyncio.timeout(30),  # far less than the client would try for
    ):
        assert await source.poll(100) == []


@pytest.mark.parametrize("include", [None, "t|u"])
async def test_topic_that_a_broker_did_not_know_for_a_while_is_not_read_again(include: str | None) -> None:
    """A broker that has just started learns of topics and partitions one after the other."""
    fake = FakeCluster(topics={"t": 2, "u": 1}, ids={"t": bytes(range(16)), "u": bytes(range(1, 17))})
    fake.append("t", record())
    fake.append("t", record(), 1)
    async with (
        fake.client(metadata_max_age_ms=20) as cluster,
        _source(
            cluster, ConsumerConfig(), Selection(topic=None if include else "t", include=include), -2, None
        ) as source,
    ):
        read: list[TopicPartition] = []
        while len(read) < 2:
            read += [fetched.partition for fetched in await source.poll(5_000)]
        for known in (None, 1):
            fake.topics.pop("t") if known is None else fake.topics.update(t=known)
            assert await source.poll(200) == []
            fake.topics["t"] = 2
            assert await source.poll(200) == [], "it was read before"
        fake.ids["t"] = bytes(range(2, 18))
        fake.logs.clear()
        fake.ends.clear()
        fake.append("t", record())
        [fetched] = await source.poll(5_000)
        assert fetched.position == 0, "deleted and made again"
