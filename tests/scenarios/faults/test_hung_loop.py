"""A broker whose event loop hangs while its other threads run loses its offices like a dead one.

SIGSTOP cannot cause this: it also stops kazoo's thread, which keeps the ZooKeeper session. Here a signal handler
sleeps in the broker's main thread, where its event loop runs.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from barnabas.cli import local_cluster
from barnabas.cli.fork_server import ForkServer
from barnabas.cli.local_cluster import LocalCluster, wait_until
from tests.scenarios.faults.conftest import QUICK, QUICK_COORDINATOR, Admin  # type: ignore[attr-defined]
from tests.soak.workload import Reader, Writer

SESSION_S = 3.0
HANG_S = 20.0
HANGS = f"""
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep({HANG_S}))
"""


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let processes of clusters hang for HANG_S at SIGUSR1."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        launcher = ForkServer()
    monkeypatch.setattr(local_cluster, "fork_server", lambda: launcher)
    yield
    launcher.close()


class Offices:
    """The controller and the leaders in ZooKeeper."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._client = KazooClient(cluster.zookeeper_connect)
        self._client.start(60)

    def controller(self) -> int:
        try:
            found: int = json.loads(self._client.get("/controller")[0])["brokerid"]
        except NoNodeError:
            return -1
        return found

    def leaders(self, topic: str) -> set[int]:
        names = self._client.get_children(f"/brokers/topics/{topic}/partitions")
        states = (self._client.get(f"/brokers/topics/{topic}/partitions/{name}/state")[0] for name in names)
        return {json.loads(state)["leader"] for state in states}

    def close(self) -> None:
        self._client.stop()
        self._client.close()


@pytest.mark.usefixtures("hanging")
def test_controller_whose_loop_hangs_is_replaced_within_its_session_and_nothing_is_lost(
    new_cluster: Callable[..., LocalCluster], topic: str
) -> None:
    config = {**QUICK, "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000))}
    cluster = new_cluster(brokers=3, config=config, zookeeper_options=QUICK_COORDINATOR)
    admin = Admin(cluster)
    admin.create(topic, partitions=6, min_insync_replicas="2")
    offices = Offices(cluster)
    writer, reader = Writer("w", cluster.bootstrap, topic, 6, seed=1, rate=300), Reader(cluster.bootstrap, topic, 6)
    writer.start()
    reader.start()
    try:
        wait_until(lambda: len(writer.acknowledged) > 500, 60, what="that records are written")
        hung = offices.controller()
        assert hung in offices.leaders(topic)
        began_s = time.monotonic()
        os.kill(cluster.pid(hung), signal.SIGUSR1)
        wait_until(lambda: offices.controller() not in (hung, -1), 60, what="that another broker is controller")
        assert time.monotonic() - began_s < SESSION_S + 5
        wait_until(lambda: hung not in offices.leaders(topic), 60, what="that other brokers lead")
        assert time.monotonic() - began_s < SESSION_S + 10
        replaced_by = offices.controller()
        time.sleep(max(0.0, began_s + HANG_S + 5 - time.monotonic()))
        # The broker is back. It follows, and has done nothing as the former controller.
        admin.wait_in_sync(topic)
        assert offices.controller() == replaced_by
        wait_until(
            lambda: len(admin.client.list_topics(timeout=60).brokers) == 3, 60, what="that all brokers are there"
        )
    finally:
        writer.stop()
        offices.close()
    wanted: dict[int, int] = {}
    for (partition, _), offset in writer.acknowledged.items():
        wanted[partition] = max(wanted.get(partition, 0), offset + 1)
    reader.stop(wanted)
    assert writer.errors == [] and reader.broken == []
    for partition, values in reader.values.items():
        numbers = [int(value.decode().split(":")[2]) for value in values]
        assert numbers == list(range(len(numbers))), f"partition {partition}"
