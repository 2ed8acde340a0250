"""Markers: grouped by leader, sent again until every partition has one, and never after the coordinator has moved."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.transactions import markers as markers_module
from barnabas.broker.transactions.machine import SendMarkers
from barnabas.broker.transactions.markers import MarkerSender
from barnabas.broker.transactions.state import Identity
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.manual_time import ManualClock, ManualTimers
from tests.support.async_fixture import async_fixture
from tests.unit.broker.transactions.txn_harness import A0, A1, B0

PRODUCER = Identity(7, 3)
COORDINATOR = 4


class World:
    """Leaders, the requests that they get, and their answers."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.leaders: dict[TopicPartition, int] = {A0: 1, A1: 1, B0: 2}
        self.epochs: dict[int, int] = {COORDINATOR: 9}
        self.sent: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.errors: dict[TopicPartition, list[ErrorCode]] = {}
        self.lost = 0
        #: Partitions that exist, although this broker's metadata does not have them.
        self.unheard_of: set[TopicPartition] = set()
        self.zookeeper_is_away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.completed: list[tuple[int, str, Identity]] = []
        self.refusals: list[ErrorCode] = []
        self.bugs: list[BaseException] = []

        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.tasks: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None], name: str) -> object:
            self.tasks.append(tasks.create_task(work, name=name))
            return self.tasks[-1]

        self.sender = MarkerSender(
            self,
            coordinator_epoch=self.epochs.get,
            send=self.send,
            complete=self.complete,
            exists=self.exists,
            timers=self.timers,
            spawn=spawn,
            on_bug=self.bugs.append,
        )

    def leader_of(self, partition: TopicPartition) -> BrokerId | None:
        leader = self.leaders.get(partition)
        return None if leader is None else BrokerId(leader)

    async def exists(self, partition: TopicPartition) -> bool:
        if self.zookeeper_is_away:
            raise Refused(ErrorCode.NETWORK_EXCEPTION)
        return partition in self.leaders or partition in self.unheard_of

    async def send(self, broker: BrokerId, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.sent.append((broker, request))
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.lost:
            self.lost -= 1
            raise Refused(ErrorCode.NETWORK_EXCEPTION)
        response = WriteTxnMarkersResponse()
        for marker in request.markers:
            result = WritableTxnMarkerResult(producer_id=marker.producer_id)
            response.markers.append(result)
            for topic in marker.topics:
                answers = WritableTxnMarkerTopicResult(name=topic.name)
                result.topics.append(answers)
                for number in topic.partition_indexes:
                    errors = self.errors.get(TopicPartition(topic.name, number))
                    code = errors.pop(0) if errors else ErrorCode.NONE
                    answers.partitions.append(WritableTxnMarkerPartitionResult(partition_index=number, error_code=code))
        return response

    async def complete(self, partition: int, transactional_id: str, identity: Identity) -> None:
        await asyncio.sleep(0)
        if self.refusals:
            raise Refused(self.refusals.pop(0))
        self.completed.append((partition, transactional_id, identity))

    def decide(self, *partitions: TopicPartition, transactional_id: str = "t") -> None:
        self.sender.start(COORDINATOR, SendMarkers(transactional_id, PRODUCER, True, partitions, 2))

    async def all_sent(self) -> None:
        """Wait until every request in flight has been answered."""
        while pending := [task for task in self.tasks if not task.done()]:
            await asyncio.wait(pending, timeout=60)
        assert self.bugs == []

    async def settled(self) -> None:
        """Wait until every marker is written, with as many retries as necessary."""
        async with asyncio.timeout(60):
            while len(self.sender):
                await self.all_sent()
                self.timers.advance_ms(markers_module.RETRY_BACKOFF_MS)
                await asyncio.sleep(0)
        assert self.bugs == []


@async_fixture
async def world() -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        yield World(tasks)


async def test_one_request_for_each_leader_then_the_completion(world: World) -> None:
    world.decide(A0, A1, B0)
    await world.settled()
    assert [broker for broker, _ in world.sent] == [1, 2]
    [marker] = world.sent[0][1].markers
    assert (marker.producer_id, marker.producer_epoch) == PRODUCER
    assert marker.coordinator_epoch == 9
    assert marker.transaction_result
    assert marker.transaction_version == 2
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("a", [0, 1])]
    assert world.completed == [(COORDINATOR, "t", PRODUCER)]


async def test_transactions_that_are_decided_meanwhile_share_a_request(world: World) -> None:
    world.gate.clear()
    for number in range(5):
        world.decide(A0, transactional_id=f"t{number}")
        await asyncio.sleep(0)
    world.gate.set()
    await world.settled()
    assert [len(request.markers) for _, request in world.sent] == [1, 4]
    assert len(world.completed) == 5


async def test_a_transaction_without_partitions_is_complete_at_once(world: World) -> None:
    world.decide()
    await world.settled()
    assert world.sent == []
    assert len(world.completed) == 1


async def test_a_marker_follows_the_leader(world: World) -> None:
    world.errors[A0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.gate.clear()
    world.decide(A0, A1)
    await asyncio.sleep(0)
    world.leaders[A0] = 3
    world.gate.set()
    await world.settled()
    assert [(broker, request.markers[0].topics[0].partition_indexes) for broker, request in world.sent] == [
        (1, [0, 1]),
        (3, [0]),
    ]


async def test_a_leader_that_does_not_answer_is_asked_again(world: World) -> None:
    world.lost = 3
    world.decide(A0)
    await world.settled()
    assert len(world.sent) == 4
    assert len(world.completed) == 1


async def test_a_partition_without_a_leader_waits_for_one(world: World) -> None:
    world.leaders[A0] = -1
    world.decide(A0)
    await asyncio.sleep(0)
    assert world.sent == []
    world.leaders[A0] = 2
    world.sender.metadata_changed()
    await world.settled()
    assert [broker for broker, _ in world.sent] == [2]


async def test_a_deleted_partition_needs_no_marker(world: World) -> None:
    world.errors[A0] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    world.gate.clear()
    world.decide(A0, B0)
    await asyncio.sleep(0)
    del world.leaders[A0]
    world.gate.set()
    await world.settled()
    assert len(world.completed) == 1


@pytest.mark.parametrize("zookeeper_is_away", [False, True])
async def test_a_partition_that_this_broker_does_not_know_yet_gets_its_marker(
    world: World, zookeeper_is_away: bool
) -> None:
    """Its readers would wait forever without the marker. A broker that has just started learns of its own partitions first."""

    leader = world.leaders.pop(B0)
    world.unheard_of.add(B0)
    world.zookeeper_is_away = zookeeper_is_away
    world.decide(A0, B0)
    await world.all_sent()
    assert world.completed == []
    world.leaders[B0] = leader
    world.sender.metadata_changed()
    await world.settled()
    assert {TopicPartition(topic.name, number) for _, request in world.sent for marker in request.markers
            for topic in marker.topics for number in topic.partition_indexes} == {A0, B0}  # fmt: skip
    assert len(world.completed) == 1


async def test_a_coordinator_that_was_replaced_sends_nothing_more_and_completes_nothing(world: World) -> None:
    world.gate.clear()
    world.decide(A0)
    await asyncio.sleep(0)
    world.decide(A1, transactional_id="u")
    world.epochs.clear()
    world.sender.forget(COORDINATOR)
    world.gate.set()
    await world.all_sent()
    world.timers.advance_ms(60_000)
    await world.all_sent()
    assert len(world.sent) == 1
    assert world.completed == []


async def test_markers_refused_because_of_a_newer_coordinator_are_dropped(world: World) -> None:
    world.errors[A0] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    world.decide(A0)
    await world.settled()
    assert world.completed == [], "this coordinator is the zombie"


async def test_a_marker_of_an_earlier_epoch_of_ours_is_sent_again_with_the_new_one(world: World) -> None:
    world.errors[A0] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    world.gate.clear()
    world.decide(A0)
    await asyncio.sleep(0)
    world.epochs[COORDINATOR] = 10
    world.gate.set()
    await world.settled()
    assert [request.markers[0].coordinator_epoch for _, request in world.sent] == [9, 10]
    assert len(world.completed) == 1


async def test_a_completion_that_cannot_be_written_is_tried_again(world: World) -> None:
    world.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.decide(A0)
    await world.settled()
    assert len(world.completed) == 1


async def test_a_completion_is_left_to_the_next_coordinator(world: World) -> None:
    world.refusals = [ErrorCode.NOT_COORDINATOR]
    world.decide(A0)
    await world.settled()
    assert world.completed == []
