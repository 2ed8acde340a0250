"""A producer: records into batches, batches to leaders, in order, and with `acks=all` each exactly once.

Every partition has a lane: a queue of batches and a task that keeps up to `max_in_flight` of them unanswered. When one of
them fails in a way that may pass, those behind it are waited for and what did not get through is sent again, in the same
order and with the same sequence numbers, so that the broker can tell a duplicate from a new batch.

Owner: the event loop. `async with Producer(cluster)`; leaving it without an error flushes.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self

from barnabas.client.cluster import TRANSACTION, Cluster, usable_version
from barnabas.client.errors import BrokerRefused, ClientError, DeadlineExceeded, check
from barnabas.client.partitioner import StickyPartitioner
from barnabas.client.transaction import Transaction
from barnabas.core.clock import Clock, SystemClock
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.compression import Codec
from barnabas.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.protocol.record_batch import NO_SEQUENCE, increment_sequence
from barnabas.protocol.records import BatchBuilder

ACKS_ALL: Final = -1
Headers = Sequence[tuple[str, bytes | None]]

#: What a record takes besides its key and value, generously.
_RECORD_OVERHEAD_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """By Kafka's names and with Kafka's defaults."""

    acks: int = ACKS_ALL
    codec: Codec = Codec.NONE
    batch_bytes: int = 16_384
    linger_ms: int = 0
    buffer_memory_bytes: int = 32 * 1024 * 1024
    max_in_flight: int = 5
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    #: Duplicates and reordering are ruled out; needs acks=all.
    idempotent: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.idempotent and self.acks != ACKS_ALL:
            raise ValueError("enable.idempotence needs acks=all")
        if self.transactional_id is not None and not self.idempotent:
            raise ValueError("a transactional producer is idempotent")


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one partition that travel together. `done` has the offset of the first, -1 with acks=0."""

    partition: TopicPartition
    done: "asyncio.Future[int]"
    records: list[tuple[bytes | None, bytes | None, int, Headers]] = field(default_factory=list)
    size_bytes: int = 0
    #: Set once, when it is sent the first time; kept over retries.
    sequence: int = NO_SEQUENCE
    opened_at_s: float = 0.0
    #: Under way: ends with the offset, or with what went wrong.
    sending: "asyncio.Task[int | ClientError] | None" = None


class Delivery(NamedTuple):
    """Where a record went: `await delivery.offset()`."""

    batch: Batch
    position: int

    async def offset(self) -> int:
        base = await asyncio.shield(self.batch.done)
        return base + self.position if base >= 0 else -1


@dataclass(slots=True, eq=False)
class _Lane:
    """One partition's batches: the last of `queue` is open for more records."""

    partition: TopicPartition
    queue: deque[Batch] = field(default_factory=deque)
    next_sequence: int = 0
    #: (producer id, epoch); None: the producer's own. A lane that had to give a batch up goes on under a new one.
    identity: tuple[int, int] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    flushing: bool = False


class Producer:
    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig | None = None,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.cluster = cluster
        self.config = config or ProducerConfig()
        self._clock = clock or SystemClock()
        self._partitioner = StickyPartitioner(self.config.batch_bytes, chance or random.Random())
        self._partition_counts: dict[str, int] = {}
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._lane_tasks: list[asyncio.Task[None]] = []
        self._identity: tuple[int, int] | None = None
        self._id_lock = asyncio.Lock()
        #: Bytes that were taken and not acknowledged. `send` waits while they exceed `buffer_memory_bytes`.
        self._buffered_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._unfinished: dict[Batch, None] = {}
        self.transaction = Transaction(self) if self.config.transactional_id is not None else None

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        try:
            if kind is None:
                await self.flush()
        finally:
            # The lanes wait for batches that will not come; what is unanswered fails with the connections, or is answered.
            for task in self._lane_tasks:
                task.cancel()
            if kind is not None:
                for batch in self._unfinished:
                    if batch.sending is not None:
                        batch.sending.cancel()
            await self._tasks.__aexit__(None, None, None)

    # -- what callers use -----------------------------------------------------------------------------------------------

    async def partition_count(self, topic: str) -> int:
        count = self._partition_counts.get(topic)
        if count is None:
            count = self._partition_counts[topic] = await self._look_up(topic)
        return count

    async def _look_up(self, topic: str) -> int:
        async def once() -> int:
            info = (await self.cluster.topics([topic], auto_create=True)).get(topic)
            check(info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
            assert info is not None
            return len(info.partitions)

        return await self.cluster.retrying(f"metadata of {topic}", once)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Add a record to a batch. Waits only for metadata and for room; `delivery.offset()` waits for the broker."""
        size = (len(key) if key else 0) + (len(value) if value else 0) + _RECORD_OVERHEAD_BYTES
        count = self._partition_counts.get(topic)
        if count is None:
            count = await self.partition_count(topic)
        known = self.cluster.image.topics.get(topic)
        if known is not None and len(known.partitions) > count:
            count = self._partition_counts[topic] = len(known.partitions)  # it has grown
        if partition is None:
            partition = self._partitioner.choose(topic, key, count, size)
        while self._buffered_bytes and self._buffered_bytes + size > self.config.buffer_memory_bytes:
            await self._wait_for_room()
        where = TopicPartition(topic, partition)
        if self.transaction is not None:
            await self.transaction.take_part(where)
        batch = self._open_batch(where, size)
        batch.records.append((key, value, self._clock.now_ms() if timestamp_ms is None else timestamp_ms, headers))
        batch.size_bytes += size
        self._buffered_bytes += size
        delivery = Delivery(batch, len(batch.records) - 1)
        if delivery.position == 0:
            await asyncio.sleep(0)  # the batch before it may be full: let the lanes run, even if the caller never waits
        return delivery

    async def flush(self) -> None:
        """Wait until all that was sent is acknowledged or has failed."""
        for lane in self._lanes.values():
            lane.flushing = True
            lane.wake.set()
        try:
            while self._unfinished:
                await asyncio.wait([batch.done for batch in self._unfinished])
        finally:
            for lane in self._lanes.values():
                lane.flushing = False

    async def produce(self, partition: TopicPartition, batch: bytes) -> int:
        """One ready-made batch to the leader, once: no retry, no sequence. The offset of its first record."""
        (leader,) = await self.cluster.leaders([partition])
        return await self._request(leader, partition, batch)

    # -- batches --------------------------------------------------------------------------------------------------------

    def _open_batch(self, where: TopicPartition, size: int) -> Batch:
        lane = self._lanes.get(where)
        if lane is None:
            assert self._tasks is not None, "use `async with`"
            lane = self._lanes[where] = _Lane(where)
            self._lane_tasks.append(self._tasks.create_task(self._run(lane), name=f"producer-{where}"))
        batch = lane.queue[-1] if lane.queue else None
        if batch is None or batch.size_bytes + size > self.config.batch_bytes:
            loop = asyncio.get_running_loop()
            batch = Batch(where, loop.create_future(), opened_at_s=loop.time())
            lane.queue.append(batch)
            self._unfinished[batch] = None
            lane.wake.set()
        return batch

    async def _wait_for_room(self) -> None:
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._room)

    def _finish(self, batch: Batch, outcome: int | ClientError) -> None:
        if isinstance(outcome, int):
            batch.done.set_result(outcome)
        else:
            batch.done.set_exception(outcome)
            batch.done.exception()  # whoever does not look at it has not asked to know
        self._unfinished.pop(batch, None)
        self._buffered_bytes -= batch.size_bytes
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # -- lanes ----------------------------------------------------------------------------------------------------------

    async def _run(self, lane: _Lane) -> None:
        window: deque[Batch] = deque()
        while True:
            while len(window) < self.config.max_in_flight:
                batch = await self._next_batch(lane, wait=not window)
                if batch is None:
                    break
                self._start(lane, batch)
                window.append(batch)
            first = window[0]
            assert first.sending is not None
            outcome = await first.sending
            if isinstance(outcome, int):
                window.popleft()
                self._finish(first, outcome)
            else:
                await self._recover(lane, window, outcome)

    async def _next_batch(self, lane: _Lane, *, wait: bool) -> Batch | None:
        """The oldest batch that is full, has lingered long enough, or has to be flushed."""
        loop = asyncio.get_running_loop()
        while True:
            if lane.queue:
                lingered_s = loop.time() - lane.queue[0].opened_at_s
                left_s = self.config.linger_ms / 1000 - lingered_s
                if len(lane.queue) > 1 or lane.flushing or left_s <= 0:
                    return lane.queue.popleft()
                if not wait:
                    return None
                lane.wake.clear()
                try:
                    async with asyncio.timeout(left_s):
                        await lane.wake.wait()
                except TimeoutError:
                    continue  # it has lingered long enough
            elif not wait:
                return None
            else:
                lane.wake.clear()
                await lane.wake.wait()
                # With no linger the records of this turn of the loop still go together.
                await asyncio.sleep(0)

    def _start(self, lane: _Lane, batch: Batch) -> None:
        assert self._tasks is not None
        if self.config.idempotent and batch.sequence == NO_SEQUENCE:
            batch.sequence = lane.next_sequence
            lane.next_sequence = increment_sequence(lane.next_sequence, len(batch.records))
        batch.sending = self._tasks.create_task(self._send(lane, batch), name=f"produce-{lane.partition}")

    async def _recover(self, lane: _Lane, window: deque[Batch], error: ClientError) -> None:
        """Wait for what is under way, then send again what did not get through, or give it up for good."""
        await asyncio.wait([batch.sending for batch in window if batch.sending is not None])
        for batch in list(window):
            assert batch.sending is not None
            outcome = batch.sending.result()
            if isinstance(outcome, int):
                window.remove(batch)
                self._finish(batch, outcome)
        first = window[0]
        waited_s = asyncio.get_running_loop().time() - first.opened_at_s
        if _may_pass(error) and waited_s * 1000 <= self.config.delivery_timeout_ms:
            self.cluster.forget_leaders([lane.partition.topic])
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
        else:
            window.popleft()
            if _may_pass(error):
                error = DeadlineExceeded(f"{lane.partition}: not delivered in time: {error}")
            self._finish(first, error)
            try:
                await self._start_over(lane, window)
            except ClientError as failure:
                while window:
                    self._finish(window.popleft(), failure)
        for batch in window:
            self._start(lane, batch)

    async def _start_over(self, lane: _Lane, window: deque[Batch]) -> None:
        """Without the failed batch the sequence has a hole: those behind it go on under a new identity."""
        if not self.config.idempotent or self.transaction is not None:
            return
        lane.identity = await self._new_identity()
        lane.next_sequence = 0
        for batch in window:
            batch.sequence = NO_SEQUENCE

    # -- the wire -------------------------------------------------------------------------------------------------------

    async def _send(self, lane: _Lane, batch: Batch) -> int | ClientError:
        """Once. A failure is a value here: it is looked at when the batch's turn comes."""
        try:
            producer_id, producer_epoch = -1, -1
            if self.config.idempotent:
                producer_id, producer_epoch = lane.identity or await self.initialise()
            builder = BatchBuilder(
                codec=self.config.codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=batch.sequence,
                transactional=self.transaction is not None,
            )
            for key, value, timestamp_ms, headers in batch.records:
                builder.append(key, value, timestamp=timestamp_ms, headers=headers)
            (leader,) = await self.cluster.leaders([lane.partition])
            return await self._request(leader, lane.partition, builder.build())
        except BrokerRefused as refused:
            # A duplicate is there already; the broker no longer knows where.
            return -1 if refused.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER else refused
        except ClientError as error:
            return error

    async def _request(self, leader: int, partition: TopicPartition, data: bytes) -> int:
        request = ProduceRequest(
            transactional_id=self.config.transactional_id,
            acks=self.config.acks,
            timeout_ms=self.config.request_timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=partition.topic,
                    partition_data=[PartitionProduceData(index=partition.partition, records=data)],
                )
            ],
        )
        if self.config.acks == 0:
            connection = await self.cluster.connection(leader)
            connection.post(request, version=usable_version(connection, request))
            await connection.drain()
            return -1
        response = await self.cluster.ask(
            leader, request, ProduceResponse, timeout_ms=self.config.request_timeout_ms + 1_000
        )
        result = response.responses[0].partition_responses[0]
        check(result.error_code, result.error_message or str(partition))
        return result.base_offset

    async def initialise(self) -> tuple[int, int]:
        """Get a producer id and epoch, once; fences a predecessor with the same transactional id."""
        async with self._id_lock:
            if self._identity is None:
                self._identity = await self._new_identity()
            return self._identity

    async def _new_identity(self) -> tuple[int, int]:
        transactional_id = self.config.transactional_id
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=self.config.transaction_timeout_ms
        )

        async def once() -> tuple[int, int]:
            if transactional_id is None:
                response = await self.cluster.ask_any(request, InitProducerIdResponse)
            else:
                response = await self.cluster.ask_coordinator(
                    transactional_id,
                    request,
                    InitProducerIdResponse,
                    kind=TRANSACTION,
                    error_of=lambda answer: answer.error_code,
                )
            check(response.error_code)
            return response.producer_id, response.producer_epoch

        return await self.cluster.retrying("InitProducerId", once)


def _may_pass(error: ClientError) -> bool:
    """Also OUT_OF_ORDER_SEQUENCE_NUMBER: behind a batch that failed it only means "not yet"."""
    if isinstance(error, BrokerRefused) and error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return True
    return error.retriable
