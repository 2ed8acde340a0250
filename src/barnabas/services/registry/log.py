"""The topic `_schemas`: every instance reads it, the primary writes it.

A primary claims the log before it writes: it takes the next epoch of one producer id that all primaries share (the
transactional id of the group) and writes a NOOP under it. From then on the leader of the partition refuses the batches of any
earlier primary, and whatever that one wrote before stands before the NOOP. So a primary that has applied its NOOP knows all
that was ever acknowledged, and nobody else adds to it. The records themselves are ordinary ones: every reader sees them.

Brokers forget a transactional id that is not used for `transactional.id.expiration.ms`. The next primary gets another producer
id then, whose epochs fence nobody. So a claim holds for a while only, and who goes on writing claims again.

Owner: the event loop.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Never

from barnabas.base.clock import Clock
from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, ConfigResourceType
from barnabas.client.admin.configs import describe_configs
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.admin.topics import NewTopic, ensure_topic
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.core import PRODUCE
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.sending import ACKS_ALL, produce_outcome, produce_request
from barnabas.client.transactions import Transactions
from barnabas.services.registry import errors
from barnabas.services.registry.records import Record, noop_record
from barnabas.services.registry.store import Applied, Store
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.record_build import BatchBuilder

log = logging.getLogger(__name__)

_REPLICATION_FACTOR: Final = 3
_POLL_MS: Final = 60_000
#: The claim begins no transaction, so this never passes; brokers want a value.
_TRANSACTION_TIMEOUT_MS: Final = 60_000
#: How long a claim holds: far less than brokers remember it (`transactional.id.expiration.ms`, 7 days by default).
_CLAIM_S: Final = 600.0
#: Another primary has claimed the log, or the leader has forgotten this one.
_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
#: Enough for those that writers have yet to look at: a writer looks right after its batch is applied.
_SKIPPED_KEPT: Final = 1_000


class Fenced(errors.Refusal):
    """Another instance has claimed the log: this one is primary no more."""

    def __init__(self) -> None:
        super().__init__(500, 50004, "Leader not known: another instance has become the primary.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLogConfig:
    topic: str = "_schemas"
    #: All primaries of one registry claim under this name.
    transactional_id: str = "schema-registry"
    #: A write, with all its retries.
    write_timeout_ms: int = 15_000


class SchemaLog:
    def __init__(
        self, cluster: AsyncClient, reader: AsyncClient, store: Store, config: SchemaLogConfig, *, clock: Clock
    ) -> None:
        """`reader` is a client of its own: a fetch that waits must hold nothing else up."""
        self._cluster = cluster
        self._reader = reader
        self._store = store
        self._config = config
        self._clock = clock
        self._partition = TopicPartition(config.topic, 0)
        #: Everything below it has been applied.
        self.position = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waited = 0
        self._identity = NO_IDENTITY
        self._claimed_s = 0.0
        self._sequence = 0
        #: Offsets of records that the state did not take.
        self._skipped: deque[int] = deque(maxlen=_SKIPPED_KEPT)
        #: The look at the end of the log that is under way, and the one that begins after it.
        self._look: asyncio.Task[int] | None = None
        self._next_look: asyncio.Task[int] | None = None

    # -- the topic ------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Make the topic, or check that it is one partition and compacted: anything else loses schemas."""
        name = self._config.topic
        known = (await self._cluster.topics([name])).get(name)
        if known is None or known.error is not ErrorCode.NONE:
            brokers = len(await self._cluster.brokers())
            wanted = NewTopic(
                name=name,
                partitions=1,
                replication_factor=min(_REPLICATION_FACTOR, brokers),
                configs={"cleanup.policy": "compact"},
            )
            await ensure_topic(self._cluster, wanted)
            known = await self._cluster.existing_topic(name)
        if len(known.partitions) != 1:
            raise ConfigError(f"the topic {name} has {len(known.partitions)} partitions; a registry needs exactly one")
        resource = (ConfigResourceType.TOPIC, name)
        entries = (await describe_configs(self._cluster, [resource]))[resource]
        policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None)
        if policy != "compact":
            raise ConfigError(
                f"the topic {name} has cleanup.policy={policy}; set it to compact, or schemas are lost to retention"
            )

    # -- reading --------------------------------------------------------------------------------------------------------

    async def follow(self) -> Never:
        """Apply the log from its beginning, and then as it grows."""
        config = ConsumerConfig(auto_offset_reset="none")
        while True:
            begin = await list_offsets(self._cluster, {self._partition: EARLIEST})
            check(begin[self._partition].error, str(self._partition))
            async with Consumer(self._reader, config) as consumer:
                consumer.assign({self._partition: begin[self._partition].offset})
                try:
                    await self._apply_from(consumer)
                except BrokerRefused as refused:
                    if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
            log.error("%s was cut off or made anew: reading it from the beginning", self._partition)
            self._store.forget()
            self.position = 0
            self.give_up()  # nothing is decided before all is read again

    async def _apply_from(self, consumer: Consumer) -> Never:
        while True:
            for fetched in await consumer.poll(_POLL_MS):
                for record in fetched.records():
                    self._apply(record.key, record.value, record.offset)
            self._reached(consumer.position(self._partition))

    def _apply(self, key: bytes | memoryview | None, value: bytes | memoryview | None, offset: int) -> None:
        if offset < self._store.next_offset:
            return  # this instance wrote it, and applied it when it was acknowledged
        outcome = self._store.apply(bytes(key or b""), None if value is None else bytes(value), offset)
        if outcome is not Applied.DONE:
            self._skipped.append(offset)
        if outcome is Applied.CONFLICT:
            log.error("%s, offset %d: its id belongs to another schema; skipped", self._partition, offset)
        elif outcome is Applied.UNREADABLE:
            log.warning("%s, offset %d: no record of a schema registry; skipped", self._partition, offset)

    def _reached(self, position: int) -> None:
        self.position = position = max(position, self.position)
        while self._waiters and self._waiters[0][0] < position:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    async def applied(self, offset: int) -> None:
        """Wait until the record at `offset` counts."""
        if offset < self.position:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waited += 1
        heapq.heappush(self._waiters, (offset, self._waited, waiter))
        await waiter

    async def catch_up(self) -> None:
        """Apply all that was acknowledged before this was called."""
        await self.applied(await self._end() - 1)

    async def _end(self) -> int:
        """The end of the log, as it was asked for after this call. Calls that come together share one request."""
        if self._look is None:
            self._look = asyncio.create_task(self._ask_end(), name="end of the schemas' log")
            self._look.add_done_callback(self._looked)
            return await asyncio.shield(self._look)
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._ask_end_after(self._look), name="next end of the schemas' log")
        return await asyncio.shield(self._next_look)

    def _looked(self, task: "asyncio.Task[int]") -> None:
        self._look, self._next_look = self._next_look, None
        if self._look is not None:
            self._look.add_done_callback(self._looked)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody may be waiting any more

    async def _ask_end_after(self, before: "asyncio.Task[int]") -> int:
        await asyncio.wait([before])
        return await self._ask_end()

    async def _ask_end(self) -> int:
        found = (await list_offsets(self._cluster, {self._partition: LATEST}))[self._partition]
        check(found.error, str(self._partition))
        return found.offset

    async def close(self) -> None:
        """Nobody waits for the end of the log any more."""
        looks = [look for look in (self._look, self._next_look) if look is not None]
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    # -- writing --------------------------------------------------------------------------------------------------------

    @property
    def is_claimed(self) -> bool:
        return self._identity != NO_IDENTITY and self._clock.monotonic_s() < self._claimed_s + _CLAIM_S

    def give_up(self) -> None:
        """The next write has to claim the log first."""
        self._identity = NO_IDENTITY

    async def claim(self) -> None:
        """Nobody else writes from now on, and all that others have written is applied."""
        asked_s = self._clock.monotonic_s()
        identity = await Transactions(self._cluster).initialise(
            self._config.transactional_id, timeout_ms=_TRANSACTION_TIMEOUT_MS
        )
        self._identity, self._sequence, self._claimed_s = identity, 0, asked_s
        await self.applied(await self.append([noop_record()]))
        log.info("claimed %s with epoch %d", self._partition, identity.epoch)

    async def append(self, written: Sequence[Record]) -> int:
        """One batch; the offset of its last record. One call at a time.

        When it fails in a way that leaves its fate open, the claim is given up with it: the next claim finds out.
        """
        if not self.is_claimed:
            raise errors.primary_unknown()  # it was given up, or became too old, while this was decided
        identity, sequence = self._identity, self._sequence
        self._identity = NO_IDENTITY
        try:
            base = await self._produce(self._batch(written, identity, sequence))
        except BrokerRefused as refused:
            if refused.code in _TOO_LARGE:
                self._identity = identity  # nothing was written
                raise errors.too_large("Register operation failed because schema is too large") from None
            if refused.code in _FENCED:
                raise Fenced from None
            raise errors.store_failed(
                f"Register schema operation failed while writing to the Kafka store: {refused}"
            ) from refused
        except ClientError as error:
            raise errors.timed_out(f"Write to the Kafka store timed out: {error}") from error
        self._identity, self._sequence = identity, sequence + len(written)
        if base < 0:  # an attempt before the last one was taken, and the leader has forgotten where it is
            return await self._end() - 1
        if base == self.position:
            # All before it is applied: what was just acknowledged need not be fetched first.
            for offset, record in enumerate(written, base):
                self._apply(record.key, record.value, offset)
            self._reached(base + len(written))
        return base + len(written) - 1

    def _batch(self, written: Sequence[Record], identity: ProducerIdentity, sequence: int) -> bytes:
        builder = BatchBuilder(producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence)
        now_ms = self._clock.now_ms()
        for record in written:
            builder.append(record.key, record.value, timestamp=now_ms)
        return builder.build()

    async def _produce(self, batch: bytes) -> int:
        cluster = self._cluster

        async def once() -> int:
            (leader,) = await cluster.leaders([self._partition])
            request = produce_request(
                [(self._partition, batch)],
                cluster.image,
                acks=ACKS_ALL,
                timeout_ms=cluster.config.request_timeout_ms,
                transactional_id=None,
            )
            response = await cluster.ask(leader, request, ProduceResponse, purpose=PRODUCE)
            outcome = produce_outcome(request, response)[self._partition]
            if isinstance(outcome, ClientError):
                raise outcome
            return outcome

        return await cluster.retrying(f"write to {self._config.topic}", once, timeout_ms=self._config.write_timeout_ms)

    def has_skipped(self, first: int, last: int) -> bool:
        """Whether the state did not take one of these records, which have been applied."""
        return any(first <= offset <= last for offset in self._skipped)
