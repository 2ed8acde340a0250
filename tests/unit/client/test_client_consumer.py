"""A consumer returns the records that an application may see, and its position."""

import asyncio
from collections.abc import Awaitable

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_COMMITTED
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import ConsumerConfig, Fetched, whole_batches_end
from barnabas.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from barnabas.wire.records import BatchBuilder, end_txn_marker
from tests.unit.client.client_fake_broker import Call, FakeBroker
from tests.unit.client.client_fake_cluster import FETCH, FakeCluster

pytestmark = pytest.mark.uvloop

T0 = TopicPartition("t", 0)


def batch(*values: bytes, producer_id: int = -1, transactional: bool = False) -> bytes:
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1, transactional=transactional
    )
    for value in values:
        builder.append(None, value, timestamp=1)
    return builder.build()


async def read_all(consumer: Consumer, **options: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while arrived := await consumer.poll(300):
        for fetched in arrived:
            values += [record.value for record in fetched.records(**options)]  # type: ignore[arg-type]
    return values


async def read_some(consumer: Consumer) -> list[bytes | None]:
    """Poll until records arrive, however long it takes."""
    values: list[bytes | None] = []
    while not values:
        values = await read_all(consumer)
    return values


async def test_records_come_in_order_from_the_position_on() -> None:
    fake = FakeCluster()
    fake.append("t", batch(b"0", b"1", b"2"))
    fake.append("t", batch(b"3", b"4"))
    async with fake.client() as cluster, Consumer(cluster) as consumer:
        consumer.assign({T0: 1})
        assert await read_all(consumer) == [b"1", b"2", b"3", b"4"]
        assert consumer.position(T0) == 5


async def test_batch_that_the_fetch_size_cut_is_read_by_the_next_fetch() -> None:
    fake = FakeCluster()
    first = batch(b"a" * 100)
    fake.append("t", first)
    fake.append("t", batch(b"b" * 100))
    async with (
        fake.client() as cluster,
        Consumer(cluster, ConsumerConfig(partition_max_bytes=len(first) + 70)) as consumer,
    ):
        consumer.assign({T0: 0})
        assert await read_all(consumer) == [b"a" * 100, b"b" * 100]


def test_cut_batches_end_where_the_last_whole_one_does() -> None:
    one = batch(b"x")
    assert whole_batches_end(one + one) == 2 * len(one)
    assert all(whole_batches_end(one + one[:size]) == len(one) for size in range(len(one)))


async def test_read_committed_hides_aborted_transactions_and_all_markers() -> None:
    fake = FakeCluster()
    fake.append("t", batch(b"plain"))
    start = fake.append("t", batch(b"aborted", producer_id=7, transactional=True))
    fake.append("t", batch(b"committed", producer_id=8, transactional=True))
    for producer_id, commit in ((7, False), (8, True)):
        fake.append(
            "t",
            end_txn_marker(commit=commit, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=1),
        )
    fake.append("t", batch(b"again", producer_id=7, transactional=True))
    fake.aborted = [AbortedTransaction(producer_id=7, first_offset=start)]
    async with fake.client() as cluster, Consumer(cluster, ConsumerConfig(isolation_level=READ_COMMITTED)) as consumer:
        consumer.assign({T0: 0})
        seen = await read_all(consumer, isolation_level=READ_COMMITTED)
        assert seen == [b"plain", b"committed", b"again"]
        consumer.seek(T0, 0)
        assert await read_all(consumer) == [b"plain", b"aborted", b"committed", b"again"]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"2", b"3"]), ("latest", [])])
async def test_offset_out_of_range_is_reset(reset: str, expected: list[bytes]) -> None:
    fake = FakeCluster(log_start=2)
    for n in range(4):
        fake.append("t", batch(b"%d" % n))
    async with fake.client() as cluster, Consumer(cluster, ConsumerConfig(auto_offset_reset=reset)) as consumer:
        consumer.assign({T0: 0})
        seen = await read_all(consumer) + await read_all(consumer)
        assert seen == expected


async def test_offset_out_of_range_is_an_error_where_no_reset_is_wanted() -> None:
    fake = FakeCluster(log_start=2)
    for n in range(4):
        fake.append("t", batch(b"%d" % n))
    async with fake.client() as cluster, Consumer(cluster, ConsumerConfig(auto_offset_reset="none")) as consumer:
        consumer.assign({T0: 0})
        with pytest.raises(BrokerRefused, match="OFFSET_OUT_OF_RANGE"):
            await read_all(consumer)


async def test_results_for_partitions_that_were_unassigned_are_dropped() -> None:
    fake = FakeCluster(topics={"t": 2})
    fake.append("t", batch(b"x"), 0)
    fake.append("t", batch(b"y"), 1)
    async with fake.client() as cluster, Consumer(cluster) as consumer:
        consumer.assign({T0: 0})
        await cluster.leaders([T0])
        consumer._start_fetches()
        consumer.assign({TopicPartition("t", 1): 0})
        assert await read_all(consumer) == [b"y"]


async def test_lost_connection_is_survived() -> None:
    fake = FakeCluster()
    fake.append("t", batch(b"x"))
    async with fake.client() as cluster, Consumer(cluster, ConsumerConfig(retry_backoff_ms=5)) as consumer:
        consumer.assign({T0: 0})
        assert await read_some(consumer) == [b"x"]
        fake.broker.drop_connections()
        fake.append("t", batch(b"y"))
        assert await read_some(consumer) == [b"y"]


async def test_partitions_that_have_moved_do_not_hold_back_those_that_have_not() -> None:
    """The client once waited for each of them in turn: after a fail-over, minutes for a broker with a thousand partitions."""
    fake = FakeCluster(topics={"t": 50})
    fake.append("t", batch(b"x"), 49)
    fake.fetch_errors = {TopicPartition("t", number): ErrorCode.NOT_LEADER_OR_FOLLOWER for number in range(49)}
    async with fake.client() as cluster, Consumer(cluster, ConsumerConfig(retry_backoff_ms=60_000)) as consumer:
        consumer.assign({TopicPartition("t", number): 0 for number in range(50)})
        async with asyncio.timeout(30):
            [fetched] = await consumer.poll(60_000)
        assert fetched.partition == TopicPartition("t", 49)


async def test_records_from_one_leader_are_not_lost_with_the_failure_of_another() -> None:
    """Once, their positions had moved past them when the error was raised, so the next poll skipped them."""
    fake = FakeCluster(topics={"t": 2})
    fake.append("t", batch(b"x"))
    async with fake.client() as cluster:

        async def refused() -> list[Fetched]:
            raise BrokerRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-1")

        async with Consumer(cluster) as consumer:
            consumer.assign({T0: 0})
            await cluster.leaders([T0])
            consumer._start_fetches()
            consumer._fetches[2] = asyncio.create_task(refused())
            await asyncio.wait(consumer._fetches.values())
            with pytest.raises(BrokerRefused):
                await consumer.poll(1_000)
            assert await read_all(consumer) == [b"x"]


@pytest.mark.parametrize("trouble", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_leader_that_names_a_nearer_replica_is_obeyed(trouble: ErrorCode) -> None:
    """KIP-392: a leader sends a consumer with a rack to a replica, without records. A replica that is behind causes no
    reset."""
    fake = FakeCluster()
    fake.append("t", batch(b"x"))
    fetch = fake.broker.handlers[FETCH]
    asked: list[str] = []
    is_in_trouble = trouble is not ErrorCode.NONE

    def lead(call: Call) -> Awaitable[None] | None:
        assert isinstance(call.message, FetchRequest)
        asked.append("leader")
        if not call.message.rack_id:
            return fetch(call)
        topic = call.message.topics[0]
        redirect = PartitionData(partition_index=0, preferred_read_replica=2, records=b"")
        call.reply(
            FetchResponse(
                responses=[FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[redirect])]
            )
        )
        return None

    def follow(call: Call) -> Awaitable[None] | None:
        nonlocal is_in_trouble
        asked.append("follower")
        fake.fetch_errors = {T0: trouble} if is_in_trouble else {}
        is_in_trouble = False
        return fetch(call)

    fake.broker.handlers[FETCH] = lead
    async with fake.client() as cluster:
        near = FakeBroker(handlers={FETCH: follow})
        async with near:
            fake.followers.append(near)
            config = ConsumerConfig(client_rack="here", auto_offset_reset="none", retry_backoff_ms=5)
            async with Consumer(cluster, config) as consumer:
                consumer.assign({T0: 0})
                [fetched] = await consumer.poll(5_000)
                assert [record.value for record in fetched.records()] == [b"x"]
    expected = ["leader", "follower"] * (2 if trouble is not ErrorCode.NONE else 1)
    assert asked[: len(expected)] == expected


async def test_replica_that_came_since_the_last_metadata_is_looked_for() -> None:
    """A leader gives no records to a consumer that it sends elsewhere. One that does not know the replica must not loop."""
    fake = FakeCluster()
    fake.append("t", batch(b"x"))
    asked: list[str] = []
    fetch = fake.broker.handlers[FETCH]

    def lead(call: Call) -> None:
        assert isinstance(call.message, FetchRequest)
        asked.append("leader")
        topic = call.message.topics[0]
        redirect = PartitionData(partition_index=0, preferred_read_replica=2, records=b"")
        call.reply(
            FetchResponse(
                responses=[FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[redirect])]
            )
        )

    fake.broker.handlers[FETCH] = lead
    async with fake.client() as cluster:
        await cluster.refresh(["t"])
        near = FakeBroker(handlers={FETCH: fetch})
        async with near:
            fake.followers.append(near)
            config = ConsumerConfig(client_rack="here", retry_backoff_ms=5)
            async with Consumer(cluster, config) as consumer:
                consumer.assign({T0: 0})
                [fetched] = await consumer.poll(5_000)
                assert [record.value for record in fetched.records()] == [b"x"]
    assert asked == ["leader"] * 2


def test_next_position_is_past_batches_that_hold_nothing_to_see() -> None:
    marker = end_txn_marker(
        commit=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=1, base_offset=9
    )
    fetched = Fetched(T0, marker, 9, 10, 10, 0)
    assert list(fetched.records()) == []
    assert fetched.next_position == 10


async def test_partition_without_a_leader_delays_no_other_partition_nor_the_poll() -> None:
    """One partition without a leader once stopped the fetches of all."""
    fake = FakeCluster(topics={"t": 1, "gone": 0})
    fake.append("t", batch(b"a"))
    async with fake.client() as cluster, Consumer(cluster) as consumer:
        consumer.assign({TopicPartition("gone", 0): 0, T0: 0})
        assert [fetched.partition for fetched in await consumer.poll(5_000)] == [T0]
        async with asyncio.timeout(30):  # far less than the client would try for
            assert await consumer.poll(100) == []
