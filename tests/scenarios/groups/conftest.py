"""A cluster whose groups react fast: short sessions and heartbeats, so that tests need not wait for the defaults."""

from collections.abc import Iterator

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.groups.group_clients import FAST_GROUPS


@pytest.fixture(scope="session")
def fast_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=FAST_GROUPS) as cluster:
        yield cluster


@pytest.fixture
def fast(fast_cluster: LocalCluster) -> str:
    return fast_cluster.bootstrap
