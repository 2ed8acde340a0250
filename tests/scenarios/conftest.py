"""Clusters for scenario tests: real processes, one shared by the session, others made for a test."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from barnabas.cli.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """Three brokers that tests must leave as they found them, but for topics."""
    with LocalCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def bootstrap(shared_cluster: LocalCluster) -> str:
    return shared_cluster.bootstrap


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Makes clusters that this test may break."""
    with ExitStack() as stack:

        def make(**options: Any) -> LocalCluster:
            return stack.enter_context(LocalCluster(**options))

        yield make


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"
