"""Committed offsets of groups at the source, for their namesakes here. The numbers are the same.

Every broker copies for the groups that it coordinates. A group that has members here is its own master: the coordinator
refuses. An offset is copied when the mirror has come so far. Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from barnabas.client.admin.groups import CLASSIC, CONSUMER, CommittedOffset, committed_offsets, list_groups
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused
from barnabas.coordination.znodes_link import MirrorState
from barnabas.core.errors import ErrorCode, Refused
from barnabas.core.ids import BrokerId, TopicPartition
from barnabas.groups.coordinator import GroupCoordinator
from barnabas.link.manager import Link
from barnabas.link.settings import matching
from barnabas.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.protocol.messages.offset_fetch import OffsetFetchRequestGroup

log = logging.getLogger(__name__)

#: Without a generation and a member id: of a group that nobody is in.
_COMMIT_VERSION: Final = 9
_NO_GENERATION: Final = -1
#: Answers that leave a group alone: it has members here, or is being taken over.
_LEAVE_ALONE: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH}
)

#: How far mirrors of a link are committed, on all brokers.
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
        #: What the source last said, by link and group.
        self._seen: dict[tuple[str, str], dict[TopicPartition, int]] = {}

    async def turn(self, link: Link) -> None:
        if link.spec.groups is None or link.source is None:
            return
        topics = frozenset(
            name
            for name, mirror in link.topics.items()
            if mirror.state.is_promoting or (mirror.state is MirrorState.MIRRORING and not link.spec.paused)
        )
        untold = await self._copy(link, link.source.client, topics) if topics else []
        link.group_turns += 1
        if untold:
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "; ".join(untold[:5]))

    async def _copy(self, link: Link, client: AsyncClient, topics: frozenset[str]) -> list[str]:
        """Returns whose offsets the source does not tell. Others are copied all the same, and a promotion does not wait."""
        assert link.spec.groups is not None
        listed = [each.group_id for each in await list_groups(client) if each.type in (CLASSIC, CONSUMER)]
        groups = [each for each in matching(link.spec.groups, listed) if await self._is_mine(each)]
        if not groups:
            return []
        ends = await self._ends(link.name)
        partitions = [TopicPartition(name, index) for name in topics for index in range(self._partition_count(name))]
        copied = 0
        untold: list[str] = []
        for group in groups:
            try:
                found = await committed_offsets(client, group, partitions)
            except BrokerRefused as refusal:
                untold.append(f"group {group}: the source does not tell its offsets: {refusal}")
                continue
            wanted = {tp: each for tp, each in found.items() if each.offset <= ends.get(tp, -1)}
            if wanted:
                copied += await self._commit(link, group, wanted)
            self._seen[link.name, group] = {tp: each.offset for tp, each in found.items()}
        for gone in [key for key in self._seen if key[0] == link.name and key[1] not in groups]:
            del self._seen[gone]
        link.groups_copied = copied
        return untold

    async def _is_mine(self, group: str) -> bool:
        if not await self._coordinator.topic.ensure():
            return False
        return self._coordinator.topic.coordinator_of(group) == self._broker_id

    async def _commit(self, link: Link, group: str, wanted: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Whether the group here stands where it stands at the source."""
        try:
            here = await self._committed_here(group)
            seen = self._seen.get((link.name, group), {})
            news = {
                tp: each
                for tp, each in wanted.items()
                if tp not in here
                or here[tp] < each.offset
                # Somebody set it back there; else consumers here have gone further since.
                or (here[tp] > each.offset and tp in seen and seen[tp] != each.offset)
            }
            if not news:
                return True
            answer = await self._send(_request(group, news))
        except Refused as refusal:
            log.info("link %s: offsets of group %s are not copied now: %s", link.name, group, refusal)
            return False
        codes = {part.error_code for topic in answer.topics for part in topic.partitions} - {ErrorCode.NONE}
        if codes:
            level = logging.DEBUG if codes <= _LEAVE_ALONE else logging.WARNING
            log.log(level, "link %s: offsets of group %s are not copied: error %s", link.name, group, sorted(codes))
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
                # The source's epochs mean nothing here.
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
