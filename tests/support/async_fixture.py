"""Fixtures that live on the event loop of a test that is a coroutine.

@async_fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as started:
        yield started

async def test_it_answers(broker: Broker) -> None: ...
"""

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest


class OnTestLoop:
    """pytest calls a fixture before there is a loop: `conftest.py` enters `context` on the loop of the test."""

    def __init__(self, context: AbstractAsyncContextManager[Any]) -> None:
        self.context = context


def async_fixture(function: Callable[..., AsyncIterator[Any]]) -> Any:
    @functools.wraps(function)
    def fixture(*args: Any, **kwargs: Any) -> OnTestLoop:
        return OnTestLoop(asynccontextmanager(function)(*args, **kwargs))

    return pytest.fixture(fixture)
