"""`console-consumer` without a group: it reads what is added to the cluster, and its time limit holds."""

import asyncio

import pytest
from client_fake_cluster import LIST_OFFSETS, FakeCluster

from barnabas.cli.console_consumer import _source
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.fetching import ConsumerConfig
from barnabas.core.ids import TopicPartition
from barnabas.protocol.records import BatchBuilder


def record() -> bytes:
    builder = BatchBuilder()
    builder.append(None, b"a", timestamp=1)
    return builder.build()


@pytest.mark.parametrize(("topic", "include", "new"), [("t", None, "t"), (None, "t.*", "t2")])
def test_partitions_and_topics_that_are_added_are_read_from_their_start(
    topic: str | None, include: str | None, new: str
) -> None:
    """U2. What was there before is read from its end, as nothing else was asked for."""
    fake = FakeCluster()
    fake.append("t", record())

    async def scenario(cluster: AsyncClient) -> None:
        config = ConsumerConfig(auto_offset_reset="latest")
        async with _source(cluster, config, {}, topic, include, None, None, None) as source:
            assert await source.poll(100) == []
            fake.topics[new] = 2
            fake.append(new, record(), 1)
            (fetched,) = await source.poll(60_000)
            assert fetched.partition == TopicPartition(new, 1)

    fake.run(scenario, metadata_max_age_ms=50)


def test_time_limit_holds_while_offsets_cannot_be_looked_up() -> None:
    """U3: `--timeout-ms` was ignored where a leader did not answer."""
    fake = FakeCluster()
    fake.broker.handlers[LIST_OFFSETS] = lambda call: None

    async def scenario(cluster: AsyncClient) -> None:
        async with _source(cluster, ConsumerConfig(), {}, "t", None, None, None, None) as source:
            async with asyncio.timeout(30):  # far less than the client would try for
                assert await source.poll(100) == []

    fake.run(scenario, api_timeout_ms=600_000)
