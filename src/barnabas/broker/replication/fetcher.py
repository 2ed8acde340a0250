"""Replica fetchers: tasks that copy partitions from their leaders.

For each source broker there are `num.replica.fetchers` tasks. Each has one connection, one long-poll Fetch in flight, and one
`FetcherMachine`, which makes every decision. The partition appends; this module does not read records.

Owner: the event loop. A fetcher ends when its last partition is removed. It never polls: an idle fetcher waits for its leader's
answer, for the end of a back-off, or for a partition.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.broker.replication.fetch_state import FetchState
from barnabas.broker.replication.fetch_steps import (
    Append,
    AskEpochEnds,
    AskOffsets,
    AskTierStarts,
    Cut,
    Effect,
    GiveUp,
    Idle,
    LocalLog,
    SendFetch,
    StartFromTier,
    Truncate,
    TruncateFully,
    TruncateTo,
)
from barnabas.broker.replication.fetcher_machine import EndAfter, FetcherMachine, never_throttled
from barnabas.broker.replication.follower_session import FetchPlan
from barnabas.broker.replication.leader_endpoint import FetcherSettings, LeaderEndpoint
from barnabas.client.errors import ClientError

_log = logging.getLogger(__name__)

#: Failures of requests to a leader; the fetcher tries again.
_WIRE_FAILURES: Final = (ClientError, Malformed, OSError, EOFError)


class FollowerPartition(LocalLog, Protocol):
    """The parts of a replica that a fetcher uses; `replication.partition.Partition` is one."""

    @property
    def tier_end(self) -> Offset:
        """A tiered log has its records below this offset in the tier only."""
        ...

    def append_follower(self, records: memoryview, leader_high_watermark: int, leader_log_start: int) -> bool:
        """Append whole batches (an incomplete one at the end is left out), then take over the leader's high watermark and
        start.

        True: the records must be on disk (`flush`) before the next fetch, which acknowledges them to the leader.
        Raises `Malformed` or `Refused` for invalid batches, `LogDirFault` if the disk fails.
        """
        ...

    async def flush(self) -> None: ...

    async def truncate_to(self, offset: Offset, *, is_wanted: Callable[[], bool]) -> None:
        """Truncate the log, which may take a while. `is_wanted` is called right before: if it is False, nothing is
        truncated."""
        ...

    async def truncate_fully_and_start_at(self, offset: Offset, *, is_wanted: Callable[[], bool]) -> None: ...


class TierStarts(Protocol):
    """The tier, as followers see it; `features.tiered.reads.TierReads` implements it."""

    async def begin(
        self,
        tp: TopicPartition,
        *,
        local_start: int,
        epoch: int,
        log_start: int,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Drop the replica's records and begin where the tier ends, if `is_wanted()` still holds right before.

        The tier has the record before `local_start`, which was written in `epoch`. Raises `Refused`: the caller tries again.
        """
        ...


class Throttle(Protocol):
    """The replication quota of the follower's side."""

    def is_throttled(self, partition: TopicPartition) -> bool:
        """Whether the partition is in `follower.replication.throttled.replicas` and the rate is used up."""
        ...

    def record(self, partition: TopicPartition, size: int) -> None: ...


class ReplicaFetcher:
    """One task that copies some of one source broker's partitions."""

    def __init__(
        self,
        name: str,
        endpoint: LeaderEndpoint,
        settings: FetcherSettings,
        clock: Clock,
        *,
        throttle: Throttle | None = None,
        tier: Callable[[], TierStarts | None] = lambda: None,
        end_after: EndAfter | None = None,
        on_give_up: Callable[[TopicPartition, str], None] = lambda partition, reason: None,
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._clock = clock
        self._throttle = throttle
        self._tier = tier
        self._on_give_up = on_give_up
        self._wait_max_ms = settings.replica_fetch_wait_max_ms
        self._machine = FetcherMachine(
            partition_bytes_max=settings.replica_fetch_max_bytes,
            backoff_max_ms=settings.replica_fetch_backoff_ms,
            is_throttled=never_throttled if throttle is None else throttle.is_throttled,
            end_after=end_after,
        )
        self._partitions: dict[TopicPartition, FollowerPartition] = {}
        #: Replicas with appended records that must be flushed before the next fetch.
        self._unflushed: list[FollowerPartition] = []
        self._changed = asyncio.Event()
        #: The request that the leader has not answered yet.
        self._polled: FetchPlan | None = None
        #: Appends from the previous answer, with the state at its request; they run while the next request is in flight.
        self._waiting: list[tuple[Append, FetchState | None]] = []
        self._failure: Exception | None = None
        self._was_interrupted = False
        self._interrupted_ms = -self._wait_max_ms
        self._stopping = False
        #: The task that connects, while it does.
        self._connecting: asyncio.Task[None] | None = None
        #: True as soon as the task will do nothing more: then give its partitions to another fetcher.
        self.ended = False
        self.fetched_bytes = 0

    # --- partitions come and go ------------------------------------------------------------------------------------

    def add(
        self, partition: TopicPartition, replica: FollowerPartition, *, topic_id: TopicId, leader_epoch: LeaderEpoch
    ) -> bool:
        """Follow a partition. True if that changes anything: then call `interrupt`, or it waits for the end of a long poll."""
        self._partitions[partition] = replica
        is_news = self._machine.add(partition, replica, topic_id=topic_id, leader_epoch=leader_epoch)
        if is_news:
            self._changed.set()
        return is_news

    def remove(self, partition: TopicPartition) -> bool:
        """Stop following a partition. Nothing is appended to it once this returns."""
        self._partitions.pop(partition, None)
        removed = self._machine.remove(partition)
        self._changed.set()
        if not self._partitions:
            self._cancel_connecting()
        return removed

    def set_topic_id(self, partition: TopicPartition, topic_id: TopicId) -> None:
        self._machine.set_topic_id(partition, topic_id)

    def log_start_moved(self, partition: TopicPartition) -> None:
        self._machine.log_start_moved(partition)

    def mark_for_truncation(self, partition: TopicPartition, offset: Offset) -> None:
        self._machine.mark_for_truncation(partition, offset)
        self._changed.set()

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self._partitions.keys()

    @property
    def max_lag(self) -> int:
        """Records that the slowest partition is behind its leader's high watermark."""
        states = (self._machine.state(partition) for partition in self._partitions)
        return max((state.lag or 0 for state in states if state is not None), default=0)

    def interrupt(self) -> None:
        """End a long poll that would hold back a new partition: its leader's high watermark may wait for this follower.

        The connection is closed with the request; the fetch session goes on. A request that begins a session names every
        partition, and so would its repetition: such a request is interrupted at most once in the time of a poll.
        """
        if self._polled is None or self._was_interrupted:
            return
        now_ms = self._now_ms()
        if self._polled.is_full:
            if now_ms - self._interrupted_ms < self._wait_max_ms:
                return
            self._interrupted_ms = now_ms
        self._was_interrupted = True
        self._endpoint.close()

    def stop(self) -> None:
        """Stop the task. Nothing is appended once this returns, not even from an answer that has just arrived."""
        self._stopping = True
        self._partitions.clear()
        self._changed.set()
        self._cancel_connecting()
        self._endpoint.close()

    def _cancel_connecting(self) -> None:
        """Cancel the connecting, if it is in progress.

        A leader that does not answer would block the task for half a minute, and delay the end of the broker, or a leader that
        is back at another address. Partitions that are added from now on need another fetcher.
        """
        if self._connecting is not None:
            self.ended = True
            self._connecting.cancel()

    # --- the task --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while not self._stopping:
                # Plan after connecting: then the plan has partitions that were added meanwhile, perhaps the rest of a
                # fail-over.
                now_ms = self._now_ms()
                if self._machine.has_work(now_ms):
                    if not await self._connect():
                        continue
                    now_ms = self._now_ms()
                step = self._machine.next_step(now_ms)
                match step:
                    case SendFetch():
                        await self._fetch(step)
                    case Truncate(effects):
                        await self._carry_out(effects)
                    case AskEpochEnds() | AskOffsets() | AskTierStarts():
                        await self._ask(step)
                    case Idle(until_ms):
                        if not self._partitions:
                            return
                        await self._wait(until_ms)
        finally:
            self.ended = True
            self._endpoint.close()

    async def _connect(self) -> bool:
        self._connecting = asyncio.current_task()
        try:
            truncates_on_fetch = await self._endpoint.prepare()
        except _WIRE_FAILURES as error:
            self._wire_failed("connect", error)
            return False
        finally:
            self._connecting = None
        if self._stopping:
            return False
        self._machine.set_truncates_on_fetch(truncates_on_fetch)
        return True

    async def _fetch(self, step: SendFetch) -> None:
        ahead: SendFetch | None = step
        while ahead is not None:
            ahead = await self._fetch_once(ahead)

    async def _fetch_once(self, step: SendFetch) -> SendFetch | None:
        """Fetch, and return the next request if it is known before this answer is appended."""
        try:
            self._polled = step.plan
            wait_ms = self._wait_max_ms
            if step.until_ms is not None:
                wait_ms = min(wait_ms, max(0, step.until_ms - self._now_ms()))
            answer = await self._endpoint.fetch(step.plan, max_wait_ms=wait_ms)
        except _WIRE_FAILURES as error:
            self._append_waiting()
            self._wire_failed("fetch", error)
            return None
        finally:
            self._polled = None
            was_interrupted, self._was_interrupted = self._was_interrupted, False
            if was_interrupted:
                self._machine.fetch_abandoned(step.plan, self._now_ms())
        self._append_waiting()
        if was_interrupted or self._stopping:
            return None  # the logs of a stopping broker are gone already, even for reads
        self.fetched_bytes += answer.size
        effects = self._machine.fetched(
            step.plan,
            error_code=answer.error_code,
            session_id=answer.session_id,
            partitions=answer.partitions,
            now_ms=self._now_ms(),
        )
        ahead = self._machine.read_ahead(effects, self._now_ms())
        if ahead is None:
            await self._carry_out(effects)
            return None
        self._waiting = [(each, self._machine.state(each.partition)) for each in effects if isinstance(each, Append)]
        # Append in the next turn of the loop: at the end of this turn the next request is sent.
        asyncio.get_running_loop().call_soon(self._append_in_turn)
        return ahead

    def _append_in_turn(self) -> None:
        """Append, and keep an exception for the task, which raises it after the next answer."""
        try:
            self._append_waiting()
        except Exception as error:
            self._failure = error
            self._endpoint.close()

    def _append_waiting(self) -> None:
        """Append the previous answer to the partitions whose state has not changed since its request."""
        if self._failure is not None:
            raise self._failure
        waiting, self._waiting = self._waiting, []
        for effect, state in waiting:
            if self._machine.state(effect.partition) is state:
                self._try(effect)

    async def _ask(self, step: AskEpochEnds | AskOffsets | AskTierStarts) -> None:
        effects: list[Effect]
        try:
            if isinstance(step, AskEpochEnds):
                ends = await self._endpoint.epoch_ends(step.questions)
                effects = [] if self._stopping else self._machine.epoch_ends(step, ends, self._now_ms())
            elif isinstance(step, AskOffsets):
                offsets = await self._endpoint.list_offsets(step.current_leader_epochs)
                effects = [] if self._stopping else self._machine.offsets_listed(step, offsets, self._now_ms())
            else:
                starts = await self._endpoint.tier_starts(step.current_leader_epochs)
                effects = [] if self._stopping else self._machine.tier_starts(step, starts, self._now_ms())
        except _WIRE_FAILURES as error:
            self._wire_failed("ask", error)
            return
        await self._carry_out(effects)

    def _wire_failed(self, doing: str, error: Exception) -> None:
        self._endpoint.close()
        if self._stopping or self._was_interrupted:
            return
        _log.info("[%s] cannot %s, will try again: %s", self.name, doing, error)
        self._machine.fetch_failed(self._now_ms())

    async def _wait(self, until_ms: int | None) -> None:
        self._changed.clear()
        if until_ms is None:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout(max(0, until_ms - self._now_ms()) / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    # --- effects ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry effects out. Truncations come last, as they may take a while, in which everything else may change."""
        truncations: list[Cut] = []
        fenced = 0
        for effect in effects:
            if isinstance(effect, TruncateTo | TruncateFully | StartFromTier):
                truncations.append(effect)
                continue
            if isinstance(effect, GiveUp) and effect.is_fenced:
                fenced += 1
            self._try(effect)
        if fenced:
            _log.info(
                "[%s] the leader epochs of %d partitions are over; waiting for the controller's next request",
                self.name,
                fenced,
            )
        states = [self._machine.state(effect.partition) for effect in truncations]
        unflushed, self._unflushed = self._unflushed, []
        # Truncate all at once: the truncations wait for the disk, and share the checkpoints that they write.
        await asyncio.gather(
            *(
                self._truncate(each, state)
                for each, state in zip(truncations, states, strict=True)
                if state is not None
            ),
            *(replica.flush() for replica in unflushed),
        )

    def _try(self, effect: Append | GiveUp) -> None:
        replica = self._partitions.get(effect.partition)
        if replica is None:
            return
        try:
            self._apply(effect, replica)
        except (Malformed, Refused, LogDirFault) as error:
            self._effect_failed(effect, error)

    def _apply(self, effect: Append | GiveUp, replica: FollowerPartition) -> None:
        match effect:
            case Append(partition, records, leader_high_watermark, leader_log_start):
                if replica.append_follower(records, leader_high_watermark, leader_log_start):
                    self._unflushed.append(replica)
                if self._throttle is not None and records:
                    self._throttle.record(partition, len(records))
                self._machine.appended(effect)
            case GiveUp():
                self._give_up(effect)

    async def _truncate(self, effect: Cut, state: FetchState) -> None:
        """Truncate, unless the partition was removed or is in another epoch meanwhile: this broker may lead it now."""
        partition = effect.partition

        def is_wanted() -> bool:
            return partition in self._partitions and self._machine.state(partition) is state

        if not is_wanted():
            return
        replica = self._partitions[partition]
        may_begin_in_tier = self._tier() is not None and not state.began_in_tier
        if isinstance(effect, TruncateTo) and effect.offset < replica.tier_end and may_begin_in_tier:
            # The records on disk are useless, and only the tier knows the state of producers and transactions at that offset.
            _log.warning(
                "[partition %s] must be truncated to %d, which is in the tier: it starts again from the tier",
                partition,
                effect.offset,
            )
            self._machine.below_tier_end(partition)
            return
        if isinstance(effect, TruncateTo) and effect.offset < replica.high_watermark:
            _log.warning(
                "[partition %s] truncating to %d, below the high watermark %d: an unclean election may lose records",
                partition,
                effect.offset,
                replica.high_watermark,
            )
        try:
            if isinstance(effect, TruncateFully):
                await replica.truncate_fully_and_start_at(effect.offset, is_wanted=is_wanted)
            elif isinstance(effect, StartFromTier):
                await self._start_from_tier(effect, is_wanted)
            else:
                # Truncate even if there is nothing to remove: an empty epoch that this replica began as leader must be removed.
                await replica.truncate_to(effect.offset, is_wanted=is_wanted)
        except (Malformed, Refused, LogDirFault) as error:
            if is_wanted():
                self._effect_failed(effect, error)
            return
        if is_wanted():
            self._machine.truncated(effect)

    async def _start_from_tier(self, effect: StartFromTier, is_wanted: Callable[[], bool]) -> None:
        tier = self._tier()
        if tier is None:
            raise Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "the leader has the records in the tier: set remote.log.storage.system.enable on this broker",
            )
        await tier.begin(
            effect.partition,
            local_start=effect.local_start,
            epoch=effect.epoch,
            log_start=effect.log_start,
            is_wanted=is_wanted,
        )

    def _effect_failed(self, effect: Effect, error: Exception) -> None:
        is_disk = isinstance(error, LogDirFault) and not descriptors.are_exhausted(error.cause)
        if not is_disk:
            # The bytes broke on the way, the leader is in the middle of a truncation, or no file descriptor is free. The next
            # fetch resolves it.
            _log.warning(
                "[partition %s] the fetch of %s failed and is repeated: %s", effect.partition, self.name, error
            )
        self._give_up(
            self._machine.failed(effect.partition, is_retriable=not is_disk, reason=str(error), now_ms=self._now_ms())
        )

    def _give_up(self, effect: GiveUp | None) -> None:
        if effect is not None:
            # A failed broker causes thousands of these at once, and they are harmless.
            level = logging.DEBUG if effect.is_fenced else logging.WARNING
            _log.log(level, "[partition %s] is no longer fetched by %s: %s", effect.partition, self.name, effect.reason)
            self._partitions.pop(effect.partition, None)
            self._on_give_up(effect.partition, effect.reason)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)
