"""One partition of a coordinator's topic while this broker leads it: runs the machine and carries out its results.

Records are appended and replayed in one step; answers and messages go out when the records are committed. Operations that do
not read what operations of their kind write (offset commits) may be gathered: their records share an append at the end of the
loop's turn, or earlier if anything else happens to the shard. Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from barnabas.base.errors import BrokenInvariant, ErrorCode, NothingWritten, Refused
from barnabas.broker.runtime.alarms import Alarms
from barnabas.broker.runtime.internal_log import CoordinatorLog, coordinator_error
from barnabas.broker.runtime.machine import (
    NO_PRODUCER,
    CancelTimer,
    Machine,
    Marker,
    R,
    ReplayedRecord,
    Reply,
    Respond,
    Result,
    SendToDriver,
    SetTimer,
    Ticket,
)
from barnabas.broker.runtime.timers import Timer, Timers
from barnabas.broker.runtime.turns import TurnEnd

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)

#: A timer whose records the log refused (too few replicas) fires again after this time.
REFUSED_TIMER_BACKOFF_MS: Final = 1000
#: A timer that failed because of a bug fires again after this time.
FAILED_TIMER_BACKOFF_MS: Final = 60_000
#: Keys and values that are written together: far less than fits into a batch, so that one append does not block the loop for
#: long.
GATHERED_BYTES_MAX: Final = 128 * 1024


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContext:
    """The values that all shards of one coordinator share."""

    #: Name of the topic.
    name: str
    log: CoordinatorLog
    now_ms: Callable[[], int]
    timers: Timers
    #: Passes the messages of a partition's machine to the driver.
    on_effect: Callable[[int, object], None]
    #: How long an answer waits for followers until it becomes COORDINATOR_NOT_AVAILABLE; None: callers have their own time-out.
    answer_timeout_ms: Callable[[], int] | None
    turn_end: TurnEnd = field(default_factory=TurnEnd)


class _Answers(NamedTuple):
    """Answers and messages that go out when the state that they depend on is committed."""

    responses: list[Respond]
    messages: list[object]
    #: Fails the answers when they have waited too long.
    limit: Timer | None


class Shard(Generic[M]):
    __slots__ = (
        "_alarms",
        "_context",
        "_gathered",
        "_gathered_bytes",
        "_turn_end",
        "_uncommitted",
        "_waiting",
        "_writes",
        "epoch",
        "machine",
        "partition",
        "state",
    )

    def __init__(self, context: ShardContext, partition: int, epoch: int, machine: M) -> None:
        self._context = context
        self._turn_end = context.turn_end
        self._alarms = Alarms(context.timers, self._alarm_fired)
        self.partition = partition
        self.epoch = epoch
        self.machine = machine
        self.state = ShardState.LOADING
        #: Numbers of the writes that are not committed yet, and the number of the last write.
        self._uncommitted: set[int] = set()
        self._writes = 0
        #: Combined results of this turn's gathered operations, for one append. None: there are none.
        self._gathered: Result[None] | None = None
        self._gathered_bytes = 0
        #: Answers that wait for all writes up to a number.
        self._waiting: list[tuple[int, _Answers]] = []

    def __str__(self) -> str:
        return f"{self._context.name} partition {self.partition}"

    # -- states --------------------------------------------------------------------------------------

    def replay_loaded(self, entry: ReplayedRecord | Marker, offset: int) -> None:
        if isinstance(entry, Marker):
            self.machine.replay_marker(entry, offset)
        else:
            self.machine.replay(entry)

    def activate(self) -> None:
        """Start serving: everything is loaded."""
        self.state = ShardState.ACTIVE
        self._carry_out(self.machine.loaded(self._context.now_ms()), None)

    def close(self) -> None:
        """End serving because the leadership is lost: all waiting clients get an error and look for the new coordinator."""
        was_active = self.state is ShardState.ACTIVE
        self.state = ShardState.CLOSED
        self._alarms.clear()
        moved = Refused(ErrorCode.NOT_COORDINATOR, f"{self} has moved")
        waiting, self._waiting = self._waiting, []
        for _, answers in waiting:
            self._fail_answers(answers, moved)
        gathered, self._gathered, self._gathered_bytes = self._gathered, None, 0
        if gathered is not None:
            self._fail_all([effect for effect in gathered.effects if isinstance(effect, Respond)], moved)
        if was_active:
            for ticket in self.machine.unloaded():
                self._fail(ticket, moved)
            log.info("[%s] unloaded", self)

    # -- operations ---------------------------------------------------------------------------------------------------

    def begin(self, operation: Callable[[M, Ticket], Result[R]]) -> "asyncio.Future[R]":
        self._append_gathered()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        ticket = Ticket(future)
        self._carry_out(_run_operation(operation, self.machine, ticket), ticket)
        return future

    def gather(self, operation: Callable[[M, Ticket], Result[R]], reply: Reply[R]) -> None:
        ticket = Ticket(reply=reply)
        result = _run_operation(operation, self.machine, ticket)
        if not result.records or result.producer != NO_PRODUCER:
            self._append_gathered()
            self._carry_out(result, ticket)
            return
        if result.response is not None:
            result.effects.append(Respond(ticket, result.response))
        size_bytes = 0
        for key, value in result.records:
            size_bytes += len(key) + len(value or b"")
        if self._gathered_bytes + size_bytes > GATHERED_BYTES_MAX:
            self._append_gathered()
        self._gathered_bytes += size_bytes
        gathered = self._gathered
        if gathered is None:
            self._gathered = Result(result.records, None, result.effects)
            self._turn_end.put_off(self._append_gathered)
        else:
            gathered.records += result.records
            gathered.effects += result.effects

    def _append_gathered(self) -> None:
        gathered = self._gathered
        if gathered is not None:
            self._gathered, self._gathered_bytes = None, 0
            self._carry_out(gathered, None)

    async def read(self, operation: Callable[[M], R]) -> R:
        self._append_gathered()
        answer = operation(self.machine)
        if self._uncommitted:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_committed([Respond(Ticket(future), None)], [])
            await future
        return answer

    def submit(self, operation: Callable[[M], Result[None]]) -> None:
        self._append_gathered()
        try:
            result = _run_operation(operation, self.machine)
        except Exception:
            log.exception("[%s] could not handle a change: please report this bug", self)
            return
        self._carry_out(result, None)

    def replay_marker(self, marker: Marker, offset: int) -> None:
        self._append_gathered()
        try:
            self.machine.replay_marker(marker, offset)
        except Exception as bug:
            raise self._cannot_replay(bug) from bug

    def _cannot_replay(self, bug: Exception) -> BrokenInvariant:
        return BrokenInvariant(f"{self} cannot replay its own records: {bug!r}")

    def _alarm_fired(self, key: Hashable) -> None:
        self._append_gathered()
        try:
            result = _run_operation(self.machine.timer_fired, key, self._context.now_ms())
        except Exception:
            # The request that set the timer is done. The timer may work later, when the state has changed.
            log.exception("[%s] the timer %s failed and fires again in a minute: please report this bug", self, key)
            self._alarms.set(key, FAILED_TIMER_BACKOFF_MS)
            return
        if not self._carry_out(result, None):
            self._alarms.set(key, REFUSED_TIMER_BACKOFF_MS)

    # -- results -------------------------------------------------------------------------------------------------

    def _carry_out(self, result: Result[Any], ticket: Ticket | None) -> bool:
        """Carry out a result. False: the log refused the records, and no timer was set or cancelled."""
        answers: list[Respond] = []
        messages: list[object] = []
        timers: list[SetTimer | CancelTimer] = []
        for effect in result.effects:
            if isinstance(effect, Respond):
                answers.append(effect)
            elif isinstance(effect, SendToDriver):
                messages.append(effect.message)
            else:
                timers.append(effect)
        if ticket is not None and result.response is not None:
            answers.append(Respond(ticket, result.response))
        if result.records:
            try:
                self._append(result, answers, messages)
            except Refused as refusal:
                failure = Refused(coordinator_error(refusal.code), refusal.message)
                self._fail_all(answers, failure)
                if ticket is not None:
                    self._fail(ticket, failure)
                if result.if_refused is not None:
                    self._carry_out(result.if_refused(), None)
                return False
        elif self._uncommitted:
            self._when_committed(answers, messages)
        else:
            self._answer(answers)
            self._send_to_driver(messages)
        for effect in timers:
            if isinstance(effect, SetTimer):
                self._alarms.set(effect.key, effect.delay_ms)
            else:
                self._alarms.cancel(effect.key)
        return result.then is None or self._carry_out(result.then(), ticket)

    def _append(self, result: Result[Any], responses: list[Respond], messages: list[object]) -> None:
        number = self._writes + 1
        #: The result of a commit that came before the machine had replayed the records.
        settled: ErrorCode | None = None
        is_replayed = False
        limit: Timer | None = None

        def committed(error: ErrorCode) -> None:
            nonlocal settled
            if not is_replayed:
                settled = error
                return
            self._uncommitted.discard(number)
            if limit is not None:
                limit.cancel()
            if error is ErrorCode.NONE:
                self._answer(responses)
                self._send_to_driver(messages)
                self._release()
                return
            failure = Refused(coordinator_error(error), f"{self}: {error.name}")
            self._fail_all(responses, failure)
            invalid_answers = [answers for seen, answers in self._waiting if seen >= number]
            self._waiting = [(seen, answers) for seen, answers in self._waiting if seen < number]
            for answers in invalid_answers:
                self._fail_answers(answers, failure)

        now_ms, producer, replay = self._context.now_ms(), result.producer, self.machine.replay
        first = self._context.log.append(
            self.partition,
            result.records,
            producer=producer,
            guard=result.guard,
            now_ms=now_ms,
            on_committed=committed,
        )
        self._writes = number
        try:
            for offset, record in enumerate(result.records, start=first):
                replay(ReplayedRecord(record, offset, now_ms, producer))
        except Exception as bug:
            raise self._cannot_replay(bug) from bug
        is_replayed = True
        if settled is not None:
            committed(settled)
            return
        self._uncommitted.add(number)
        limit = self._limit(responses)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _when_committed(self, responses: list[Respond], messages: list[object]) -> None:
        """Send these once the last write is committed: they wrote nothing themselves, but may depend on it."""
        if responses or messages:
            self._waiting.append((self._writes, _Answers(responses, messages, self._limit(responses))))

    def _release(self) -> None:
        if not self._waiting:
            return
        oldest = min(self._uncommitted, default=self._writes + 1)
        ready = [answers for seen, answers in self._waiting if seen < oldest]
        self._waiting = [(seen, answers) for seen, answers in self._waiting if seen >= oldest]
        for answers in ready:
            if answers.limit is not None:
                answers.limit.cancel()
            self._answer(answers.responses)
            self._send_to_driver(answers.messages)

    def _limit(self, responses: list[Respond]) -> Timer | None:
        """Limit the wait for slow followers: the client gets an error, and asks again. The records stay written."""
        timeout_ms = self._context.answer_timeout_ms
        if timeout_ms is None or not responses:
            return None
        late = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the replicas of {self} did not confirm in time")
        return self._context.timers.call_later(timeout_ms() / 1000, lambda: self._fail_all(responses, late))

    def _send_to_driver(self, messages: list[object]) -> None:
        for message in messages:
            self._context.on_effect(self.partition, message)

    def _answer(self, answers: list[Respond]) -> None:
        for ticket, response in answers:
            future, reply = ticket.future, ticket.reply
            if reply is not None:
                ticket.reply = None
                self._turn_end.put_off(partial(reply, response, None))
            elif future is not None and not future.done():
                future.set_result(response)

    def _fail_answers(self, answers: _Answers, failure: Refused) -> None:
        if answers.limit is not None:
            answers.limit.cancel()
        self._fail_all(answers.responses, failure)

    def _fail_all(self, answers: list[Respond], failure: Refused) -> None:
        for answer in answers:
            self._fail(answer.ticket, failure)

    def _fail(self, ticket: Ticket, failure: Refused) -> None:
        future, reply = ticket.future, ticket.reply
        if reply is not None:
            ticket.reply = None
            self._turn_end.put_off(partial(reply, None, failure))
        elif future is not None and not future.done():
            future.set_exception(failure)


def _run_operation(operation: Callable[..., Result[Any]], *arguments: object) -> Result[Any]:
    """Run an operation. A bug in it happens before anything is written, whichever exception the machine raises."""
    try:
        return operation(*arguments)
    except BrokenInvariant as bug:
        raise NothingWritten(str(bug)) from bug
