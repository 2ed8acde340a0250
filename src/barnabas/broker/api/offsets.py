"""ListOffsets, v1 to v11 (all special timestamps; by timestamp on either side of the border to the tier), and
OffsetForLeaderEpoch, v2 to v4 (KIP-101, KIP-320).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.words import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    AclOperation,
    AclResourceType,
)
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.storage.log_types import TimestampedOffset
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

#: A look-up that waits for the tier.
InTier = Callable[[], Awaitable[None]]
#: How long look-ups by timestamp run before other requests do.
TURN_S: Final = 0.01
CONSUMER_REPLICA_ID = -1
#: The version from which on clients may send each special timestamp.
SPECIAL_FROM_VERSION = {
    EARLIEST: 1,
    LATEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
#: Before this version clients do not know OFFSET_NOT_AVAILABLE (KIP-207).
NOT_AVAILABLE_FROM_VERSION = 5
#: Replica id of a tool that accepts an answer from any replica.
DEBUGGING_REPLICA_ID = -2


def _last(answer: Iterator[ListOffsetsResponse]) -> ListOffsetsResponse:
    response = next(answer)
    deque(answer, maxlen=0)
    return response


def _named_twice(request: ListOffsetsRequest) -> set[TopicPartition]:
    """Return the partitions that a request names twice. Consoles send thousands every second: the usual case is fast."""
    names = {topic.name for topic in request.topics}
    if len(names) == len(request.topics) and all(
        len({partition.partition_index for partition in topic.partitions}) == len(topic.partitions)
        for topic in request.topics
    ):
        return set()
    seen: set[TopicPartition] = set()
    twice: set[TopicPartition] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            (twice if tp in seen else seen).add(tp)
    return twice


class OffsetsApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @serves("ListOffsets", refusal("topics.partitions <- topics.partitions"))
    def list_offsets(self, call: Call, request: ListOffsetsRequest) -> HandlerResult:
        in_tier: list[InTier] = []
        answer = self._list_offsets(call, request, in_tier)
        if any(
            partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP
            for topic in request.topics
            for partition in topic.partitions
        ):
            return self._in_turns(answer, in_tier)
        return _last(answer)

    async def _in_turns(self, answer: Iterator[ListOffsetsResponse], in_tier: "list[InTier]") -> ListOffsetsResponse:
        """Answer in turns: to find a timestamp, batches are read and decompressed, and other requests run in between. Look-ups
        in the tier are collected in `in_tier` and run together."""
        now_s = self._context.clock.monotonic_s
        ends_s = now_s() + TURN_S
        response = ListOffsetsResponse()
        for response in answer:  # noqa: B007
            if now_s() > ends_s:
                await asyncio.sleep(0)
                ends_s = now_s() + TURN_S
        if in_tier:
            await asyncio.gather(*(find() for find in in_tier))
        return response

    def _list_offsets(
        self, call: Call, request: ListOffsetsRequest, in_tier: "list[InTier]"
    ) -> Iterator[ListOffsetsResponse]:
        """Yield the growing response after each partition."""
        response = ListOffsetsResponse()
        yield response
        twice = _named_twice(request)
        is_consumer = request.replica_id == CONSUMER_REPLICA_ID and request.isolation_level != READ_COMMITTED
        wants_ends = is_consumer and not twice and call.api_version >= SPECIAL_FROM_VERSION[LATEST]
        get = self._context.replicas.hosted.get
        for topic in request.topics:
            answers = ListOffsetsTopicResponse(name=topic.name)
            response.topics.append(answers)
            allowed = self._context.allows_topic(call, AclOperation.DESCRIBE, topic.name)
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                if wants_ends and allowed and partition.timestamp == LATEST and (hosted := get(tp)) is not None:
                    end = hosted.end_for_consumer(partition.current_leader_epoch)
                    if end is not None:
                        answers.partitions.append(
                            ListOffsetsPartitionResponse(
                                partition_index=partition.partition_index,
                                offset=end,
                                leader_epoch=hosted.machine.leader_epoch,
                            )
                        )
                        continue
                answer = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
                answers.partitions.append(answer)
                if not allowed:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif twice and tp in twice:
                    answer.error_code = ErrorCode.INVALID_REQUEST
                elif partition.timestamp < 0 and call.api_version < SPECIAL_FROM_VERSION.get(
                    partition.timestamp, 2**15
                ):
                    answer.error_code = ErrorCode.UNSUPPORTED_VERSION
                else:
                    if self._is_in_tier(tp, partition.timestamp):
                        in_tier.append(partial(self._find_in_tier, call, request, partition, tp, answer))
                    else:
                        self._find(call, request, partition, tp, answer)
                    yield response

    def _is_in_tier(self, tp: TopicPartition, timestamp: int) -> bool:
        tier = self._context.replicas.fetches.tier
        if tier is None or (timestamp < 0 and timestamp != MAX_TIMESTAMP):
            return False
        partition = self._context.replicas.hosted.get(tp)
        return partition is not None and tier.may_have(partition)

    async def _find_in_tier(
        self,
        call: Call,
        request: ListOffsetsRequest,
        wanted: ListOffsetsPartition,
        tp: TopicPartition,
        answer: ListOffsetsPartitionResponse,
    ) -> None:
        """Look in the tier first, which has the earlier records; then in the local log, which may have changed meanwhile."""
        tier = self._context.replicas.fetches.tier
        assert tier is not None
        found: TimestampedOffset | None = None
        try:
            partition = self._context.replicas.hosted.require(tp)
            if request.replica_id != DEBUGGING_REPLICA_ID:
                partition.leader_log(wanted.current_leader_epoch)
            found = await tier.offset_for(partition, wanted.timestamp)
            while found is not None and found.offset < partition.local_log.log_start_offset:
                found = await tier.offset_for(partition, wanted.timestamp)  # the log start has moved meanwhile
        except Refused as refusal:
            self._refuse(call, answer, refusal.code)
            return
        except LogDirFault:
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return
        self._find(call, request, wanted, tp, answer, in_tier=found)

    @staticmethod
    def _refuse(call: Call, answer: ListOffsetsPartitionResponse, code: ErrorCode) -> None:
        if code == ErrorCode.OFFSET_NOT_AVAILABLE and call.api_version < NOT_AVAILABLE_FROM_VERSION:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        answer.error_code = code

    def _find(
        self,
        call: Call,
        request: ListOffsetsRequest,
        wanted: ListOffsetsPartition,
        tp: TopicPartition,
        answer: ListOffsetsPartitionResponse,
        *,
        in_tier: TimestampedOffset | None = None,
    ) -> None:
        try:
            partition = self._context.replicas.hosted.require(tp)
            if request.replica_id != DEBUGGING_REPLICA_ID:
                partition.leader_log(wanted.current_leader_epoch)
            found = in_tier or partition.offset_for(
                wanted.timestamp,
                isolation_level=request.isolation_level,
                is_from_client=request.replica_id == CONSUMER_REPLICA_ID,
            )
        except Refused as refusal:
            self._refuse(call, answer, refusal.code)
            return
        except LogDirFault:
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return
        if found is not None:
            answer.timestamp = found.timestamp
            answer.offset = found.offset
            answer.leader_epoch = found.leader_epoch if found.leader_epoch is not None else -1

    @serves("OffsetForLeaderEpoch", refusal("topics.partitions <- topics.partitions"))
    def offset_for_leader_epoch(self, call: Call, request: OffsetForLeaderEpochRequest) -> HandlerResult:
        response = OffsetForLeaderEpochResponse()
        is_broker = self._context.shows(call, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
        for topic in request.topics:
            answers = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(answers)
            allowed = is_broker or self._context.allows_topic(call, AclOperation.DESCRIBE, topic.topic)
            for partition in topic.partitions:
                answer = EpochEndOffset(partition=partition.partition)
                answers.partitions.append(answer)
                if allowed:
                    self._find_epoch_end(TopicPartition(topic.topic, partition.partition), partition, answer)
                else:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return response

    def _find_epoch_end(self, tp: TopicPartition, wanted: OffsetForLeaderPartition, answer: EpochEndOffset) -> None:
        try:
            log = self._context.replicas.hosted.require(tp).leader_log(wanted.current_leader_epoch)
            end = log.end_offset_for_epoch(wanted.leader_epoch)
        except Refused as refusal:
            answer.error_code = refusal.code
            return
        answer.leader_epoch = end.epoch
        answer.end_offset = end.end_offset
