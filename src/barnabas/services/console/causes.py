"""Why a group's lag grows, according to observations. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from barnabas.base.ids import TopicPartition

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
#: A member or partition is reported if it commits nothing for this long although there are records to read.
STILL_S: Final = 30.0
#: This many rebalances within the observed time are too many.
REBALANCES_MAX: Final = 3
#: The oldest part of a log: retention may overtake a group that reads there.
_RETENTION_SHARE: Final = 0.1
_HOT_SHARE: Final = 0.5
_HOT_RATE: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    partition: TopicPartition
    committed: int | None
    start: int | None
    end: int | None
    #: The last stable offset; None if it was not requested.
    stable_end: int | None = None
    #: Client id and member id of the member that reads the partition: several members may share a client id.
    member: str | None = None
    member_id: str | None = None
    produced: float | None = None
    consumed: float | None = None
    #: How long the group has committed nothing new here.
    still_s: float = 0.0

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0) if self.end is not None and self.committed is not None else 0


@dataclass(frozen=True, slots=True)
class Cause:
    kind: str
    sentence: str
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    state: str
    members: Sequence[str]
    partitions: Sequence[PartitionSeen]
    #: How many rebalances were observed within the last minutes.
    rebalances: int = 0
    #: Time since the last observed rebalance: before it, other members may have had the partitions.
    settled_s: float = math.inf
    #: Descriptions of producers that hold back readers, by partition.
    open_transactions: Mapping[TopicPartition, str] = field(default_factory=dict)


def causes(seen: GroupSeen) -> list[Cause]:
    """Return the causes, the most serious first; empty without lag, or without a known cause."""
    return [
        cause
        for look in (
            _lost,
            _retention,
            _no_members,
            _rebalances,
            _transactions,
            _silent_members,
            _still_partitions,
            _hot,
            _slow,
        )
        if (cause := look(seen)) is not None
    ]


def _names(partitions: Sequence[PartitionSeen]) -> str:
    shown = ", ".join(str(each.partition) for each in partitions[:3])
    return shown if len(partitions) <= 3 else f"{shown} and {len(partitions) - 3} more"


def _cause(kind: str, sentence: str, partitions: Sequence[PartitionSeen] = ()) -> Cause:
    return Cause(kind, sentence, tuple(each.partition for each in partitions))


def _lost(seen: GroupSeen) -> Cause | None:
    gone = [p for p in seen.partitions if p.committed is not None and p.start is not None and p.committed < p.start]
    if not gone:
        return None
    lost = sum((p.start or 0) - (p.committed or 0) for p in gone)
    return _cause(
        "records-lost",
        f"Retention has overtaken the group: {lost:,} records that it has not read are deleted ({_names(gone)}).",
        gone,
    )


def _retention(seen: GroupSeen) -> Cause | None:
    near = [
        p
        for p in seen.partitions
        if p.committed is not None
        and p.start is not None
        and p.end is not None
        and 0 < p.start <= p.committed < p.end
        and p.committed - p.start < (p.end - p.start) * _RETENTION_SHARE
    ]
    if not near:
        return None
    return _cause(
        "retention-near",
        f"The group reads the oldest part of the log in {_names(near)}: retention may delete records before it reads them.",
        near,
    )


def _behind(seen: GroupSeen) -> list[PartitionSeen]:
    return [p for p in seen.partitions if p.lag > 0]


def _no_members(seen: GroupSeen) -> Cause | None:
    if seen.members or not _behind(seen):
        return None
    return _cause("no-members", f"The group has no members (it is {seen.state}).")


def _rebalances(seen: GroupSeen) -> Cause | None:
    if seen.rebalances < REBALANCES_MAX:
        return None
    return _cause(
        "rebalance-loop",
        f"The group has rebalanced {seen.rebalances} times within the last minutes. Members join and leave: look for restarts, "
        "or for work between two polls that takes longer than max.poll.interval.ms.",
    )


def _transactions(seen: GroupSeen) -> Cause | None:
    held = [
        p
        for p in seen.partitions
        if p.stable_end is not None
        and p.end is not None
        and p.committed is not None
        and p.stable_end < p.end
        and p.committed >= p.stable_end
    ]
    if not held:
        return None
    producer = next((seen.open_transactions[p.partition] for p in held if p.partition in seen.open_transactions), "")
    return _cause(
        "open-transaction",
        f"An open transaction holds readers of committed records back at offset {held[0].stable_end} of {held[0].partition}"
        f"{f' and {len(held) - 1} more' if len(held) > 1 else ''}{f': {producer}' if producer else ''}.",
        held,
    )


def _still(seen: GroupSeen) -> list[PartitionSeen]:
    """Return partitions whose member could read records, but has committed nothing for a long time."""
    if seen.settled_s < STILL_S:
        return []
    return [
        p
        for p in _behind(seen)
        if p.member is not None
        and p.still_s >= STILL_S
        and not (p.stable_end is not None and p.committed is not None and p.committed >= p.stable_end)
    ]


def _owner(partition: PartitionSeen) -> str | None:
    return partition.member_id or partition.member


def _at_work(seen: GroupSeen) -> set[str | None]:
    """Return members that have recently committed something for any of their partitions: these do poll."""
    return {_owner(p) for p in seen.partitions if p.committed is not None and p.still_s < STILL_S}


def _silent_members(seen: GroupSeen) -> Cause | None:
    at_work = _at_work(seen)
    silent = [p for p in _still(seen) if _owner(p) not in at_work]
    if not silent:
        return None
    members = sorted({p.member for p in silent if p.member is not None})
    return _cause(
        "member-does-not-poll",
        f"{', '.join(members[:3])}{f' and {len(members) - 3} more' if len(members) > 3 else ''} "
        f"{'has' if len(members) == 1 else 'have'} committed nothing for {_seconds(seen, silent):.0f} s "
        f"while records wait in {_names(silent)}.",
        silent,
    )


def _still_partitions(seen: GroupSeen) -> Cause | None:
    at_work = _at_work(seen)
    still = [p for p in _still(seen) if _owner(p) in at_work]
    if not still:
        return None
    return _cause(
        "partition-stands-still",
        f"Nothing was committed for {_names(still)} for {_seconds(seen, still):.0f} s, while the same member commits for other "
        "partitions. It may read its partitions one after another, have paused this one, or fail at a record there.",
        still,
    )


def _seconds(seen: GroupSeen, still: Sequence[PartitionSeen]) -> float:
    """Count from the last rebalance: before it, the member had other partitions."""
    return min(max(p.still_s for p in still), seen.settled_s)


def _hot(seen: GroupSeen) -> Cause | None:
    behind = _behind(seen)
    if len(seen.partitions) < 3 or not behind:
        return None
    worst = max(behind, key=lambda p: p.lag)
    usual = median(p.produced or 0.0 for p in seen.partitions)
    is_hot = (worst.produced or 0.0) > max(usual * _HOT_RATE, 1.0)
    if worst.lag <= _HOT_SHARE * sum(p.lag for p in behind) or not is_hot:
        return None
    return _cause(
        "hot-partition",
        f"{worst.partition} is hot: {worst.produced or 0:,.0f} records a second arrive there, {usual:,.0f} in the median "
        "partition. Its key may be used too often.",
        [worst],
    )


def _slow(seen: GroupSeen) -> Cause | None:
    measured = [p for p in seen.partitions if p.produced is not None and p.consumed is not None and p.member]
    produced, consumed = sum(p.produced or 0 for p in measured), sum(p.consumed or 0 for p in measured)
    if not measured or not _behind(seen) or produced <= consumed * 1.1 + 1:
        return None
    return _cause(
        "slower-than-producers",
        f"{produced:,.0f} records a second arrive and {consumed:,.0f} are read: add members, up to one for each partition, "
        "or make them faster.",
    )
