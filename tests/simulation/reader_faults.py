"""Timed faults for our own readers: the cluster changes under them, and they must keep their promises.

A member commits nothing of partitions that another member may own by now. A reader reads no record twice that it has read since
it began.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, Protocol

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST
from barnabas.cli.console_consumer import Selection, _source
from barnabas.client.admin.groups import committed_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.group import GroupConsumer
from barnabas.client.membership import GroupConfig
from barnabas.client.transactions import Transactions
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.slow_readers import SlowReaderFaultClient

#: The topic that they read, and its partitions.
_TOPIC: Final = "orders"
_PARTITIONS: Final = (TopicPartition(_TOPIC, 0), TopicPartition(_TOPIC, 1))
#: Timeout of a transaction that is open while a member looks for its first offset, and how long the member tries.
_TRANSACTION_MS: Final = 20_000
_PATIENCE_MS: Final = 800
#: How long a client waits for a condition, and how long a reader waits for records.
_LIMIT_S: Final = 6.0
_POLL_MS: Final = 100
#: How often a reader looks for partitions, and for how long a broker answers that there are none.
_LOOK_MS: Final = 100
_HIDDEN_S: Final = 1.0


class Source(Protocol):
    async def poll(self, timeout_ms: int) -> list[Fetched]: ...
    def consumed(self, partition: TopicPartition, next_offset: int) -> None: ...


class ReaderFaultClient(SlowReaderFaultClient):
    """Visits that happen only if the scenario names them."""

    async def _reads(self, source: Source, read: dict[TopicPartition, int], is_done: Callable[[], bool]) -> bool:
        """Read until `is_done`; return whether that came in time. `read`: the next position in each partition."""
        until_s = self.world.now_s + _LIMIT_S
        while not is_done():
            if self.world.now_s >= until_s:
                return False
            for fetched in await source.poll(_POLL_MS):
                tp = fetched.partition
                if fetched.position < read.get(tp, 0):
                    self._broken(
                        "a reader reads nothing twice", f"{tp} again from {fetched.position} on, after {read[tp]}"
                    )
                read[tp] = fetched.next_position
                source.consumed(tp, fetched.next_position)
        return True

    # -- of a group ---------------------------------------------------------------------------------------------------------

    async def _cannot_learn_where_to_begin(self, cluster: AsyncClient) -> None:
        """A member has read two partitions when another one joins. It keeps one of them, of which a transaction is about to
        commit an offset: the coordinator does not answer where to begin until the transaction has ended. The member no longer
        owns the other partition and must not commit what it read there.
        """
        self._count += 1
        group, (kept, given) = f"{self.name}-unlearned-{self._count}", _PARTITIONS
        async with AsyncExitStack() as stack:
            # The member that is first by name gets the first partition.
            member, other = [await self._joins_as(stack, group, name) for name in ("first", "second")]
            read: dict[TopicPartition, int] = {}
            if not await self._reads(member, read, lambda: len(read) == len(_PARTITIONS)):
                return
            identity = await Transactions(cluster).initialise(group, timeout_ms=_TRANSACTION_MS)
            await cluster.retrying("AddOffsetsToTxn", lambda: self._add_offsets(cluster, group, identity, group))
            await cluster.retrying("TxnOffsetCommit", lambda: self._write_offset(cluster, group, identity, kept))
            self.note(f"leaves an offset of {kept} pending for {group}, and lets another member join")
            waiting = asyncio.create_task(self._is_refused(member, read))
            reached: dict[TopicPartition, int] = {}
            try:
                await self._reads(other, reached, lambda: reached.get(given, 0) > read[given])
                await other.commit()
            finally:
                is_refused = await waiting
            if is_refused and given in reached:
                await self._commits_nothing(cluster, member, group, given, reached[given])
            await cluster.retrying("EndTxn", lambda: self._end(cluster, group, identity, commit=False))

    async def _joins_as(self, stack: AsyncExitStack, group: str, name: str) -> GroupConsumer:
        cluster = await stack.enter_async_context(
            self.connect(client_id=f"{self.name}-{name}", api_timeout_ms=_PATIENCE_MS, request_timeout_ms=_PATIENCE_MS)
        )
        config = GroupConfig(
            group_id=group,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=4_000,
            heartbeat_interval_ms=200,
            enable_auto_commit=False,
        )
        consumer = ConsumerConfig(auto_offset_reset="earliest", partition_max_bytes=300)
        return await stack.enter_async_context(GroupConsumer(cluster, config, topics=[_TOPIC], config=consumer))

    async def _is_refused(self, member: GroupConsumer, read: dict[TopicPartition, int]) -> bool:
        """Whether a member that continues to read finds that it cannot begin."""
        try:
            await self._reads(member, read, lambda: False)
        except ClientError as error:
            self.note(f"cannot begin: {error}")
            return True
        return False

    async def _commits_nothing(
        self, cluster: AsyncClient, member: GroupConsumer, group: str, tp: TopicPartition, reached: int
    ) -> None:
        try:
            await member.commit()
        except ClientError as error:
            self.note(f"cannot commit: {error}")
        found = await committed_offsets(cluster, group, [tp])
        if tp in found and found[tp].offset < reached:
            self._broken(
                "a group's committed offsets do not go back", f"{tp} of {group}: {found[tp].offset} after {reached}"
            )

    # -- without one --------------------------------------------------------------------------------------------------------

    async def _loses_sight_of_a_topic(self, cluster: AsyncClient) -> None:
        """A broker has just started, and a new controller, which announces brokers first, is slow to send it the topics: after
        a while the broker serves without them. A reader looks for partitions there.
        """
        controller = self.cluster.controller()
        others = [each for each in self.cluster.brokers.values() if each is not controller]
        if controller is None or not self.cluster.network.is_calm or not all(each.is_serving for each in others):
            return
        broker = self.chance.choice(others)
        read: dict[TopicPartition, int] = {}
        async with (
            self.connect(metadata_max_age_ms=_LOOK_MS) as own,
            _source(own, ConsumerConfig(), Selection(topic=_TOPIC), EARLIEST, None) as source,
        ):
            if not await self._reads(source, read, lambda: len(read) == len(_PARTITIONS)):
                return
            with self._parted((controller, broker)):
                successor = await self._starts_with_another_controller(broker, controller)
            if successor is None:
                return
            with self._parted((successor, broker)):
                await self._reads(source, read, lambda: broker.is_serving)
                await own.link(broker.id)
                await self._reads_for(source, read, _HIDDEN_S)
            await self._reads_for(source, read, _HIDDEN_S)

    async def _starts_with_another_controller(
        self, broker: BrokerProcess, controller: BrokerProcess
    ) -> BrokerProcess | None:
        """Return the next controller once it has sent a broker the list of brokers, and nothing else."""
        before, faults = broker.broker, self.cluster.faults
        if faults is None or not faults.may_kill(broker) or not broker.is_serving:
            return None
        self.note(f"restarts {broker.name} and replaces the controller")
        broker.kill()
        broker.start()

        def is_registered() -> bool:
            session = 0 if broker.broker is before else self.cluster.session_of(broker)
            return session != 0 and self.cluster.registered_by(broker.id) == session

        if not await self._until(is_registered):
            return None
        self.cluster.expire_session(controller)
        if not await self._until(lambda: self._knows_its_registration(broker)):
            return None
        successor = self.cluster.controller()
        return successor if successor not in (controller, broker) and not broker.broker.metadata.topics else None  # type: ignore[union-attr]

    def _knows_its_registration(self, broker: BrokerProcess) -> bool:
        metadata = getattr(broker.broker, "metadata", None)
        return metadata is not None and metadata.is_alive(broker.id)

    async def _reads_for(self, source: Source, read: dict[TopicPartition, int], seconds: float) -> None:
        until_s = self.world.now_s + seconds
        await self._reads(source, read, lambda: self.world.now_s >= until_s)
