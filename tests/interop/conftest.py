"""Tests against Apache Kafka, its clients and kcat. All programs come from Maven or Debian by name."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop import maven

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _HERE:
            item.add_marker(pytest.mark.interop)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def java() -> None:
    """Skip the test where there is no Java."""
    if not maven.is_available():
        pytest.skip("needs mvn and java")


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers of ours. Tests may leave topics behind, and must undo all other changes."""
    with LocalCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"
