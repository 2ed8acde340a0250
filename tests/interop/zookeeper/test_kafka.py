"""An Apache Kafka 3.9.1 broker on the embedded ZooKeeper."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.testing import wait_until
from tests.interop import maven
from tests.interop.zookeeper.zk_apache import free_port
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, connected

KAFKA = ("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-reload4j:1.7.36")


@contextmanager
def kafka(folder: Path, zookeeper: str, broker_id: int = 1) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = folder / "server.properties"
    config.write_text(
        f"broker.id={broker_id}\nlisteners=PLAINTEXT://127.0.0.1:{port}\nzookeeper.connect={zookeeper}\n"
        f"log.dirs={folder}/logs\noffsets.topic.replication.factor=1\nzookeeper.session.timeout.ms=6000\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n"
    )
    (folder / "log4j.properties").write_text("log4j.rootLogger=WARN, O\nlog4j.appender.O=org.apache.log4j.ConsoleAppender\n"
                                             "log4j.appender.O.layout=org.apache.log4j.PatternLayout\n")  # fmt: skip
    command = [
        "java",
        "-Xmx384m",
        f"-Dlog4j.configuration=file:{folder}/log4j.properties",
        "-cp",
        maven.classpath(*KAFKA),
    ]
    with (folder / "out.txt").open("wb") as out:
        process = subprocess.Popen([*command, "kafka.Kafka", str(config)], stdout=out, stderr=subprocess.STDOUT)
        try:
            yield f"127.0.0.1:{port}", process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


def test_broker_runs_on_ours_through_a_crash_of_the_coordinator(
    java: str, ours: ZooKeeperProcess, tmp_path: Path
) -> None:
    with connected(ours.address) as zk, kafka(tmp_path / "kafka", f"{ours.address}/kafka") as (bootstrap, process):
        wait_until(lambda: process.poll() is not None or zk.exists("/kafka/brokers/ids/1"), 90)
        assert process.poll() is None, (tmp_path / "kafka" / "out.txt").read_text()[-3000:]
        # librdkafka waits for ever for a controller that the broker's first answer does not name yet.
        wait_until(lambda: AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).controller_id == 1, 60)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        for number in range(100):
            producer.produce("t", b"%d" % number)
        assert producer.flush(30) == 0
        assert sorted(zk.get_children("/kafka/brokers/topics/t/partitions")) == ["0", "1", "2"]
        # The coordinator dies and comes back: the broker keeps its session, its registration, and goes on.
        owner = zk.get("/kafka/brokers/ids/1")[1].ephemeralOwner
        ours.kill()
        ours.start()
        wait_until(lambda: zk.connected)
        assert zk.retry(zk.get, "/kafka/brokers/ids/1")[1].ephemeralOwner == owner
        admin.create_topics([NewTopic("u", 1, 1)])["u"].result(60)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        values: set[bytes] = set()
        deadline = time.monotonic() + 60
        while len(values) < 100 and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.add(message.value())
        consumer.close()
        assert len(values) == 100
        process.terminate()
        assert process.wait(60) in (0, 143)
        assert zk.exists("/kafka/brokers/ids/1") is None, "a broker that leaves closes its session"
