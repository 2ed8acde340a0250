"""librdkafka's share consumers against brokers in processes of their own: crowds, poison, killed consumers and leaders."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until

SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "3",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="module")
def share_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SETTINGS) as cluster:
        yield cluster


def create(bootstrap: str, topic: str, group: str, *, replicas: int = 3, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(60)
    entries = {"share.auto.offset.reset": "earliest"} | {
        name.replace("_", "."): value for name, value in settings.items()
    }
    resource = ConfigResource(
        ConfigResource.Type.GROUP,
        group,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in entries.items()
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def produce(bootstrap: str, topic: str, values: Iterator[str] | list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


class Worker:
    """Accepts each record that it gets, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.accepted: list[int] = []
        #: Records whose acceptance got an error, or no answer: a leader that died may have carried it out.
        self.doubtful: list[int] = []
        self._config = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = ShareConsumer(self._config)
        consumer.subscribe([self._topic])
        while not self._is_over.is_set():
            offsets = []
            for message in consumer.poll(0.2):
                if message.error() is None:
                    consumer.acknowledge(message)
                    offsets.append(message.offset())
            if offsets:
                results = consumer.commit_sync(30)
                is_sure = all(failure is None for failure in results.values())
                (self.accepted if is_sure else self.doubtful).extend(offsets)
        consumer.close()

    def stop(self) -> None:
        self._is_over.set()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def accepted(workers: list[Worker]) -> Counter[int]:
    return Counter(offset for worker in workers for offset in worker.accepted)


def stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join()


def test_fifty_share_consumers_accept_every_record_of_one_partition_once(share_cluster: LocalCluster) -> None:
    bootstrap, topic = share_cluster.bootstrap, "crowd"
    create(bootstrap, topic, "crowd")
    workers = [Worker(bootstrap, topic, "crowd") for _ in range(50)]
    try:
        produce(bootstrap, topic, [str(number) for number in range(2_000)])
        wait_until(lambda: len(accepted(workers)) == 2_000, timeout_s=120, what="all records to be accepted")
    finally:
        stop(workers)
    assert set(accepted(workers).values()) == {1}


def test_poison_record_is_given_up_and_the_others_are_accepted(share_cluster: LocalCluster) -> None:
    bootstrap, topic = share_cluster.bootstrap, "poisoned"
    create(bootstrap, topic, "poisoned", share_delivery_count_limit="3")
    produce(bootstrap, topic, ["poison" if number == 7 else "good" for number in range(20)])
    seen: Counter[bytes] = Counter()
    config = {"bootstrap.servers": bootstrap, "group.id": "poisoned", "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + 60
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline_s:
            messages = [each for each in consumer.poll(1.0) if each.error() is None]
            quiet = 0 if messages or not seen else quiet + 1
            for message in messages:
                seen[message.value()] += 1
                is_poison = message.value() == b"poison"
                consumer.acknowledge(message, AcknowledgeType.RELEASE if is_poison else AcknowledgeType.ACCEPT)
            consumer.commit_sync(30)
    assert seen == {b"poison": 3, b"good": 19}


_HOLDER = """
import json, sys, time
from confluent_kafka import ShareConsumer
consumer = ShareConsumer(json.loads(sys.argv[1]))
consumer.subscribe([sys.argv[2]])
while not (messages := [each for each in consumer.poll(1.0) if each.error() is None]):
    pass
print(json.dumps([each.offset() for each in messages]), flush=True)
time.sleep(600)
"""


def test_records_of_a_killed_consumer_go_to_another_before_their_locks_time_out(share_cluster: LocalCluster) -> None:
    bootstrap, topic = share_cluster.bootstrap, "held"
    create(bootstrap, topic, "held", share_record_lock_duration_ms="60000")
    produce(bootstrap, topic, [str(number) for number in range(10)])
    config = {"bootstrap.servers": bootstrap, "group.id": "held", "share.acknowledgement.mode": "explicit"}
    command = [sys.executable, "-c", _HOLDER, json.dumps(config), topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        held = json.loads(holder.stdout.readline())
        holder.kill()
    assert held
    began_s = time.monotonic()
    worker = Worker(bootstrap, topic, "held")
    try:
        wait_until(lambda: len(accepted([worker])) == 10, timeout_s=50, what="the held records to be accepted")
    finally:
        stop([worker])
    assert time.monotonic() - began_s < 50


def test_nothing_is_lost_while_leaders_fail(share_cluster: LocalCluster) -> None:
    bootstrap, topic = share_cluster.bootstrap, "failing"
    create(bootstrap, topic, "failing")
    workers: list[Any] = [Worker(bootstrap, topic, "failing") for _ in range(5)]
    try:
        for victim in (1, 2, 3):
            produce(bootstrap, topic, [str(number) for number in range(200)])
            share_cluster.kill(victim)
            produce(bootstrap, topic, [str(number) for number in range(200)])
            share_cluster.start_broker(victim)
            wait_until(lambda: _in_sync(bootstrap, topic) == 3, timeout_s=60, what="the broker to be in sync")
        wait_until(
            lambda: len(accepted(workers) | _doubtful(workers)) == 1_200,
            timeout_s=120,
            what="all records to be accepted",
        )
    finally:
        stop(workers)
    assert set(accepted(workers).values()) == {1}


def _doubtful(workers: list[Worker]) -> Counter[int]:
    return Counter(offset for worker in workers for offset in worker.doubtful)


def _in_sync(bootstrap: str, topic: str) -> int:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic]
    return min((len(partition.isrs) for partition in found.partitions.values()), default=0)
