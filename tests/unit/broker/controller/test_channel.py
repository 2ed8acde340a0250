"""The controller's channel to one broker."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.channel import BrokerChannel
from barnabas.broker.controller.effects import (
    LeaderAndIsrState,
    MetadataState,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    StopReplicaState,
)
from barnabas.broker.controller.events import (
    AnswerEvent,
    LeaderAndIsrAnswered,
    StopReplicaAnswered,
    UpdateMetadataAnswered,
)
from barnabas.broker.controller.lifeline import REFUSALS
from barnabas.broker.controller.wire import Translator
from barnabas.broker.zookeeper_client.znodes import (
    LEADER_DURING_DELETE,
    BrokerRegistration,
    Endpoint,
    LeaderAndIsr,
    ReplicaAssignment,
)
from barnabas.client.errors import ConnectionLost, ConnectionRefused
from barnabas.wire import codec
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tests.support.waiting import eventually

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID = TopicId(bytes(range(16)))
OTHER_ID = TopicId(bytes(range(1, 17)))
BROKER = BrokerRegistration(
    2, (Endpoint("IN", "SASL_SSL", "h", 9093), Endpoint("OUT", "PLAINTEXT", "h", 9092)), rack="r"
)
LEADERSHIP = LeaderAndIsr(2, (2, 3), leader_epoch=5, partition_epoch=7, controller_epoch=4)


def leader_and_isr(*partitions: TopicPartition) -> SendLeaderAndIsr:
    state = LeaderAndIsrState(LEADERSHIP, ReplicaAssignment((2, 3), adding=(3,)), is_new=True)
    return SendLeaderAndIsr(1, 11, 4, dict.fromkeys(partitions, state), {"t": ID}, (BROKER,))


def metadata(partition: TopicPartition, leader: int) -> SendUpdateMetadata:
    state = MetadataState(4, leader, 5, (2, 3), 7, (2, 3), (3,))
    return SendUpdateMetadata({1: 11, 2: 12}, 4, {partition: state}, {"t": ID}, (BROKER,))


def stop() -> SendStopReplica:
    return SendStopReplica(1, 11, 4, {P0: StopReplicaState(5, delete=True), P1: StopReplicaState(6, delete=False)})


class Peer:
    """A broker at the other end, whose connections fail as often as a test asks."""

    def __init__(self) -> None:
        self.received: list[ApiMessage] = []
        self.failures = 0
        self.refused_connections = 0
        self.connections = 0
        self.error = ErrorCode.NONE
        #: Failures of the next connections, in order.
        self.outcomes: list[ConnectionLost] = []
        self.attempts = 0
        self.end: Callable[[], None] = lambda: None

    async def connect(self, broker_id: int, endpoint: Endpoint) -> "Peer":
        self.attempts += 1
        if self.outcomes:
            raise self.outcomes.pop(0)
        if self.refused_connections:
            self.refused_connections -= 1
            raise ConnectionLost("refused")
        self.connections += 1
        return self

    async def request(
        self, message: ApiMessage, response_type: None = None, *, version: int | None = None, timeout_ms: int = 0
    ) -> ApiMessage:
        assert version is not None
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("broken")
        self.received.append(codec.decode(type(message), codec.encode(message, version), version))
        match message:
            case LeaderAndIsrRequest():
                errors = [LeaderAndIsrPartitionError(partition_index=1, error_code=56)]
                return LeaderAndIsrResponse(topics=[LeaderAndIsrTopicError(topic_id=ID, partition_errors=errors)])
            case UpdateMetadataRequest():
                return UpdateMetadataResponse(error_code=77)
        failed = StopReplicaPartitionError(topic_name="t", partition_index=0, error_code=9999)
        if self.error is ErrorCode.NONE:
            return StopReplicaResponse(partition_errors=[failed])
        return StopReplicaResponse(error_code=self.error)

    def on_closed(self, callback: Callable[[], None]) -> None:
        self.end = callback

    def close(self) -> None:
        return None


class Line:
    def __init__(self, peer: Peer) -> None:
        self.events: list[AnswerEvent] = []
        self.refused = asyncio.Event()
        self.channel = BrokerChannel(
            1,
            11,
            Endpoint("IN", "PLAINTEXT", "h", 1),
            controller_id=9,
            connect=peer.connect,
            translator=Translator(9, "IN"),
            on_answer=self.events.append,
            on_refused=self.refused.set,
            request_timeout_ms=1000,
        )

    async def answers(self, count: int) -> list[AnswerEvent]:
        task = asyncio.ensure_future(self.channel.run())
        await eventually(lambda: len(self.events) >= count)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self.events


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story

    asyncio.run(bounded())


async def test_requests_are_sent_in_order_and_their_answers_come_back_as_events() -> None:
    peer = Peer()
    line = Line(peer)
    line.channel.put(leader_and_isr(P0, P1))
    line.channel.put(metadata(P0, 2))
    line.channel.put(stop())
    events = await line.answers(3)
    assert events == [
        LeaderAndIsrAnswered(1, 11, ErrorCode.NONE, {P1: ErrorCode.KAFKA_STORAGE_ERROR}),
        UpdateMetadataAnswered(1, ErrorCode.STALE_BROKER_EPOCH),
        # The answer has only partitions to delete; a code without a name becomes an unknown error.
        StopReplicaAnswered(1, 11, ErrorCode.NONE, {P0: ErrorCode.UNKNOWN_SERVER_ERROR}),
    ]
    assert peer.connections == 1


async def test_messages_have_the_values_of_the_machines_effects() -> None:
    peer = Peer()
    line = Line(peer)
    line.channel.put(leader_and_isr(P0))
    line.channel.put(metadata(P0, 2))
    line.channel.put(stop())
    await line.answers(3)
    leaders, news, stopping = peer.received
    assert isinstance(leaders, LeaderAndIsrRequest)
    assert (leaders.controller_id, leaders.controller_epoch, leaders.broker_epoch) == (9, 4, 11)
    [topic] = leaders.topic_states
    assert (topic.topic_name, topic.topic_id) == ("t", ID)
    [state] = topic.partition_states
    assert (state.leader, state.leader_epoch, state.partition_epoch, state.isr) == (2, 5, 7, [2, 3])
    assert (state.replicas, state.adding_replicas, state.is_new) == ([2, 3], [3], True)
    # Leaders are named with the listener on which followers reach them.
    assert [(each.broker_id, each.port) for each in leaders.live_leaders] == [(2, 9093)]

    assert isinstance(news, UpdateMetadataRequest)
    assert news.broker_epoch == 11
    [broker] = news.live_brokers
    assert [(each.listener, each.security_protocol) for each in broker.endpoints] == [("IN", 3), ("OUT", 0)]
    assert broker.rack == "r"
    assert news.topic_states[0].partition_states[0].offline_replicas == [3]

    assert isinstance(stopping, StopReplicaRequest)
    states = stopping.topic_states[0].partition_states
    assert [(each.partition_index, each.leader_epoch, each.delete_partition) for each in states] == [
        (0, 5, True),
        (1, 6, False),
    ]


async def test_request_is_retried_until_the_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.controller.lifeline.RETRY_BACKOFF_S", 0)

    peer = Peer()
    peer.refused_connections = 2
    peer.failures = 3
    line = Line(peer)
    line.channel.put(leader_and_isr(P0))
    line.channel.put(stop())
    await line.answers(2)
    assert [type(each) for each in peer.received] == [LeaderAndIsrRequest, StopReplicaRequest]
    # A failed connection is not used again.
    assert peer.connections == 4


async def test_queued_metadata_is_merged_and_the_latest_wins() -> None:
    peer = Peer()
    line = Line(peer)
    line.channel.put(leader_and_isr(P0))
    line.channel.put(metadata(P0, 2))
    line.channel.put(metadata(P1, 2))
    line.channel.put(metadata(P0, 3))
    await line.answers(2)
    news = peer.received[1]
    assert isinstance(news, UpdateMetadataRequest)
    leaders = {each.partition_index: each.leader for each in news.topic_states[0].partition_states}
    assert leaders == {0: 3, 1: 2}


async def test_deletion_of_a_topic_is_not_merged_into_the_metadata_of_its_successor() -> None:
    peer = Peer()
    line = Line(peer)
    line.channel.put(leader_and_isr(P0))
    line.channel.put(metadata(P0, LEADER_DURING_DELETE))
    line.channel.put(metadata(P1, LEADER_DURING_DELETE))
    line.channel.put(replace(metadata(P0, 3), topic_ids={"t": OTHER_ID}))
    line.channel.put(replace(metadata(P1, 3), topic_ids={"t": OTHER_ID}))
    await line.answers(3)
    sent = []
    for news in peer.received[1:]:
        assert isinstance(news, UpdateMetadataRequest)
        [topic] = news.topic_states
        sent.append((topic.topic_id, [(each.partition_index, each.leader) for each in topic.partition_states]))
    assert sent == [
        (ID, [(0, LEADER_DURING_DELETE), (1, LEADER_DURING_DELETE)]),
        (OTHER_ID, [(0, 3), (1, 3)]),
    ], "coordinators forget the offsets of the former topic by its end"


async def test_error_of_a_whole_request_applies_to_each_partition() -> None:
    peer = Peer()
    peer.error = ErrorCode.STALE_CONTROLLER_EPOCH
    line = Line(peer)
    line.channel.put(stop())
    [event] = await line.answers(1)
    assert event == StopReplicaAnswered(1, 11, ErrorCode.STALE_CONTROLLER_EPOCH, {P0: ErrorCode.STALE_CONTROLLER_EPOCH})


REFUSED = ConnectionRefused("cannot connect to h:1: Connection refused")


async def test_broker_whose_port_refuses_every_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.controller.lifeline.RETRY_BACKOFF_S", 0)

    peer = Peer()
    line = Line(peer)
    line.channel.put(stop())
    await line.answers(1)
    assert not line.refused.is_set()
    peer.outcomes = [REFUSED] * 100
    line.channel.put(stop())
    task = asyncio.ensure_future(line.channel.run())
    await line.refused.wait()
    assert peer.attempts == 1 + REFUSALS
    task.cancel()


async def test_end_of_an_idle_connection_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.controller.lifeline.RETRY_BACKOFF_S", 0)

    peer = Peer()
    line = Line(peer)
    task = asyncio.ensure_future(line.channel.run())
    line.channel.put(stop())
    while not line.events:
        await asyncio.sleep(0)
    peer.outcomes = [REFUSED] * REFUSALS
    peer.end()
    await line.refused.wait()
    # The channel tries again: the next attempt succeeds, and the channel works as before.
    while peer.connections < 2:
        await asyncio.sleep(0)
    line.channel.put(stop())
    while len(line.events) < 2:
        await asyncio.sleep(0)
    assert peer.connections == 2
    task.cancel()


async def test_request_that_comes_during_a_reconnect_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.controller.lifeline.RETRY_BACKOFF_S", 0.001)

    peer = Peer()
    line = Line(peer)
    task = asyncio.ensure_future(line.channel.run())
    line.channel.put(stop())
    while not line.events:
        await asyncio.sleep(0)
    peer.outcomes = [ConnectionLost("cut")] * 20
    peer.end()
    while len(peer.outcomes) > 10:
        await asyncio.sleep(0)
    line.channel.put(stop())
    while len(line.events) < 2:
        await asyncio.sleep(0)
    task.cancel()


async def test_only_consecutive_refusals_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut connection or a dead host says nothing about the process."""
    monkeypatch.setattr("barnabas.broker.controller.lifeline.RETRY_BACKOFF_S", 0)

    peer = Peer()
    silent = ConnectionLost("h:1 did not accept a connection within 10 ms")
    peer.outcomes = ([REFUSED] * (REFUSALS - 1) + [silent]) * 5
    line = Line(peer)
    line.channel.put(stop())
    await line.answers(1)
    assert not line.refused.is_set()
