"""Clusters for scenario tests: real processes; one is shared by the session, others are made for a test."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from barnabas.cli.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """Three brokers. Tests may leave topics behind, and must undo all other changes."""
    with LocalCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def bootstrap(shared_cluster: LocalCluster) -> str:
    return shared_cluster.bootstrap


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Create clusters that the test may break."""
    with ExitStack() as stack:

        def make(**options: Any) -> LocalCluster:
            return stack.enter_context(LocalCluster(**options))

        yield make


@pytest.fixture
def topic() -> str:
    """Return a topic name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
