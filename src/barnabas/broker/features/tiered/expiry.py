"""Decides what to remove from the tier, as the leader of a partition. Pure.

Retention applies to the whole log: the oldest segments are removed, and the log start rises. Besides, some segments have no
readers: copies of a leader that failed, unfinished deletions, and records that an unclean election took back.
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
    """State of the leader's local log at one moment."""

    leader_epoch: int
    log_start: int
    local_start: int
    log_end: int
    epochs: LeaderEpochCache
    #: Size of the records that are not in the tier yet.
    only_local_bytes: int


class Removal(NamedTuple):
    segment: RemoteSegment
    #: Shown in the log.
    reason: str
    #: Remove the segment only while its copy is unfinished. If the copy gets finished after all, it stays.
    if_unfinished: bool = False


@dataclass(slots=True)
class Plan:
    removals: list[Removal] = field(default_factory=list)
    #: The log start after the removals; None: unchanged.
    log_start: Offset | None = None
    #: A later leader has begun a copy: this broker no longer leads, but does not know it yet.
    is_deposed: bool = False
    #: Until this time, and until the log has grown by so many bytes, checking the same segments again finds nothing to do.
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
    """`is_tiered` is false once the topic has left the tier: then all its segments are removed."""
    result = Plan()
    kept: list[RemoteSegment] = []
    strangers: list[RemoteSegment] = []
    for segment in tier.all():
        mark = segment.mark
        if segment.id in being_copied:
            continue
        if max(mark.leader_epoch if mark is not None else -1, *segment.epochs, -1) > facts.leader_epoch:
            result.is_deposed = True
        elif segment.state is SegmentState.DELETE_STARTED:
            result.removals.append(Removal(segment, "its deletion was not finished"))
        elif not is_tiered:
            result.removals.append(Removal(segment, "the topic has left the tier"))
        elif segment.end_offset < facts.log_start:
            result.removals.append(Removal(segment, f"below the log start, {facts.log_start}"))
        elif segment.state is SegmentState.COPY_STARTED:
            # A copy of other software has no leader epoch, so it is unknown whether its leader is still copying.
            if mark is not None and _is_held_elsewhere(segment, tier, facts):
                result.removals.append(Removal(segment, "its copy was not finished", if_unfinished=True))
        elif not tier.is_read(segment):
            continue  # another copy contains all its records, and is removed with it
        elif lineage.is_within(segment, facts.epochs, facts.log_start, facts.log_end):
            kept.append(segment)
        elif lineage.knows_all(tier, facts.epochs, facts.log_start) and not lineage.touches(
            segment, facts.epochs, facts.log_end
        ):
            strangers.append(segment)
    if result.is_deposed:
        return Plan(is_deposed=True)
    if is_tiered:
        _expire(result, kept, facts, config, now_ms)
        _remove_strangers(result, strangers, config, now_ms, has_history=bool(kept))
    return result


def _is_held_elsewhere(segment: RemoteSegment, tier: RemoteLogMetadataCache, facts: LogFacts) -> bool:
    """Whether all the records are also in the local log or in finished copies. If not, this copy was probably finished, and the
    metadata lost after the records were deleted here: it may be the only copy of them."""
    start = max(segment.start_offset, facts.log_start)
    end = min(segment.end_offset + 1, facts.local_start)
    if start >= end or not lineage.is_within(segment, facts.epochs, facts.log_start, facts.log_end):
        return True
    return lineage.covered_end(tier, facts.epochs, start, end) >= end


def _expire(result: Plan, kept: list[RemoteSegment], facts: LogFacts, config: LogConfig, now_ms: int) -> None:
    """Remove the oldest segments of the log's own history while a retention rule applies."""
    excess = -1
    if config.retention_bytes >= 0:
        excess = facts.only_local_bytes + sum(each.size_bytes for each in kept) - config.retention_bytes
    for segment in kept:
        if config.retention_ms >= 0 and segment.max_timestamp <= now_ms - config.retention_ms:
            reason = f"retention.ms={config.retention_ms}"
        elif excess >= segment.size_bytes:
            reason = f"retention.bytes={config.retention_bytes}"
        else:
            result.idle_until_ms = segment.max_timestamp + config.retention_ms if config.retention_ms >= 0 else None
            result.idle_bytes = segment.size_bytes - excess if config.retention_bytes >= 0 else None
            break
        excess -= segment.size_bytes
        result.removals.append(Removal(segment, reason))
        result.log_start = Offset(max(segment.end_offset + 1, result.log_start or 0))


def _remove_strangers(
    result: Plan, strangers: list[RemoteSegment], config: LogConfig, now_ms: int, *, has_history: bool
) -> None:
    """Remove segments without a record of this log: an unclean election took them back. If no segment at all belongs to the
    log, the log was probably lost: then they stay until retention, so that an operator can look at them."""
    for segment in strangers:
        is_old = config.retention_ms >= 0 and segment.max_timestamp <= now_ms - config.retention_ms
        if not has_history and not is_old:
            if config.retention_ms >= 0:
                expires_ms = segment.max_timestamp + config.retention_ms
                result.idle_until_ms = min(expires_ms, result.idle_until_ms or expires_ms)
        else:
            result.removals.append(Removal(segment, "not in the history of the log, after an unclean election"))
