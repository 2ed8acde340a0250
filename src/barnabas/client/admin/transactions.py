"""Transactions and the producers of partitions."""

from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.base.ids import TopicPartition
from barnabas.client.core import TRANSACTION, ClientCore
from barnabas.client.errors import check
from barnabas.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from barnabas.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


async def list_transactions(
    cluster: ClientCore, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), duration_ms: int = -1
) -> list[TransactionListing]:
    """List the transactions of all brokers: each broker knows only the transactions that it coordinates."""
    found: list[TransactionListing] = []
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=duration_ms
    )
    for broker_id in sorted(await cluster.brokers()):

        async def once(broker_id: int = broker_id) -> ListTransactionsResponse:
            response = await cluster.ask(broker_id, request, ListTransactionsResponse)
            check(response.error_code)
            return response

        for state in (await cluster.retrying("ListTransactions", once)).transaction_states:
            found.append(
                TransactionListing(state.transactional_id, broker_id, state.producer_id, state.transaction_state)
            )
    return found


async def describe_transaction(cluster: ClientCore, transactional_id: str) -> tuple[int, TransactionState]:
    """Return the coordinator's broker id and its state of the transaction."""
    response = await cluster.ask_coordinator(
        transactional_id,
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        DescribeTransactionsResponse,
        kind=TRANSACTION,
        error_of=lambda answer: answer.transaction_states[0].error_code,
    )
    state = response.transaction_states[0]
    check(state.error_code, f"transactional id {transactional_id}")
    return await cluster.coordinator(transactional_id, TRANSACTION), state


async def describe_producers(
    cluster: ClientCore, partition: TopicPartition, *, broker_id: int | None = None
) -> list[ProducerState]:
    """Return the producers that the leader of a partition (or the given replica) remembers."""

    async def once() -> list[ProducerState]:
        at = broker_id
        if at is None:
            (at,) = await cluster.leaders([partition])
        response = await cluster.ask(
            at,
            DescribeProducersRequest(
                topics=[TopicRequest(name=partition.topic, partition_indexes=[partition.partition])]
            ),
            DescribeProducersResponse,
        )
        result = response.topics[0].partitions[0]
        check(result.error_code, result.error_message)
        return result.active_producers

    return await cluster.retrying("DescribeProducers", once)


async def abort_transaction(
    cluster: ClientCore, partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Write an abort marker to one partition without the coordinator. This ends a hanging transaction."""

    async def once() -> None:
        (leader,) = await cluster.leaders([partition])
        response = await cluster.ask(
            leader,
            WriteTxnMarkersRequest(
                markers=[
                    WritableTxnMarker(
                        producer_id=producer_id,
                        producer_epoch=producer_epoch,
                        coordinator_epoch=coordinator_epoch,
                        transaction_result=False,
                        topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
                    )
                ]
            ),
            WriteTxnMarkersResponse,
        )
        check(response.markers[0].topics[0].partitions[0].error_code)

    await cluster.retrying("WriteTxnMarkers", once)
