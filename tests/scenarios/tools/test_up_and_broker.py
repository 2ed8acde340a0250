"""`barnabas up` and `barnabas broker`: start, report it, stop, and leave nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from barnabas.testing import wait_until

BARNABAS = [sys.executable, "-m", "barnabas"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BARNABAS, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Up:
    """A `barnabas up` that has reported that it is ready."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        self.temporary = temporary
        self.process = subprocess.Popen(
            [*BARNABAS, "up", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().strip()
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    @property
    def bootstrap(self) -> str:
        return self.ready.removeprefix("ready bootstrap=")

    def end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.end(signal.SIGKILL)


def gone(children: list[psutil.Process]) -> bool:
    return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_cluster_is_ready_and_stops_without_a_trace(up: Callable[..., Up], number: signal.Signals) -> None:
    cluster = up("--brokers", "3")
    assert re.fullmatch(r"ready bootstrap=127\.0\.0\.1:\d+,127\.0\.0\.1:\d+,127\.0\.0\.1:\d+", cluster.ready)
    assert len(cluster.children) == 5  # the launcher, the coordinator, three brokers
    created = run("topics", "--bootstrap-server", cluster.bootstrap, "--create", "--topic", "t")
    assert created.stdout == "Created topic t.\n"
    described = ""

    def known() -> bool:
        nonlocal described
        described = run(
            "topics", "--bootstrap-server", cluster.bootstrap, "--describe", "--topic", "t", "--if-exists"
        ).stdout
        return "Leader: " in described

    wait_until(known)
    assert "ReplicationFactor: 3" in described
    assert cluster.end(number) == 0
    assert gone(cluster.children)
    assert list(cluster.temporary.iterdir()) == []


def test_killed_parent_leaves_no_orphans(up: Callable[..., Up]) -> None:
    cluster = up("--brokers", "1")
    assert cluster.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: gone(cluster.children))


def test_data_stays_where_it_was_asked_to(up: Callable[..., Up], tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = up("--brokers", "1", "--data", str(data), "--config", "num.partitions=4")
    run("topics", "--bootstrap-server", first.bootstrap, "--create", "--topic", "kept")
    assert first.end(signal.SIGTERM) == 0
    assert (data / "broker-1" / "meta.properties").exists()
    second = up("--brokers", "1", "--data", str(data))
    wait_until(
        lambda: (
            "PartitionCount: 4"
            in run("topics", "--bootstrap-server", second.bootstrap, "--describe", "--topic", "kept").stdout
        )
    )
    assert second.end(signal.SIGTERM) == 0


def test_taken_port_is_reported_and_nothing_stays(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = run("up", "--brokers", "1", "--port", port)
    assert refused.returncode == 1
    assert refused.stdout == ""
    first, reason = refused.stderr.splitlines()
    assert first == "error: broker-1 ended with 1"
    assert "] CRITICAL " in reason and port in reason


def test_dead_brokers_are_reported_and_the_others_stay(up: Callable[..., Up]) -> None:
    cluster = up("--brokers", "3")
    errors = cluster.process.stderr
    assert errors is not None
    places = [errors.readline() for _ in range(5)]
    assert re.fullmatch(r"ZooKeeper at 127\.0\.0\.1:\d+\n", places[0])
    assert places[1] == f"logs in {next(cluster.temporary.glob('barnabas-*/broker-1.log')).parent}/*.log\n"
    needed = "2 of the 3 brokers (min.insync.replicas)\n"
    assert places[2] == f"writes with acks=all need {needed}"
    first = cluster.bootstrap.split(",")[0]
    assert places[3] == f"try: barnabas topics --bootstrap-server {first} --create --topic orders\n"
    assert places[4] == f"     barnabas doctor --bootstrap-server {first}\n"

    _serving(cluster, 0).send_signal(signal.SIGKILL)
    listed = run("topics", "--bootstrap-server", cluster.bootstrap, "--list")
    assert listed.returncode == 0
    # Reads until `up` has noticed; the stream ends without it where `up` ends first.
    assert any("broker 1 ended with status -9" in line for line in errors)
    _serving(cluster, 1).send_signal(signal.SIGKILL)
    assert any("broker 2 ended with status -9" in line for line in errors)
    assert errors.readline() == f"writes with acks=all are refused from now on: they need {needed}"
    assert cluster.process.poll() is None


def _serving(cluster: Up, index: int) -> psutil.Process:
    port = _port(cluster, index)
    return next(
        child
        for child in cluster.children
        if child.is_running() and any(each.laddr.port == port for each in _listening(child))
    )


def _port(cluster: Up, index: int) -> int:
    return int(cluster.bootstrap.split(",")[index].rpartition(":")[2])


def _listening(process: psutil.Process) -> list[Any]:
    return [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def test_broker_needs_a_file_that_it_can_read() -> None:
    missing = run("broker", "/nowhere/server.properties")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "cannot read /nowhere/server.properties" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert run("broker").returncode == 2


def test_broker_refuses_an_invalid_setting(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nzookeeper.connect=127.0.0.1:1\n")
    refused = run("broker", str(file), "--override", "num.partitions=many")
    assert refused.returncode == 1
    assert "num.partitions" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_lone_broker_stops_soon_though_its_zookeeper_is_gone(tmp_path: Path) -> None:
    with started("zookeeper", "--port", "0", "--data", str(tmp_path / "zk")) as (zookeeper, ready):
        file = tmp_path / "server.properties"
        file.write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\n"
            f"zookeeper.connect={ready.removeprefix('ready zookeeper=')}\n"
            "controller.socket.timeout.ms=600000\n"  # the broker would wait so long for a controller's answer
        )
        with started("broker", str(file)) as (broker, _):
            zookeeper.kill()
            zookeeper.wait(60)
            broker.terminate()
            assert broker.wait(60) == 0


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that is ready, and its ready line."""
    process = subprocess.Popen([*BARNABAS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait(60)
