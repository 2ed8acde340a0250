"""Waits until this broker's metadata shows that the controller has done a request. Does not poll."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache

T = TypeVar("T")


async def wait_until_shown(
    metadata: MetadataCache, wanted: Iterable[T], is_shown: Callable[[T], bool], *, timeout_s: float
) -> set[T]:
    """Wait until the metadata has shown each of `wanted` once; return those that it did not show in time."""
    missing = set(wanted)

    def look() -> bool:
        missing.difference_update([item for item in missing if is_shown(item)])
        return not missing

    if look() or timeout_s <= 0:
        return missing
    done = asyncio.Event()
    unsubscribe = metadata.subscribe(lambda change: done.set() if look() else None)
    try:
        async with asyncio.timeout(timeout_s):
            await done.wait()
    except TimeoutError:
        pass  # the caller decides which error the client gets
    finally:
        unsubscribe()
    return missing
