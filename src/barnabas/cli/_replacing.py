"""Wait for brokers that come: new ones, and one that comes back under its id with empty disks."""

import asyncio
from collections.abc import Mapping, Sequence

from barnabas.base.ids import TopicPartition
from barnabas.cli import _moving, _throttles
from barnabas.cli._command import UsageError
from barnabas.cli._output import say
from barnabas.cli._reassign_plan import Move
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError
from barnabas.client.image import PartitionInfo

#: Partitions that an error names.
_NAMED_MAX = 5


async def wait_for_brokers(
    cluster: AsyncClient, brokers: Sequence[int], *, timeout_s: int | None, quiet: bool = False
) -> None:
    """:raises UsageError: if one of them has not come in time."""
    missing = await _missing(cluster, brokers)
    if missing and not quiet:
        say(f"waiting for {_named(missing)}: start {'it' if len(missing) == 1 else 'them'} with an empty log.dirs")
    try:
        async with asyncio.timeout(timeout_s):
            while missing:
                await asyncio.sleep(_moving.POLL_S)
                missing = await _missing(cluster, brokers)
    except TimeoutError:
        raise UsageError(f"{_named(missing)} did not come within {timeout_s} s: see the log there") from None


async def replace(cluster: AsyncClient, broker: int, *, bytes_per_s: int, timeout_s: int | None) -> None:
    """Wait until the broker is in sync with all partitions that it should have. `bytes_per_s` below 0: no limit.

    :raises UsageError: if records are only on its old disk, or if it is not in sync in time.
    """
    held = await _held(cluster, broker)
    if not held:
        raise UsageError(f"no partition has a replica on broker {broker}: use brokers add {broker}")
    if await _missing(cluster, [broker]):
        _require_other_copies(held, broker)
    try:
        async with asyncio.timeout(timeout_s):
            await wait_for_brokers(cluster, [broker], timeout_s=None)
            if bytes_per_s >= 0:
                # A limit can only be set at a broker that runs.
                await _throttles.limit_moves(cluster, _copies(held, broker), bytes_per_s)
            await _until_in_sync(cluster, broker)
    except TimeoutError:
        raise UsageError(f"broker {broker} is not in sync after {timeout_s} s; run this again to wait longer") from None
    finally:
        if bytes_per_s >= 0:
            await _throttles.clear_topics(cluster, sorted({where.topic for where in held}))
            await _throttles.clear_brokers(cluster, sorted(await cluster.brokers()))
    await _moving.lead(cluster, [where for where, info in held.items() if info.replicas[0] == broker])
    say(f"broker {broker} is in sync with all {len(held)} partitions that it has")


def _copies(held: Mapping[TopicPartition, PartitionInfo], broker: int) -> dict[TopicPartition, Move]:
    return {where: Move(frozenset(info.replicas) - {broker}, frozenset({broker})) for where, info in held.items()}


async def _until_in_sync(cluster: AsyncClient, broker: int) -> None:
    last = -1
    while True:
        held = await _held(cluster, broker)
        behind = [where for where, info in held.items() if broker not in info.isr]
        if not behind and not await _missing(cluster, [broker]):
            return
        if len(behind) != last:
            last = len(behind)
            say(f"{len(held) - last} of {len(held)} partitions are in sync")
        await asyncio.sleep(_moving.POLL_S)


async def _held(cluster: AsyncClient, broker: int) -> dict[TopicPartition, PartitionInfo]:
    topics = await cluster.all_topics()
    return {
        TopicPartition(topic.name, info.index): info
        for topic in topics.values()
        for info in topic.partitions
        if broker in info.replicas
    }


def _require_other_copies(held: Mapping[TopicPartition, PartitionInfo], broker: int) -> None:
    """Refuse to go on if an empty disk would lose records. The broker is down, so ISRs of others do not have it."""
    alone = sorted(str(where) for where, info in held.items() if set(info.isr) <= {broker})
    if alone:
        named = ", ".join(alone[:_NAMED_MAX]) + (
            f" and {len(alone) - _NAMED_MAX} more" if len(alone) > _NAMED_MAX else ""
        )
        raise UsageError(
            f"only broker {broker} has all records of {named}: start it with its old disks; with empty ones they are lost"
        )


async def _missing(cluster: AsyncClient, brokers: Sequence[int]) -> list[int]:
    try:
        return sorted(set(brokers) - set(await cluster.brokers()))
    except ClientError:
        return sorted(brokers)  # no broker answers at this moment


def _named(brokers: Sequence[int]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {', '.join(map(str, brokers))}"
