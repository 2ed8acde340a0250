"""A Spark standalone cluster, a master and two workers as processes, runs an unchanged project."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.spark_standalone import standalone


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with standalone(tmp_path, ["127.0.0.1", "127.0.0.1"]) as url:
        yield url


@pytest.mark.timeout(1500)  # two Sparks with two executors each, one after the other, on what may be a busy machine
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
            timeout=600,
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
    """Return the committed orders of all three partitions of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    parts = [TopicPartition(topic, part, 0) for part in range(3)]
    consumer.assign(parts)
    ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
    found: list[int] = []
    while any(end > 0 and place.offset < end for place, end in zip(consumer.position(parts), ends, strict=True)):
        found += [json.loads(each.value())["number"] for each in consumer.consume(500, 0.2) if not each.error()]
    consumer.close()
    return found
