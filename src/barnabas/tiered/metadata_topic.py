"""What the cluster knows of the tier: `__remote_log_metadata`, read to its end and written to.

Owner: the event loop. A broker reads those partitions of the topic that its own replicas' segments are in, and those that it
leads. It reads as a consumer does, over the inter-broker listener, with one long poll to each leader. What it writes it waits
to read: after `publish` the view has the event, or a later one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from barnabas.client.connection import Connection
from barnabas.client.errors import ClientError
from barnabas.coordination.internal_topic import InternalTopic
from barnabas.coordination.metadata_cache import MetadataCache as ClusterMetadata
from barnabas.core.clock import Clock
from barnabas.core.errors import BarnabasError, ErrorCode, Malformed
from barnabas.core.ids import NO_EPOCH, BrokerId, TopicPartition
from barnabas.core.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.core.words import EARLIEST, LATEST
from barnabas.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from barnabas.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.protocol.records import BatchBuilder
from barnabas.runtime.tasks import Spawn
from barnabas.runtime.threads import OnThread
from barnabas.tiered.metadata_cache import MetadataCache
from barnabas.tiered.metadata_records import Decoded, decode_records, encode_event, metadata_partition
from barnabas.tiered.segment_metadata import Event, TierPartition, partition_of_event

log = logging.getLogger(__name__)

#: The last versions that name topics, not ids: the topic may be made again, and then everything is read again.
_FETCH_VERSION: Final = 12
_PRODUCE_VERSION: Final = 9
#: A long poll ends after so long even if there is nothing: a leader that is gone without a word is noticed by the time-out.
_MAX_WAIT_MS: Final = 10_000
#: A thread decodes what an answer brings; the loop applies it at once, a few thousand events.
_PARTITION_BYTES: Final = 64 << 10
_RESPONSE_BYTES: Final = 256 << 10
_REQUEST_MS: Final = 30_000
#: Between two tries of what failed, doubling.
_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0
#: Kafka's `remote.log.metadata.consume.wait.ms`.
_PUBLISH_S: Final = 120.0


class MetadataUnavailable(BarnabasError):
    """An event could not be written, or was not read back in time: it may be in the topic, or come to be."""


class _Partition:
    """One partition of the topic, as far as it was read."""

    __slots__ = ("caches", "caught_up", "epoch", "position", "waiters")

    def __init__(self) -> None:
        #: Of the next record.
        self.position = 0
        #: Leader epoch of the last one: with it the leader sees whether its log has what was read.
        self.epoch: int = NO_EPOCH
        self.caches: dict[TierPartition, MetadataCache] = {}
        #: It was read to its end once.
        self.caught_up = False
        #: Done when the position is above an offset.
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []

    def forget(self) -> None:
        """The log is another one than what was read. Nothing of it is known any more."""
        self.position, self.epoch, self.caught_up = 0, NO_EPOCH, False
        self.caches.clear()


class RemoteMetadata:
    def __init__(
        self,
        broker_id: BrokerId,
        topic: InternalTopic,
        cluster: ClusterMetadata,
        *,
        connect: Callable[[BrokerId], Awaitable[Connection]],
        lane: Callable[[BrokerId], Awaitable[Connection]],
        on_event: Callable[[TierPartition], None],
        on_thread: OnThread,
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        """`connect` opens a connection that is ours alone, `lane` gives one for short requests. `on_event` is called when
        what is known of a partition has changed."""
        self._broker_id = broker_id
        self._topic = topic
        self._cluster = cluster
        self._connect = connect
        self._lane = lane
        self._on_event = on_event
        self.on_thread = on_thread
        self._clock = clock
        self._spawn = spawn
        self._assigned: set[TierPartition] = set()
        self._partitions: dict[int, _Partition] = {}
        self._readers: dict[BrokerId, _Reader] = {}
        self._creating: asyncio.Task[None] | None = None
        self.is_stopped = False
        #: Records that could not be decoded.
        self.malformed = 0
        self._unsubscribe = cluster.subscribe(lambda change: self._look(change.topics))

    # -- whose segments -----------------------------------------------------------------------------------------------

    def assign(self, of: TierPartition) -> None:
        """This broker has a replica of the partition: know its segments."""
        if of not in self._assigned:
            self._assigned.add(of)
            self._reconcile()

    def unassign(self, of: TierPartition) -> None:
        if of in self._assigned:
            self._assigned.discard(of)
            self._reconcile()

    def stop(self) -> None:
        """Nothing is applied any more once this returns. The tasks are the broker's."""
        self.is_stopped = True
        self._unsubscribe()
        for reader in self._readers.values():
            reader.stop()
        for partition in self._partitions.values():
            _fail(partition, MetadataUnavailable("the broker stops"))

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """0: the topic is not there yet."""
        return self._cluster.partition_count(REMOTE_LOG_METADATA_TOPIC)

    def ready(self, of: TierPartition) -> bool:
        """Whether everything that was written about the partition before this broker began to read has been read."""
        partition = self._of(of)
        return partition is not None and partition.caught_up

    def is_read(self, of: TierPartition) -> bool:
        """Whether this broker reads what is written about the partition."""
        return self._of(of) is not None

    def view(self, of: TierPartition) -> MetadataCache | None:
        """None: not read to the end yet, so that nobody can tell what the tier has."""
        partition = self._of(of)
        if partition is None or not partition.caught_up:
            return None
        cache = partition.caches.get(of)
        if cache is None:
            cache = partition.caches[of] = MetadataCache()
        return cache

    def is_known(self, of: TierPartition) -> bool:
        """Whether the cluster has its topic, as far as this broker has heard."""
        return self._cluster.topic_id(of.topic) == of.topic_id

    def led(self) -> Iterator[TierPartition]:
        """Partitions with segments, in those partitions of the topic that this broker leads and has read."""
        for number, partition in list(self._partitions.items()):
            if self._leader(number) == self._broker_id and partition.caught_up:
                yield from [of for of, cache in partition.caches.items() if len(cache)]

    def _of(self, of: TierPartition) -> _Partition | None:
        count = self.partition_count
        return self._partitions.get(metadata_partition(of, count)) if count else None

    # -- writing ------------------------------------------------------------------------------------------------------

    async def publish(self, event: Event) -> None:
        """Write it with acks=all, and wait until it is read back. :raises MetadataUnavailable:"""
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
        """Wait until all is read that was committed when this was called: then there is a view, at this moment. :raises
        MetadataUnavailable:"""
        try:
            async with asyncio.timeout(_PUBLISH_S):
                number, end = await self._until_done(of, self._end_offset)
                await self._read_past(number, end - 1)
        except TimeoutError:
            raise MetadataUnavailable(f"{of}: the metadata was not read to its end within {_PUBLISH_S:.0f} s") from None
        if not self.ready(of):
            raise MetadataUnavailable(f"{of}: what the tier has is being read again")

    async def _until_done(
        self, of: TierPartition, request: Callable[[Connection, int], Awaitable[int]]
    ) -> tuple[int, int]:
        """The partition of the topic, and what its leader answered."""
        backoff_s = _BACKOFF_S
        while True:
            if self.is_stopped:
                raise MetadataUnavailable("the broker stops")
            number = metadata_partition(of, self.partition_count) if self.partition_count else -1
            leader = self._leader(number)
            try:
                if leader is None:
                    await self._topic.ensure()
                    raise MetadataUnavailable(f"{REMOTE_LOG_METADATA_TOPIC}-{number} has no leader")
                return number, await request(await self._lane(leader), number)
            except (ClientError, MetadataUnavailable) as error:
                log.debug("%s: trying again: %s", of, error)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _produce(self, connection: Connection, number: int, event: Event) -> int:
        builder = BatchBuilder()
        builder.append(None, encode_event(event), timestamp=self._clock.now_ms())
        data = PartitionProduceData(index=number, records=builder.build())
        topic = TopicProduceData(name=REMOTE_LOG_METADATA_TOPIC, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=_REQUEST_MS, topic_data=[topic])
        response = await connection.request(
            request, ProduceResponse, version=_PRODUCE_VERSION, timeout_ms=_REQUEST_MS + 5_000
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

    # -- who reads what -----------------------------------------------------------------------------------------------

    def _leader(self, number: int) -> BrokerId | None:
        state = self._cluster.partition(TopicPartition(REMOTE_LOG_METADATA_TOPIC, number))
        if state is None or not self._cluster.is_alive(BrokerId(state.leader)):
            return None
        return BrokerId(state.leader)

    def _look(self, topics: frozenset[str]) -> None:
        if REMOTE_LOG_METADATA_TOPIC in topics or self._readers:
            self._reconcile()

    def _reconcile(self) -> None:
        """Read what is wanted from who leads it now."""
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
                reader = self._readers[leader] = _Reader(self, leader, self._connect)
                reader.read(numbers)
                self._spawn(reader.run(), f"remote log metadata of broker {leader}")
            else:
                reader.read(numbers)

    async def _create(self) -> None:
        backoff_s = _BACKOFF_S
        while not self.is_stopped and not self.partition_count and self._assigned:
            await self._topic.ensure()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    # -- what was read ------------------------------------------------------------------------------------------------

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
        """Those that were not read to their end yet."""
        return {number for number, each in self._partitions.items() if number in numbers and not each.caught_up}

    def fetched(self, number: int, fetch_offset: int, found: Decoded | None, end: int | None) -> None:
        """`end`: of what was committed before it was asked for; None: nobody knows."""
        partition = self._partitions.get(number)
        if partition is None or partition.position != fetch_offset:
            return  # somebody else has read on meanwhile
        if found is not None:
            self._apply(number, partition, found)
        if not partition.caught_up and end is not None and partition.position >= end:
            partition.caught_up = True
            for of in [*self._assigned]:
                if self._of(of) is partition:
                    self._on_event(of)

    def begin_again(self, number: int, start: int) -> None:
        """Retention took what is below the log start, or the topic was made again, or its log was cut."""
        partition = self._partitions.get(number)
        if partition is None:
            return
        if partition.position:
            log.warning("%s-%d is not the log that was read: reading it again", REMOTE_LOG_METADATA_TOPIC, number)
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
                log.error("passing over record %d of %s-%d: %s", offset, REMOTE_LOG_METADATA_TOPIC, number, event)
                continue
            of = partition_of_event(event)
            cache = partition.caches.get(of)
            if cache is None:
                cache = partition.caches[of] = MetadataCache()
            if cache.apply(event):
                changed[of] = None
            else:
                log.debug("record %d of %s-%d does not follow: %s", offset, REMOTE_LOG_METADATA_TOPIC, number, event)
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


class _Reader:
    """One long poll after the other to one leader."""

    def __init__(
        self, owner: RemoteMetadata, leader: BrokerId, connect: Callable[[BrokerId], Awaitable[Connection]]
    ) -> None:
        self._owner = owner
        self._leader = leader
        self._connect = connect
        self._numbers: set[int] = set()
        self._connection: Connection | None = None
        #: Where the partitions ended that are not read yet. Not their high watermarks: a new leader's may be behind.
        self._ends: dict[int, int] = {}
        self._is_stopped = False
        #: Set when the poll under way asks for something else than what is wanted now, and when a pause is over before time.
        self._changed = asyncio.Event()

    def read(self, numbers: set[int]) -> None:
        if numbers != self._numbers:
            self._numbers = numbers
            self._interrupt()

    def stop(self) -> None:
        self._is_stopped = True
        self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> None:
        backoff_s = _BACKOFF_S
        try:
            while not self._is_stopped:
                self._changed.clear()
                try:
                    is_well = await self._poll()
                except (ClientError, MetadataUnavailable) as error:
                    is_well = False
                    if not self._changed.is_set():
                        log.debug("cannot read %s from broker %d: %s", REMOTE_LOG_METADATA_TOPIC, self._leader, error)
                if is_well:
                    backoff_s = _BACKOFF_S
                elif not self._changed.is_set():
                    await self._pause(backoff_s)
                    backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        finally:
            if self._connection is not None:
                self._connection.close()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _poll(self) -> bool:
        if self._connection is None or self._connection.closed:
            self._ends.clear()
            self._connection = await self._connect(self._leader)
            if self._changed.is_set():
                return True
        unread = self._owner.unread(self._numbers)
        self._ends = {number: end for number, end in self._ends.items() if number in unread}
        if unread != self._ends.keys():
            self._ends |= await list_offsets(self._connection, sorted(unread - self._ends.keys()), LATEST)
        asked = self._owner.requested(self._numbers)
        # A partition without records answers a long poll late, and only the answer tells that there are none.
        request = FetchRequest(
            max_wait_ms=0 if unread else _MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_RESPONSE_BYTES,
            topics=[FetchTopic(topic=REMOTE_LOG_METADATA_TOPIC, partitions=asked)],
        )
        response = await self._connection.request(
            request, FetchResponse, version=_FETCH_VERSION, timeout_ms=_MAX_WAIT_MS + _REQUEST_MS
        )
        if response.error_code != ErrorCode.NONE:
            return False
        fetch_offsets = {each.partition: each.fetch_offset for each in asked}
        lost: list[int] = []
        is_well = unread == self._ends.keys()
        for answer in (each for topic in response.responses for each in topic.partitions):
            number = answer.partition_index
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or answer.diverging_epoch is not None:
                lost.append(number)
            elif answer.error_code != ErrorCode.NONE:
                is_well = False
            elif number in fetch_offsets:
                try:
                    found = await self._decoded(answer.records)
                except Malformed as error:
                    log.error("%s-%d of broker %d: %s", REMOTE_LOG_METADATA_TOPIC, number, self._leader, error)
                    is_well = False
                    continue
                if self._is_stopped:
                    return True
                self._owner.fetched(number, fetch_offsets[number], found, self._ends.get(number))
                if found is None and self._owner.unread({number}):
                    self._ends.pop(number, None)  # the log has been cut since: where does it end now?
                    is_well = False
        if lost:
            for number, start in (await list_offsets(self._connection, lost, EARLIEST)).items():
                self._ends.pop(number, None)
                self._owner.begin_again(number, start)
        return is_well

    async def _decoded(self, records: object) -> Decoded | None:
        """None: there were none. :raises Malformed:"""
        if not isinstance(records, bytes | memoryview) or not len(records):
            return None
        found = await self._owner.on_thread(partial(decode_records, bytes(records)))
        if found is None:
            raise Malformed(f"{len(records)} bytes have no whole batch")
        return found


async def list_offsets(connection: Connection, numbers: list[int], timestamp: int) -> dict[int, int]:
    """Of those whose leader knows. :raises ClientError:"""
    asked = [ListOffsetsPartition(partition_index=number, timestamp=timestamp) for number in numbers]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=REMOTE_LOG_METADATA_TOPIC, partitions=asked)]
    )
    response = await connection.request(request, ListOffsetsResponse, version=5, timeout_ms=_REQUEST_MS)
    found: dict[int, int] = {}
    for answer in (each for topic in response.topics for each in topic.partitions):
        if answer.error_code == ErrorCode.NONE:
            found[answer.partition_index] = answer.offset
    return found


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise MetadataUnavailable(f"{what}: {ErrorCode(code).name}")


def _fail(partition: _Partition, error: MetadataUnavailable) -> None:
    waiters, partition.waiters = partition.waiters, []
    for _, waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
