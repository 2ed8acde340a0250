"""Offsets of a consumer group, committed without being a member and without an event loop."""

from collections.abc import Mapping
from typing import Final

from barnabas.client.admin.groups import CommittedOffset, commit_request
from barnabas.client.blocking import BlockingClient, BlockingConnection
from barnabas.client.errors import check
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.offset_commit import OffsetCommitResponse

_GROUP: Final = 0


def commit_offsets(client: BlockingClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """An administrator's commit: the group must have no members that a coordinator knows of."""
    request = commit_request(group_id, {partition: CommittedOffset(offset) for partition, offset in offsets.items()})

    def once() -> None:
        response = _coordinator(client, group_id).request(request, OffsetCommitResponse)
        for topic in response.topics:
            for part in topic.partitions:
                check(part.error_code, f"group {group_id}, {topic.name}-{part.partition_index}")

    client.retrying(f"commit to group {group_id}", once)


def _coordinator(client: BlockingClient, group_id: str) -> BlockingConnection:
    request = FindCoordinatorRequest(key=group_id, key_type=_GROUP, coordinator_keys=[group_id])
    response = client.any_connection().request(request, FindCoordinatorResponse)
    # Version 4 and later answer for many keys at once.
    check(response.error_code, f"group {group_id}")
    for found in response.coordinators:
        check(found.error_code, f"group {group_id}")
    broker_id = response.coordinators[0].node_id if response.coordinators else response.node_id
    if broker_id not in client.image.brokers:
        client.refresh([])
    return client.connection(broker_id)
