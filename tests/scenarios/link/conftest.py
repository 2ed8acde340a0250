"""Two clusters for all tests of links: what a test breaks, it mends.

They end with the last test here. Links look at their sources five times a second: those of forty tests, until the session ends,
cost more than the tests themselves.
"""

import pytest

from barnabas.testing.cluster import Cluster
from barnabas.testing.shared import SharedClusters

#: Followers leave the ISR soon, for elections that must go wrong.
SOON = {"replica.lag.time.max.ms": "1500", "log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "0"}

_clusters = SharedClusters()


@pytest.fixture
def source() -> Cluster:
    return _clusters.get(brokers=2, config={"log.cleaner.backoff.ms": "200", **SOON})


@pytest.fixture
def target() -> Cluster:
    return _clusters.get(brokers=2, config={"password.encoder.secret": "of these tests", **SOON})


@pytest.hookimpl(trylast=True)  # what tests of a module share is gone by then
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _clusters.close()
