"""Clients of transaction scenarios: confluent-kafka, and a producer that uses the newest protocol versions."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.transactions.state import Identity
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import ClientError, check
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import BatchBuilder


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(60)


def transactional_producer(bootstrap: str, transactional_id: str, **config: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **config}
    )
    producer.init_transactions(60)
    return producer


def consumer(bootstrap: str, group: str, *, isolation: str = "read_committed", **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **config,
        }
    )


def read_all(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", timeout_s: float = 60.0
) -> list[Message]:
    """Return every record up to the end that this isolation level sees now; more if clients continue to write."""
    reader = consumer(bootstrap, f"{topic}-reader-{time.monotonic_ns()}", isolation=isolation)
    try:
        partitions = reader.list_topics(topic, timeout=60).topics[topic].partitions
        ends = {number: _end_of(reader, Assigned(topic, number), timeout_s) for number in partitions}
        reader.assign([Assigned(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: list[Message] = []
        at_end: set[int] = set()
        deadline_s = time.monotonic() + timeout_s
        while len(at_end) < len(partitions):
            assert time.monotonic() < deadline_s, f"{len(at_end)} of {len(partitions)} partitions read to their end"
            message = reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
                if message.offset() >= ends[message.partition()]:
                    at_end.add(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            elif not error.retriable():
                raise AssertionError(error)
        return found
    finally:
        reader.close()


def _end_of(reader: Consumer, partition: Assigned, timeout_s: float) -> int:
    """Return the high watermark, as soon as the partition has a leader."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return int(reader.get_watermark_offsets(partition, timeout=5)[1])
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise


def values(messages: Iterable[Message]) -> list[bytes]:
    return [message.value() for message in messages]


class WireProducer:
    """A producer of `transaction.version` 2: it adds no partitions, every end raises its epoch, and it retries only by
    itself.
    """

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        hosts = tuple(
            (host, int(port)) for host, _, port in (address.rpartition(":") for address in bootstrap.split(","))
        )
        self.cluster = AsyncClient(ClientConfig(bootstrap=hosts, client_id=transactional_id))
        self.transactional_id = transactional_id
        self.identity = Identity(-1, -1)
        self.ongoing = Identity(-1, -1)
        self.sequences: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cluster.close()

    async def init(
        self, *, two_phase: bool = False, keep: bool = False, timeout_ms: int = 60_000, expected: Identity | None = None
    ) -> Identity:
        before = expected or Identity(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=before.producer_id,
            producer_epoch=before.epoch,
            enable2_pc=two_phase,
            keep_prepared_txn=keep,
        )

        async def once() -> InitProducerIdResponse:
            response = await self.cluster.ask_coordinator(
                self.transactional_id,
                request,
                InitProducerIdResponse,
                kind=TRANSACTION,
                error_of=lambda answer: answer.error_code,
            )
            check(response.error_code)
            return response

        response = await self.cluster.retrying("InitProducerId", once)
        self.identity = Identity(response.producer_id, response.producer_epoch)
        self.ongoing = Identity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        self.sequences.clear()
        return self.identity

    def batch(self, partition: TopicPartition, *payloads: bytes) -> bytes:
        sequence = self.sequences.get(partition, 0)
        builder = BatchBuilder(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        for payload in payloads:
            builder.append(None, payload, timestamp=time.time_ns() // 1_000_000)
        self.sequences[partition] = sequence + len(payloads)
        return builder.build()

    async def produce(self, partition: TopicPartition, *payloads: bytes) -> None:
        await self.send(partition, self.batch(partition, *payloads))

    async def send(self, partition: TopicPartition, batch: bytes, *, retries: bool = True) -> None:
        async def once() -> None:
            leaders = await self.cluster.leaders([partition])
            [leader] = leaders
            connection = await self.cluster.connection(leader)
            request = ProduceRequest(
                transactional_id=self.transactional_id,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[
                    TopicProduceData(
                        name=partition.topic,
                        partition_data=[PartitionProduceData(index=partition.partition, records=batch)],
                    )
                ],
            )
            response = await connection.request(request, ProduceResponse, version=12)
            code = response.responses[0].partition_responses[0].error_code
            if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.cluster.forget_leaders([partition.topic])
            check(code)

        await (self.cluster.retrying("Produce", once) if retries else once())

    async def end(self, *, commit: bool) -> None:
        error, identity = await self.try_end(self.identity, commit=commit)
        check(error)
        if identity != self.identity:
            self.identity = identity
            self.sequences.clear()

    async def try_end(self, identity: Identity, *, commit: bool) -> tuple[ErrorCode, Identity]:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        deadline_s = time.monotonic() + 60
        while True:
            response = await self.cluster.ask_coordinator(
                self.transactional_id,
                request,
                EndTxnResponse,
                kind=TRANSACTION,
                error_of=lambda answer: answer.error_code,
            )
            if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                return ErrorCode(response.error_code), Identity(response.producer_id, response.producer_epoch)
            if time.monotonic() > deadline_s:
                raise ClientError("EndTxn: the transaction before it does not end")
            await asyncio.sleep(0.02)
