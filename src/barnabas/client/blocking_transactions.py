"""What a transactional producer says to its coordinator, without an event loop, and for many transactional ids at once.

Requests of one coordinator travel together. `ask_all` is the one way to ask: it looks for coordinators, asks again what may
pass, and hands back an answer or a refusal for each id. Owner: one thread, that of its client.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from barnabas.client.blocking import BlockingClient
from barnabas.client.cluster import TRANSACTION
from barnabas.client.errors import BrokerRefused, ClientError, DeadlineExceeded, check
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.protocol.messages.base import ApiMessage
from barnabas.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from barnabas.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

R = TypeVar("R", bound=ApiMessage)

#: From version 4 on AddPartitionsToTxn is the brokers' own; from version 5 on EndTxn raises the epoch (KIP-890), and the
#: identity in a decision record would no longer be the one to ask again with.
_ADD_PARTITIONS_VERSION_MAX: Final = 3
_END_TXN_VERSION_MAX: Final = 4
#: The first version that knows two-phase commit (KIP-939).
_TWO_PHASE_VERSION: Final = 6
#: The time-out of a prepared transaction: none.
NO_TIMEOUT_MS: Final = 2**31 - 1
#: A transaction that is being ended takes milliseconds: the first pause is as short.
_FIRST_PAUSE_MS: Final = 5

_STALE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class ProducerIdentity(NamedTuple):
    """What a producer's requests carry, and what fences it."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdentity(-1, -1)


class Initialised(NamedTuple):
    identity: ProducerIdentity
    #: Of the open transaction that was kept (KIP-939).
    ongoing: ProducerIdentity = NO_IDENTITY


class BlockingTransactions:
    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._coordinators: dict[str, int] = {}

    # -- operations -----------------------------------------------------------------------------------------------------

    def initialise(
        self, transactional_id: str | None, *, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """A producer id and epoch. Whoever had the transactional id before is fenced, its open transaction aborted.

        With `expected`: only if that is still its last producer (KIP-360); `BrokerRefused` otherwise.
        """
        if transactional_id is None:
            return self._client.retrying("InitProducerId", self._initialise_idempotent)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        if expected is not None:
            request.producer_id, request.producer_epoch = expected
        answer = self._one(transactional_id, request, InitProducerIdResponse, lambda response: response.error_code)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def _initialise_idempotent(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = self._client.any_connection().request(request, InitProducerIdResponse)
        check(answer.error_code)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def keep_all(self, transactional_ids: Sequence[str]) -> Mapping[str, Initialised | BrokerRefused]:
        """KIP-939: open transactions become prepared ones, which never time out, and their writers are fenced.

        Each id has its own answer: of two coordinators one may know this, and the other refuse it or be too old for it.
        """
        requests = {
            name: InitProducerIdRequest(transactional_id=name, enable2_pc=True, keep_prepared_txn=True)
            for name in transactional_ids
        }
        answers = self.ask_all(
            requests, InitProducerIdResponse, lambda response: response.error_code, version_min=_TWO_PHASE_VERSION
        )
        return {
            name: answer if isinstance(answer, BrokerRefused) else _kept(answer) for name, answer in answers.items()
        }

    def add_partitions(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> None:
        """Tell the coordinator before the first record of the transaction goes to a partition."""
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=all_) for name, all_ in topics.items()],
        )
        self._one(
            transactional_id,
            request,
            AddPartitionsToTxnResponse,
            _first_partition_error,
            version_max=_ADD_PARTITIONS_VERSION_MAX,
        )

    def end(self, transactional_id: str, identity: ProducerIdentity, *, committed: bool) -> None:
        (outcome,) = self.end_all({transactional_id: identity}, committed=committed).values()
        if outcome is not None:
            raise outcome

    def end_all(
        self, transactions: Mapping[str, ProducerIdentity], *, committed: bool
    ) -> Mapping[str, BrokerRefused | None]:
        """None for each that has ended so, now or before; else why it has not."""
        requests = {
            name: EndTxnRequest(
                transactional_id=name,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                committed=committed,
            )
            for name, identity in transactions.items()
        }
        answers = self.ask_all(
            requests, EndTxnResponse, lambda response: response.error_code, version_max=_END_TXN_VERSION_MAX
        )
        return {name: answer if isinstance(answer, BrokerRefused) else None for name, answer in answers.items()}

    def abort_all(self, transactional_ids: Sequence[str], *, timeout_ms: int) -> Mapping[str, BrokerRefused | None]:
        """Whoever writes in them: fenced, and the open transaction on its way to be aborted when this returns."""
        requests = {
            name: InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
            for name in transactional_ids
        }

        def error_of(response: InitProducerIdResponse) -> int:
            # The first answer to a new producer while the old one's transaction is being aborted.
            is_aborting = response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            return ErrorCode.NONE if is_aborting else response.error_code

        answers = self.ask_all(requests, InitProducerIdResponse, error_of)
        return {name: answer if isinstance(answer, BrokerRefused) else None for name, answer in answers.items()}

    def describe_all(self, transactional_ids: Sequence[str]) -> Mapping[str, TransactionState | BrokerRefused]:
        requests = {name: DescribeTransactionsRequest(transactional_ids=[name]) for name in transactional_ids}
        answers = self.ask_all(
            requests, DescribeTransactionsResponse, lambda response: response.transaction_states[0].error_code
        )
        return {
            name: answer if isinstance(answer, BrokerRefused) else answer.transaction_states[0]
            for name, answer in answers.items()
        }

    def ongoing(self, prefix: str) -> list[str]:
        """The transactional ids with an open transaction, of every coordinator that lives."""

        def once() -> list[str]:
            self._client.refresh([])
            found = []
            for broker_id in self._client.image.brokers:
                connection = self._client.connection(broker_id)
                response = connection.request(
                    ListTransactionsRequest(state_filters=["Ongoing"]), ListTransactionsResponse
                )
                check(response.error_code)
                found += [txn.transactional_id for txn in response.transaction_states]
            return sorted(name for name in found if name.startswith(prefix))

        return self._client.retrying("ListTransactions", once)

    # -- asking ---------------------------------------------------------------------------------------------------------

    def _one(
        self,
        transactional_id: str,
        request: ApiMessage,
        response_type: type[R],
        error_of: Callable[[R], int],
        *,
        version_max: int | None = None,
    ) -> R:
        (answer,) = self.ask_all({transactional_id: request}, response_type, error_of, version_max=version_max).values()
        if isinstance(answer, BrokerRefused):
            raise answer
        return answer

    def ask_all(
        self,
        requests: Mapping[str, ApiMessage],
        response_type: type[R],
        error_of: Callable[[R], int],
        *,
        version_min: int = 0,
        version_max: int | None = None,
    ) -> dict[str, R | BrokerRefused]:
        """Each id's coordinator, until all have an answer that will not change; `DeadlineExceeded` if some never have."""
        config = self._client.config
        deadline_s = time.monotonic() + config.api_timeout_ms / 1000
        answers: dict[str, R | BrokerRefused] = {}
        pause_ms = _FIRST_PAUSE_MS
        while True:
            left = {name: request for name, request in requests.items() if name not in answers}
            trouble: ClientError | None = None
            for broker_id, names in self._by_coordinator(list(left)).items():
                problem = self._ask_one_broker(
                    broker_id, {name: left[name] for name in names}, response_type, error_of, answers,
                    version_min=version_min, version_max=version_max,
                )  # fmt: skip
                trouble = problem or trouble
            if len(answers) == len(requests):
                return {name: answers[name] for name in requests}
            if time.monotonic() + pause_ms / 1000 > deadline_s:
                raise DeadlineExceeded(
                    f"{response_type.__name__.removesuffix('Response')} of {len(requests) - len(answers)} transactional ids: "
                    f"gave up after {config.api_timeout_ms} ms: {trouble}"
                )
            time.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, config.retry_backoff_max_ms)

    def _ask_one_broker(
        self,
        broker_id: int,
        requests: Mapping[str, ApiMessage],
        response_type: type[R],
        error_of: Callable[[R], int],
        answers: dict[str, R | BrokerRefused],
        *,
        version_min: int,
        version_max: int | None,
    ) -> ClientError | None:
        """All its requests under way at once. What has a lasting answer goes to `answers`; the last trouble of the rest."""
        trouble: ClientError | None = None
        try:
            connection = self._client.connection(broker_id)
            version = connection.versions.pick(type(next(iter(requests.values()))))
            if version < version_min:
                # An answer, and no error: other coordinators may have done their part already.
                for name in requests:
                    answers[name] = BrokerRefused(ErrorCode.UNSUPPORTED_VERSION, name)
                return None
            version = version if version_max is None else min(version, version_max)
            under_way = {
                name: connection.send(request, response_type, version=version) for name, request in requests.items()
            }
            for name, awaited in under_way.items():
                response = connection.receive(awaited)
                code = error_of(response)
                refusal = BrokerRefused(code, name) if code else None
                if refusal is None:
                    answers[name] = response
                elif refusal.retriable:
                    trouble = refusal
                    if refusal.code in _STALE:
                        self._coordinators.pop(name, None)
                else:
                    answers[name] = refusal
        except ClientError as error:
            if not error.retriable:
                raise
            for name in requests:
                self._coordinators.pop(name, None)
            return error
        return trouble

    def _by_coordinator(self, transactional_ids: Sequence[str]) -> dict[int, list[str]]:
        unknown = [name for name in transactional_ids if name not in self._coordinators]
        if unknown:
            self._client.retrying("FindCoordinator", lambda: self._find(unknown))
        by_broker: dict[int, list[str]] = {}
        for name in transactional_ids:
            by_broker.setdefault(self._coordinators[name], []).append(name)
        return by_broker

    def _find(self, transactional_ids: Sequence[str]) -> None:
        connection = self._client.any_connection()
        many = connection.versions.pick(FindCoordinatorRequest) >= 4
        for names in [transactional_ids] if many else [[name] for name in transactional_ids]:
            # Both ways of asking are filled in, and the version decides.
            request = FindCoordinatorRequest(key=names[0], key_type=TRANSACTION, coordinator_keys=list(names))
            response = connection.request(request, FindCoordinatorResponse)
            if many:
                for found in response.coordinators:
                    check(found.error_code, found.error_message or found.key)
                    self._coordinators[found.key] = found.node_id
            else:
                check(response.error_code, response.error_message or names[0])
                self._coordinators[names[0]] = response.node_id
        if any(self._coordinators[name] not in self._client.image.brokers for name in transactional_ids):
            self._client.refresh([])


def _kept(response: InitProducerIdResponse) -> Initialised:
    return Initialised(
        ProducerIdentity(response.producer_id, response.producer_epoch),
        ProducerIdentity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch),
    )


def _first_partition_error(response: AddPartitionsToTxnResponse) -> int:
    """What is wrong with one of them; that others were not tried because of it says nothing."""
    codes = [
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    telling = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return telling[0] if telling else next((code for code in codes if code), 0)
