"""Waiting for the controller: what was asked of it is done once the metadata of this broker shows it. Nothing polls."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache

T = TypeVar("T")


async def wait_until_shown(
    metadata: MetadataCache, wanted: Iterable[T], is_shown: Callable[[T], bool], *, timeout_s: float
) -> set[T]:
    """Until the metadata has shown each of `wanted`, once; answers with those that it did not show in time."""
    missing = set(wanted)

    def look() -> bool:
        missing.difference_update([each for each in missing if is_shown(each)])
        return not missing

    if look() or timeout_s <= 0:
        return missing
    done = asyncio.Event()
    unsubscribe = metadata.subscribe(lambda change: done.set() if look() else None)
    try:
        async with asyncio.timeout(timeout_s):
            await done.wait()
    except TimeoutError:
        pass  # the caller knows what that means to the client
    finally:
        unsubscribe()
    return missing
