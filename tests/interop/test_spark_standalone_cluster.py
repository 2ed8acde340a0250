"""A Spark standalone cluster, a master and two workers as processes, runs a project unchanged."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until

SPARK_HOME = Path(pyspark.__file__).parent


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    program = str(SPARK_HOME / "bin" / "spark-class")
    url = f"spark://127.0.0.1:{port}"
    address = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [["org.apache.spark.deploy.master.Master", *address, "--port", str(port)]]
    for number in (1, 2):
        work = tmp_path / f"worker-{number}"
        limits = ["--cores", "1", "--memory", "600m", "--work-dir", str(work)]
        commands.append(["org.apache.spark.deploy.worker.Worker", *address, *limits, url])
    logs = [tmp_path / f"spark-{number}.log" for number in range(len(commands))]
    with ExitStack() as stack:
        processes = []
        for command, log in zip(commands, logs, strict=True):
            output = stack.enter_context(open(log, "wb"))
            process = subprocess.Popen([program, *command], env=environment, stdout=output, stderr=output)
            processes.append(process)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            if len(processes) == 1:
                wait_until(lambda: answers(port), timeout_s=60)
        wait_until(lambda: logs[0].read_text().count("Registering worker") == 2, timeout_s=60)
        yield url


def test_project_runs_unchanged_on_a_master_and_two_workers(
    master: str, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    program = [str(Path(sys.executable).parent / "barnabas"), "pipeline"]
    project = tmp_path / topic
    subprocess.run([*program, "init", str(project), "--bootstrap-server", cluster.bootstrap], check=True)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("configuration:\n", 'configuration:\n  spark.executor.memory: "512m"\n'))
    for _ in range(2):
        done = subprocess.run(
            [*program, "run", str(project), "--json", "--master", master],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "run" and events[-1]["state"] == "COMPLETED"
    assert {each.parent.parent.name for each in tmp_path.glob("worker-*/app-*/*")} == {"worker-1", "worker-2"}

    received = sum(each["rows"] for each in events if each["event"] == "progress" and each["flow"] == "received")
    numbers = numbers_in(cluster.bootstrap, f"{topic}-orders")
    assert received > 0
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each order is there once, through both runs"


def numbers_in(bootstrap: str, topic: str) -> list[int]:
    """The orders of the topic that are committed, of all three partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    parts = [TopicPartition(topic, part, 0) for part in range(3)]
    consumer.assign(parts)
    ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
    found: list[int] = []
    while any(end > 0 and place.offset < end for place, end in zip(consumer.position(parts), ends, strict=True)):
        found += [json.loads(each.value())["number"] for each in consumer.consume(500, 0.2) if not each.error()]
    consumer.close()
    return found
