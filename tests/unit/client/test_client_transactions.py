"""Transactions of both shells: a new epoch for each if the cluster raises epochs, otherwise the old versions."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingClient
from barnabas.client.blocking_producer import BlockingProducer, BlockingProducerConfig, ReadyBatch
from barnabas.client.blocking_transactions import BlockingTransactions
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.errors import BrokerRefused
from barnabas.client.identity import ProducerIdentity
from barnabas.client.producer import Producer, ProducerConfig
from barnabas.client.transactions import Transactions
from barnabas.testing.cluster import Cluster as RealCluster
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from barnabas.wire.messages.end_txn import EndTxnResponse
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import BatchBuilder
from tests.unit.client.client_fake_broker import Call
from tests.unit.client.client_fake_cluster import FakeCluster, canned

pytestmark = pytest.mark.uvloop

PRODUCE, FIND_COORDINATOR, ADD_PARTITIONS, END_TXN = 0, 10, 24, 26


@pytest.fixture(scope="module")
def real() -> Iterator[RealCluster]:
    with RealCluster(brokers=1) as cluster:
        yield cluster


def batch_of(identity: ProducerIdentity, sequence: int, value: bytes) -> bytes:
    builder = BatchBuilder(
        producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence, transactional=True
    )
    builder.append(None, value, timestamp=1)
    return builder.build()


def ready(topic: str, value: bytes) -> ReadyBatch:
    builder = BatchBuilder()
    builder.append(None, value, timestamp=1)
    return ReadyBatch(TopicPartition(topic, 0), 1, memoryview(bytearray(builder.build())))


def commit_one_with_asyncio(config: ClientConfig, topic: str, name: str) -> ProducerIdentity:
    """Return the identity that the transaction was written with."""

    async def scenario() -> ProducerIdentity:
        settings = ProducerConfig(transactional_id=name)
        async with AsyncClient(config) as cluster, Producer(cluster, settings) as producer:
            transaction = producer.transaction
            assert transaction is not None
            await transaction.begin()
            delivery = await producer.send(topic, b"one")
            await transaction.commit()
            return delivery.batch.identity

    return asyncio.run(scenario())


def commit_one_blocking(config: ClientConfig, topic: str, name: str) -> ProducerIdentity:
    with BlockingClient(config) as client:
        transactions = BlockingTransactions(client)
        identity = transactions.initialise(name, timeout_ms=60_000)
        with BlockingProducer(client, BlockingProducerConfig(), identity=identity, transactional_id=name) as producer:
            producer.send(ready(topic, b"one"))
            producer.flush()
        transactions.end(name, identity, committed=True)
        return identity


BOTH_SHELLS = pytest.mark.parametrize("commit_one", [commit_one_with_asyncio, commit_one_blocking])
CommitOne = Callable[[ClientConfig, str, str], ProducerIdentity]


@BOTH_SHELLS
def test_late_batch_of_a_finished_transaction_is_refused(real: RealCluster, commit_one: CommitOne) -> None:
    """EndTxn below version 5 once left the epoch as it was, and a batch of version 12 began a new transaction with it."""
    topic = f"late-{commit_one.__name__}"
    real.create_topic(topic)
    config = client_config(real.bootstrap)
    identity = commit_one(config, topic, f"txn-{topic}")
    request = ProduceRequest(
        transactional_id=f"txn-{topic}",
        acks=-1,
        timeout_ms=5_000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=batch_of(identity, 1, b"late"))]
            )
        ],
    )

    async def late() -> int:
        async with AsyncClient(config) as cluster:
            (leader,) = await cluster.leaders([TopicPartition(topic, 0)])
            response = await cluster.ask(leader, request, ProduceResponse, version_max=12)
            return response.responses[0].partition_responses[0].error_code

    assert asyncio.run(late()) == ErrorCode.INVALID_PRODUCER_EPOCH


@BOTH_SHELLS
async def test_cluster_that_does_not_raise_epochs_is_spoken_to_in_the_old_versions(commit_one: CommitOne) -> None:
    fake = FakeCluster()
    added = AddPartitionsToTxnTopicResult(
        name="t", results_by_partition=[AddPartitionsToTxnPartitionResult(partition_index=0)]
    )
    fake.broker.handlers |= {
        FIND_COORDINATOR: canned([FindCoordinatorResponse(coordinators=[Coordinator(key="x", node_id=1)])]),
        ADD_PARTITIONS: canned([AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[added])]),
        END_TXN: canned([EndTxnResponse()]),
    }
    async with fake.client() as cluster:
        await asyncio.to_thread(commit_one, ClientConfig(bootstrap=cluster.config.bootstrap), "t", "x")
    versions = {call.message.API_KEY: call.version for call in fake.broker.calls}
    assert (versions[PRODUCE], versions[ADD_PARTITIONS], versions[END_TXN]) == (11, 3, 4)


async def test_next_transaction_is_not_taken_for_the_last_if_brokers_know_different_features(
    real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that has just started may know no features. The epoch then stayed, and a leader that still waited for the
    markers of a committed transaction took the records of the next one, which was aborted, for part of it."""
    topic = "differs"
    real.create_topic(topic)
    is_known = True

    async def raises_epochs(self: Transactions, transactional_id: str) -> bool:
        return is_known

    monkeypatch.setattr(Transactions, "raises_epochs", raises_epochs)
    settings = ProducerConfig(transactional_id="differs")
    batches = []
    async with AsyncClient(client_config(real.bootstrap)) as cluster, Producer(cluster, settings) as producer:
        transaction = producer.transaction
        assert transaction is not None
        for at_begin, at_end in ((True, False), (False, False), (True, True)):
            is_known = at_begin
            await transaction.begin()
            batches.append((await producer.send(topic, b"one")).batch)
            is_known = at_end
            await transaction.commit()
    epochs = [batch.identity.epoch for batch in batches]
    assert epochs == sorted(set(epochs)), "each transaction has an epoch of its own"


async def test_transaction_with_a_refused_record_is_aborted_and_the_next_one_succeeds(real: RealCluster) -> None:
    real.create_topic("refused", config={"max.message.bytes": "1000"})
    config = ProducerConfig(transactional_id="refused", batch_bytes=100)
    async with AsyncClient(client_config(real.bootstrap)) as cluster, Producer(cluster, config) as producer:
        transaction = producer.transaction
        assert transaction is not None
        for turn in range(2):
            await transaction.begin()
            await producer.send("refused", b"lost")
            large = await producer.send("refused", b"x" * 5_000)
            with pytest.raises(BrokerRefused, match="MESSAGE_TOO_LARGE"):
                await large.offset()
            with pytest.raises(BrokerRefused, match="MESSAGE_TOO_LARGE"):
                await transaction.commit()
            await transaction.abort()
            await transaction.begin()
            await producer.send("refused", b"kept %d" % turn)
            await transaction.commit()
    values = [value for value in real_values(real, "refused") if value != b"lost"]
    assert values == [b"kept 0", b"kept 1"]


def real_values(real: RealCluster, topic: str) -> list[bytes | None]:
    with BlockingClient(client_config(real.bootstrap)) as client:
        return [record.value for record in client.fetch(TopicPartition(topic, 0), 0).records()]


async def test_end_whose_response_was_lost_is_requested_again() -> None:
    fake = FakeCluster()
    ends: list[Call] = []

    def end(call: Call) -> None:
        ends.append(call)
        if len(ends) == 1:
            fake.broker.drop_connections()
        else:
            call.reply(EndTxnResponse(producer_id=101, producer_epoch=1))

    fake.broker.handlers |= {
        FIND_COORDINATOR: canned([FindCoordinatorResponse(coordinators=[Coordinator(key="x", node_id=1)])]),
        END_TXN: end,
    }
    async with fake.client() as cluster:
        config = ClientConfig(bootstrap=cluster.config.bootstrap, retry_backoff_ms=5)

        def body() -> ProducerIdentity:
            with BlockingClient(config) as client:
                return BlockingTransactions(client).end("x", ProducerIdentity(101, 0), committed=True)

        assert await asyncio.to_thread(body) == (101, 0)
    assert len(ends) == 2
