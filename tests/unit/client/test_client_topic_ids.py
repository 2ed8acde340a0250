"""Topics go by their ids where the cluster has them, so that one that was made again is not taken for the one before it."""

import asyncio

from client_fake_broker import Call

from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.producer import Producer
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.testing.cluster import Cluster as RealCluster

from client_fake_cluster import FETCH, PRODUCE, FakeCluster  # isort: skip

T0 = TopicPartition("t", 0)
OLD, NEW = b"o" * 16, b"n" * 16


def test_both_shells_send_ids_and_look_again_when_one_is_unknown() -> None:
    fake = FakeCluster(ids={"t": OLD})
    fetched = fake.broker.handlers[FETCH]
    asked: list[bytes] = []

    def fetch(call: Call) -> None:
        assert isinstance(call.message, FetchRequest)
        asked.append(call.message.topics[0].topic_id)
        if asked[-1] != fake.ids["t"]:
            call.reply(FetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            fetched(call)

    fake.broker.handlers[FETCH] = fetch

    async def scenario(cluster: AsyncClient) -> None:
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

    fake.run(scenario)
    assert PRODUCE in {call.message.API_KEY for call in fake.broker.calls}


def make_again(real: RealCluster) -> None:
    """Once the old one is gone."""

    def made() -> bool:
        try:
            real.create_topic("t")
        except BrokerRefused:
            return False
        return True

    wait_until(made, what="the topic to be made again")


def test_offsets_of_a_topic_that_was_made_again_are_not_committed_for_the_new_one() -> None:
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
