"""Consume, transform, produce, while coordinators and leaders are killed: every record is produced exactly once."""

import random
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.transactions.txn_clients import consumer, create_topic, read_all, transactional_producer, values

RECORDS = 400
DEADLINE_S = 100.0


class Worker:
    """Reads the source and writes the sink in transactions; after a failure it starts again from the committed offsets."""

    def __init__(self, bootstrap: str, source: str, sink: str) -> None:
        self._bootstrap, self._source, self._sink = bootstrap, source, sink
        self.failures: list[str] = []
        self.is_done = threading.Event()

    def run(self) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s and not self.is_done.is_set():
            try:
                producer = transactional_producer(
                    self._bootstrap, f"{self._sink}-worker", **{"transaction.timeout.ms": 20_000}
                )
                reader = consumer(self._bootstrap, f"{self._sink}-group")
            except KafkaException as failure:
                self.failures.append(str(failure))
                continue
            try:
                reader.subscribe([self._source])
                self._work(reader, producer, deadline_s)
            except KafkaException as failure:
                self.failures.append(str(failure))
            finally:
                reader.close()

    def _work(self, reader: Consumer, producer: Producer, deadline_s: float) -> None:
        ends: dict[int, int] = {}
        while time.monotonic() < deadline_s and not self.is_done.is_set():
            messages = [message for message in reader.consume(20, timeout=1.0) if message.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(self._sink, message.value())
                ends[message.partition()] = message.offset() + 1
            offsets = [TopicPartition(self._source, partition, end) for partition, end in ends.items()]
            producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 20)
            producer.commit_transaction(20)


@pytest.mark.timeout(180)
def test_every_record_is_produced_once_whichever_broker_is_killed(
    new_cluster: Callable[..., LocalCluster], topic: str
) -> None:
    cluster = new_cluster(
        brokers=3,
        config={
            "transaction.state.log.num.partitions": "5",
            "offsets.topic.num.partitions": "5",
            "zookeeper.session.timeout.ms": "2000",
        },
        zookeeper_options=("--tick-time", "500"),
    )
    source, sink = topic, f"{topic}-out"
    create_topic(cluster.bootstrap, source, 3)
    create_topic(cluster.bootstrap, sink, 2)
    worker = Worker(cluster.bootstrap, source, sink)
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    feeder = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    chance = random.Random(3)
    try:
        for number in range(RECORDS):
            feeder.produce(source, b"%d" % number, partition=number % 3)
            feeder.poll(0)
            if number in (RECORDS // 4, RECORDS // 2, 3 * RECORDS // 4):
                victim = chance.choice(list(cluster.broker_ids))
                cluster.kill(victim)
                time.sleep(chance.uniform(0.5, 2.0))
                cluster.start_broker(victim)
        assert feeder.flush(60) == 0
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found := values(read_all(cluster.bootstrap, sink))) < RECORDS:
            assert time.monotonic() < deadline_s, (len(found), worker.failures)
    finally:
        worker.is_done.set()
        thread.join(60)
    assert sorted(map(int, found)) == list(range(RECORDS))
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
