"""The state of one partition in a fetcher. Pure."""

from enum import Enum
from typing import Final

from barnabas.base.errors import IllegalTransition
from barnabas.base.ids import LeaderEpoch, TopicId
from barnabas.broker.replication.fetch_steps import UNDEFINED, LocalLog


class Phase(Enum):
    #: Before fetching, it must ask the leader where the epochs ended.
    TRUNCATING = "truncating"
    FETCHING = "fetching"
    #: The leader does not have the fetch offset: it must ask where the leader's log starts and ends.
    RESETTING = "resetting"
    #: The leader has the fetch offset in the tier only, or the two logs agree only below the end of the tier: it must ask where
    #: the leader's log begins on disk, and start there.
    TIERING = "tiering"


#: Every legal transition: (phase, event) -> phase. Any other event raises `IllegalTransition`.
TRANSITIONS: Final[dict[tuple[Phase, str], Phase]] = {
    (Phase.TRUNCATING, "truncated"): Phase.FETCHING,
    (Phase.TRUNCATING, "truncated_in_part"): Phase.TRUNCATING,
    (Phase.TRUNCATING, "mark_for_truncation"): Phase.TRUNCATING,
    (Phase.TRUNCATING, "moved_to_tier"): Phase.TIERING,
    (Phase.FETCHING, "appended"): Phase.FETCHING,
    (Phase.FETCHING, "truncated"): Phase.FETCHING,
    (Phase.FETCHING, "truncated_in_part"): Phase.FETCHING,
    (Phase.FETCHING, "out_of_range"): Phase.RESETTING,
    (Phase.FETCHING, "moved_to_tier"): Phase.TIERING,
    (Phase.FETCHING, "mark_for_truncation"): Phase.TRUNCATING,
    (Phase.RESETTING, "truncated"): Phase.FETCHING,
    (Phase.RESETTING, "kept"): Phase.FETCHING,
    (Phase.RESETTING, "moved_to_tier"): Phase.TIERING,
    (Phase.RESETTING, "mark_for_truncation"): Phase.TRUNCATING,
    (Phase.TIERING, "truncated"): Phase.FETCHING,
    (Phase.TIERING, "mark_for_truncation"): Phase.TRUNCATING,
}


class FetchState:
    """The progress of one partition. While it is FETCHING, `fetch_offset` equals the local log end."""

    __slots__ = (
        "backoff_ms",
        "began_in_tier",
        "delayed_until_ms",
        "fetch_offset",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "log",
        "phase",
        "topic_id",
    )

    def __init__(
        self, log: LocalLog, *, topic_id: TopicId, leader_epoch: LeaderEpoch, truncates_on_fetch: bool
    ) -> None:
        self.log = log
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        latest = log.latest_epoch
        if truncates_on_fetch and latest is not None:
            # The leader compares epochs at every fetch, so nothing must be asked first.
            self.phase = Phase.FETCHING
            self.fetch_offset = log.log_end
        else:
            # Without an epoch in the log, only the high watermark can be compared.
            self.phase = Phase.TRUNCATING
            self.fetch_offset = log.high_watermark
        self.last_fetched_epoch: int = UNDEFINED if latest is None else latest
        #: Records between this log's end and the leader's high watermark; None: not known yet.
        self.lag: int | None = None
        self.delayed_until_ms: int | None = None
        self.backoff_ms = 0
        #: In this leader epoch the log has begun where the tier ends. If the leader makes it truncate below that, the tier has
        #: its records from another leader, and beginning there again would not help.
        self.began_in_tier = False

    def step(self, event: str) -> None:
        target = TRANSITIONS.get((self.phase, event))
        if target is None:
            raise IllegalTransition(f"the phase {self.phase.name} does not allow the event {event}")
        self.phase = target

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.FETCHING and self.delayed_until_ms is None

    @property
    def is_in_sync(self) -> bool:
        return self.lag is not None and self.lag <= 0


def or_undefined(epoch: LeaderEpoch | None) -> int:
    return UNDEFINED if epoch is None else epoch
