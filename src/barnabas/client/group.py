"""A member of a consumer group, with the range assignor.

`assign_range` is pure. `GroupConsumer` combines a `Consumer` with a `GroupMember`, resumes at the committed offsets, and
commits periodically. Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
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

#: The newest versions that every reader supports.
_SUBSCRIPTION_VERSION = 1
_ASSIGNMENT_VERSION = 1

#: How long a leaving member waits for its coordinator.
_LEAVE_S: Final = 5.0
#: How often `poll` checks whether a metadata look-up in the background has finished.
_LOOK_AGAIN_S: Final = 0.5


def assign_range(
    members: Mapping[str, Collection[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Kafka's range assignor: cut each topic into consecutive ranges for its subscribers in the order of their ids."""
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
    """The protocol by which consumers share the partitions of their topics. `topics` is this member's subscription."""

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
    """A consumer whose group assigns its partitions. `async with`, then `poll`; leaving commits and leaves the group.

    While `poll` waits, the member sends heartbeats, rejoins when the group rebalances, commits consumed offsets, and looks
    for added partitions and topics. `poll` returns in time even if the coordinator does not answer.
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
        #: The next offset of each partition whose records the application got.
        self._consumed: dict[TopicPartition, int] = {}
        #: Background tasks by name; each runs at most once at a time.
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._next_commit_s = float("inf")
        #: Partitions that were added after this member's first look; it reads them from the beginning.
        self._added: set[TopicPartition] = set()
        #: How many rebalances this member took part in, and when the last one ended (loop time).
        self.joins = 0
        self.joined_at_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
            return  # the coordinator is unreachable; the session timeout removes the member

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
                continue  # the member was removed in the meantime: another member reads these records
            if fetched or loop.time() >= deadline_s:
                return fetched

    def _look_after(self, now_s: float) -> float:
        """Start background tasks that are due; return when to check again."""
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
        """Wait for the task until the deadline, and raise its error. Return whether it has ended."""
        task = self._beside[name]
        await asyncio.wait([task], timeout=max(0, deadline_s - asyncio.get_running_loop().time()))
        if not task.done():
            return False
        del self._beside[name]
        task.result()
        return True

    def consumed(self, partition: TopicPartition, next_offset: int) -> None:
        """Record that the application has processed the records below `next_offset`; the next commit includes it."""
        self._consumed[partition] = next_offset

    async def commit(self) -> None:
        changed = {p: offset for p, offset in self._consumed.items() if self._committed.get(p) != offset}
        if changed:
            await self.member.commit(changed)
            self._committed |= changed

    async def _commit_quietly(self) -> None:
        """Commit, but leave a changed group to the next poll: uncommitted records will be read again."""
        try:
            await self.commit()
        except BrokerRefused as refused:
            if refused.code not in REJOIN and not refused.retriable:
                raise
            # For example for a deleted topic. That must not stop the other commits, nor keep the member from joining again.
            log.warning(
                "[group %s] the broker refused a commit: %s; check that the topics still exist",
                self._group.group_id,
                refused,
            )
        except DeadlineExceeded:
            return  # the coordinator is unreachable; the next commit includes these offsets

    async def _look(self) -> None:
        """Look for added partitions. The group's leader assigns them when it joins again."""
        before = dict(self._subscription.counts)
        try:
            self._added.update(await self._subscription.look())
        except DeadlineExceeded as error:
            log.warning("[group %s] cannot look for new partitions, will retry: %s", self._group.group_id, error)
            return
        if before != self._subscription.counts and (
            self.member.is_leader or before.keys() != self._subscription.counts.keys()
        ):
            self.member.rejoin_needed = True

    async def _join(self) -> tuple[TopicPartition, ...]:
        """Join, however long it takes, as the Java client does. The caller's `poll` timeout limits the wait."""
        while True:
            try:
                self._protocol.topics = self._subscription.topics
                return decode_assignment(await self.member.join())
            except DeadlineExceeded as error:
                log.warning(
                    "[group %s] cannot join, will retry: check that a coordinator is up: %s",
                    self._group.group_id,
                    error,
                )

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
        # Another member may own the old partitions now: read and commit none of them in the new generation.
        self.consumer.assign({})
        self._consumed, self._committed = {}, {}
        try:
            await self._begin(assignment)
        except BaseException:
            self.member.rejoin_needed = True  # it has partitions, but no offsets to begin with
            raise

    async def _begin(self, assignment: Sequence[TopicPartition]) -> None:
        """Begin at the committed offsets, or where the settings say."""
        committed = await committed_offsets(self._cluster, self._group.group_id, assignment, require_stable=True)
        positions = {partition: entry.offset for partition, entry in committed.items()}
        added = [partition for partition in assignment if partition not in positions and partition in self._added]
        positions |= dict.fromkeys(added, 0)  # if the first records are deleted, the fetch resets the position
        fresh = [partition for partition in assignment if partition not in positions]
        if fresh:
            positions |= await self.consumer.offsets_by_reset(fresh)
        # As the Java client: commit the starting offsets too, so that the lag of an idle partition is known.
        self._consumed = dict(positions)
        self._committed = {partition: entry.offset for partition, entry in committed.items()}
        self.consumer.assign(positions)
        if self._group.enable_auto_commit:
            self._next_commit_s = self.joined_at_s + self._group.auto_commit_interval_ms / 1000
