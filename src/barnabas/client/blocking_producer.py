"""Ready-made record batches to their leaders, without an event loop: in order, several requests under way, each exactly once.

Batches of one leader share requests. When one fails in a way that may pass, everything under way is waited for, and
what did not get through goes again, a batch of a partition at a time, with the sequence numbers it had: so the broker tells
a duplicate from a new batch, and the order stays. In a transaction each partition is announced to the coordinator first.

Owner: one thread. Bounded: at most `max_in_flight` requests of `request_bytes` per leader are held.
"""

import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from barnabas.client.blocking import Awaited, BlockingClient, BlockingConnection
from barnabas.client.blocking_transactions import NO_IDENTITY, BlockingTransactions, ProducerIdentity
from barnabas.client.errors import BrokerRefused, ClientError, ConnectionLost, DeadlineExceeded, check
from barnabas.client.image import ClusterImage, image_of
from barnabas.client.producer import ACKS_ALL
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.protocol.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    LOG_OVERHEAD,
    NO_SEQUENCE,
    PRODUCER_ID_AT,
    TRANSACTIONAL_FLAG,
    compute_crc,
    increment_sequence,
)

_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")

#: Before the first of a partition's batches is acknowledged these only mean "not yet".
_OUT_OF_TURN: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(slots=True, eq=False)
class ReadyBatch:
    """A whole batch but for its producer, its sequence and its CRC, which `BlockingProducer.send` fills in."""

    partition: TopicPartition
    record_count: int
    data: memoryview


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


@dataclass(slots=True, eq=False)
class _Leader:
    """What is meant for one broker: not sent yet, and sent without an answer, oldest first."""

    waiting: list[ReadyBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    in_flight: deque[tuple[BlockingConnection, "Awaited[ProduceResponse]", list[ReadyBatch]]] = field(
        default_factory=deque
    )


class BlockingProducer:
    """`send` batches, then `flush`. With an identity it is idempotent, with a transactional id it writes in a transaction."""

    def __init__(
        self,
        client: BlockingClient,
        config: BlockingProducerConfig,
        *,
        identity: ProducerIdentity = NO_IDENTITY,
        transactional_id: str | None = None,
        connections: dict[int, BlockingConnection] | None = None,
    ) -> None:
        """`connections` by broker, for produce requests alone: a caller may keep them for its next producer."""
        self._client = client
        self._config = config
        self._identity = identity
        self._transactional_id = transactional_id
        self._transactions = BlockingTransactions(client)
        self._connections = {} if connections is None else connections
        self._leaders: dict[int, _Leader] = {}
        self._sequences: dict[TopicPartition, int] = {}
        #: Partitions of the transaction.
        self._announced: set[TopicPartition] = set()
        self._counts: dict[str, int] = {}

    # -- what callers use -----------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Asked for once; a topic that is missing may be made by the broker (`auto.create.topics.enable`)."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._look_up(topic)
        return count

    def send(self, batch: ReadyBatch) -> None:
        """Takes the batch over. Waits while its leader has enough under way; fails for good or not at all."""
        self._seal(batch)
        if self._transactional_id is not None and batch.partition not in self._announced:
            self._announce([batch.partition])
        leader = self._leader_of(batch.partition)
        state = self._leaders.setdefault(leader, _Leader())
        is_full = state.waiting_bytes + len(batch.data) > self._config.request_bytes
        if state.waiting and (is_full or any(other.partition == batch.partition for other in state.waiting)):
            self._dispatch(leader, state)
            # A failure may have moved partitions to other leaders.
            state = self._leaders.setdefault(self._leader_of(batch.partition), _Leader())
        state.waiting.append(batch)
        state.waiting_bytes += len(batch.data)

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell the coordinator of all of them in one request, where it does not know them."""
        new = [partition for partition in dict.fromkeys(partitions) if partition not in self._announced]
        if self._transactional_id is not None and new:
            self._announce(new)

    def flush(self) -> None:
        """Until all that was sent is acknowledged."""
        for leader, state in list(self._leaders.items()):
            if state.waiting:
                self._dispatch(leader, state)
        while any(state.in_flight for state in self._leaders.values()):
            for state in list(self._leaders.values()):
                if state.in_flight:
                    self._collect(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Also the connections, whoever else has them: a caller that keeps them does not close."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def discard(self) -> None:
        """After a failure: what waits is dropped, and connections with answers under way are closed."""
        for state in self._leaders.values():
            for connection, _, _ in state.in_flight:
                connection.close()
        self._leaders.clear()

    # -- batches --------------------------------------------------------------------------------------------------------

    def _seal(self, batch: ReadyBatch) -> None:
        data = batch.data
        sequence = NO_SEQUENCE
        if self._identity.producer_id >= 0:
            sequence = self._sequences.get(batch.partition, 0)
            self._sequences[batch.partition] = increment_sequence(sequence, batch.record_count)
        _PRODUCER.pack_into(data, PRODUCER_ID_AT, *self._identity, sequence)
        if self._transactional_id is not None:
            (attributes,) = _ATTRIBUTES.unpack_from(data, ATTRIBUTES_AT)
            _ATTRIBUTES.pack_into(data, ATTRIBUTES_AT, attributes | TRANSACTIONAL_FLAG)
        _CRC.pack_into(data, CRC_AT, compute_crc(data, 0, len(data) - LOG_OVERHEAD))

    def _announce(self, partitions: list[TopicPartition]) -> None:
        assert self._transactional_id is not None
        self._transactions.add_partitions(self._transactional_id, self._identity, partitions)
        self._announced.update(partitions)

    # -- requests -------------------------------------------------------------------------------------------------------

    def _dispatch(self, leader: int, state: _Leader) -> None:
        """Send what waits for a leader. Any failure ends in `_recover`, after which nothing is under way."""
        while len(state.in_flight) >= self._config.max_in_flight:
            self._collect(state)
            if not state.waiting:
                return  # it was sent by `_recover`
        batches, state.waiting, state.waiting_bytes = state.waiting, [], 0
        try:
            connection = self._connection(leader)
            awaited = self._post(connection, batches)
        except ClientError as error:
            self._recover(error, batches)
            return
        if self._config.acks != 0:
            state.in_flight.append((connection, awaited, batches))

    def _post(self, connection: BlockingConnection, batches: list[ReadyBatch]) -> "Awaited[ProduceResponse]":
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            topics.setdefault(batch.partition.topic, []).append(
                PartitionProduceData(index=batch.partition.partition, records=batch.data)
            )
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._config.acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
        return connection.send(request, ProduceResponse, timeout_ms=self._config.request_timeout_ms + 1_000)

    def _collect(self, state: _Leader) -> None:
        """The oldest answer."""
        connection, awaited, batches = state.in_flight.popleft()
        try:
            failures = _failures(connection.receive(awaited), batches)
        except ClientError as error:
            self._recover(error, batches)
            return
        if failures:
            self._recover(next(iter(failures.values())), list(failures))

    # -- failures -------------------------------------------------------------------------------------------------------

    def _recover(self, error: ClientError, failed: list[ReadyBatch]) -> None:
        """Everything that is not acknowledged, again and in order, until it is; or the failure that cannot pass."""
        _raise_if_lasting(error, in_turn=False)
        unsent: list[ReadyBatch] = []
        for state in self._leaders.values():
            while state.in_flight:
                connection, awaited, batches = state.in_flight.popleft()
                try:
                    failed += _failures(connection.receive(awaited), batches)
                except ClientError:
                    failed += batches  # told by the connection that broke; each is looked at again below
            unsent += state.waiting
            state.waiting, state.waiting_bytes = [], 0
        lanes: dict[TopicPartition, deque[ReadyBatch]] = {}
        for batch in sorted(failed, key=self._age_of) + unsent:
            lanes.setdefault(batch.partition, deque()).append(batch)
        deadline_s = time.monotonic() + self._config.delivery_timeout_ms / 1000
        while lanes:
            trouble = self._retry(lanes)
            if trouble is None:
                continue
            if time.monotonic() > deadline_s:
                raise DeadlineExceeded(
                    f"{', '.join(map(str, lanes))}: not delivered in {self._config.delivery_timeout_ms} ms: {trouble}"
                ) from trouble
            time.sleep(self._config.retry_backoff_ms / 1000)

    def _age_of(self, batch: ReadyBatch) -> int:
        """How far before the next sequence of its partition: the oldest first, also where sequences wrap."""
        sequence: int = _PRODUCER.unpack_from(batch.data, PRODUCER_ID_AT)[2]
        if sequence == NO_SEQUENCE:
            return 0
        return -((self._sequences[batch.partition] - sequence) & 0x7FFFFFFF)

    def _retry(self, lanes: dict[TopicPartition, deque[ReadyBatch]]) -> ClientError | None:
        """The oldest batch of each partition, once. The last trouble that may pass, or None when all got through."""
        trouble: ClientError | None = None
        by_leader: dict[int, list[ReadyBatch]] = {}
        for partition, lane in lanes.items():
            try:
                by_leader.setdefault(self._leader_of(partition), []).append(lane[0])
            except ClientError as error:
                _raise_if_lasting(error, in_turn=True)
                trouble = error
        for leader, oldest in by_leader.items():
            for batches in _portions(oldest, self._config.request_bytes):
                failures = self._try_once(leader, batches)
                for failure in failures.values():
                    _raise_if_lasting(failure, in_turn=True)
                    trouble = failure
                for batch in batches:
                    if batch not in failures:
                        lanes[batch.partition].popleft()
                        if not lanes[batch.partition]:
                            del lanes[batch.partition]
        if trouble is not None:
            self._forget(lanes)
        return trouble

    def _try_once(self, leader: int, batches: list[ReadyBatch]) -> dict[ReadyBatch, ClientError]:
        try:
            connection = self._connection(leader)
            awaited = self._post(connection, batches)
            return _failures(connection.receive(awaited), batches) if self._config.acks != 0 else {}
        except ClientError as error:
            return dict.fromkeys(batches, error)

    # -- connections and metadata ---------------------------------------------------------------------------------------

    def _connection(self, broker_id: int) -> BlockingConnection:
        connection = self._connections.get(broker_id)
        if connection is None or connection.closed:
            broker = self._client.image.brokers.get(broker_id)
            if broker is None:
                raise ConnectionLost(f"broker {broker_id} is not alive")
            connection = BlockingConnection(broker.host, broker.port, self._client.config, self._client.security)
            self._connections[broker_id] = connection
        return connection

    def _leader_of(self, partition: TopicPartition) -> int:
        leader = self._client.image.leader_of(partition)
        if leader >= 0:
            return leader

        def once() -> int:
            self._client.refresh([partition.topic])
            found = self._client.image.leader_of(partition)
            if found < 0:
                raise BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} has no leader")
            return found

        return self._client.retrying(f"leader of {partition}", once)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = {partition.topic for partition in partitions}
        image = self._client.image
        topics = {name: info for name, info in image.topics.items() if name not in gone}
        self._client.image = ClusterImage(image.brokers, image.cluster_id, image.controller_id, topics)

    def _look_up(self, topic: str) -> int:
        deadline_s = time.monotonic() + self._config.max_block_ms / 1000
        while True:
            try:
                count = self._ask_for(topic)
                if count > 0:
                    return count
                trouble: ClientError = BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic}")
            except ClientError as error:
                if not error.retriable:
                    raise
                trouble = error
            if time.monotonic() > deadline_s:
                raise DeadlineExceeded(
                    f"topic {topic} not present in metadata after {self._config.max_block_ms} ms: {trouble}"
                )
            time.sleep(self._config.retry_backoff_ms / 1000)

    def _ask_for(self, topic: str) -> int:
        known = self._client.image.topics.get(topic)
        if known is None or known.error:
            response = self._client.any_connection().request(
                MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True),
                MetadataResponse,
            )
            fresh = image_of(response)
            old = self._client.image
            self._client.image = ClusterImage(
                fresh.brokers, fresh.cluster_id, fresh.controller_id, dict(old.topics) | dict(fresh.topics)
            )
            known = fresh.topics.get(topic)
        if known is None:
            return 0
        check(known.error, f"topic {topic}")
        return len(known.partitions)


def _portions(batches: list[ReadyBatch], request_bytes: int) -> list[list[ReadyBatch]]:
    """In the order they have, as many to a request as fit."""
    portions: list[list[ReadyBatch]] = [[]]
    size = 0
    for batch in batches:
        if portions[-1] and size + len(batch.data) > request_bytes:
            portions.append([])
            size = 0
        portions[-1].append(batch)
        size += len(batch.data)
    return portions


def _failures(response: ProduceResponse, batches: list[ReadyBatch]) -> dict[ReadyBatch, ClientError]:
    """Those that were not taken, in the order of the request; a duplicate was taken before."""
    codes = {
        TopicPartition(topic.name, partition.index): (partition.error_code, partition.error_message)
        for topic in response.responses
        for partition in topic.partition_responses
    }
    failures: dict[ReadyBatch, ClientError] = {}
    for batch in batches:
        code, message = codes.get(batch.partition, (ErrorCode.UNKNOWN_SERVER_ERROR, "no answer for the partition"))
        if code and code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            failures[batch] = BrokerRefused(code, f"{batch.partition}: {message}" if message else str(batch.partition))
    return failures


def _raise_if_lasting(error: ClientError, *, in_turn: bool) -> None:
    if error.retriable:
        return
    if not in_turn and isinstance(error, BrokerRefused) and error.code in _OUT_OF_TURN:
        return
    raise error
