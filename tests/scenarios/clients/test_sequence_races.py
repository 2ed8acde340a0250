"""Two races of librdkafka that a broker can defuse, message by message at a real broker, and with librdkafka itself.

A repeated sequence number of an ended transaction is refused and not confirmed; a batch behind one that was refused a moment
ago is early, not out of order.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli.local_cluster import wait_until
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.connection import Connection
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import check
from barnabas.testing import Cluster
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import BatchBuilder
from tests.scenarios.broker_metrics import metrics_of

#: The last versions for clients that add partitions themselves and keep their epoch, as librdkafka does.
PRODUCE_VERSION, END_TXN_VERSION, ADD_PARTITIONS_VERSION = 10, 3, 3
#: The first Produce version that identifies topics by id.
BY_ID_VERSION = 13
WAIT_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"replica.lag.time.max.ms": "60000", "barnabas.metrics.port": "0"}
    with Cluster(brokers=2, config=config) as cluster:
        yield cluster


class OldProducer:
    """A transactional producer on one connection to a partition's leader. It never retries."""

    def __init__(self, client: AsyncClient, connection: Connection, tp: TopicPartition, transactional_id: str | None):
        self._client = client
        self._connection = connection
        self._tp = tp
        self._transactional_id = transactional_id
        self.producer_id = self.epoch = -1

    async def init(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )

        async def once() -> InitProducerIdResponse:
            if self._transactional_id is None:
                response = await self._connection.request(request, InitProducerIdResponse, version=3)
            else:
                response = await self._client.ask_coordinator(
                    self._transactional_id, request, InitProducerIdResponse, kind=TRANSACTION, error_of=_error_code
                )
            check(response.error_code)
            return response

        response = await self._client.retrying("InitProducerId", once)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    async def begin(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self._tp.topic, partitions=[self._tp.partition])],
        )

        async def once() -> None:
            connection = await self._coordinator()
            response = await connection.request(request, AddPartitionsToTxnResponse, version=ADD_PARTITIONS_VERSION)
            [topic] = response.results_by_topic_v3_and_below
            check(topic.results_by_partition[0].partition_error_code)

        await self._client.retrying("AddPartitionsToTxn", once)

    async def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

        async def once() -> None:
            connection = await self._coordinator()
            response = await connection.request(request, EndTxnResponse, version=END_TXN_VERSION)
            check(response.error_code)

        await self._client.retrying("EndTxn", once)

    async def _coordinator(self) -> Connection:
        assert self._transactional_id is not None
        return await self._client.connection(await self._client.coordinator(self._transactional_id, TRANSACTION))

    async def produce(self, sequence: int, value: bytes, *, topic_id: bytes | None = None) -> PartitionProduceResponse:
        builder = BatchBuilder(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=self._transactional_id is not None,
        )
        builder.append(None, value, timestamp=time.time_ns() // 1_000_000)
        data = PartitionProduceData(index=self._tp.partition, records=builder.build())
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=self._tp.topic, topic_id=topic_id or bytes(16), partition_data=[data])],
        )
        version = PRODUCE_VERSION if topic_id is None else BY_ID_VERSION
        response = await self._connection.request(request, ProduceResponse, version=version)
        return response.responses[0].partition_responses[0]

    async def code(self, sequence: int, value: bytes, *, topic_id: bytes | None = None) -> ErrorCode:
        return ErrorCode((await self.produce(sequence, value, topic_id=topic_id)).error_code)


def _error_code(response: InitProducerIdResponse) -> int:
    return response.error_code


@contextlib.asynccontextmanager
async def producer_of(
    cluster: Cluster, tp: TopicPartition, broker: int, transactional_id: str | None = None
) -> AsyncIterator[OldProducer]:
    hosts = tuple((host, int(port)) for host, _, port in (a.rpartition(":") for a in cluster.bootstrap.split(",")))
    client = AsyncClient(ClientConfig(bootstrap=hosts, client_id="wire"))
    try:
        await client.brokers()
        producer = OldProducer(client, await client.connection(broker), tp, transactional_id)
        await producer.init()
        yield producer
    finally:
        await client.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            await scenario()

    asyncio.run(main())


def committed(cluster: Cluster, topic: str) -> list[bytes]:
    """Return everything up to the end that a read_committed consumer sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([Assigned(topic, 0, 0)])
    values: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            break
        if message is not None:
            values.append(message.value())
    consumer.close()
    return values


def test_next_transactions_record_with_a_used_sequence_is_refused_until_the_epoch_is_raised(
    cluster: Cluster, topic: str
) -> None:
    cluster.create_topic(topic, replication_factor=1)
    tp, broker = TopicPartition(topic, 0), cluster.leader_of(topic)

    async def scenario() -> None:
        async with producer_of(cluster, tp, broker, topic) as producer:
            await producer.begin()
            assert (
                await producer.code(0, b"aborted, and its client does not know that it was written") is ErrorCode.NONE
            )
            await producer.end(commit=False)
            await producer.begin()
            answer = await producer.produce(0, b"one")
            assert answer.error_code == ErrorCode.UNKNOWN_PRODUCER_ID
            assert answer.log_start_offset == 0, "without it Java repeats for ever"
            await producer.end(commit=False)
            epoch = producer.epoch
            await producer.init()
            assert producer.epoch == epoch + 1
            await producer.begin()
            assert await producer.code(0, b"one") is ErrorCode.NONE
            assert await producer.code(0, b"one") is ErrorCode.NONE, "a retry within the transaction"
            await producer.end(commit=True)

    run(scenario)
    wait_until(lambda: committed(cluster, topic) == [b"one"], what="the transaction to be seen")


def test_batch_behind_one_that_lacked_replicas_waits_for_its_turn(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, replication_factor=2)
    cluster.wait_for_isr(topic, 2)
    tp, broker = TopicPartition(topic, 0), cluster.leader_of(topic)

    async def scenario() -> None:
        async with producer_of(cluster, tp, broker) as producer:
            assert await producer.code(0, b"0") is ErrorCode.NONE
            await asyncio.to_thread(leave_isr, cluster, topic, 3 - broker)
            await needs(cluster, tp, broker, 2)
            assert await producer.code(1, b"1") is ErrorCode.NOT_ENOUGH_REPLICAS
            await needs(cluster, tp, broker, 1)
            assert await producer.code(2, b"2") is ErrorCode.NOT_ENOUGH_REPLICAS
            assert await producer.code(1, b"1") is ErrorCode.NONE
            assert await producer.code(2, b"2") is ErrorCode.NONE
            assert await producer.code(4, b"4") is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    try:
        run(scenario)
    finally:
        cluster.start_broker(3 - broker)
    assert [value for value in committed(cluster, topic) if value != b"probe"] == [b"0", b"1", b"2"]


async def needs(cluster: Cluster, tp: TopicPartition, broker: int, replicas: int) -> None:
    """Set min.insync.replicas of a topic with two replicas, one of which is down, and wait until the leader has the
    notification: another producer tries until it has.
    """
    await asyncio.to_thread(alter_topic, cluster, tp.topic, "min.insync.replicas", str(replicas))
    code = ErrorCode.NONE if replicas == 1 else ErrorCode.NOT_ENOUGH_REPLICAS
    async with producer_of(cluster, tp, broker) as probe:
        sequence = 0
        while (found := await probe.code(sequence, b"probe")) is not code:
            sequence += found is ErrorCode.NONE
            await asyncio.sleep(0.05)


def test_librdkafka_keeps_its_epoch_when_its_second_batch_comes_before_its_first(cluster: Cluster, topic: str) -> None:
    """Both batches are in flight and delayed: the first is refused, then enough replicas are in sync, then the second
    arrives.
    """
    cluster.create_topic(topic, replication_factor=2)
    cluster.wait_for_isr(topic, 2)
    tp, leader = TopicPartition(topic, 0), cluster.leader_of(topic)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "client.id": topic,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    sent: list[object] = []

    def produce(value: bytes) -> None:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, message: sent.append(error))

    try:
        produce(b"0")
        assert producer.flush(WAIT_S) == 0
        leave_isr(cluster, topic, 3 - leader)
        asyncio.run(needs(cluster, tp, leader, 2))
        before = refused_appends(cluster, leader, topic)
        cluster.fail_api(leader, "Produce", delay_ms=4_000, times=2, client_id=topic)
        for value in (b"1", b"2"):
            produce(value)
            producer.poll(0.5)  # each record gets its own request
        wait_until(lambda: refused_appends(cluster, leader, topic) == before + 1, what="the first to be refused")
        asyncio.run(needs(cluster, tp, leader, 1))
        assert producer.flush(WAIT_S) == 0
    finally:
        cluster.heal()
        cluster.start_broker(3 - leader)
    assert sent == [None] * 3
    data = (cluster.log_dir(leader) / f"{topic}-0" / "00000000000000000000.log").read_bytes()
    mine = next(iter_batches(data))[1].producer_id
    epochs = {header.producer_epoch for _, header in iter_batches(data) if header.producer_id == mine}
    assert epochs == {0}, "it has raised its epoch, and repeats what it does not know to be written"
    assert [value for value in committed(cluster, topic) if value != b"probe"] == [b"0", b"1", b"2"]


def refused_appends(cluster: Cluster, broker: int, topic: str) -> float:
    found = re.search(rf'failed_produce_requests\S*topic="{topic}"\S* (\S+)', metrics_of(cluster, broker))
    return float(found[1]) if found else 0.0


def test_topic_that_is_created_between_two_batches_does_not_begin_with_the_second(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, replication_factor=1)
    broker = cluster.leader_of(topic)
    late = f"{topic}-late"
    tp = TopicPartition(late, 0)

    async def scenario() -> None:
        async with producer_of(cluster, tp, broker) as producer:
            assert await producer.code(0, b"0") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await asyncio.to_thread(create_on, cluster, late, broker)
            assert await producer.code(1, b"1") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await producer.code(0, b"0") is ErrorCode.NONE
            assert await producer.code(1, b"1") is ErrorCode.NONE

    run(scenario)
    assert committed(cluster, late) == [b"0", b"1"]


def test_topic_id_that_a_leader_learns_between_two_batches_does_not_begin_with_the_second(
    cluster: Cluster, topic: str
) -> None:
    controller = cluster.controller()
    leader = 3 - controller
    tp = TopicPartition(topic, 0)

    async def scenario() -> None:
        async with producer_of(cluster, tp, leader) as producer:
            # The leader does not hear of the new topic; the controller does, and gives clients its id.
            cluster.be_deaf_to(leader, [controller])
            await asyncio.to_thread(create, cluster, topic, leader)
            topic_id = await asyncio.to_thread(id_of, cluster, topic, controller)
            assert await producer.code(0, b"0", topic_id=topic_id) is ErrorCode.UNKNOWN_TOPIC_ID
            cluster.heal()
            await asyncio.to_thread(wait_known, cluster, topic, leader)
            assert await producer.code(1, b"1", topic_id=topic_id) is ErrorCode.UNKNOWN_TOPIC_ID
            assert await producer.code(0, b"0", topic_id=topic_id) is ErrorCode.NONE
            assert await producer.code(1, b"1", topic_id=topic_id) is ErrorCode.NONE

    try:
        run(scenario)
    finally:
        cluster.heal()
    assert committed(cluster, topic) == [b"0", b"1"]


def test_librdkafka_aborts_and_goes_on_when_it_reuses_a_sequence_that_was_written(cluster: Cluster, topic: str) -> None:
    """It purges a message that waits for its retry, which the leader had written. The next record must not be lost."""
    cluster.create_topic(topic, replication_factor=2)
    cluster.wait_for_isr(topic, 2)
    leader = cluster.leader_of(topic)
    follower = 3 - leader
    seen: dict[str, str] = {}

    def statistics(text: str) -> None:
        seen.update((str(each["nodeid"]), each["state"]) for each in json.loads(text)["brokers"].values())

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": topic,
            "client.id": topic,
            "linger.ms": 0,
            # A failed message waits until it is purged.
            "reconnect.backoff.ms": 3_000,
            "reconnect.backoff.max.ms": 3_000,
            "statistics.interval.ms": 20,
            "stats_cb": statistics,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"aborted 0", partition=0)
    assert producer.flush(WAIT_S) == 0
    segment = cluster.log_dir(leader) / f"{topic}-0" / "00000000000000000000.log"
    before = segment.stat().st_size
    cluster.pause(follower)
    producer.produce(topic, b"aborted 1", partition=0)
    producer.poll(0)
    wait_until(lambda: segment.stat().st_size > before, what="the leader to write the unconfirmed record")
    cluster.drop_connections(leader, client_id=topic)
    wait_until(lambda: producer.poll(0.02) >= 0 and seen[str(leader)] != "UP", what="the client to notice")
    cluster.resume(follower)
    producer.abort_transaction(WAIT_S)

    attempts = 0
    while True:
        attempts += 1
        producer.begin_transaction()
        producer.produce(topic, b"committed", partition=0)
        try:
            producer.commit_transaction(WAIT_S)
            break
        except KafkaException as error:
            assert error.args[0].txn_requires_abort(), error
            producer.abort_transaction(WAIT_S)
    assert attempts == 2, "the first used the sequence of what was aborted"
    wait_until(lambda: committed(cluster, topic) == [b"committed"], what="the transaction to be seen")


def alter_topic(cluster: Cluster, topic: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def create(cluster: Cluster, topic: str, broker: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[[broker]])], operation_timeout=0)[
        topic
    ].result(WAIT_S)


def wait_known(cluster: Cluster, topic: str, broker: int) -> None:
    def leads() -> bool:
        found = cluster.partitions(topic, seen_by=broker)
        return 0 in found and found[0].leader == broker

    wait_until(leads, what="the broker to know of the topic")


def create_on(cluster: Cluster, topic: str, broker: int) -> None:
    create(cluster, topic, broker)
    wait_known(cluster, topic, broker)


def id_of(cluster: Cluster, topic: str, broker: int) -> bytes:
    """Return the topic's id as one broker knows it."""
    host, _, port = cluster.address(broker).rpartition(":")
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    def found() -> bytes:
        with BlockingConnection(host, int(port), client_config(cluster.address(broker))) as connection:
            return bytes(connection.request(request, MetadataResponse).topics[0].topic_id)

    wait_until(lambda: found() != bytes(16), what="the topic's id")
    return found()


def leave_isr(cluster: Cluster, topic: str, broker: int) -> None:
    cluster.terminate(broker)
    cluster.wait_for_isr(topic, 1)
