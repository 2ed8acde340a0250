"""The requests of a transactional producer to its coordinator, for one transactional id or many at once.

Written against the core, so it serves both shells; ids with the same coordinator share requests. KIP-890 part 2
(`transaction.version` 2): leaders add partitions themselves, and every end raises the epoch, so a late batch of one
transaction cannot land in the next. If the cluster has not finalized that, the client adds partitions first and stays below
version 5 of EndTxn and version 12 of Produce: a leader takes a batch of version 12 as the beginning of a transaction.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.base.errors import RETRIABLE, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import TRANSACTION_VERSION
from barnabas.client.admin.partitions import by_topic
from barnabas.client.core import COORDINATION, TRANSACTION, ClientCore
from barnabas.client.errors import BrokerRefused, check
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

#: From version 4 on only brokers may send AddPartitionsToTxn.
_ADD_PARTITIONS_VERSION_MAX: Final = 3
#: The last versions without KIP-890 part 2.
_END_TXN_V1: Final = 4
PRODUCE_V1: Final = 11
_RAISES_EPOCHS: Final = 2
#: The first version of InitProducerId with two-phase commit (KIP-939).
_TWO_PHASE_VERSION: Final = 6
#: The timeout of a prepared transaction: it never expires.
NO_TIMEOUT_MS: Final = 2**31 - 1


class Initialised(NamedTuple):
    identity: ProducerIdentity
    #: The producer of the open transaction that was kept (KIP-939).
    ongoing: ProducerIdentity = NO_IDENTITY


class Transactions:
    def __init__(self, cluster: ClientCore) -> None:
        self._cluster = cluster

    async def initialise(
        self, transactional_id: str | None, *, timeout_ms: int, expected: ProducerIdentity = NO_IDENTITY
    ) -> ProducerIdentity:
        """Return a producer id and epoch. An earlier producer with the transactional id is fenced, its transaction aborted.

        `expected` raises the epoch of that producer instead (KIP-360); the broker refuses if that producer was fenced.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        if transactional_id is not None:
            answer = await self._one(transactional_id, request)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        async def once() -> ProducerIdentity:
            answer = await self._cluster.ask_any(request, InitProducerIdResponse)
            check(answer.error_code)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        return await self._cluster.retrying("InitProducerId", once)

    async def _one(self, transactional_id: str, request: InitProducerIdRequest) -> InitProducerIdResponse:
        answers = await self._cluster.ask_coordinators(
            {transactional_id: request},
            InitProducerIdResponse,
            kind=TRANSACTION,
            error_of=lambda answer: answer.error_code,
            again=RETRIABLE,
        )
        check(answers[transactional_id].error_code, transactional_id)
        return answers[transactional_id]

    async def keep_all(self, transactional_ids: Sequence[str]) -> Mapping[str, Initialised | BrokerRefused]:
        """KIP-939: turn open transactions into prepared ones, which never time out, and fence their producers.

        Each id has its own result: one coordinator may support this while another refuses it or is too old.
        """
        answers = await self._cluster.ask_coordinators(
            {
                name: InitProducerIdRequest(transactional_id=name, enable2_pc=True, keep_prepared_txn=True)
                for name in transactional_ids
            },
            InitProducerIdResponse,
            kind=TRANSACTION,
            error_of=lambda answer: answer.error_code,
            again=RETRIABLE,
            version_min=_TWO_PHASE_VERSION,
        )
        too_old = {name: BrokerRefused(ErrorCode.UNSUPPORTED_VERSION, name) for name in transactional_ids}
        return too_old | {name: refusal(answer.error_code, name) or _kept(answer) for name, answer in answers.items()}

    async def raises_epochs(self, transactional_id: str) -> bool:
        """Return whether the cluster has finalized KIP-890 part 2, according to the coordinator."""

        async def once() -> bool:
            broker_id = await self._cluster.coordinator(transactional_id, TRANSACTION)
            versions = (await self._cluster.link(broker_id, purpose=COORDINATION)).versions
            agreed = versions.finalized_features.get(TRANSACTION_VERSION, (0, 0))[1]
            return agreed >= _RAISES_EPOCHS and versions.pick(EndTxnRequest) > _END_TXN_V1

        return await self._cluster.retrying("FindCoordinator", once)

    async def add_partitions(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> None:
        """Add partitions to the transaction. Must come before the first record for such a partition."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in by_topic(partitions).items()
            ],
        )
        answers = await self._cluster.ask_coordinators(
            {transactional_id: request},
            AddPartitionsToTxnResponse,
            kind=TRANSACTION,
            error_of=_first_partition_error,
            again=RETRIABLE,
            version_max=_ADD_PARTITIONS_VERSION_MAX,
        )
        check(_first_partition_error(answers[transactional_id]), transactional_id)

    async def end(
        self, transactional_id: str, identity: ProducerIdentity, *, committed: bool, raises_epochs: bool | None = None
    ) -> ProducerIdentity:
        """End the transaction; return the producer's identity for the next one. `raises_epochs`: the value from when the
        transaction began, if known."""
        ends = await self._end({transactional_id: identity}, committed=committed, raises_epochs=raises_epochs)
        outcome = ends[transactional_id]
        if isinstance(outcome, BrokerRefused):
            raise outcome
        return outcome

    async def end_all(
        self, transactions: Mapping[str, ProducerIdentity], *, committed: bool
    ) -> Mapping[str, BrokerRefused | None]:
        """End many transactions. The result has None for each that has ended this way, now or before, else the refusal."""
        outcomes = await self._end(transactions, committed=committed)
        return {name: outcome if isinstance(outcome, BrokerRefused) else None for name, outcome in outcomes.items()}

    async def _end(
        self, transactions: Mapping[str, ProducerIdentity], *, committed: bool, raises_epochs: bool | None = None
    ) -> dict[str, ProducerIdentity | BrokerRefused]:
        if not transactions:
            return {}
        if raises_epochs is None:
            raises_epochs = await self.raises_epochs(next(iter(transactions)))
        answers = await self._cluster.ask_coordinators(
            {
                name: EndTxnRequest(
                    transactional_id=name,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    committed=committed,
                )
                for name, identity in transactions.items()
            },
            EndTxnResponse,
            kind=TRANSACTION,
            error_of=lambda answer: answer.error_code,
            again=RETRIABLE,
            version_max=None if raises_epochs else _END_TXN_V1,
        )
        return {
            name: refusal(answer.error_code, name)
            # Before version 5 the response has no new identity.
            or (
                ProducerIdentity(answer.producer_id, answer.producer_epoch)
                if answer.producer_id >= 0
                else transactions[name]
            )
            for name, answer in answers.items()
        }

    async def abort_all(
        self, transactional_ids: Sequence[str], *, timeout_ms: int
    ) -> Mapping[str, BrokerRefused | None]:
        """Fence the producers of these ids. Their open transactions are being aborted when this returns."""

        def error_of(response: InitProducerIdResponse) -> int:
            # The first response to a new producer while the old producer's transaction is being aborted.
            is_aborting = response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            return ErrorCode.NONE if is_aborting else response.error_code

        answers = await self._cluster.ask_coordinators(
            {
                name: InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
                for name in transactional_ids
            },
            InitProducerIdResponse,
            kind=TRANSACTION,
            error_of=error_of,
            again=RETRIABLE,
        )
        return {name: refusal(error_of(answer), name) for name, answer in answers.items()}

    async def describe_all(self, transactional_ids: Sequence[str]) -> Mapping[str, TransactionState | BrokerRefused]:
        answers = await self._cluster.ask_coordinators(
            {name: DescribeTransactionsRequest(transactional_ids=[name]) for name in transactional_ids},
            DescribeTransactionsResponse,
            kind=TRANSACTION,
            error_of=lambda answer: answer.transaction_states[0].error_code,
            again=RETRIABLE,
        )
        states = {name: answer.transaction_states[0] for name, answer in answers.items()}
        return {name: refusal(state.error_code, name) or state for name, state in states.items()}

    async def ongoing(self, prefix: str) -> list[str]:
        """Return the transactional ids that have an open transaction, from all live coordinators."""
        request = ListTransactionsRequest(state_filters=["Ongoing"])

        async def once() -> list[str]:
            found = []
            for broker_id in (await self._cluster.refresh(())).brokers:
                response = await self._cluster.ask(broker_id, request, ListTransactionsResponse)
                check(response.error_code)
                found += [txn.transactional_id for txn in response.transaction_states]
            return sorted(name for name in found if name.startswith(prefix))

        return await self._cluster.retrying("ListTransactions", once)


def refusal(code: int, message: str) -> BrokerRefused | None:
    return BrokerRefused(code, message) if code else None


def _kept(response: InitProducerIdResponse) -> Initialised:
    return Initialised(
        ProducerIdentity(response.producer_id, response.producer_epoch),
        ProducerIdentity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch),
    )


def _first_partition_error(response: AddPartitionsToTxnResponse) -> int:
    """Return the first error, if possible not one that only says that another partition failed."""
    codes = [
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    telling = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return telling[0] if telling else next((code for code in codes if code), 0)
