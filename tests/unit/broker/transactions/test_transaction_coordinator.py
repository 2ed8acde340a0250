"""The coordinator with its machines: answers wait for commits, decisions are carried out, partitions come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.metrics.exposition import render
from barnabas.base.metrics.registry import Registry
from barnabas.broker.api.transactions import TransactionsApi
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.transactions.coordinator import TransactionCoordinator
from barnabas.broker.transactions.initializing import InitRequest
from barnabas.broker.transactions.machine import ListFilter
from barnabas.broker.transactions.producer_ids import ProducerIdRange, ProducerIds
from barnabas.broker.transactions.state import Identity, TransactionState
from barnabas.broker.transactions.verification import Asked, Verifier
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.memory_log import MemoryLog
from tests.support.async_fixture import async_fixture
from tests.support.waiting import eventually
from tests.unit.broker.transactions.txn_harness import A0

CONFIG = BrokerConfig.parse(
    {
        "broker.id": "1",
        "zookeeper.connect": "localhost:2181",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
)


class World:
    def __init__(self, tasks: asyncio.TaskGroup, log: MemoryLog) -> None:
        self.log = log
        self.registry = Registry()
        self.metadata = MetadataCache()
        self.tell_metadata({"a": 1})
        self.markers: list[WriteTxnMarkersRequest] = []
        self.markers_gate = asyncio.Event()
        self.markers_gate.set()
        self.created: list[tuple[str, int, int, Mapping[str, str]]] = []
        self.create_error = ErrorCode.NONE
        #: Answers of partitions to a marker.
        self.markers_error = ErrorCode.NONE
        self.bugs: list[BaseException] = []
        self._tasks = tasks
        self._first_id = 0
        self.coordinator = self.make()

    def make(self) -> TransactionCoordinator:
        loop = asyncio.get_running_loop()

        def spawn(work: Coroutine[Any, Any, None], name: str) -> object:
            return self._tasks.create_task(work, name=name)

        return TransactionCoordinator(
            CoordinatorContext(
                log=self.log,
                metadata=self.metadata,
                config=lambda: CONFIG,
                now_ms=lambda: 1_000_000,
                timers=loop,
                spawn=spawn,
                create_topic=self.create,
                count_partitions=self.count_partitions,
                registry=self.registry,
            ),
            ProducerIds(self.allocate, timers=loop, spawn=spawn),
            send_markers=self.write_markers,
            exists=self.exists,
            on_bug=self.bugs.append,
            transaction_version=lambda: 2,
        )

    async def count_partitions(self, topic: str) -> int:
        return self.metadata.partition_count(topic)

    async def exists(self, partition: TopicPartition) -> bool:
        return self.metadata.partition(partition) is not None

    def tell_metadata(self, topics: dict[str, int]) -> None:
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=1,
                live_brokers=[
                    UpdateMetadataBroker(
                        id=1, endpoints=[UpdateMetadataEndpoint(host="h", port=1, listener="PLAINTEXT")]
                    )
                ],
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name=name,
                        topic_id=bytes(15) + bytes([number]),
                        partition_states=[
                            UpdateMetadataPartitionState(topic_name=name, partition_index=index, leader=1)
                            for index in range(count)
                        ],
                    )
                    for number, (name, count) in enumerate(topics.items(), start=1)
                ],
            )
        )

    async def allocate(self) -> ProducerIdRange:
        self._first_id += 1000
        return ProducerIdRange(self._first_id, 1000)

    async def create(self, name: str, partitions: int, factor: int, settings: Mapping[str, str]) -> ErrorCode:
        self.created.append((name, partitions, factor, settings))
        await asyncio.sleep(0)
        return self.create_error

    async def write_markers(self, broker: BrokerId, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.markers.append(request)
        await self.markers_gate.wait()
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=number, error_code=self.markers_error)
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    async def elected(self, coordinator: TransactionCoordinator | None = None, epoch: int = 0) -> None:
        coordinator = coordinator or self.coordinator
        for partition in range(4):
            coordinator.elected(partition, epoch)
        await eventually(lambda: len(coordinator.machines) == 4)

    async def init(self, name: str = "t") -> Identity:
        answer = await self.coordinator.init_producer_id(InitRequest(name, 60_000))
        assert answer.error is ErrorCode.NONE
        return answer.identity


async def turns(count: int = 100) -> None:
    """Run until nothing more happens: nothing here waits for the clock or for another thread."""
    for _ in range(count):
        await asyncio.sleep(0)


@async_fixture
async def world() -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        started = World(tasks, MemoryLog())
        yield started
        started.coordinator.close()
        assert started.bugs == []


async def test_a_transaction_from_its_first_producer_to_its_completion(world: World) -> None:
    await world.elected(epoch=7)
    client = await world.init()
    assert client == (1000, 0)
    assert await world.coordinator.add_partitions("t", client, [A0]) is ErrorCode.NONE
    answer = await world.coordinator.end("t", client, commit=True, client_version=2)
    assert answer.identity == (1000, 1)
    await eventually(lambda: len(world.coordinator.markers) == 0)
    [request] = world.markers
    assert request.markers[0].coordinator_epoch == 7
    txn = await world.coordinator.describe("t")
    assert txn is not None
    assert txn.state is TransactionState.COMPLETE_COMMIT


async def test_requests_without_partitions_leave_the_coordinator_alive(world: World) -> None:
    await world.elected()
    client = await world.init()
    for _ in range(2):
        assert await world.coordinator.add_partitions("t", client, []) is ErrorCode.NONE
    assert (await world.coordinator.end("t", client, commit=True, client_version=0)).error is ErrorCode.NONE
    await eventually(lambda: len(world.coordinator.markers) == 0)
    assert world.markers == [], "there is nowhere to write one"
    txn = await world.coordinator.describe("t")
    assert txn is not None
    assert txn.state is TransactionState.COMPLETE_COMMIT


async def test_transactions_are_counted_by_state(world: World) -> None:
    await world.elected()
    client = await world.init("open")
    await world.coordinator.add_partitions("open", client, [A0])
    await world.init("idle")
    seen = render(world.registry).decode()
    assert 'kafka_coordinator_transaction_count{state="Ongoing"} 1.0' in seen
    assert 'kafka_coordinator_transaction_count{state="Empty"} 1.0' in seen
    assert "kafka_server_transaction_coordinator_partition_load_time_ms_count 4.0" in seen


async def test_a_transactional_id_lives_where_java_says(world: World) -> None:
    world.tell_metadata({"a": 1, "__transaction_state": 50})
    await asyncio.sleep(0)  # its partitions are counted
    assert world.coordinator.partition_for("hello") == 99162322 % 50
    assert world.coordinator.topic.coordinator_of("hello") == 1


async def test_broker_that_is_not_the_coordinator_refuses(world: World) -> None:
    for ask in (
        lambda: world.coordinator.init_producer_id(InitRequest("t", 60_000)),
        lambda: world.coordinator.describe("t"),
        lambda: world.coordinator.end("t", Identity(1, 0), commit=True, client_version=0),
    ):
        with pytest.raises(Refused) as refusal:
            await ask()
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR


async def test_transaction_fenced_by_another_coordinator_is_ended_when_leadership_returns(world: World) -> None:
    """This broker learned only of its return, and never resigned. Otherwise readers of committed records would wait forever."""

    await world.elected(epoch=5)
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_error = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    await world.coordinator.end("t", client, commit=True, client_version=0)
    await eventually(lambda: len(world.markers) == 1 and not len(world.coordinator.markers))
    world.markers_error = ErrorCode.NONE
    await world.elected(epoch=7)
    await eventually(lambda: len(world.markers) == 2)
    assert [marker.coordinator_epoch for request in world.markers for marker in request.markers] == [5, 7]
    machine = world.coordinator.machines[world.coordinator.partition_for("t")]
    await eventually(lambda: (txn := machine.get("t")) is not None and txn.state is TransactionState.COMPLETE_COMMIT)


async def test_a_coordinator_that_missed_its_successor_sends_no_markers_of_transactions_it_ended(world: World) -> None:
    """This broker never resigned. With clients that keep their epoch, its marker would end the transaction that is open now."""

    await world.elected(epoch=5)
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    await world.coordinator.end("t", client, commit=True, client_version=0)
    await eventually(lambda: len(world.markers) == 1 and world.coordinator.markers.without_leader == 1)
    world.markers_error = ErrorCode.NONE
    second = world.make()
    await world.elected(second, epoch=6)
    await eventually(lambda: not len(second.markers))
    assert await second.add_partitions("t", client, [A0]) is ErrorCode.NONE
    second.close()
    world.markers.clear()
    await world.elected(epoch=7)
    world.coordinator.markers.metadata_changed()
    await turns()
    assert world.markers == [], "the marker of the first transaction goes into the second one"
    txn = await world.coordinator.describe("t")
    assert txn is not None
    assert txn.state is TransactionState.ONGOING


async def test_an_answer_and_the_answers_that_depend_on_it_wait_for_the_commit(world: World) -> None:
    await world.elected()
    client = await world.init()
    world.log.commits_at_once = False
    add = asyncio.ensure_future(world.coordinator.add_partitions("t", client, [A0]))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(world.coordinator.add_partitions("t", client, [A0]))
    fenced = asyncio.ensure_future(world.coordinator.add_partitions("t", Identity(1000, 9), [A0]))
    verify = asyncio.ensure_future(world.coordinator.verify_partitions("t", client, [A0]))
    await turns()
    assert not (add.done() or again.done() or fenced.done() or verify.done())
    world.log.settle()
    assert await add is ErrorCode.NONE
    assert await again is ErrorCode.NONE
    assert await fenced is ErrorCode.PRODUCER_FENCED
    assert await verify == {A0: ErrorCode.NONE}


async def test_request_that_is_never_committed_is_never_answered(world: World) -> None:
    await world.elected()
    client = await world.init()
    world.log.commits_at_once = False
    add = asyncio.ensure_future(world.coordinator.add_partitions("t", client, [A0]))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(world.coordinator.add_partitions("t", client, [A0]))
    await asyncio.sleep(0)
    world.log.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for waiting in (add, again):
        with pytest.raises(Refused) as refusal:
            await waiting
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR


async def test_markers_wait_for_the_decision_to_be_committed(world: World) -> None:
    await world.elected()
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.log.commits_at_once = False
    end = asyncio.ensure_future(world.coordinator.end("t", client, commit=True, client_version=2))
    await eventually(lambda: len(world.log.pending) == 1)
    await turns()
    assert world.markers == []
    world.log.commits_at_once = True
    world.log.settle()
    await end
    await eventually(lambda: len(world.markers) == 1)


async def test_the_next_transaction_waits_for_the_markers_of_the_last_instead_of_being_refused(world: World) -> None:
    await world.elected()
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_gate.clear()
    answer = await world.coordinator.end("t", client, commit=True, client_version=2)
    waiting = [
        asyncio.ensure_future(world.coordinator.add_partitions("t", answer.identity, [A0])),
        asyncio.ensure_future(world.coordinator.add_partitions("t", answer.identity, [A0])),
    ]
    await turns()
    assert not any(each.done() for each in waiting)
    world.markers_gate.set()
    assert await asyncio.gather(*waiting) == [ErrorCode.NONE, ErrorCode.NONE]


async def test_a_wait_for_markers_is_bounded_and_ends_with_the_coordinator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.elected()
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_gate.clear()
    answer = await world.coordinator.end("t", client, commit=True, client_version=2)
    monkeypatch.setattr("barnabas.broker.transactions.coordinator.COMPLETION_WAIT_MAX_MS", 5)
    refused = await world.coordinator.add_partitions("t", answer.identity, [A0])
    assert refused is ErrorCode.CONCURRENT_TRANSACTIONS
    monkeypatch.setattr("barnabas.broker.transactions.coordinator.COMPLETION_WAIT_MAX_MS", 60_000)
    waiting = asyncio.ensure_future(world.coordinator.init_producer_id(InitRequest("t", 60_000)))
    await turns()
    assert not waiting.done()
    world.coordinator.resigned(world.coordinator.partition_for("t"))
    with pytest.raises(Refused) as refusal:
        await waiting
    assert refusal.value.code is ErrorCode.NOT_COORDINATOR
    world.markers_gate.set()


async def test_a_transaction_whose_markers_cannot_be_written_delays_no_other_producer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaders' questions to a coordinator share a request: all of them would wait for the one transaction."""
    monkeypatch.setattr("barnabas.broker.transactions.coordinator.COMPLETION_WAIT_MAX_MS", 60_000)
    await world.elected()
    client, other = await world.init("t"), await world.init("other")
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_gate.clear()
    ended = await world.coordinator.end("t", client, commit=True, client_version=2)
    context: Any = SimpleNamespace(metadata=world.metadata, transactions=world.coordinator)
    api = TransactionsApi(context, lambda group_id: 0)
    verifier = Verifier(
        coordinator_of=lambda name: BrokerId(1),
        ask=lambda broker, request: api.add_for_brokers(request),
        now_ms=lambda: 1_000_000,
        spawn=lambda work, name: asyncio.ensure_future(work),
    )
    log: Any = SimpleNamespace(partition=A0, producers=ProducerStateManager(A0, transaction_verification=True))
    async with asyncio.timeout(20):
        [held], [free] = await asyncio.gather(
            verifier.verify("t", ended.identity, [(log, 0)], Asked.ADD),
            verifier.verify("other", other, [(log, 0)], Asked.ADD),
        )
    assert (held.error, free.error) == (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE)
    world.markers_gate.set()


async def test_a_new_producer_has_its_answer_when_the_old_transaction_is_aborted(world: World) -> None:
    await world.elected()
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    assert await world.init() == (client.producer_id, client.epoch + 2)
    assert not world.markers[0].markers[0].transaction_result


async def test_a_second_coordinator_finishes_what_the_first_decided(world: World) -> None:
    await world.elected()
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_gate.clear()
    await world.coordinator.end("t", client, commit=True, client_version=2)
    await eventually(lambda: len(world.markers) == 1)
    for partition in range(4):
        world.coordinator.resigned(partition)
    second = world.make()
    await world.elected(second, epoch=8)
    world.markers_gate.set()
    await eventually(lambda: len(second.markers) == 0)
    assert [request.markers[0].coordinator_epoch for request in world.markers] == [0, 8]
    txn = await second.describe("t")
    assert txn is not None
    assert txn.state is TransactionState.COMPLETE_COMMIT
    completions = world.log.records
    assert len(completions) == 4, "the first coordinator wrote no completion"
    second.close()


async def test_a_completion_that_the_log_refuses_is_written_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.broker.transactions.markers.RETRY_BACKOFF_MS", 1)
    await world.elected()
    client = await world.init()
    await world.coordinator.add_partitions("t", client, [A0])
    world.markers_gate.clear()
    await world.coordinator.end("t", client, commit=True, client_version=2)
    await eventually(lambda: len(world.markers) == 1)
    world.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.markers_gate.set()
    await eventually(lambda: world.log.refused >= 2)
    assert len(world.coordinator.markers) == 1
    world.log.refuses_with = None
    await eventually(lambda: len(world.coordinator.markers) == 0)


async def test_a_timeout_that_the_log_refuses_comes_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.runtime.shard.REFUSED_TIMER_BACKOFF_MS", 1)
    await world.elected()
    answer = await world.coordinator.init_producer_id(InitRequest("t", 1))
    await world.coordinator.add_partitions("t", answer.identity, [A0])
    machine = world.coordinator.machines[world.coordinator.partition_for("t")]
    monkeypatch.setattr(machine, "timer_fired", _later(machine.timer_fired))
    world.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
    await eventually(lambda: world.log.refused >= 2)
    assert world.markers == []
    world.log.refuses_with = None
    await eventually(lambda: len(world.markers) == 1)
    assert not world.markers[0].markers[0].transaction_result


def _later(fired: Callable[..., Any]) -> Callable[..., Any]:
    """Timers use the loop's clock; the wall clock of this test stands still."""
    return lambda key, now_ms: fired(key, now_ms + 1000)


async def test_the_topic_is_created_once_with_its_settings(world: World) -> None:
    assert await asyncio.gather(*(world.coordinator.topic.ensure() for _ in range(3))) == [True, True, True]
    [(name, partitions, factor, settings)] = world.created
    assert (name, partitions, factor) == ("__transaction_state", 4, 1)
    assert settings == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
    }
    world.tell_metadata({"a": 1, "__transaction_state": 4})
    assert await world.coordinator.topic.ensure()
    assert len(world.created) == 1


async def test_a_topic_that_cannot_be_created_is_tried_again(world: World) -> None:
    world.create_error = ErrorCode.INVALID_REPLICATION_FACTOR
    assert not await world.coordinator.topic.ensure()
    world.create_error = ErrorCode.TOPIC_ALREADY_EXISTS
    assert await world.coordinator.topic.ensure()


async def test_transactions_of_all_partitions_are_listed(world: World) -> None:
    await world.elected()
    names = {f"t{number}" for number in range(20)}
    for name in names:
        await world.init(name)
    assert {txn.transactional_id for txn in await world.coordinator.select(ListFilter())} == names
    assert len({world.coordinator.partition_for(name) for name in names}) == 4


async def test_a_broker_without_metadata_takes_no_topic_for_deleted(world: World) -> None:
    assert world.coordinator.leader_of(A0) == 1
    assert world.coordinator.leader_of(A0._replace(topic="gone")) is None
    world.metadata = MetadataCache()
    assert world.make().leader_of(A0) == -1
