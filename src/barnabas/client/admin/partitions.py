"""Partitions: offsets, deleting records, elections, reassignments, log directories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from barnabas.base.errors import RETRIABLE, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_UNCOMMITTED
from barnabas.client.core import ClientCore
from barnabas.client.errors import BrokerRefused, check
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


@dataclass(frozen=True, slots=True)
class ListedOffset:
    offset: int
    timestamp_ms: int
    leader_epoch: int
    error: ErrorCode = ErrorCode.NONE


async def list_offsets(
    cluster: ClientCore, wanted: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
) -> dict[TopicPartition, ListedOffset]:
    """Look up offsets by time (or `LATEST`, `EARLIEST`, …). A partition whose leader keeps refusing has its error set."""
    found: dict[TopicPartition, ListedOffset] = {}

    async def once() -> None:
        by_leader = await cluster.leaders(partition for partition in wanted if partition not in found)
        again: BrokerRefused | None = None
        for leader, partitions in by_leader.items():
            response = await cluster.ask(
                leader, list_offsets_request(partitions, wanted, isolation_level), ListOffsetsResponse
            )
            for topic in response.topics:
                for part in topic.partitions:
                    code = ErrorCode(part.error_code)
                    key = TopicPartition(topic.name, part.partition_index)
                    if code in RETRIABLE:
                        again = BrokerRefused(code, str(key))
                        continue
                    found[key] = ListedOffset(part.offset, part.timestamp, part.leader_epoch, code)
        if again is not None:
            raise again

    names = ", ".join(dict.fromkeys(partition.topic for partition in wanted))
    await cluster.retrying(f"offsets of {names}", once)
    return found


def list_offsets_request(
    partitions: Iterable[TopicPartition], wanted: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=wanted[TopicPartition(topic, index)])
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(partitions).items()
        ],
    )


async def delete_records(
    cluster: ClientCore, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, ErrorCode]]:
    """Delete records; return (new low watermark, outcome) by partition. Offset -1 means the high watermark."""

    results: dict[TopicPartition, tuple[int, ErrorCode]] = {}

    async def once() -> None:
        known = await cluster.topics({partition.topic for partition in before})
        missing = [p for p in before if p.topic not in known or cluster.image.partition(p) is None]
        results.update(dict.fromkeys(missing, (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        by_leader = await cluster.leaders(partition for partition in before if partition not in results)
        for leader, partitions in by_leader.items():
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=index, offset=before[TopicPartition(topic, index)])
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(partitions).items()
                ],
                timeout_ms=cluster.config.request_timeout_ms,
            )
            response = await cluster.ask(leader, request, DeleteRecordsResponse)
            for topic in response.topics:
                for part in topic.partitions:
                    outcome = (part.low_watermark, ErrorCode(part.error_code))
                    results[TopicPartition(topic.name, part.partition_index)] = outcome

    await cluster.retrying("DeleteRecords", once)
    return results


PREFERRED = 0
UNCLEAN = 1


async def elect_leaders(
    cluster: ClientCore, kind: int, partitions: Sequence[TopicPartition] | None
) -> dict[TopicPartition, tuple[ErrorCode, str | None]]:
    """Elect leaders; None means all partitions. As in Kafka, partitions that needed no election are then left out."""
    request = ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if partitions is None
        else [TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()],
        timeout_ms=cluster.config.request_timeout_ms,
    )
    response = await cluster.ask_controller(request, ElectLeadersResponse, first_error=lambda r: r.error_code)
    check(response.error_code)
    return {
        TopicPartition(topic.topic, part.partition_id): (ErrorCode(part.error_code), part.error_message)
        for topic in response.replica_election_results
        for part in topic.partition_result
    }


@dataclass(frozen=True, slots=True)
class Reassignment:
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def list_reassignments(
    cluster: ClientCore, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    request = ListPartitionReassignmentsRequest(
        timeout_ms=cluster.config.request_timeout_ms,
        topics=None
        if partitions is None
        else [
            ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(partitions).items()
        ],
    )
    response = await cluster.ask_controller(
        request, ListPartitionReassignmentsResponse, first_error=lambda r: r.error_code
    )
    check(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, part.partition_index): Reassignment(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in response.topics
        for part in topic.partitions
    }


async def alter_reassignments(
    cluster: ClientCore, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, tuple[ErrorCode, str | None]]:
    """Set new replicas by partition (None cancels) and return the outcome by partition."""
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=cluster.config.request_timeout_ms,
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=index,
                        replicas=None if (new := targets[TopicPartition(topic, index)]) is None else list(new),
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(targets).items()
        ],
    )
    response = await cluster.ask_controller(
        request, AlterPartitionReassignmentsResponse, first_error=lambda r: r.error_code
    )
    check(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, part.partition_index): (ErrorCode(part.error_code), part.error_message)
        for topic in response.responses
        for part in topic.partitions
    }


async def describe_log_dirs(
    cluster: ClientCore, broker_id: int, partitions: Iterable[TopicPartition] | None = None
) -> list[DescribeLogDirsResult]:
    """Describe the log directories of a broker, with all their replicas or only the given ones."""
    request = DescribeLogDirsRequest(
        topics=None
        if partitions is None
        else [
            DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()
        ]
    )
    response = await cluster.ask(broker_id, request, DescribeLogDirsResponse)
    check(response.error_code)
    return response.results


async def alter_replica_log_dirs(
    cluster: ClientCore, broker_id: int, moves: Mapping[TopicPartition, str]
) -> dict[TopicPartition, ErrorCode]:
    """Move replicas of one broker to other log directories of its own."""
    by_dir: dict[str, list[TopicPartition]] = {}
    for partition, path in moves.items():
        by_dir.setdefault(path, []).append(partition)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                    for topic, indexes in by_topic(partitions).items()
                ],
            )
            for path, partitions in by_dir.items()
        ]
    )
    response = await cluster.ask(broker_id, request, AlterReplicaLogDirsResponse)
    return {
        TopicPartition(topic.topic_name, part.partition_index): ErrorCode(part.error_code)
        for topic in response.results
        for part in topic.partitions
    }
