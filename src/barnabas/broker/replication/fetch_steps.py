"""The values between a fetcher, its leader and the local logs: next steps, answers, effects. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from barnabas.base.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.broker.replication.follower_session import FetchPlan
from barnabas.broker.storage.epoch_cache import EpochEnd

UNDEFINED: Final = -1


class LocalLog(Protocol):
    """The parts of a replica that the machine reads."""

    @property
    def log_start(self) -> Offset: ...

    @property
    def log_end(self) -> Offset: ...

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def latest_epoch(self) -> LeaderEpoch | None: ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch <= `epoch` in this log, and where it ended; (-1, -1) if that is not known."""
        ...


@dataclass(slots=True)
class Append:
    """Append these bytes (perhaps none) at the log end, then take over the leader's high watermark and log start."""

    partition: TopicPartition
    records: memoryview
    leader_high_watermark: int
    leader_log_start: int


@dataclass(slots=True)
class TruncateTo:
    partition: TopicPartition
    offset: Offset
    #: False: after this, ask the leader again with the epoch in which the log then ends (KIP-279).
    is_complete: bool


@dataclass(slots=True)
class TruncateFully:
    """Drop all records and restart the log at `offset`: the leader has deleted everything that this replica has."""

    partition: TopicPartition
    offset: Offset


@dataclass(slots=True)
class StartFromTier:
    """Drop all records and begin where the tier ends: the leader has the next records in the tier only."""

    partition: TopicPartition
    #: Start of the leader's log on its disk, and start of the whole log.
    local_start: int
    log_start: int
    #: Epoch of the record before `local_start`; with it the tier is asked.
    epoch: int


@dataclass(slots=True)
class GiveUp:
    """Stop fetching the partition, until the controller sends another LeaderAndIsr for it."""

    partition: TopicPartition
    reason: str
    #: Only the leader epoch is over: the controller has elected a leader, and its request is on the way.
    is_fenced: bool = False


Cut = TruncateTo | TruncateFully | StartFromTier
Effect = Append | Cut | GiveUp


class EpochQuestion(NamedTuple):
    current_leader_epoch: LeaderEpoch
    epoch: LeaderEpoch


@dataclass(slots=True)
class AskEpochEnds:
    """Send OffsetForLeaderEpoch; the answer goes to `epoch_ends`."""

    questions: dict[TopicPartition, EpochQuestion]


@dataclass(slots=True)
class AskOffsets:
    """Send ListOffsets for the latest, then for the earliest offset; the answers go to `offsets_listed`."""

    current_leader_epochs: dict[TopicPartition, LeaderEpoch]


@dataclass(slots=True)
class AskTierStarts:
    """Ask the leader where its log begins on its disk, and in all; the answers go to `tier_starts`."""

    current_leader_epochs: dict[TopicPartition, LeaderEpoch]


@dataclass(slots=True)
class Truncate:
    """Carry these effects out and report them; the leader is not asked."""

    effects: tuple[TruncateTo, ...]


@dataclass(slots=True)
class SendFetch:
    plan: FetchPlan
    #: The leader must answer by then, because a partition's pause ends. None: no such limit.
    until_ms: int | None = None


@dataclass(slots=True)
class Idle:
    """Nothing to do until `until_ms`, or (None) until a partition is added."""

    until_ms: int | None


Step = AskEpochEnds | AskOffsets | AskTierStarts | Truncate | SendFetch | Idle


class FetchedPartition(NamedTuple):
    """One partition of a Fetch response."""

    partition: TopicPartition
    error_code: int
    high_watermark: int = UNDEFINED
    log_start: int = UNDEFINED
    #: Set if the leader's log differs from ours: its last epoch <= ours, and where that epoch ended.
    diverging: EpochEnd | None = None
    records: memoryview | bytes | None = None


class EpochAnswer(NamedTuple):
    error_code: int
    end: EpochEnd


class TierAnswer(NamedTuple):
    error_code: int
    local_start: int = UNDEFINED
    log_start: int = UNDEFINED
    #: Epoch of the record before the local start.
    epoch: int = UNDEFINED


class OffsetsAnswer(NamedTuple):
    error_code: int
    latest: int = UNDEFINED
    earliest: int = UNDEFINED


def where_to_cut(partition: TopicPartition, log: LocalLog, leader: EpochEnd) -> TruncateTo:
    """Choose where to truncate, so that this log becomes a beginning of the leader's.

    `leader`: the leader's last epoch up to one of ours, and where that epoch ended. KIP-101: truncating to this replica's own
    high watermark would lose records that are committed but not yet known to be, and would keep others that differ. KIP-279:
    truncate to the end of the last epoch that both logs have.
    """
    if leader.end_offset == UNDEFINED:
        # The leader does not know: keep only records that are certainly committed.
        return TruncateTo(partition, Offset(min(log.high_watermark, log.log_end)), True)
    if leader.epoch == UNDEFINED:
        return TruncateTo(partition, min(leader.end_offset, log.log_end), True)
    ours = log.end_offset_for_epoch(leader.epoch)
    if ours.end_offset == UNDEFINED:
        return TruncateTo(partition, min(leader.end_offset, log.log_end), True)
    if ours.epoch != leader.epoch:
        # This log never had the leader's last epoch below ours: truncate the records above it, and ask again.
        return TruncateTo(partition, min(ours.end_offset, log.log_end), False)
    return TruncateTo(partition, min(ours.end_offset, leader.end_offset, log.log_end), True)
