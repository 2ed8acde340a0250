"""The ends of partitions for consumers, from their leaders: this broker, or others by ListOffsets."""

import asyncio
from collections.abc import Collection
from typing import Final

from barnabas.base.errors import BarnabasError, ErrorCode
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.context import BrokerContext
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_LATEST: Final = -1
_CONSUMER: Final = -1


class LogEnds:
    def __init__(self, context: BrokerContext, connections: BrokerConnections) -> None:
        self._context = context
        self._lane = connections.lane("log-ends")

    async def find(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | ErrorCode]:
        """Return each partition's end, or why it is not known."""
        ends: dict[TopicPartition, int | ErrorCode] = {}
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        for tp in partitions:
            hosted = self._context.replicas.hosted.get(tp)
            end = None if hosted is None else hosted.end_for_consumer(-1)
            leader = self._leader_of(tp)
            if end is not None:
                ends[tp] = end
            elif leader is None or leader == self._context.broker_id:
                ends[tp] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_leader.setdefault(leader, []).append(tp)
        for found in await asyncio.gather(*(self._ask(*each) for each in by_leader.items())):
            ends.update(found)
        return ends

    def _leader_of(self, tp: TopicPartition) -> BrokerId | None:
        topic = self._context.metadata.topic(tp.topic)
        state = None if topic is None else topic.partitions.get(tp.partition)
        return None if state is None or state.leader < 0 else BrokerId(state.leader)

    async def _ask(self, leader: BrokerId, partitions: list[TopicPartition]) -> dict[TopicPartition, int | ErrorCode]:
        topics: dict[str, ListOffsetsTopic] = {}
        for tp in partitions:
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
            topic.partitions.append(ListOffsetsPartition(partition_index=tp.partition, timestamp=_LATEST))
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        ends: dict[TopicPartition, int | ErrorCode] = dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            connection = await self._lane.to(leader)
            response = await connection.request(
                request, ListOffsetsResponse, timeout_ms=self._context.config.request_timeout_ms
            )
        except BarnabasError:
            return ends
        for answers in response.topics:
            for each in answers.partitions:
                tp = TopicPartition(answers.name, each.partition_index)
                ends[tp] = ErrorCode(each.error_code) if each.error_code else each.offset
        return ends
