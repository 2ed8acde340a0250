"""The blocking client, from a thread of its own."""

import asyncio
import struct
from collections.abc import Callable

import pytest
from client_fake_broker import Call
from client_fake_cluster import FETCH, METADATA, FakeCluster

from barnabas.client.admin.partitions import EARLIEST, LATEST
from barnabas.client.blocking import BlockingClient, BlockingConnection
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.errors import BrokerRefused, ConnectionLost, DeadlineExceeded, RequestTimedOut
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.protocol.records import BatchBuilder

T0 = TopicPartition("t", 0)


def records(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(None, value, timestamp=1)
    return builder.build()


def in_thread(fake: FakeCluster, body: Callable[[ClientConfig], None]) -> None:
    async def scenario(cluster: Cluster) -> None:
        config = ClientConfig(
            bootstrap=cluster.config.bootstrap, retry_backoff_ms=5, api_timeout_ms=2_000, request_timeout_ms=2_000
        )
        await asyncio.to_thread(body, config)

    fake.run(scenario)


def test_offsets_and_raw_batches() -> None:
    fake = FakeCluster()
    fake.append("t", records(b"a", b"b"))
    fake.append("t", records(b"c" * 100_000))

    def body(config: ClientConfig) -> None:
        with BlockingClient(config) as client:
            assert client.list_offsets({T0: EARLIEST}) == {T0: 0}
            assert client.list_offsets({T0: LATEST}) == {T0: 3}
            fetched = client.fetch(T0, 1)
            assert [record.value for record in fetched.records()] == [b"b", b"c" * 100_000]
            assert fetched.next_position == 3
            assert isinstance(fetched.data, memoryview)
            assert client.fetch(T0, 3).next_position == 3

    in_thread(fake, body)


def test_offset_out_of_range_is_the_callers_to_deal_with() -> None:
    def body(config: ClientConfig) -> None:
        with BlockingClient(config) as client, pytest.raises(BrokerRefused, match="OFFSET_OUT_OF_RANGE"):
            client.fetch(T0, 99)

    in_thread(FakeCluster(), body)


def test_leader_that_moved_is_looked_up_again() -> None:
    fake = FakeCluster()
    fake.append("t", records(b"a"))
    real = fake.broker.handlers[FETCH]
    refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    def fetch(call: Call) -> None:
        if not refusals:
            real(call)
            return
        part = PartitionData(partition_index=0, error_code=refusals.pop())
        call.reply(FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])]))

    fake.broker.handlers[FETCH] = fetch

    def body(config: ClientConfig) -> None:
        with BlockingClient(config) as client:
            assert [record.value for record in client.fetch(T0, 0).records()] == [b"a"]
        assert fake.metadata_count == 2

    in_thread(fake, body)


def test_topic_that_does_not_exist_is_told_after_patience() -> None:
    def body(config: ClientConfig) -> None:
        with (
            BlockingClient(ClientConfig(bootstrap=config.bootstrap, api_timeout_ms=60, retry_backoff_ms=5)) as client,
            pytest.raises(DeadlineExceeded, match="UNKNOWN_TOPIC_OR_PARTITION"),
        ):
            client.fetch(TopicPartition("nix", 0), 0)

    in_thread(FakeCluster(), body)


def test_silent_broker_times_out_and_the_connection_is_closed() -> None:
    fake = FakeCluster()
    fake.broker.handlers[METADATA] = lambda call: None

    def body(config: ClientConfig) -> None:
        connection = BlockingConnection(*config.bootstrap[0], config)
        with pytest.raises(RequestTimedOut):
            connection.request(MetadataRequest(), MetadataResponse, timeout_ms=40)
        assert connection.closed

    in_thread(fake, body)


@pytest.mark.parametrize("answer", [struct.pack(">i", 10**9), struct.pack(">ii", 4, 4711)])
def test_nonsense_ends_the_connection(answer: bytes) -> None:
    fake = FakeCluster()
    fake.broker.handlers[METADATA] = lambda call: call.reply_raw(answer)

    def body(config: ClientConfig) -> None:
        connection = BlockingConnection(*config.bootstrap[0], config)
        with pytest.raises(ConnectionLost, match="sent what is not a response"):
            connection.request(MetadataRequest(), MetadataResponse)
        assert connection.closed

    in_thread(fake, body)


def test_nobody_there_is_told_with_the_address() -> None:
    with pytest.raises(ConnectionLost, match=r"cannot connect to 127\.0\.0\.1:1"):
        BlockingConnection("127.0.0.1", 1, ClientConfig())
