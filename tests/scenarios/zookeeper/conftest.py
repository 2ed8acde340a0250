"""One ZooKeeper for all tests of a module; each test has its own root."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, connected, running

_roots = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    # A short tick, so that sessions expire soon.
    options = ("--tick-time", "100", "--max-session-timeout", "60000", "--max-client-cnxns", "0")
    with running(tmp_path_factory.mktemp("zookeeper"), *options) as process:
        yield process


@pytest.fixture
def root(server: ZooKeeperProcess) -> str:
    """Return a chroot for this test."""
    path = f"/test-{next(_roots)}"
    with connected(server.address) as client:
        client.create(path)
    return path


@pytest.fixture
def zk(server: ZooKeeperProcess, root: str) -> Iterator[KazooClient]:
    with connected(server.address + root) as client:
        yield client


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
