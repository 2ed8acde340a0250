"""The Java consumer and the offsets tool of Kafka 3.9.1, on a topic that begins in the tier."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST_LOCAL
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from tests.interop.test_java_tools import Tools

pytestmark = pytest.mark.usefixtures("java")
TOPIC = "orders"
TRANSACTIONS, RECORDS = 40, 5
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    folder: Path = tmp_path_factory.mktemp("tier")
    config = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{folder}/store",
        "remote.log.manager.task.interval.ms": "200",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "2",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "100",
    }
    with LocalCluster(brokers=2, config=config) as cluster:
        yield Tools(cluster.bootstrap, folder)


@pytest.fixture(scope="module")
def committed(tools: Tools) -> list[str]:
    """Return what a read_committed consumer reads from the topic, most of which is in the tier."""
    settings = {
        "remote.storage.enable": "true",
        "segment.bytes": "3000",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 2, config=settings)])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": tools.bootstrap, "transactional.id": "writer", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    expected: list[str] = []
    for number in range(TRANSACTIONS):
        values = [f"{number}-{each}" + "." * 90 for each in range(RECORDS)]
        producer.begin_transaction()
        for value in values:
            producer.produce(TOPIC, value)
        producer.flush(TIMEOUT_S)
        if number % 3 == 1:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            expected += values
    tp = TopicPartition(TOPIC, 0)
    ends_s = time.monotonic() + TIMEOUT_S
    with BlockingClient(client_config(tools.bootstrap, {})) as client:
        while client.list_offsets({tp: EARLIEST_LOCAL})[tp] < TRANSACTIONS * (RECORDS + 1) - 60:
            assert time.monotonic() < ends_s, "copied segments do not leave the disk"
            time.sleep(0.1)
    return expected


def offset(tools: Tools, when: str) -> int:
    """Return a line like `orders:0:123`, as kafka-get-offsets prints it."""
    return int(tools("GetOffsetShell", "--topic", TOPIC, "--time", when).strip().rpartition(":")[2])


def test_kafka_get_offsets_prints_both_ends_of_the_border(tools: Tools, committed: list[str]) -> None:
    assert committed
    local, tiered = offset(tools, "-4"), offset(tools, "-5")
    assert local == tiered + 1
    assert offset(tools, "earliest-local") == local
    assert offset(tools, "latest-tiered") == tiered
    assert (offset(tools, "-2"), offset(tools, "-1")) == (0, TRANSACTIONS * (RECORDS + 1))


def test_java_consumer_reads_what_was_committed_over_the_border(tools: Tools, committed: list[str]) -> None:
    arguments = ("--topic", TOPIC, "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "30000")
    printed = tools("consumer.ConsoleConsumer", *arguments, "--max-messages", str(len(committed)))
    assert [line for line in printed.splitlines() if line.endswith("....")] == committed
