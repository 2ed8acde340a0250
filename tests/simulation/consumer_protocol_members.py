"""Members of consumer groups of the new protocol (KIP-848). Our own client has none, so these speak it by themselves."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_COMMITTED
from barnabas.client.admin.groups import CommittedOffset, commit_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError, check
from barnabas.client.fetching import ConsumerConfig
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.simulation.load import Persistent

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: The last version of OffsetFetch with names of topics.
_OFFSET_FETCH_BY_NAME = 9
_LEAVING = -1


class Member:
    """`follow` until `is_lost`. It owns what it was given, and gives up what it must when `settle` is called.

    Owner: its client. Beats run in a task of their own; they never give anything up.
    """

    def __init__(self, cluster: AsyncClient, group: str, topics: Sequence[str], member_id: str) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = list(topics)
        self.member_id = member_id
        self.epoch = 0
        self._interval_s = 1.0
        #: Of the topics whose partitions it owns. The cluster's image forgets them when a broker goes, and a member that
        #: says that it owns partitions of no known topic has given up its own.
        self._ids: dict[str, bytes] = {}
        self._target: frozenset[TopicPartition] = frozenset()
        self.owned: frozenset[TopicPartition] = frozenset()
        #: Why the coordinator does not want this member any more.
        self.lost: ClientError | None = None
        self._beats: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def must_settle(self) -> bool:
        return self._target != self.owned

    async def join(self) -> None:
        await self._beat()
        self._beats = asyncio.create_task(self._follow(), name=f"beats of {self.member_id}")

    async def _follow(self) -> None:
        while self.lost is None:
            await asyncio.sleep(self._interval_s)
            try:
                await self._beat()
            except ClientError as error:
                self.lost = error

    async def settle(self) -> None:
        """The caller is done with what it no longer owns: own the target, and say so. Waits for what others still hold."""
        self.owned = self._target
        await self._beat()

    async def _beat(self) -> None:
        async with self._lock:
            answer = await self._cluster.ask_coordinator(
                self._group,
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group,
                    member_id=self.member_id,
                    member_epoch=self.epoch,
                    rebalance_timeout_ms=6_000,
                    subscribed_topic_names=self._topics,
                    topic_partitions=[
                        RequestTopicPartitions(topic_id=self._ids[tp.topic], partitions=[tp.partition])
                        for tp in sorted(self.owned)
                    ],
                ),
                ConsumerGroupHeartbeatResponse,
                error_of=lambda answer: answer.error_code,
            )
            check(answer.error_code, answer.error_message)
            self.epoch = answer.member_epoch
            self._interval_s = answer.heartbeat_interval_ms / 1000
            if answer.assignment is not None:
                self._ids = {name: await self._topic_id(name) for name in self._topics}
                names = {topic_id: name for name, topic_id in self._ids.items()}
                self._target = frozenset(
                    TopicPartition(names[topic.topic_id], index)
                    for topic in answer.assignment.topic_partitions
                    if topic.topic_id in names
                    for index in topic.partitions
                )

    async def _topic_id(self, name: str) -> bytes:
        if not any(self._cluster.image.topic_id(name)):
            await self._cluster.topics([name])
        return self._cluster.image.topic_id(name)

    async def leave(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self.lost is None and self.epoch > 0:
            self.epoch = _LEAVING
            self.owned = frozenset()
            await self._beat()

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """What the group has committed, from a coordinator that knows this member in its epoch: not from one of the past."""

        async def once() -> dict[TopicPartition, int]:
            answer = await self._cluster.ask_coordinator(
                self._group,
                OffsetFetchRequest(
                    groups=[
                        OffsetFetchRequestGroup(
                            group_id=self._group,
                            member_id=self.member_id,
                            member_epoch=self.epoch,
                            topics=[
                                OffsetFetchRequestTopics(name=tp.topic, partition_indexes=[tp.partition])
                                for tp in partitions
                            ],
                        )
                    ],
                    require_stable=True,
                ),
                OffsetFetchResponse,
                error_of=lambda answer: answer.groups[0].error_code,
                version_max=_OFFSET_FETCH_BY_NAME,
            )
            check(answer.groups[0].error_code)
            found: dict[TopicPartition, int] = {}
            for topic in answer.groups[0].topics:
                for part in topic.partitions:
                    check(part.error_code)
                    found[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
            return found

        return await self._cluster.retrying("OffsetFetch", once)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        return await commit_offsets(
            self._cluster,
            self._group,
            {tp: CommittedOffset(offset) for tp, offset in offsets.items()},
            generation=self.epoch,
            member_id=self.member_id,
        )


class ModernReader(Persistent):
    """A member that reads on from what the group has committed, and commits what it has read.

    Who owns a partition begins where its last owner had to stop, so what the group has committed never goes back.
    """

    def __init__(
        self, cluster: "SimCluster", name: str, group: str, topics: Sequence[str], *, is_alone: bool = True
    ) -> None:
        """`is_alone`: all members of the group speak the new protocol, and the oracle holds it to what they commit."""
        super().__init__(cluster, name)
        self.group = group
        self._topics = list(topics)
        self._is_alone = is_alone
        self._positions: dict[TopicPartition, int] = {}

    async def _live(self) -> None:
        config = ConsumerConfig(isolation_level=READ_COMMITTED, auto_offset_reset="earliest", fetch_max_wait_ms=1_000)
        async with self.connect(api_timeout_ms=8_000) as cluster, Consumer(cluster, config) as consumer:
            member = Member(cluster, self.group, self._topics, f"{self.name}-{self.chance.getrandbits(64):016x}")
            until_s = self.world.now_s + self.chance.uniform(4, 20)
            try:
                await member.join()
                while not self.ending and self.world.now_s < until_s:
                    if member.lost is not None:
                        raise member.lost
                    if member.must_settle:
                        await self._settle(member, consumer)
                    for fetched in await consumer.poll(1_000):
                        self._positions[fetched.partition] = fetched.next_position
                    if self.chance.random() < 0.6:
                        await self._commit(member)
            finally:
                await member.leave()

    async def _settle(self, member: Member, consumer: Consumer) -> None:
        await self._commit(member)
        await member.settle()
        owned = sorted(member.owned)
        positions = await member.committed(owned) if owned else {}
        self._positions = {tp: max(0, positions.get(tp, 0)) for tp in owned}
        self.note(f"owns {', '.join(map(str, owned)) or 'nothing'} in epoch {member.epoch}")
        consumer.assign(self._positions)

    async def _commit(self, member: Member) -> None:
        offsets = {tp: offset for tp, offset in self._positions.items() if tp in member.owned}
        if not offsets:
            return
        if self._is_alone:
            self.oracle.commits(self.group, offsets)
        outcome = await member.commit(offsets)
        if self._is_alone:
            self.oracle.committed(
                self.group, {tp: offsets[tp] for tp, code in outcome.items() if code is ErrorCode.NONE}
            )
        for code in outcome.values():
            check(code)
