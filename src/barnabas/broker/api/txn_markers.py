"""WriteTxnMarkers, v1 and v2 (KIP-890): a coordinator has decided; the leaders of the transaction's partitions write markers.

`barnabas transactions abort` uses it too, with ALTER on the cluster. A marker is answered when all replicas have it. In
`__consumer_offsets` it commits or drops offsets: the group coordinator is notified in the order of the log.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.transactions.state import ENDS_WITH_BUMP
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.wire.records import end_txn_marker


class OffsetsMarked(Protocol):
    """The group coordinator's callback: `GroupCoordinator.txn_completed`."""

    def __call__(
        self, partition: int, producer_id: int, producer_epoch: int, *, committed: bool, offset: int
    ) -> None: ...


_Entry = tuple[WritableTxnMarker, TopicPartition]


class TxnMarkersApi:
    def __init__(self, context: BrokerContext, offsets_marked: OffsetsMarked) -> None:
        self._context = context
        self._offsets_marked = offsets_marked

    @serves("WriteTxnMarkers", refusal("markers.topics.partitions <- markers.topics.partition_indexes"))
    def handle(self, call: Call, request: WriteTxnMarkersRequest) -> HandlerResult:
        if not self._context.allows(call, AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME):
            self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        self._write(request, call.reply)
        return None

    async def write_here(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Write markers for the coordinator on this broker, without a connection."""
        done: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()

        def answer(response: WriteTxnMarkersResponse) -> None:
            if not done.done():
                done.set_result(response)

        self._write(request, answer)
        return await done

    def _write(self, request: WriteTxnMarkersRequest, reply: Callable[[WriteTxnMarkersResponse], None]) -> None:
        response = WriteTxnMarkersResponse()
        answers: dict[int, WritableTxnMarkerPartitionResult] = {}
        entries: list[_Entry] = []
        for marker in request.markers:
            result = WritableTxnMarkerResult(producer_id=marker.producer_id)
            response.markers.append(result)
            for topic in marker.topics:
                topic_result = WritableTxnMarkerTopicResult(name=topic.name)
                result.topics.append(topic_result)
                for number in topic.partition_indexes:
                    partition = TopicPartition(topic.name, number)
                    answer = WritableTxnMarkerPartitionResult(
                        partition_index=number, error_code=self._refusal(marker, partition)
                    )
                    topic_result.partitions.append(answer)
                    if answer.error_code == ErrorCode.NONE:
                        answers[len(entries)] = answer
                        entries.append((marker, partition))
        if not entries:
            reply(response)
            return
        left = len(entries)

        def done(indexes: list[int], outcomes: Sequence[AppendEntry]) -> None:
            nonlocal left
            for index, outcome in zip(indexes, outcomes, strict=True):
                answers[index].error_code = outcome.error
            left -= len(indexes)
            if left == 0:
                reply(response)

        self._append_all(entries, done)

    def _refusal(self, marker: WritableTxnMarker, partition: TopicPartition) -> ErrorCode:
        replica = self._context.replicas.hosted.get(partition)
        if replica is None or replica.log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if replica.log.config.barnabas_link_name:
            # The topic became a mirror while the transaction was open. Its end was written at the source, and the link copies
            # it.
            return ErrorCode.POLICY_VIOLATION
        entry = replica.log.producers.entry(marker.producer_id)
        if (
            marker.transaction_version >= ENDS_WITH_BUMP
            and entry is not None
            and entry.txn_first_offset is not None
            and marker.producer_epoch <= entry.producer_epoch
        ):
            # The end of a transaction has a higher epoch than its records: this marker ends an earlier transaction.
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE

    def _append_all(self, entries: list[_Entry], done: Callable[[list[int], Sequence[AppendEntry]], None]) -> None:
        plain = [index for index, (_, partition) in enumerate(entries) if partition.topic != GROUP_METADATA_TOPIC]
        if plain:
            self._append([entries[index] for index in plain], lambda outcomes: done(plain, outcomes))
        for index, (marker, partition) in enumerate(entries):
            if partition.topic == GROUP_METADATA_TOPIC:
                self._append_to_offsets(
                    marker,
                    partition,
                    lambda outcomes, index=index: done([index], outcomes),  # type: ignore[misc]
                )

    def _append(self, entries: list[_Entry], done: Callable[[Sequence[AppendEntry]], None]) -> None:
        now_ms = self._context.clock.now_ms()
        self._context.replicas.appends.append(
            [AppendEntry(partition, _batch(marker, now_ms)) for marker, partition in entries],
            required_acks=-1,
            timeout_ms=self._context.config.request_timeout_ms,
            origin=Origin.COORDINATOR,
            on_done=done,
        )

    def _append_to_offsets(
        self, marker: WritableTxnMarker, partition: TopicPartition, done: Callable[[Sequence[AppendEntry]], None]
    ) -> None:
        replica = self._context.replicas.hosted.get(partition)
        assert replica is not None  # `_refusal` has checked it, without an await since
        log: Log = replica.local_log
        offset = log.log_end_offset
        self._append([(marker, partition)], done)
        if log.log_end_offset > offset:
            # Now, not when it is committed: the machine applies the log in order, as a new leader does when it loads it.
            self._offsets_marked(
                partition.partition,
                marker.producer_id,
                marker.producer_epoch,
                committed=marker.transaction_result,
                offset=offset,
            )


def _batch(marker: WritableTxnMarker, now_ms: int) -> bytearray:
    return bytearray(
        end_txn_marker(
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp=now_ms,
        )
    )
