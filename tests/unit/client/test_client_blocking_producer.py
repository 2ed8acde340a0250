"""The blocking producer against real brokers that refuse, drop connections, answer late and move leaders."""

from collections.abc import Callable, Iterator

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli.local_cluster import wait_until
from barnabas.client.blocking import BlockingClient
from barnabas.client.blocking_producer import BlockingProducer, BlockingProducerConfig, ReadyBatch
from barnabas.client.blocking_transactions import BlockingTransactions
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused, ClientError, DeadlineExceeded
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.transactions import Initialised
from barnabas.testing.cluster import Cluster
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.record_decode import iter_records
from barnabas.wire.records import BatchBuilder

PARTITIONS = 4
BATCHES = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, config={"transaction.two.phase.commit.enable": "true"}) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with BlockingClient(client_config(cluster.bootstrap, {"retry.backoff.ms": "10", "client.id": "writer"})) as client:
        yield client
    cluster.heal()


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def batch(topic: str, partition: int, first: int, count: int = 3) -> ReadyBatch:
    builder = BatchBuilder()
    for number in range(first, first + count):
        builder.append(None, str(number).encode(), timestamp=number)
    return ReadyBatch(TopicPartition(topic, partition), count, memoryview(bytearray(builder.build())))


def producer(client: BlockingClient, *, identity: ProducerIdentity | None = None, **options: int) -> BlockingProducer:
    settings = {"request_bytes": 400, "retry_backoff_ms": 10, "request_timeout_ms": 2000} | options
    known = identity or BlockingTransactions(client).initialise(None, timeout_ms=0)
    return BlockingProducer(client, BlockingProducerConfig(**settings), identity=known)


def write_all(client: BlockingClient, topic: str, **options: int) -> None:
    with producer(client, **options) as writing:
        assert writing.partition_count(topic) == PARTITIONS
        for number in range(BATCHES):
            writing.send(batch(topic, number % PARTITIONS, number * 3))
        writing.flush()


def read(client: BlockingClient, topic: str, partition: int) -> list[int]:
    numbers: list[int] = []
    offset = 0
    while True:
        fetched = client.fetch(TopicPartition(topic, partition), offset, max_wait_ms=0)
        for at, header in iter_batches(fetched.data):
            if not header.is_control:
                numbers += [int(record.value or b"") for record in iter_records(fetched.data, at, header)]
            offset = header.next_offset
        if offset >= fetched.high_watermark:
            return numbers


def assert_each_once_in_order(client: BlockingClient, topic: str) -> None:
    for partition in range(PARTITIONS):
        due = [n * 3 + extra for n in range(BATCHES) if n % PARTITIONS == partition for extra in range(3)]
        assert read(client, topic, partition) == due


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda c: None, id="nothing"),
        pytest.param(
            lambda c: [c.fail_api(b, "Produce", error="NOT_LEADER_OR_FOLLOWER", after=b, times=3) for b in (1, 2)],
            id="refused for a while",
        ),
        pytest.param(
            lambda c: [c.fail_api(b, "Produce", error="REQUEST_TIMED_OUT", after=2, times=1) for b in (1, 2)],
            id="refused once amid others",
        ),
        pytest.param(
            lambda c: [c.fail_api(b, "Produce", drop=True, after=3, times=2) for b in (1, 2)], id="connections dropped"
        ),
        pytest.param(
            lambda c: c.fail_api(1, "Produce", delay_ms=3500, after=2, times=1, client_id="writer"), id="answered late"
        ),
    ],
)
def test_every_batch_arrives_once_and_in_order(
    cluster: Cluster, client: BlockingClient, topic: str, break_it: Callable[[Cluster], object]
) -> None:
    break_it(cluster)
    write_all(client, topic)
    assert_each_once_in_order(client, topic)


def test_a_leader_that_moves_is_followed(cluster: Cluster, topic: str) -> None:
    with (
        BlockingClient(client_config(cluster.bootstrap, {"retry.backoff.ms": "10"})) as client,
        producer(client) as writing,
    ):
        writing.partition_count(topic)
        for number in range(BATCHES):
            if number == BATCHES // 2:
                cluster.restart(1)
            writing.send(batch(topic, number % PARTITIONS, number * 3))
        writing.flush()
        assert_each_once_in_order(client, topic)


def test_a_refusal_that_cannot_pass_names_the_partition(cluster: Cluster, client: BlockingClient, topic: str) -> None:
    for broker in (1, 2):
        cluster.fail_api(broker, "Produce", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerRefused, match=rf"TOPIC_AUTHORIZATION_FAILED: {topic}-"):
        write_all(client, topic)


def test_batch_that_is_refused_for_too_long_is_given_up(cluster: Cluster, client: BlockingClient, topic: str) -> None:
    for broker in (1, 2):
        cluster.fail_api(broker, "Produce", error="NOT_ENOUGH_REPLICAS")
    with pytest.raises(DeadlineExceeded, match="not delivered in 200 ms: NOT_ENOUGH_REPLICAS"):
        write_all(client, topic, delivery_timeout_ms=200)


def test_producer_waits_for_a_missing_topic_and_names_it(client: BlockingClient) -> None:
    with pytest.raises(ClientError, match=r"no\.such\.topic!"):
        producer(client, max_block_ms=100).partition_count("no.such.topic!")


def test_batch_for_a_missing_partition_is_given_up_and_named(client: BlockingClient, topic: str) -> None:
    """All partitions of the topic have leaders, but this partition does not exist: the producer must not look for ever."""
    with producer(client, delivery_timeout_ms=200) as writing:
        writing.send(batch(topic, PARTITIONS, 0))
        with pytest.raises(DeadlineExceeded, match=f"{topic}-{PARTITIONS}: not delivered in 200 ms"):
            writing.flush()


@pytest.mark.parametrize("acks", [0, 1])
def test_batches_arrive_also_with_fewer_acks(client: BlockingClient, topic: str, acks: int) -> None:
    with producer(client, identity=NO_IDENTITY, acks=acks) as writing:
        for number in range(BATCHES):
            writing.send(batch(topic, number % PARTITIONS, number * 3))
        writing.flush()
        wait_until(
            lambda: all(len(read(client, topic, index)) == 45 for index in range(PARTITIONS)), what="all batches"
        )
    assert_each_once_in_order(client, topic)


def test_a_kept_transaction_is_ended_by_the_producer_that_kept_it(client: BlockingClient, topic: str) -> None:
    transactions = BlockingTransactions(client)
    names = [f"{topic}-{number}" for number in range(5)]
    for number, name in enumerate(names):
        identity = transactions.initialise(name, timeout_ms=60_000)
        with BlockingProducer(client, BlockingProducerConfig(), identity=identity, transactional_id=name) as writing:
            writing.send(batch(topic, 0, number * 3))
            writing.flush()
    assert transactions.ongoing(topic) == names
    kept = transactions.keep_all(names)
    known = {name: answer.identity for name, answer in kept.items() if isinstance(answer, Initialised)}
    assert known.keys() == set(names)
    for _ in range(2):  # asking again does no harm
        assert set(transactions.end_all(known, committed=True).values()) == {None}
    assert transactions.ongoing(topic) == []
    refused = transactions.end_all(known, committed=False)
    assert {refusal.code for refusal in refused.values() if refusal} == {ErrorCode.INVALID_TXN_STATE}
