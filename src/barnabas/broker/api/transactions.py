"""Transactions: InitProducerId v0 to v6 (KIP-360 from v3, KIP-939 in v6), AddPartitionsToTxn v0 to v5 (v4 and later batched and
from brokers only: KIP-890), AddOffsetsToTxn v0 to v4, EndTxn v0 to v5 (v5 raises the epoch: KIP-890 part 2),
DescribeTransactions and ListTransactions (v1 by duration, v2 by pattern).

TxnOffsetCommit is in `group_offsets`, WriteTxnMarkers in `txn_markers`.
"""

import asyncio
from collections.abc import Callable

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.expressions import BadExpression, compile_expression
from barnabas.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, is_internal
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.transactions.initializing import InitRequest
from barnabas.broker.transactions.machine import ListFilter
from barnabas.broker.transactions.state import (
    ENDS_WITH_BUMP,
    ENDS_WITHOUT_BUMP,
    STATES_BY_NAME,
    Identity,
    Transaction,
    TransactionState,
)
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from barnabas.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from barnabas.wire.messages.list_transactions import TransactionState as ListedTransaction

#: From this version on, requests come from other brokers and contain several transactions.
BATCHED_FROM = 4

_Errors = dict[TopicPartition, ErrorCode]


class TransactionsApi:
    def __init__(self, context: BrokerContext, offsets_partition_for: Callable[[str], int]) -> None:
        self._context = context
        self._offsets_partition_for = offsets_partition_for

    def _require_write(self, call: Call, transactional_id: str) -> None:
        if not self._context.allows(call, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    # -- InitProducerId -----------------------------------------------------------------------------------------------

    @serves("InitProducerId", refusal(producer_id=-1, producer_epoch=-1))
    async def init_producer_id(self, call: Call, request: InitProducerIdRequest) -> ApiMessage:
        if request.transactional_id is None:
            self._require_idempotent_write(call)
            producer_id = await self._context.transactions.producer_ids.next()
            return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
        self._require_write(call, request.transactional_id)
        if request.enable2_pc and not self._context.allows(
            call, AclOperation.TWO_PHASE_COMMIT, AclResourceType.TRANSACTIONAL_ID, request.transactional_id
        ):
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not request.transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        answer = await self._context.transactions.init_producer_id(
            InitRequest(
                request.transactional_id,
                request.transaction_timeout_ms,
                _expected(request),
                request.enable2_pc,
                request.keep_prepared_txn,
            )
        )
        return InitProducerIdResponse(
            error_code=_known_error(answer.error, knows_fenced=call.api_version >= 4),
            producer_id=answer.identity.producer_id,
            producer_epoch=answer.identity.epoch,
            ongoing_txn_producer_id=answer.ongoing.producer_id,
            ongoing_txn_producer_epoch=answer.ongoing.epoch,
        )

    def _require_idempotent_write(self, call: Call) -> None:
        """Check the right to produce idempotently (KIP-679): the right to write to any topic is enough."""
        context = self._context
        if context.shows(call, AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, CLUSTER_NAME):
            return
        channel = call.channel
        if not context.authorizer.allows_on_any(
            channel.principal, channel.peer_host, AclOperation.WRITE, AclResourceType.TOPIC
        ):
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    # -- AddPartitionsToTxn -------------------------------------------------------------------------------------------

    @serves(
        "AddPartitionsToTxn",
        refusal("results_by_topic_v3_and_below.results_by_partition <- v3_and_below_topics.partitions"),
    )
    async def add_partitions(self, call: Call, request: AddPartitionsToTxnRequest) -> ApiMessage:
        if call.api_version < BATCHED_FROM:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
            errors = await self._add_for_client(call, transaction)
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(errors))
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        return await self.add_for_brokers(request)

    async def add_for_brokers(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Add partitions for brokers. This broker calls it directly for its own requests, without a connection."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._add_for_broker(transaction)) for transaction in request.transactions]
        response = AddPartitionsToTxnResponse()
        for transaction, task in zip(request.transactions, tasks, strict=True):
            response.results_by_transaction.append(
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id, topic_results=_topic_results(task.result())
                )
            )
        return response

    async def _add_for_client(self, call: Call, transaction: AddPartitionsToTxnTransaction) -> _Errors:
        partitions = _partitions_of(transaction)
        try:
            self._require_write(call, transaction.transactional_id)
        except Refused as refusal:
            return dict.fromkeys(partitions, refusal.code)
        bad = self._unknown(partitions)
        for partition in partitions:
            topic = partition.topic
            if is_internal(topic) or not self._context.allows_topic(call, AclOperation.WRITE, topic):
                bad[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif self._context.link_of(topic) is not None:
                bad[partition] = ErrorCode.POLICY_VIOLATION
        if bad:
            return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | bad
        error = await self._add(transaction, partitions, client_version=ENDS_WITHOUT_BUMP)
        return dict.fromkeys(partitions, _known_error(error, knows_fenced=call.api_version >= 2))

    async def _add_for_broker(self, transaction: AddPartitionsToTxnTransaction) -> _Errors:
        partitions = _partitions_of(transaction)
        bad = self._unknown(partitions)
        if bad:
            return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | bad
        if not transaction.verify_only:
            error = await self._add(transaction, partitions, client_version=ENDS_WITH_BUMP, by_broker=True)
            return dict.fromkeys(partitions, error)
        try:
            return await self._context.transactions.verify_partitions(
                transaction.transactional_id,
                Identity(transaction.producer_id, transaction.producer_epoch),
                partitions,
            )
        except Refused as refusal:
            return dict.fromkeys(partitions, refusal.code)

    async def _add(
        self,
        transaction: AddPartitionsToTxnTransaction,
        partitions: list[TopicPartition],
        *,
        client_version: int,
        by_broker: bool = False,
    ) -> ErrorCode:
        if not transaction.transactional_id:
            return ErrorCode.INVALID_REQUEST
        identity = Identity(transaction.producer_id, transaction.producer_epoch)
        try:
            return await self._context.transactions.add_partitions(
                transaction.transactional_id,
                identity,
                partitions,
                client_version=client_version,
                by_broker=by_broker,
            )
        except Refused as refusal:
            return refusal.code

    def _unknown(self, partitions: list[TopicPartition]) -> _Errors:
        metadata = self._context.metadata
        return {
            partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for partition in partitions
            if metadata.partition(partition) is None
        }

    # -- AddOffsetsToTxn, EndTxn --------------------------------------------------------------------------------------

    @serves("AddOffsetsToTxn", refusal())
    async def add_offsets(self, call: Call, request: AddOffsetsToTxnRequest) -> ApiMessage:
        self._require_write(call, request.transactional_id)
        if not self._context.allows(call, AclOperation.READ, AclResourceType.GROUP, request.group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        partition = TopicPartition(GROUP_METADATA_TOPIC, self._offsets_partition_for(request.group_id))
        error = await self._context.transactions.add_partitions(
            request.transactional_id, Identity(request.producer_id, request.producer_epoch), [partition]
        )
        return AddOffsetsToTxnResponse(error_code=_known_error(error, knows_fenced=call.api_version >= 2))

    @serves("EndTxn", refusal())
    async def end(self, call: Call, request: EndTxnRequest) -> ApiMessage:
        self._require_write(call, request.transactional_id)
        if not request.transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        answer = await self._context.transactions.end(
            request.transactional_id,
            Identity(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=ENDS_WITH_BUMP if call.api_version >= 5 else ENDS_WITHOUT_BUMP,
        )
        return EndTxnResponse(
            error_code=_known_error(answer.error, knows_fenced=call.api_version >= 2),
            producer_id=answer.identity.producer_id,
            producer_epoch=answer.identity.epoch,
        )

    # -- DescribeTransactions, ListTransactions -----------------------------------------------------------------------

    @serves("DescribeTransactions", refusal("transaction_states <- transactional_ids"))
    async def describe(self, call: Call, request: DescribeTransactionsRequest) -> ApiMessage:
        states = [await self._describe(call, name) for name in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=states)

    async def _describe(self, call: Call, transactional_id: str) -> DescribedTransaction:
        described = DescribedTransaction(transactional_id=transactional_id)
        if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
            described.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return described
        if not transactional_id:
            described.error_code = ErrorCode.INVALID_REQUEST
            return described
        try:
            txn = await self._context.transactions.describe(transactional_id)
        except Refused as refusal:
            described.error_code = refusal.code
            return described
        if txn is None:
            described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return described
        return self._describe_known(call, described, txn)

    def _describe_known(self, call: Call, described: DescribedTransaction, txn: Transaction) -> DescribedTransaction:
        described.transaction_state = txn.state.kafka_name
        described.transaction_timeout_ms = txn.timeout_ms
        described.transaction_start_time_ms = txn.start_ms
        described.producer_id = txn.producer_id
        described.producer_epoch = txn.epoch
        topics: dict[str, TopicData] = {}
        for topic, partition in txn.partitions:
            topics.setdefault(topic, TopicData(topic=topic)).partitions.append(partition)
        described.topics = [
            data
            for topic, data in topics.items()
            if self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)
        ]
        return described

    @serves("ListTransactions", refusal())
    async def list_transactions(self, call: Call, request: ListTransactionsRequest) -> ApiMessage:
        response = ListTransactionsResponse()
        states: set[TransactionState] = set()
        for name in request.state_filters:
            state = STATES_BY_NAME.get(name)
            if state is None:
                response.unknown_state_filters.append(name)
            else:
                states.add(state)
        wanted = ListFilter(
            frozenset(states) if request.state_filters else None,
            frozenset(request.producer_id_filters),
            request.duration_filter,
            _matcher(request.transactional_id_pattern),
        )
        for txn in await self._context.transactions.select(wanted):
            transactional_id = txn.transactional_id
            if self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
                response.transaction_states.append(
                    ListedTransaction(
                        transactional_id=transactional_id,
                        producer_id=txn.producer_id,
                        transaction_state=txn.state.kafka_name,
                    )
                )
        return response


def _expected(request: InitProducerIdRequest) -> Identity | None:
    has_id = request.producer_id != NO_PRODUCER_ID
    if has_id != (request.producer_epoch != NO_PRODUCER_EPOCH):
        raise Refused(ErrorCode.INVALID_REQUEST, "producer id and producer epoch must be set together")
    return Identity(request.producer_id, request.producer_epoch) if has_id else None


def _known_error(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """Replace PRODUCER_FENCED for old clients, which do not know it."""
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    if not pattern:
        return None
    try:
        compiled = compile_expression(pattern)
    except BadExpression as error:
        raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from None
    return lambda text: compiled.fullmatch(text) is not None


def _partitions_of(transaction: AddPartitionsToTxnTransaction) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in transaction.topics for number in topic.partitions]


def _topic_results(errors: _Errors) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, partition), error in errors.items():
        result = topics.setdefault(topic, AddPartitionsToTxnTopicResult(name=topic))
        result.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=error)
        )
    return list(topics.values())
