"""Share groups beside Apache Kafka 4.3.0 in KRaft mode: consumers of one partition, and synchronous acknowledgements.

The members are librdkafka's share consumers, each on a thread of its own, the same for both systems. They read one partition,
which is filled before the clock starts, with Kafka's default limit of 2,000 records in flight. Rounds are interleaved; the
table shows medians. One broker each. Only the brokers' CPU time counts.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.interop.kraft import KraftCluster

from barnabas.cli.local_cluster import LocalCluster
from bench.broker import Target, create_topic
from bench.kafka import cpu_seconds, resident_mb
from bench.limits import machine_limits
from bench.report import Row, announce, write_report

CONSUMERS: Final = (1, 10, 50)
RECORD: Final = b"x" * 100
CONFIG: Final = {
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class Size:
    """How much one round reads and acknowledges."""

    records: int = 200_000
    acknowledgements: int = 300


def fill(target: Target, topic: str, count: int) -> None:
    create_topic(target, topic)
    producer = Producer({**target.settings, "linger.ms": 20, "queue.buffering.max.messages": 2 * count})
    for _ in range(count):
        producer.produce(topic, RECORD)
    assert producer.flush(TIMEOUT_S) == 0


def begin_at_the_start(target: Target, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient(target.settings)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def member(target: Target, group: str, topic: str) -> ShareConsumer:
    consumer = ShareConsumer({**target.settings, "group.id": group})
    consumer.subscribe([topic])
    return consumer


class Reading:
    """Members that read until they have so many records together."""

    def __init__(self, target: Target, group: str, topic: str, *, consumers: int, records: int) -> None:
        self._target = target
        self._group = group
        self._topic = topic
        self._records = records
        self._lock = threading.Lock()
        self._count = 0
        self.began_s = self.ended_s = self.began_cpu_s = self.ended_cpu_s = 0.0
        self._threads = [threading.Thread(target=self._read) for _ in range(consumers)]

    def run(self) -> tuple[float, float]:
        """Return records per second, and the brokers' CPU microseconds per record, from the first record to the last."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        if self._count < self._records:
            raise TimeoutError(f"{self._target.name}: {self._count} of {self._records} records arrived")
        cpu_s = self.ended_cpu_s - self.began_cpu_s
        return self._records / (self.ended_s - self.began_s), cpu_s / self._records * 1e6

    def _read(self) -> None:
        consumer = member(self._target, self._group, self._topic)
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._count < self._records and time.monotonic() < deadline_s:
            got = sum(1 for message in consumer.poll(0.5) if message.error() is None)
            if got:
                self._note(got)
        consumer.close()

    def _note(self, got: int) -> None:
        with self._lock:
            if not self._count:
                self.began_s, self.began_cpu_s = time.monotonic(), cpu_seconds(self._target.pids)
            self._count += got
            if self._count >= self._records and not self.ended_s:
                self.ended_s, self.ended_cpu_s = time.monotonic(), cpu_seconds(self._target.pids)


def acknowledge_latency_ms(target: Target, group: str, topic: str, count: int) -> float:
    """Measure synchronous commits, as an application sees them."""
    consumer = member(target, group, topic)
    took: list[float] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(took) < count and time.monotonic() < deadline_s:
        if consumer.poll(1.0):
            began_s = time.monotonic()
            consumer.commit_sync(30.0)
            took.append(time.monotonic() - began_s)
        elif took:
            break  # all records are acknowledged
    consumer.close()
    assert took, "no record arrived"
    return statistics.median(took[len(took) // 10 :]) * 1000


def one_round(target: Target, number: int, size: Size) -> Iterator[tuple[str, float]]:
    topic = f"share-{number}"
    fill(target, topic, size.records)
    for consumers in CONSUMERS:
        group = f"share-{number}-{consumers}"
        begin_at_the_start(target, group)
        reading = Reading(target, group, topic, consumers=consumers, records=size.records)
        per_s, cpu_us = reading.run()
        yield f"records/s, {consumers} consumers", per_s
        yield f"CPU us per record, {consumers} consumers", cpu_us
    group = f"share-{number}-latency"
    begin_at_the_start(target, group)
    yield "acknowledge p50 ms", acknowledge_latency_ms(target, group, topic, size.acknowledgements)
    yield "memory MB", resident_mb(target.pids)


def run(rounds: int, size: Size) -> None:
    announce("share", rounds, round_s=60, setup_s=60)
    limits = machine_limits()
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(LocalCluster(brokers=1, config=CONFIG))
        kafka = stack.enter_context(KraftCluster(config=CONFIG, heap="1g", is_short_lived=False))
        targets = (
            Target("barnabas", ours.bootstrap, [ours.pid(1)]),
            Target("Apache Kafka", kafka.bootstrap, kafka.pids),
        )
        for name, _ in one_round(targets[1], -1, size):
            print(f"warm-up {name}" + " " * 20, end="\r", flush=True)
        for number in range(rounds):
            for target in targets:
                for name, value in one_round(target, number, size):
                    results.setdefault(name, {}).setdefault(target.name, []).append(value)
                print(f"round {number + 1} of {rounds}: {target.name} done" + " " * 30, flush=True)
    rows = [
        Row(name, statistics.median(by_target["barnabas"]), statistics.median(by_target["Apache Kafka"]))
        for name, by_target in results.items()
    ]
    write_report(
        "share",
        "Share groups, one broker, one partition, beside Apache Kafka 4.3.0",
        rows,
        rounds=rounds,
        raw=results,
        limits=limits,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=Size.records, help="in each row and round")
    options = parser.parse_args(arguments)
    run(options.rounds, Size(records=options.records))


if __name__ == "__main__":
    main()
