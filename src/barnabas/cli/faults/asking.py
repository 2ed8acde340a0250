"""Run operations on a cluster from a test: each with its own client, on its own event loop, from any thread."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig

T = TypeVar("T")
S = TypeVar("S")
Work: TypeAlias = Callable[[S], Awaitable[T]]
Question: TypeAlias = Callable[[AsyncClient], Awaitable[T]]


def ask(config: ClientConfig, question: Question[T]) -> T:
    async def with_client() -> T:
        async with AsyncClient(config) as client:
            return await question(client)

    return run(with_client)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Block until the work is done, even in a test that runs on an event loop: that loop is blocked meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1, "kafka question") as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
