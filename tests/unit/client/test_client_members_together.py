"""Two members of a group that share a client, with a real broker, which processes one request of a connection at a time."""

import asyncio

from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.group import GroupConsumer
from barnabas.client.membership import GroupConfig
from barnabas.testing.cluster import Cluster
from tests.support.waiting import eventually


def test_members_that_share_a_client_share_the_partitions_at_once() -> None:
    """The JoinGroup of one waits for the other, which learns of it by its heartbeat."""
    config = GroupConfig(group_id="g", session_timeout_ms=45_000, heartbeat_interval_ms=100)

    async def poll(consumer: GroupConsumer) -> None:
        while True:
            await consumer.poll(50)

    async def story(bootstrap: str) -> None:
        async with AsyncClient(client_config(bootstrap)) as cluster:
            one, other = (GroupConsumer(cluster, config, topics=["t"]) for _ in range(2))
            async with one, other:
                while not one.consumer.assignment:
                    await one.poll(50)
                polling = [asyncio.ensure_future(poll(each)) for each in (one, other)]
                await eventually(lambda: [len(each.consumer.assignment) for each in (one, other)] == [1, 1])
                for each in polling:
                    each.cancel()
                await asyncio.gather(*polling, return_exceptions=True)

    with Cluster(brokers=1) as cluster:
        cluster.create_topic("t", partitions=2)
        asyncio.run(story(cluster.bootstrap))
