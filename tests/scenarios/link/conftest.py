"""Two clusters for all tests of links: each test repairs what it breaks.

They are stopped after the last test here. Links poll their sources five times a second: the links of forty tests would cost
more than the tests themselves if they ran until the session ends.
"""

import pytest

from barnabas.testing.cluster import Cluster
from barnabas.testing.shared import SharedClusters

#: Followers leave the ISR soon, for tests of unclean elections.
SOON = {"replica.lag.time.max.ms": "1500", "log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "0"}

_clusters = SharedClusters()


@pytest.fixture
def source() -> Cluster:
    return _clusters.get(brokers=2, config={"log.cleaner.backoff.ms": "200", **SOON})


@pytest.fixture
def target() -> Cluster:
    return _clusters.get(brokers=2, config={"password.encoder.secret": "of these tests", **SOON})


@pytest.hookimpl(trylast=True)  # the module's shared objects are closed by then
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _clusters.close()
