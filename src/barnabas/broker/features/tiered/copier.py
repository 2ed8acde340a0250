"""Copies rolled segments of the partitions that this broker leads. Each is announced, uploaded, and finished, as in Kafka.

Owner: the event loop. A broker that fails during a copy leaves an announced copy, which the next leader finds and removes. If
the store fails, the copy is retried with the same object names while this broker leads and the segment exists: meanwhile
local retention keeps the segment.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from random import Random

from barnabas.base.clock import Clock
from barnabas.base.errors import BarnabasError, Refused
from barnabas.base.host.disk import Disk
from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.broker.features.tiered import layout, lineage
from barnabas.broker.features.tiered.blocks import Blocks
from barnabas.broker.features.tiered.health import StoreHealth
from barnabas.broker.features.tiered.leadership import Leadership
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.metadata_reader import MetadataUnavailable
from barnabas.broker.features.tiered.metadata_topic import RemoteMetadata
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.features.tiered.segment_metadata import (
    Mark,
    RemoteSegment,
    RemoteSegmentId,
    SegmentState,
    SegmentUpdate,
)
from barnabas.broker.features.tiered.settings import TierSettings
from barnabas.broker.features.tiered.store import FilePart, Store, StoreFault
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.security.rates import SimpleRate
from barnabas.broker.storage.checkpoints import encode_epochs
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_tier import CopyCandidate

log = logging.getLogger(__name__)


class SegmentGone(BarnabasError):
    """The segment left the log, or changed, during its copy, because of retention, DeleteRecords, or a move to another disk."""


class Copier:
    def __init__(
        self,
        broker_id: BrokerId,
        store: Store,
        metadata: RemoteMetadata,
        *,
        log_of: Callable[[TopicPartition], Log | None],
        settings: Callable[[], TierSettings],
        health: StoreHealth,
        metrics: TierMetrics,
        disk: Disk,
        on_thread: OnThread,
        clock: Clock,
        chance: Random,
        spawn: Spawn,
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._metadata = metadata
        self._log_of = log_of
        self._settings = settings
        self._health = health
        self._metrics = metrics
        self._disk = disk
        self._on_thread = on_thread
        self._clock = clock
        self._chance = chance
        self._spawn = spawn
        limits = settings()
        self._slots = asyncio.Semaphore(limits.copiers)
        self._rate = SimpleRate(windows=limits.copy_windows, window_ms=limits.copy_window_ms)
        #: Copies wait in line for the quota.
        self._quota = asyncio.Lock()

    def next_candidate(self, lead: Leadership) -> CopyCandidate | None:
        """Return the oldest segment that has yet to be copied. :raises Refused: while an index is rebuilt."""
        of = self._log_of(lead.of.tp)
        view = self._metadata.view(lead.of)
        if lead.is_over or of is None or view is None or not _is_copied(of):
            return None
        start = lineage.covered_end(view, of.epochs, of.local_log_start_offset, of.log_end_offset)
        for candidate in of.copy_candidates(start):
            # The log's first record may be above its first offset, as in a formerly compacted topic. No copy can fill that gap:
            # an offset without a leader epoch has no record.
            if candidate.epochs and not _is_there(view, of, candidate):
                return candidate
        return None

    async def run(self, lead: Leadership) -> None:
        """Copy all segments that can be copied, one after the other."""
        backoff = self._settings().backoff(self._chance)
        while not lead.is_over:
            try:
                candidate = self.next_candidate(lead)
                if candidate is None:
                    return
                await self._wait_for_quota(candidate.size_bytes)
                await self._copy(lead, candidate)
            except SegmentGone as error:
                log.info("%s: %s", lead.of.tp, error)
                return
            except (MetadataUnavailable, Refused) as error:
                log.warning("[tier %s] cannot copy, will retry: %s", lead.of.tp, error)
                await asyncio.sleep(backoff.failed())
            else:
                backoff.succeeded()

    async def _wait_for_quota(self, size_bytes: int) -> None:
        limit = self._settings().copy_bytes_per_second
        async with self._quota:
            while (pause_ms := self._rate.throttle_ms(limit, self._now_ms())) > 0:
                await asyncio.sleep(min(pause_ms, 1000) / 1000)
                limit = self._settings().copy_bytes_per_second
            self._rate.record(size_bytes, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    # -- one segment ----------------------------------------------------------------------------------------------------

    async def _copy(self, lead: Leadership, candidate: CopyCandidate) -> None:
        segment = self._announced(lead, candidate)
        may_be_finished, is_finished = False, False
        lead.being_copied.add(segment.id)
        try:
            await self._metadata.publish(segment)
            await self._put(lead, segment, candidate)
            # From here on only the metadata counts: another leader may have removed the objects.
            may_be_finished = True
            finished = SegmentUpdate(
                segment.id, SegmentState.COPY_FINISHED, self._clock.now_ms(), self._broker_id, segment.custom
            )
            await self._metadata.publish(finished)
            view = self._metadata.view(lead.of)
            known = None if view is None else view.get(segment.id)
            is_finished = known is not None and known.is_finished
        finally:
            lead.being_copied.discard(segment.id)
            if not is_finished:
                # A separate task, because this one ends with the leadership: the new leader may have removed the segment before
                # our last object was uploaded, and would not know of that object.
                self._spawn(self._tidy_up(segment, may_be_finished), f"tier leavings of {lead.of.tp}")
        if not is_finished:
            log.warning(
                "[tier %s] dropped the copy of offset %d, will retry: another leader removed it, or its metadata is unknown",
                *(lead.of.tp, segment.start_offset),
            )
            return
        self._metrics.of(lead.of.topic).copied_bytes.add(segment.size_bytes)
        log.info(
            "[tier %s] copied offsets %d to %d, %d bytes, to the tier",
            *(lead.of.tp, segment.start_offset, segment.end_offset, segment.size_bytes),
        )

    async def _tidy_up(self, segment: RemoteSegment, may_be_finished: bool) -> None:
        """Delete the objects of an abandoned copy, unless the metadata says that it was finished after all. Retry while the
        store or the metadata is unavailable."""
        backoff = self._settings().backoff(self._chance)
        while not self._metadata.is_stopped and (self._metadata.is_read(segment.id.of) or not may_be_finished):
            # A request that was abandoned may still take effect a little later.
            await asyncio.sleep(backoff.failed())
            try:
                if may_be_finished and not await self._is_removed(segment):
                    return  # the copy is finished, or the leader will remove it
                await self._store.delete(layout.keys(segment))
            except (MetadataUnavailable, StoreFault) as error:
                log.debug("[tier %s] cannot remove an abandoned copy, will retry: %s", segment.id, error)
            else:
                return

    async def _is_removed(self, segment: RemoteSegment) -> bool:
        await self._metadata.catch_up(segment.id.of)
        view = self._metadata.view(segment.id.of)
        if view is None:
            raise MetadataUnavailable(f"{segment.id.of}: its metadata is being read again")
        known = view.get(segment.id)
        return known is None or known.state is SegmentState.DELETE_STARTED

    def _announced(self, lead: Leadership, candidate: CopyCandidate) -> RemoteSegment:
        return RemoteSegment(
            id=RemoteSegmentId(lead.of.topic_id, lead.of.topic, lead.of.partition, self._chance.randbytes(16)),
            start_offset=Offset(candidate.base_offset),
            end_offset=Offset(candidate.end_offset),
            max_timestamp=candidate.max_timestamp,
            broker_id=self._broker_id,
            event_ms=self._clock.now_ms(),
            size_bytes=candidate.size_bytes,
            epochs={LeaderEpoch(entry.epoch): Offset(entry.start_offset) for entry in candidate.epochs},
            custom=Mark(lead.epoch).encode(),
            txn_index_empty=candidate.txn_index_path is None,
        )

    async def _put(self, lead: Leadership, segment: RemoteSegment, candidate: CopyCandidate) -> None:
        """Upload both objects; retry until they are stored. :raises SegmentGone, LeadershipLost:"""
        backoff = self._settings().backoff(self._chance)
        counters = self._metrics.of(lead.of.topic)
        while True:
            lead.check()
            self._check_still_there(lead, candidate)
            try:
                async with self._slots:
                    counters.copy_requests.add()
                    indexes = await self._on_thread(partial(_read_indexes, self._disk, candidate, segment))
                    await self._store.put(layout.indexes_key(segment), indexes)
                    await self._store.put(layout.log_key(segment), FilePart(candidate.log_path, candidate.size_bytes))
            except (StoreFault, OSError) as error:
                # An OSError concerns our own files, which may have been deleted meanwhile: the next check finds out.
                counters.copy_errors.add()
                if isinstance(error, StoreFault):
                    self._health.failed(f"copying {lead.of.tp}", error)
                await asyncio.sleep(backoff.failed())
            else:
                self._health.worked()
                lead.check()
                return

    def _check_still_there(self, lead: Leadership, candidate: CopyCandidate) -> None:
        of = self._log_of(lead.of.tp)
        now = None if of is None or not _is_copied(of) else next(of.copy_candidates(candidate.base_offset), None)
        same = now is not None and now[:5] == candidate[:5]
        if not same:
            raise SegmentGone(f"the segment of offset {candidate.base_offset} no longer exists")


def _is_copied(of: Log) -> bool:
    return of.is_tiered and not of.config.remote_log_copy_disable


def _is_there(view: RemoteLogMetadataCache, of: Log, candidate: CopyCandidate) -> bool:
    """Whether the tier has all of the segment's records."""
    end = candidate.end_offset + 1
    return lineage.covered_end(view, of.epochs, candidate.epochs[0].start_offset, end) == end


def _read_indexes(disk: Disk, candidate: CopyCandidate, segment: RemoteSegment) -> bytes:
    """Runs on a thread, and reads all records for their checksums."""
    parts = {
        layout.Part.OFFSET_INDEX: disk.read_file(candidate.offset_index_path),
        layout.Part.TIME_INDEX: disk.read_file(candidate.time_index_path),
    }
    if candidate.txn_index_path is not None:
        parts[layout.Part.TXN_INDEX] = disk.read_file(candidate.txn_index_path)
    if candidate.snapshot_path is not None:
        parts[layout.Part.PRODUCER_SNAPSHOT] = disk.read_file(candidate.snapshot_path)
    parts[layout.Part.LEADER_EPOCHS] = encode_epochs(candidate.epochs_until_end)
    parts[layout.Part.BOUNDS] = layout.Bounds(candidate.end_offset, candidate.max_timestamp).encode()
    parts[layout.Part.BLOCKS] = _blocks(disk, candidate, segment).encode()
    indexes = layout.pack_indexes(parts)
    if len(indexes) > layout.indexes_bytes_max(segment.size_bytes):
        raise StoreFault(f"the indexes of {segment.id} have {len(indexes)} bytes: no reader would accept them")
    return indexes


def _blocks(disk: Disk, candidate: CopyCandidate, segment: RemoteSegment) -> Blocks:
    fd = disk.open(candidate.log_path, read_only=True)
    try:
        return Blocks.of(partial(disk.pread, fd), candidate.size_bytes, segment.id.uuid)
    finally:
        disk.close(fd)
