"""Builds the transaction side of a broker: producer ids, coordinator, verifier, and the handlers that use them."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.broker.api.producers import ProducersApi
from barnabas.broker.api.transactions import TransactionsApi
from barnabas.broker.api.txn_markers import OffsetsMarked, TxnMarkersApi
from barnabas.broker.groups.coordinator import TransactionToVerify
from barnabas.broker.runtime.internal_log import coordinator_error
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.transactions.coordinator import TransactionCoordinator
from barnabas.broker.transactions.producer_ids import ProducerIdRange, ProducerIds
from barnabas.broker.transactions.state import Identity
from barnabas.broker.transactions.verification import Asked, Verifier
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

#: The first version of AddPartitionsToTxn that carries several transactions and can verify.
FIRST_VERSION_FOR_BROKERS = 4


class TransactionParts(NamedTuple):
    coordinator: TransactionCoordinator
    verifier: Verifier
    families: list[object]


def assemble(
    context: BrokerContext,
    coordinator_context: CoordinatorContext,
    connections: BrokerConnections,
    *,
    ask_controller: Callable[[AllocateProducerIdsRequest], Awaitable[AllocateProducerIdsResponse]],
    offsets_partition_for: Callable[[str], int],
    offsets_marked: OffsetsMarked,
    exists: Callable[[TopicPartition], Awaitable[bool]],
    transaction_version: Callable[[], int],
    on_bug: Callable[[BaseException], None],
) -> TransactionParts:
    """Return the parts, and set `context.transactions`. Requests to this broker itself use no connection."""
    api = TransactionsApi(context, offsets_partition_for)
    markers_api = TxnMarkersApi(context, offsets_marked)
    markers_lane = connections.lane("transaction-markers")
    verification_lane = connections.lane("transaction-verification")

    async def allocate_block() -> ProducerIdRange:
        request = AllocateProducerIdsRequest(broker_id=context.broker_id, broker_epoch=context.broker_epoch())
        response = await ask_controller(request)
        if response.error_code != ErrorCode.NONE:
            raise Refused(ErrorCode(response.error_code), "the controller has not assigned a block of producer ids")
        return ProducerIdRange(response.producer_id_start, response.producer_id_len)

    async def send_markers(broker: BrokerId, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if broker == context.broker_id:
            return await markers_api.write_here(request)
        connection = await markers_lane.to(broker)
        return await connection.request(request, WriteTxnMarkersResponse, timeout_ms=context.config.request_timeout_ms)

    async def ask(broker: BrokerId, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
        if broker == context.broker_id:
            return await api.add_for_brokers(request)
        connection = await verification_lane.to(broker)
        if connection.versions.pick(AddPartitionsToTxnRequest) < FIRST_VERSION_FOR_BROKERS:
            return None
        return await connection.request(
            request, AddPartitionsToTxnResponse, timeout_ms=context.config.request_timeout_ms
        )

    coordinator = context.transactions = TransactionCoordinator(
        coordinator_context,
        ProducerIds(allocate_block, timers=coordinator_context.timers, spawn=coordinator_context.spawn),
        send_markers=send_markers,
        exists=exists,
        on_bug=on_bug,
        transaction_version=transaction_version,
    )
    verifier = Verifier(
        coordinator_of=coordinator.topic.coordinator_of,
        ask=ask,
        now_ms=context.clock.now_ms,
        spawn=coordinator_context.spawn,
    )
    return TransactionParts(coordinator, verifier, [api, markers_api, ProducersApi(context)])


def offsets_verifier(
    context: BrokerContext, verifier: Callable[[], Verifier]
) -> Callable[[TransactionToVerify], Awaitable[object | None]]:
    """Return the check that the group coordinator runs before it writes offsets in a transaction."""

    async def verify(transaction: TransactionToVerify) -> object | None:
        try:
            log = context.replicas.hosted.require(
                TopicPartition(GROUP_METADATA_TOPIC, transaction.partition)
            ).leader_log()
        except Refused as refusal:
            raise Refused(coordinator_error(refusal.code), refusal.message) from refusal
        verdict = await verifier().verify_offsets(
            transaction.transactional_id,
            Identity(transaction.producer_id, transaction.producer_epoch),
            log,
            Asked.of_offset_commit(transaction.api_version),
        )
        if verdict.error is not ErrorCode.NONE:
            raise Refused(verdict.error, verdict.message)
        return verdict.guard

    return verify
