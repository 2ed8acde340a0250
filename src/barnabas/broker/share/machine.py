"""The records in flight of one share partition: available, locked by a member, or decided on (KIP-932).

A pure machine. Its runs cover every offset from `start` to `end`. Below `start` every delivery is complete; from `end` on no
record was ever delivered. A decision about an acquired record becomes final when it is persisted: the driver writes the `Write`
that a method returns, and reports the outcome by `commit` or `roll_back`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Final

from barnabas.base.errors import BrokenInvariant, ErrorCode, Refused
from barnabas.broker.runtime.share_state import StateBatch
from barnabas.broker.share.records import (
    ACKNOWLEDGEMENTS,
    COMPLETE,
    RENEW,
    Acknowledgement,
    Event,
    RecordState,
    Run,
    ShareLimits,
    Write,
)

_FIRST: Final = attrgetter("first")
#: Entries of the heap of locks beyond which those that are over are removed.
_LOCKS_SPARE: Final = 64
#: An acquired record is persisted as available.
_PERSISTED: Final = frozenset(RecordState) - {RecordState.ACQUIRED}


class ShareMachine:
    __slots__ = ("_complete", "_gone_below", "_locks", "_runs", "_search_from", "end", "limits", "start")

    def __init__(self, start: int, limits: ShareLimits, batches: Iterable[StateBatch] = ()) -> None:
        """Begin with the persisted state. Offsets between its batches were never decided on: they are delivered again."""
        #: Records below have been delivered and decided on, or are gone from the log.
        self.start = start
        #: The first offset that was never delivered. start <= end.
        self.end = start
        #: Set by the driver whenever the group's settings change.
        self.limits = limits
        #: The log has nothing below: acknowledgements of these records do nothing. _gone_below <= start.
        self._gone_below = 0
        #: In the order of their offsets, without gaps from `start` to `end`. No run continues the one before.
        self._runs: list[Run] = []
        #: Records of the runs in a complete state, also those whose decision is being persisted.
        self._complete = 0
        #: No record below is available.
        self._search_from = start
        #: (deadline, first offset, last offset): a superset of the locks that are held.
        self._locks: list[tuple[int, int, int]] = []
        for batch in batches:
            self._load(batch)
        self._merge(0, len(self._runs))
        self._advance()

    def _load(self, batch: StateBatch) -> None:
        is_known = batch.delivery_state in _PERSISTED
        if not is_known or batch.last_offset < batch.first_offset or (self._runs and batch.first_offset < self.end):
            raise Refused(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The persisted state of a share partition is damaged: {batch} follows records up to {self.end - 1}.",
            )
        first = max(batch.first_offset, self.start)
        if batch.last_offset < first:
            return
        state = RecordState(batch.delivery_state)
        if self.end < first:
            self._append(first - 1, RecordState.AVAILABLE)
        self._append(batch.last_offset, state, delivery_count=batch.delivery_count)

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def complete_count(self) -> int:
        """Records from `start` on whose delivery is complete."""
        return self._complete

    @property
    def in_flight(self) -> int:
        return self.end - self.start

    @property
    def has_locks(self) -> bool:
        """Whether a member holds records."""
        return any(True for _ in self._held())

    @property
    def run_count(self) -> int:
        return len(self._runs)

    def runs(self) -> Iterator[Run]:
        return iter(self._runs)

    def next_offset(self) -> int:
        """Return the first offset that a member may be given; `end` if all known records are taken."""
        for index in range(self._index(self._search_from), len(self._runs)):
            run = self._runs[index]
            if run.is_available:
                self._search_from = run.first
                return run.first
        self._search_from = self.end
        return self.end

    def can_acquire(self) -> bool:
        """Whether a member may be given records, if the log has them."""
        return self.in_flight < self.limits.in_flight_max or self.next_offset() < self.end

    def next_deadline_ms(self) -> int | None:
        """Return when the next lock may time out; None if there is none. The lock may have been given back by then."""
        return self._locks[0][0] if self._locks else None

    # -- for `acquiring` ----------------------------------------------------------------------------------------------

    def available(self, first: int, last: int) -> Run | None:
        """Return the first run with an available record from `first` to `last`."""
        for index in range(self._index(first), len(self._runs)):
            run = self._runs[index]
            if run.first > last:
                return None
            if run.is_available:
                return run
        return None

    def lock(self, member: str, first: int, last: int, *, now_ms: int) -> int:
        """Give these records to a member. They are available and of one run, or begin at `end`. Return the delivery count."""
        if first == self.end:
            self._append(last, RecordState.AVAILABLE)
        [run] = cut = self._cut(first, last)
        self._set(run, Event.ACQUIRE)
        run.delivery_count += 1
        run.member, run.lock_until_ms = member, now_ms + self.limits.lock_ms
        self._hold(run)
        self._merge_around(cut)
        return run.delivery_count

    def remove(self, first: int, last: int) -> None:
        """Forget offsets at which the log has nothing for members. Records that a member has stay with it."""
        if last >= self.end:
            if first > self.end:
                raise BrokenInvariant(f"a gap from {first} on, but the records from {self.end} on are not known")
            self._append(last, RecordState.AVAILABLE)
        cut = self._cut(first, last)
        for run in cut:
            if run.is_available:
                self._set(run, Event.REMOVE)
        self._merge_around(cut)
        self._advance()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def acknowledge(self, member: str, decisions: Sequence[Acknowledgement], *, now_ms: int) -> Write | None:
        """Carry out a member's decisions: all of them, or none if one is refused. Returns what has to be persisted."""
        write = Write()
        renewed: list[tuple[int, int]] = []
        try:
            for decision in decisions:
                for first, last, kind in self._spans(decision):
                    self._require_acquired(first, last, member)
                    if kind != RENEW:
                        self._decide(write, self._cut(first, last), ACKNOWLEDGEMENTS[kind])
                    elif self.limits.allows_renewal:
                        renewed.append((first, last))
                    else:
                        raise Refused(
                            ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group."
                        )
        except Refused:
            self.roll_back(write, now_ms=now_ms)
            raise
        for first, last in renewed:
            self._renew(first, last, now_ms)
        return write if write.batches else None

    def release(self, member: str) -> Write | None:
        """Take back all records of a member that has left."""
        write = Write()
        self._decide(write, [run for run in self._held() if run.member == member], Event.RELEASE)
        return write if write.batches else None

    def expire(self, now_ms: int) -> Write | None:
        """Take back the records whose locks have timed out. That is final at once: the members lost them by themselves."""
        write = Write(is_final=True)
        expired: list[Run] = []
        while self._locks and self._locks[0][0] <= now_ms:
            _, first, last = heappop(self._locks)
            for index in range(self._index(first), len(self._runs)):
                run = self._runs[index]
                if run.first > last:
                    break
                if run.state is RecordState.ACQUIRED and run.lock_until_ms <= now_ms:
                    self._give_back(run)
                    expired.append(run)
        for run in sorted(expired, key=_FIRST):
            write.batches.append(_state_batch(run))
            write.runs.append((run.first, run.last))
        self._settle(write)
        self._advance()
        return write if write.batches else None

    def commit(self, write: Write) -> None:
        """The decisions are persisted."""
        for first, last in write.runs:
            for run in self._within(first, last):
                if run.write is write:
                    run.write = None
                    self._let_go(run)
        self._settle(write)
        self._advance()

    def roll_back(self, write: Write, *, now_ms: int) -> None:
        """The decisions could not be persisted: the members have the records again, unless their locks have timed out."""
        if not write.is_final:
            self._undo(write, now_ms)
        self._advance()

    def dead_letters(self) -> list[Run]:
        """Return the records that wait for their copy to the dead-letter topic."""
        return [run for run in self._runs if run.state is RecordState.ARCHIVING and run.write is None]

    def buried(self, first: int, last: int) -> Write | None:
        """These records are in the dead-letter topic, or can never be. Final at once, since a copy cannot be undone."""
        write = Write(is_final=True)
        for run in self._within(first, last):
            if run.state is not RecordState.ARCHIVING or run.write is not None:
                continue
            for part in self._cut(max(run.first, first), min(run.last, last)):
                self._set(part, Event.BURIED)
                part.is_rejected = False
                write.batches.append(_state_batch(part))
                write.runs.append((part.first, part.last))
        self._settle(write)
        self._advance()
        return write if write.batches else None

    def move_start(self, log_start: int) -> None:
        """The log begins later: retention, or DeleteRecords. Acknowledgements for what is gone do nothing."""
        self._gone_below = max(self._gone_below, log_start)
        if log_start <= self.start:
            return
        if log_start < self.end:
            self._split(log_start)
        gone = self._index(log_start) if log_start < self.end else len(self._runs)
        self._complete -= sum(run.size for run in self._runs[:gone] if run.state in COMPLETE)
        del self._runs[:gone]
        self.start = log_start
        self.end = max(self.end, log_start)
        self._search_from = max(self._search_from, log_start)
        self._advance()

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def _spans(self, decision: Acknowledgement) -> Iterator[tuple[int, int, int]]:
        """Yield (first, last, type) of neighbouring records with the same type, from the start offset on."""
        first, last, types = decision
        if last < first or len(types) not in (1, last - first + 1):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{len(types)} acknowledge types for offsets {first} to {last}")
        if wrong := set(types) - {*ACKNOWLEDGEMENTS, RENEW}:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {min(wrong)}")
        if last < self._gone_below:
            return
        if max(first, self._gone_below) < self.start:
            raise Refused(
                ErrorCode.INVALID_RECORD_STATE, f"The delivery of the records below {self.start} is complete."
            )
        if last >= self.end:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Records up to {last}: those from {self.end} on were never acquired"
            )
        if len(types) == 1:
            yield max(first, self.start), last, types[0]
            return
        at = first
        for kind, same in groupby(types):
            size = sum(1 for _ in same)
            if at + size > self.start:
                yield max(at, self.start), at + size - 1, kind
            at += size

    def _require_acquired(self, first: int, last: int, member: str) -> None:
        for run in self._within(first, last):
            if run.state is not RecordState.ACQUIRED:
                why = f"The records {run.first} to {run.last} are not acquired."
            elif run.member != member:
                why = f"The records {run.first} to {run.last} are acquired by another member."
            else:
                continue
            raise Refused(ErrorCode.INVALID_RECORD_STATE, why)

    def _decide(self, write: Write, runs: Iterable[Run], event: Event) -> None:
        for run in runs:
            effective = self._effective(run, event)
            self._set(run, effective)
            run.is_rejected = effective is Event.BURY and event is Event.REJECT
            run.write = write
            write.batches.append(_state_batch(run))
            write.runs.append((run.first, run.last))

    def _effective(self, run: Run, event: Event) -> Event:
        if event in (Event.RELEASE, Event.EXPIRE) and run.delivery_count >= self.limits.delivery_count_limit:
            event = Event.GIVE_UP
        if event in (Event.GIVE_UP, Event.REJECT) and self.limits.has_dead_letters:
            event = Event.BURY
        return event

    def _renew(self, first: int, last: int, now_ms: int) -> None:
        cut = self._cut(first, last)
        for run in cut:
            if run.state is RecordState.ACQUIRED:  # unless the same request has decided about it, too
                run.lock_until_ms = now_ms + self.limits.lock_ms
                self._hold(run)
        self._merge_around(cut)

    def _undo(self, write: Write, now_ms: int) -> None:
        for first, last in write.runs:
            for run in self._within(first, last):
                if run.write is write:
                    self._set(run, Event.UNDO)
                    run.write, run.is_rejected = None, False
                    if run.lock_until_ms <= now_ms:
                        self._give_back(run)
                    else:
                        self._hold(run)
        self._settle(write)

    def _give_back(self, run: Run) -> None:
        """Take the records from a member whose lock has timed out."""
        self._set(run, self._effective(run, Event.EXPIRE))
        self._let_go(run)

    def _let_go(self, run: Run) -> None:
        run.member, run.lock_until_ms = "", 0
        if run.state is RecordState.AVAILABLE:
            self._search_from = min(self._search_from, run.first)

    # -- the runs -----------------------------------------------------------------------------------------------------

    def _set(self, run: Run, event: Event) -> None:
        """The only place in which the state of records changes."""
        before = run.state in COMPLETE
        run.follow(event)
        self._complete += ((run.state in COMPLETE) - before) * run.size

    def _append(self, last: int, state: RecordState, *, delivery_count: int = 0) -> None:
        run = Run(self.end, last, state, delivery_count)
        # The persisted state does not have the reason.
        run.is_rejected = state is RecordState.ARCHIVING and delivery_count < self.limits.delivery_count_limit
        self._runs.append(run)
        self.end = last + 1
        if state in COMPLETE:
            self._complete += run.size
        elif run.is_available:
            self._search_from = min(self._search_from, run.first)

    def _index(self, offset: int) -> int:
        """Return the index of the run that holds `offset`: the first one below `start`, none from `end` on."""
        if offset >= self.end:
            return len(self._runs)
        return max(bisect_right(self._runs, offset, key=_FIRST) - 1, 0)

    def _within(self, first: int, last: int) -> list[Run]:
        """Return the runs with any of these offsets."""
        if last < self.start:
            return []
        return self._runs[self._index(first) : self._index(last) + 1]

    def _held(self) -> Iterator[Run]:
        return (run for run in self._runs if run.state is RecordState.ACQUIRED)

    def _split(self, offset: int) -> None:
        index = self._index(offset)
        if index < len(self._runs) and self._runs[index].first < offset:
            self._runs.insert(index + 1, self._runs[index].split(offset))

    def _cut(self, first: int, last: int) -> list[Run]:
        """Return the runs of exactly these offsets, which lie between `start` and `end`."""
        self._split(first)
        self._split(last + 1)
        return self._within(first, last)

    def _merge_around(self, runs: Sequence[Run]) -> None:
        if runs:
            self._merge(self._index(runs[0].first) - 1, self._index(runs[-1].first) + 2)

    def _settle(self, write: Write) -> None:
        if write.runs:
            first = min(first for first, _ in write.runs)
            last = max(last for _, last in write.runs)
            self._merge(self._index(first) - 1, self._index(last) + 2)

    def _merge(self, low: int, high: int) -> None:
        """Join equal neighbours among the runs with these indexes."""
        low, high = max(low, 0), min(high, len(self._runs))
        merged: list[Run] = []
        for run in self._runs[low:high]:
            if merged and run.continues(merged[-1]):
                merged[-1].last = run.last
            else:
                merged.append(run)
        self._runs[low:high] = merged

    def _advance(self) -> None:
        """Move the start past the records whose delivery is complete."""
        done = 0
        for run in self._runs:
            if not run.is_complete:
                break
            done += 1
            self._complete -= run.size
            self.start = run.last + 1
        del self._runs[:done]
        self._search_from = max(self._search_from, self.start)

    # -- locks --------------------------------------------------------------------------------------------------------

    def _hold(self, run: Run) -> None:
        heappush(self._locks, (run.lock_until_ms, run.first, run.last))
        if len(self._locks) > 2 * len(self._runs) + _LOCKS_SPARE:
            self._locks = [(held.lock_until_ms, held.first, held.last) for held in self._held()]
            heapify(self._locks)


def _state_batch(run: Run) -> StateBatch:
    return StateBatch(run.first, run.last, run.state, run.delivery_count)
