"""Share groups of one broker's group coordinator: operations on the machines, and the requests to share coordinators that
follow.

Owner: the event loop. An error for the client is raised as `Refused`, or is the future's exception.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from barnabas.base.errors import Refused
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.machine import GroupMachine
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.share import CreateShareStates
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.share_state import SharePartitionKey, SharePersister
from barnabas.broker.runtime.tasks import Spawn
from barnabas.wire.messages.share_group_describe import DescribedGroup
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

log = logging.getLogger(__name__)


class ShareGroups:
    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupMachine],
        persister: SharePersister,
        *,
        partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._runtime = runtime
        self._persister = persister
        self._partition_for = partition_for
        self._now_ms = now_ms
        self._spawn = spawn

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, requester: Requester
    ) -> "asyncio.Future[ShareGroupHeartbeatResponse]":
        return self._runtime.begin(
            self._partition_for(request.group_id),
            lambda machine, ticket: machine.share.heartbeat(request, requester, self._now_ms()),
        )

    async def describe(self, group_id: str) -> DescribedGroup:
        return await self._runtime.read(self._partition_for(group_id), lambda machine: machine.share.describe(group_id))

    # -- states of share partitions -----------------------------------------------------------------------------------

    def carry_out(self, partition: int, message: object) -> None:
        """Carry out what a machine asked for. Members do not wait: they get their partitions with a later heartbeat."""
        assert isinstance(message, CreateShareStates)
        self._spawn(self._create(partition, message), f"create share states of group {message.group_id}")

    async def _create(self, partition: int, wanted: CreateShareStates) -> None:
        errors = await self._create_all(wanted)
        failed = {key for key, error in errors.items() if error is not None}
        if failed:
            reason = next(error for error in errors.values() if error is not None)
            log.warning(
                "[group %s] %d of %d share partitions have no state yet, so no member gets them; the next heartbeat tries "
                "again: %s",
                *(wanted.group_id, len(failed), len(errors), reason),
            )
        created = _by_topic(key for key in errors if key not in failed)
        self._runtime.submit(
            partition,
            lambda machine: machine.share.states_created(wanted.group_id, created, _by_topic(failed)),
        )

    async def _create_all(self, wanted: CreateShareStates) -> dict[SharePartitionKey, Refused | None]:
        """Return the errors of share coordinators, or None where the state was created."""
        keys = [SharePartitionKey(wanted.group_id, *place) for place in wanted.starts]

        async def create(key: SharePartitionKey, start_offset: int) -> Refused | None:
            try:
                await self._persister.initialize(key, state_epoch=wanted.state_epoch, start_offset=start_offset)
            except Refused as refusal:
                return refusal
            return None

        found = await asyncio.gather(*(create(*each) for each in zip(keys, wanted.starts.values(), strict=True)))
        return dict(zip(keys, found, strict=True))


def _by_topic(keys: Iterable[SharePartitionKey]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
