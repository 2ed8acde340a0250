"""What may go from the tier, decided by the leader of a partition. Pure.

Retention is of the whole log: the oldest segments go, and the log start goes with them. Beside it there is what nobody reads:
leavings of a leader that died in mid-copy, deletions that were not finished, and records that an unclean election took back.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.base.config.log_config import LogConfig
from barnabas.base.ids import Offset
from barnabas.broker.features.tiered import lineage
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId, SegmentState
from barnabas.broker.storage.epoch_cache import LeaderEpochCache


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Of the local log of the leader, at one moment."""

    leader_epoch: int
    log_start: int
    local_start: int
    log_end: int
    epochs: LeaderEpochCache
    #: Of what is not in the tier yet.
    only_local_bytes: int


class Removal(NamedTuple):
    segment: RemoteSegment
    #: For the log: why.
    reason: str
    #: Its copy was never finished. If it comes to be after all, it stays.
    if_unfinished: bool = False


@dataclass(slots=True)
class Plan:
    removals: list[Removal] = field(default_factory=list)
    #: Where the log starts once they are gone; None: where it does.
    log_start: Offset | None = None
    #: What another leader began to copy later than this one began to lead: this broker leads no more, and does not know it yet.
    is_deposed: bool = False
    #: Until then, and until so many bytes more are in the log, a new look at the same segments finds nothing more to do.
    idle_until_ms: int | None = None
    idle_bytes: int | None = None


def plan(
    tier: RemoteLogMetadataCache,
    facts: LogFacts,
    config: LogConfig,
    *,
    being_copied: Collection[RemoteSegmentId],
    now_ms: int,
    is_tiered: bool = True,
) -> Plan:
    """`is_tiered` is false once a topic has left the tier: nothing of it stays there."""
    made = Plan()
    kept: list[RemoteSegment] = []
    strangers: list[RemoteSegment] = []
    for segment in tier.all():
        mark = segment.mark
        if segment.id in being_copied:
            continue
        if max(mark.leader_epoch if mark is not None else -1, *segment.epochs, -1) > facts.leader_epoch:
            made.is_deposed = True
        elif segment.state is SegmentState.DELETE_STARTED:
            made.removals.append(Removal(segment, "its deletion was not finished"))
        elif not is_tiered:
            made.removals.append(Removal(segment, "the topic is not in the tier any more"))
        elif segment.end_offset < facts.log_start:
            made.removals.append(Removal(segment, f"below the log start, {facts.log_start}"))
        elif segment.state is SegmentState.COPY_STARTED:
            # Of another's that says nothing of its leader nobody can tell whether it is still at work.
            if mark is not None and _is_held_elsewhere(segment, tier, facts):
                made.removals.append(Removal(segment, "its copy was not finished", if_unfinished=True))
        elif not tier.is_read(segment):
            continue  # another copy has all that it has, and goes with it
        elif lineage.is_within(segment, facts.epochs, facts.log_start, facts.log_end):
            kept.append(segment)
        elif lineage.knows_all(tier, facts.epochs, facts.log_start) and not lineage.touches(
            segment, facts.epochs, facts.log_end
        ):
            strangers.append(segment)
    if made.is_deposed:
        return Plan(is_deposed=True)
    if is_tiered:
        _expire(made, kept, facts, config, now_ms)
        _remove_strangers(made, strangers, config, now_ms, has_history=bool(kept))
    return made


def _is_held_elsewhere(segment: RemoteSegment, tier: RemoteLogMetadataCache, facts: LogFacts) -> bool:
    """Whether the log has all its records here, or in finished copies. If not, the end of this copy was told and then lost
    with the metadata, after the records were deleted here: it may be all that is left of them."""
    start = max(segment.start_offset, facts.log_start)
    end = min(segment.end_offset + 1, facts.local_start)
    if start >= end or not lineage.is_within(segment, facts.epochs, facts.log_start, facts.log_end):
        return True
    return lineage.covered_end(tier, facts.epochs, start, end) >= end


def _expire(made: Plan, kept: list[RemoteSegment], facts: LogFacts, config: LogConfig, now_ms: int) -> None:
    """The oldest of the log's own, for as long as one rule or the other wants it."""
    excess = -1
    if config.retention_bytes >= 0:
        excess = facts.only_local_bytes + sum(each.size_bytes for each in kept) - config.retention_bytes
    for segment in kept:
        if config.retention_ms >= 0 and segment.max_timestamp <= now_ms - config.retention_ms:
            reason = f"retention.ms={config.retention_ms}"
        elif excess >= segment.size_bytes:
            reason = f"retention.bytes={config.retention_bytes}"
        else:
            made.idle_until_ms = segment.max_timestamp + config.retention_ms if config.retention_ms >= 0 else None
            made.idle_bytes = segment.size_bytes - excess if config.retention_bytes >= 0 else None
            break
        excess -= segment.size_bytes
        made.removals.append(Removal(segment, reason))
        made.log_start = Offset(max(segment.end_offset + 1, made.log_start or 0))


def _remove_strangers(
    made: Plan, strangers: list[RemoteSegment], config: LogConfig, now_ms: int, *, has_history: bool
) -> None:
    """No record of theirs is in this log: an unclean election took them back. If the tier has nothing at all that is in the
    log, it is more likely that the log was lost: they stay for as long as retention has it, for somebody to look at."""
    for segment in strangers:
        is_old = config.retention_ms >= 0 and segment.max_timestamp <= now_ms - config.retention_ms
        if not has_history and not is_old:
            if config.retention_ms >= 0:
                expires_ms = segment.max_timestamp + config.retention_ms
                made.idle_until_ms = min(expires_ms, made.idle_until_ms or expires_ms)
        else:
            made.removals.append(Removal(segment, "not in the history of the log, after an unclean election"))
