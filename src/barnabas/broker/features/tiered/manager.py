"""The tier of one broker: which partitions it leads and follows, who copies and removes, and what the logs are told.

Owner: the event loop. What the tier has is known from `__remote_log_metadata`, by leaders and followers alike: each
tells its log how far it is copied, and local retention goes no further. Leaders copy and expire, at intervals as Kafka does.
The leader of a partition of the metadata topic removes what is left of topics that are gone.
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

#: Before a leader asks again what the tier has, if it got no answer.
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
        """`exists`: whether the cluster has the topic, by ZooKeeper's word; raises a `BarnabasError` if it cannot be told."""
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

    # -- what the controller says -------------------------------------------------------------------------------------

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
        """The replica is not here any more, or its topic left the tier."""
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
        """Nothing is copied or removed any more once this returns. The tasks are the broker's."""
        self._is_stopped = True
        for tp in list(self.led):
            self._end(tp)
        if self._burial is not None:
            self._burial.cancel()
        self.metadata.stop()
        self._woken.set()

    # -- what is known ------------------------------------------------------------------------------------------------

    def view(self, tp: TopicPartition) -> RemoteLogMetadataCache | None:
        """What the tier has of a partition on this broker; None: it is not known yet."""
        of = self._hosted.get(tp)
        return None if of is None else self.metadata.view(of)

    def refresh(self, of: TierPartition) -> None:
        """Tell the log how far it is in the tier. Called whenever more is known."""
        if self._hosted.get(of.tp) != of:
            if not self.metadata.is_known(of):
                self._woken.set()  # its topic may be gone
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
        # What is below the local start is in the tier by nature, if there is anything.
        local.highest_copied_offset = end - 1 if end > start or local.log_start_offset < start else NO_OFFSET

    # -- leading ------------------------------------------------------------------------------------------------------

    async def _begin(self, lead: Leadership) -> None:
        while not lead.is_over and not lead.is_ready:
            try:
                await self.metadata.catch_up(lead.of)
            except MetadataUnavailable as error:
                log.warning("%s: what the tier has of it is not known yet: %s", lead.of.tp, error)
                await asyncio.sleep(_PAUSE_S)
            else:
                lead.is_ready = not lead.is_over
        if lead.is_over:
            return
        self.refresh(lead.of)
        try:
            self._settle_log_start(lead)
        except LogDirFault as fault:
            log.error("%s: its log start cannot be moved: %s", lead.of.tp, fault)  # its directory is offline now
            return
        self._start_work(lead)

    def _settle_log_start(self, lead: Leadership) -> None:
        """A former leader may have removed the oldest segments and died before this replica heard of the new log start."""
        local = self._log_of(lead.of.tp)
        view = self.metadata.view(lead.of)
        if local is None or view is None or local.log_start_offset >= local.local_log_start_offset:
            return
        if not view.version:
            log.error(
                "%s begins at %d in the tier, but nothing is known of any segment there: was %s deleted? Its history until %d "
                "cannot be read",
                *(lead.of.tp, local.log_start_offset, "__remote_log_metadata", local.local_log_start_offset),
            )
            return
        if not lineage.knows_all(view, local.epochs, local.log_start_offset):
            log.error(
                "%s begins at %d in the tier, but its leader epochs do not tell whose records are there",
                *(lead.of.tp, local.log_start_offset),
            )
            return
        first = lineage.first_available(view, local.epochs, local.log_start_offset, local.local_log_start_offset)
        self._move_log_start(lead.of.tp, local, first, "the tier has nothing below it")

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
                has_work = False  # an index is being rebuilt, or the disk has failed: the next look tells
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
            log.info("%s: copying ends: %s", lead.of.tp, error)

    async def _expire(self, lead: Leadership) -> None:
        async with self._expirers:
            local = self._log_of(lead.of.tp)
            view = self.metadata.view(lead.of)
            if local is None or local.is_closed or view is None or not len(view):
                return
            try:
                await self._carry_out(lead, local, view)
            except LogDirFault as fault:
                log.error("%s: nothing is removed from the tier: %s", lead.of.tp, fault)

    async def _carry_out(self, lead: Leadership, local: Log, view: RemoteLogMetadataCache) -> None:
        made = plan(
            view,
            facts_of(lead, local),
            local.config,
            being_copied=lead.being_copied,
            now_ms=self._clock.now_ms(),
            is_tiered=local.is_tiered or not local.config.remote_log_delete_on_disable,
        )
        lead.to_remove = [each.segment for each in made.removals]
        if not made.removals:
            until_bytes = None if made.idle_bytes is None else local.size_bytes + made.idle_bytes
            lead.look = Look(view.version, local.log_start_offset, local.config, made.idle_until_ms, until_bytes)
            return
        lead.look = None
        if made.log_start is not None:
            if made.log_start > local.high_watermark:
                return  # a new leader has still to hear from its followers that all of it is committed
            self._move_log_start(lead.of.tp, local, made.log_start, "retention of the tier")
        try:
            for removal in made.removals:
                await self._remover.remove(removal, leader_epoch=lead.epoch, check=lead.check)
                lead.to_remove.remove(removal.segment)
        except (StoreFault, MetadataUnavailable) as error:
            log.debug("%s: cannot remove from the tier, trying again: %s", lead.of.tp, error)
        except LeadershipLost:
            return

    # -- time ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the broker stops."""
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
        """Look at everything now: a topic was deleted, or a setting has changed."""
        self._woken.set()

    def _spawn_guarded(self, work: Callable[[], Awaitable[None]], name: str) -> "asyncio.Task[None]":
        return self._spawn(_until_cancelled(work), name)

    # -- topics that are gone -----------------------------------------------------------------------------------------

    def _gone(self) -> Iterator[TierPartition]:
        """Partitions with segments, of the metadata that this broker leads, which the cluster does not seem to have."""
        yield from [of for of in self.metadata.led() if not self.metadata.is_known(of)]

    async def _bury(self) -> None:
        for of in list(self._gone()):
            try:
                if await self._exists(of):
                    continue
                await self._remove_all(of)
            except (StoreFault, MetadataUnavailable) as error:
                log.debug("what is left of %s in the tier stays until the next look: %s", of, error)
            except BarnabasError as error:
                log.info("whether %s is gone cannot be told: %s", of, error)
                return

    async def _remove_all(self, of: TierPartition) -> None:
        view = self.metadata.view(of)

        def check() -> None:
            if self._is_stopped or self.metadata.is_known(of):
                raise MetadataUnavailable(f"{of} is not ours to remove")

        for segment in [] if view is None else view.all():
            await self._remover.remove(Removal(segment, "its topic is gone"), leader_epoch=-1, check=check)
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
    """A leadership that ends cancels its work: no error, and nothing that would end the broker."""
    try:
        await work()
    except asyncio.CancelledError:
        return
