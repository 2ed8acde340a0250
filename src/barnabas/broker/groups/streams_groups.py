"""Streams groups of one broker's group coordinator: operations on the machines, and the internal topics that they need.

Owner: the event loop. An error for the client is raised as `Refused`, or is the future's exception.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.machine import GroupMachine
from barnabas.broker.groups.streams import CreateInternalTopics, MayCreate
from barnabas.broker.groups.streams_topics import InternalTopic
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.tasks import Spawn
from barnabas.wire.messages.streams_group_describe import DescribedGroup
from barnabas.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse

log = logging.getLogger(__name__)

#: Asks the controller to create topics. Returns the reasons for those that it did not create, by name.
CreateTopics = Callable[[Collection[InternalTopic]], Awaitable[Mapping[str, str]]]


class StreamsGroups:
    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupMachine],
        create_topics: CreateTopics,
        *,
        partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._runtime = runtime
        self._create_topics = create_topics
        self._partition_for = partition_for
        self._now_ms = now_ms
        self._spawn = spawn

    def heartbeat(
        self, request: StreamsGroupHeartbeatRequest, requester: Requester, may_create: MayCreate
    ) -> "asyncio.Future[StreamsGroupHeartbeatResponse]":
        return self._runtime.begin(
            self._partition_for(request.group_id),
            lambda machine, ticket: machine.streams.heartbeat(request, requester, self._now_ms(), may_create),
        )

    async def describe(self, group_id: str) -> DescribedGroup:
        return await self._runtime.read(
            self._partition_for(group_id), lambda machine: machine.streams.describe(group_id)
        )

    def carry_out(self, partition: int, message: CreateInternalTopics) -> None:
        """Create topics. Members do not wait: they get tasks with a later heartbeat."""
        self._spawn(self._create(partition, message), f"create internal topics of group {message.group_id}")

    async def _create(self, partition: int, wanted: CreateInternalTopics) -> None:
        names = ", ".join(each.name for each in wanted.topics)
        log.info("[group %s] creates internal topics of its topology: %s", wanted.group_id, names)
        errors = await self._create_topics(wanted.topics)
        for name, error in errors.items():
            log.warning(
                "[group %s] has no tasks, because its internal topic %s cannot be created; members try again: %s",
                wanted.group_id,
                name,
                error,
            )
        self._runtime.submit(
            partition, lambda machine: machine.streams.topics_created(wanted.group_id, errors, self._now_ms())
        )
