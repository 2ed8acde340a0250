"""The history of a topic, most of which is in an S3 store, read by clients that we did not write.

One cluster and one topic for all tests of this file. Its records are of a transactional producer that aborts every third
transaction: read_committed must see the others, on either side of the border, and in order.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import boto3
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonTp
from moto.server import ThreadedMotoServer

from barnabas.base.ids import TopicPartition as Tp
from barnabas.base.words import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from barnabas.testing import Cluster, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOPIC = "orders"
TRANSACTIONS, RECORDS = 60, 5
#: After the markers of transactions, which have the time of their writing.
FIRST_MS = int(time.time() * 1000) + 600_000
TIMEOUT_S = 60
SET = AlterConfigOpType.SET


@dataclass
class History:
    cluster: Cluster
    committed: list[bytes]
    everything: list[bytes]

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    access = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    boto3.client("s3", endpoint_url=url, region_name="us-east-1", **access).create_bucket(Bucket="history")
    settings = {**access, "aws_endpoint": url, "aws_region": "us-east-1"}
    yield {f"rsm.config.{name}": value for name, value in settings.items()}
    server.stop()


@pytest.fixture(scope="module")
def history(s3: dict[str, str]) -> Iterator[History]:
    config = {
        **s3,
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": "s3://history/cluster-a",
        "barnabas.remote.chunk.bytes": "65536",
        "remote.log.manager.task.interval.ms": "200",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "100",
    }
    with Cluster(brokers=3, config=config) as cluster:
        settings = {
            "remote.storage.enable": "true",
            "segment.bytes": "3000",
            "local.retention.bytes": "1",
            "retention.ms": "-1",
            "file.delete.delay.ms": "0",
        }
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3, config=settings)])[TOPIC].result(TIMEOUT_S)
        made = produce(cluster)
        wait_until(lambda: is_tiered(cluster), what="all but the last segment is in the tier, on every replica")
        yield made


def produce(cluster: Cluster) -> History:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "orders-writer", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    committed: list[bytes] = []
    everything: list[bytes] = []
    for number in range(TRANSACTIONS):
        values = [b"%d-%d" % (number, each) + b"." * 90 for each in range(RECORDS)]
        producer.begin_transaction()
        for value in values:
            producer.produce(TOPIC, value, timestamp=FIRST_MS + number * 1000)
        if number % 3 == 1:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            committed += values
        everything += values
    return History(cluster, committed, everything)


def listed(cluster: Cluster, *timestamps: int) -> list[int]:
    with BlockingClient(client_config(cluster.bootstrap, {})) as client:
        tp = Tp(TOPIC, 0)
        return [client.list_offsets({tp: timestamp})[tp] for timestamp in timestamps]


def is_tiered(cluster: Cluster) -> bool:
    local, tiered, end = listed(cluster, EARLIEST_LOCAL, LATEST_TIERED, LATEST)
    return local == tiered + 1 and end - local < 60


def read_with_librdkafka(history: History, isolation: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": history.bootstrap,
            "group.id": f"librdkafka-{isolation}",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.message.max.bytes": 5000,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    ends_s = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < ends_s:
        for message in consumer.consume(count, 0.5):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def test_librdkafka_reads_what_was_committed(history: History) -> None:
    assert read_with_librdkafka(history, "read_committed", len(history.committed)) == history.committed


def test_librdkafka_reads_everything(history: History) -> None:
    assert read_with_librdkafka(history, "read_uncommitted", len(history.everything)) == history.everything


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_share_group_reads_the_history_from_the_tier_and_goes_on_in_the_log(history: History, isolation: str) -> None:
    wanted = history.committed if isolation == "read_committed" else history.everything
    group = f"share-{isolation}"
    settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": isolation}
    entries = [ConfigEntry(name, value, incremental_operation=SET) for name, value in settings.items()]
    admin = AdminClient({"bootstrap.servers": history.bootstrap})
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
    consumers = [ShareConsumer({"bootstrap.servers": history.bootstrap, "group.id": group}) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe([TOPIC])
    found: list[bytes] = []
    ends_s = time.monotonic() + TIMEOUT_S
    while len(found) < len(wanted) and time.monotonic() < ends_s:
        for consumer in consumers:
            found += [message.value() for message in consumer.poll(0.3) if message.error() is None]
    for consumer in consumers:
        consumer.close()
    assert sorted(found) == sorted(wanted), "every record once: each was accepted in time"


def test_aiokafka_reads_what_was_committed(history: History) -> None:
    async def read() -> list[bytes]:
        found: list[bytes] = []
        async with (
            asyncio.timeout(TIMEOUT_S),
            AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=history.bootstrap,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                max_partition_fetch_bytes=7000,
            ) as consumer,
        ):
            while len(found) < len(history.committed):
                found.append((await consumer.getone()).value)
        return found

    assert asyncio.run(read()) == history.committed


def test_kafka_python_reads_what_was_committed_from_any_offset(history: History) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=history.bootstrap,
        isolation_level="read_committed",
        consumer_timeout_ms=15_000,
        max_partition_fetch_bytes=4000,
    )
    try:
        partition = KafkaPythonTp(TOPIC, 0)
        consumer.assign([partition])
        for first in (0, 31, 150):
            consumer.seek(partition, first)
            found: list[bytes] = []
            for record in consumer:
                assert record.offset >= first
                found.append(record.value)
                if found[-1] == history.committed[-1]:
                    break
            assert found == history.committed[len(history.committed) - len(found) :]
            assert first or len(found) == len(history.committed)
    finally:
        consumer.close()


def test_offsets_are_found_on_either_side_of_the_border(history: History) -> None:
    # A leader deletes what it copied to the tier a moment later.
    wait_until(lambda: is_tiered(history.cluster), what="the leader keeps only the last segment")
    earliest, local = listed(history.cluster, EARLIEST, EARLIEST_LOCAL)
    assert earliest == 0 < local
    admin = AdminClient({"bootstrap.servers": history.bootstrap})
    partition = TopicPartition(TOPIC, 0)

    def found(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({partition: spec})[partition].result(TIMEOUT_S).offset)

    # A transaction is five records and a marker.
    for number in (0, 7, 30, TRANSACTIONS - 1):
        assert found(OffsetSpec.for_timestamp(FIRST_MS + number * 1000 - 500)) == number * 6
    assert found(OffsetSpec.earliest()) == 0


def test_history_is_read_while_leaders_die(history: History) -> None:
    """Every broker leads in turn: each reads the tier by its own view of it."""
    cluster = history.cluster
    for _ in range(2):
        leader = cluster.leader_of(TOPIC)
        cluster.kill(leader)
        assert read_with_librdkafka(history, "read_committed", len(history.committed)) == history.committed
        cluster.start_broker(leader)
        cluster.wait_for_isr(TOPIC, 3)
