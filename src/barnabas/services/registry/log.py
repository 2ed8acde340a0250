"""The topic `_schemas`: every instance reads it, only the primary writes it.

A primary claims the log before it writes: it takes the next epoch of one producer id that all primaries share (the
transactional id of the group) and writes a NOOP under it. From then on the leader of the partition refuses the batches of all
earlier primaries, and everything that they wrote is before the NOOP. So a primary that has applied its NOOP has all records
that were ever acknowledged, and no other instance can append. The records are ordinary ones: every consumer sees them.

Brokers forget a transactional id that is not used for `transactional.id.expiration.ms`. The next primary would then get another
producer id, whose epochs do not fence this one. So a claim expires, and a primary that goes on writing claims again.

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
from barnabas.client.image import NO_TOPIC_ID
from barnabas.client.sending import ACKS_ALL, produce_outcome, produce_request
from barnabas.client.transactions import Transactions
from barnabas.services.registry import errors
from barnabas.services.registry.records import Record, noop_record
from barnabas.services.registry.store import Applied, Store
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.record_build import BatchBuilder

log = logging.getLogger(__name__)

_REPLICATION_FACTOR: Final = 3
#: How long a poll waits for records; between polls the topic's id is compared.
_POLL_MS: Final = 10_000
#: The claim begins no transaction, so this never passes; brokers want a value.
_TRANSACTION_TIMEOUT_MS: Final = 60_000
#: Lifetime of a claim: far less than brokers remember it (`transactional.id.expiration.ms`, 7 days by default).
_CLAIM_S: Final = 600.0
#: Errors that mean: another primary has claimed the log, or the leader has forgotten this producer id.
_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
#: Skipped offsets to remember: a writer checks right after its batch is applied, so few are enough.
_SKIPPED_KEPT: Final = 1_000


class _Recreated(Exception):
    """The topic has another id than before: the state consists of records that are gone."""


class Fenced(errors.Refusal):
    """Another instance has claimed the log: this one is no longer the primary."""

    def __init__(self) -> None:
        super().__init__(500, 50004, "Leader not known: another instance has become the primary.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLogConfig:
    topic: str = "_schemas"
    #: All primaries of one registry claim under this transactional id.
    transactional_id: str = "schema-registry"
    #: Time for a write, including its retries.
    write_timeout_ms: int = 15_000


class SchemaLog:
    def __init__(
        self, cluster: AsyncClient, reader: AsyncClient, store: Store, config: SchemaLogConfig, *, clock: Clock
    ) -> None:
        """`reader` is a separate client: its long fetches must not delay other requests."""
        self._cluster = cluster
        self._reader = reader
        self._store = store
        self._config = config
        self._clock = clock
        self._partition = TopicPartition(config.topic, 0)
        #: All records below this offset have been applied.
        self.position = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waited = 0
        self._identity = NO_IDENTITY
        self._claimed_s = 0.0
        self._sequence = 0
        #: Offsets of records that the state refused.
        self._skipped: deque[int] = deque(maxlen=_SKIPPED_KEPT)
        #: The request for the log's end that is in flight, and (below) the one that starts after it.
        self._look: asyncio.Task[int] | None = None
        self._next_look: asyncio.Task[int] | None = None

    # -- the topic ------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create the topic, or check that it has one partition and is compacted: anything else loses schemas."""
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
        """Apply the log from its beginning, and continue as it grows."""
        config = ConsumerConfig(auto_offset_reset="none")
        while True:
            topic_id = await self._topic_id()
            begin = await list_offsets(self._cluster, {self._partition: EARLIEST})
            check(begin[self._partition].error, str(self._partition))
            async with Consumer(self._reader, config) as consumer:
                consumer.assign({self._partition: begin[self._partition].offset})
                try:
                    await self._apply_from(consumer, topic_id)
                except _Recreated:
                    pass
                except BrokerRefused as refused:
                    if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
            log.error("[registry] %s was truncated or recreated: reading it from the beginning", self._partition)
            self._store.forget()
            self.position = 0
            self.give_up()  # no decision may use the state before it is complete again

    async def _topic_id(self) -> bytes:
        """Return the topic's id as the reader knows it from now on; `NO_TOPIC_ID` if the cluster has none."""
        await self._reader.topics([self._config.topic])
        return self._reader.image.topic_id(self._config.topic)

    async def _apply_from(self, consumer: Consumer, topic_id: bytes) -> Never:
        while True:
            found = await consumer.poll(_POLL_MS)
            # A topic that was deleted and created again may have as many records as the first one had: the position is valid
            # in both. Records of the one must not be applied to the state of the other.
            if self._reader.image.topic_id(self._config.topic) not in (topic_id, NO_TOPIC_ID):
                raise _Recreated
            for fetched in found:
                for record in fetched.records():
                    self._apply(record.key, record.value, record.offset)
            self._reached(consumer.position(self._partition))

    def _apply(self, key: bytes | memoryview | None, value: bytes | memoryview | None, offset: int) -> None:
        if offset < self._store.next_offset:
            return  # this instance wrote the record and applied it when it was acknowledged
        outcome = self._store.apply(bytes(key or b""), None if value is None else bytes(value), offset)
        if outcome is not Applied.DONE:
            self._skipped.append(offset)
        if outcome is Applied.CONFLICT:
            log.error("[registry] skipped %s offset %d: its id belongs to another schema", self._partition, offset)
        elif outcome is Applied.UNREADABLE:
            log.warning("[registry] skipped %s offset %d: not a record of a schema registry", self._partition, offset)

    def _reached(self, position: int) -> None:
        self.position = position = max(position, self.position)
        while self._waiters and self._waiters[0][0] < position:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    async def applied(self, offset: int) -> None:
        """Wait until the record at `offset` is applied."""
        if offset < self.position:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waited += 1
        heapq.heappush(self._waiters, (offset, self._waited, waiter))
        await waiter

    async def catch_up(self) -> None:
        """Apply all records that were acknowledged before this call."""
        await self.applied(await self._end() - 1)

    async def _end(self) -> int:
        """Ask for the log's end after this call has begun. Concurrent calls share one request."""
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
            task.exception()  # marks the error as retrieved: all callers may have gone

    async def _ask_end_after(self, before: "asyncio.Task[int]") -> int:
        await asyncio.wait([before])
        return await self._ask_end()

    async def _ask_end(self) -> int:
        found = (await list_offsets(self._cluster, {self._partition: LATEST}))[self._partition]
        check(found.error, str(self._partition))
        return found.offset

    async def close(self) -> None:
        """Cancel the requests for the log's end."""
        looks = [look for look in (self._look, self._next_look) if look is not None]
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    # -- writing --------------------------------------------------------------------------------------------------------

    @property
    def is_claimed(self) -> bool:
        return self._identity != NO_IDENTITY and self._clock.monotonic_s() < self._claimed_s + _CLAIM_S

    def give_up(self) -> None:
        """Forget the claim: the next write has to claim the log first."""
        self._identity = NO_IDENTITY

    async def claim(self) -> None:
        """Fence all other writers, and apply everything that they have written."""
        asked_s = self._clock.monotonic_s()
        identity = await Transactions(self._cluster).initialise(
            self._config.transactional_id, timeout_ms=_TRANSACTION_TIMEOUT_MS
        )
        self._identity, self._sequence, self._claimed_s = identity, 0, asked_s
        await self.applied(await self.append([noop_record()]))
        log.info("[registry] claimed %s with epoch %d", self._partition, identity.epoch)

    async def append(self, written: Sequence[Record]) -> int:
        """Append one batch and return the offset of its last record. Calls must not overlap.

        If it is unknown whether the batch was written, the claim is given up, too: the next claim reads the log and finds out.
        """
        if not self.is_claimed:
            raise errors.primary_unknown()  # the claim was given up or expired during the decision
        identity, sequence = self._identity, self._sequence
        self._identity = NO_IDENTITY
        try:
            base = await self._produce(self._batch(written, identity, sequence))
        except BrokerRefused as refused:
            if refused.code in _TOO_LARGE:
                self._identity = identity  # the leader wrote nothing: the sequence is unused
                raise errors.too_large("Register operation failed because schema is too large") from None
            if refused.code in _FENCED:
                raise Fenced from None
            raise errors.store_failed(
                f"Register schema operation failed while writing to the Kafka store: {refused}"
            ) from refused
        except ClientError as error:
            raise errors.timed_out(f"Write to the Kafka store timed out: {error}") from error
        self._identity, self._sequence = identity, sequence + len(written)
        if base < 0:  # the leader accepted an earlier attempt and no longer knows its offset
            return await self._end() - 1
        if base == self.position:
            # All earlier records are applied: the records just acknowledged need not be fetched first.
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
        """Whether the state refused one of these records after it read them."""
        return any(first <= offset <= last for offset in self._skipped)
