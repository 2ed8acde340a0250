"""Waiting for a condition on the test's own event loop. For other processes there is `barnabas.testing.wait_until`."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(condition: Callable[[], T], timeout_s: float = 60.0, *, what: str = "the condition") -> T:
    """Returns the first true value of the condition."""
    try:
        async with asyncio.timeout(timeout_s):
            while not (value := condition()):
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{what} did not happen within {timeout_s:g} s") from None
    return value
