"""Move replicas in throttled batches with progress, and resume interrupted runs.

The cluster stores moves in progress, and the remaining work follows from where the replicas are. So an interrupted run is
simply repeated: it waits for moves in progress, then continues.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli import _reassign_plan as plan
from barnabas.cli import _throttles
from barnabas.cli._balance import Partition, Proposal
from barnabas.cli._command import UsageError, warn
from barnabas.cli._output import say
from barnabas.cli._progress import telling
from barnabas.cli._words import size_text
from barnabas.client.admin import partitions as admin
from barnabas.client.asynchronous import AsyncClient

#: Pause between two polls of the moves in progress.
POLL_S: Final = 0.5
_NO_ELECTION: Final = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


@dataclass(frozen=True, slots=True)
class View:
    partitions: dict[TopicPartition, Partition]
    #: Racks of live brokers.
    racks: dict[int, str | None]


async def look(cluster: AsyncClient, *, measure_s: float) -> View:
    """Return every partition with its size, and its growth measured over `measure_s`."""
    topics = await cluster.all_topics()
    racks = {broker_id: broker.rack for broker_id, broker in (await cluster.brokers()).items()}
    before = await _sizes(cluster, sorted(racks))
    after = before
    if measure_s > 0:
        with telling(f"measuring for {measure_s:g} s how fast partitions grow"):
            await asyncio.sleep(measure_s)
        after = await _sizes(cluster, sorted(racks))
    found = {}
    for topic in topics.values():
        for part in topic.partitions:
            where = TopicPartition(topic.name, part.index)
            grown = max(0, after.get(where, 0) - before.get(where, 0))
            rate = grown / measure_s if measure_s > 0 else 0.0
            found[where] = Partition(tuple(part.replicas), after.get(where, 0), rate)
    return View(found, racks)


async def _sizes(cluster: AsyncClient, brokers: Sequence[int]) -> dict[TopicPartition, int]:
    """Return the bytes of the largest replica of each partition."""
    sizes: dict[TopicPartition, int] = {}
    for broker in brokers:
        for directory in await admin.describe_log_dirs(cluster, broker):
            for topic in directory.topics:
                for part in topic.partitions:
                    where = TopicPartition(topic.name, part.partition_index)
                    sizes[where] = max(sizes.get(where, 0), part.partition_size)
    return sizes


def loads(view: View, targets: Mapping[TopicPartition, Sequence[int]] | None = None) -> dict[int, tuple[int, int, int]]:
    """Return replicas, preferred leaders and bytes by broker: now, or after the moves to `targets`."""
    found = {broker: [0, 0, 0] for broker in sorted(view.racks)}
    for where, partition in view.partitions.items():
        replicas = (targets or {}).get(where, partition.replicas)
        for place, broker in enumerate(replicas):
            load = found.setdefault(broker, [0, 0, 0])
            load[0] += 1
            load[1] += place == 0
            load[2] += partition.bytes
    return {broker: (load[0], load[1], load[2]) for broker, load in found.items()}


def preview(view: View, proposal: Proposal) -> None:
    before, after = loads(view), loads(view, proposal.targets)
    say("broker  replicas        leaders         bytes")
    for broker in sorted(before.keys() | after.keys()):
        old, new = before.get(broker, (0, 0, 0)), after.get(broker, (0, 0, 0))
        cells = [f"{old[0]} -> {new[0]}", f"{old[1]} -> {new[1]}", f"{size_text(old[2])} -> {size_text(new[2])}"]
        say(f"{broker:<6}  {cells[0]:<14}  {cells[1]:<14}  {cells[2]}")
    if not proposal.targets:
        say("nothing to move")
        return
    say(f"partitions that change: {len(proposal.targets)}")
    say(
        f"replicas that move: {proposal.moves} ({size_text(proposal.bytes)} to copy); new preferred leaders: {proposal.leaders}"
    )


async def carry_out(
    cluster: AsyncClient, view: View, targets: Mapping[TopicPartition, Sequence[int]], *, bytes_per_s: int, batch: int
) -> None:
    """Move until every partition has its target replicas. `bytes_per_s` below 0: no limit."""
    ongoing = await admin.list_reassignments(cluster)
    if ongoing:
        say(f"waiting for {len(ongoing)} moves that are in progress")
        await _until_done(cluster, ongoing)
    todo = [
        where
        for where, replicas in targets.items()
        if where in view.partitions and view.partitions[where].replicas != tuple(replicas)
    ]
    # Changes of the leader only cost nothing, so they go first. Then small partitions, for early progress.
    todo.sort(
        key=lambda where: (set(targets[where]) != set(view.partitions[where].replicas), view.partitions[where].bytes)
    )
    to_copy = sum(_copied(view, targets, where) for where in todo)
    done = copied = 0
    for start in range(0, len(todo), batch):
        now = todo[start : start + batch]
        moving = {where: list(targets[where]) for where in now}
        if bytes_per_s >= 0:
            current = {where: view.partitions[where].replicas for where in now}
            await _throttles.limit_moves(cluster, plan.moves({}, moving, current), bytes_per_s)
        outcome = await admin.alter_reassignments(cluster, moving)
        failed = [
            f"{where}: {text or code.name}" for where, (code, text) in outcome.items() if code is not ErrorCode.NONE
        ]
        if failed:
            raise UsageError("the controller refuses to move " + "; ".join(sorted(failed)))
        await _until_done(cluster, moving)
        done += len(now)
        copied += sum(_copied(view, targets, where) for where in now)
        say(f"{done} of {len(todo)} partitions done, {size_text(copied)} of {size_text(to_copy)} copied")
    if bytes_per_s >= 0 or ongoing:
        # Includes throttles that an interrupted run has left.
        await _throttles.clear_topics(cluster, sorted({where.topic for where in targets}))
        await _throttles.clear_brokers(cluster, sorted(await cluster.brokers()))
    await lead(cluster, list(targets))


async def stop(cluster: AsyncClient) -> int:
    """Cancel the moves in progress and remove limits. Return how many were cancelled."""
    ongoing = await admin.list_reassignments(cluster)
    outcome = await admin.alter_reassignments(cluster, dict.fromkeys(ongoing)) if ongoing else {}
    # A move that has ended meanwhile needs no end.
    failed = {
        where: text or code.name
        for where, (code, text) in outcome.items()
        if code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    }
    if failed:
        raise UsageError("the controller does not cancel " + "; ".join(f"{at}: {why}" for at, why in failed.items()))
    await _until_done(cluster, ongoing)
    await _throttles.clear_topics(cluster, sorted({where.topic for where in ongoing}))
    await _throttles.clear_brokers(cluster, sorted(await cluster.brokers()))
    return len(ongoing)


def _copied(view: View, targets: Mapping[TopicPartition, Sequence[int]], where: TopicPartition) -> int:
    partition = view.partitions[where]
    return partition.bytes * len(set(targets[where]) - set(partition.replicas))


async def _until_done(cluster: AsyncClient, moving: Mapping[TopicPartition, object]) -> None:
    while True:
        ongoing = await admin.list_reassignments(cluster, moving)
        if not any(each.adding or each.removing for each in ongoing.values()):
            return
        await asyncio.sleep(POLL_S)  # the protocol has no notification of the end


async def lead(cluster: AsyncClient, partitions: Sequence[TopicPartition]) -> None:
    """Elect the first replica of each partition as its leader."""
    if not partitions:
        return
    outcome = await admin.elect_leaders(cluster, admin.PREFERRED, partitions)
    for where, (code, text) in sorted(outcome.items()):
        if code not in _NO_ELECTION:
            warn(f"{where}: its preferred replica is not leader yet: {text or code.name}")
