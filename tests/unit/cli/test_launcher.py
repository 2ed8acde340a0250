"""The launcher while it is still importing."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.fork_server import ForkServer
from barnabas.cli.launcher import Launcher


class Noting(Launcher):
    """Starts nothing, and records what it would have started."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        super().__init__(commands_fd, events_fd)
        self.started: list[str] = []

    def _start(self, command: dict[str, Any]) -> None:
        self.started.append(command["kind"])


@pytest.fixture
def commands() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def send(writer: int, *kinds: str) -> None:
    for kind in kinds:
        os.write(writer, json.dumps({"start": kind, "kind": kind, "arguments": []}).encode() + b"\n")


def test_zookeeper_starts_between_imports_and_brokers_after_the_last(commands: tuple[int, int]) -> None:
    reader, writer = commands
    running = Noting(reader, writer)
    seen: list[list[str]] = []

    def first() -> None:
        seen.append(list(running.started))
        send(writer, "broker", "zookeeper", "broker")

    assert running.prepare([first, lambda: seen.append(list(running.started))])
    assert seen == [[], ["zookeeper"]]
    assert running.started == ["zookeeper", "broker", "broker"]


def test_launcher_whose_parent_ends_during_its_imports_ends_at_once(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    (tmp_path / "data").mkdir()
    os.write(writer, json.dumps({"remove": str(tmp_path / "data")}).encode() + b"\n")
    running = Noting(reader, writer)
    done: list[str] = []
    steps = [lambda: done.append("first"), lambda: os.close(writer), lambda: done.append("last")]
    assert not running.prepare(steps)
    assert done == ["first"]
    assert not (tmp_path / "data").exists()
    os.close(reader)


def test_exit_does_not_wait_for_an_unused_launcher() -> None:
    server = ForkServer()
    server.close()
    assert server._process.returncode == -signal.SIGKILL
    assert server.ended
