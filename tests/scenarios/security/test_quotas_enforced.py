"""Quotas on bytes: what a client is held to, what another one does not notice."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.configs import QuotaEntity, alter_quotas, describe_quotas
from barnabas.client.cluster import Cluster
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused

RATE = 200_000
SECONDS = 3.0


@pytest.fixture(scope="module")
def quota_cluster() -> Iterator[LocalCluster]:
    # Short windows, so that a rate is known soon.
    config = {"quota.window.num": "3", "quota.window.size.seconds": "1"}
    with LocalCluster(brokers=1, config=config) as cluster:
        yield cluster


def alter(cluster: LocalCluster, entity: QuotaEntity, **changes: float | None) -> None:
    async def story() -> None:
        async with Cluster(client_config(cluster.bootstrap)) as connected:
            await alter_quotas(connected, entity, changes)

    asyncio.run(story())


def described(cluster: LocalCluster, entity: QuotaEntity) -> list[dict[str, float]]:
    async def story() -> list[dict[str, float]]:
        async with Cluster(client_config(cluster.bootstrap)) as connected:
            return [dict(values) for _, values in await describe_quotas(connected, entity, strict=True)]

    return asyncio.run(story())


async def produce_for(bootstrap: str, topic: str, client_id: str, seconds: float) -> float:
    """Bytes a second after a first burst."""
    record = b"x" * 10_000
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, client_id=client_id, acks=1, linger_ms=0, max_batch_size=20_000
    ) as producer:
        counted, began_s = 0, None
        start_s = time.monotonic()
        while time.monotonic() < start_s + 2 + seconds:
            await producer.send_and_wait(topic, record)
            if began_s is None and time.monotonic() > start_s + 2:
                began_s = time.monotonic()  # the windows of the start have been paid for
            elif began_s is not None:
                counted += len(record)
        assert began_s is not None
        return counted / (time.monotonic() - began_s)


def test_producer_is_held_to_its_quota_and_another_is_not_slowed(quota_cluster: LocalCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": quota_cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    alter(quota_cluster, {"client-id": "slow"}, producer_byte_rate=RATE)

    async def story() -> tuple[float, float]:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(produce_for(quota_cluster.bootstrap, topic, "slow", SECONDS))
            quick = tasks.create_task(produce_for(quota_cluster.bootstrap, topic, "quick", SECONDS))
        return slow.result(), quick.result()

    slow, quick = asyncio.run(story())
    assert slow == pytest.approx(RATE, rel=0.35)  # a few seconds on a busy machine; the unit test is exact
    assert quick > 5 * RATE


def test_consumer_is_held_to_its_quota(quota_cluster: LocalCluster, topic: str) -> None:
    alter(quota_cluster, {"user": None, "client-id": "slow-reader"}, consumer_byte_rate=RATE)

    async def story() -> float:
        async with asyncio.timeout(60):
            async with AIOKafkaProducer(bootstrap_servers=quota_cluster.bootstrap) as producer:
                for _ in range(200):
                    await producer.send(topic, b"x" * 10_000)
            async with AIOKafkaConsumer(
                topic,
                bootstrap_servers=quota_cluster.bootstrap,
                client_id="slow-reader",
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=50_000,
            ) as consumer:
                start_s = time.monotonic()
                for _ in range(200):
                    await consumer.getone()
                return 200 * 10_000 / (time.monotonic() - start_s)

    # Two windows' worth may come at once, the rest at the rate: never much faster, and it all arrives.
    assert asyncio.run(story()) < 1.6 * RATE


def test_quotas_are_described_as_they_were_set_and_can_be_removed(quota_cluster: LocalCluster) -> None:
    entity: QuotaEntity = {"user": "carol@example", "client-id": "app"}
    alter(quota_cluster, entity, producer_byte_rate=1000, consumer_byte_rate=2000)
    assert described(quota_cluster, entity) == [{"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}]
    alter(quota_cluster, entity, producer_byte_rate=None, consumer_byte_rate=None)
    assert described(quota_cluster, entity) == []


@pytest.mark.parametrize(
    ("entity", "changes", "words"),
    [
        ({"user": "a"}, {"request_percentage": 10.0}, "not enforced by this broker"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "must be a LONG value"),
        ({"user": "a"}, {"nonsense": 1.0}, "Invalid configuration key nonsense"),
        ({"user": "a", "ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}, "IP entity should not be used"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ({"planet": "x"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: planet"),
    ],
)
def test_quotas_that_cannot_be_are_refused_in_words(
    quota_cluster: LocalCluster, entity: dict[str, str], changes: dict[str, float], words: str
) -> None:
    with pytest.raises(BrokerRefused, match=words):
        alter(quota_cluster, entity, **changes)


def test_quotas_hold_after_a_restart(quota_cluster: LocalCluster, topic: str) -> None:
    alter(quota_cluster, {"user": "ANONYMOUS", "client-id": "kept"}, producer_byte_rate=RATE)
    quota_cluster.restart(1)
    rate = asyncio.run(produce_for(quota_cluster.bootstrap, topic, "kept", 1.0))
    assert rate < 2 * RATE
