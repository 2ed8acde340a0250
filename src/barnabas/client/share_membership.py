"""The membership of a share group (KIP-932): heartbeats, member epochs, and the assigned partitions.

Owner: the event loop. The member chooses its id. The coordinator answers each heartbeat with the member's epoch; a member that
the coordinator has fenced or forgotten joins again with epoch 0.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from barnabas.base.chance import random_uuid
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition, format_uuid
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.share_session import SharePartition
from barnabas.wire.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

log = logging.getLogger(__name__)

_JOIN_EPOCH: Final = 0
_LEAVE_EPOCH: Final = -1
_JOINS_AGAIN: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
#: A new member gets its partitions with its second heartbeat, when their states exist: the first heartbeats come soon.
_SOON_S: Final = 0.3
_SOON_BEATS: Final = 20


class ShareMember:
    def __init__(
        self, cluster: AsyncClient, group_id: str, topics: Collection[str], *, rack: str, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when `assigned` has changed, and when the membership has failed."""
        self._cluster = cluster
        self._group_id = group_id
        self._topics = sorted(topics)
        self._rack = rack
        self._changed = changed
        self.member_id = format_uuid(random_uuid())
        self.epoch = _JOIN_EPOCH
        self.assigned: frozenset[SharePartition] = frozenset()
        self._beats_soon = _SOON_BEATS
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._beating = asyncio.create_task(self._beat(), name=f"heartbeats of share group {self._group_id}")
        self._beating.add_done_callback(lambda _: self._changed())

    def check(self) -> None:
        """Raise the error that has ended the membership, if any."""
        if self._beating is not None and self._beating.done():
            self._beating.result()

    async def leave(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self.epoch > _JOIN_EPOCH:
            await self._ask(_LEAVE_EPOCH)

    async def _beat(self) -> None:
        while True:
            try:
                interval_s = await self._beat_once()
            except ClientError as error:
                if not error.retriable:
                    raise
                log.debug("[share group %s] heartbeat failed, trying again: %s", self._group_id, error)
                interval_s = _SOON_S
            await asyncio.sleep(interval_s)

    async def _beat_once(self) -> float:
        """Send a heartbeat; return the time until the next one."""
        answer = await self._ask(self.epoch)
        code = ErrorCode(answer.error_code)
        if code in _JOINS_AGAIN:
            log.info("[share group %s] joining again: %s", self._group_id, code.name)
            self.epoch, self._beats_soon = _JOIN_EPOCH, _SOON_BEATS
            self._assign(frozenset())
            return 0.0
        check(code, answer.error_message or f"share group {self._group_id}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assign(await self._named(answer.assignment))
        interval_s = answer.heartbeat_interval_ms / 1000
        if not self.assigned and self._beats_soon:
            self._beats_soon -= 1
            return min(_SOON_S, interval_s)
        return interval_s

    async def _ask(self, epoch: int) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=self._rack or None if epoch == _JOIN_EPOCH else None,
            subscribed_topic_names=self._topics if epoch == _JOIN_EPOCH else None,
        )
        return await self._cluster.ask_coordinator(
            self._group_id, request, ShareGroupHeartbeatResponse, error_of=lambda answer: answer.error_code
        )

    async def _named(self, assignment: Assignment) -> frozenset[SharePartition]:
        names = self._names()
        if any(topic.topic_id not in names for topic in assignment.topic_partitions):
            await self._cluster.refresh(self._topics)
            names = self._names()
        unknown = [topic for topic in assignment.topic_partitions if topic.topic_id not in names]
        if unknown:
            # The topic was created a moment ago, and the broker that was asked does not know it yet.
            raise BrokerRefused(ErrorCode.UNKNOWN_TOPIC_ID, f"{len(unknown)} assigned topics")
        return frozenset(
            SharePartition(topic.topic_id, TopicPartition(names[topic.topic_id], index))
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )

    def _names(self) -> dict[bytes, str]:
        image = self._cluster.image
        return {image.topic_id(name): name for name in self._topics if name in image.topics}

    def _assign(self, assigned: frozenset[SharePartition]) -> None:
        if assigned != self.assigned:
            self.assigned = assigned
            self._changed()
