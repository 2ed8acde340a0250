"""Recovery after kill -9, beside Apache Kafka 3.9.1: `python -m bench recovery [-- --gigabytes 4] [--partitions 4000]`.

One broker with a few large logs, and one with thousands of small ones. In each round it is killed, and its recovery points are
deleted, so that nothing counts as flushed and every byte is checked again. The clock then runs from exec until a client sees a
leader for every partition. Kafka is started after the session of the killed broker has ended, because before that it refuses to
start. Both recover with two threads. Ours is forked by the launcher of `up` and of tests, Kafka is a new JVM. The data is in
memory if the machine has enough of it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import psutil
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from barnabas.cli.local_cluster import LocalCluster
from bench.broker import Load, Target, create_topic, measure_produce
from bench.kafka import ApacheKafka
from bench.limits import Limit, file_read, fsync
from bench.report import Row, announce, write_report

CONFIG = {"num.recovery.threads.per.data.dir": "2", "log.segment.bytes": str(256 << 20)}
LARGE_LOGS = 4
VALUE_BYTES = 10_000
#: Longer than the session of Kafka's killed broker, 6 s.
SESSION_ENDS_S = 7.5
CHECKPOINTS = ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown")
TIMEOUT_S = 600.0


System = LocalCluster | ApacheKafka


def wait_for_leaders(bootstrap: str, partitions: int) -> None:
    """Wait until Metadata names a leader for this many partitions."""
    deadline = time.monotonic() + TIMEOUT_S
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while time.monotonic() < deadline:
        try:
            topics = admin.list_topics(timeout=5).topics.values()
        except KafkaException:
            continue
        led = [each for topic in topics for each in topic.partitions.values() if each.leader >= 0]
        if len(led) >= partitions:
            return
        time.sleep(0.01)
    raise TimeoutError(f"{partitions} partitions have no leader")


def recover(broker: System, start: Callable[[], object], partitions: int, *, wait_s: float) -> tuple[float, float]:
    """Return the seconds until every partition has a leader again, and the CPU seconds of the process until then."""
    broker.kill(1)
    for checkpoint in CHECKPOINTS:
        (broker.log_dir(1) / checkpoint).unlink(missing_ok=True)
    time.sleep(wait_s)
    began_s = time.monotonic()
    start()
    wait_for_leaders(broker.bootstrap, partitions)
    took_s = time.monotonic() - began_s
    # CPU time of the whole process: the recovery threads have ended, so their own times are gone.
    used = psutil.Process(broker.pid(1)).cpu_times()
    return took_s, used.user + used.system


def fill_large(target: Target, gigabytes: float) -> None:
    for number in range(LARGE_LOGS):
        create_topic(target, f"large-{number}")
        count = int(gigabytes * 1e9 / LARGE_LOGS / VALUE_BYTES)
        measure_produce(target, f"large-{number}", Load("", VALUE_BYTES, count, "1"))


def fill_small(target: Target, partitions: int) -> None:
    create_topic(target, "small", partitions=partitions)
    producer = Producer({**target.settings, "linger.ms": 100, "acks": "1"})
    for partition in range(partitions):
        producer.produce("small", bytes(1000), partition=partition)
        producer.poll(0)
    producer.flush(120)


Found = dict[str, dict[str, list[float]]]


def run_one(found: Found, label: str, fill: Callable[[Target], None], partitions: int, rounds: int) -> Limit:
    """Measure one kind of log on both systems, and how fast the machine reads its largest segment."""
    with ExitStack() as stack:
        ours = stack.enter_context(LocalCluster(brokers=1, config=CONFIG))
        kafka = stack.enter_context(ApacheKafka(brokers=1, config=CONFIG))
        for target in (Target("barnabas", ours.bootstrap, []), Target("Apache Kafka", kafka.bootstrap, [])):
            fill(target)
        print(f"{label}: both are filled", flush=True)

        def start_ours() -> None:
            ours.start_broker(1)

        def start_kafka() -> None:
            kafka.start_brokers([1], TIMEOUT_S)

        for number in range(rounds):
            both: tuple[tuple[str, System, Callable[[], None], float], ...] = (
                ("barnabas", ours, start_ours, 0.0),
                ("Apache Kafka", kafka, start_kafka, SESSION_ENDS_S),
            )
            for name, broker, start, wait_s in both:
                took_s, cpu_s = recover(broker, start, partitions, wait_s=wait_s)
                found.setdefault(f"{label}, s", {}).setdefault(name, []).append(took_s)
                found.setdefault(f"{label}, CPU s", {}).setdefault(name, []).append(cpu_s)
            print(f"{label}: round {number + 1} of {rounds} done", flush=True)
        return file_read(max(ours.log_dir(1).glob("*/0*.log"), key=lambda each: each.stat().st_size))


def run(rounds: int, gigabytes: float, partitions: int) -> None:
    announce("recovery", rounds, round_s=30 + 2.5 * gigabytes + partitions / 400, setup_s=40 + 8 * gigabytes)
    found: Found = {}
    large, small = f"{gigabytes:g} GB in {LARGE_LOGS} logs", f"{partitions:,} partitions of 1 KB"
    read = run_one(found, large, lambda target: fill_large(target, gigabytes), LARGE_LOGS, rounds)
    run_one(found, small, lambda target: fill_small(target, partitions), partitions, rounds)
    floor_s = gigabytes * 1000 / read.value
    rows = [
        Row(
            name,
            statistics.median(by_system["barnabas"]),
            statistics.median(by_system["Apache Kafka"]),
            floor_s if name.startswith(large) else None,
        )
        for name, by_system in found.items()
    ]
    write_report("recovery", "Start after kill -9", rows, rounds=rounds, raw=found, limits=[read, fsync()])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="in large logs, for each of the two systems")
    parser.add_argument("--partitions", type=int, default=4000, help="small ones")
    options = parser.parse_args(arguments)
    run(options.rounds, options.gigabytes, options.partitions)


if __name__ == "__main__":
    main()
