"""Share groups of one broker's group coordinator: operations on the machines, and the requests to share coordinators that
follow.

Owner: the event loop. An error for the client is raised as `Refused`, or is the future's exception.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.groups.group import Requester, Topics
from barnabas.broker.groups.machine import GroupMachine
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.share import CreateShareStates
from barnabas.broker.groups.share_admin import Deletion
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.share_state import SharePartitionKey, SharePersister, ShareStateSummary
from barnabas.broker.runtime.tasks import Spawn
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.messages.delete_groups import DeletableGroupResult
from barnabas.wire.messages.share_group_describe import DescribedGroup
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

log = logging.getLogger(__name__)

#: Returns the ends of partitions for consumers, or why they are not known.
FindEnds = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int | ErrorCode]]]


class ShareGroups:
    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupMachine],
        persister: SharePersister,
        find_ends: FindEnds,
        *,
        topics: Topics,
        partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._runtime = runtime
        self._persister = persister
        self._find_ends = find_ends
        self._topics = topics
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
        errors = [error for error in (await self._create_all(partition, wanted)).values() if error is not None]
        if errors:
            log.warning(
                "[group %s] %d of %d share partitions have no state yet, so no member gets them; the next heartbeat tries "
                "again: %s",
                *(wanted.group_id, len(errors), len(wanted.starts), errors[0]),
            )

    async def _create_all(self, partition: int, wanted: CreateShareStates) -> dict[SharePartitionKey, Refused | None]:
        """Have the states created, and note what came of it. Returns the errors of the share coordinators."""
        errors = await _each(
            {
                SharePartitionKey(wanted.group_id, *place): partial(
                    self._persister.initialize, state_epoch=wanted.state_epoch, start_offset=start_offset
                )
                for place, start_offset in wanted.starts.items()
            }
        )
        created = _by_topic(key for key, error in errors.items() if error is None)
        failed = _by_topic(key for key, error in errors.items() if error is not None)
        self._runtime.submit(partition, lambda machine: machine.share.states_created(wanted.group_id, created, failed))
        return errors

    async def _delete_all(self, partition: int, group_id: str, plan: Deletion) -> dict[bytes, Refused]:
        """Have states deleted, and note what came of it. Returns the topics for which a share coordinator has failed."""
        errors = await _each(
            {
                SharePartitionKey(group_id, topic_id, number): self._persister.delete
                for topic_id, numbers in plan.partitions.items()
                for number in numbers
            }
        )
        failed = {key.topic_id: error for key, error in errors.items() if error is not None}
        deleted = plan.names.keys() - failed.keys()
        if deleted:
            await self._runtime.write(
                partition, lambda machine, ticket: machine.share.states_deleted(group_id, deleted)
            )
        return failed

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def describe_offsets(
        self, group_id: str, topics: Iterable[describing.DescribeShareGroupOffsetsRequestTopic] | None
    ) -> list[describing.DescribeShareGroupOffsetsResponseTopic]:
        """Return the offsets from which a group goes on, for these partitions, or for all that it has begun to read.

        A partition that the group has not begun to read has the start offset -1, and so has one that does not exist.
        """
        if topics is None:
            found = await self._runtime.read(
                self._partition_for(group_id), lambda machine: list(machine.share_admin.initialized(group_id).items())
            )
            wanted = [
                (name, topic_id, sorted(numbers))
                for topic_id, numbers in found
                if (name := self._topics.topic_name(topic_id)) is not None
            ]
        else:
            self._runtime.require(self._partition_for(group_id))
            wanted = [
                (
                    each.topic_name,
                    self._topics.topic_id(each.topic_name) or bytes(16),
                    list(dict.fromkeys(each.partitions)),
                )
                for each in topics
            ]
        summaries = await self._read_summaries(group_id, wanted)
        ends = await self._find_ends(
            [
                TopicPartition(name, number)
                for name, topic_id, numbers in wanted
                for number in numbers
                if _has_lag(summaries.get((topic_id, number)))
            ]
        )
        return [
            describing.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=topic_id,
                partitions=[
                    _described(number, summaries.get((topic_id, number)), ends.get(TopicPartition(name, number)))
                    for number in numbers
                ],
            )
            for name, topic_id, numbers in wanted
        ]

    async def _read_summaries(
        self, group_id: str, wanted: Iterable[tuple[str, bytes, Iterable[int]]]
    ) -> dict[tuple[bytes, int], ShareStateSummary | Refused]:
        async def read(key: SharePartitionKey) -> ShareStateSummary | Refused:
            try:
                return await self._persister.read_summary(key, leader_epoch=-1)
            except Refused as refusal:
                return refusal

        places = [
            (topic_id, number)
            for name, topic_id, numbers in wanted
            for number in numbers
            if any(topic_id) and 0 <= number < self._topics.partition_count(name)
        ]
        found = await asyncio.gather(*(read(SharePartitionKey(group_id, *place)) for place in places))
        return dict(zip(places, found, strict=True))

    async def alter_offsets(
        self, request: altering.AlterShareGroupOffsetsRequest
    ) -> list[altering.AlterShareGroupOffsetsResponseTopic]:
        partition = self._partition_for(request.group_id)
        plan = await self._runtime.write(
            partition, lambda machine, ticket: machine.share_admin.begin_alter(request, self._now_ms())
        )
        errors = await self._create_all(partition, plan.create)
        for topic in plan.responses:
            for each in topic.partitions:
                error = errors.get(SharePartitionKey(request.group_id, topic.topic_id, each.partition_index))
                if error is not None:
                    each.error_code, each.error_message = error.code, error.message
        return plan.responses

    async def delete_offsets(
        self, group_id: str, topics: Collection[str]
    ) -> list[deleting.DeleteShareGroupOffsetsResponseTopic]:
        partition = self._partition_for(group_id)
        plan = await self._runtime.write(
            partition, lambda machine, ticket: machine.share_admin.begin_delete_offsets(group_id, topics)
        )
        failed = await self._delete_all(partition, group_id, plan)
        responses = [
            deleting.DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
            for topic_id, name in plan.names.items()
        ]
        for each in responses:
            if each.topic_id in failed:
                each.error_code, each.error_message = failed[each.topic_id].code, failed[each.topic_id].message
        return responses + plan.refused

    # -- groups --------------------------------------------------------------------------------------------------------

    async def delete_states(
        self, partition: int, group_ids: list[str], results: list[DeletableGroupResult]
    ) -> list[str]:
        """Delete the states of share groups that are to be deleted. Returns the groups that can be deleted now; the others
        get their error in `results`."""
        plans = await self._runtime.write(
            partition, lambda machine, ticket: machine.share_admin.begin_delete_groups(group_ids)
        )
        remaining = list(group_ids)
        for group_id, plan in plans.items():
            failed = await self._delete_all(partition, group_id, plan)
            if failed:
                error = next(iter(failed.values()))
                log.warning("[group %s] is not deleted, try again: a share coordinator failed: %s", group_id, error)
                results.append(
                    DeletableGroupResult(group_id=group_id, error_code=error.code, error_message=error.message)
                )
                remaining.remove(group_id)
        return remaining


async def _each(
    requests: Mapping[SharePartitionKey, Callable[[SharePartitionKey], Awaitable[None]]],
) -> dict[SharePartitionKey, Refused | None]:
    """Send requests to share coordinators. Returns their errors."""

    async def send(key: SharePartitionKey) -> Refused | None:
        try:
            await requests[key](key)
        except Refused as refusal:
            return refusal
        return None

    return dict(zip(requests, await asyncio.gather(*map(send, requests)), strict=True))


def _has_lag(summary: ShareStateSummary | Refused | None) -> bool:
    return isinstance(summary, ShareStateSummary) and summary.start_offset >= 0 and summary.delivery_complete_count >= 0


def _described(
    number: int, summary: ShareStateSummary | Refused | None, end: int | ErrorCode | None
) -> describing.DescribeShareGroupOffsetsResponsePartition:
    described = describing.DescribeShareGroupOffsetsResponsePartition(partition_index=number, start_offset=-1)
    if isinstance(summary, Refused):
        described.error_code, described.error_message = summary.code, summary.message
    elif isinstance(end, ErrorCode):
        described.error_code, described.error_message = end, "The end of the partition is not known."
    elif summary is not None:
        described.start_offset, described.leader_epoch = summary.start_offset, summary.leader_epoch
        if end is not None:
            described.lag = max(0, end - summary.start_offset - summary.delivery_complete_count)
    return described


def _by_topic(keys: Iterable[SharePartitionKey]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
