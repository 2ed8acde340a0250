"""Partitions in Metadata answers are packed by hand and kept: the bytes are those of the message, and never old."""

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId
from barnabas.broker.api.metadata import MetadataApi
from barnabas.broker.api.metadata_encoding import KNOWN_BYTES_MAX, KnownAnswers, Question, encoded_partitions
from barnabas.broker.server.call import Call
from barnabas.broker.server.handler import handlers_of
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.wire.codec import decode, encode
from barnabas.wire.frame import parse_response_header
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

VERSIONS = range(MetadataResponse.MIN_VERSION, MetadataResponse.MAX_VERSION + 1)


def broker(number: int, *listeners: str) -> UpdateMetadataBroker:
    endpoints = [UpdateMetadataEndpoint(port=9000, host="h", listener=each, security_protocol=0) for each in listeners]
    return UpdateMetadataBroker(id=number, endpoints=endpoints)


def state(number: int, leader: int, offline: tuple[int, ...] = ()) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=number,
        leader=leader,
        leader_epoch=7 + number,
        isr=[leader],
        replicas=[1, 2, 3],
        offline_replicas=list(offline),
    )


def cache_of(*states: UpdateMetadataPartitionState, brokers: tuple[UpdateMetadataBroker, ...]) -> MetadataCache:
    cache = MetadataCache()
    change(cache, *states, brokers=brokers)
    return cache


def change(
    cache: MetadataCache, *states: UpdateMetadataPartitionState, brokers: tuple[UpdateMetadataBroker, ...]
) -> None:
    topics = [UpdateMetadataTopicState(topic_name="t", topic_id=bytes(range(16)), partition_states=list(states))]
    cache.update(
        UpdateMetadataRequest(controller_id=1, topic_states=topics if states else [], live_brokers=list(brokers))
    )


def partitions_for(cache: MetadataCache, version: int, listener: str = "IN") -> list[MetadataResponsePartition]:
    """As a client of this version reads it."""
    image = cache.topics["t"]
    topic = MetadataResponseTopic(name="t", topic_id=TopicId(bytes(range(16))))
    topic.partitions = encoded_partitions(cache, image, listener, version)
    response = decode(MetadataResponse, encode(MetadataResponse(topics=[topic]), version), version)
    return response.topics[0].partitions


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gets_errors_that_it_understands(version: int) -> None:
    # Broker 3 is dead, 2 has no such listener, and 1 lost the directory of partition 2.
    cache = cache_of(state(0, 1), state(1, 2), state(2, 3, offline=(1,)), brokers=(broker(1, "IN"), broker(2, "OTHER")))
    unreachable = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    expected = []
    for number, (error, leader, offline) in enumerate(
        [(0, 1, [3]), (unreachable, -1, [3]), (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1, 3])]
    ):
        expected.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=number,
                leader_id=leader,
                leader_epoch=7 + number if version >= 7 else -1,
                replica_nodes=[1, 2, 3],
                isr_nodes=[number + 1],
                offline_replicas=offline if version >= 5 else [],
            )
        )
    assert partitions_for(cache, version) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_many_replicas_and_partitions_have_long_counts(version: int) -> None:
    wide = state(0, 1)
    wide.replicas = wide.isr = list(range(1, 201))
    cache = cache_of(wide, *(state(number, 1) for number in range(1, 300)), brokers=(broker(1, "IN"),))
    partitions = partitions_for(cache, version)
    assert len(partitions) == 300
    assert partitions[0].replica_nodes == partitions[0].isr_nodes == list(range(1, 201))


def test_answer_is_encoded_once_until_something_changes() -> None:
    cache = cache_of(state(0, 1), state(1, 1), brokers=(broker(1, "IN"), broker(2, "IN")))
    image = cache.topics["t"]
    first = encoded_partitions(cache, image, "IN", 12)
    assert encoded_partitions(cache, image, "IN", 12) is first
    assert encoded_partitions(cache, image, "IN", 9) is not first
    assert encoded_partitions(cache, image, "OUT", 12) is not first
    change(cache, state(1, 2), brokers=(broker(1, "IN"), broker(2, "IN")))
    assert [each.leader_id for each in partitions_for(cache, 12)] == [1, 2]


def test_dead_broker_is_not_leader_in_cached_answers() -> None:
    cache = cache_of(state(0, 1), brokers=(broker(1, "IN"), broker(2, "IN"), broker(3, "IN")))
    assert [(each.leader_id, each.offline_replicas) for each in partitions_for(cache, 12)] == [(1, [])]
    change(cache, brokers=(broker(2, "IN"),))
    assert [(each.leader_id, each.offline_replicas) for each in partitions_for(cache, 12)] == [(-1, [1, 3])]


class Asker:
    """A client of a broker that knows the topics of a cache."""

    def __init__(self, cache: MetadataCache) -> None:
        self.hidden: set[str] = set()
        self.calls = 0
        context: Any = SimpleNamespace(
            metadata=cache,
            cluster_id="cluster",
            config=SimpleNamespace(auto_create_topics_enable=True),
            shows=lambda call, operation, resource, name: name not in self.hidden,
            allows_topic=lambda call, operation, name: name not in self.hidden,
        )
        (self._handler,) = [each for each in handlers_of(MetadataApi(context)) if each.name == "Metadata"]

    def ask(self, *topics: str, version: int = 12, listener: str = "IN") -> MetadataResponse:
        self.calls += 1
        frames: list[bytearray] = []
        channel: Any = SimpleNamespace(
            listener_name=listener, answered=lambda call: frames.append(bytearray().join(call.parts))
        )
        call = Call(channel, self._handler, version, self.calls, None, 0.0)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=each) for each in topics])
        result = self._handler.execute(call, request)
        if result is not None:
            assert isinstance(result, MetadataResponse)
            call.reply(result)
        (frame,) = frames
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, at = parse_response_header(MetadataResponse.API_KEY, version, frame, 4)
        assert correlation_id == self.calls
        return decode(MetadataResponse, frame, version, at)


@pytest.mark.parametrize("version", VERSIONS)
def test_answer_that_is_known_is_the_same(version: int) -> None:
    asker = Asker(cache_of(state(0, 1), state(1, 2), brokers=(broker(1, "IN"), broker(2, "IN"))))
    first = asker.ask("t", version=version)
    assert [each.leader_id for each in first.topics[0].partitions] == [1, 2]
    assert asker.ask("t", version=version) == first
    assert asker.ask("t", version=version, listener="OUT") != first


def test_known_answer_ends_with_the_state_of_the_metadata() -> None:
    cache = cache_of(state(0, 1), brokers=(broker(1, "IN"), broker(2, "IN")))
    asker = Asker(cache)
    assert asker.ask("t").topics[0].partitions[0].leader_id == 1
    change(cache, state(0, 2), brokers=(broker(1, "IN"), broker(2, "IN")))
    assert asker.ask("t").topics[0].partitions[0].leader_id == 2
    change(cache, brokers=(broker(2, "IN"),))
    assert [each.node_id for each in asker.ask("t").brokers] == [2]


def test_known_answer_is_not_for_a_client_that_may_not_see_the_topic_any_more() -> None:
    asker = Asker(cache_of(state(0, 1), brokers=(broker(1, "IN"),)))
    assert asker.ask("t").topics[0].error_code == ErrorCode.NONE
    asker.hidden.add("t")
    refused = asker.ask("t").topics[0]
    assert (refused.error_code, refused.partitions) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
    asker.hidden.clear()
    assert asker.ask("t").topics[0].partitions


def test_known_answers_are_bounded() -> None:
    cache = cache_of(state(0, 1), brokers=(broker(1, "IN"),))
    known = KnownAnswers(cache)
    answer = bytearray(100_000)
    for number in range(100):
        known.keep(Question(12, "IN", (f"t{number}",)), answer)
    kept = sum(known.get(Question(12, "IN", (f"t{number}",))) is not None for number in range(100))
    assert 30 <= kept * len(answer) // 100_000 <= KNOWN_BYTES_MAX // len(answer)
