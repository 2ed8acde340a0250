"""`barnabas host`: several brokers from one file, kept running, restarted in turn, stopped together."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster, wait_until

TIMEOUT_S = 90


@dataclass
class Host:
    process: "subprocess.Popen[str]"
    log: Path
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return self.fields["listeners"].replace("PLAINTEXT://", "")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.fields['metrics']}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def pids(self) -> dict[int, int]:
        """By broker."""
        found: dict[int, int] = {}
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                found |= {int(each[10:]): int(pid) for each in arguments if each.startswith("broker.id=")}
        return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    with LocalCluster(brokers=0) as cluster:
        file = folder / "server.properties"
        file.write_text(
            f"broker.id=5\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={folder}/data\n"
            f"zookeeper.connect={cluster.zookeeper_connect}\nbarnabas.metrics.port=0\n"
            "offsets.topic.replication.factor=2\ngroup.initial.rebalance.delay.ms=0\nmin.insync.replicas=1\n"
        )
        log = folder / "host.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "barnabas", "host", str(file), "--brokers", "2"],
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**os.environ, "BARNABAS_PARENT_DEATH_SIGNAL": "1"},
            )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("ready host brokers=5,6 "), log.read_text()
            yield Host(process, log, dict(part.split("=", 1) for part in line.split()[2:]))
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0, log.read_text()
            process.stdout.close()


@pytest.fixture(scope="module")
def topic(host: Host) -> str:
    admin = AdminClient({"bootstrap.servers": host.bootstrap})
    admin.create_topics([NewTopic("orders", 4, 2)])["orders"].result(TIMEOUT_S)
    return "orders"


def write(host: Host, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": host.bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(TIMEOUT_S) == 0


def test_brokers_of_a_host_are_one_cluster_with_the_hosts_name_for_a_rack(host: Host) -> None:
    topic = f"read-{uuid4()}"  # others write to the one they share
    admin = AdminClient({"bootstrap.servers": host.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 2)])[topic].result(TIMEOUT_S)
    write(host, topic, 100)
    consumer = Consumer({"bootstrap.servers": host.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[str] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(got) < 100 and time.monotonic() < deadline_s:
        got += [each.value().decode() for each in consumer.consume(100, 0.5)]
    consumer.close()
    assert sorted(map(int, got)) == list(range(100))


def test_metrics_of_all_brokers_are_at_one_address(host: Host, topic: str) -> None:
    status, page = host.get("/metrics")
    assert status == 200
    assert 'barnabas_host_broker_up{broker="5"} 1\nbarnabas_host_broker_up{broker="6"} 1' in page
    assert 'kafka_server_replica_manager_partition_count{broker="6"}' in page
    assert page.count("# TYPE kafka_server_replica_manager_partition_count gauge") == 1
    assert json.loads(host.get("/ready")[1]) == {"status": "pass", "brokers": [5, 6]}


def test_broker_that_is_killed_comes_back(host: Host, topic: str) -> None:
    before = host.pids()
    os.kill(before[6], signal.SIGKILL)
    wait_until(lambda: host.pids().get(6) not in (None, before[6]), TIMEOUT_S)
    wait_until(lambda: host.get("/ready")[0] == 200, TIMEOUT_S)
    assert host.pids()[5] == before[5]
    assert "[broker 6] " in host.log.read_text()
    wait_until(lambda: host.get("/in-sync")[0] == 200, TIMEOUT_S)
    write(host, topic, 10)


def test_sighup_restarts_one_after_the_other(host: Host, topic: str) -> None:
    before = host.pids()
    restarted = host.log.read_text().count("all brokers were restarted")
    host.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: host.log.read_text().count("all brokers were restarted") > restarted,
        TIMEOUT_S * 2,
        what="the rolling restart",
    )
    after = host.pids()
    assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
    log = host.log.read_text()
    assert log.rindex("[broker 5] restarting") < log.rindex("[broker 6] restarting")
    write(host, topic, 10)


def test_wrong_settings_end_the_host_and_say_which_broker(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\nnum.io.threads=many\n")
    done = subprocess.run(
        [sys.executable, "-m", "barnabas", "host", str(file), "--brokers", "1"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert "num.io.threads" in done.stderr
    assert "error: broker 1 ended with status 1; its log says why" in done.stderr
