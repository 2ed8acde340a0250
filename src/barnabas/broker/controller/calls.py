"""The requests that API handlers make to the controller's machine: each becomes an event and waits for the reply.

Owner: the event loop.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.effects import (
    AllocateProducerIdsReply,
    AlterPartitionReply,
    AlterReassignmentsReply,
    ControlledShutdownReply,
    ElectLeadersReply,
    Failure,
    ListReassignmentsReply,
    ReplyValue,
)
from barnabas.broker.controller.events import (
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ApiEvent,
    ControlledShutdown,
    ElectionType,
    ElectLeaders,
    ListReassignments,
    ProposedIsr,
    RenewLeaderEpoch,
)
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.broker.zookeeper_client.znodes import ProducerIdBlock, ReplicaAssignment

_log = logging.getLogger(__name__)


class ControllerCalls:
    """Each method raises `Refused` if the controller refuses the request as a whole."""

    def __init__(
        self, call: Callable[[Callable[[int], ApiEvent]], Awaitable[ReplyValue]], metadata: MetadataCache
    ) -> None:
        """`call` makes an event with a token, feeds it to the machine, and returns the reply to it."""
        self._call = call
        self._metadata = metadata

    async def alter_partition(
        self,
        *,
        broker_id: int,
        broker_epoch: int,
        partitions: Mapping[tuple[TopicId | str, int], ProposedIsr],
        version: int,
    ) -> AlterPartitionReply:
        reply = await self._call(lambda token: AlterPartition(token, broker_id, broker_epoch, partitions, version))
        assert isinstance(reply, AlterPartitionReply)
        return reply

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, election_type: ElectionType, *, timeout_ms: int
    ) -> dict[TopicPartition, Failure | None]:
        """Elect leaders. None means success: the elected broker leads, and this broker's metadata shows it."""
        wanted = None if partitions is None else tuple(partitions)
        reply = await self._call(lambda token: ElectLeaders(token, wanted, election_type))
        assert isinstance(reply, ElectLeadersReply)
        leaders = {each: result for each, result in reply.partitions.items() if not isinstance(result, Failure)}
        late = await self._until_led(leaders, timeout_ms)
        results: dict[TopicPartition, Failure | None] = {}
        for partition, result in reply.partitions.items():
            if isinstance(result, Failure):
                results[partition] = result
            else:
                results[partition] = Failure(ErrorCode.REQUEST_TIMED_OUT) if partition in late else None
        return results

    async def renew_leader_epoch(self, partition: TopicPartition, *, leader: int, leader_epoch: int) -> Failure | None:
        """Raise the leader epoch. None means success: there is a higher epoch, and the controller sends it to the leader."""
        reply = await self._call(lambda token: RenewLeaderEpoch(token, partition, leader, leader_epoch))
        assert isinstance(reply, ElectLeadersReply)
        result = reply.partitions[partition]
        return result if isinstance(result, Failure) else None

    async def _until_led(self, leaders: Mapping[TopicPartition, int], timeout_ms: int) -> set[TopicPartition]:
        """Wait until the metadata shows the new leaders; return the partitions for which it did not in time."""

        def is_led(partition: TopicPartition) -> bool:
            state = self._metadata.partition(partition)
            return state is not None and state.leader == leaders[partition]

        missing = await wait_until_shown(self._metadata, leaders, is_led, timeout_s=timeout_ms / 1000)
        if missing:
            _log.info(
                "[controller] metadata of %d elected partitions did not arrive within %d ms", len(missing), timeout_ms
            )
        return missing

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, Failure | None]:
        """Begin, replace or cancel reassignments: a target of None cancels."""
        reply = await self._call(lambda token: AlterReassignments(token, targets))
        assert isinstance(reply, AlterReassignmentsReply)
        return dict(reply.partitions)

    async def list_reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        wanted = None if partitions is None else tuple(partitions)
        reply = await self._call(lambda token: ListReassignments(token, wanted))
        assert isinstance(reply, ListReassignmentsReply)
        return dict(reply.partitions)

    async def controlled_shutdown(self, *, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Return the partitions that the broker still leads and that another broker could take over."""
        reply = await self._call(lambda token: ControlledShutdown(token, broker_id, broker_epoch))
        assert isinstance(reply, ControlledShutdownReply)
        return reply.remaining

    async def allocate_producer_ids(self, *, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        reply = await self._call(lambda token: AllocateProducerIds(token, broker_id, broker_epoch))
        assert isinstance(reply, AllocateProducerIdsReply)
        return reply.block
