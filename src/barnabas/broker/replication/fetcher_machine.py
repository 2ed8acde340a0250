"""The fetcher machine decides what a follower asks its leader next, and what it does with the answer. Pure.

One machine follows one source broker, for any number of partitions. It reads the local logs through `LocalLog`, and changes
them by effects, which its driver (`replication.fetcher`) carries out at once and reports back:

    step = machine.next_step(now_ms)        # AskEpochEnds | AskOffsets | AskTierStarts | SendFetch | Idle
    effects = machine.fetched(plan, ...)    # Append | TruncateTo | TruncateFully | StartFromTier | GiveUp
    machine.appended(partition)             # after each Append that worked; append_failed(...) otherwise

A partition's life, as in Kafka 3.9 (KIP-101, KIP-279, KIP-320, KIP-595's truncation on fetch):

    add ──▶ TRUNCATING ──(epoch ends agreed)──▶ FETCHING ◀──────────┐
     └───────(leader truncates on fetch)──────────▲  │ out of range  │
                                                  │  ▼               │
                                                  └─ RESETTING ──────┘      any of them ──(error)──▶ delayed, then back

KIP-405: a partition whose next records the leader has in the tier only is TIERING until it has begun where the tier ends.

Owner: the event loop. The cost of a step depends on the changes, not on the number of partitions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.broker.replication.fetch_state import FetchState, Phase, or_undefined
from barnabas.broker.replication.fetch_steps import (
    UNDEFINED,
    Append,
    AskEpochEnds,
    AskOffsets,
    AskTierStarts,
    Cut,
    Effect,
    EpochAnswer,
    EpochQuestion,
    FetchedPartition,
    GiveUp,
    Idle,
    LocalLog,
    OffsetsAnswer,
    SendFetch,
    StartFromTier,
    Step,
    TierAnswer,
    Truncate,
    TruncateFully,
    TruncateTo,
    where_to_cut,
)
from barnabas.broker.replication.follower_session import FetchEntry, FetchPlan, FetchSessionHandler

#: Twice as fast as a call of the class.
_new_entry = tuple.__new__
A = TypeVar("A", EpochAnswer, OffsetsAnswer, TierAnswer)

#: Returns where a log ends once these records are in it; None if the records do not show it.
EndAfter = Callable[[memoryview], int | None]

#: The first pause after an error; it doubles up to `replica.fetch.backoff.ms`. A new leader learns of its election within
#: milliseconds, and meanwhile the partition's acks=all waits for this follower.
FIRST_BACKOFF_MS: Final = 20
#: How long a session goes on after an answer was lost. The answer may have had a high watermark, which the leader sends only
#: once; only a new session makes it send it again. A new session costs something for every partition, so it does not begin in
#: the middle of a fail-over, when most answers are lost.
NEW_SESSION_AFTER_MS: Final = 2000
NO_ENDS: Final[Mapping[TopicPartition, int]] = {}


def never_throttled(partition: TopicPartition) -> bool:
    return False


class FetcherMachine:
    def __init__(
        self,
        *,
        partition_bytes_max: int,
        backoff_max_ms: int,
        truncates_on_fetch: bool = True,
        is_throttled: Callable[[TopicPartition], bool] = never_throttled,
        end_after: EndAfter | None = None,
    ) -> None:
        """`is_throttled(partition)`: whether it is in the throttled list while the replication quota is used up.
        `end_after`: see `read_ahead`; None: do not read ahead."""
        self._partition_bytes_max = partition_bytes_max
        self._backoff_max_ms = backoff_max_ms
        self._truncates_on_fetch = truncates_on_fetch
        self._is_throttled = is_throttled
        self._end_after = end_after
        self._states: dict[TopicPartition, FetchState] = {}
        self._session = FetchSessionHandler()
        #: Partitions whose entry in the fetch session may be outdated. Bounded by the number of partitions.
        self._dirty: dict[TopicPartition, None] = {}
        #: Partitions that are not FETCHING: few, and examined in every step.
        self._unsettled: dict[TopicPartition, None] = {}
        #: Partitions that the quota holds back; examined in every step.
        self._held: dict[TopicPartition, None] = {}
        self._delays: list[tuple[int, TopicPartition]] = []
        #: When to begin a new session because an answer may have been lost.
        self._new_session_at_ms: int | None = None
        #: Partitions that an answer mentioned while they were not followed: if they are added again before the next plan, they
        #: have missed this answer.
        self._missed_answers: set[TopicPartition] = set()

    # --- partitions -------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self._states.keys()

    def state(self, partition: TopicPartition) -> FetchState | None:
        return self._states.get(partition)

    @property
    def truncates_on_fetch(self) -> bool:
        return self._truncates_on_fetch

    def set_truncates_on_fetch(self, value: bool) -> None:
        """Note whether the leader truncates on fetch (Fetch v12 and later), once its versions are known. A change restarts
        all."""
        if value == self._truncates_on_fetch:
            return
        self._truncates_on_fetch = value
        for partition, state in list(self._states.items()):
            self._put(partition, state.log, state.topic_id, state.leader_epoch)

    def add(self, partition: TopicPartition, log: LocalLog, *, topic_id: TopicId, leader_epoch: LeaderEpoch) -> bool:
        """Follow a partition in a leader epoch. False: it is followed in that epoch already, and nothing changes."""
        known = self._states.get(partition)
        if known is not None and known.leader_epoch == leader_epoch and known.log is log:
            return False
        self._put(partition, log, topic_id, leader_epoch)
        return True

    def _put(self, partition: TopicPartition, log: LocalLog, topic_id: TopicId, leader_epoch: LeaderEpoch) -> None:
        state = FetchState(
            log, topic_id=topic_id, leader_epoch=leader_epoch, truncates_on_fetch=self._truncates_on_fetch
        )
        self._states[partition] = state
        self._touch(partition, state)

    def remove(self, partition: TopicPartition) -> bool:
        if self._states.pop(partition, None) is None:
            return False
        self._unsettled.pop(partition, None)
        self._held.pop(partition, None)
        self._dirty[partition] = None
        return True

    def set_topic_id(self, partition: TopicPartition, topic_id: TopicId) -> None:
        state = self._states.get(partition)
        if state is not None:
            state.topic_id = topic_id
            self._touch(partition, state)

    def log_start_moved(self, partition: TopicPartition) -> None:
        """Send the leader the new log start: the replica deleted records on its own."""
        state = self._states.get(partition)
        if state is not None:
            self._touch(partition, state)

    def mark_for_truncation(self, partition: TopicPartition, offset: Offset) -> None:
        """Truncate a future replica, because the current one was truncated."""
        state = self._states.get(partition)
        if state is not None:
            state.step("mark_for_truncation")
            state.fetch_offset = min(offset, state.fetch_offset)
            state.last_fetched_epoch = UNDEFINED
            self._touch(partition, state)

    def _touch(self, partition: TopicPartition, state: FetchState) -> None:
        self._dirty[partition] = None
        if state.phase is Phase.FETCHING:
            self._unsettled.pop(partition, None)
        else:
            self._unsettled[partition] = None

    # --- what to do next -------------------------------------------------------------------------------------------

    def has_work(self, now_ms: int) -> bool:
        """Whether some partition is not delayed, so that the leader will be asked."""
        self._wake(now_ms)
        return any(state.delayed_until_ms is None for state in self._states.values())

    def next_step(self, now_ms: int) -> Step:
        self._wake(now_ms)
        return self._settle() or self._plan(now_ms)

    def _wake(self, now_ms: int) -> None:
        while self._delays and self._delays[0][0] <= now_ms:
            until_ms, partition = heappop(self._delays)
            state = self._states.get(partition)
            if state is not None and state.delayed_until_ms == until_ms:
                state.delayed_until_ms = None
                self._touch(partition, state)

    def _settle(self) -> Step | None:
        """Return the step for partitions that must not fetch yet: first those that truncate, then those that lost their
        offset."""
        questions: dict[TopicPartition, EpochQuestion] = {}
        to_high_watermark: list[TruncateTo] = []
        resetting: dict[TopicPartition, LeaderEpoch] = {}
        tiering: dict[TopicPartition, LeaderEpoch] = {}
        for partition in self._unsettled:
            state = self._states[partition]
            if state.delayed_until_ms is not None:
                continue
            if state.phase is Phase.RESETTING:
                resetting[partition] = state.leader_epoch
            elif state.phase is Phase.TIERING:
                tiering[partition] = state.leader_epoch
            elif (epoch := state.log.latest_epoch) is not None:
                questions[partition] = EpochQuestion(state.leader_epoch, epoch)
            else:
                to_high_watermark.append(TruncateTo(partition, Offset(state.fetch_offset), True))
        if to_high_watermark:
            return Truncate(tuple(to_high_watermark))
        if questions:
            return AskEpochEnds(questions)
        if resetting:
            return AskOffsets(resetting)
        return AskTierStarts(tiering) if tiering else None

    def read_ahead(self, effects: list[Effect], now_ms: int) -> SendFetch | None:
        """Return the request that follows an answer, to send it before the answer is appended: then the leader reads on
        meanwhile.

        Followers do not read ahead, because their fetches acknowledge the records below their offsets. It happens only while a
        partition is behind and nothing else comes first. If a log does not end where this expects it, `fetched` drops the
        answer.
        """
        self._wake(now_ms)
        if self._end_after is None or self._settle() is not None:
            return None
        ends: dict[TopicPartition, int] = {}
        is_behind = False
        for effect in effects:
            if not isinstance(effect, Append):
                return None
            if not effect.records:
                continue
            end = self._end_after(effect.records)
            if end is None:
                return None
            ends[effect.partition] = end
            is_behind = is_behind or end < effect.leader_high_watermark
        if not is_behind:
            return None
        step = self._plan(now_ms, ends)
        return step if isinstance(step, SendFetch) else None

    def _plan(self, now_ms: int, ends: Mapping[TopicPartition, int] = NO_ENDS) -> SendFetch | Idle:
        """`ends`: where logs will end to which records are about to be appended."""
        self._dirty.update(dict.fromkeys(ends))
        if self._held:
            self._dirty.update(self._held)
        session = self._session
        if self._new_session_at_ms is not None and now_ms >= self._new_session_at_ms:
            session.broken()
        if session.next_is_full:
            self._new_session_at_ms = None
            self._missed_answers.clear()
            entries, _ = self._entries(self._states, ends)
            self._dirty.clear()
            if entries:
                return SendFetch(session.plan_full(entries), self._next_wake_ms(now_ms))
        else:
            changed, dropped = self._entries(self._dirty, ends)
            self._dirty.clear()
            if self._missed_answers:
                if not self._missed_answers.isdisjoint(changed):
                    self._renew_session_later(now_ms)
                self._missed_answers.clear()
            plan = session.plan_increment(changed, dropped)
            if session.sent or plan.forgotten:
                return SendFetch(plan, self._next_wake_ms(now_ms))
        return Idle(self._next_wake_ms(now_ms))

    def _entries(
        self, partitions: Iterable[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, FetchEntry], list[TopicPartition]]:
        entries: dict[TopicPartition, FetchEntry] = {}
        dropped: list[TopicPartition] = []
        for partition in partitions:
            state = self._states.get(partition)
            if state is None or not state.is_ready:
                dropped.append(partition)
            elif not state.is_in_sync and self._is_throttled(partition):
                # A replica in sync is never throttled: otherwise it would leave the ISR and come back again and again.
                self._held[partition] = None
                dropped.append(partition)
            else:
                self._held.pop(partition, None)
                fetch_offset = ends.get(partition, state.fetch_offset)
                last_epoch = state.last_fetched_epoch if self._truncates_on_fetch else UNDEFINED
                epochs = state.leader_epoch, last_epoch
                entries[partition] = _new_entry(
                    FetchEntry, (state.topic_id, fetch_offset, state.log.log_start, *epochs, self._partition_bytes_max)
                )
        return entries, dropped

    def _next_wake_ms(self, now_ms: int) -> int | None:
        until_ms = self._delays[0][0] if self._delays else None
        if self._new_session_at_ms is not None:
            until_ms = self._new_session_at_ms if until_ms is None else min(until_ms, self._new_session_at_ms)
        if self._held:
            retry_ms = now_ms + self._backoff_max_ms
            until_ms = retry_ms if until_ms is None else min(until_ms, retry_ms)
        return until_ms

    # --- what the leader answered ----------------------------------------------------------------------------------

    def fetched(
        self,
        plan: FetchPlan,
        *,
        error_code: int,
        session_id: int,
        partitions: Iterable[FetchedPartition],
        now_ms: int,
    ) -> list[Effect]:
        """Handle a Fetch response. The driver carries out and reports the effects before the next step."""
        if not self._session.answered(plan, error_code=error_code, session_id=session_id):
            if plan.is_full:
                # The leader has a problem with the whole request. A full request cannot be replaced by another, and repeating
                # it at once would never end.
                self._delay_all(now_ms)
            return []
        effects: list[Effect] = []
        sent = self._session.sent
        for fetched in partitions:
            state = self._states.get(fetched.partition)
            asked = sent.get(fetched.partition)
            if (
                state is None
                or asked is None
                or not state.is_ready
                or asked.fetch_offset != state.fetch_offset
                or asked.current_leader_epoch != state.leader_epoch
            ):
                # The partition was removed, moved or truncated while the request was in flight. The leader believes that it has
                # sent its news. (After an error or a truncation it sends everything.)
                if state is None:
                    self._missed_answers.add(fetched.partition)
                elif fetched.error_code == ErrorCode.NONE and fetched.diverging is None:
                    self._renew_session_later(now_ms)
                continue
            if fetched.error_code != ErrorCode.NONE:
                self._refused(state, fetched, now_ms, effects)
            elif fetched.diverging is not None and self._truncates_on_fetch:
                # Take neither high watermark nor log start from this answer: first the logs must agree.
                effects.append(where_to_cut(fetched.partition, state.log, fetched.diverging))
            else:
                effects.append(
                    Append(
                        fetched.partition,
                        memoryview(fetched.records or b""),
                        fetched.high_watermark,
                        fetched.log_start,
                    )
                )
        return effects

    def fetch_failed(self, now_ms: int) -> None:
        """Handle a lost connection or a malformed answer: begin a new session, and delay all partitions."""
        self._session.broken()
        self._delay_all(now_ms)

    def _delay_all(self, now_ms: int) -> None:
        for partition, state in self._states.items():
            self._delay(partition, state, now_ms)

    def fetch_abandoned(self, plan: FetchPlan, now_ms: int) -> None:
        """Handle that the driver gave up a request in flight to send another one at once."""
        if self._session.abandoned(plan):
            self._renew_session_later(now_ms)

    def _renew_session_later(self, now_ms: int) -> None:
        if self._new_session_at_ms is None:
            self._new_session_at_ms = now_ms + NEW_SESSION_AFTER_MS

    def _refused(self, state: FetchState, fetched: FetchedPartition, now_ms: int, effects: list[Effect]) -> None:
        code = fetched.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            state.step("out_of_range")
            self._touch(fetched.partition, state)
        elif code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            state.step("moved_to_tier")
            self._touch(fetched.partition, state)
        elif code == ErrorCode.FENCED_LEADER_EPOCH:
            effects.append(self._fenced(fetched.partition, state))
        else:
            # NOT_LEADER_OR_FOLLOWER, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, ...: the leader has not got the
            # controller's request yet, or this broker has not.
            self._delay(fetched.partition, state, now_ms)

    def _fenced(self, partition: TopicPartition, state: FetchState) -> GiveUp:
        epoch = state.leader_epoch
        self.remove(partition)
        reason = f"the leader epoch {epoch} is over; waiting for the controller's next request"
        return GiveUp(partition, reason, is_fenced=True)

    def epoch_ends(self, asked: AskEpochEnds, answers: dict[TopicPartition, EpochAnswer], now_ms: int) -> list[Effect]:
        """Handle the answer to OffsetForLeaderEpoch. A partition without an answer is asked for again after a pause."""
        effects: list[Effect] = []
        epochs = {partition: question.current_leader_epoch for partition, question in asked.questions.items()}
        for partition, state, answer in self._answered(epochs, Phase.TRUNCATING, answers, now_ms, effects):
            effects.append(where_to_cut(partition, state.log, answer.end))
        return effects

    def _answered(
        self,
        current_leader_epochs: Mapping[TopicPartition, LeaderEpoch],
        phase: Phase,
        answers: dict[TopicPartition, A],
        now_ms: int,
        effects: list[Effect],
    ) -> Iterator[tuple[TopicPartition, FetchState, A]]:
        """Yield partitions that still wait and have an answer. Ask for the others again after a pause, or give them up."""
        for partition, leader_epoch in current_leader_epochs.items():
            state = self._states.get(partition)
            if state is None or state.phase is not phase or state.delayed_until_ms is not None:
                continue
            if state.leader_epoch != leader_epoch:
                continue
            answer = answers.get(partition)
            if answer is None or answer.error_code not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH):
                self._delay(partition, state, now_ms)
            elif answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
                effects.append(self._fenced(partition, state))
            else:
                yield partition, state, answer

    def offsets_listed(
        self, asked: AskOffsets, answers: dict[TopicPartition, OffsetsAnswer], now_ms: int
    ) -> list[Effect]:
        """Handle the answer to ListOffsets after OFFSET_OUT_OF_RANGE."""
        effects: list[Effect] = []
        for partition, state, answer in self._answered(
            asked.current_leader_epochs, Phase.RESETTING, answers, now_ms, effects
        ):
            if answer.latest < state.log.log_end:
                # After an unclean election the leader has less than this replica. The records beyond its log end are lost.
                effects.append(TruncateTo(partition, Offset(answer.latest), True))
            elif answer.earliest > state.log.log_end:
                # This replica was away so long that the leader has deleted the next records.
                effects.append(TruncateFully(partition, Offset(answer.earliest)))
            else:
                # Meanwhile the leader has the offset.
                state.step("kept")
                self._resume(partition, state, max(0, answer.latest - state.log.log_end))
        return effects

    def tier_starts(self, asked: AskTierStarts, answers: dict[TopicPartition, TierAnswer], now_ms: int) -> list[Effect]:
        """Handle the answers to the questions after OFFSET_MOVED_TO_TIERED_STORAGE."""
        effects: list[Effect] = []
        for partition, _, answer in self._answered(
            asked.current_leader_epochs, Phase.TIERING, answers, now_ms, effects
        ):
            if answer.local_start <= answer.log_start:
                # Meanwhile the leader has deleted its records from the tier.
                effects.append(TruncateFully(partition, Offset(answer.log_start)))
            else:
                effects.append(StartFromTier(partition, answer.local_start, answer.log_start, answer.epoch))
        return effects

    # --- what the driver did ---------------------------------------------------------------------------------------

    def appended(self, effect: Append) -> None:
        state = self._states.get(effect.partition)
        if state is None:
            return
        state.step("appended")
        log = state.log
        if log.log_end != state.fetch_offset or state.lag is None:
            state.fetch_offset = log.log_end
            state.last_fetched_epoch = or_undefined(log.latest_epoch)
        state.lag = max(0, effect.leader_high_watermark - state.fetch_offset)
        state.backoff_ms = 0
        self._dirty[effect.partition] = None

    def below_tier_end(self, partition: TopicPartition) -> None:
        """Start from the tier instead of truncating: below that offset only the tier has this replica's records."""
        state = self._states.get(partition)
        if state is not None:
            state.step("moved_to_tier")
            self._touch(partition, state)

    def truncated(self, effect: Cut) -> None:
        state = self._states.get(effect.partition)
        if state is None:
            return
        # A leader that truncates on fetch compares again at the next fetch, so an incomplete truncation need not wait.
        complete = not isinstance(effect, TruncateTo) or effect.is_complete or self._truncates_on_fetch
        state.began_in_tier = state.began_in_tier or isinstance(effect, StartFromTier)
        state.step("truncated" if complete else "truncated_in_part")
        self._resume(effect.partition, state, state.lag)

    def failed(self, partition: TopicPartition, *, is_retriable: bool, reason: str, now_ms: int) -> GiveUp | None:
        """Handle a failed effect. Retriable: the bytes were corrupt on the way. Otherwise the log directory failed."""
        state = self._states.get(partition)
        if state is None:
            return None
        if is_retriable:
            self._delay(partition, state, now_ms)
            return None
        self.remove(partition)
        return GiveUp(partition, reason)

    def _resume(self, partition: TopicPartition, state: FetchState, lag: int | None) -> None:
        state.fetch_offset = state.log.log_end
        state.last_fetched_epoch = or_undefined(state.log.latest_epoch)
        state.lag = lag
        self._touch(partition, state)

    def _delay(self, partition: TopicPartition, state: FetchState, now_ms: int) -> None:
        if state.delayed_until_ms is not None:
            return
        state.backoff_ms = min(self._backoff_max_ms, state.backoff_ms * 2 or FIRST_BACKOFF_MS)
        state.delayed_until_ms = now_ms + state.backoff_ms
        heappush(self._delays, (state.delayed_until_ms, partition))
        self._dirty[partition] = None
