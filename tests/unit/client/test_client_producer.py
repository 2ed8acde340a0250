"""A producer keeps the order and sends nothing twice, whatever the broker answers."""

import asyncio
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.errors import BrokerRefused, ConnectionLost, DeadlineExceeded, UnsupportedVersion
from barnabas.client.partitioner import partition_of_key
from barnabas.client.producer import Producer, ProducerConfig
from barnabas.wire.compression import Codec
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.records import BatchBuilder
from tests.support.waiting import eventually
from tests.unit.client.client_fake_cluster import FakeCluster

pytestmark = pytest.mark.uvloop

QUICK = ProducerConfig(batch_bytes=200, retry_backoff_ms=5)


async def test_offsets_are_those_of_the_broker() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster) as producer:
        deliveries = [await producer.send("t", b"%d" % n) for n in range(5)]
        assert [await delivery.offset() for delivery in deliveries] == [0, 1, 2, 3, 4]
    assert fake.values("t") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"value": "text"}, TypeError),
        ({"value": b"", "key": 7}, TypeError),
        ({"value": b"", "headers": [("\ud800", b"")]}, ValueError),
        ({"value": b"", "headers": [("h", "text")]}, TypeError),
        ({"value": b"", "timestamp_ms": 2**63}, ValueError),
    ],
)
async def test_record_that_no_batch_can_hold_fails_alone(record: dict[str, Any], error: type[Exception]) -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster) as producer:
        good = await producer.send("t", b"good")
        with pytest.raises(error):
            await producer.send("t", **record)
        assert await good.offset() == 0
    assert fake.values("t") == [b"good"]


async def test_buffer_counts_the_headers_of_records() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
        delivery = await producer.send("t", b"", headers=[("name", b"x" * 1_000)])
        assert delivery.batch.size_bytes > 1_000


async def test_keys_choose_partitions_and_order_holds_in_each() -> None:
    fake = FakeCluster(topics={"t": 4})
    async with fake.client() as cluster, Producer(cluster, QUICK) as producer:
        for n in range(100):
            await producer.send("t", b"%d" % n, key=b"key-%d" % (n % 10))
    for partition in range(4):
        keys = [k for k in range(10) if partition_of_key(b"key-%d" % k, 4) == partition]
        expected = [b"%d" % n for n in range(100) if n % 10 in keys]
        assert fake.values("t", partition) == expected


async def test_batches_are_numbered_without_a_gap() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster, QUICK) as producer:
        for n in range(50):
            await producer.send("t", b"value %d" % n)
    assert len(fake.sequences) > 5
    assert {(producer_id, epoch) for producer_id, epoch, _ in fake.sequences} == {(101, 0)}
    assert len(fake.values("t")) == 50


@pytest.mark.parametrize(
    "errors",
    [
        [ErrorCode.NOT_LEADER_OR_FOLLOWER],
        [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS],
        [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE],
    ],
)
async def test_errors_that_pass_change_neither_order_nor_count(errors: list[ErrorCode]) -> None:
    """The broker refuses sequences that are out of order, so the batches behind a failed one fail too."""
    fake = FakeCluster(produce_errors=list(errors))
    async with fake.client() as cluster, Producer(cluster, QUICK) as producer:
        for n in range(60):
            await producer.send("t", b"%d" % n)
    assert fake.values("t") == [b"%d" % n for n in range(60)]


async def test_batches_that_wait_for_one_connection_do_not_overtake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt to connect fails while three batches wait. A leader accepts any first sequence of a new producer."""
    fake = FakeCluster(takes_any_first_sequence=True)
    async with fake.client() as cluster, Producer(cluster, QUICK) as producer:
        await producer.partition_count("t")
        connect = cluster._connect
        attempts = 0

        async def fails_once(*where: object, **options: object) -> object:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                await asyncio.sleep(0.05)
                raise ConnectionLost("cut")
            return await connect(*where, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(cluster, "_connect", fails_once)
        for n in range(3):
            await producer.send("t", b"%d" % n * 180)
        await producer.flush()
        assert attempts == 2
    assert [sequence for _, _, sequence in fake.sequences] == [0, 1, 2]
    assert fake.values("t") == [b"%d" % n * 180 for n in range(3)]


async def test_refused_batch_fails_alone_and_the_others_continue_with_a_new_identity() -> None:
    fake = FakeCluster(produce_errors=[ErrorCode.MESSAGE_TOO_LARGE])
    async with (
        fake.client() as cluster,
        Producer(cluster, ProducerConfig(batch_bytes=60, retry_backoff_ms=5)) as producer,
    ):
        deliveries = [await producer.send("t", b"%d" % n) for n in range(10)]
        await producer.flush()
        with pytest.raises(BrokerRefused, match="MESSAGE_TOO_LARGE"):
            await deliveries[0].offset()
        assert [await delivery.offset() for delivery in deliveries[1:]] == list(range(9))
    assert fake.values("t") == [b"%d" % n for n in range(1, 10)]
    assert {producer_id for producer_id, _, _ in fake.sequences} == {102}


async def test_batch_that_never_gets_through_fails_when_its_time_is_up() -> None:
    fake = FakeCluster(produce_errors=[ErrorCode.NOT_ENOUGH_REPLICAS] * 1000)
    async with fake.client() as cluster:
        config = ProducerConfig(retry_backoff_ms=5, delivery_timeout_ms=80)
        async with Producer(cluster, config) as producer:
            delivery = await producer.send("t", b"x")
            with pytest.raises(DeadlineExceeded, match="not delivered in 80 ms: NOT_ENOUGH_REPLICAS"):
                await delivery.offset()


async def test_duplicate_is_a_success_with_an_unknown_offset() -> None:
    fake = FakeCluster(produce_errors=[ErrorCode.DUPLICATE_SEQUENCE_NUMBER])
    async with fake.client() as cluster, Producer(cluster) as producer:
        assert await (await producer.send("t", b"x")).offset() == -1


async def test_acks_zero_does_not_wait_for_a_response() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster, ProducerConfig(acks=0, idempotent=False)) as producer:
        assert await (await producer.send("t", b"x")).offset() == -1
        await eventually(lambda: fake.produced)
    request = fake.produced[0].message
    assert isinstance(request, ProduceRequest)
    assert request.acks == 0
    assert fake.values("t") == [b"x"]


@pytest.mark.parametrize("codec", list(Codec))
async def test_compressed_batches_are_readable(codec: Codec) -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster, ProducerConfig(codec=codec)) as producer:
        for n in range(20):
            await producer.send("t", b"value-%d" % n * 5)
    assert fake.values("t") == [b"value-%d" % n * 5 for n in range(20)]


async def test_sending_waits_while_the_buffer_is_full() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster:
        config = ProducerConfig(batch_bytes=500, buffer_memory_bytes=1_000)
        async with Producer(cluster, config) as producer:
            for _ in range(200):
                await producer.send("t", b"v" * 100)
                assert producer._buffered_bytes <= 1_000
    assert len(fake.values("t")) == 200


async def test_record_larger_than_the_buffer_is_still_sent() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster, Producer(cluster, ProducerConfig(buffer_memory_bytes=100)) as producer:
        await (await producer.send("t", b"v" * 5_000)).offset()
    assert fake.values("t") == [b"v" * 5_000]


async def test_ready_made_batch_is_produced_unchanged() -> None:
    fake = FakeCluster()
    builder = BatchBuilder()
    builder.append(b"k", b"v", timestamp=1)
    async with fake.client() as cluster, Producer(cluster, ProducerConfig(idempotent=False)) as producer:
        assert await producer.produce(TopicPartition("t", 0), builder.build()) == 0
    assert fake.values("t") == [b"v"]


async def test_topic_that_grows_is_used_whole() -> None:
    fake = FakeCluster(topics={"t": 1})
    async with fake.client() as cluster, Producer(cluster, QUICK) as producer:
        await (await producer.send("t", b"before")).offset()
        fake.topics["t"] = 8
        await cluster.refresh(["t"])
        for n in range(200):
            await producer.send("t", b"after", key=b"%d" % n)
    assert all(fake.values("t", partition) for partition in range(8))


async def test_broker_without_producer_ids_fails_only_the_sent_records() -> None:
    fake = FakeCluster()
    del fake.broker.served[22]
    async with fake.client() as cluster, Producer(cluster, QUICK) as producer:
        deliveries = [await producer.send("t", b"v" * 100) for _ in range(20)]
        await producer.flush()
        for delivery in deliveries:
            with pytest.raises(UnsupportedVersion, match="InitProducerId"):
                await delivery.offset()


async def test_record_for_a_missing_partition_fails_in_time_and_with_few_requests() -> None:
    """For example, the topic was created again with fewer partitions. All of them have leaders, but this one does not exist."""
    fake = FakeCluster(topics={"t": 1})
    config = ProducerConfig(delivery_timeout_ms=200, retry_backoff_ms=20)
    async with fake.client() as cluster, Producer(cluster, config) as producer:
        there, not_there = [await producer.send("t", b"x", partition=index) for index in (0, 3)]
        async with asyncio.timeout(10):
            with pytest.raises(DeadlineExceeded, match="t-3"):
                await not_there.offset()
        assert await there.offset() == 0
    assert fake.metadata_count < 30


async def test_topic_that_does_not_come_into_being_is_an_error() -> None:
    async with FakeCluster().client(api_timeout_ms=60) as cluster, Producer(cluster) as producer:
        with pytest.raises(DeadlineExceeded, match="metadata of nix"):
            await producer.send("nix", b"x")
