"""DescribeLogDirs, v1 to v5 (KIP-113, KIP-827); AlterReplicaLogDirs, v1 to v2; DeleteRecords, v0 to v2 (KIP-107).

Log directories cannot be cordoned (v5) in ZooKeeper mode: always false.
"""

import os

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import is_internal
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.runtime.turns import in_turns
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_dir import LogDir
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from barnabas.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def refuse_alter(request: AlterReplicaLogDirsRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=p, error_code=code) for p in topic.partitions
                ],
            )
            for wish in request.dirs
            for topic in wish.topics
        ]
    )


class LogDirsApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    # -- DescribeLogDirs ----------------------------------------------------------------------------------------------

    @serves("DescribeLogDirs", refusal())
    async def describe(self, call: Call, request: DescribeLogDirsRequest) -> ApiMessage:
        if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = {TopicPartition(t.topic, p) for t in request.topics for p in t.partitions}
        return DescribeLogDirsResponse(
            results=[await self._describe_dir(log_dir, wanted) for log_dir in list(self._context.logs.dirs)]
        )

    async def _describe_dir(self, log_dir: LogDir, wanted: set[TopicPartition] | None) -> DescribeLogDirsResult:
        result = DescribeLogDirsResult(log_dir=log_dir.path)
        if not log_dir.is_online:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        try:
            room = os.statvfs(log_dir.path)
        except OSError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        result.total_bytes = room.f_blocks * room.f_frsize
        result.usable_bytes = room.f_bavail * room.f_frsize
        topics: dict[str, DescribeLogDirsTopic] = {}
        async for log in in_turns(list(self._context.logs.logs_in(log_dir))):
            tp = log.partition
            if wanted is not None and tp not in wanted:
                continue
            topic = topics.get(tp.topic)
            if topic is None:
                topic = topics[tp.topic] = DescribeLogDirsTopic(name=tp.topic)
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=tp.partition,
                    partition_size=log.size_bytes,
                    offset_lag=self._lag(log),
                    is_future_key=log.is_future,
                )
            )
        result.topics = list(topics.values())
        return result

    def _lag(self, log: Log) -> int:
        """Return the lag: of a future log behind the current one, of the current log behind its own high watermark."""
        if log.is_future:
            current = self._context.logs.get(log.partition)
            return max(0, current.log_end_offset - log.log_end_offset) if current is not None else -1
        return max(0, log.high_watermark - log.log_end_offset)

    # -- AlterReplicaLogDirs ------------------------------------------------------------------------------------------

    @serves("AlterReplicaLogDirs", refuse_alter)
    def alter(self, call: Call, request: AlterReplicaLogDirsRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.ALTER)
        response = AlterReplicaLogDirsResponse()
        topics: dict[str, AlterReplicaLogDirTopicResult] = {}
        for wish in request.dirs:
            for topic in wish.topics:
                answers = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
                for partition in topic.partitions:
                    error = self._context.moves.begin(TopicPartition(topic.name, partition), wish.path)
                    answers.partitions.append(
                        AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=error)
                    )
        response.results = list(topics.values())
        return response

    # -- DeleteRecords ------------------------------------------------------------------------------------------------

    @serves("DeleteRecords", refusal("topics.partitions <- topics.partitions", low_watermark=-1))
    def delete_records(self, call: Call, request: DeleteRecordsRequest) -> HandlerResult:
        response = DeleteRecordsResponse()
        entries: list[tuple[TopicPartition, int]] = []
        answers: list[DeleteRecordsPartitionResult] = []
        for topic in request.topics:
            results = DeleteRecordsTopicResult(name=topic.name)
            response.topics.append(results)
            error = self._refusal(call, topic.name)
            for partition in topic.partitions:
                answer = DeleteRecordsPartitionResult(
                    partition_index=partition.partition_index, low_watermark=-1, error_code=error
                )
                results.partitions.append(answer)
                if error is ErrorCode.NONE:
                    entries.append((TopicPartition(topic.name, partition.partition_index), partition.offset))
                    answers.append(answer)

        def done(outcomes: list[tuple[ErrorCode, int]]) -> None:
            for answer, (code, low_watermark) in zip(answers, outcomes, strict=True):
                answer.error_code, answer.low_watermark = code, low_watermark
            call.reply(response)

        call.waits_in = self._context.replicas.delete_records(entries, timeout_ms=request.timeout_ms, on_done=done)
        return None

    def _refusal(self, call: Call, topic: str) -> ErrorCode:
        if not self._context.allows_topic(call, AclOperation.DELETE, topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if is_internal(topic):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        # The replicas check whether the partition exists: a broker may lead it before it has the topic's metadata.
        config = self._context.dynamic.log_config(topic)
        if config.barnabas_link_name or not config.is_deleted_by_retention:
            return ErrorCode.POLICY_VIOLATION
        return ErrorCode.NONE
