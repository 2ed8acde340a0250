"""What a transactional producer says to its coordinator, for one transactional id or many at once.

Written against the core, so it serves both shells; requests of one coordinator travel together. KIP-890 part 2
(`transaction.version` 2): leaders add partitions by themselves, and every end raises the epoch, so that a late batch of one
transaction cannot land in the next. Where the cluster has not agreed on that, partitions are announced first, EndTxn stays
below version 5 and Produce below version 12: a leader takes a batch of version 12 for the beginning of a transaction.
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

#: From version 4 on AddPartitionsToTxn is the brokers' own.
_ADD_PARTITIONS_VERSION_MAX: Final = 3
#: The last versions without KIP-890 part 2.
_END_TXN_V1: Final = 4
PRODUCE_V1: Final = 11
_RAISES_EPOCHS: Final = 2
#: The first version of InitProducerId that knows two-phase commit (KIP-939).
_TWO_PHASE_VERSION: Final = 6
#: The time-out of a prepared transaction: none.
NO_TIMEOUT_MS: Final = 2**31 - 1


class Initialised(NamedTuple):
    identity: ProducerIdentity
    #: Of the open transaction that was kept (KIP-939).
    ongoing: ProducerIdentity = NO_IDENTITY


class Transactions:
    def __init__(self, cluster: ClientCore) -> None:
        self._cluster = cluster

    async def initialise(
        self, transactional_id: str | None, *, timeout_ms: int, expected: ProducerIdentity = NO_IDENTITY
    ) -> ProducerIdentity:
        """A producer id and epoch. Whoever had the transactional id before is fenced, its open transaction aborted.

        `expected` raises the epoch of that producer instead (KIP-360), and is refused where it was fenced.
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
        """KIP-939: open transactions become prepared ones, which never time out, and their writers are fenced.

        Each id has its own answer: of two coordinators one may know this, and the other refuse it or be too old for it.
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
        """Whether the cluster has agreed on KIP-890 part 2, as the coordinator says."""

        async def once() -> bool:
            broker_id = await self._cluster.coordinator(transactional_id, TRANSACTION)
            versions = (await self._cluster.link(broker_id, purpose=COORDINATION)).versions
            agreed = versions.finalized_features.get(TRANSACTION_VERSION, (0, 0))[1]
            return agreed >= _RAISES_EPOCHS and versions.pick(EndTxnRequest) > _END_TXN_V1

        return await self._cluster.retrying("FindCoordinator", once)

    async def add_partitions(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> None:
        """Tell the coordinator before the first record of the transaction goes to a partition."""
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
        """Whom the producer is in its next transaction. `raises_epochs`: as it was when this one began, where that is known."""
        ends = await self._end({transactional_id: identity}, committed=committed, raises_epochs=raises_epochs)
        outcome = ends[transactional_id]
        if isinstance(outcome, BrokerRefused):
            raise outcome
        return outcome

    async def end_all(
        self, transactions: Mapping[str, ProducerIdentity], *, committed: bool
    ) -> Mapping[str, BrokerRefused | None]:
        """None for each that has ended so, now or before; else why it has not."""
        outcomes = await self._end(transactions, committed=committed)
        return {name: each if isinstance(each, BrokerRefused) else None for name, each in outcomes.items()}

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
            # Before version 5 there is no new identity in the answer.
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
        """Whoever writes in them: fenced, and the open transaction on its way to be aborted when this returns."""

        def error_of(response: InitProducerIdResponse) -> int:
            # The first answer to a new producer while the old one's transaction is being aborted.
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
        """The transactional ids with an open transaction, of every coordinator that lives."""
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
    """What is wrong with one of them; that others were not tried because of it says nothing."""
    codes = [
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    telling = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return telling[0] if telling else next((code for code in codes if code), 0)
