"""The cost of a cluster in a test: `python -m bench.test_clusters`. `--apache` adds Apache Kafka alone (KRaft, one node; needs
`java` and Maven), which is the content of a testcontainers container without the container.

Each time is from nothing to a record that confluent-kafka has written and read, unless the line says otherwise.
"""

import argparse
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.cli.fork_server import end_fork_server
from barnabas.testing import Cluster

RUNS = 7
KAFKA = ("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-reload4j:1.7.36")


def write_and_read(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce("t", "x", partition=0)
    producer.flush(60)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", 0, 0)])
    while (message := consumer.poll(0.1)) is None or message.error():
        pass
    consumer.close()


def cluster(brokers: int) -> float:
    began_s = time.monotonic()
    with Cluster(brokers=brokers) as running:
        running.create_topic("t")
        write_and_read(running.bootstrap)
        return time.monotonic() - began_s


def first_cluster() -> float:
    end_fork_server()
    return cluster(1)


def only_start() -> float:
    began_s = time.monotonic()
    with Cluster(brokers=1):
        return time.monotonic() - began_s


def snapshot_and_restore(brokers: int) -> tuple[float, float]:
    with Cluster(brokers=brokers) as running:
        running.create_topic("t", partitions=3)
        running.produce("t", [str(number) for number in range(1_000)])
        began_s = time.monotonic()
        snapshot = running.snapshot()
        taken_s = time.monotonic()
        running.restore(snapshot)
        return taken_s - began_s, time.monotonic() - taken_s


def apache_kafka() -> float:
    from tests.interop import maven

    classpath = maven.classpath(*KAFKA)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, apache_server(classpath, Path(folder)) as bootstrap:
        write_and_read(bootstrap)
        return time.monotonic() - began_s


@contextmanager
def apache_server(classpath: str, folder: Path) -> Iterator[str]:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    file = folder / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}\n"
        f"controller.quorum.voters=1@127.0.0.1:{ports[1]}\nlog.dirs={folder}/data\n"
        "offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
    )
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]
    format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file)]
    subprocess.run(format_, check=True, capture_output=True)
    with subprocess.Popen(
        [*java, "kafka.Kafka", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        yield f"127.0.0.1:{ports[0]}"
        server.kill()


def report(what: str, measure: Callable[[], float], runs: int = RUNS) -> None:
    times_s = [measure() for _ in range(runs)]
    print(
        f"{what:48} {min(times_s) * 1000:7.0f} ms at best, median {statistics.median(times_s) * 1000:.0f}", flush=True
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apache", action="store_true")
    asked = parser.parse_args(arguments)
    report("first cluster of a process, one broker", first_cluster, 3)
    report("each one after it, until it is up", only_start)
    report("each one after it", lambda: cluster(1))
    report("three brokers", lambda: cluster(3))
    for brokers in (1, 3):
        pairs = [snapshot_and_restore(brokers) for _ in range(RUNS)]
        report(f"snapshot, {brokers} brokers", iter([pair[0] for pair in pairs]).__next__)
        report(f"restore, {brokers} brokers, until all are up", iter([pair[1] for pair in pairs]).__next__)
    if asked.apache:
        report("Apache Kafka 3.9.1 alone", apache_kafka, 3)


if __name__ == "__main__":
    main()
