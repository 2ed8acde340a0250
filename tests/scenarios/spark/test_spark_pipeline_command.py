"""`barnabas pipeline` as a user runs it: a project is created, runs, is killed, goes on, is stopped and shows its status."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.cli import _needs
from barnabas.cli.main import app
from barnabas.testing import Kafka
from tests.support.command_line import CliRunner


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pipeline", *map(str, arguments)])
    return result.exit_code, result.output


@contextmanager
def started(project: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the project continuously in another process."""
    program = str(Path(sys.executable).parent / "barnabas")
    arguments = ["pipeline", "run", str(project), "--continuous", "--json", "--master", "local[2]"]
    with open(project / "stderr", "w") as errors:
        process = subprocess.Popen(
            [program, *arguments, "--trigger-interval-ms", "100"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def read_until(lines: IO[str] | None, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Read events until one is as wanted. Raise when the process ends, because no more events can come."""
    assert lines is not None
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if wanted(json.loads(line)):
            return
    raise AssertionError("".join(seen[-10:]))


def numbers_in(kafka: Kafka, topic: str) -> list[int]:
    """Return the committed orders of the topic."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, part, 0) for part in range(3)])
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=60)[1] for part in range(3)]
    found: list[int] = []
    while any(end > 0 and place.offset < end for place, end in zip(_places(consumer, topic), ends, strict=True)):
        found += [json.loads(each.value())["number"] for each in consumer.consume(500, 0.2) if not each.error()]
    consumer.close()
    return sorted(found)


def _places(consumer: Consumer, topic: str) -> list[TopicPartition]:
    return consumer.position([TopicPartition(topic, part) for part in range(3)])


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_project_goes_on_after_a_kill_and_ends_on_sigterm(kafka: Kafka, tmp_path: Path) -> None:
    project = tmp_path / kafka.name("shop")
    code, output = invoke("init", project, "--bootstrap-server", kafka.bootstrap)
    assert code == 0 and "barnabas pipeline run" in output
    assert invoke("status", project)[1].startswith("error: ") and "has not run yet" in invoke("status", project)[1]

    def received(event: dict[str, Any]) -> bool:
        return event["event"] == "progress" and event["flow"] == "received" and event["rows"] > 0

    with started(project) as process:
        read_until(process.stdout, received)
        assert "is running already" in invoke("run", project)[1]
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    code, output = invoke("status", project)
    assert code == 0 and "KILLED" in output

    with started(project) as process:
        read_until(process.stdout, received)
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0, (project / "stderr").read_text()[-2000:]
    code, output = invoke("status", project, "--json")
    document = json.loads(output)
    assert (code, document["state"]) == (0, "STOPPED")
    # COMPLETED: the signal came while the run still caught up, which it does to the end.
    assert document["flows"]["publish"]["state"] in ("STOPPED", "COMPLETED")
    [group] = document["groups"]
    assert group["group"].startswith(project.name) and group["lag"] is not None

    numbers = numbers_in(kafka, f"{project.name}-orders")
    assert numbers == list(range(1, len(numbers) + 1)), "each order is in the topic once"


def test_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "init needs the folder" in invoke("init")[1]
    assert "barnabas pipeline init" in invoke("run", tmp_path)[1]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "apt-get install openjdk-17-jre-headless" in invoke("run", tmp_path)[1]
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    assert '"11.0.2". Spark needs Java 17' in invoke("validate", tmp_path)[1]
    monkeypatch.setattr(_needs.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'barnabas[spark]'" in invoke("run", tmp_path)[1]
