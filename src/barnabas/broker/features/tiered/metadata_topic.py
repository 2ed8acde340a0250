"""The cluster's knowledge of the tier: reads `__remote_log_metadata` to its end and writes to it.

Owner: the event loop. A broker reads the partitions of the topic that concern its own replicas, and those that it leads, over
the inter-broker listener (`features.tiered.metadata_reader`). `publish` returns when the broker has read its own event back,
so that the view includes this event or a later one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from barnabas.base.backoff import Backoff
from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import NO_EPOCH, BrokerId, TopicPartition
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.base.words import LATEST
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.metadata_reader import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    REQUEST_MS,
    MetadataReader,
    MetadataUnavailable,
    list_offsets,
)
from barnabas.broker.features.tiered.metadata_records import Decoded, encode_event, metadata_partition
from barnabas.broker.features.tiered.segment_metadata import Event, TierPartition, partition_of_event
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.client.connection import Connection
from barnabas.client.errors import ClientError
from barnabas.wire.messages.fetch import (
    FetchPartition,
)
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import BatchBuilder

log = logging.getLogger(__name__)

#: The last version with topic names instead of ids.
_PRODUCE_VERSION: Final = 9
#: A thread decodes an answer of this size; then the event loop applies its few thousand events at once.
_PARTITION_BYTES: Final = 64 << 10
#: Kafka's `remote.log.metadata.consume.wait.ms`.
_PUBLISH_S: Final = 120.0


class _Partition:
    """One partition of the topic, and how far it was read."""

    __slots__ = ("caches", "caught_up", "epoch", "position", "waiters")

    def __init__(self) -> None:
        #: Offset of the next record.
        self.position = 0
        #: Leader epoch of the last record: with it the leader checks that its log contains what was read.
        self.epoch: int = NO_EPOCH
        self.caches: dict[TierPartition, RemoteLogMetadataCache] = {}
        #: Whether the partition was read to its end at least once.
        self.caught_up = False
        #: Futures that complete when the position is above an offset.
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []

    def forget(self) -> None:
        """Drop everything: the log is not the one that was read."""
        self.position, self.epoch, self.caught_up = 0, NO_EPOCH, False
        self.caches.clear()


class RemoteMetadata:
    def __init__(
        self,
        broker_id: BrokerId,
        topic: InternalTopic,
        cluster: MetadataCache,
        *,
        connect: Callable[[BrokerId], Awaitable[Connection]],
        lane: Callable[[BrokerId], Awaitable[Connection]],
        on_event: Callable[[TierPartition], None],
        on_thread: OnThread,
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        """`connect` opens a connection for exclusive use, `lane` returns one for short requests. `on_event` is called when the
        metadata of a partition has changed."""
        self._broker_id = broker_id
        self.topic = topic
        self._cluster = cluster
        self._connect = connect
        self._lane = lane
        self._on_event = on_event
        self.on_thread = on_thread
        self._clock = clock
        self._spawn = spawn
        self._assigned: set[TierPartition] = set()
        self._partitions: dict[int, _Partition] = {}
        self._readers: dict[BrokerId, MetadataReader] = {}
        self._creating: asyncio.Task[None] | None = None
        self.is_stopped = False
        #: Number of records that could not be decoded.
        self.malformed = 0
        self._unsubscribe = cluster.subscribe(lambda change: self._look(change.topics))
        topic.on_counted = self._reconcile

    # -- assigned partitions ------------------------------------------------------------------------------------------

    def assign(self, of: TierPartition) -> None:
        """Read the metadata of a partition of which this broker has a replica."""
        if of not in self._assigned:
            self._assigned.add(of)
            # Thousands are assigned and removed at once; most share a partition of the topic with others.
            if self._of(of) is None:
                self._reconcile()

    def unassign(self, of: TierPartition) -> None:
        if of in self._assigned:
            self._assigned.discard(of)
            shared = self._of(of)
            if shared is None or all(self._of(each) is not shared for each in self._assigned):
                self._reconcile()

    def stop(self) -> None:
        """Stop applying events before this returns. The broker cancels the tasks."""
        self.is_stopped = True
        self._unsubscribe()
        for reader in self._readers.values():
            reader.stop()
        for partition in self._partitions.values():
            _fail(partition, MetadataUnavailable("the broker stops"))

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """The number of partitions; 0 if the topic does not exist yet."""
        return self.topic.partitions

    def ready(self, of: TierPartition) -> bool:
        """Whether all earlier metadata of the partition has been read."""
        partition = self._of(of)
        return partition is not None and partition.caught_up

    def is_read(self, of: TierPartition) -> bool:
        """Whether this broker reads the metadata of the partition."""
        return self._of(of) is not None

    def view(self, of: TierPartition) -> RemoteLogMetadataCache | None:
        """Return the partition's segments; None until its metadata is read to the end."""
        partition = self._of(of)
        if partition is None or not partition.caught_up:
            return None
        cache = partition.caches.get(of)
        if cache is None:
            cache = partition.caches[of] = RemoteLogMetadataCache()
        return cache

    def is_known(self, of: TierPartition) -> bool:
        """Whether the topic exists, according to this broker's metadata of the cluster."""
        return self._cluster.topic_id(of.topic) == of.topic_id

    def led(self) -> Iterator[TierPartition]:
        """Yield partitions with segments whose metadata is in a partition that this broker leads and has read."""
        for number, partition in list(self._partitions.items()):
            if self._leader(number) == self._broker_id and partition.caught_up:
                yield from [of for of, cache in partition.caches.items() if len(cache)]

    def _of(self, of: TierPartition) -> _Partition | None:
        count = self.partition_count
        return self._partitions.get(metadata_partition(of, count)) if count else None

    # -- writing ------------------------------------------------------------------------------------------------------

    async def publish(self, event: Event) -> None:
        """Write an event with acks=all, and wait until it is read back. :raises MetadataUnavailable:"""
        of = partition_of_event(event)
        try:
            async with asyncio.timeout(_PUBLISH_S):
                number, offset = await self._until_done(of, lambda to, at: self._produce(to, at, event))
                await self._read_past(number, offset)
        except TimeoutError:
            raise MetadataUnavailable(
                f"{of}: an event was not written and read back within {_PUBLISH_S:.0f} s"
            ) from None

    async def catch_up(self, of: TierPartition) -> None:
        """Wait until everything that was committed at the time of the call is read: then there is a view. :raises
        MetadataUnavailable:"""
        try:
            async with asyncio.timeout(_PUBLISH_S):
                number, end = await self._until_done(of, self._end_offset)
                await self._read_past(number, end - 1)
        except TimeoutError:
            raise MetadataUnavailable(f"{of}: the metadata was not read to its end within {_PUBLISH_S:.0f} s") from None
        if not self.ready(of):
            raise MetadataUnavailable(f"{of}: its metadata is being read again")

    async def _until_done(
        self, of: TierPartition, request: Callable[[Connection, int], Awaitable[int]]
    ) -> tuple[int, int]:
        """Retry until it succeeds; return the partition of the topic, and the result."""
        backoff = Backoff(BACKOFF_S, BACKOFF_MAX_S)
        while True:
            if self.is_stopped:
                raise MetadataUnavailable("the broker stops")
            number = metadata_partition(of, self.partition_count) if self.partition_count else -1
            leader = self._leader(number)
            try:
                if leader is None:
                    await self.topic.ensure()
                    raise MetadataUnavailable(f"{REMOTE_LOG_METADATA_TOPIC}-{number} has no leader")
                return number, await request(await self._lane(leader), number)
            except (ClientError, MetadataUnavailable) as error:
                log.debug("[tier metadata] %s: will retry: %s", of, error)
            await asyncio.sleep(backoff.failed())

    async def _produce(self, connection: Connection, number: int, event: Event) -> int:
        builder = BatchBuilder()
        builder.append(None, encode_event(event), timestamp=self._clock.now_ms())
        data = PartitionProduceData(index=number, records=builder.build())
        topic = TopicProduceData(name=REMOTE_LOG_METADATA_TOPIC, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=REQUEST_MS, topic_data=[topic])
        response = await connection.request(
            request, ProduceResponse, version=_PRODUCE_VERSION, timeout_ms=REQUEST_MS + 5_000
        )
        answer = response.responses[0].partition_responses[0]
        _check(answer.error_code, f"produce to {REMOTE_LOG_METADATA_TOPIC}-{number}")
        return answer.base_offset

    async def _end_offset(self, connection: Connection, number: int) -> int:
        found = await list_offsets(connection, [number], LATEST)
        if number not in found:
            raise MetadataUnavailable(f"the end of {REMOTE_LOG_METADATA_TOPIC}-{number} is not known")
        return found[number]

    async def _read_past(self, number: int, offset: int) -> None:
        partition = self._partitions.get(number)
        if partition is None:
            raise MetadataUnavailable(f"{REMOTE_LOG_METADATA_TOPIC}-{number} is not read here")
        if partition.position <= offset:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            partition.waiters.append((offset, reached))
            await reached

    # -- readers ------------------------------------------------------------------------------------------------------

    def _leader(self, number: int) -> BrokerId | None:
        state = self._cluster.partition(TopicPartition(REMOTE_LOG_METADATA_TOPIC, number))
        if state is None or not self._cluster.is_alive(BrokerId(state.leader)):
            return None
        return BrokerId(state.leader)

    def _look(self, topics: frozenset[str]) -> None:
        if REMOTE_LOG_METADATA_TOPIC in topics or self._readers:
            self._reconcile()

    def _reconcile(self) -> None:
        """Read the wanted partitions from their current leaders."""
        if self.is_stopped:
            return
        count = self.partition_count
        if not count:
            if self._assigned and (self._creating is None or self._creating.done()):
                self._creating = self._spawn(self._create(), "remote log metadata topic")
            return
        wanted = {metadata_partition(of, count) for of in self._assigned}
        wanted |= {number for number in range(count) if self._leader(number) == self._broker_id}
        for number in self._partitions.keys() - wanted:
            _fail(self._partitions.pop(number), MetadataUnavailable("not read here any more"))
        for number in wanted:
            self._partitions.setdefault(number, _Partition())
        by_leader: dict[BrokerId, set[int]] = {}
        for number in wanted:
            if (leader := self._leader(number)) is not None:
                by_leader.setdefault(leader, set()).add(number)
        for leader in self._readers.keys() - by_leader.keys():
            self._readers.pop(leader).stop()
        for leader, numbers in by_leader.items():
            reader = self._readers.get(leader)
            if reader is None:
                reader = self._readers[leader] = MetadataReader(self, leader, self._connect)
                reader.read(numbers)
                self._spawn(reader.run(), f"remote log metadata of broker {leader}")
            else:
                reader.read(numbers)

    async def _create(self) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_MAX_S)
        while not self.is_stopped and not self.partition_count and self._assigned:
            await self.topic.ensure()
            await asyncio.sleep(backoff.failed())

    # -- results of the readers ---------------------------------------------------------------------------------------

    def requested(self, numbers: set[int]) -> list[FetchPartition]:
        return [
            FetchPartition(
                partition=number,
                fetch_offset=partition.position,
                last_fetched_epoch=partition.epoch,
                partition_max_bytes=_PARTITION_BYTES,
            )
            for number in sorted(numbers)
            if (partition := self._partitions.get(number)) is not None
        ]

    def unread(self, numbers: set[int]) -> set[int]:
        """Return the partitions that have not been read to their end yet."""
        return {number for number, each in self._partitions.items() if number in numbers and not each.caught_up}

    def fetched(self, number: int, fetch_offset: int, found: Decoded | None, end: int | None) -> None:
        """Apply records. `end`: the end of the log as committed before the fetch; None if unknown."""
        partition = self._partitions.get(number)
        if partition is None or partition.position != fetch_offset:
            return  # another reader has continued meanwhile
        if found is not None:
            self._apply(number, partition, found)
        if not partition.caught_up and end is not None and partition.position >= end:
            partition.caught_up = True
            for of in [*self._assigned]:
                if self._of(of) is partition:
                    self._on_event(of)

    def begin_again(self, number: int, start: int) -> None:
        """Read again from `start`: retention, a truncation or a recreation of the topic removed the position."""
        partition = self._partitions.get(number)
        if partition is None:
            return
        if partition.position:
            log.warning(
                "[tier metadata] %s-%d is another log than before: reading it again from the start",
                REMOTE_LOG_METADATA_TOPIC,
                number,
            )
        known = list(partition.caches)
        partition.forget()
        partition.position = start
        for of in known:
            self._on_event(of)

    def _apply(self, number: int, partition: _Partition, found: Decoded) -> None:
        changed: dict[TierPartition, None] = {}
        for offset, event in found.events:
            if offset < partition.position:
                continue
            if isinstance(event, Malformed):
                self.malformed += 1
                log.error(
                    "[tier metadata] skipped record %d of %s-%d, is another version writing to it? %s",
                    offset,
                    REMOTE_LOG_METADATA_TOPIC,
                    number,
                    event,
                )
                continue
            of = partition_of_event(event)
            cache = partition.caches.get(of)
            if cache is None:
                cache = partition.caches[of] = RemoteLogMetadataCache()
            if cache.apply(event):
                changed[of] = None
            else:
                log.debug(
                    "[tier metadata] ignored record %d of %s-%d, which does not fit the current state: %s",
                    offset,
                    REMOTE_LOG_METADATA_TOPIC,
                    number,
                    event,
                )
            if not len(cache) and of not in self._assigned:
                del partition.caches[of]
        partition.position, partition.epoch = found.next_offset, found.epoch
        if partition.caught_up:
            for of in changed:
                self._on_event(of)
        waiters, partition.waiters = partition.waiters, []
        for offset, waiter in waiters:
            if offset >= partition.position:
                partition.waiters.append((offset, waiter))
            elif not waiter.done():
                waiter.set_result(None)


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise MetadataUnavailable(f"{what}: {ErrorCode(code).name}")


def _fail(partition: _Partition, error: MetadataUnavailable) -> None:
    waiters, partition.waiters = partition.waiters, []
    for _, waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
