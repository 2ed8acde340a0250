"""`transaction.version` 2 (KIP-890 part 2) and two-phase commit (KIP-939), message by message with real brokers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.transactions.state import Identity
from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import BrokerRefused
from barnabas.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from barnabas.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.scenarios.transactions.txn_clients import WireProducer, create_topic, read_all, values


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(100):
            await scenario()

    asyncio.run(main())


def test_every_end_raises_the_epoch_and_the_leader_adds_the_partitions(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 3)

    async def scenario() -> None:
        async with WireProducer(bootstrap, topic) as producer:
            first = await producer.init()
            for turn in range(6):
                for number in range(3):
                    await producer.produce(TopicPartition(topic, number), b"%d" % turn, b"%d" % turn)
                await producer.end(commit=turn % 2 == 0)
                assert producer.identity == Identity(first.producer_id, first.epoch + turn + 1)

    run(scenario)
    wait_until(
        lambda: sorted(values(read_all(bootstrap, topic))) == [b"0"] * 6 + [b"2"] * 6 + [b"4"] * 6,
        what="all markers to be written",
    )


def test_a_batch_of_one_transaction_never_lands_in_the_next(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    partition = TopicPartition(topic, 0)

    async def scenario() -> None:
        async with WireProducer(bootstrap, topic) as producer:
            await producer.init()
            await producer.produce(partition, b"one")
            late = producer.batch(partition, b"late")
            await producer.end(commit=True)
            # Send the batch after the markers, before the next transaction begins in the partition.
            await producer.cluster.retrying("drained", lambda: _completed(producer))
            with pytest.raises(BrokerRefused) as refusal:
                await producer.send(partition, late, retries=False)
            assert refusal.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
            # Send it again while the next transaction is open.
            await producer.produce(partition, b"two")
            with pytest.raises(BrokerRefused) as refusal:
                await producer.send(partition, late, retries=False)
            assert refusal.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
            await producer.end(commit=True)

    run(scenario)
    wait_until(lambda: values(read_all(bootstrap, topic)) == [b"one", b"two"], what="both to be committed")


def test_the_leader_adds_partitions_also_where_verification_is_turned_off(
    new_cluster: Callable[..., LocalCluster], topic: str
) -> None:
    bootstrap = new_cluster(brokers=1, config={"transaction.partition.verification.enable": "false"}).bootstrap
    create_topic(bootstrap, topic)
    partition = TopicPartition(topic, 0)

    async def scenario() -> None:
        async with WireProducer(bootstrap, topic) as producer:
            await producer.init()
            for value in (b"one", b"two"):
                await producer.produce(partition, value)
                await producer.end(commit=True)

    run(scenario)
    wait_until(lambda: values(read_all(bootstrap, topic)) == [b"one", b"two"], what="both to be committed")


async def _completed(producer: WireProducer) -> None:
    response = await producer.cluster.ask_coordinator(
        producer.transactional_id,
        DescribeTransactionsRequest(transactional_ids=[producer.transactional_id]),
        DescribeTransactionsResponse,
        kind=TRANSACTION,
        error_of=lambda answer: answer.transaction_states[0].error_code,
    )
    if not response.transaction_states[0].transaction_state.startswith("Complete"):
        raise BrokerRefused(ErrorCode.CONCURRENT_TRANSACTIONS)


def test_a_delayed_end_that_comes_again_ends_nothing(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    partition = TopicPartition(topic, 0)

    async def scenario() -> None:
        async with WireProducer(bootstrap, topic) as producer:
            before = await producer.init()
            await producer.produce(partition, b"one")
            await producer.end(commit=True)
            assert await producer.try_end(before, commit=True) == (ErrorCode.NONE, producer.identity), "a retry"
            await producer.produce(partition, b"two")
            error, _ = await producer.try_end(before, commit=True)
            assert error is ErrorCode.PRODUCER_FENCED
            error, _ = await producer.try_end(before, commit=False)
            assert error is ErrorCode.PRODUCER_FENCED
            await producer.end(commit=False)

    run(scenario)
    wait_until(lambda: values(read_all(bootstrap, topic)) == [b"one"], what="the second to be aborted")


def test_transactions_and_producers_are_described(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    partition = TopicPartition(topic, 1)

    async def scenario() -> None:
        async with WireProducer(bootstrap, topic) as producer:
            identity = await producer.init()
            await producer.produce(partition, b"open")
            coordinator = await producer.cluster.coordinator(topic, TRANSACTION)
            described = await producer.cluster.ask(
                coordinator,
                DescribeTransactionsRequest(transactional_ids=[topic, "nobody"]),
                DescribeTransactionsResponse,
            )
            found = {state.transactional_id: state for state in described.transaction_states}
            assert found[topic].transaction_state == "Ongoing"
            assert (found[topic].producer_id, found[topic].producer_epoch) == identity
            assert [(each.topic, each.partitions) for each in found[topic].topics] == [(topic, [1])]
            assert found["nobody"].error_code in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR)
            listed = await producer.cluster.ask(
                coordinator,
                ListTransactionsRequest(
                    state_filters=["Ongoing", "Sleeping"], transactional_id_pattern=f"{topic[:4]}.*{topic[-4:]}"
                ),
                ListTransactionsResponse,
            )
            assert [state.transactional_id for state in listed.transaction_states] == [topic]
            assert listed.unknown_state_filters == ["Sleeping"]
            [leader] = await producer.cluster.leaders([partition])
            producers = await producer.cluster.ask(
                leader,
                DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[1])]),
                DescribeProducersResponse,
            )
            [state] = producers.topics[0].partitions[0].active_producers
            assert (state.producer_id, state.producer_epoch) == identity
            assert state.current_txn_start_offset == 0
            await producer.end(commit=False)

    run(scenario)


def test_a_prepared_transaction_survives_its_client_and_its_coordinator(
    new_cluster: Callable[..., LocalCluster], topic: str
) -> None:
    cluster = new_cluster(
        brokers=3,
        config={"transaction.two.phase.commit.enable": "true", "zookeeper.session.timeout.ms": "2000"},
        zookeeper_options=("--tick-time", "500"),
    )
    create_topic(cluster.bootstrap, topic, 2)

    async def scenario() -> None:
        async with WireProducer(cluster.bootstrap, topic) as client:
            old = await client.init(two_phase=True)
            for number in range(2):
                await client.produce(TopicPartition(topic, number), b"prepared")
            coordinator = await client.cluster.coordinator(topic, TRANSACTION)
        cluster.kill(coordinator)
        async with WireProducer(cluster.bootstrap, topic) as restarted:
            kept = await restarted.init(two_phase=True, keep=True)
            assert restarted.ongoing == old
            assert kept.epoch == old.epoch + 1
            error, _ = await restarted.try_end(old, commit=False)
            assert error is ErrorCode.PRODUCER_FENCED, "the client before the restart"
            await restarted.end(commit=True)
        cluster.start_broker(coordinator)

    run(scenario)
    wait_until(
        lambda: values(read_all(cluster.bootstrap, topic)) == [b"prepared"] * 2, timeout_s=60, what="it to be committed"
    )
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
