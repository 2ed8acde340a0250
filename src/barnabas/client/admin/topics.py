"""Topics: create, grow, delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from barnabas.base.errors import ErrorCode
from barnabas.client.core import ClientCore
from barnabas.client.errors import BrokerRefused, first_error
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """`-1` leaves partitions or replication factor to the cluster's defaults. An assignment determines both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


async def create_topics(cluster: ClientCore, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
    """Create all of them, or raise `BrokerRefused` for the first that failed."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=-1 if topic.assignment else topic.partitions,
                replication_factor=-1 if topic.assignment else topic.replication_factor,
                assignments=[
                    CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                    for index, brokers in topic.assignment.items()
                ],
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
            )
            for topic in topics
        ],
        timeout_ms=cluster.config.request_timeout_ms,
        validate_only=validate_only,
    )

    response = await cluster.ask_controller(request, CreateTopicsResponse, first_error=lambda r: first_error(r.topics))
    for result in response.topics:
        if result.error_code:
            raise BrokerRefused(result.error_code, result.error_message or f"topic {result.name}")


async def ensure_topic(cluster: ClientCore, topic: NewTopic) -> None:
    """Create the topic unless it exists."""
    try:
        await create_topics(cluster, [topic])
    except BrokerRefused as refused:
        if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def create_partitions(
    cluster: ClientCore, counts: Mapping[str, int], assignments: Mapping[str, Sequence[Sequence[int]]] | None = None
) -> None:
    """Grow topics to `counts`; `assignments` gives the replicas of the new partitions, in order."""
    given = assignments or {}
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=[CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in given[name]]
                if name in given
                else None,
            )
            for name, count in counts.items()
        ],
        timeout_ms=cluster.config.request_timeout_ms,
    )

    response = await cluster.ask_controller(
        request, CreatePartitionsResponse, first_error=lambda r: first_error(r.results)
    )
    for result in response.results:
        if result.error_code:
            raise BrokerRefused(result.error_code, result.error_message or f"topic {result.name}")


async def delete_topics(cluster: ClientCore, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Delete topics; return the outcome by topic."""
    request = DeleteTopicsRequest(
        topic_names=list(names),
        topics=[DeleteTopicState(name=name) for name in names],
        timeout_ms=cluster.config.request_timeout_ms,
    )

    response = await cluster.ask_controller(
        request, DeleteTopicsResponse, first_error=lambda r: first_error(r.responses)
    )
    return {result.name or "": ErrorCode(result.error_code) for result in response.responses}
