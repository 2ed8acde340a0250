"""A producer for asyncio: records into batches, batches to leaders, in order, and each exactly once with `acks=all`.

`client.sending` decides when each batch goes and what a failure means; this module is its asyncio shell.
`Producer.transaction` exists if the settings have a `transactional.id`. Owner: the event loop. `async with
Producer(cluster)`; leaving it without an error flushes.
"""

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from barnabas.base.clock import Clock, SystemClock
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.connection import Connection
from barnabas.client.core import PRODUCE
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.exchange import version_with_names
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.partitioner import Partitioner, RoundRobinPartitioner, StickyPartitioner
from barnabas.client.sending import ACKS_ALL, NEVER, Outgoing, Sender, Shipment, produce_outcome, produce_request
from barnabas.client.transactions import PRODUCE_V1, Transactions
from barnabas.wire.compression import Codec
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.records import BatchBuilder

Headers = Sequence[tuple[str, bytes | None]]

#: Upper bound of a record's size besides its key and value.
_RECORD_OVERHEAD_BYTES: Final = 32
_HEADER_OVERHEAD_BYTES: Final = 4
#: A Produce response may come this much later than the request's own time limit.
_ANSWER_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings with Kafka's names and defaults."""

    acks: int = ACKS_ALL
    codec: Codec = Codec.NONE
    batch_bytes: int = 16_384
    linger_ms: int = 0
    buffer_memory_bytes: int = 32 * 1024 * 1024
    max_in_flight: int = 5
    #: `max.request.size`: batches for one leader share requests up to this size.
    request_bytes: int = 1024 * 1024
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    #: Rule out duplicates and reordering; needs acks=all.
    idempotent: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    #: Whether `partitioner.class` is Kafka's RoundRobinPartitioner.
    round_robin: bool = False
    ignore_keys: bool = False

    def __post_init__(self) -> None:
        if self.idempotent and self.acks != ACKS_ALL:
            raise ValueError("enable.idempotence needs acks=all")
        if self.transactional_id is not None and not self.idempotent:
            raise ValueError("a transactional producer is idempotent")


@dataclass(slots=True, eq=False, kw_only=True)
class Batch(Outgoing):
    """Records of one partition that are sent together. `done` gets the offset of the first one, or -1 with acks=0."""

    done: "asyncio.Future[int]"
    records: list[tuple[bytes | None, bytes | None, int, Headers]] = field(default_factory=list)
    #: The encoded batch, and the identity and sequence that it was encoded with.
    data: bytes = b""
    data_of: tuple[ProducerIdentity, int] = (NO_IDENTITY, 0)


def _size_of(key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int | None) -> int:
    """Return the size of a record; raise TypeError or ValueError if it cannot be encoded."""
    size = _RECORD_OVERHEAD_BYTES + _content_bytes("key", key) + _content_bytes("value", value)
    for name, content in headers:
        size += len(name.encode("utf-8", "surrogateescape")) + _content_bytes(f"header {name!r}", content)
        size += _HEADER_OVERHEAD_BYTES
    if timestamp_ms is not None and not 0 <= timestamp_ms < 2**63:
        raise ValueError(f"timestamp_ms={timestamp_ms} is not valid: use milliseconds since 1970")
    return size


def _content_bytes(what: str, content: object) -> int:
    if content is None:
        return 0
    if not isinstance(content, bytes | bytearray | memoryview):
        raise TypeError(f"{what} of a record must be bytes or None, not {type(content).__name__}: encode it first")
    return len(content)


class Delivery(NamedTuple):
    """Where a record goes; `await delivery.offset()` returns its offset."""

    batch: Batch
    position: int

    async def offset(self) -> int:
        base = await asyncio.shield(self.batch.done)
        return base + self.position if base >= 0 else -1


class Producer:
    def __init__(
        self,
        cluster: AsyncClient,
        config: ProducerConfig | None = None,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.cluster = cluster
        self.config = config or ProducerConfig()
        self._clock = clock or SystemClock()
        self._partitioner: Partitioner = (
            RoundRobinPartitioner()
            if self.config.round_robin
            else StickyPartitioner(
                self.config.batch_bytes, chance or random.Random(), ignore_keys=self.config.ignore_keys
            )
        )
        self._partition_counts: dict[str, int] = {}
        self._sender: Sender[Batch] = Sender(
            max_in_flight=self.config.max_in_flight,
            request_bytes=self.config.request_bytes,
            retry_backoff_ms=self.config.retry_backoff_ms,
            delivery_timeout_ms=self.config.delivery_timeout_ms,
            idempotent=self.config.idempotent,
            transactional=self.config.transactional_id is not None,
        )
        #: The last batch of each partition; records are added to it until it is sent.
        self._open: dict[TopicPartition, Batch] = {}
        self._transactions = Transactions(cluster)
        self._tasks: asyncio.TaskGroup | None = None
        self._pump: asyncio.Task[None] | None = None
        #: Tasks of requests and look-ups.
        self._running: dict[asyncio.Task[None], None] = {}
        self._wake = asyncio.Event()
        #: Look-ups in progress: topics, and "" for a producer id.
        self._looking: set[str] = set()
        #: Bytes that were accepted and not yet acknowledged. `send` waits while they exceed `buffer_memory_bytes`.
        self._buffered_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._lines: dict[int, _Line] = {}
        self.transaction = Transaction(self) if self.config.transactional_id is not None else None

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._pump = self._tasks.create_task(self._run(), name="producer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None and self._pump is not None
        try:
            if kind is None:
                await self.flush()
        finally:
            # The pump waits for batches that will not come. After an error, do not wait for responses either.
            self._pump.cancel()
            if kind is not None:
                for task in list(self._running):
                    task.cancel()
            await self._tasks.__aexit__(None, None, None)

    # -- what callers use -----------------------------------------------------------------------------------------------

    async def partition_count(self, topic: str) -> int:
        count = self._partition_counts.get(topic)
        if count is None:
            count = self._partition_counts[topic] = len((await self.cluster.existing_topic(topic)).partitions)
        return count

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
        """Add a record to a batch. Waits only for metadata and buffer space; `delivery.offset()` waits for the broker.

        :raises TypeError, ValueError: if no batch can hold the record. Later it would fail the producer, and all other records.
        """
        size = _size_of(key, value, headers, timestamp_ms)
        count = self._partition_counts.get(topic)
        if count is None:
            count = await self.partition_count(topic)
        known = self.cluster.image.topics.get(topic)
        if known is not None and len(known.partitions) > count:
            count = self._partition_counts[topic] = len(known.partitions)  # the topic has more partitions than before
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
        batch.record_count += 1
        self._buffered_bytes += size
        delivery = Delivery(batch, len(batch.records) - 1)
        if delivery.position == 0:
            # The previous batch may be full: let the pump send it even if the caller never waits.
            await asyncio.sleep(0)
        return delivery

    async def flush(self) -> None:
        """Wait until every sent record is acknowledged or has failed."""
        self._sender.flushing = True
        self._wake.set()
        try:
            while self._sender.unfinished:
                await asyncio.wait([batch.done for batch in self._sender.unfinished])
        finally:
            self._sender.flushing = False

    async def settle(self) -> None:
        """Wait until no request is in flight, including requests whose batches were given up."""
        while not self._sender.is_quiet:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def produce(self, partition: TopicPartition, batch: bytes) -> int:
        """Send one ready-made batch to the leader once, without retry or sequence; return the offset of its first record."""
        (leader,) = await self.cluster.leaders([partition])
        outcome = (await self._request(leader, [(partition, batch)]))[partition]
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    # -- batches --------------------------------------------------------------------------------------------------------

    def _open_batch(self, where: TopicPartition, size: int) -> Batch:
        batch = self._open.get(where)
        if batch is None or batch.closed or batch.size_bytes + size > self.config.batch_bytes:
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            batch = Batch(
                partition=where,
                done=loop.create_future(),
                added_at_s=now_s,
                ripe_at_s=now_s + self.config.linger_ms / 1000,
            )
            self._open[where] = batch
            self._sender.add(batch)
            self._wake.set()
        return batch

    async def _wait_for_room(self) -> None:
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._room)

    def _finish(self, finished: Sequence[tuple[Batch, int | ClientError]]) -> None:
        for batch, outcome in finished:
            if isinstance(outcome, int):
                batch.done.set_result(outcome)
            else:
                batch.done.set_exception(outcome)
                batch.done.exception()  # retrieve it: asyncio would log an error that the caller ignores
            self._buffered_bytes -= batch.size_bytes
        if finished and self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._wake.set()

    # -- sending --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Start work that is due, then wait for a change or for the next due time."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            await asyncio.sleep(0)  # even without linger, records of one loop iteration share a batch
            for shipment in self._sender.shipments(self.cluster.image, loop.time()):
                self._start("produce", self._ship(shipment))
            if self._sender.needs_identity:
                self._look("", self._identify())
            for topic in self._sender.unknown:
                self._look(topic, self._find(topic))
            timer = loop.call_at(self._sender.wake_at_s, self._wake.set) if self._sender.wake_at_s < NEVER else None
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._running.pop)

    def _look(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a look-up unless the same one is in progress."""
        if what in self._looking:
            work.close()
            return
        self._looking.add(what)

        async def look() -> None:
            try:
                await work
            finally:
                self._looking.discard(what)
                self._wake.set()

        self._start(f"look up {what}", look())

    async def _find(self, topic: str) -> None:
        error: ClientError = BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, "no leader, or no such partition")
        try:
            await self.cluster.refresh([topic])
        except ClientError as failure:
            error = failure
        now_s = asyncio.get_running_loop().time()
        self._finish(self._sender.looked_up([topic], self.cluster.image, error, now_s))

    async def _identify(self) -> None:
        try:
            identity = await self.initialise()
        except ClientError as error:
            self._finish(self._sender.fail_all(error))
            return
        self._sender.identify(identity)

    async def initialise(self, expected: ProducerIdentity = NO_IDENTITY) -> ProducerIdentity:
        """Return a producer id and epoch; this fences an earlier producer with the same transactional id."""
        return await self._transactions.initialise(
            self.config.transactional_id, timeout_ms=self.config.transaction_timeout_ms, expected=expected
        )

    async def _ship(self, shipment: Shipment[Batch]) -> None:
        outcome: Mapping[TopicPartition, int | ClientError] | ClientError
        try:
            outcome = await self._request(
                shipment.leader, [(batch.partition, self._encode(batch)) for batch in shipment.batches]
            )
        except ClientError as error:
            outcome = error
        if isinstance(outcome, ClientError) or any(isinstance(each, ClientError) for each in outcome.values()):
            self.cluster.forget_leaders({batch.partition.topic for batch in shipment.batches})
        self._finish(self._sender.answered(shipment, outcome, asyncio.get_running_loop().time()))

    def _encode(self, batch: Batch) -> bytes:
        numbered = (batch.identity, batch.sequence)
        if not batch.data or batch.data_of != numbered:
            builder = BatchBuilder(
                codec=self.config.codec,
                producer_id=batch.identity.producer_id,
                producer_epoch=batch.identity.epoch,
                base_sequence=batch.sequence,
                transactional=self.transaction is not None,
            )
            for key, value, timestamp_ms, headers in batch.records:
                builder.append(key, value, timestamp=timestamp_ms, headers=headers)
            batch.data, batch.data_of = builder.build(), numbered
        return batch.data

    async def _request(
        self, leader: int, batches: Sequence[tuple[TopicPartition, bytes]]
    ) -> Mapping[TopicPartition, int | ClientError]:
        config = self.config
        request = produce_request(
            batches,
            self.cluster.image,
            acks=config.acks,
            timeout_ms=config.request_timeout_ms,
            transactional_id=config.transactional_id,
        )
        connection = await self._lines.setdefault(leader, _Line()).take(self.cluster, leader)
        version = version_with_names(request, connection.versions.pick(type(request)))
        if self.transaction is not None and not self.transaction.raises_epochs:
            version = min(version, PRODUCE_V1)
        if config.acks == 0:
            connection.post(request, version=version)
            await connection.drain()
            return {partition: -1 for partition, _ in batches}
        response = await connection.request(
            request, ProduceResponse, version=version, timeout_ms=config.request_timeout_ms + _ANSWER_MS
        )
        return produce_outcome(request, response)


class _Line:
    """The connection to one leader, given to callers in the order of their requests.

    If connecting fails, all callers that wait fail too: otherwise a batch could overtake an earlier one, and a leader that does
    not know the producer accepts any first sequence number.
    """

    __slots__ = ("_failures", "_last", "_lock")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failures = 0
        self._last: ClientError | None = None

    async def take(self, cluster: AsyncClient, leader: int) -> Connection:
        before = self._failures
        async with self._lock:
            if self._last is not None and self._failures != before:
                raise self._last
            try:
                return await cluster.connection(leader, purpose=PRODUCE)
            except ClientError as error:
                self._failures, self._last = self._failures + 1, error
                raise


class Transaction:
    """`begin`, then records, then `commit` or `abort`. One at a time.

    An undeliverable record fails the whole transaction: `send` and `commit` raise, and only `abort` ends it.
    """

    def __init__(self, producer: Producer) -> None:
        transactional_id = producer.config.transactional_id
        assert transactional_id is not None
        self._id = transactional_id
        self._producer = producer
        self._partitions: set[TopicPartition] = set()
        self._identity = NO_IDENTITY
        #: Whether a transaction has ended in this epoch; stays False if every end raises the epoch.
        self._has_ended_one = False
        #: Whether the cluster used KIP-890 part 2 when the transaction began.
        self.raises_epochs = False
        self.open = False

    async def begin(self) -> None:
        assert not self.open, "a transaction is in progress"
        if self._identity == NO_IDENTITY:
            self._set_identity(await self._producer.initialise())
        self.raises_epochs = await self._producer._transactions.raises_epochs(self._id)
        if self.raises_epochs and self._has_ended_one:
            # The markers of the last transaction may not be written yet. A leader that adds partitions itself would count the
            # first
            # record of this transaction to the last one unless the epoch differs. The coordinator waits for the markers.
            self._set_identity(await self._producer.initialise(expected=self._identity))
        self._partitions.clear()
        self.open = True

    async def take_part(self, partition: TopicPartition) -> None:
        """Add the partition to the transaction before its first record, unless leaders do that themselves."""
        assert self.open, "begin a transaction first"
        self._check()
        if partition in self._partitions:
            return
        if not self.raises_epochs:
            await self._producer._transactions.add_partitions(self._id, self._identity, [partition])
        self._partitions.add(partition)

    async def commit(self) -> None:
        await self._producer.flush()
        self._check()
        await self._end(committed=True)

    async def abort(self) -> None:
        await self._producer.flush()
        await self._producer.settle()  # a batch after the end would begin a transaction that never ends
        await self._end(committed=False)

    def _check(self) -> None:
        if self._producer._sender.failure is not None:
            raise self._producer._sender.failure

    async def _end(self, *, committed: bool) -> None:
        assert self.open, "no transaction is in progress"
        failed = self._producer._sender.failure is not None
        if self._partitions:
            transactions = self._producer._transactions
            identity = await transactions.end(
                self._id, self._identity, committed=committed, raises_epochs=self.raises_epochs
            )
            self._has_ended_one = True
            if identity == self._identity and failed:
                # The sequence has a gap: the next transaction begins at zero in a new epoch (KIP-360).
                identity = await self._producer.initialise(expected=identity)
            if identity != self._identity:
                self._set_identity(identity)
        self.open = False

    @property
    def identity(self) -> ProducerIdentity:
        """Return the identity that the requests of the open transaction carry."""
        return self._identity

    def _set_identity(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._has_ended_one = False
        self._producer._sender.restart(identity)
