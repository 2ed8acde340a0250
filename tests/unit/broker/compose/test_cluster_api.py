"""What the controller's API makes of requests before the controller sees them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.api.cluster import ClusterApi
from barnabas.broker.controller.context import ControllerContext
from barnabas.broker.controller.events import AlterReassignments
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

MOVING, STILL = 0, 1


def test_number_of_replicas_that_must_not_change_is_the_one_that_a_partition_is_to_have() -> None:
    """KIP-860. A partition that moves has the replicas of both ends for a while."""
    known = ControllerContext()
    known.assign(TopicPartition("t", MOVING), ReplicaAssignment((1, 2, 3, 4), adding=(3, 4), removing=(1, 2)))
    known.assign(TopicPartition("t", STILL), ReplicaAssignment((1, 2)))

    async def accept(request: AlterReassignments) -> dict[TopicPartition, None]:
        return dict.fromkeys(request.targets)

    context: Any = SimpleNamespace(
        require_cluster=lambda call, operation: None,
        controller=SimpleNamespace(machine=SimpleNamespace(context=known), call=accept),
    )

    def codes(number: int, replicas: list[int] | None) -> ErrorCode:
        wanted = ReassignablePartition(partition_index=number, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=[wanted])], allow_replication_factor_change=False
        )
        call: Any = None
        response = asyncio.run(ClusterApi(context).alter_reassignments(call, request))
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        return ErrorCode(response.responses[0].partitions[0].error_code)

    for number in (MOVING, STILL):
        assert codes(number, [2, 3]) is ErrorCode.NONE
        assert codes(number, None) is ErrorCode.NONE
        assert codes(number, [1, 2, 3, 4]) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert codes(7, [1]) is ErrorCode.NONE, "the controller says that there is no such partition"
