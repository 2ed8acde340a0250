"""The shell around a coordinator's machines: one shard for each partition of an internal topic that this broker leads.

A machine is pure. An operation on it returns a `Result`: records to write, an answer, effects. The runtime appends the
records to the partition, replays them into the machine, and lets the answers go when the records are committed. Replay
alone changes the hard state, so that a new leader, which only replays the log, arrives at the same state.

    answer = await runtime.write(partition, lambda machine, ticket: machine.join_group(request, ticket, now_ms))

An operation whose answer comes later (a join that waits for others) returns no answer and keeps its ticket; a later result
carries `Respond(ticket, answer)`. Owner: the event loop. Appending is synchronous: between an operation and its replay
nothing else runs, so machines never see half of a change. What is seen may not be committed yet; the answer of a read, or
of an operation that writes nothing (a refusal, a retry), therefore waits for the shard's last write, and never shows what
a failover could take back. Operations that do not look at what their like write (offset commits) may be gathered: their
records share an append at the end of the loop's turn, or before anything else happens to the shard.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from barnabas.core.errors import BrokenInvariant, ErrorCode, NothingWritten, Refused
from barnabas.runtime.machine import (
    NO_PRODUCER,
    CancelTimer,
    KeyValue,
    Machine,
    Marker,
    Producer,
    R,
    ReplayedRecord,
    Reply,
    Respond,
    Result,
    SetTimer,
    Tell,
    Ticket,
)
from barnabas.runtime.timers import Timer, Timers
from barnabas.runtime.turns import TurnEnd

log = logging.getLogger(__name__)


M = TypeVar("M", bound=Machine)
Replay = Callable[[ReplayedRecord | Marker, int], None]


class CoordinatorLog(Protocol):
    """The internal topic, as the runtime sees it. The broker makes one from the replica manager."""

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        *,
        producer: Producer,
        now_ms: int,
        on_committed: Callable[[ErrorCode], None],
    ) -> int:
        """Append as leader with acks=all and return the first offset, or raise `Refused`.

        `on_committed` is called exactly once, before this returns where nobody else is in the ISR. An error says that the
        records may never be committed by this leader: it is for one that lost its leadership, not for one whose
        followers are slow. Those are waited for, however long it takes: until then nobody may see what was written.
        """
        ...

    async def load(self, partition: int, replay: Replay) -> None:
        """Feed everything in the log to `replay` with its offset, in slices that leave the loop to others.

        Returns when all of it is committed. Raises `Refused` where this broker does not lead the partition any more.
        """
        ...


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class _Alarm:
    """A timer of a machine. One that is put off stays as it is, and looks at its new deadline when it fires: a member's
    session is put off with each of its requests.
    """

    __slots__ = ("deadline_s", "fires_at_s", "timer")

    def __init__(self, deadline_s: float, timer: Timer) -> None:
        self.deadline_s = deadline_s
        #: Never after the deadline.
        self.fires_at_s = deadline_s
        self.timer = timer


class _Answers(NamedTuple):
    """What goes out when what was seen is committed."""

    responses: list[Respond]
    messages: list[object]
    #: Fires when they have waited for too long.
    limit: Timer | None


class Shard(Generic[M]):
    """One partition's machine while this broker leads the partition in one epoch."""

    __slots__ = (
        "epoch",
        "gathered",
        "gathered_bytes",
        "machine",
        "partition",
        "state",
        "timers",
        "uncommitted",
        "waiting",
        "writes",
    )

    def __init__(self, partition: int, epoch: int, machine: M) -> None:
        self.partition = partition
        self.epoch = epoch
        self.machine = machine
        self.state = ShardState.LOADING
        self.timers: dict[Hashable, _Alarm] = {}
        #: Numbers of writes that are not committed yet, and the number of the last one.
        self.uncommitted: set[int] = set()
        self.writes = 0
        #: What operations of this turn of the loop want to happen, together: it goes into one append. None: nothing does.
        self.gathered: Result[None] | None = None
        self.gathered_bytes = 0
        #: Answers that wait for all writes up to a number.
        self.waiting: list[tuple[int, _Answers]] = []


#: A timer whose records the log refused (too few replicas) fires again after this.
REFUSED_TIMER_BACKOFF_MS: Final = 1000
#: One that failed because of a bug fires again after this.
FAILED_TIMER_BACKOFF_MS: Final = 60_000

#: Keys and values that are written together: well below what a batch may take, and one append does not hold the loop long.
GATHERED_BYTES_MAX: Final = 128 * 1024
#: The loop counts in milliseconds: a timer may fire by so much early.
TIMER_PRECISION_S: Final = 0.001

_LOG_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """How an error of the internal topic's log looks to a client of the coordinator, as in Kafka."""
    return _LOG_ERRORS.get(error, error)


class CoordinatorRuntime(Generic[M]):
    def __init__(
        self,
        name: str,
        coordinator_log: CoordinatorLog,
        *,
        make_machine: Callable[[int], M],
        now_ms: Callable[[], int],
        timers: Timers,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        on_effect: Callable[[int, object], None] = lambda partition, message: None,
        answer_timeout_ms: Callable[[], int] | None = None,
        on_loaded: Callable[[float], None] = lambda took_ms: None,
    ) -> None:
        """`answer_timeout_ms`: how long an answer waits for followers before it is COORDINATOR_NOT_AVAILABLE; None:
        whoever asks gives up by themselves. `on_loaded` is told how long a partition took to load.
        """
        self._name = name
        self._log = coordinator_log
        self._make_machine = make_machine
        self._now_ms = now_ms
        self._timers = timers
        self._spawn = spawn
        self._on_effect = on_effect
        self._answer_timeout_ms = answer_timeout_ms
        self._on_loaded = on_loaded
        self._shards: dict[int, Shard[M]] = {}
        self._turn_end = TurnEnd()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def elected(self, partition: int, epoch: int) -> None:
        """This broker leads the partition now: load it, and serve when it is loaded."""
        current = self._shards.get(partition)
        if current is not None:
            if current.epoch >= epoch:
                return
            if current.state is ShardState.ACTIVE:
                # Still the leader, in a newer epoch: the state is right, and nothing was lost.
                current.epoch = epoch
                return
            self._close(current)
        shard = self._shards[partition] = Shard(partition, epoch, self._make_machine(partition))
        self._spawn(self._load(shard), f"load {self._name} {partition}")

    def resigned(self, partition: int) -> None:
        shard = self._shards.pop(partition, None)
        if shard is not None:
            self._close(shard)

    @property
    def active(self) -> dict[int, M]:
        """The machines that serve, by partition."""
        return {p: shard.machine for p, shard in self._shards.items() if shard.state is ShardState.ACTIVE}

    @property
    def is_loading(self) -> bool:
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    def count(self, state: ShardState) -> int:
        """How many partitions are in a state."""
        return sum(shard.state is state for shard in self._shards.values())

    async def _load(self, shard: Shard[M]) -> None:
        began_s = self._timers.time()

        def replay(entry: ReplayedRecord | Marker, offset: int) -> None:
            if isinstance(entry, Marker):
                shard.machine.replay_marker(entry, offset)
            else:
                shard.machine.replay(entry)

        try:
            await self._log.load(shard.partition, replay)
        except Refused as refusal:
            log.info("%s partition %d is not loaded: %s", self._name, shard.partition, refusal)
            shard.state = ShardState.FAILED
            return
        except Exception:
            log.exception(
                "cannot load %s partition %d; its groups or transactions are unavailable", self._name, shard.partition
            )
            shard.state = ShardState.FAILED
            return
        if shard.state is not ShardState.LOADING:
            return  # resigned meanwhile
        shard.state = ShardState.ACTIVE
        self._on_loaded((self._timers.time() - began_s) * 1000)
        log.info("%s partition %d loaded in epoch %d", self._name, shard.partition, shard.epoch)
        self._carry_out(shard, shard.machine.loaded(self._now_ms()), None)

    def _close(self, shard: Shard[M]) -> None:
        was_active = shard.state is ShardState.ACTIVE
        shard.state = ShardState.CLOSED
        for alarm in shard.timers.values():
            alarm.timer.cancel()
        shard.timers.clear()
        moved = Refused(ErrorCode.NOT_COORDINATOR, f"{self._name} partition {shard.partition} has moved")
        waiting, shard.waiting = shard.waiting, []
        for _, answers in waiting:
            self._fail_answers(answers, moved)
        gathered, shard.gathered, shard.gathered_bytes = shard.gathered, None, 0
        if gathered is not None:
            self._fail_all([effect for effect in gathered.effects if isinstance(effect, Respond)], moved)
        if was_active:
            for ticket in shard.machine.unloaded():
                self._fail(ticket, moved)
            log.info("%s partition %d unloaded", self._name, shard.partition)

    # -- operations ---------------------------------------------------------------------------------------------------

    def _active(self, partition: int) -> Shard[M]:
        shard = self._shards.get(partition)
        if shard is None or shard.state is ShardState.CLOSED:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{self._name} partition {partition} is not led by this broker")
        if shard.state is ShardState.LOADING:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._name} partition {partition} is being loaded")
        if shard.state is ShardState.FAILED:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{self._name} partition {partition} could not be loaded")
        return shard

    def require(self, partition: int) -> None:
        """:raises Refused: where this broker does not serve the partition, or not yet."""
        self._active(partition)

    def begin(self, partition: int, operation: Callable[[M, Ticket], Result[R]]) -> "asyncio.Future[R]":
        """Run an operation now. The future has its answer once what it wrote is committed: often it is there at once."""
        shard = self._active(partition)
        self._append_gathered(shard)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        ticket = Ticket(future)
        self._carry_out(shard, self._judged(operation, shard.machine, ticket), ticket)
        return future

    @staticmethod
    def _judged(operation: Callable[..., Result[Any]], *arguments: object) -> Result[Any]:
        """What an operation wants to happen. A bug in it comes before anything is written, whatever the machine calls it."""
        try:
            return operation(*arguments)
        except BrokenInvariant as bug:
            raise NothingWritten(str(bug)) from bug

    def gather(self, partition: int, operation: Callable[[M, Ticket], Result[R]], reply: Reply[R]) -> None:
        """Run an operation now, and write its records together with those of others that come in the same turn of the loop.

        For operations that look at nothing which their like write: they do not see each other's records. Everything else
        does, since the records are written before anything else happens to the shard. What the operation raises is raised
        here; else `reply` is called once, never before this returns and never in the middle of another operation.
        """
        shard = self._active(partition)
        ticket = Ticket(reply=reply)
        result = self._judged(operation, shard.machine, ticket)
        if not result.records or result.producer != NO_PRODUCER:
            self._append_gathered(shard)
            self._carry_out(shard, result, ticket)
            return
        if result.response is not None:
            result.effects.append(Respond(ticket, result.response))
        size_bytes = 0
        for key, value in result.records:
            size_bytes += len(key) + len(value or b"")
        if shard.gathered_bytes + size_bytes > GATHERED_BYTES_MAX:
            self._append_gathered(shard)
        shard.gathered_bytes += size_bytes
        together = shard.gathered
        if together is None:
            shard.gathered = Result(result.records, None, result.effects)
            self._turn_end.put_off(partial(self._append_gathered, shard))
        else:
            together.records += result.records
            together.effects += result.effects

    def _append_gathered(self, shard: Shard[M]) -> None:
        gathered = shard.gathered
        if gathered is not None:
            shard.gathered, shard.gathered_bytes = None, 0
            self._carry_out(shard, gathered, None)

    async def write(self, partition: int, operation: Callable[[M, Ticket], Result[R]]) -> R:
        """Run an operation; its answer, once what it wrote is committed."""
        return await self.begin(partition, operation)

    async def read(self, partition: int, operation: Callable[[M], R]) -> R:
        """Look, and answer when everything that was seen is committed."""
        shard = self._active(partition)
        self._append_gathered(shard)
        answer = operation(shard.machine)
        if shard.uncommitted:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_committed(shard, [Respond(Ticket(future), None)], [])
            await future
        return answer

    def submit(self, partition: int, operation: Callable[[M], Result[None]]) -> None:
        """An operation without a caller: the metadata changed, a topic was deleted. Skipped where nothing is loaded."""
        shard = self._shards.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            self._append_gathered(shard)
            try:
                result = self._judged(operation, shard.machine)
            except Exception:
                log.exception("%s partition %d cannot take a change that it was told of", self._name, partition)
                return
            self._carry_out(shard, result, None)

    def replay_marker(self, partition: int, marker: Marker, offset: int) -> None:
        """A transaction marker was written to a partition that this broker leads."""
        shard = self._shards.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            self._append_gathered(shard)
            try:
                shard.machine.replay_marker(marker, offset)
            except Exception as bug:
                raise self._cannot_replay(shard, bug) from bug

    def _cannot_replay(self, shard: Shard[M], bug: Exception) -> BrokenInvariant:
        return BrokenInvariant(f"{self._name} partition {shard.partition} cannot replay what it wrote: {bug!r}")

    def _carry_out(self, shard: Shard[M], result: Result[Any], ticket: Ticket | None) -> bool:
        """Whether it was done: False where the log refused the records. Then no timer was set or cancelled for them."""
        answers: list[Respond] = []
        messages: list[object] = []
        timers: list[SetTimer | CancelTimer] = []
        for effect in result.effects:
            if isinstance(effect, Respond):
                answers.append(effect)
            elif isinstance(effect, Tell):
                messages.append(effect.message)
            else:
                timers.append(effect)
        if ticket is not None and result.response is not None:
            answers.append(Respond(ticket, result.response))
        if result.records:
            try:
                self._append(shard, result, answers, messages)
            except Refused as refusal:
                failure = Refused(coordinator_error(refusal.code), refusal.message)
                self._fail_all(answers, failure)
                if ticket is not None:
                    self._fail(ticket, failure)
                if result.if_refused is not None:
                    self._carry_out(shard, result.if_refused(), None)
                return False
        elif shard.uncommitted:
            self._when_committed(shard, answers, messages)
        else:
            self._answer(answers)
            self._tell(shard, messages)
        for effect in timers:
            if isinstance(effect, SetTimer):
                self._set_timer(shard, effect)
            else:
                alarm = shard.timers.pop(effect.key, None)
                if alarm is not None:
                    alarm.timer.cancel()
        return result.then is None or self._carry_out(shard, result.then(), ticket)

    def _when_committed(self, shard: Shard[M], responses: list[Respond], messages: list[object]) -> None:
        """Nothing was written, but what was seen waits for its commit, and so do the answers."""
        if responses or messages:
            shard.waiting.append((shard.writes, _Answers(responses, messages, self._limit(responses))))

    def _limit(self, responses: list[Respond]) -> Timer | None:
        """Followers may be slow for long; a client hears of it, and asks again. What was written stays written."""
        if self._answer_timeout_ms is None or not responses:
            return None
        late = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the replicas of {self._name} have not confirmed in time")
        return self._timers.call_later(self._answer_timeout_ms() / 1000, lambda: self._fail_all(responses, late))

    def _append(self, shard: Shard[M], result: Result[Any], responses: list[Respond], messages: list[object]) -> None:
        number = shard.writes + 1
        #: Set by a commit that comes before the machine knows of its records.
        settled: ErrorCode | None = None
        is_replayed = False
        limit: Timer | None = None

        def committed(error: ErrorCode) -> None:
            nonlocal settled
            if not is_replayed:
                settled = error
                return
            shard.uncommitted.discard(number)
            if limit is not None:
                limit.cancel()
            if error is ErrorCode.NONE:
                self._answer(responses)
                self._tell(shard, messages)
                self._release(shard)
                return
            failure = Refused(coordinator_error(error), f"{self._name} partition {shard.partition}: {error.name}")
            self._fail_all(responses, failure)
            deceived = [answers for seen, answers in shard.waiting if seen >= number]
            shard.waiting = [(seen, answers) for seen, answers in shard.waiting if seen < number]
            for answers in deceived:
                self._fail_answers(answers, failure)

        now_ms, producer, replay = self._now_ms(), result.producer, shard.machine.replay
        first = self._log.append(
            shard.partition, result.records, producer=producer, now_ms=now_ms, on_committed=committed
        )
        shard.writes = number
        try:
            for offset, record in enumerate(result.records, start=first):
                replay(ReplayedRecord(record, offset, now_ms, producer))
        except Exception as bug:
            raise self._cannot_replay(shard, bug) from bug
        is_replayed = True
        if settled is not None:
            committed(settled)
            return
        shard.uncommitted.add(number)
        limit = self._limit(responses)

    def _release(self, shard: Shard[M]) -> None:
        if not shard.waiting:
            return
        oldest = min(shard.uncommitted, default=shard.writes + 1)
        ready = [answers for seen, answers in shard.waiting if seen < oldest]
        shard.waiting = [(seen, answers) for seen, answers in shard.waiting if seen >= oldest]
        for answers in ready:
            if answers.limit is not None:
                answers.limit.cancel()
            self._answer(answers.responses)
            self._tell(shard, answers.messages)

    def _tell(self, shard: Shard[M], messages: list[object]) -> None:
        for message in messages:
            self._on_effect(shard.partition, message)

    def _set_timer(self, shard: Shard[M], effect: SetTimer) -> None:
        key, delay_ms = effect
        delay_s = delay_ms / 1000 if delay_ms > 0 else 0.0
        deadline_s = self._timers.time() + delay_s
        alarm = shard.timers.get(key)
        if alarm is not None:
            if alarm.fires_at_s <= deadline_s:
                alarm.deadline_s = deadline_s
                return
            alarm.timer.cancel()
        self._arm(shard, key, deadline_s, delay_s)

    def _arm(self, shard: Shard[M], key: Hashable, deadline_s: float, delay_s: float) -> None:
        def fire() -> None:
            left_s = alarm.deadline_s - self._timers.time()
            if left_s > TIMER_PRECISION_S:
                self._arm(shard, key, alarm.deadline_s, left_s)
                return
            del shard.timers[key]
            if shard.state is not ShardState.ACTIVE:
                return
            self._append_gathered(shard)
            try:
                result = self._judged(shard.machine.timer_fired, key, self._now_ms())
            except Exception:
                # Whoever brought the machine there is the one whose timer it is. It may work once others have moved on.
                log.exception("%s partition %d: the timer %s failed", self._name, shard.partition, key)
                self._set_timer(shard, SetTimer(key, FAILED_TIMER_BACKOFF_MS))
                return
            if not self._carry_out(shard, result, None):
                self._set_timer(shard, SetTimer(key, REFUSED_TIMER_BACKOFF_MS))

        alarm = shard.timers[key] = _Alarm(deadline_s, self._timers.call_later(delay_s, fire))

    def close(self) -> None:
        """The broker stops."""
        for partition in list(self._shards):
            self.resigned(partition)

    # -- answers ------------------------------------------------------------------------------------------------------

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
