"""Brokers that must not start: one line with the reason, exit code 1, and no effect on other brokers."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.base.config.properties import format_properties
from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.faults.conftest import QUICK, QUICK_COORDINATOR  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def one_broker():
    with LocalCluster(brokers=1, config=QUICK, zookeeper_options=QUICK_COORDINATOR) as cluster:
        yield cluster


def start(folder: Path, cluster: LocalCluster, **settings: str) -> subprocess.CompletedProcess[str]:
    properties = {
        "broker.id": "7",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "zookeeper.connect": cluster.zookeeper_connect,
        "zookeeper.session.timeout.ms": "1000",
        "log.dirs": str(folder / "data"),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    file = folder / "broker.properties"
    file.write_text(format_properties(properties))
    command = [sys.executable, "-m", "barnabas", "broker", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line."""
    assert done.returncode == 1
    assert done.stdout == "", "it never said that it is ready"
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if " CRITICAL " in line]
    return line


def test_an_id_that_is_taken_is_refused(one_broker: LocalCluster, tmp_path: Path):
    line = refused(start(tmp_path, one_broker, broker_id="1"))
    assert "broker.id=1 is taken" in line
    assert one_broker.member(1).running


def test_a_directory_that_another_broker_uses_is_refused(one_broker: LocalCluster, tmp_path: Path):
    line = refused(start(tmp_path, one_broker, log_dirs=str(one_broker.log_dir(1))))
    assert str(one_broker.log_dir(1)) in line


def test_a_directory_of_another_broker_is_refused(one_broker: LocalCluster, tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=elsewhere\n")
    line = refused(start(tmp_path, one_broker))
    assert "belongs to broker 3, this is broker 7" in line


def test_a_port_that_is_taken_is_refused(one_broker: LocalCluster, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(start(tmp_path, one_broker, listeners=f"PLAINTEXT://127.0.0.1:{port}"))
    assert str(port) in line


def test_a_broker_without_an_id_gets_one_and_keeps_it(new_cluster):
    cluster = new_cluster(brokers=1, broker_config={1: {"broker.id": "-1", "reserved.broker.max.id": "1000"}})
    assert "broker=1001 " in cluster.member(1).ready_line
    cluster.restart(1)
    assert "broker=1001 " in cluster.member(1).ready_line
