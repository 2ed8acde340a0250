"""Fixtures that live on the event loop of a test that is a coroutine.

@async_fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as started:
        yield started

async def test_it_answers(broker: Broker) -> None: ...
"""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest


class OnTestLoop:
    """pytest calls a fixture before there is a loop: `conftest.py` enters it on the loop of the test."""

    def __init__(self, function: Callable[..., AsyncIterator[Any]], arguments: Mapping[str, Any]) -> None:
        self._context = asynccontextmanager(function)
        self._arguments = arguments
        self._entered: list[Any] = []

    async def enter(self, stack: AsyncExitStack) -> Any:
        """Enter it once, after the fixtures that it uses itself."""
        if not self._entered:
            arguments = await entered(self._arguments, stack)
            self._entered = [await stack.enter_async_context(self._context(**arguments))]
        return self._entered[0]


async def entered(arguments: Mapping[str, Any], stack: AsyncExitStack) -> dict[str, Any]:
    return {
        name: await value.enter(stack) if isinstance(value, OnTestLoop) else value for name, value in arguments.items()
    }


def async_fixture(function: Callable[..., AsyncIterator[Any]]) -> Any:
    @functools.wraps(function)
    def fixture(**arguments: Any) -> OnTestLoop:
        return OnTestLoop(function, arguments)

    return pytest.fixture(fixture)
