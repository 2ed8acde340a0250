"""Quotas: a client is held to its own, and other clients do not notice."""

import asyncio
import statistics
import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.configs import QuotaEntity, alter_quotas, describe_quotas
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused
from barnabas.wire.frame import encode_request
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.scenarios.broker_metrics import metrics_of

RATE = 200_000
#: As with Kafka, the first windows may be spent at once.
WARM_UP_S = 2.5
#: A throttle time that a slow machine does not cause.
THROTTLE_MS_SEEN = 200


@pytest.fixture(scope="module")
def quota_cluster() -> Iterator[LocalCluster]:
    # Few windows, so that a rate is measured soon and the first burst ends soon.
    config = {
        "quota.window.num": "2",
        "quota.window.size.seconds": "1",
        "controller.quota.window.num": "2",
        "barnabas.metrics.port": "0",
    }
    with LocalCluster(brokers=1, config=config) as cluster:
        yield cluster


def alter(cluster: LocalCluster, entity: QuotaEntity, **changes: float | None) -> None:
    async def story() -> None:
        async with AsyncClient(client_config(cluster.bootstrap)) as connected:
            await alter_quotas(connected, entity, changes)

    asyncio.run(story())


def described(cluster: LocalCluster, entity: QuotaEntity) -> list[dict[str, float]]:
    async def story() -> list[dict[str, float]]:
        async with AsyncClient(client_config(cluster.bootstrap)) as connected:
            return [dict(values) for _, values in await describe_quotas(connected, entity, strict=True)]

    return asyncio.run(story())


class Tally:
    """Bytes that a client transferred, from the moment when it counts."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, size_bytes: int) -> None:
        self.bytes += size_bytes


async def produce(bootstrap: str, topic: str, client_id: str, tally: Tally) -> None:
    record = b"x" * 5_000
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, client_id=client_id, acks=1, linger_ms=0, max_batch_size=10_000
    ) as producer:
        while True:
            await producer.send_and_wait(topic, record)
            tally.add(len(record))


async def consume(bootstrap: str, topic: str, client_id: str, tally: Tally) -> None:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        client_id=client_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=20_000,
    ) as consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                tally.add(sum(len(record.value or b"") for record in records))


async def send_now_and_then(bootstrap: str, topic: str, latencies_s: list[float]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="quick", acks=1, linger_ms=0) as producer:
        while True:
            began_s = time.monotonic()
            await producer.send_and_wait(topic, b"x" * 1_000)
            latencies_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.02)


async def tallied(tally: Tally, seconds: float) -> float:
    """Return the bytes a second over the next `seconds`."""
    before, began_s = tally.bytes, time.monotonic()
    await asyncio.sleep(seconds)
    return (tally.bytes - before) / (time.monotonic() - began_s)


async def fill(bootstrap: str, topic: str, size_bytes: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="filler", max_batch_size=10_000) as producer:
        for _ in range(size_bytes // 5_000):
            await producer.send(topic, b"x" * 5_000)


def test_quotas_hold_over_ten_seconds_and_other_clients_do_not_wait(quota_cluster: LocalCluster, topic: str) -> None:
    """A producer and a consumer that could be faster, each with its own rate, and a third client without a quota."""
    bootstrap = quota_cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name in (topic, f"{topic}-read"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    alter(quota_cluster, {"client-id": "slow"}, producer_byte_rate=RATE)
    alter(quota_cluster, {"user": None, "client-id": "slow-reader"}, consumer_byte_rate=RATE)

    async def story() -> tuple[float, float, list[float]]:
        produced, consumed, latencies_s = Tally(), Tally(), list[float]()
        await fill(bootstrap, f"{topic}-read", 16 * RATE)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            clients = [
                tasks.create_task(produce(bootstrap, topic, "slow", produced)),
                tasks.create_task(consume(bootstrap, f"{topic}-read", "slow-reader", consumed)),
                tasks.create_task(send_now_and_then(bootstrap, topic, latencies_s)),
            ]
            await asyncio.sleep(WARM_UP_S)
            latencies_s.clear()
            rates = await asyncio.gather(tallied(produced, 10.0), tallied(consumed, 10.0))
            for client in clients:
                client.cancel()
        return *rates, latencies_s

    produced, consumed, latencies_s = asyncio.run(story())
    assert produced == pytest.approx(RATE, rel=0.1)
    assert consumed == pytest.approx(RATE, rel=0.1)
    # A throttled client waits for a second at a time.
    assert len(latencies_s) > 50 and statistics.median(latencies_s) < 0.5
    assert throttled_ms(quota_cluster, "Produce") > 1_000 and throttled_ms(quota_cluster, "Fetch") > 1_000


def throttled_ms(cluster: LocalCluster, quota: str) -> float:
    """Return the total time that clients had to wait, from the broker's metrics."""
    text = metrics_of(cluster)
    [line] = [
        each for each in text.splitlines() if each.startswith(f'kafka_server_throttle_time_ms_sum{{quota="{quota}"}}')
    ]
    return float(line.split()[-1])


def test_quotas_are_described_as_they_were_set_and_can_be_removed(quota_cluster: LocalCluster) -> None:
    entity: QuotaEntity = {"user": "carol@example", "client-id": "app"}
    alter(quota_cluster, entity, producer_byte_rate=1000, consumer_byte_rate=2000)
    assert described(quota_cluster, entity) == [{"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}]
    alter(quota_cluster, entity, producer_byte_rate=None, consumer_byte_rate=None)
    assert described(quota_cluster, entity) == []


@pytest.mark.parametrize(
    ("entity", "changes", "words"),
    [
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "must be a LONG value"),
        ({"user": "a"}, {"nonsense": 1.0}, "Invalid configuration key nonsense"),
        ({"user": "a", "ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}, "IP entity should not be used"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ({"planet": "x"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: planet"),
    ],
)
def test_impossible_quotas_are_refused_with_a_reason(
    quota_cluster: LocalCluster, entity: dict[str, str], changes: dict[str, float], words: str
) -> None:
    with pytest.raises(BrokerRefused, match=words):
        alter(quota_cluster, entity, **changes)


def test_quotas_hold_after_a_restart(quota_cluster: LocalCluster, topic: str) -> None:
    alter(quota_cluster, {"user": "ANONYMOUS", "client-id": "kept"}, producer_byte_rate=RATE)
    quota_cluster.restart(1)

    async def story() -> float:
        tally = Tally()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            client = tasks.create_task(produce(quota_cluster.bootstrap, topic, "kept", tally))
            await asyncio.sleep(WARM_UP_S)
            rate = await tallied(tally, 1.0)
            client.cancel()
        return rate

    assert asyncio.run(story()) < 4 * RATE  # data arrives in bursts; without a quota the rate is far higher


# -- changes of topics ------------------------------------------------------------------------------------------------


def test_topics_over_the_rate_are_refused_with_the_time_to_wait(quota_cluster: LocalCluster, topic: str) -> None:
    """Two windows of one second at one a second are two permits; eight partitions use six too many."""
    alter(quota_cluster, {"client-id": "maker"}, controller_mutation_rate=1.0)
    names = [f"{topic}-{number}" for number in range(2)]

    async def story() -> list[tuple[int, int]]:
        config = client_config(quota_cluster.bootstrap, client_id="maker")
        answers = []
        async with AsyncClient(config) as cluster:
            for name, partitions in zip(names, (8, 1), strict=True):
                wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
                request = CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)
                answer = await cluster.ask_any(request, CreateTopicsResponse)
                answers.append((answer.topics[0].error_code, answer.throttle_time_ms))
        return answers

    (created, at_first_ms), (refused, wait_ms) = asyncio.run(story())
    assert (created, at_first_ms) == (ErrorCode.NONE, 0)
    assert refused == ErrorCode.THROTTLING_QUOTA_EXCEEDED and 0 < wait_ms <= 6_000
    assert names[1] not in topics_of(quota_cluster)
    alter(quota_cluster, {"client-id": "maker"}, controller_mutation_rate=None)


def test_client_that_does_not_know_the_error_gets_its_topics_and_has_to_wait(
    quota_cluster: LocalCluster, topic: str
) -> None:
    """Each of the three APIs, in the last version before the error; every answer has the time until the next one."""
    alter(quota_cluster, {"client-id": "old-maker"}, controller_mutation_rate=10.0)
    new = CreatableTopic(name=topic, num_partitions=40, replication_factor=1)
    more = CreatePartitionsTopic(name=topic, count=48, assignments=None)
    requests: list[tuple[ApiMessage, int]] = [
        (CreateTopicsRequest(topics=[new], timeout_ms=10_000), 5),
        (CreatePartitionsRequest(topics=[more], timeout_ms=10_000), 2),
        (DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 4),
    ]

    async def story() -> list[int]:
        waits_ms: list[int] = []
        async with AsyncClient(client_config(quota_cluster.bootstrap, client_id="old-maker")) as cluster:
            connection = await cluster.any_connection()
            for request, version in requests:
                answer = await connection.request(request, version=version)
                assert error_codes(answer) == [0], answer
                waits_ms.append(answer.throttle_time_ms)  # type: ignore[attr-defined]
        return waits_ms

    waits_ms = asyncio.run(story())
    # Twenty permits at first, then ten a second: 20 too many, then 8, then 48, minus those of the elapsed time.
    assert 0 < waits_ms[0] <= 2_000 and waits_ms[1] <= 800 and 0 < waits_ms[2] <= 4_800
    assert topic not in topics_of(quota_cluster)


def error_codes(answer: ApiMessage) -> list[int]:
    for field in ("topics", "results", "responses"):
        if hasattr(answer, field):
            return [each.error_code for each in getattr(answer, field)]
    raise AssertionError(answer)


def topics_of(cluster: LocalCluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=60).topics)


# -- connections ------------------------------------------------------------------------------------------------------


def test_address_that_connects_too_fast_is_disconnected_and_others_are_accepted(quota_cluster: LocalCluster) -> None:
    """Four connections at once, at four a second; the fifth and sixth are delayed and then closed."""
    host, _, port = quota_cluster.bootstrap.partition(":")
    alter(quota_cluster, {"ip": "127.0.0.2"}, connection_creation_rate=4.0)

    async def connect(source: str) -> bool:
        """Whether the broker keeps the connection."""
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
        try:
            async with asyncio.timeout(1.5):
                return await reader.read(1) != b""
        except TimeoutError:
            return True
        finally:
            writer.close()

    async def story() -> tuple[list[bool], bool]:
        kept = [True] * 6
        deadline_s = time.monotonic() + 60
        while sum(kept) != 4 and time.monotonic() < deadline_s:  # the broker gets its quota by a notification
            kept = await asyncio.gather(*(connect("127.0.0.2") for _ in range(6)))
        return kept, await connect("127.0.0.3")

    kept, other = asyncio.run(story())
    assert sum(kept) == 4 and other
    alter(quota_cluster, {"ip": "127.0.0.2"}, connection_creation_rate=None)


def test_broker_that_is_connected_to_too_fast_accepts_later(quota_cluster: LocalCluster) -> None:
    """No connection is refused: connections beyond the rate wait in the backlog."""
    host, _, port = quota_cluster.bootstrap.partition(":")
    admin = AdminClient({"bootstrap.servers": quota_cluster.bootstrap})

    def set_rate(value: str | None) -> None:
        operation = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
        entry = ConfigEntry("max.connection.creation.rate", value, incremental_operation=operation)
        resource = ConfigResource("BROKER", "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)

    async def ask() -> float:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode_request(ApiVersionsRequest(), 0, 1, "test"))
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        writer.close()
        return time.monotonic()

    async def story() -> list[float]:
        began_s = time.monotonic()
        return [done_s - began_s for done_s in await asyncio.gather(*(ask() for _ in range(12)))]

    set_rate("4")
    try:
        waits_s = sorted(asyncio.run(story()))
    finally:
        set_rate(None)
    # Four are accepted at once, the others at the rate, a quarter of a second each: the last of eight after two seconds, or
    # after one more if a window had been spent. None is early, however busy the machine.
    assert waits_s[4] > 0.2 and waits_s[7] > 0.9 and waits_s[-1] > 1.9


# -- time of requests -------------------------------------------------------------------------------------------------


def test_client_above_its_request_quota_is_throttled(quota_cluster: LocalCluster) -> None:
    alter(quota_cluster, {"client-id": "greedy"}, request_percentage=0.01)

    async def story() -> tuple[int, float, int, float]:
        greedy = client_config(quota_cluster.bootstrap, client_id="greedy")
        modest = client_config(quota_cluster.bootstrap, client_id="modest")
        async with AsyncClient(greedy) as busy, AsyncClient(modest) as other:
            throttle_ms, began_s = 0, time.monotonic()
            while throttle_ms < THROTTLE_MS_SEEN and time.monotonic() < began_s + 30:
                throttle_ms = await asked(busy)
            throttled_s = time.monotonic()
            other_ms = await asked(other)
            other_s = time.monotonic() - throttled_s
            await asked(busy)
            return throttle_ms, time.monotonic() - throttled_s, other_ms, other_s

    async def asked(cluster: AsyncClient) -> int:
        return (await cluster.ask_any(MetadataRequest(topics=[]), MetadataResponse)).throttle_time_ms

    throttle_ms, waited_s, other_ms, other_s = asyncio.run(story())
    assert THROTTLE_MS_SEEN <= throttle_ms <= 1_000
    assert waited_s >= throttle_ms / 1000 - 0.05
    assert other_ms == 0 and other_s < throttle_ms / 1000, "no client waits for another one's quota"
    alter(quota_cluster, {"client-id": "greedy"}, request_percentage=None)
