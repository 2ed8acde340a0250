"""Apache ZooKeeper 3.8.4 beside ours."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parents[1] / "scenarios" / "zookeeper")]

import maven  # noqa: E402

from tests.interop.zookeeper.zk_apache import ZOOKEEPER, apache_zookeeper  # noqa: E402
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, running  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def java() -> str:
    """The class path of ZooKeeper, or a skip that says what is missing."""
    if not maven.is_available():
        pytest.skip("needs mvn and java")
    return maven.classpath(*ZOOKEEPER)


@pytest.fixture
def apache(java: str, tmp_path: Path) -> Iterator[int]:
    with apache_zookeeper(tmp_path / "apache") as port:
        yield port


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with running(tmp_path / "ours", "--max-client-cnxns", "0") as server:
        yield server
