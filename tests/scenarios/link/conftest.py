"""Two clusters for all tests of links: what a test breaks, it mends."""

from collections.abc import Iterator

import pytest

from barnabas.testing.cluster import Cluster

#: Followers leave the ISR soon, for elections that must go wrong.
SOON = {"replica.lag.time.max.ms": "1500", "log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "0"}


@pytest.fixture(scope="package")
def source() -> Iterator[Cluster]:
    with Cluster(brokers=2, config={"log.cleaner.backoff.ms": "200", **SOON}) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def target() -> Iterator[Cluster]:
    with Cluster(brokers=2, config={"password.encoder.secret": "of these tests", **SOON}) as cluster:
        yield cluster
