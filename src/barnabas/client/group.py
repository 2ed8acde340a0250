"""A member of a consumer group, with the range assignor.

`assign_range` is pure. `GroupConsumer` puts a `Consumer` on top of a `GroupMember`, resumes from what was committed, and
commits as it goes. Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.groups import committed_offsets, decode_assignment
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, DeadlineExceeded
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.membership import REJOIN, GroupConfig, GroupMember
from barnabas.client.subscription import Subscription
from barnabas.wire import codec
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_assignment import TopicPartition as AssignedTopic
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

log = logging.getLogger(__name__)

#: The newest versions that every reader of either record knows.
_SUBSCRIPTION_VERSION = 1
_ASSIGNMENT_VERSION = 1

#: How long a member that leaves waits for its coordinator.
_LEAVE_S: Final = 5.0
#: A look at the metadata that is under way is waited for beside the fetches.
_LOOK_AGAIN_S: Final = 0.5


def assign_range(
    members: Mapping[str, Collection[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Kafka's range assignor: each topic is cut into consecutive ranges for its subscribers in the order of their ids."""
    assignment: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for topic in sorted(partition_counts):
        subscribers = sorted(member for member, topics in members.items() if topic in topics)
        if not subscribers:
            continue
        share, more = divmod(partition_counts[topic], len(subscribers))
        start = 0
        for index, member in enumerate(subscribers):
            size = share + (index < more)
            assignment[member] += [TopicPartition(topic, partition) for partition in range(start, start + size)]
            start += size
    return assignment


class RangeProtocol:
    """Consumers share out the partitions of their topics. `topics` is what this member subscribes to when it joins."""

    type = "consumer"
    name = "range"

    def __init__(self, cluster: AsyncClient) -> None:
        self._cluster = cluster
        self.topics: Collection[str] = ()

    def metadata(self) -> bytes:
        return codec.encode_versioned(ConsumerProtocolSubscription(topics=sorted(self.topics)), _SUBSCRIPTION_VERSION)

    async def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        subscriptions = {
            member: codec.decode_versioned(ConsumerProtocolSubscription, metadata, newest_known=True)[0].topics
            for member, metadata in members.items()
        }
        topics = {topic for wanted in subscriptions.values() for topic in wanted}
        known = await self._cluster.topics(sorted(topics))
        counts = {name: len(info.partitions) for name, info in known.items() if info.error is ErrorCode.NONE}
        plan = assign_range(subscriptions, counts)
        return {member: _encode_assignment(partitions) for member, partitions in plan.items()}


def _encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return codec.encode_versioned(
        ConsumerProtocolAssignment(
            assigned_partitions=[AssignedTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
        ),
        _ASSIGNMENT_VERSION,
    )


class GroupConsumer:
    """A consumer whose partitions are the group's to give. `async with`, then `poll`; leaving it commits and leaves.

    While `poll` waits, the member beats, rejoins when the group rebalances, commits what was consumed, and looks for
    partitions and topics that were added. `poll` returns in time whatever the coordinator does.
    """

    def __init__(
        self,
        cluster: AsyncClient,
        group: GroupConfig,
        *,
        topics: Collection[str] = (),
        matching: Callable[[str], bool] | None = None,
        config: ConsumerConfig | None = None,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._subscription = Subscription(cluster, topics, matching)
        self.consumer = Consumer(cluster, config or ConsumerConfig())
        self._protocol = RangeProtocol(cluster)
        self.member = GroupMember(cluster, group, self._protocol, changed=self.consumer.wake)
        self._committed: dict[TopicPartition, int] = {}
        #: The next offset of each partition whose records were handed out.
        self._consumed: dict[TopicPartition, int] = {}
        #: What is under way beside `poll`, by name: each at most once.
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._next_commit_s = float("inf")
        #: Partitions that came after this member had looked: nothing of them is skipped.
        self._added: set[TopicPartition] = set()
        #: How often this member has taken part in a rebalance, and when the last one ended (the loop's time).
        self.joins = 0
        self.joined_at_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._beside.values():
            task.cancel()
        await asyncio.gather(*self._beside.values(), return_exceptions=True)
        try:
            async with self.consumer, asyncio.timeout(_LEAVE_S):
                try:
                    if self._group.enable_auto_commit and self.member.generation >= 0:
                        await self._commit_quietly()
                finally:
                    await self.member.leave()
        except TimeoutError:
            return  # the coordinator is out of reach: it misses the member soon enough

    async def poll(self, timeout_ms: int) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            if self.member.rejoin_needed:
                self._start("join", self._rejoin)
            if "join" in self._beside:
                if not await self._ended("join", deadline_s):
                    return []
                continue
            wait_until_s = min(deadline_s, self._look_after(loop.time()))
            fetched = await self.consumer.poll(max(0, int((wait_until_s - loop.time()) * 1000)))
            try:
                for name in list(self._beside):
                    await self._ended(name, loop.time())
            except BaseException:
                self.consumer.give_back(fetched)
                raise
            if self.member.generation < 0:
                continue  # thrown out meanwhile: these records are another's
            if fetched or loop.time() >= deadline_s:
                return fetched

    def _look_after(self, now_s: float) -> float:
        """Start what is due beside the fetches; when to look again."""
        if now_s >= self._next_commit_s:
            self._next_commit_s = now_s + self._group.auto_commit_interval_ms / 1000
            self._start("commit", self._commit_quietly)
        if now_s >= self._subscription.look_at_s:
            self._start("look", self._look)
        return min(self._next_commit_s, max(self._subscription.look_at_s, now_s + _LOOK_AGAIN_S))

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._beside:
            task = self._beside[name] = asyncio.create_task(work(), name=f"{name} of {self._group.group_id}")
            task.add_done_callback(lambda _: self.consumer.wake())

    async def _ended(self, name: str, deadline_s: float) -> bool:
        """Wait for it until then; raises what it raised."""
        task = self._beside[name]
        await asyncio.wait([task], timeout=max(0, deadline_s - asyncio.get_running_loop().time()))
        if not task.done():
            return False
        del self._beside[name]
        task.result()
        return True

    def consumed(self, partition: TopicPartition, next_offset: int) -> None:
        """Records below `next_offset` have been dealt with; the next commit says so."""
        self._consumed[partition] = next_offset

    async def commit(self) -> None:
        changed = {p: offset for p, offset in self._consumed.items() if self._committed.get(p) != offset}
        if changed:
            await self.member.commit(changed)
            self._committed |= changed

    async def _commit_quietly(self) -> None:
        """A group that has moved on is found out by the next poll: what was not committed will be read again."""
        try:
            await self.commit()
        except BrokerRefused as refused:
            if refused.code not in REJOIN and not refused.retriable:
                raise
            # Of a topic that was deleted, say. That must keep the member neither from the others nor from joining again.
            log.warning("group %s: not committed: %s", self._group.group_id, refused)
        except DeadlineExceeded:
            return  # the coordinator is out of reach; the next commit says it all

    async def _look(self) -> None:
        """Partitions that were added are given out when the member that leads the group joins again."""
        before = dict(self._subscription.counts)
        try:
            self._added.update(await self._subscription.look())
        except DeadlineExceeded as error:
            log.warning("group %s cannot look for new partitions yet: %s", self._group.group_id, error)
            return
        if before != self._subscription.counts and (
            self.member.is_leader or before.keys() != self._subscription.counts.keys()
        ):
            self.member.rejoin_needed = True

    async def _join(self) -> tuple[TopicPartition, ...]:
        """However long it takes, as the Java client: who waits for records says for how long."""
        while True:
            try:
                self._protocol.topics = self._subscription.topics
                return decode_assignment(await self.member.join())
            except DeadlineExceeded as error:
                log.warning("group %s cannot be joined yet: %s", self._group.group_id, error)

    async def _rejoin(self) -> None:
        if self.member.generation >= 0 and self._group.enable_auto_commit:
            await self._commit_quietly()
        known = bool(self._subscription.counts)
        added = await self._subscription.look()
        if known:
            self._added.update(added)
        assignment = await self._join()
        self.joins += 1
        self.joined_at_s = asyncio.get_running_loop().time()
        # What it had before is another's now, perhaps: nothing of that is read or committed in the name of the new generation.
        self.consumer.assign({})
        self._consumed, self._committed = {}, {}
        try:
            await self._begin(assignment)
        except BaseException:
            self.member.rejoin_needed = True  # it has partitions, and does not know where to begin
            raise

    async def _begin(self, assignment: Sequence[TopicPartition]) -> None:
        """Where the group has left off, or where the settings say."""
        committed = await committed_offsets(self._cluster, self._group.group_id, assignment, require_stable=True)
        positions = {partition: entry.offset for partition, entry in committed.items()}
        added = [partition for partition in assignment if partition not in positions and partition in self._added]
        positions |= dict.fromkeys(added, 0)  # out of range, should its first records be gone: then it is reset
        fresh = [partition for partition in assignment if partition not in positions]
        if fresh:
            positions |= await self.consumer.offsets_by_reset(fresh)
        # As the Java client: where it begins is committed too, so that the lag of an idle partition is known.
        self._consumed = dict(positions)
        self._committed = {partition: entry.offset for partition, entry in committed.items()}
        self.consumer.assign(positions)
        if self._group.enable_auto_commit:
            self._next_commit_s = self.joined_at_s + self._group.auto_commit_interval_ms / 1000
