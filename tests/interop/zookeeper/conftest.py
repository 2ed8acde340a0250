"""Apache ZooKeeper 3.8.4 and ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import maven
from tests.interop.zookeeper.zk_apache import ZOOKEEPER, apache_zookeeper
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, running

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def java() -> str:
    """Return the class path of ZooKeeper, or skip the test with a reason."""
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
