"""Copies committed offsets of the source's groups to the groups of the same name here. The offsets are the same numbers.

Every broker copies for the groups that it coordinates. The coordinator refuses if a group has members here: then it manages
its own offsets. An offset is copied once the mirror has reached it. Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.features.link.manager import Link
from barnabas.broker.features.link.settings import matching
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.zookeeper_client.znodes_link import MirrorState
from barnabas.client.admin.groups import CLASSIC, CONSUMER, CommittedOffset, committed_offsets_of, list_groups
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup

log = logging.getLogger(__name__)

#: A version without generation and member id, for a group without members.
_COMMIT_VERSION: Final = 9
_NO_GENERATION: Final = -1
#: Errors after which a group is left alone: it has members here, or its coordinator is loading.
_LEAVE_ALONE: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH}
)

#: Errors of a coordinator that is moving, or waiting for its followers: retry.
_COMES_BACK: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

#: The committed ends of a link's mirrors, from all brokers.
Ends = Callable[[str], Awaitable[Mapping[TopicPartition, int]]]


class GroupCopier:
    def __init__(
        self,
        broker_id: BrokerId,
        coordinator: GroupCoordinator,
        *,
        ends: Ends,
        partition_count: Callable[[str], int],
    ) -> None:
        self._broker_id = broker_id
        self._partition_count = partition_count
        self._coordinator = coordinator
        self._ends = ends
        #: The offsets last read from the source, by link and group.
        self._seen: dict[tuple[str, str], dict[TopicPartition, int]] = {}

    async def turn(self, link: Link) -> None:
        if link.spec.groups is None or link.source is None:
            return
        topics = frozenset(
            name
            for name, mirror in link.topics.items()
            if mirror.state.is_promoting or (mirror.state is MirrorState.MIRRORING and not link.spec.paused)
        )
        refused_names = await self._copy(link, link.source.client, topics) if topics else []
        link.group_turns += 1
        if refused_names:
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "; ".join(refused_names[:5]))

    async def _copy(self, link: Link, client: AsyncClient, topics: frozenset[str]) -> list[str]:
        """Copy offsets. Return the groups whose offsets the source refuses to show: a promotion does not wait for these."""
        assert link.spec.groups is not None
        listed = [each.group_id for each in await list_groups(client) if each.type in (CLASSIC, CONSUMER)]
        matched = matching(link.spec.groups, listed)
        if matched and not await self._coordinator.topic.ensure():
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "offsets of groups wait for the topic __consumer_offsets"
            )
        coordinators = {group: self._coordinator.topic.coordinator_of(group) for group in matched}
        self._require_known(topics, coordinators)
        groups = [group for group, broker in coordinators.items() if broker == self._broker_id]
        if not groups:
            return []
        ends = await self._ends(link.name)
        partitions = [TopicPartition(name, index) for name in topics for index in range(self._partition_count(name))]
        copied = 0
        refused_names: list[str] = []
        comes_back: Refused | None = None
        for group, found in (await committed_offsets_of(client, groups, partitions)).items():
            if isinstance(found, BrokerRefused):
                refused_names.append(f"group {group}: the source refuses to show its offsets: {found}")
                continue
            wanted = {tp: each for tp, each in found.items() if each.offset <= ends.get(tp, -1)}
            try:
                if wanted:
                    copied += await self._commit(link, group, wanted)
            except Refused as refusal:  # other groups are in other coordinators' partitions
                comes_back = refusal
                continue
            self._seen[link.name, group] = {tp: each.offset for tp, each in found.items()}
        for gone in [key for key in self._seen if key[0] == link.name and key[1] not in groups]:
            del self._seen[gone]
        link.groups_copied = copied
        if comes_back is not None:
            raise comes_back  # incomplete: this turn does not count
        return refused_names

    def _require_known(self, topics: frozenset[str], coordinators: Mapping[str, BrokerId | None]) -> None:
        """Raise if the turn would skip a topic or a group: a promotion must not count such a turn as complete."""
        if any(self._partition_count(name) == 0 for name in topics) or None in coordinators.values():
            raise Refused(
                ErrorCode.LEADER_NOT_AVAILABLE, "offsets of groups wait: this broker does not know their topics yet"
            )

    async def _commit(self, link: Link, group: str, wanted: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Commit offsets. Return whether the group has the same offsets here as at the source."""
        try:
            here = await self._committed_here(group)
            seen = self._seen.get((link.name, group), {})
            news = {
                tp: each
                for tp, each in wanted.items()
                if tp not in here
                or here[tp] < each.offset
                # Here the offset is ahead: it was set back at the source, or consumers here have moved on since the copy.
                or (here[tp] > each.offset and seen.get(tp, -1) > each.offset)
            }
            if not news:
                return True
            answer = await self._send(_request(group, news))
        except Refused as refusal:
            if refusal.code in _COMES_BACK:
                raise
            log.info(
                "[link %s] the offsets of group %s cannot be copied now, will retry: %s", link.name, group, refusal
            )
            return False
        codes = {part.error_code for topic in answer.topics for part in topic.partitions} - {ErrorCode.NONE}
        if again := codes & _COMES_BACK:
            raise Refused(ErrorCode(min(again)), f"group {group}: its offsets are not committed here yet")
        if codes:
            level = logging.DEBUG if codes <= _LEAVE_ALONE else logging.WARNING
            log.log(
                level, "[link %s] the offsets of group %s are not copied: error %s", link.name, group, sorted(codes)
            )
        return not codes

    async def _committed_here(self, group: str) -> dict[TopicPartition, int]:
        answer = await self._coordinator.fetch_offsets(
            OffsetFetchRequestGroup(group_id=group, topics=None), require_stable=False
        )
        return {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in answer.topics
            for part in topic.partitions
            if not part.error_code and part.committed_offset >= 0
        }

    async def _send(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        done: asyncio.Future[OffsetCommitResponse] = asyncio.get_running_loop().create_future()

        def reply(response: OffsetCommitResponse | None, error: Refused | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif response is not None:
                done.set_result(response)

        self._coordinator.commit_offsets(request, reply, api_version=_COMMIT_VERSION)
        return await done


def _request(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, each in offsets.items():
        topic = topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=each.offset,
                # The source's leader epochs are not valid here.
                committed_leader_epoch=-1,
                committed_metadata=each.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        topics=list(topics.values()),
    )
