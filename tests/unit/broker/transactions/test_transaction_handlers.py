"""Handlers of transactions: versions, permissions and error messages between the wire and the coordinator."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.api.transactions import TransactionsApi
from barnabas.broker.server.handler import handlers_of
from barnabas.broker.transactions.ending import EndAnswer
from barnabas.broker.transactions.initializing import InitAnswer, InitRequest
from barnabas.broker.transactions.machine import ListFilter
from barnabas.broker.transactions.state import Identity, Transaction, TransactionState
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from tests.unit.broker.transactions.txn_harness import A0, A1, B0

T = TypeVar("T")
CLIENT = Identity(7, 3)


class FakeCoordinator:
    """Records its requests and gives the answers that a test sets."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.init_answer = InitAnswer(ErrorCode.NONE, CLIENT)
        self.add_answer: ErrorCode | Refused = ErrorCode.NONE
        self.end_answer = EndAnswer(ErrorCode.NONE, Identity(7, 4))
        self.known: dict[str, Transaction] = {}
        self.producer_ids = SimpleNamespace(next=self._next)

    async def _next(self) -> int:
        return 42

    async def init_producer_id(self, request: InitRequest) -> InitAnswer:
        self.asked.append(request)
        return self.init_answer

    async def add_partitions(
        self, name: str, identity: Identity, partitions: Any, *, client_version: int = 0, by_broker: bool = False
    ) -> ErrorCode:
        assert by_broker == (client_version > 0)
        self.asked.append((name, identity, list(partitions), client_version))
        if isinstance(self.add_answer, Refused):
            raise self.add_answer
        return self.add_answer

    async def verify_partitions(
        self, name: str, identity: Identity, partitions: Any
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked.append(("verify", name, identity, list(partitions)))
        return dict.fromkeys(partitions, ErrorCode.TRANSACTION_ABORTABLE)

    async def end(self, name: str, identity: Identity, *, commit: bool, client_version: int) -> EndAnswer:
        self.asked.append((name, identity, commit, client_version))
        return self.end_answer

    async def describe(self, name: str) -> Transaction | None:
        return self.known.get(name)

    async def select(self, wanted: ListFilter) -> list[Transaction]:
        self.asked.append(wanted)
        return [txn for txn in self.known.values() if wanted.matches is None or wanted.matches(txn.transactional_id)]


class World:
    def __init__(self) -> None:
        self.coordinator = FakeCoordinator()
        self.denied: set[tuple[AclOperation, AclResourceType, str]] = set()
        self.partitions = {A0, A1, B0, TopicPartition(GROUP_METADATA_TOPIC, 3)}
        self.any_topic = True

        def allows(call: object, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
            return (operation, resource, name) not in self.denied

        context: Any = SimpleNamespace(
            transactions=self.coordinator,
            allows=allows,
            shows=allows,
            allows_topic=lambda call, operation, name: (operation, AclResourceType.TOPIC, name) not in self.denied,
            require_cluster=self._require_cluster,
            authorizer=SimpleNamespace(allows_on_any=lambda *args: self.any_topic),
            metadata=SimpleNamespace(partition=lambda tp: object() if tp in self.partitions else None),
            link_of=lambda topic: None,
        )
        self.api = TransactionsApi(context, lambda group_id: 3)

    def _require_cluster(self, call: object, operation: AclOperation) -> None:
        if (operation, AclResourceType.CLUSTER, "kafka-cluster") in self.denied:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def call(api_version: int) -> Any:
    return SimpleNamespace(api_version=api_version, channel=SimpleNamespace(principal=None, peer_host="h"))


def done(answer: Awaitable[T]) -> T:
    async def main() -> T:
        return await answer

    return asyncio.run(main())


def refusal_of(answer: Awaitable[object]) -> ErrorCode:
    with pytest.raises(Refused) as refusal:
        done(answer)
    return refusal.value.code


def test_an_idempotent_producer_gets_an_id_and_epoch_0() -> None:
    world = World()
    response: Any = done(world.api.init_producer_id(call(4), InitProducerIdRequest(transactional_id=None)))
    assert (response.producer_id, response.producer_epoch) == (42, 0)
    assert world.coordinator.asked == []


def test_permission_to_write_to_any_topic_allows_idempotence() -> None:
    world = World()
    world.denied.add((AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, "kafka-cluster"))
    done(world.api.init_producer_id(call(4), InitProducerIdRequest(transactional_id=None)))
    world.any_topic = False
    refused = refusal_of(world.api.init_producer_id(call(4), InitProducerIdRequest(transactional_id=None)))
    assert refused is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_init_passes_the_fields_of_its_version() -> None:
    world = World()
    world.coordinator.init_answer = InitAnswer(ErrorCode.NONE, Identity(8, 0), Identity(7, 3))
    request = InitProducerIdRequest(
        transactional_id="t",
        transaction_timeout_ms=5,
        producer_id=7,
        producer_epoch=2,
        enable2_pc=True,
        keep_prepared_txn=True,
    )
    response: Any = done(world.api.init_producer_id(call(6), request))
    assert world.coordinator.asked == [InitRequest("t", 5, Identity(7, 2), True, True)]
    assert (response.producer_id, response.producer_epoch) == (8, 0)
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == (7, 3)


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 3)])
def test_half_an_identity_is_an_invalid_request(producer_id: int, epoch: int) -> None:
    request = InitProducerIdRequest(transactional_id="t", producer_id=producer_id, producer_epoch=epoch)
    assert refusal_of(World().api.init_producer_id(call(3), request)) is ErrorCode.INVALID_REQUEST


def test_an_empty_transactional_id_is_an_invalid_request() -> None:
    world = World()
    answers = [
        world.api.init_producer_id(call(4), InitProducerIdRequest(transactional_id="")),
        world.api.add_offsets(call(3), AddOffsetsToTxnRequest(transactional_id="", group_id="g")),
        world.api.end(call(4), EndTxnRequest(transactional_id="")),
    ]
    assert [refusal_of(answer) for answer in answers] == [ErrorCode.INVALID_REQUEST] * 3


def test_a_transactional_id_without_permission_is_refused() -> None:
    world = World()
    world.denied.add((AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, "t"))
    answers = [
        world.api.init_producer_id(call(4), InitProducerIdRequest(transactional_id="t")),
        world.api.add_offsets(call(3), AddOffsetsToTxnRequest(transactional_id="t", group_id="g")),
        world.api.end(call(4), EndTxnRequest(transactional_id="t")),
    ]
    assert [refusal_of(answer) for answer in answers] == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 3
    assert world.coordinator.asked == []


def test_two_phase_commit_has_a_permission_of_its_own() -> None:
    world = World()
    world.denied.add((AclOperation.TWO_PHASE_COMMIT, AclResourceType.TRANSACTIONAL_ID, "t"))
    done(world.api.init_producer_id(call(6), InitProducerIdRequest(transactional_id="t")))
    refused = refusal_of(
        world.api.init_producer_id(call(6), InitProducerIdRequest(transactional_id="t", enable2_pc=True))
    )
    assert refused is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_old_clients_get_invalid_producer_epoch_instead_of_producer_fenced() -> None:
    world = World()
    fenced = ErrorCode.PRODUCER_FENCED
    world.coordinator.init_answer = InitAnswer(fenced)
    world.coordinator.end_answer = EndAnswer(fenced)
    world.coordinator.add_answer = fenced

    def heard(api: str, version: int) -> int:
        topics = [AddPartitionsToTxnTopic(name="a", partitions=[0])]
        match api:
            case "init":
                response: Any = done(
                    world.api.init_producer_id(call(version), InitProducerIdRequest(transactional_id="t"))
                )
            case "end":
                response = done(world.api.end(call(version), EndTxnRequest(transactional_id="t")))
            case "offsets":
                response = done(world.api.add_offsets(call(version), AddOffsetsToTxnRequest(transactional_id="t")))
            case _:
                request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=topics)
                response = done(world.api.add_partitions(call(version), request))
                return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
        return int(response.error_code)

    for api, first_new in (("init", 4), ("end", 2), ("offsets", 2), ("partitions", 2)):
        assert heard(api, first_new - 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert heard(api, first_new) == fenced


def test_a_clients_partitions_are_added_all_or_none() -> None:
    world = World()
    world.denied.add((AclOperation.WRITE, AclResourceType.TOPIC, "b"))
    topics = [
        AddPartitionsToTxnTopic(name="a", partitions=[0, 9]),
        AddPartitionsToTxnTopic(name="b", partitions=[0]),
        AddPartitionsToTxnTopic(name=GROUP_METADATA_TOPIC, partitions=[3]),
    ]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=topics)
    response: Any = done(world.api.add_partitions(call(3), request))
    found = {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    assert found == {
        ("a", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("a", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("b", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        (GROUP_METADATA_TOPIC, 3): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert world.coordinator.asked == []


def test_brokers_ask_for_several_transactions_at_once() -> None:
    world = World()
    topics = [AddPartitionsToTxnTopic(name="a", partitions=[0, 1])]
    internal = [AddPartitionsToTxnTopic(name=GROUP_METADATA_TOPIC, partitions=[3])]

    def transaction(name: str, where: Any, verify_only: bool) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=7, producer_epoch=3, verify_only=verify_only, topics=where
        )

    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction("t", topics, True),
            transaction("u", internal, False),
            transaction("v", [AddPartitionsToTxnTopic(name="a", partitions=[0, 9])], False),
        ]
    )
    response: Any = done(world.api.add_partitions(call(5), request))
    found = {
        result.transactional_id: [
            each.partition_error_code for topic in result.topic_results for each in topic.results_by_partition
        ]
        for result in response.results_by_transaction
    }
    assert found == {
        "t": [ErrorCode.TRANSACTION_ABORTABLE] * 2,
        "u": [ErrorCode.NONE],
        "v": [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    }
    assert world.coordinator.asked == [
        ("verify", "t", CLIENT, [A0, A1]),
        ("u", CLIENT, [TopicPartition(GROUP_METADATA_TOPIC, 3)], 2),
    ]
    world.denied.add((AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, "kafka-cluster"))
    assert refusal_of(world.api.add_partitions(call(5), request)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_not_coordinator_is_answered_for_each_partition() -> None:
    world = World()
    world.coordinator.add_answer = Refused(ErrorCode.NOT_COORDINATOR)
    topics = [AddPartitionsToTxnTopic(name="a", partitions=[0])]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=topics)
    response: Any = done(world.api.add_partitions(call(3), request))
    [result] = response.results_by_topic_v3_and_below[0].results_by_partition
    assert result.partition_error_code == ErrorCode.NOT_COORDINATOR


def test_offsets_of_a_group_are_a_partition_of_the_transaction() -> None:
    world = World()
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=3, group_id="g")
    done(world.api.add_offsets(call(3), request))
    assert world.coordinator.asked == [("t", CLIENT, [TopicPartition(GROUP_METADATA_TOPIC, 3)], 0)]
    world.denied.add((AclOperation.READ, AclResourceType.GROUP, "g"))
    assert refusal_of(world.api.add_offsets(call(3), request)) is ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize(("api_version", "client_version"), [(4, 0), (5, 2)])
def test_the_version_of_end_txn_decides_whether_the_epoch_rises(api_version: int, client_version: int) -> None:
    world = World()
    request = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=3, committed=True)
    response: Any = done(world.api.end(call(api_version), request))
    assert world.coordinator.asked == [("t", CLIENT, True, client_version)]
    assert (response.producer_id, response.producer_epoch) == (7, 4)


def test_descriptions_omit_topics_that_the_caller_may_not_see() -> None:
    world = World()
    world.coordinator.known["t"] = Transaction(
        transactional_id="t",
        producer_id=7,
        epoch=3,
        timeout_ms=9,
        state=TransactionState.ONGOING,
        partitions=(A0, A1, B0),
        start_ms=5,
        update_ms=6,
    )
    world.denied |= {
        (AclOperation.DESCRIBE, AclResourceType.TOPIC, "b"),
        (AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, "secret"),
    }
    request = DescribeTransactionsRequest(transactional_ids=["t", "secret", "nobody", ""])
    response: Any = done(world.api.describe(call(0), request))
    known, secret, unknown, empty = response.transaction_states
    assert (known.transaction_state, known.transaction_start_time_ms, known.transaction_timeout_ms) == ("Ongoing", 5, 9)
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [("a", [0, 1])]
    assert secret.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST


def test_lists_are_filtered_and_unknown_states_are_returned(capfd: pytest.CaptureFixture[str]) -> None:
    world = World()
    for name in ("pay-1", "pay-2", "other"):
        world.coordinator.known[name] = Transaction(
            transactional_id=name, producer_id=1, epoch=0, timeout_ms=1, update_ms=0
        )
    world.denied.add((AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, "pay-2"))
    request = ListTransactionsRequest(state_filters=["Empty", "Bored"], transactional_id_pattern="pay-.")
    response: Any = done(world.api.list_transactions(call(2), request))
    assert [state.transactional_id for state in response.transaction_states] == ["pay-1"]
    assert response.unknown_state_filters == ["Bored"]
    assert world.coordinator.asked[0].states == {TransactionState.EMPTY}
    bad = ListTransactionsRequest(transactional_id_pattern="(")
    assert refusal_of(world.api.list_transactions(call(2), bad)) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert capfd.readouterr().err == "", "RE2 writes to stderr unless its log is switched off"


def test_every_refusal_has_the_shape_of_its_response() -> None:
    served = {handler.name: handler for handler in handlers_of(World().api)}
    code = ErrorCode.NOT_COORDINATOR
    init: Any = served["InitProducerId"].refuse(InitProducerIdRequest(), code, None)
    assert (init.error_code, init.producer_id, init.producer_epoch) == (code, -1, -1)
    end: Any = served["EndTxn"].refuse(EndTxnRequest(), code, None)
    assert end.error_code == code
    add: Any = served["AddPartitionsToTxn"].refuse(
        AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0])]), code, None
    )
    assert add.error_code == add.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == code
    described: Any = served["DescribeTransactions"].refuse(
        DescribeTransactionsRequest(transactional_ids=["t"]), code, None
    )
    assert described.transaction_states[0].error_code == code
    listed: Any = served["ListTransactions"].refuse(ListTransactionsRequest(), code, None)
    assert listed.error_code == code
