"""Topics are addressed by id if the cluster has ids, so that a topic that was created again is not taken for the old one."""

import asyncio
from collections.abc import Awaitable

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets, committed_offsets_of
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.producer import Producer
from barnabas.testing.cluster import Cluster as RealCluster
from barnabas.wire.messages.fetch import FetchRequest, FetchResponse
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from barnabas.wire.messages.produce import ProduceRequest
from tests.unit.client.client_fake_broker import Call

from tests.unit.client.client_fake_cluster import FETCH, PRODUCE, FakeCluster  # isort: skip

pytestmark = pytest.mark.uvloop

T0 = TopicPartition("t", 0)
OLD, NEW = b"o" * 16, b"n" * 16


async def test_both_shells_send_ids_and_look_again_when_one_is_unknown() -> None:
    fake = FakeCluster(ids={"t": OLD})
    fetched = fake.broker.handlers[FETCH]
    asked: list[bytes] = []

    def fetch(call: Call) -> Awaitable[None] | None:
        assert isinstance(call.message, FetchRequest)
        asked.append(call.message.topics[0].topic_id)
        if asked[-1] == fake.ids["t"]:
            return fetched(call)
        call.reply(FetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID))
        return None

    fake.broker.handlers[FETCH] = fetch
    async with fake.client() as cluster:
        async with Producer(cluster) as producer:
            await (await producer.send("t", b"v")).offset()
        (produced,) = fake.produced
        assert produced.version == ProduceRequest.MAX_VERSION
        config = ClientConfig(bootstrap=cluster.config.bootstrap, retry_backoff_ms=5)
        with BlockingClient(config) as client:
            assert len((await asyncio.to_thread(client.fetch, T0, 0)).data)
            fake.ids["t"] = NEW
            assert len((await asyncio.to_thread(client.fetch, T0, 0)).data)
        assert asked == [OLD, OLD, NEW]
        async with Consumer(cluster, ConsumerConfig(retry_backoff_ms=5)) as consumer:
            consumer.assign({T0: 0})
            assert await consumer.poll(5_000)
        assert asked == [OLD, OLD, NEW, OLD, NEW]
        assert fake.broker.calls[-1].version == FetchRequest.MAX_VERSION
    assert PRODUCE in {call.message.API_KEY for call in fake.broker.calls}


async def test_offset_of_a_topic_unknown_to_the_coordinator_is_requested_again() -> None:
    """It was once taken for a group without offset: the consumer began at `auto.offset.reset`, and skipped records."""
    fake = FakeCluster(ids={"t": OLD})
    asked: list[bytes] = []

    def fetch_offsets(call: Call) -> None:
        assert isinstance(call.message, OffsetFetchRequest)
        assert call.version == OffsetFetchRequest.MAX_VERSION
        assert call.message.groups[0].topics is not None
        asked.append(call.message.groups[0].topics[0].topic_id)
        is_first = len(asked) == 1
        part = OffsetFetchResponsePartitions(
            partition_index=0,
            committed_offset=-1 if is_first else 7,
            error_code=ErrorCode.UNKNOWN_TOPIC_ID if is_first else ErrorCode.NONE,
        )
        fake.ids["t"] = NEW
        topic = OffsetFetchResponseTopics(name="t", topic_id=asked[-1], partitions=[part])
        call.reply(OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])]))

    def find_coordinator(call: Call) -> None:
        call.reply(
            FindCoordinatorResponse(
                coordinators=[Coordinator(key="g", node_id=1, host=fake.broker.host, port=fake.broker.port)]
            )
        )

    fake.broker.handlers[OffsetFetchRequest.API_KEY] = fetch_offsets
    fake.broker.handlers[FindCoordinatorResponse.API_KEY] = find_coordinator
    async with fake.client() as cluster:
        await cluster.topics(["t"])
        assert await committed_offsets(cluster, "g", [T0]) == {T0: CommittedOffset(7)}
        assert asked == [OLD, NEW]
        asked.clear()
        await cluster.topics(["t"])
        assert await committed_offsets_of(cluster, ["g"], [T0]) == {"g": {T0: CommittedOffset(7)}}


def make_again(real: RealCluster) -> None:
    """After the old topic is deleted."""

    def made() -> bool:
        try:
            real.create_topic("t")
        except BrokerRefused:
            return False
        return True

    wait_until(made, what="the topic to be made again")


def test_offsets_of_a_deleted_topic_are_not_committed_for_a_new_one_with_its_name() -> None:
    async def scenario(real: RealCluster) -> None:
        async with AsyncClient(client_config(real.bootstrap)) as cluster:
            await cluster.topics(["t"])
            offsets = {T0: CommittedOffset(3)}
            assert await commit_offsets(cluster, "g", offsets) == {T0: ErrorCode.NONE}
            assert (await committed_offsets(cluster, "g", [T0]))[T0].offset == 3
            await asyncio.to_thread(real.delete_topic, "t")
            await asyncio.to_thread(make_again, real)
            assert await commit_offsets(cluster, "g", offsets) == {T0: ErrorCode.UNKNOWN_TOPIC_ID}

    with RealCluster(brokers=1) as real:
        real.create_topic("t")
        asyncio.run(scenario(real))
