"""Three brokers beside three of Apache Kafka 3.9.1 on the same cores: RF 3, acks=all; creation of 1,000 partitions; memory.

Only one of the two clusters runs at a time, since both want all cores; rounds alternate, and Kafka is warmed up in each.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from confluent_kafka.admin import AdminClient

from barnabas.cli.local_cluster import LocalCluster
from bench.broker import Load, Target, create_topic, measure_latency, measure_produce
from bench.kafka import ApacheKafka, resident_mb
from bench.limits import machine_limits
from bench.memory import touched_memory
from bench.report import Row, announce, write_report

LOAD = Load("1 KB", 1000, 150_000, "all")
WARM_UP = Load("1 KB", 1000, 60_000, "all")
PARTITIONS = 1000
CONFIG = {"min.insync.replicas": "2"}


def one_round(target: Target, number: int) -> Iterator[tuple[str, float]]:
    create_topic(target, f"warm-{number}", replicas=3)
    measure_produce(target, f"warm-{number}", WARM_UP)
    create_topic(target, f"load-{number}", replicas=3)
    for name, value in measure_produce(target, f"load-{number}", LOAD).items():
        yield f"produce RF 3 acks=all {name}", value
    # Warm up small requests separately: a JVM that has not seen them for a while takes seconds to answer.
    create_topic(target, f"warm-latency-{number}", replicas=3)
    measure_latency(target, f"warm-latency-{number}", seconds=6.0)
    create_topic(target, f"latency-{number}", replicas=3)
    for name, value in measure_latency(target, f"latency-{number}", seconds=3.0).items():
        yield f"latency RF 3 {name}", value
    began = time.monotonic()
    create_topic(target, f"many-{number}", partitions=PARTITIONS, replicas=3)
    yield f"create {PARTITIONS:,} partitions RF 3, s", time.monotonic() - began
    yield "resident MB, three loaded brokers", resident_mb(target.pids)


def wait_for_cluster(target: Target, brokers: int) -> None:
    """Wait until a client sees all brokers and a controller, which takes longer than an open port."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=10)
        if len(found.brokers) == brokers and found.controller_id >= 0:
            return
        time.sleep(0.2)
    raise TimeoutError(f"{target.name} has no controller, or too few brokers")


def ours() -> AbstractContextManager[LocalCluster]:
    return LocalCluster(brokers=3, config=CONFIG)


def kafka() -> AbstractContextManager[ApacheKafka]:
    return ApacheKafka(brokers=3, config=CONFIG, heap="512m")


def run(rounds: int) -> None:
    announce("cluster", rounds, round_s=68, setup_s=5)
    limits = machine_limits()
    results: dict[str, dict[str, list[float]]] = {}
    systems: tuple[tuple[str, Callable[[], AbstractContextManager[LocalCluster | ApacheKafka]]], ...] = (
        ("barnabas", ours),
        ("Apache Kafka", kafka),
    )
    for number in range(rounds):
        for name, start in systems:
            with touched_memory(), start() as cluster:
                target = Target(name, cluster.bootstrap, [cluster.pid(broker) for broker in (1, 2, 3)])
                wait_for_cluster(target, 3)
                for measure, value in one_round(target, number):
                    results.setdefault(measure, {}).setdefault(name, []).append(value)
            print(f"round {number + 1} of {rounds}: {name} done")
    _, tcp, *_ = limits
    rows = [
        Row(
            name,
            statistics.median(by_system["barnabas"]),
            statistics.median(by_system["Apache Kafka"]),
            # Every byte crosses the loopback three times: from the client, and to two followers.
            tcp.value / 3 if name.endswith(" MB/s") else None,
        )
        for name, by_system in results.items()
    ]
    title = "Three brokers on the same cores, RF 3, acks=all"
    write_report("cluster", title, rows, rounds=rounds, raw=results, limits=limits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    run(parser.parse_args(arguments).rounds)


if __name__ == "__main__":
    main()
