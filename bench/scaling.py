"""The cost of a message with many partitions, beside Apache Kafka 3.9.1: `python -m bench scaling [-- PARTITIONS…]`.

Three brokers, RF 3, acks=all, 100 messages a second over N partitions, one after the other. For each N it measures the brokers'
CPU per message (minus their CPU when idle), the time from produce to acknowledgement, and their CPU when idle. In a round a
cluster grows from the smallest N to the largest, first ours, then Kafka's, which gets at most `--kafka-most` partitions: it
takes a minute to create 4,000.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster, wait_until
from bench.broker import Target
from bench.cluster import wait_for_cluster
from bench.kafka import ApacheKafka, cpu_seconds
from bench.limits import Limit, machine_limits
from bench.report import Curve, Panel, announce, limits_text, write_panels

RESULTS = Path(__file__).parent / "results"
PER_SECOND = 100
#: New logs write their leader epochs and checkpoints within two runs of the tasks that brokers repeat every five seconds.
SETTLED_S = 12.0
#: Two more of these runs.
IDLE_S = 10.0
CONFIG = {"default.replication.factor": "3", "min.insync.replicas": "2", "offsets.topic.replication.factor": "3"}


@dataclass(frozen=True)
class Point:
    system: str
    partitions: int
    #: CPU milliseconds of the three brokers per message, minus their CPU when idle.
    cpu_ms: float
    ack_p50_ms: float
    ack_p99_ms: float
    #: CPU of the three idle brokers together, in % of a core.
    idle_percent: float


def create(target: Target, topic: str, partitions: int) -> None:
    admin = AdminClient(target.settings)
    for made in admin.create_topics([NewTopic(topic, partitions, 3)], request_timeout=120).values():
        made.result()

    def is_in_sync() -> bool:
        found = admin.list_topics(topic, timeout=60).topics[topic].partitions
        return len(found) == partitions and all(len(each.isrs) == 3 for each in found.values())

    wait_until(is_in_sync, timeout_s=120, what="every replica of every partition in sync")


def write(target: Target, topic: str, partitions: int, seconds: float) -> list[float]:
    """Write at a steady rate, one partition after the other; return the time to each acknowledgement."""
    took: list[float] = []
    failed: list[KafkaError] = []
    producer = Producer({**target.settings, "acks": "all", "linger.ms": 0})

    def on_delivery(sent_s: float) -> Callable[[KafkaError | None, Message], None]:
        def on_acknowledged(error: KafkaError | None, _: Message) -> None:
            took.append(time.monotonic() - sent_s)
            if error is not None:
                failed.append(error)

        return on_acknowledged

    began_s = time.monotonic()
    for number, partition in zip(range(int(PER_SECOND * seconds)), itertools.cycle(range(partitions)), strict=False):
        while (left_s := began_s + number / PER_SECOND - time.monotonic()) > 0:
            producer.poll(left_s)
        producer.produce(topic, b"x" * 100, partition=partition, on_delivery=on_delivery(time.monotonic()))
    producer.flush(60)
    if failed:
        raise RuntimeError(f"{len(failed)} messages were not acknowledged, the first: {failed[0]}")
    return took


def measure(target: Target, partitions: int, seconds: float) -> Point:
    topic = f"spread-{partitions}"
    create(target, topic, partitions)
    write(target, topic, partitions, seconds / 2)  # warm: connections, the producer's metadata
    time.sleep(SETTLED_S)
    idle = cpu_per_second(target, IDLE_S)
    cpu_s, began_s = cpu_seconds(target.pids), time.monotonic()
    took = sorted(write(target, topic, partitions, seconds))
    used_s = cpu_seconds(target.pids) - cpu_s - idle * (time.monotonic() - began_s)
    return Point(
        target.name,
        partitions,
        used_s / len(took) * 1000,
        took[len(took) // 2] * 1000,
        took[int(len(took) * 0.99)] * 1000,
        idle * 100,
    )


def cpu_per_second(target: Target, seconds: float) -> float:
    before = cpu_seconds(target.pids)
    time.sleep(seconds)
    return (cpu_seconds(target.pids) - before) / seconds


def ours() -> AbstractContextManager[LocalCluster]:
    return LocalCluster(brokers=3, config=CONFIG)


def kafka() -> AbstractContextManager[ApacheKafka]:
    return ApacheKafka(brokers=3, config=CONFIG, heap="512m")


def write_curves(points: list[Point], rounds: int, limits: Sequence[Limit]) -> None:
    """`bench/results/scaling.{txt,json,svg}`"""
    title = f"A message's cost by partitions (3 brokers, RF 3, acks=all, {PER_SECOND}/s; median of {rounds})"
    lines = [
        title,
        "",
        f"{'system':14} {'partitions':>10} {'CPU ms/msg':>11} {'ack p50 ms':>11} {'ack p99 ms':>11} {'idle CPU %':>11}",
    ]
    lines += [
        f"{each.system:14} {each.partitions:>10,} {each.cpu_ms:>11.2f} {each.ack_p50_ms:>11.2f} {each.ack_p99_ms:>11.2f} "
        f"{each.idle_percent:>11.2f}"
        for each in points
    ]
    text = "\n".join(lines) + limits_text(limits)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "scaling.txt").write_text(text + "\n")
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    data = {"title": title, "machine": machine, "rounds": rounds, "points": [asdict(each) for each in points]}
    data["limits"] = [asdict(each) for each in limits]
    (RESULTS / "scaling.json").write_text(json.dumps(data, indent=1) + "\n")
    systems = list(dict.fromkeys(each.system for each in points))

    def curves(field: str) -> list[Curve]:
        return [
            Curve(system, [(each.partitions, getattr(each, field)) for each in points if each.system == system])
            for system in systems
        ]

    write_panels(
        "scaling",
        title,
        [
            Panel("CPU of the brokers, ms a message", curves("cpu_ms")),
            Panel("produce to acknowledgement, p50 ms", curves("ack_p50_ms")),
            Panel("CPU when idle, % of a core", curves("idle_percent")),
        ],
        limits,
    )


def median(points: list[Point]) -> Point:
    def of(field: str) -> float:
        return statistics.median(getattr(each, field) for each in points)

    first = points[0]
    return Point(first.system, first.partitions, of("cpu_ms"), of("ack_p50_ms"), of("ack_p99_ms"), of("idle_percent"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench scaling --", description=__doc__)
    parser.add_argument("partitions", type=int, nargs="*", default=[10, 1000, 4000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="for each measurement")
    parser.add_argument("--kafka-most", type=int, default=1000, help="partitions of Apache Kafka; 0: without it")
    options = parser.parse_args(arguments)
    counts = sorted(options.partitions)
    systems: list[tuple[str, Callable[[], AbstractContextManager[LocalCluster | ApacheKafka]], list[int]]] = [
        ("barnabas", ours, counts),
        ("Apache Kafka", kafka, [each for each in counts if each <= options.kafka_most]),
    ]
    each_s = 2.5 * options.seconds + 1
    ours_s = each_s * len(counts) + sum(counts) / 270 + 3
    theirs_s = each_s * len(systems[1][2]) + sum(systems[1][2]) / 70 + 12
    announce("scaling", options.rounds, round_s=ours_s + theirs_s, setup_s=5)
    found: dict[tuple[str, int], list[Point]] = {}
    for _, (name, start, wanted) in itertools.product(range(options.rounds), systems):
        if not wanted:
            continue
        with start() as cluster:
            target = Target(name, cluster.bootstrap, [cluster.pid(broker) for broker in (1, 2, 3)])
            wait_for_cluster(target, 3)
            for partitions in wanted:
                point = measure(target, partitions, options.seconds)
                print(point, flush=True)
                found.setdefault((name, partitions), []).append(point)
    write_curves([median(points) for points in found.values()], options.rounds, machine_limits())


if __name__ == "__main__":
    main()
