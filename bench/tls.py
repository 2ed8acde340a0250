"""One broker beside Apache Kafka 3.9.1, both on TLS listeners with one certificate: throughput and CPU per GB.

Client: librdkafka, the same for both. Rounds are interleaved on topics of their own; the table shows medians. Kafka is warmed
up first. The certificate is an EC P-256 one, and both agree on TLS 1.3 with AES-256-GCM.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.auth.authority import LocalAuthority
from barnabas.cli.local_cluster import LocalCluster
from bench.kafka import ApacheKafka, cpu_seconds, free_port
from bench.report import Row, write_report


@dataclass(frozen=True)
class Target:
    """One of the two systems under test."""

    name: str
    pids: list[int]
    #: librdkafka's.
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Load:
    name: str
    size_bytes: int
    count: int
    acks: str


LOADS = (
    Load("1 KB, acks=1", 1000, 300_000, "1"),
    Load("10 KB, acks=all", 10_000, 40_000, "all"),
)


def broker_settings(folder: Path, port: int) -> dict[str, str]:
    """Kafka's and ours: the same words."""
    return {
        "listeners": f"SSL://127.0.0.1:{port}",
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }


def measure_produce(target: Target, topic: str, load: Load) -> dict[str, float]:
    producer = Producer(
        {
            **target.settings,
            "acks": load.acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    values = [os.urandom(load.size_bytes) for _ in range(64)]
    failed: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error:
            failed.append(error)

    cpu, began = cpu_seconds(target.pids), time.monotonic()
    for number in range(load.count):
        while True:
            try:
                producer.produce(topic, values[number & 63], partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number & 0x3FFF == 0:
            producer.poll(0)
    producer.flush()
    took, used = time.monotonic() - began, cpu_seconds(target.pids) - cpu
    assert not failed, failed[0]
    return _rates(load, took, used)


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
    return _rates(load, took, used)


def _rates(load: Load, took_s: float, cpu_s: float) -> dict[str, float]:
    gigabytes = load.count * load.size_bytes / 1e9
    return {"MB/s": gigabytes * 1000 / took_s, "CPU s/GB": cpu_s / gigabytes}


def _create(admin: AdminClient, topic: str) -> None:
    """A broker that has just opened its port may not have a controller yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=10, request_timeout=10)[topic].result(15)
            return
        except (KafkaException, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def one_round(target: Target, number: int, loads: tuple[Load, ...]) -> Iterator[tuple[str, float]]:
    admin = AdminClient(dict(target.settings))
    for load in loads:
        topic = f"{load.name.replace(' ', '').replace(',', '-').replace('=', '')}-{number}"
        _create(admin, topic)
        for name, value in measure_produce(target, topic, load).items():
            yield f"TLS produce {load.name} {name}", value
        for name, value in measure_consume(target, topic, load).items():
            yield f"TLS consume {load.name} {name}", value


def run(rounds: int, share: float) -> None:
    """`share` of the records of each load: for a short look."""
    loads = tuple(Load(each.name, each.size_bytes, int(each.count * share), each.acks) for each in LOADS)
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = LocalAuthority.create("bench")
        (folder / "ca.pem").write_text(authority.certificate_pem)
        (folder / "broker.pem").write_text(authority.issue("broker", ["localhost", "127.0.0.1"]))
        port = free_port()
        ours = stack.enter_context(LocalCluster(brokers=1, config=broker_settings(folder, 0)))
        kafka = stack.enter_context(ApacheKafka(brokers=1, config=broker_settings(folder, port), ports={1: port}))
        client = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem"), "log_level": "0"}
        targets = (
            Target("barnabas", [ours.pid(1)], {"bootstrap.servers": ours.bootstrap, **client}),
            Target("Apache Kafka", [kafka.pid(1)], {"bootstrap.servers": f"127.0.0.1:{port}", **client}),
        )
        for name, _ in one_round(targets[1], -1, loads):
            print(f"warm-up {name}", end="\r", flush=True)
        for number in range(rounds):
            for target in targets:
                for name, value in one_round(target, number, loads):
                    results.setdefault(name, {}).setdefault(target.name, []).append(value)
                print(f"round {number + 1} of {rounds}: {target.name} done" + " " * 20)
    rows = [
        Row(name, statistics.median(by_target["barnabas"]), statistics.median(by_target["Apache Kafka"]))
        for name, by_target in results.items()
    ]
    if share < 1:
        for row in rows:
            print(row)
        return
    write_report("tls", "One broker, one partition, TLS 1.3, librdkafka", rows, rounds=rounds, raw=results)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="Part of the records; below 1 nothing is written.")
    chosen = parser.parse_args(arguments)
    run(chosen.rounds, chosen.share)


if __name__ == "__main__":
    main()
