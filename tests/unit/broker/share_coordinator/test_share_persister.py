"""The persister: requests are batched, ordered by share partition, repeated for a bounded time, and end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.base.errors import ErrorCode, NothingWritten, Refused
from barnabas.base.ids import BrokerId
from barnabas.broker.runtime.share_state import SharePartitionKey, ShareState, ShareStateSummary, StateBatch
from barnabas.broker.share_coordinator import persister as module
from barnabas.broker.share_coordinator.persister import CoordinatorPersister
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.client.errors import ConnectionLost, UnsupportedVersion
from barnabas.wire.messages import delete_share_group_state as deleting
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import read_share_group_state_summary as summing
from barnabas.wire.messages import write_share_group_state as writing
from barnabas.wire.messages.base import ApiMessage
from tests.support.waiting import eventually

TOPIC = bytes(15) + b"\x07"
KEY = SharePartitionKey("g", TOPIC, 0)
RESPONSES: dict[type[ApiMessage], tuple[type[Any], type[Any], type[Any]]] = {
    writing.WriteShareGroupStateRequest: (
        writing.WriteShareGroupStateResponse,
        writing.WriteStateResult,
        writing.PartitionResult,
    ),
    reading.ReadShareGroupStateRequest: (
        reading.ReadShareGroupStateResponse,
        reading.ReadStateResult,
        reading.PartitionResult,
    ),
    summing.ReadShareGroupStateSummaryRequest: (
        summing.ReadShareGroupStateSummaryResponse,
        summing.ReadStateSummaryResult,
        summing.PartitionResult,
    ),
    initializing.InitializeShareGroupStateRequest: (
        initializing.InitializeShareGroupStateResponse,
        initializing.InitializeStateResult,
        initializing.PartitionResult,
    ),
    deleting.DeleteShareGroupStateRequest: (
        deleting.DeleteShareGroupStateResponse,
        deleting.DeleteStateResult,
        deleting.PartitionResult,
    ),
}


class World:
    """Coordinators that answer as a test says."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.metadata = MetadataCache()
        self.leader: BrokerId | None = BrokerId(1)
        self.ensured = 0
        self.timeout_ms = 5_000
        self.sent: list[tuple[BrokerId, Any]] = []
        #: Errors of the next results, in order; then there is none.
        self.errors: list[ErrorCode] = []
        #: Exceptions of the next requests, in order.
        self.failures: list[Exception] = []
        self.fields: dict[str, Any] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.omits_results = False

        def spawn(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
            task = asyncio.get_running_loop().create_task(work, name=name)
            self.tasks.append(task)
            return task

        topic = SimpleNamespace(name="__share_group_state", coordinator_of=lambda key: self.leader, ensure=self.ensure)
        self.persister = CoordinatorPersister(
            cast(InternalTopic, topic),
            self.metadata,
            send=self.send,
            spawn=spawn,
            timeout_ms=lambda: self.timeout_ms,
        )

    async def ensure(self) -> bool:
        self.ensured += 1
        return True

    def move_to(self, broker: int) -> None:
        self.leader = BrokerId(broker)
        self.metadata._notify(MetadataChange(topics=frozenset({"__share_group_state"})))

    async def send(self, broker: BrokerId, request: ApiMessage) -> ApiMessage:
        self.sent.append((broker, request))
        if self.failures:
            raise self.failures.pop(0)
        await self.may_answer.wait()
        response, topic_result, partition_result = RESPONSES[type(request)]
        results = []
        for topic in cast(Any, request).topics:
            partitions = [
                partition_result(
                    partition=each.partition,
                    error_code=self.errors.pop(0) if self.errors else ErrorCode.NONE,
                    **self.fields,
                )
                for each in topic.partitions
            ]
            results.append(topic_result(topic_id=topic.topic_id, partitions=partitions))
        return cast(ApiMessage, response(results=[] if self.omits_results else results))

    async def write(self, key: SharePartitionKey = KEY, *, start_offset: int = 0, batches: int = 0) -> None:
        await self.persister.write(
            key,
            state_epoch=1,
            leader_epoch=2,
            start_offset=start_offset,
            delivery_complete_count=3,
            batches=[StateBatch(offset, offset, 2, 1) for offset in range(batches)],
        )

    def starts(self) -> list[list[int]]:
        """Start offsets of each request."""
        return [
            [each.start_offset for topic in request.topics for each in topic.partitions] for _, request in self.sent
        ]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    assert all(task.done() and task.exception() is None for task in world.tasks)


async def test_write_has_all_fields(world: World) -> None:
    await world.write(start_offset=4, batches=1)
    [(broker, request)] = world.sent
    assert broker == 1
    assert request == writing.WriteShareGroupStateRequest(
        group_id="g",
        topics=[
            writing.WriteStateData(
                topic_id=TOPIC,
                partitions=[
                    writing.PartitionData(
                        partition=0,
                        state_epoch=1,
                        leader_epoch=2,
                        start_offset=4,
                        delivery_complete_count=3,
                        state_batches=[
                            writing.StateBatch(first_offset=0, last_offset=0, delivery_state=2, delivery_count=1)
                        ],
                    )
                ],
            )
        ],
    )


async def test_state_and_summary_are_read(world: World) -> None:
    batch = reading.StateBatch(first_offset=5, last_offset=6, delivery_state=0, delivery_count=2)
    world.fields = {"state_epoch": 3, "start_offset": 4, "state_batches": [batch]}
    assert await world.persister.read(KEY, leader_epoch=2) == ShareState(3, 4, [StateBatch(5, 6, 0, 2)])
    world.fields = {"state_epoch": 3, "leader_epoch": 2, "start_offset": 4, "delivery_complete_count": 1}
    assert await world.persister.read_summary(KEY, leader_epoch=2) == ShareStateSummary(3, 2, 4, 1)


async def test_initialize_and_delete_are_sent(world: World) -> None:
    await world.persister.initialize(KEY, state_epoch=3, start_offset=-1)
    await world.persister.delete(KEY)
    first, second = (request for _, request in world.sent)
    assert first.topics[0].partitions == [initializing.PartitionData(partition=0, state_epoch=3, start_offset=-1)]
    assert second.topics[0].partitions == [deleting.PartitionData(partition=0)]


async def test_requests_gather_while_one_is_unanswered(world: World) -> None:
    world.may_answer.clear()
    async with asyncio.TaskGroup() as writers:
        writers.create_task(world.write(start_offset=0))
        await eventually(lambda: world.sent)
        for partition in range(1, 5):
            writers.create_task(world.write(KEY._replace(partition=partition), start_offset=partition))
        writers.create_task(world.write(KEY._replace(group_id="h"), start_offset=9))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(world.sent) == 1
        world.may_answer.set()
    assert world.starts() == [[0], [1, 2, 3, 4], [9]]


async def test_writes_of_a_share_partition_keep_their_order_when_one_is_repeated(world: World) -> None:
    world.errors = [ErrorCode.NOT_COORDINATOR]
    async with asyncio.TaskGroup() as writers:
        for start_offset in range(3):
            writers.create_task(world.write(start_offset=start_offset))
    assert world.starts() == [[0], [0], [1], [2]]


async def test_request_of_another_kind_does_not_wait_for_a_write(world: World) -> None:
    world.may_answer.clear()
    async with asyncio.TaskGroup() as callers:
        callers.create_task(world.write())
        await eventually(lambda: len(world.sent) == 1)
        callers.create_task(world.persister.delete(KEY._replace(partition=1)))
        await eventually(lambda: len(world.sent) == 2)
        world.may_answer.set()


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
async def test_error_that_may_pass_is_waited_for(world: World, error: ErrorCode) -> None:
    world.errors = [error, error]
    await world.write()
    assert len(world.sent) == 3


@pytest.mark.parametrize(
    "error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.INVALID_REQUEST]
)
async def test_other_errors_are_raised_at_once(world: World, error: ErrorCode) -> None:
    world.errors = [error]
    with pytest.raises(Refused) as refused:
        await world.write()
    assert refused.value.code is error
    assert len(world.sent) == 1


async def test_lost_connection_is_not_an_error(world: World) -> None:
    world.failures = [ConnectionLost("broker 1 is gone")]
    await world.write()
    assert len(world.sent) == 2


async def test_broker_without_share_coordinator_is_an_error_at_once(world: World) -> None:
    world.failures = [UnsupportedVersion("no such API")]
    with pytest.raises(Refused) as refused:
        await world.write()
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


async def test_bug_that_wrote_nothing_is_the_callers_error(world: World) -> None:
    world.failures = [NothingWritten("a bug")]
    with pytest.raises(Refused) as refused:
        await world.write()
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_answer_without_the_share_partition_is_an_error(world: World) -> None:
    world.omits_results = True
    with pytest.raises(Refused) as refused:
        await world.write()
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_new_coordinator_is_asked_as_soon_as_the_metadata_names_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_MIN_S", 1_000.0)
    monkeypatch.setattr(module, "BACKOFF_MAX_S", 1_000.0)
    world.errors = [ErrorCode.NOT_COORDINATOR]
    async with asyncio.TaskGroup() as writers:
        writers.create_task(world.write())
        await eventually(lambda: world.sent and not world.persister._queues)
        world.move_to(2)
    assert [broker for broker, _ in world.sent] == [1, 2]


async def test_topic_is_created_for_the_first_group(world: World) -> None:
    world.leader = None
    async with asyncio.TaskGroup() as writers:
        writers.create_task(world.write())
        await eventually(lambda: world.ensured)
        world.move_to(3)
    assert [broker for broker, _ in world.sent] == [3]


async def test_attempts_end_with_the_last_error(world: World) -> None:
    world.timeout_ms = 150
    world.errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100
    with pytest.raises(Refused) as refused:
        await world.write()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_coordinator_that_does_not_answer_is_given_up(world: World) -> None:
    world.timeout_ms = 30
    world.may_answer.clear()
    with pytest.raises(Refused) as refused:
        await world.write()
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(Refused):  # gathered, and its time passes before it is sent
        await world.write(KEY._replace(partition=1))
    world.may_answer.set()
    await eventually(lambda: not world.persister._queues)
    assert len(world.sent) == 1


async def test_large_writes_go_out_in_several_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE_MAX", 10)
    world.may_answer.clear()
    async with asyncio.TaskGroup() as writers:
        writers.create_task(world.write())
        await eventually(lambda: world.sent)
        for partition in range(1, 4):
            writers.create_task(world.write(KEY._replace(partition=partition), start_offset=partition, batches=4))
        for _ in range(5):
            await asyncio.sleep(0)
        world.may_answer.set()
    assert world.starts() == [[0], [1, 2], [3]]


async def test_too_many_waiting_requests_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 1)
    world.may_answer.clear()
    async with asyncio.TaskGroup() as writers:
        writers.create_task(world.write())
        await eventually(lambda: world.sent)
        with pytest.raises(Refused, match="wait for share coordinators already"):
            await world.write(KEY._replace(partition=1))
        world.may_answer.set()


@pytest.mark.parametrize("moment", ["before", "queued"])
async def test_stopping_broker_refuses_what_was_not_sent(world: World, moment: str) -> None:
    if moment == "before":
        world.persister.close()
        with pytest.raises(Refused, match="stopping"):
            await world.write()
        assert not world.sent
        return
    world.may_answer.clear()
    async with asyncio.TaskGroup() as writers:
        writers.create_task(world.write())
        await eventually(lambda: world.sent)
        queued = writers.create_task(_refusal(lambda: world.write(KEY._replace(partition=1))))
        for _ in range(5):
            await asyncio.sleep(0)
        world.persister.close()
        assert "stopping" in str(await queued)
        world.may_answer.set()


async def _refusal(work: Callable[[], Coroutine[Any, Any, None]]) -> Refused:
    with pytest.raises(Refused) as refused:
        await work()
    return refused.value
