"""One broker beside Apache Kafka 3.9.1: throughput, CPU per GB, latency, start, memory. Client: librdkafka, the same for both.

Rounds are interleaved: ours, Kafka's, ours, … on topics of their own; the table shows medians. Kafka is warmed up first.
"""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.config.properties import format_properties
from barnabas.cli.local_cluster import LocalCluster
from bench import as_installed
from bench.kafka import ApacheKafka, cpu_seconds, resident_mb
from bench.limits import machine_limits
from bench.memory import touched_memory
from bench.report import Row, announce, write_report


@dataclass(frozen=True)
class Target:
    """One of the two systems that are compared."""

    name: str
    bootstrap: str
    pids: list[int]
    #: The settings that its listener requires of clients, with librdkafka's names.
    security: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **self.security}


@dataclass(frozen=True)
class Load:
    name: str
    size_bytes: int
    count: int
    acks: str
    codec: str = "none"


LOADS = (
    Load("1 KB, acks=1", 1000, 1_000_000, "1"),
    Load("100 B, acks=all", 100, 1_000_000, "all"),
    Load("10 KB, acks=all", 10_000, 150_000, "all"),
    Load("1 KB, lz4", 1000, 1_000_000, "1", "lz4"),
)


def create_topic(target: Target, topic: str, *, partitions: int = 1, replicas: int = 1) -> None:
    admin = AdminClient(target.settings)
    deadline = time.monotonic() + 60
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)
            break
        except KafkaException:
            # A broker whose port has just opened may not have a controller yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values()):
            return
        time.sleep(0.05)
    raise TimeoutError(f"topic {topic} has no leaders")


def payload(size_bytes: int) -> bytes:
    """Return half random bytes and half constant ones, which compress like real records."""
    return os.urandom(size_bytes // 2) + b"x" * (size_bytes - size_bytes // 2)


def measure_produce(target: Target, topic: str, load: Load) -> dict[str, float]:
    producer = Producer(
        {
            **target.settings,
            "acks": load.acks,
            "compression.type": load.codec,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    values = [payload(load.size_bytes) for _ in range(64)]
    failed: list[Any] = []
    cpu, began = cpu_seconds(target.pids), time.monotonic()
    for number in range(load.count):
        while True:
            try:
                producer.produce(topic, values[number & 63], partition=0, on_delivery=_note(failed))
                break
            except BufferError:
                producer.poll(0.01)
        if number & 0x3FFF == 0:
            producer.poll(0)
    producer.flush()
    took, used = time.monotonic() - began, cpu_seconds(target.pids) - cpu
    assert not failed, failed[0]
    gigabytes = load.count * load.size_bytes / 1e9
    return {"MB/s": gigabytes * 1000 / took, "CPU s/GB": used / gigabytes}


def _note(failed: list[Any]) -> Callable[[Any, Any], None]:
    return lambda error, message: failed.append(error) if error else None


def measure_consume(target: Target, topic: str, load: Load) -> dict[str, float]:
    consumer = Consumer(
        {
            **target.settings,
            "group.id": f"bench-{topic}",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    cpu, began, got = cpu_seconds(target.pids), time.monotonic(), 0
    while got < load.count:
        got += len(consumer.consume(10_000, 1.0))
    took, used = time.monotonic() - began, cpu_seconds(target.pids) - cpu
    consumer.close()
    gigabytes = load.count * load.size_bytes / 1e9
    return {"MB/s": gigabytes * 1000 / took, "CPU s/GB": used / gigabytes}


def measure_latency(target: Target, topic: str, *, per_second: int = 500, seconds: float = 5.0) -> dict[str, float]:
    """Measure produce-to-ack and end-to-end latency at a steady rate, with one waiting consumer."""
    acked: list[float] = []
    seen: list[float] = []
    producer = Producer({**target.settings, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {**target.settings, "group.id": f"latency-{topic}", "fetch.wait.max.ms": 500,
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    total = int(per_second * seconds)
    began = time.monotonic()
    sent = 0
    while len(seen) < total and time.monotonic() - began < seconds * 4 + 10:
        now = time.monotonic()
        while sent < total and now >= began + sent / per_second:
            at = time.monotonic()
            producer.produce(
                topic, repr(at), partition=0, on_delivery=lambda e, m, at=at: acked.append(time.monotonic() - at)
            )
            sent += 1
        producer.poll(0)
        message = consumer.poll(0.0005)
        if message is not None and not message.error():
            seen.append(time.monotonic() - float(message.value()))
    producer.flush(10)
    consumer.close()
    warm = slice(int(total * 0.1), None)
    return {
        **{f"ack {name}": value for name, value in _quantiles(acked[warm]).items()},
        **{f"end-to-end {name}": value for name, value in _quantiles(seen[warm]).items()},
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {name: ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)] for name, q in
          (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))}  # fmt: skip
    return {f"{name} ms": value * 1000 for name, value in at.items()}


def one_round(target: Target, number: int) -> Iterator[tuple[str, float]]:
    for load in LOADS:
        topic = f"{load.name.replace(' ', '').replace(',', '-').replace('=', '')}-{number}"
        create_topic(target, topic)
        for name, value in measure_produce(target, topic, load).items():
            yield f"produce {load.name} {name}", value
        for name, value in measure_consume(target, topic, load).items():
            yield f"consume {load.name} {name}", value
    topic = f"latency-{number}"
    create_topic(target, topic)
    for name, value in measure_latency(target, topic).items():
        yield f"latency {name}", value


def run(rounds: int) -> None:
    announce("broker", rounds, round_s=48, setup_s=45)
    results: dict[str, dict[str, list[float]]] = {}
    limits = machine_limits()
    with ExitStack() as stack:
        stack.enter_context(touched_memory())
        began = time.monotonic()
        ours = stack.enter_context(LocalCluster(brokers=1))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        start_ours = [our_start_s(ours.zookeeper_connect, number, folder) for number in range(4)][1:]
        kafka = stack.enter_context(ApacheKafka(brokers=1))
        start_kafka = [kafka_start_s(kafka)]
        print(f"both are up after {time.monotonic() - began:.1f} s")
        targets = (
            Target("barnabas", ours.bootstrap, [ours.pid(1)]),
            Target("Apache Kafka", kafka.bootstrap, [kafka.pid(1)]),
        )
        for target in targets:
            _add(results, target, "resident MB, idle", resident_mb(target.pids))
        for name, _ in one_round(targets[1], -1):
            print(f"warm-up {name}", end="\r", flush=True)
        for number in range(rounds):
            for target in targets:
                for name, value in one_round(target, number):
                    _add(results, target, name, value)
                print(f"round {number + 1} of {rounds}: {target.name} done" + " " * 20)
        for target in targets:
            _add(results, target, "resident MB, loaded", resident_mb(target.pids))
    results["start s"] = {"barnabas": start_ours, "Apache Kafka": start_kafka}
    _, tcp, *_ = limits
    rows = [
        Row(
            name,
            statistics.median(by_target["barnabas"]),
            statistics.median(by_target["Apache Kafka"]),
            tcp.value if name.endswith(" MB/s") and "lz4" not in name else None,
        )
        for name, by_target in results.items()
    ]
    write_report("broker", "One broker, one partition, librdkafka", rows, rounds=rounds, raw=results, limits=limits)


def _add(results: dict[str, dict[str, list[float]]], target: Target, name: str, value: float) -> None:
    results.setdefault(name, {}).setdefault(target.name, []).append(value)


def our_start_s(zookeeper: str, number: int, folder: str) -> float:
    """Start a broker as a separate process, from exec to ready, without a warm launcher. The first start in `folder`
    compiles."""
    file = f"{folder}/broker.properties"
    settings = {"broker.id": "77", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": f"{folder}/data-{number}",
                "zookeeper.connect": f"{zookeeper}/start-{number}"}  # fmt: skip
    with open(file, "w") as out:
        out.write(format_properties(settings))
    command = [sys.executable, "-m", "barnabas.broker.process", file]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=as_installed(f"{folder}/bytecode")
    )
    assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
    took = time.monotonic() - began
    process.terminate()
    process.wait()
    process.stdout.close()
    return took


#: A new id for each start: a broker that is stopped right after its port opens may leave its znode until its session ends.
_new_broker_ids = itertools.count(77)


def kafka_start_s(kafka: ApacheKafka, brokers: int = 1) -> float:
    """Start Apache Kafka under the same conditions: additional brokers, all at once, from exec to open ports."""
    broker_ids = list(itertools.islice(_new_broker_ids, brokers))
    took = kafka.start_brokers(broker_ids)
    for broker_id in broker_ids:
        kafka.terminate(broker_id)
        del kafka.processes[f"broker-{broker_id}"], kafka.ports[broker_id]
    return took


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    run(parser.parse_args(arguments).rounds)


if __name__ == "__main__":
    main()
