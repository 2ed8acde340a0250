"""What a fetcher does next, what its leader answers, and what follows for the local logs: values. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from barnabas.base.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.broker.replication.follower_session import FetchPlan
from barnabas.broker.storage.epoch_cache import EpochEnd

UNDEFINED: Final = -1


class LocalLog(Protocol):
    """What the machine reads of a replica."""

    @property
    def log_start(self) -> Offset: ...

    @property
    def log_end(self) -> Offset: ...

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def latest_epoch(self) -> LeaderEpoch | None: ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch <= `epoch` that wrote here and where it ended; (-1, -1) where that is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Append:
    """Append these bytes (perhaps none) at the log end, then take the leader's high watermark and log start."""

    partition: TopicPartition
    records: memoryview
    leader_high_watermark: int
    leader_log_start: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    partition: TopicPartition
    offset: Offset
    #: False: the leader must be asked again with the epoch that the log then ends in (KIP-279).
    is_complete: bool


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Drop all records and restart the log at `offset`: the leader has deleted everything that this replica has."""

    partition: TopicPartition
    offset: Offset


@dataclass(frozen=True, slots=True)
class StartFromTier:
    """Drop all records, and begin where the tier ends: the leader has what would come next in the tier only."""

    partition: TopicPartition
    #: Where the leader's log begins on its disk, and in all.
    local_start: int
    log_start: int
    #: In which the record before `local_start` was written: by it the tier is asked.
    epoch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The partition is no longer fetched here, until the controller speaks again."""

    partition: TopicPartition
    reason: str
    #: Only its leader epoch is over: the controller has spoken, and the word is on its way here.
    is_fenced: bool = False


Cut = TruncateTo | TruncateFully | StartFromTier
Effect = Append | Cut | GiveUp


class EpochQuestion(NamedTuple):
    current_leader_epoch: LeaderEpoch
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AskEpochEnds:
    """Send OffsetForLeaderEpoch; the answer goes to `epoch_ends`."""

    questions: dict[TopicPartition, EpochQuestion]


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Send ListOffsets for the latest, then for the earliest offset; the answers go to `offsets_listed`."""

    current_leader_epochs: dict[TopicPartition, LeaderEpoch]


@dataclass(frozen=True, slots=True)
class AskTierStarts:
    """Ask the leader where its log begins on its disk, and in all; the answers go to `tier_starts`."""

    current_leader_epochs: dict[TopicPartition, LeaderEpoch]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Nothing to ask: carry these out and report them."""

    effects: tuple[TruncateTo, ...]


@dataclass(frozen=True, slots=True)
class SendFetch:
    plan: FetchPlan
    #: The leader must not keep it waiting for longer: a partition's pause ends then. None: no such limit.
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
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
    #: The leader's logs part from ours: its last epoch <= ours, and where that one ended.
    diverging: EpochEnd | None = None
    records: memoryview | bytes | None = None


class EpochAnswer(NamedTuple):
    error_code: int
    end: EpochEnd


class TierAnswer(NamedTuple):
    error_code: int
    local_start: int = UNDEFINED
    log_start: int = UNDEFINED
    #: Of the record before the local start.
    epoch: int = UNDEFINED


class OffsetsAnswer(NamedTuple):
    error_code: int
    latest: int = UNDEFINED
    earliest: int = UNDEFINED


def where_to_cut(partition: TopicPartition, log: LocalLog, leader: EpochEnd) -> TruncateTo:
    """So that this log is a beginning of the leader's. `leader`: its last epoch up to one of ours, and where that one ended.

    KIP-101: cutting at the own high watermark would lose records that are committed, where the leader's word of
    that had not arrived yet, and keep others that differ. KIP-279: cut at the end of the last epoch that both know.
    """
    if leader.end_offset == UNDEFINED:
        # The leader cannot tell: what is left is what is surely committed.
        return TruncateTo(partition, Offset(min(log.high_watermark, log.log_end)), True)
    if leader.epoch == UNDEFINED:
        return TruncateTo(partition, min(leader.end_offset, log.log_end), True)
    ours = log.end_offset_for_epoch(leader.epoch)
    if ours.end_offset == UNDEFINED:
        return TruncateTo(partition, min(leader.end_offset, log.log_end), True)
    if ours.epoch != leader.epoch:
        # The leader's last epoch below ours is one that we never had: cut what is above it, and ask again.
        return TruncateTo(partition, min(ours.end_offset, log.log_end), False)
    return TruncateTo(partition, min(ours.end_offset, leader.end_offset, log.log_end), True)
