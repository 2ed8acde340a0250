"""Links from Apache Kafka 4.3.0 in KRaft mode into a cluster of ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.kraft import KraftCluster

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def kraft_cluster(java: None) -> Iterator[KraftCluster]:
    settings = {
        "unclean.leader.election.interval.ms": "1000",
        "log.cleaner.backoff.ms": "500",
        "log.retention.check.interval.ms": "500",
    }
    with KraftCluster(nodes=3, config=settings, users={"linker": "secret"}) as cluster:
        yield cluster


@pytest.fixture
def source(kraft_cluster: KraftCluster) -> Iterator[KraftCluster]:
    """Yield three running nodes, also after a test that stopped some."""
    yield kraft_cluster
    kraft_cluster.start_all()


@pytest.fixture(scope="session")
def mirror() -> Iterator[LocalCluster]:
    """Three brokers of ours."""
    with LocalCluster(brokers=3, config={"password.encoder.secret": "of these tests"}) as cluster:
        yield cluster
