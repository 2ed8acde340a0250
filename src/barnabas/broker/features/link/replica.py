"""A mirror partition, as the fetcher that follows its source sees it: this leader's log with the source's epochs.

The fetcher is the one that followers use (`replication.fetcher`). A mirror differs from an ordinary replica in three ways: logs
are compared by the source's epochs; appended records get this cluster's leader epoch; and after a truncation the partition
needs a new leader epoch, because this log has followers. Owner: the event loop.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import NO_EPOCH, LeaderEpoch, Offset, TopicPartition
from barnabas.broker.features.link.divergence import divergence_offset
from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.security.rates import SimpleRate
from barnabas.broker.storage.epoch_cache import EpochEnd, EpochEntry, LeaderEpochCache
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.zookeeper_client.znodes_link import MirrorPartition
from barnabas.wire.control_records import end_txn_marker
from barnabas.wire.record_batch import (
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    MIN_BATCH_LENGTH,
)

log = logging.getLogger(__name__)

#: The beginning of every batch: base offset, length, leader epoch.
_PREFIX: Final = struct.Struct(">qii")
_INT: Final = struct.Struct(">i")
_TIMESTAMP: Final = struct.Struct(">q")
#: Time for the controller to give a leader its next epoch.
_EPOCH_TIMEOUT_S: Final = 30.0
#: How long the end of a mirror waits for its replicas before other mirrors get their turn.
_COMMIT_TIMEOUT_S: Final = 5.0

#: Asks the controller for an epoch above the given one.
RenewEpoch = Callable[[TopicPartition, LeaderEpoch], Awaitable[None]]


class MirrorReplica:
    def __init__(
        self,
        partition: Partition,
        known: MirrorPartition,
        hosted: HostedPartitions,
        *,
        renew_epoch: RenewEpoch,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.tp = partition.tp
        self._hosted = hosted
        self._renew_epoch = renew_epoch
        self._clock = clock
        self._leadership = partition.machine.leaderships
        #: The source's epochs as recorded in the znode, before their records are appended.
        self.recorded = known
        #: The source's epochs of the records in this log.
        self.epochs = LeaderEpochCache(EpochEntry(epoch, start) for epoch, start in known.epochs)
        self.epochs.truncate_from_end(partition.log_end)
        last = partition.local_log.epochs.epoch_at(partition.log_end - 1)
        if last is not None and last < known.noted_in:
            # The leader that recorded this may have truncated its log and failed before this replica truncated its copy.
            self.epochs.truncate_from_end(known.noted_at)
        #: The leader epoch in which the log was truncated. Nothing more is appended in that epoch.
        self._cut_in: LeaderEpoch | None = None
        #: Set when the controller has sent a change of the partition.
        self.partition_changed = asyncio.Event()
        #: The source's high watermark and log start as of its last answer; -1 before the first answer.
        self.source_end = -1
        self._source_start = -1
        self.source_leader = -1
        #: The leader epoch of the source according to its metadata; -1 if the metadata has none.
        self.source_epoch = -1
        #: Consecutive implausible answers of the source.
        self.implausible_answers = 0
        #: During a promotion: the source's end, and when that value was first seen.
        self._ended_at: tuple[int, int] | None = None
        self.error: str | None = None
        self.truncated_records = 0
        #: Timestamp of the newest record.
        self.last_timestamp_ms = -1
        self._rate = SimpleRate(windows=11, window_ms=1000)
        #: While the mirror ends: completes when everything is committed here, or cannot be.
        self._committing: asyncio.Future[ErrorCode] | None = None

    # -- what the fetcher reads -----------------------------------------------------------------------------------------

    @property
    def log_start(self) -> Offset:
        return self.partition.log_start

    @property
    def tier_end(self) -> Offset:
        return self.partition.tier_end

    @property
    def log_end(self) -> Offset:
        return self.partition.log_end

    @property
    def high_watermark(self) -> Offset:
        """Return the log's end: everything here was committed at the source, so records that it cannot compare stay."""
        return self.partition.log_end

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.epochs.end_offset_for(epoch, self.partition.log_end)

    # -- what others read -----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this broker still has the same leadership: in a later one another leader may have written in between."""
        partition = self.partition
        return partition.is_leader and partition.log is not None and partition.machine.leaderships == self._leadership

    @property
    def lag_records(self) -> int:
        """-1 before the source's first answer."""
        return -1 if self.source_end < 0 else max(0, self.source_end - self.partition.log_end)

    def lag_ms(self, now_ms: int) -> int:
        """Age of the newest record, while the source has newer ones."""
        lag = self.lag_records
        if lag <= 0:
            return lag
        return max(0, now_ms - self.last_timestamp_ms) if self.last_timestamp_ms >= 0 else -1

    def lag_ms_now(self) -> int:
        return self.lag_ms(self._clock.now_ms())

    def is_quiet(self, source_end: int, *, for_ms: int) -> bool:
        """Whether the source's end has not changed for this long, as far as it was checked."""
        now_ms = self._now_ms()
        if self._ended_at is None or self._ended_at[0] != source_end:
            self._ended_at = (source_end, now_ms)
        return now_ms - self._ended_at[1] >= for_ms

    def bytes_per_second(self) -> float:
        return self._rate.per_second(self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    # -- epochs of the source -------------------------------------------------------------------------------------------

    def objection(self, records: memoryview | bytes, high_watermark: int) -> str | None:
        """Why these records cannot be a valid answer, or None. No checksum covers offsets and epochs. An offset that is too
        large would leave a hole here; after an epoch that is too large, the mirror would reject every later leader of the
        source."""
        batches = _batches(records)
        found: str | None = None
        if batches:
            epoch, end = max(epoch for _, _, epoch in batches), _end_after(records, batches)
            if 0 <= self.source_epoch < epoch:
                found = f"the source sent a batch of epoch {epoch}, above its leader's epoch {self.source_epoch}"
            elif end > high_watermark:
                found = f"the source sent records up to {end}, above its high watermark {high_watermark}"
        self.implausible_answers = self.implausible_answers + 1 if found is not None else 0
        return found

    def to_note(self, records: memoryview | bytes) -> MirrorPartition | None:
        """Return what must be written to the znode before these records are appended; None if it is up to date."""
        appended, log_end, noted = self.epochs.latest, self.partition.log_end, self.recorded
        new = [
            (LeaderEpoch(epoch), max(Offset(offset), log_end))
            for offset, epoch in _epochs_in(records)
            if epoch > (NO_EPOCH if appended is None else appended.epoch)
        ]
        # A former leader may have recorded epochs that never arrived here, or that this leader has truncated.
        is_right = len(noted.epochs) == len(self.epochs) and (not noted.epochs or noted.epochs[-1] == appended)
        if not new and is_right:
            return None
        epochs: list[tuple[LeaderEpoch, Offset]] = [(each.epoch, each.start_offset) for each in self.epochs.entries]
        for epoch, offset in new:
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, offset))
        if tuple(epochs) == noted.epochs:
            return None
        leader_epoch = self.partition.machine.leader_epoch
        return MirrorPartition(
            leader_epoch=leader_epoch,
            epochs=tuple(epochs),
            noted_in=leader_epoch,
            noted_at=log_end,
            is_parted=noted.is_parted,
        )

    # -- writing --------------------------------------------------------------------------------------------------------

    def append_follower(self, records: memoryview, leader_high_watermark: int, leader_log_start: int) -> bool:
        """Append records of the source with their offsets, in this cluster's leader epoch, which has its own high watermark.

        Returns False: the source does not wait for a flush.
        """
        mirror_log = self._writable_log()
        try:
            if len(records):
                self._append(mirror_log, records)
        except Exception as error:
            self.error = str(error)
            raise
        self.error = None
        self.source_end = leader_high_watermark
        self._source_start = leader_log_start
        self.follow_log_start()
        return False

    async def flush(self) -> None:
        await self.partition.flush()

    def _append(self, mirror_log: Log, records: memoryview) -> None:
        partition = self.partition
        data: memoryview | bytearray = bytearray(records) if records.readonly else records
        began, timestamp_ms = _give_epoch(data, partition.machine.leader_epoch)
        before = mirror_log.log_end_offset
        now_ms = self._clock.now_ms()
        info = mirror_log.append_as_follower(data, now_ms=now_ms)
        if info is None:
            return
        if info.flush_due:
            partition.flush_what_is_due()
        for offset, epoch in began:
            latest = self.epochs.latest_epoch
            # If the log starts inside a batch, it gets the whole batch.
            start = max(offset, before)
            if start < mirror_log.log_end_offset and epoch > (NO_EPOCH if latest is None else latest):
                self.epochs.assign(epoch, start)
        self._rate.record(info.size_bytes, self._now_ms())
        self.last_timestamp_ms = timestamp_ms
        hw_moved = partition.machine.record_append(mirror_log.log_end_offset, now_ms)
        self._hosted.log_end_moved(partition)
        if hw_moved:
            self._hosted.high_watermark_moved(partition)

    def follow_log_start(self) -> None:
        """Raise the log start to the source's, up to this cluster's high watermark; the rest follows when that rises."""
        if not self.leads or self._cut_in is not None:
            return
        mirror_log = self.partition.local_log
        target = min(self._source_start, mirror_log.high_watermark)
        if target > mirror_log.log_start_offset:
            mirror_log.maybe_increment_log_start_offset(target, "the source's log starts there")

    # -- a topic that becomes a mirror ------------------------------------------------------------------------------------

    async def part_at(self, final_offset: int, epochs: Sequence[tuple[int, int]]) -> None:
        """Drop what the source, which has mirrored this log until `final_offset`, does not have."""
        own_log = self._writable_log(despite_cut=True)
        point = divergence_offset(
            final_offset, epochs, log_end=own_log.log_end_offset, end_of=own_log.end_offset_for_epoch
        )
        log.info(
            "[mirror %s] diverges from its source at offset %d; it ends at %d", self.tp, point, own_log.log_end_offset
        )
        await self.truncate_to(point, is_wanted=lambda: True)

    # -- the end of a mirror --------------------------------------------------------------------------------------------

    def final(self) -> MirrorPartition:
        """Return what to record before the mirror ends. If a former leader has begun to end it, its record is kept, as far as
        the records have arrived here."""
        noted, log_end = self.recorded, self.partition.log_end
        if noted.final_offset is not None:
            leader_epoch = self.partition.machine.leader_epoch
            return replace(noted, leader_epoch=leader_epoch, final_offset=Offset(min(noted.final_offset, log_end)))
        return MirrorPartition(
            leader_epoch=self.partition.machine.leader_epoch,
            epochs=tuple((each.epoch, each.start_offset) for each in self.epochs.entries),
            noted_in=self.recorded.noted_in,
            noted_at=self.recorded.noted_at,
            is_parted=self.recorded.is_parted,
            final_offset=log_end,
            source_end=self.source_end,
            lag_ms=self.lag_ms(self._clock.now_ms()),
            producer_id_max=max(self.partition.local_log.producers.producers, default=-1),
        )

    async def abort_transactions(self, replicas: ReplicaManager) -> None:
        """Abort the open transactions: their coordinator is at the source. Return when everything here is committed."""
        mirror_log = self._writable_log()
        for entry in list(mirror_log.producers.producers.values()):
            if entry.txn_first_offset is None:
                continue
            log.info("[mirror %s] aborting the transaction of producer %d from offset %d", self.tp, entry.producer_id,
                     entry.txn_first_offset)  # fmt: skip
            marker = end_txn_marker(
                commit=False,
                coordinator_epoch=max(0, entry.coordinator_epoch),
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                timestamp=self._clock.now_ms(),
            )
            replicas.appends.append_own(
                self.tp,
                bytearray(marker),
                origin=Origin.COORDINATOR,
                now_ms=self._clock.now_ms(),
                on_committed=lambda code: None,
            )

        code = await self._committed(replicas, mirror_log.log_end_offset)
        if code is not ErrorCode.NONE:
            raise Refused(code, f"{self.tp}: the copied records are not committed")

    async def _committed(self, replicas: ReplicaManager, end: Offset) -> ErrorCode:
        """Wait for a limited time only: replicas may be down for hours, and other mirrors wait for their turn."""
        if self._committing is None:
            done = self._committing = asyncio.get_running_loop().create_future()

            def committed(code: ErrorCode) -> None:
                if not done.done():
                    done.set_result(code)

            replicas.appends.when_replicated(self.partition, end, self._leadership, committed)
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                code = await asyncio.shield(self._committing)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        self._committing = None
        return code

    # -- truncation -----------------------------------------------------------------------------------------------------

    async def truncate_to(self, offset: Offset, *, is_wanted: Callable[[], bool]) -> None:
        mirror_log = self._writable_log(despite_cut=True)
        before = mirror_log.log_end_offset
        if offset < before:
            log.warning(
                "[mirror %s] the source does not have this log from offset %d on (it lost the records, or never had them): "
                "dropping %d records from offset %d on. Check the source for an unclean election",
                self.tp, offset, before - offset, offset,
            )  # fmt: skip
            await self.partition.truncate_to(offset, is_wanted=lambda: self.leads and is_wanted())
            self._was_cut(before)
        await self._leave_cut_epoch()

    async def truncate_fully_and_start_at(self, offset: Offset, *, is_wanted: Callable[[], bool]) -> None:
        mirror_log = self._writable_log(despite_cut=True)
        before, start = mirror_log.log_end_offset, mirror_log.log_start_offset
        if before > start:
            log.warning(
                "[mirror %s] the source starts at offset %d: dropping offsets %d to %d", self.tp, offset, start, before
            )
        # Replicas of an empty log hold no records of this epoch yet: it goes on, and followers find its new start. The log
        # keeps the epoch while the new start is written to disk, because followers may ask for it meanwhile.
        kept = [] if before > start else [EpochEntry(self.partition.machine.leader_epoch, offset)]
        await self.partition.truncate_fully_and_start_at(
            offset, epochs=kept, is_wanted=lambda: self.leads and is_wanted()
        )
        if mirror_log.log_end_offset != before:
            self.epochs.clear()
            if before > start:
                self._was_cut(before)
            else:
                self._hosted.wake_all(self.partition)
        await self._leave_cut_epoch()

    def _was_cut(self, before: int) -> None:
        log_end = self.partition.log_end
        if log_end == before:
            return  # the truncation was cancelled
        self.truncated_records += max(0, before - log_end)
        self.epochs.truncate_from_end(log_end)
        machine = self.partition.machine
        machine.log_was_cut(log_end)
        self._cut_in = machine.leader_epoch
        self._hosted.wake_all(self.partition)

    async def _leave_cut_epoch(self) -> None:
        """Request a new epoch: followers truncate where an epoch ends, so that later records must be in another one."""
        machine, cut_in = self.partition.machine, self._cut_in
        if cut_in is None:
            return
        try:
            async with asyncio.timeout(_EPOCH_TIMEOUT_S):
                while machine.leader_epoch <= cut_in:
                    self.partition_changed.clear()
                    await self._renew_epoch(self.tp, cut_in)
                    if machine.leader_epoch <= cut_in:
                        await self.partition_changed.wait()
                    self._writable_log(despite_cut=True)
        except TimeoutError:
            raise Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.tp}: the controller gave no new leader epoch after the truncation",
            ) from None
        if self._cut_in == cut_in:
            machine.log_was_cut(self.partition.log_end)
            self._cut_in = None

    @property
    def is_cut(self) -> bool:
        """Whether the log was truncated and waits for the next leader epoch."""
        return self._cut_in is not None

    async def recover(self) -> None:
        """Ask the controller again for a new epoch after a truncation. Until then nothing is appended."""
        await self._leave_cut_epoch()

    def _writable_log(self, *, despite_cut: bool = False) -> Log:
        if not self.leads:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker no longer leads {self.tp}")
        if self._cut_in is not None and not despite_cut:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} was truncated in epoch {self._cut_in}")
        return self.partition.local_log


def _batches(records: memoryview | bytes | bytearray) -> "list[tuple[int, int, int]]":
    """Return (position, base offset, leader epoch) of each seemingly whole batch; the append validates them."""
    found: list[tuple[int, int, int]] = []
    position, end = 0, len(records)
    while end - position > MAGIC_AT:
        offset, length, epoch = _PREFIX.unpack_from(records, position)
        if length < MIN_BATCH_LENGTH or records[position + MAGIC_AT] != MAGIC_V2:
            break
        if position + LOG_OVERHEAD + length > end:
            break
        found.append((position, offset, epoch))
        position += LOG_OVERHEAD + length
    return found


def end_after(records: memoryview) -> int | None:
    """Return the log end after these records. The append decides whether they are valid."""
    batches = _batches(records)
    return _end_after(records, batches) if batches else None


def _end_after(records: memoryview | bytes, batches: "list[tuple[int, int, int]]") -> int:
    position, offset, _ = batches[-1]
    return offset + int(_INT.unpack_from(records, position + LAST_OFFSET_DELTA_AT)[0]) + 1


def _epochs_in(records: memoryview | bytes) -> list[tuple[int, int]]:
    """Return (offset, epoch) wherever the epoch differs from the previous batch's."""
    began: list[tuple[int, int]] = []
    for _, offset, epoch in _batches(records):
        if not began or began[-1][1] != epoch:
            began.append((offset, epoch))
    return began


def _give_epoch(records: memoryview | bytearray, leader_epoch: int) -> tuple[list[tuple[int, int]], int]:
    """Write this cluster's leader epoch into every batch. Return where the source's epochs began, and the newest timestamp of
    the last batch. The CRC does not cover the epoch."""
    began: list[tuple[int, int]] = []
    last = -1
    patch = _INT.pack_into
    for position, offset, epoch in _batches(records):
        if not began or began[-1][1] != epoch:
            began.append((offset, epoch))
        patch(records, position + LEADER_EPOCH_AT, leader_epoch)
        last = position
    timestamp_ms: int = -1 if last < 0 else _TIMESTAMP.unpack_from(records, last + MAX_TIMESTAMP_AT)[0]
    return began, timestamp_ms
