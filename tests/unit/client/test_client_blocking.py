"""The blocking client, on a separate thread."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.client.blocking import BlockingClient, BlockingConnection
from barnabas.client.blocking_producer import BlockingProducer, BlockingProducerConfig, ReadyBatch
from barnabas.client.config import ClientConfig
from barnabas.client.errors import BrokerRefused, ConnectionLost, DeadlineExceeded, RequestTimedOut
from barnabas.client.fetching import ConsumerConfig
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeResponse
from barnabas.wire.records import BatchBuilder
from tests.unit.client.client_fake_broker import Call
from tests.unit.client.client_fake_cluster import FETCH, METADATA, FakeCluster

T0 = TopicPartition("t", 0)
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


def records(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(None, value, timestamp=1)
    return builder.build()


def in_thread(fake: FakeCluster, body: Callable[[ClientConfig], None]) -> None:
    async def serve() -> None:
        async with fake.client() as cluster:
            config = ClientConfig(
                bootstrap=cluster.config.bootstrap, retry_backoff_ms=5, api_timeout_ms=2_000, request_timeout_ms=2_000
            )
            await asyncio.to_thread(body, config)

    asyncio.run(serve())


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


def test_many_partitions_come_with_one_request_and_those_that_do_not_are_left_out() -> None:
    fake = FakeCluster(topics={"t": 4})
    for index in (0, 1, 3):
        fake.append("t", records(b"%d" % index), index)
    wanted = {TopicPartition("t", index): 0 for index in (3, 0, 2)} | {TopicPartition("t", 1): 99}

    def body(config: ClientConfig) -> None:
        with BlockingClient(config) as client:
            found = client.fetch_some(wanted, ConsumerConfig(fetch_max_wait_ms=0))
            values = {each.partition: [record.value for record in got.records()] for each, got in found.items()}
            assert values == {0: [b"0"], 3: [b"3"]}, "2 is empty, and 1 has no offset 99"
            with pytest.raises(BrokerRefused, match="UNKNOWN_TOPIC_OR_PARTITION"):
                client.fetch_some({TopicPartition("t", 7): 0}, ConsumerConfig())

    in_thread(fake, body)
    assert len([call for call in fake.broker.calls if isinstance(call.message, FetchRequest)]) == 1


def test_leader_that_moved_is_looked_up_again() -> None:
    fake = FakeCluster()
    fake.append("t", records(b"a"))
    real = fake.broker.handlers[FETCH]
    refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    def fetch(call: Call) -> Awaitable[None] | None:
        if not refusals:
            return real(call)
        part = PartitionData(partition_index=0, error_code=refusals.pop())
        call.reply(FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])]))
        return None

    fake.broker.handlers[FETCH] = fetch

    def body(config: ClientConfig) -> None:
        with BlockingClient(config) as client:
            assert [record.value for record in client.fetch(T0, 0).records()] == [b"a"]
        assert fake.metadata_count == 2

    in_thread(fake, body)


def test_client_that_is_held_to_its_quota_waits_for_as_long_as_it_takes() -> None:
    """A throttled response names no partition, but that does not mean that the partition is missing."""
    fake = FakeCluster()
    fake.append("t", records(b"a"))
    real = fake.broker.handlers[FETCH]
    throttles_ms = [20] * 10

    def fetch(call: Call) -> Awaitable[None] | None:
        if not throttles_ms:
            return real(call)
        call.reply(FetchResponse(throttle_time_ms=throttles_ms.pop()))
        return None

    fake.broker.handlers[FETCH] = fetch

    def body(config: ClientConfig) -> None:
        with BlockingClient(replace(config, api_timeout_ms=60)) as client:
            assert [record.value for record in client.fetch(T0, 0).records()] == [b"a"]
        assert fake.metadata_count == 1, "nothing is stale"

    in_thread(fake, body)


def test_missing_topic_raises_after_the_time_limit() -> None:
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
        with pytest.raises(ConnectionLost, match="sent an invalid response"):
            connection.request(MetadataRequest(), MetadataResponse)
        assert connection.closed

    in_thread(fake, body)


def test_error_without_a_listener_names_the_address() -> None:
    with pytest.raises(ConnectionLost, match=r"cannot connect to 127\.0\.0\.1:1"):
        BlockingConnection("127.0.0.1", 1, ClientConfig())


class Sessions:
    """A broker that ends sessions after a while, and counts how often a client authenticated."""

    def __init__(self, fake: FakeCluster, lifetime_ms: int) -> None:
        self.logins = 0
        self._lifetime_ms = lifetime_ms
        fake.broker.handlers |= {
            SASL_HANDSHAKE: lambda call: call.reply(SaslHandshakeResponse(mechanisms=["PLAIN"])),
            SASL_AUTHENTICATE: self._authenticate,
        }

    def _authenticate(self, call: Call) -> None:
        self.logins += 1
        call.reply(SaslAuthenticateResponse(session_lifetime_ms=self._lifetime_ms))


def with_login(config: ClientConfig) -> ClientConfig:
    line = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    security = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": line}
    return ClientConfig(bootstrap=config.bootstrap, security_protocol="SASL_PLAINTEXT", security=security)


def test_session_is_renewed_also_after_requests_that_get_no_answer() -> None:
    """A Produce with acks=0 once counted as unanswered for ever, so the session was never renewed."""
    fake = FakeCluster()
    sessions = Sessions(fake, lifetime_ms=100)

    def body(config: ClientConfig) -> None:
        with BlockingClient(with_login(config)) as client:
            settings = BlockingProducerConfig(acks=0)
            writing = BlockingProducer(client, settings)
            assert writing.partition_count("t") == 1
            for number in range(3):
                if number:
                    time.sleep(0.09)  # past 85 of the session's 100 ms
                writing.send(ReadyBatch(T0, 1, memoryview(bytearray(records(b"%d" % number)))))
                writing.flush()

    in_thread(fake, body)
    # The connection for metadata, and the one for produce requests: once when it was opened, and before each later request. On
    # a busy machine there may be one more renewal.
    assert sessions.logins >= 1 + 3


def test_session_is_renewed_after_the_responses_in_flight() -> None:
    fake = FakeCluster()
    sessions = Sessions(fake, lifetime_ms=100)

    def body(config: ClientConfig) -> None:
        with BlockingConnection(*config.bootstrap[0], with_login(config)) as connection:
            first = connection.send(MetadataRequest(), MetadataResponse)
            before = sessions.logins
            time.sleep(0.09)
            second = connection.send(MetadataRequest(), MetadataResponse)
            assert sessions.logins == before + 1
            assert connection.receive(second).cluster_id == connection.receive(first).cluster_id == "fake"

    in_thread(fake, body)


def test_responses_can_be_received_in_any_order() -> None:
    fake = FakeCluster(topics={"a": 1, "b": 1})

    def body(config: ClientConfig) -> None:
        with BlockingConnection(*config.bootstrap[0], config) as connection:
            sent = {
                name: connection.send(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), MetadataResponse)
                for name in "ab"
            }
            for name in "ba":
                assert [topic.name for topic in connection.receive(sent[name]).topics] == [name]

    in_thread(fake, body)
