"""A cluster of one fake broker that keeps partitions in memory: enough to test a producer and a consumer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from barnabas.wire.messages.init_producer_id import InitProducerIdResponse
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import iter_records
from tests.unit.client.client_fake_broker import Call, FakeBroker

PRODUCE, FETCH, LIST_OFFSETS, METADATA, INIT_PRODUCER_ID = 0, 1, 2, 3, 22
#: A test that appends while a client waits sees its record this late.
FETCH_WAIT_MS_MAX = 20


@dataclass
class FakeCluster:
    """Broker 1 is leader of everything. The next Produce requests get one of `produce_errors` each."""

    topics: dict[str, int] = field(default_factory=lambda: {"t": 1})
    logs: dict[TopicPartition, bytearray] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    produced: list[Call] = field(default_factory=list)
    #: Like Kafka's brokers if they do not know the producer.
    takes_any_first_sequence: bool = False
    #: (producer id, epoch, first sequence) of every batch that was accepted.
    sequences: list[tuple[int, int, int]] = field(default_factory=list)
    produce_errors: list[ErrorCode] = field(default_factory=list)
    #: The error of every fetch of a partition.
    fetch_errors: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    #: Fetches below it are out of range.
    log_start: int = 0
    next_producer_id: int = 100
    #: Topics without an id are addressed by name.
    ids: dict[str, bytes] = field(default_factory=dict)
    broker: FakeBroker = field(default_factory=FakeBroker)
    #: Brokers 2, 3, … The test that adds them starts them.
    followers: list[FakeBroker] = field(default_factory=list)
    metadata_count: int = 0

    def __post_init__(self) -> None:
        self.broker.handlers |= {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            METADATA: self._metadata,
            INIT_PRODUCER_ID: self._init_producer_id,
        }

    @asynccontextmanager
    async def client(self, **config: Any) -> AsyncIterator[AsyncClient]:
        """A client of this cluster, which serves as long as the client is open."""
        settings = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "api_timeout_ms": 5_000} | config
        async with self.broker:
            bootstrap = ((self.broker.host, self.broker.port),)
            async with AsyncClient(ClientConfig(bootstrap=bootstrap, **settings)) as opened:
                yield opened

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        data = bytes(self.logs.get(TopicPartition(topic, partition), b""))
        return [record.value for pos, header in iter_batches(data) for record in iter_records(data, pos, header)]

    def append(self, topic: str, batch: bytes, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)
        base = self.ends.get(where, 0)
        patched = bytearray(batch)
        patched[:8] = base.to_bytes(8)
        self.logs.setdefault(where, bytearray()).extend(patched)
        (_, header), *_ = iter_batches(bytes(patched))
        self.ends[where] = header.last_offset + 1
        return base

    # -- handlers -----------------------------------------------------------------------------------------------------

    def _metadata(self, call: Call) -> None:
        self.metadata_count += 1
        assert isinstance(call.message, MetadataRequest)
        wanted = [topic.name or "" for topic in call.message.topics] if call.message.topics is not None else self.topics
        call.reply(
            MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=node_id, host=broker.host, port=broker.port)
                    for node_id, broker in enumerate((self.broker, *self.followers), 1)
                ],
                cluster_id="fake",
                controller_id=1,
                topics=[self._topic(name) for name in wanted],
            )
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name,
            topic_id=self.ids.get(name, bytes(16)),
            partitions=[
                MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                for index in range(self.topics[name])
            ],
        )

    def _produce(self, call: Call) -> None:
        assert isinstance(call.message, ProduceRequest)
        self.produced.append(call)
        code = self.produce_errors.pop(0) if self.produce_errors else ErrorCode.NONE
        answers = [
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    self._append(self._name(topic.name, topic.topic_id), part, code) for part in topic.partition_data
                ],
            )
            for topic in call.message.topic_data
        ]
        if call.message.acks:
            call.reply(ProduceResponse(responses=answers))

    def _name(self, name: str, topic_id: bytes) -> str:
        """Return an empty list, as for a deleted topic."""
        return name or next((known for known, own in self.ids.items() if own == topic_id), "")

    def _append(self, topic: str, part: PartitionProduceData, code: ErrorCode) -> PartitionProduceResponse:
        assert isinstance(part.records, bytes | memoryview)
        batch = bytes(part.records)
        (_, header), *_ = iter_batches(batch)
        result = PartitionProduceResponse(index=part.index)
        expected = self._next_sequence.get(
            (header.producer_id, topic, part.index), header.base_sequence if self.takes_any_first_sequence else 0
        )
        if code is ErrorCode.NONE and header.producer_id >= 0 and header.base_sequence != expected:
            code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if code:
            result.error_code = code
        else:
            self.sequences.append((header.producer_id, header.producer_epoch, header.base_sequence))
            self._next_sequence[header.producer_id, topic, part.index] = header.base_sequence + header.record_count
            result.base_offset = self.append(topic, batch, part.index)
        return result

    _next_sequence: dict[tuple[int, str, int], int] = field(default_factory=dict)

    def _init_producer_id(self, call: Call) -> None:
        self.next_producer_id += 1
        call.reply(InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0))

    def _fetch(self, call: Call) -> Awaitable[None] | None:
        assert isinstance(call.message, FetchRequest)
        topics = self._read_all(call.message)
        if not any(part.records or part.error_code for topic in topics for part in topic.partitions):
            return self._fetch_later(call, call.message)
        call.reply(FetchResponse(responses=topics))
        return None

    async def _fetch_later(self, call: Call, request: FetchRequest) -> None:
        """Wait for records as a broker does, or clients would ask all the time."""
        await asyncio.sleep(min(request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000)
        call.reply(FetchResponse(responses=self._read_all(request)))

    def _read_all(self, request: FetchRequest) -> list[FetchableTopicResponse]:
        return [
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[self._read(self._name(topic.topic, topic.topic_id), part) for part in topic.partitions],
            )
            for topic in request.topics
        ]

    def _read(self, topic: str, part: FetchPartition) -> PartitionData:
        partition, offset, size = part.partition, part.fetch_offset, part.partition_max_bytes
        where = TopicPartition(topic, partition)
        end = self.ends.get(where, 0)
        data = bytes(self.logs.get(where, b""))
        answer = PartitionData(partition_index=partition, high_watermark=end, last_stable_offset=end, records=b"")
        if not topic:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            return answer
        if where in self.fetch_errors:
            answer.error_code = self.fetch_errors[where]
            return answer
        if not self.log_start <= offset <= end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        start = next((pos for pos, header in iter_batches(data) if header.last_offset >= offset), len(data))
        answer.records = data[start : start + max(size, 1)]
        answer.aborted_transactions = list(self.aborted)
        return answer

    def _list_offsets(self, call: Call) -> None:
        assert isinstance(call.message, ListOffsetsRequest)
        call.reply(
            ListOffsetsResponse(
                topics=[
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=[
                            ListOffsetsPartitionResponse(
                                partition_index=part.partition_index,
                                offset=self.log_start
                                if part.timestamp == -2
                                else self.ends.get(TopicPartition(topic.name, part.partition_index), 0),
                            )
                            for part in topic.partitions
                        ],
                    )
                    for topic in call.message.topics
                ]
            )
        )


def canned(answers: list[ApiMessage]) -> Callable[[Call], None]:
    """Answer in the given order; repeat the last answer."""

    def handler(call: Call) -> None:
        call.reply(answers.pop(0) if len(answers) > 1 else answers[0])

    return handler
