"""Send ready-made record batches to their leaders without an event loop. `client.sending` decides when each one goes.

Owner: one thread. Bounded: at most one request's worth waits for a leader, and at most `max_in_flight` requests are in flight.
"""

import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.blocking import Awaited, BlockingClient, BlockingConnection
from barnabas.client.core import PRODUCE
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.exchange import version_with_names
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.sending import ACKS_ALL, NEVER, Outgoing, Sender, Shipment, produce_outcome, produce_request
from barnabas.client.transactions import PRODUCE_V1, Transactions
from barnabas.wire.messages.produce import ProduceRequest, ProduceResponse
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    LOG_OVERHEAD,
    PRODUCER_ID_AT,
    TRANSACTIONAL_FLAG,
    compute_crc,
)
from barnabas.wire.record_build import BatchBuilder

_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")
#: A Produce response may come this much later than the request's own time limit.
_ANSWER_MS: Final = 1_000


class ReadyBatch(Outgoing):
    """A whole batch except for the producer, sequence and CRC, which `BlockingProducer` fills in."""

    __slots__ = ("data",)

    def __init__(self, partition: TopicPartition, record_count: int, data: memoryview) -> None:
        super().__init__(partition=partition, record_count=record_count, size_bytes=len(data))
        self.data = data

    @classmethod
    def of(
        cls, partition: TopicPartition, records: Sequence[tuple[bytes | None, bytes | None]], *, timestamp_ms: int
    ) -> Self:
        """Build a batch of these keys and values."""
        builder = BatchBuilder()
        for key, value in records:
            builder.append(key, value, timestamp=timestamp_ms)
        return cls(partition, len(records), memoryview(bytearray(builder.build())))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingProducerConfig:
    acks: int = ACKS_ALL
    #: `max.request.size`: a request is sent when its batches reach this.
    request_bytes: int = 1024 * 1024
    max_in_flight: int = 5
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    #: How long to wait for a topic's metadata.
    max_block_ms: int = 60_000
    retry_backoff_ms: int = 100


class BlockingProducer:
    """`send` batches, then `flush`. With an identity it is idempotent, with a transactional id it writes in a transaction."""

    def __init__(
        self,
        client: BlockingClient,
        config: BlockingProducerConfig,
        *,
        identity: ProducerIdentity = NO_IDENTITY,
        transactional_id: str | None = None,
    ) -> None:
        self._client = client
        self._config = config
        self._identity = identity
        self._transactional_id = transactional_id
        self._transactions = Transactions(client.core)
        #: KIP-890 part 2: leaders add partitions themselves if the Produce version is high enough.
        self._raises_epochs = transactional_id is not None and client.run(
            self._transactions.raises_epochs(transactional_id)
        )
        self._sender: Sender[ReadyBatch] = Sender(
            max_in_flight=config.max_in_flight,
            request_bytes=config.request_bytes,
            retry_backoff_ms=config.retry_backoff_ms,
            delivery_timeout_ms=config.delivery_timeout_ms,
            idempotent=identity.producer_id >= 0,
            transactional=transactional_id is not None,
        )
        self._sender.identify(identity)
        #: Requests without a response, oldest first.
        self._in_flight: deque[
            tuple[BlockingConnection, Awaited[ProduceResponse], ProduceRequest, Shipment[ReadyBatch]]
        ] = deque()
        #: Partitions that were added to the transaction.
        self._announced: set[TopicPartition] = set()
        self._counts: dict[str, int] = {}
        #: Bytes added since the last search for due batches. While they cannot fill a request, the search is skipped.
        self._added_bytes = 0

    # -- what callers use -----------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Asked once per topic. The broker may create a missing topic (`auto.create.topics.enable`)."""
        count = self._counts.get(topic)
        if count is None:
            found = self._client.core.existing_topic(topic, timeout_ms=self._config.max_block_ms)
            count = self._counts[topic] = len(self._client.run(found).partitions)
        return count

    def send(self, batch: ReadyBatch) -> None:
        """Take over the batch. Block while its leader has enough in flight. Raise only errors that are final."""
        self.announce([batch.partition])
        batch.added_at_s = time.monotonic()
        follows = self._sender.is_waiting(batch.partition)
        self._sender.add(batch)
        self._added_bytes += batch.size_bytes
        if follows or self._added_bytes >= self._config.request_bytes:
            self._pump()
            self._added_bytes = 0

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """Add the new ones among these partitions to the transaction with one request to the coordinator."""
        if self._transactional_id is None or self._raises_epochs:
            return
        new = [partition for partition in dict.fromkeys(partitions) if partition not in self._announced]
        if new:
            self._client.run(self._transactions.add_partitions(self._transactional_id, self._identity, new))
            self._announced.update(new)

    def flush(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        self._sender.flushing = True
        try:
            while self._sender.unfinished:
                self._pump()
                if self._sender.unfinished:
                    self._wait()
        finally:
            self._sender.flushing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Drop unacknowledged batches, and close connections that have requests in flight."""
        for connection, _, _, _ in self._in_flight:
            connection.close()
        self._in_flight.clear()

    # -- sending --------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send batches that are due. Return when no due batch has to wait."""
        while True:
            for shipment in self._sender.shipments(self._client.image, time.monotonic()):
                self._ship(shipment)
            if not self._sender.held_back:
                return
            self._wait()

    def _wait(self) -> None:
        """Wait for the next change: a response, a new leader, or the end of a back-off."""
        if self._sender.needs_identity:
            self._sender.identify(self._client.run(self._transactions.initialise(None, timeout_ms=0)))
        elif self._sender.unknown:
            self._find(list(self._sender.unknown))
        elif self._in_flight:
            self._collect()
        elif self._sender.wake_at_s < NEVER:
            time.sleep(max(0.0, self._sender.wake_at_s - time.monotonic()))

    def _find(self, topics: list[str]) -> None:
        error: ClientError = BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, "no leader, or no such partition")
        try:
            self._client.refresh(topics)
        except ClientError as failure:
            error = failure
        self._finish(self._sender.looked_up(topics, self._client.image, error, time.monotonic()))

    def _ship(self, shipment: Shipment[ReadyBatch]) -> None:
        for batch in shipment.batches:
            self._seal(batch)
        try:
            connection = self._client.connection(shipment.leader, purpose=PRODUCE)
            request = produce_request(
                [(batch.partition, batch.data) for batch in shipment.batches],
                self._client.image,
                acks=self._config.acks,
                timeout_ms=self._config.request_timeout_ms,
                transactional_id=self._transactional_id,
            )
            version = version_with_names(request, connection.versions.pick(ProduceRequest))
            if self._transactional_id is not None and not self._raises_epochs:
                version = min(version, PRODUCE_V1)
            if self._config.acks == 0:
                connection.post(request, version=version)
                self._answered(shipment, {batch.partition: -1 for batch in shipment.batches})
                return
            awaited = connection.send(
                request,
                ProduceResponse,
                version=version,
                timeout_ms=self._config.request_timeout_ms + _ANSWER_MS,
            )
        except ClientError as error:
            self._answered(shipment, error)
            return
        self._in_flight.append((connection, awaited, request, shipment))

    def _collect(self) -> None:
        """Receive the oldest outstanding response."""
        connection, awaited, request, shipment = self._in_flight.popleft()
        try:
            outcome = produce_outcome(request, connection.receive(awaited))
        except ClientError as error:
            self._answered(shipment, error)
            return
        self._answered(shipment, outcome)

    def _answered(
        self, shipment: Shipment[ReadyBatch], outcome: dict[TopicPartition, int | ClientError] | ClientError
    ) -> None:
        if isinstance(outcome, ClientError) or any(isinstance(each, ClientError) for each in outcome.values()):
            self._client.core.forget_leaders({batch.partition.topic for batch in shipment.batches})
        self._finish(self._sender.answered(shipment, outcome, time.monotonic()))

    def _finish(self, finished: Sequence[tuple[ReadyBatch, int | ClientError]]) -> None:
        for _, outcome in finished:
            if isinstance(outcome, ClientError):
                raise outcome

    def _seal(self, batch: ReadyBatch) -> None:
        data = batch.data
        _PRODUCER.pack_into(data, PRODUCER_ID_AT, *batch.identity, batch.sequence)
        if self._transactional_id is not None:
            (attributes,) = _ATTRIBUTES.unpack_from(data, ATTRIBUTES_AT)
            _ATTRIBUTES.pack_into(data, ATTRIBUTES_AT, attributes | TRANSACTIONAL_FLAG)
        _CRC.pack_into(data, CRC_AT, compute_crc(data, 0, len(data) - LOG_OVERHEAD))
