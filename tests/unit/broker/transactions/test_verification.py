"""Verification (KIP-890): the questions to coordinators, and the errors for producers."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from barnabas.base.config.catalog import BROKER_SETTINGS
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.storage.producer_append import AppendOrigin
from barnabas.broker.storage.producer_state import EndTxnMarker, ProducerStateManager
from barnabas.broker.transactions.state import Identity
from barnabas.broker.transactions.verification import Asked, Verified, Verifier
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from barnabas.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from tests.support.async_fixture import async_fixture
from tests.unit.broker.transactions.txn_harness import A0, A1, B0

PRODUCER = Identity(7, 3)


class FakeLog:
    """The parts of a log that a verifier uses."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.producers = ProducerStateManager(partition, transaction_verification=True)
        self.end = 0

    def append(self, identity: Identity, sequence: int, guard: object | None) -> None:
        header = batch(identity, self.end, sequence)
        for each in self.producers.analyze([(header, None)], AppendOrigin.CLIENT, guard).appends:
            self.producers.update(each)
        self.end += 1

    def mark(self, identity: Identity) -> None:
        header = batch(identity, self.end, -1, TRANSACTIONAL_FLAG | CONTROL_FLAG)
        plan = self.producers.analyze([(header, EndTxnMarker(True, 0, 0))], AppendOrigin.COORDINATOR)
        for each in plan.appends:
            self.producers.update(each)
        for ended in plan.completed:
            self.producers.complete_txn(ended)
        self.end += 1


def batch(identity: Identity, offset: int, sequence: int, flags: int = TRANSACTIONAL_FLAG) -> BatchHeader:
    return BatchHeader(offset, 61, 0, 2, 0, flags, 0, 0, 0, identity.producer_id, identity.epoch, sequence, 1)


class Coordinator:
    """Gives the answers that a test sets, and records its questions."""

    def __init__(self) -> None:
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.errors: dict[TopicPartition, list[ErrorCode]] = {}
        self.error_code = ErrorCode.NONE
        self.failure: Exception | None = None
        self.is_old = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, broker: BrokerId, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
        assert broker == 5
        self.asked.append(request)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if self.is_old:
            return None
        response = AddPartitionsToTxnResponse(error_code=self.error_code)
        for transaction in request.transactions:
            result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
            response.results_by_transaction.append(result)
            for topic in transaction.topics:
                answers = AddPartitionsToTxnTopicResult(name=topic.name)
                result.topic_results.append(answers)
                for number in topic.partitions:
                    errors = self.errors.get(TopicPartition(topic.name, number))
                    code = (errors.pop(0) if len(errors) > 1 else errors[0]) if errors else ErrorCode.NONE
                    answers.results_by_partition.append(
                        AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                    )
        return response


class World:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.coordinator = Coordinator()
        self.has_coordinator = True
        self.logs = {partition: FakeLog(partition) for partition in (A0, A1, B0)}
        self.pauses: list[float] = []

        def spawn(work: Coroutine[Any, Any, None], name: str) -> object:
            return tasks.create_task(work, name=name)

        async def pause(delay_s: float) -> None:
            self.pauses.append(delay_s)

        self.verifier = Verifier(
            coordinator_of=lambda transactional_id: BrokerId(5) if self.has_coordinator else None,
            ask=self.coordinator.ask,
            now_ms=lambda: 0,
            spawn=spawn,
            pause=pause,
        )

    async def verify(
        self, *partitions: TopicPartition, asked: Asked = Asked.VERIFY, sequence: int = 0, name: str = "t"
    ) -> list[Verified]:
        wanted: Any = [(self.logs[partition], sequence) for partition in partitions]
        return await self.verifier.verify(name, PRODUCER, wanted, asked)


@async_fixture
async def world() -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        yield World(tasks)


async def test_only_the_first_batch_of_a_transaction_needs_it(world: World) -> None:
    log = world.logs[A0]

    def needs(producers: ProducerStateManager, header: BatchHeader) -> bool:
        return world.verifier.must_ask(producers, header, Asked.VERIFY)

    assert needs(log.producers, batch(PRODUCER, 0, 0))
    assert not needs(log.producers, batch(PRODUCER, 0, 0, flags=0)), "idempotent, without a transaction"
    assert not needs(log.producers, batch(Identity(-1, -1), 0, -1, flags=0))
    [verdict] = await world.verify(A0)
    log.append(PRODUCER, 0, verdict.guard)
    assert not needs(log.producers, batch(PRODUCER, 0, 1))
    assert needs(log.producers, batch(Identity(7, 4), 0, 0)), "the next transaction of a producer that raises epochs"
    log.mark(PRODUCER)
    assert needs(log.producers, batch(PRODUCER, 0, 1))


@pytest.mark.parametrize("asked", Asked)
async def test_the_setting_turns_off_verification_and_never_the_adding(world: World, asked: Asked) -> None:
    log: Any = world.logs[A0]
    log.producers.transaction_verification = False
    is_added = asked is Asked.ADD
    assert world.verifier.must_ask(log.producers, batch(PRODUCER, 0, 0), asked) is is_added
    await world.verifier.verify_offsets("t", PRODUCER, log, asked)
    assert len(world.coordinator.asked) == is_added


async def test_a_confirmed_partition_may_be_appended_to_with_its_guard(world: World) -> None:
    first, second = await world.verify(A0, B0)
    assert first.error is second.error is ErrorCode.NONE
    world.logs[A0].append(PRODUCER, 0, first.guard)
    with pytest.raises(Refused, match="INVALID_TXN_STATE"):
        world.logs[B0].append(PRODUCER, 0, first.guard)
    [request] = world.coordinator.asked
    [transaction] = request.transactions
    assert transaction.verify_only
    assert transaction.transactional_id == "t"
    assert (transaction.producer_id, transaction.producer_epoch) == PRODUCER


async def test_a_marker_between_confirmation_and_append_makes_the_guard_worthless(world: World) -> None:
    [verdict] = await world.verify(A0)
    world.logs[A0].mark(PRODUCER)
    with pytest.raises(Refused, match="INVALID_TXN_STATE"):
        world.logs[A0].append(PRODUCER, 0, verdict.guard)


async def test_the_same_question_is_asked_once_while_it_is_in_flight(world: World) -> None:
    world.coordinator.gate.clear()
    waiting = [asyncio.ensure_future(world.verify(A0, sequence=number)) for number in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.coordinator.gate.set()
    verdicts = await asyncio.gather(*waiting)
    assert len(world.coordinator.asked) == 1
    assert len({id(verdict.guard) for [verdict] in verdicts}) == 1
    await world.verify(A0)
    assert len(world.coordinator.asked) == 2, "an old answer need not be true any more"


async def test_an_answer_from_before_a_marker_confirms_no_batch_that_came_after_it(world: World) -> None:
    world.coordinator.gate.clear()
    world.coordinator.errors[A0] = [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    first = asyncio.ensure_future(world.verify(A0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.logs[A0].mark(PRODUCER)
    second = asyncio.ensure_future(world.verify(A0))
    await asyncio.sleep(0)
    world.coordinator.gate.set()
    for late in (first, second):
        [verdict] = await late
        assert verdict.error is ErrorCode.INVALID_TXN_STATE


async def test_questions_to_one_coordinator_share_a_request(world: World) -> None:
    world.coordinator.gate.clear()
    waiting = [asyncio.ensure_future(world.verify(A0, name=name)) for name in ("t", "u", "v")]
    waiting.append(asyncio.ensure_future(world.verify(B0, name="u")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.coordinator.gate.set()
    await asyncio.gather(*waiting)
    asked = [[each.transactional_id for each in request.transactions] for request in world.coordinator.asked]
    assert asked == [["t", "u", "v"], ["u"]], "a transactional id comes once in a request"


@pytest.mark.parametrize(
    ("asked", "error", "heard"),
    [
        (Asked.VERIFY, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (Asked.VERIFY_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (Asked.VERIFY, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Asked.ADD, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Asked.VERIFY, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Asked.VERIFY, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Asked.ADD, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (Asked.VERIFY, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Asked.VERIFY, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Asked.ADD, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        # The coordinator does not know another partition of the request yet: that is no reason to abort.
        (Asked.ADD, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_error_that_a_producer_gets(world: World, asked: Asked, error: ErrorCode, heard: ErrorCode) -> None:
    world.coordinator.errors[A0] = [error]
    bad, good = await world.verify(A0, A1, asked=asked)
    assert bad.error is heard
    assert bad.guard is None
    assert good.error is ErrorCode.NONE


async def test_no_request_has_more_questions_than_a_coordinator_takes(world: World) -> None:
    """While the coordinator was unreachable, every producer asked. All in one request would be refused for all."""

    world.coordinator.gate.clear()
    producers = 5_000
    async with asyncio.TaskGroup() as asking:
        tasks = [asking.create_task(world.verify(A0, name=f"t{number}")) for number in range(producers)]
        while not world.coordinator.asked:
            await asyncio.sleep(0)
        world.coordinator.gate.set()
    assert all(verdict.error is ErrorCode.NONE for task in tasks for verdict in task.result())
    sizes = [len(request.transactions) for request in world.coordinator.asked]
    assert sum(sizes) == producers
    # A transaction, its topic and its partition: three elements each.
    assert max(sizes) * 3 <= BROKER_SETTINGS["barnabas.request.max.elements"].default


async def test_a_partition_that_is_to_be_added_waits_for_the_transaction_before_it(world: World) -> None:
    world.coordinator.errors[A0] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3 + [ErrorCode.NONE]
    [verdict] = await world.verify(A0, asked=Asked.ADD)
    assert verdict.error is ErrorCode.NONE
    assert len(world.pauses) == 3
    assert not world.coordinator.asked[0].transactions[0].verify_only


async def test_a_marker_that_comes_while_the_coordinator_is_asked_costs_a_second_question_and_nothing_else(
    world: World,
) -> None:
    world.coordinator.gate.clear()
    waiting = asyncio.ensure_future(world.verify(A0, asked=Asked.ADD))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.logs[A0].mark(Identity(7, 3))
    world.coordinator.gate.set()
    [verdict] = await waiting
    assert verdict.error is ErrorCode.NONE
    assert len(world.coordinator.asked) == 2
    assert world.pauses == [], "the marker is written: there is nothing to wait for"
    world.logs[A0].append(PRODUCER, 0, verdict.guard)


async def test_no_coordinator_and_no_answer_are_reasons_to_try_again(world: World) -> None:
    world.has_coordinator = False
    [verdict] = await world.verify(A0)
    assert verdict.error is ErrorCode.NOT_ENOUGH_REPLICAS
    world.has_coordinator = True
    world.coordinator.failure = Refused(ErrorCode.NETWORK_EXCEPTION)
    [verdict] = await world.verify(A0)
    assert verdict.error is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_a_coordinator_that_is_too_old_is_not_asked(world: World) -> None:
    world.coordinator.is_old = True
    [verdict] = await world.verify(A0)
    assert verdict.error is ErrorCode.NONE
    world.logs[A0].append(PRODUCER, 0, verdict.guard)
    [verdict] = await world.verify(B0, asked=Asked.ADD)
    assert verdict.error is ErrorCode.TRANSACTION_ABORTABLE, "no coordinator would end it"


async def test_missing_permission_of_the_broker_is_not_reported_to_the_client(world: World) -> None:
    world.coordinator.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    [verdict] = await world.verify(A0)
    assert verdict.error is ErrorCode.INVALID_TXN_STATE


async def test_offsets_are_confirmed_with_a_guard_or_refused_with_a_group_coordinators_error(world: World) -> None:
    log: Any = world.logs[A0]
    verdict = await world.verifier.verify_offsets("t", PRODUCER, log, Asked.VERIFY)
    assert verdict.error is ErrorCode.NONE
    log.append(PRODUCER, -1, verdict.guard)  # offsets have no sequence
    log.mark(PRODUCER)
    world.coordinator.errors[A0] = [ErrorCode.NOT_COORDINATOR]
    verdict = await world.verifier.verify_offsets("t", PRODUCER, log, Asked.VERIFY)
    assert verdict.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert verdict.guard is None


@pytest.mark.parametrize(
    ("api_version", "produce", "commit"),
    [
        (3, Asked.VERIFY, Asked.VERIFY),
        (4, Asked.VERIFY, Asked.VERIFY_ABORTABLE),
        (5, Asked.VERIFY, Asked.ADD),
        (11, Asked.VERIFY_ABORTABLE, Asked.ADD),
        (12, Asked.ADD, Asked.ADD),
    ],
)
def test_duty_of_the_leader_depends_on_the_version(api_version: int, produce: Asked, commit: Asked) -> None:
    assert Asked.of_produce(api_version) is produce
    assert Asked.of_offset_commit(api_version) is commit
