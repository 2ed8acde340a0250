"""The tier of one broker: the partitions that it leads and follows, their copies and removals, and the state of their logs.

Owner: the event loop. Leaders and followers alike know the tier's content from `__remote_log_metadata`: each tells its log how
far it is copied, and local retention stops there. Leaders copy and expire segments, at intervals as Kafka does. The leader of
a partition of the metadata topic removes the segments of deleted topics.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.errors import BarnabasError, LogDirFault, Refused
from barnabas.base.ids import NO_OFFSET, Offset, TopicPartition
from barnabas.broker.features.tiered import lineage
from barnabas.broker.features.tiered.copier import Copier
from barnabas.broker.features.tiered.expiry import LogFacts, Removal, plan
from barnabas.broker.features.tiered.health import StoreHealth
from barnabas.broker.features.tiered.leadership import Leadership, LeadershipLost, Look
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.metadata_reader import MetadataUnavailable
from barnabas.broker.features.tiered.metadata_topic import RemoteMetadata
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.features.tiered.remover import Remover
from barnabas.broker.features.tiered.segment_metadata import TierPartition
from barnabas.broker.features.tiered.settings import TierSettings
from barnabas.broker.features.tiered.store import Store, StoreFault
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.storage.log import Log

log = logging.getLogger(__name__)

#: Pause before a leader reads the metadata again after a failure.
_PAUSE_S: Final = 1.0


class TierManager:
    def __init__(
        self,
        store: Store,
        metadata: RemoteMetadata,
        copier: Copier,
        remover: Remover,
        *,
        log_of: Callable[[TopicPartition], Log | None],
        log_start_moved: Callable[[TopicPartition], None],
        exists: Callable[[TierPartition], Awaitable[bool]],
        settings: Callable[[], TierSettings],
        health: StoreHealth,
        metrics: TierMetrics,
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        """`exists`: whether the topic exists according to ZooKeeper; raises a `BarnabasError` if that is unknown."""
        self.store = store
        self.metadata = metadata
        self.copier = copier
        self.health = health
        self.metrics = metrics
        self._remover = remover
        self._log_of = log_of
        self._log_start_moved = log_start_moved
        self._exists = exists
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._hosted: dict[TopicPartition, TierPartition] = {}
        self.led: dict[TopicPartition, Leadership] = {}
        self._expirers = asyncio.Semaphore(settings().expirers)
        self._burial: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._is_stopped = False

    # -- changes by the controller ------------------------------------------------------------------------------------

    def became_leader(self, of: TierPartition, epoch: int) -> None:
        lead = self.led.get(of.tp)
        if lead is not None and lead.of == of and lead.epoch == epoch:
            return
        self._host(of)
        lead = self.led[of.tp] = Leadership(of, epoch)
        self._spawn_guarded(partial(self._begin, lead), f"tier {of.tp} in epoch {epoch}")

    def became_follower(self, of: TierPartition) -> None:
        self._host(of)
        self.refresh(of)

    def stopped(self, tp: TopicPartition) -> None:
        """Forget a replica that left this broker, or whose topic left the tier."""
        self._end(tp)
        if (of := self._hosted.pop(tp, None)) is not None:
            self.metadata.unassign(of)

    def _host(self, of: TierPartition) -> None:
        self._end(of.tp)
        known = self._hosted.get(of.tp)
        if known != of:
            if known is not None:
                self.metadata.unassign(known)
            self._hosted[of.tp] = of
            self.metadata.assign(of)

    def _end(self, tp: TopicPartition) -> None:
        if (lead := self.led.pop(tp, None)) is not None:
            lead.end()

    def stop(self) -> None:
        """Stop all copies and removals before this returns. The broker cancels the tasks."""
        self._is_stopped = True
        for tp in list(self.led):
            self._end(tp)
        if self._burial is not None:
            self._burial.cancel()
        self.metadata.stop()
        self._woken.set()

    # -- metadata -----------------------------------------------------------------------------------------------------

    def view(self, tp: TopicPartition) -> RemoteLogMetadataCache | None:
        """Return a partition's segments in the tier; None if they are not known on this broker yet."""
        of = self._hosted.get(tp)
        return None if of is None else self.metadata.view(of)

    def refresh(self, of: TierPartition) -> None:
        """Set the end of the copied part in the log. Called whenever the metadata changes."""
        if self._hosted.get(of.tp) != of:
            if not self.metadata.is_known(of):
                self._woken.set()  # its topic may have been deleted
            return
        local = self._log_of(of.tp)
        if local is None or local.is_closed:
            return
        view = self.metadata.view(of)
        if view is None:
            local.highest_copied_offset = NO_OFFSET
            return
        start = local.local_log_start_offset
        end = lineage.covered_end(view, local.epochs, start, local.log_end_offset)
        # If anything is in the tier, all records below the local start are.
        local.highest_copied_offset = end - 1 if end > start or local.log_start_offset < start else NO_OFFSET

    # -- leading ------------------------------------------------------------------------------------------------------

    async def _begin(self, lead: Leadership) -> None:
        while not lead.is_over and not lead.is_ready:
            try:
                await self.metadata.catch_up(lead.of)
            except MetadataUnavailable as error:
                log.warning("[tier %s] cannot read its metadata yet, will retry: %s", lead.of.tp, error)
                await asyncio.sleep(_PAUSE_S)
            else:
                lead.is_ready = not lead.is_over
        if lead.is_over:
            return
        self.refresh(lead.of)
        try:
            self._settle_log_start(lead)
        except LogDirFault as fault:
            log.error("[tier %s] cannot move the log start, the log directory is offline: %s", lead.of.tp, fault)
            return
        self._start_work(lead)

    def _settle_log_start(self, lead: Leadership) -> None:
        """Raise the log start: a former leader may have removed old segments and failed before this replica got the new log
        start."""
        local = self._log_of(lead.of.tp)
        view = self.metadata.view(lead.of)
        if local is None or view is None or local.log_start_offset >= local.local_log_start_offset:
            return
        if not view.version:
            log.error(
                "[tier %s] cannot read offsets %d to %d: the metadata has no segment. Restore the topic %s if it was deleted",
                *(lead.of.tp, local.log_start_offset, local.local_log_start_offset - 1, "__remote_log_metadata"),
            )
            return
        if not lineage.knows_all(view, local.epochs, local.log_start_offset):
            log.error(
                "[tier %s] begins at %d, but the log lacks the leader epochs of its oldest records: they cannot be read",
                *(lead.of.tp, local.log_start_offset),
            )
            return
        first = lineage.first_available(view, local.epochs, local.log_start_offset, local.local_log_start_offset)
        self._move_log_start(lead.of.tp, local, first, "the tier has no older records")

    def _move_log_start(self, tp: TopicPartition, local: Log, offset: Offset, reason: str) -> None:
        if local.maybe_increment_log_start_offset(offset, reason):
            self._log_start_moved(tp)

    def _start_work(self, lead: Leadership) -> None:
        if lead.is_over or not lead.is_ready:
            return
        tp = lead.of.tp
        if lead.copying is None or lead.copying.done():
            try:
                has_work = self.copier.next_candidate(lead) is not None
            except (Refused, LogDirFault):
                has_work = False  # an index is being rebuilt, or the disk has failed: retried at the next interval
            if has_work:
                lead.copying = self._spawn_guarded(partial(self._copy, lead), f"tier copy of {tp}")
        if (lead.expiring is None or lead.expiring.done()) and self._is_expiry_due(lead):
            lead.expiring = self._spawn_guarded(partial(self._expire, lead), f"tier expiry of {tp}")

    def _is_expiry_due(self, lead: Leadership) -> bool:
        local = self._log_of(lead.of.tp)
        view = self.metadata.view(lead.of)
        if local is None or local.is_closed or view is None or not len(view):
            return False
        return lead.look is None or not lead.look.is_still_good(view.version, local, self._clock.now_ms())

    async def _copy(self, lead: Leadership) -> None:
        try:
            await self.copier.run(lead)
        except (LeadershipLost, LogDirFault, StoreFault) as error:
            log.info("[tier %s] copying ends: %s", lead.of.tp, error)

    async def _expire(self, lead: Leadership) -> None:
        async with self._expirers:
            local = self._log_of(lead.of.tp)
            view = self.metadata.view(lead.of)
            if local is None or local.is_closed or view is None or not len(view):
                return
            try:
                await self._carry_out(lead, local, view)
            except LogDirFault as fault:
                log.error("[tier %s] cannot remove segments, the log directory is offline: %s", lead.of.tp, fault)

    async def _carry_out(self, lead: Leadership, local: Log, view: RemoteLogMetadataCache) -> None:
        expiry_plan = plan(
            view,
            facts_of(lead, local),
            local.config,
            being_copied=lead.being_copied,
            now_ms=self._clock.now_ms(),
            is_tiered=local.is_tiered or not local.config.remote_log_delete_on_disable,
        )
        lead.to_remove = [each.segment for each in expiry_plan.removals]
        if not expiry_plan.removals:
            until_bytes = None if expiry_plan.idle_bytes is None else local.size_bytes + expiry_plan.idle_bytes
            lead.look = Look(view.version, local.log_start_offset, local.config, expiry_plan.idle_until_ms, until_bytes)
            return
        lead.look = None
        if expiry_plan.log_start is not None:
            if expiry_plan.log_start > local.high_watermark:
                return  # a new leader must first learn from its followers that all of it is committed
            self._move_log_start(lead.of.tp, local, expiry_plan.log_start, "retention of the tier")
        try:
            for removal in expiry_plan.removals:
                await self._remover.remove(removal, leader_epoch=lead.epoch, check=lead.check)
                lead.to_remove.remove(removal.segment)
        except (StoreFault, MetadataUnavailable) as error:
            log.debug("[tier %s] cannot remove segments, will retry: %s", lead.of.tp, error)
        except LeadershipLost:
            return

    # -- time ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the broker stops."""
        while not self._is_stopped:
            self._woken.clear()
            for lead in list(self.led.values()):
                self._start_work(lead)
                await asyncio.sleep(0)
            if self._burial is None or self._burial.done():
                self._burial = self._spawn_guarded(self._bury, "tier of deleted topics")
            try:
                async with asyncio.timeout(self._settings().interval_s):
                    await self._woken.wait()
                    await asyncio.sleep(0.05)  # events come in bursts
            except TimeoutError:
                continue

    def wake(self) -> None:
        """Check everything now: a topic was deleted, or a setting has changed."""
        self._woken.set()

    def _spawn_guarded(self, work: Callable[[], Awaitable[None]], name: str) -> "asyncio.Task[None]":
        return self._spawn(_until_cancelled(work), name)

    # -- deleted topics -----------------------------------------------------------------------------------------------

    def _gone(self) -> Iterator[TierPartition]:
        """Yield partitions with segments whose topic seems to be deleted, from the metadata that this broker leads."""
        yield from [of for of in self.metadata.led() if not self.metadata.is_known(of)]

    async def _bury(self) -> None:
        for of in list(self._gone()):
            try:
                if await self._exists(of):
                    continue
                await self._remove_all(of)
            except (StoreFault, MetadataUnavailable) as error:
                log.debug("[tier %s] cannot remove the segments of the deleted topic, will retry: %s", of, error)
            except BarnabasError as error:
                log.info("[tier %s] cannot find out whether its topic is deleted, will retry: %s", of, error)
                return

    async def _remove_all(self, of: TierPartition) -> None:
        view = self.metadata.view(of)

        def check() -> None:
            if self._is_stopped or self.metadata.is_known(of):
                raise MetadataUnavailable(f"{of} must not be removed: its topic exists, or the broker stops")

        for segment in [] if view is None else view.all():
            await self._remover.remove(Removal(segment, "its topic is deleted"), leader_epoch=-1, check=check)
        if of.topic not in {each.topic for each in self._hosted}:
            self.metrics.forget(of.topic)


def facts_of(lead: Leadership, local: Log) -> LogFacts:
    copied = local.highest_copied_offset
    return LogFacts(
        leader_epoch=lead.epoch,
        log_start=local.log_start_offset,
        local_start=local.local_log_start_offset,
        log_end=local.log_end_offset,
        epochs=local.epochs,
        only_local_bytes=sum(each.size_bytes for each in local.segments if each.base_offset > copied),
    )


async def _until_cancelled(work: Callable[[], Awaitable[None]]) -> None:
    """Run work that is cancelled when a leadership ends; the cancellation is not an error and must not end the broker."""
    try:
        await work()
    except asyncio.CancelledError:
        return
