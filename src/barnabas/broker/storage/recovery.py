"""Opening a log: turns the files in a partition's directory, after a crash or a clean stop, into a `Log`.

Any thread: nothing here touches the event loop's data, so that many logs load at once. The steps:

1. settle leftovers of deletions, compactions and swaps (`settle_leftovers`);
2. find the segments; after an unclean stop read those from the recovery point on whole (`SegmentRecovery`): check CRCs, cut
   a torn tail, rebuild indexes, aborted transactions, epochs and producer state;
3. trust the other segments, which a clean stop or a flush completed, and rebuild missing indexes;
4. load the producers from the newest good snapshot and replay later batches; cut epochs to the log's bounds.

Each damage, and its repair, is one line in the log.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from barnabas.base.config.log_config import LONG_MAX, LogConfig
from barnabas.base.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import CheckpointError, read_epochs
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.epoch_cache import EpochEntry, KeptEpochs, LeaderEpochCache
from barnabas.broker.storage.epoch_file import EpochFile
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.leftovers import forget_leftovers, settle_leftovers
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_tier import read_kept_epochs, with_kept_epochs
from barnabas.broker.storage.producer_replay import rebuild_producers
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.segment import Segment
from barnabas.broker.storage.segment_batches import CorruptSegment
from barnabas.broker.storage.segment_recovery import RecoveredSegment, rebuild_txn_index, recover_segment
from barnabas.broker.storage.segments import SegmentList
from barnabas.broker.storage.snapshots import ProducerSnapshots

logger = logging.getLogger(__name__)

#: Called for each segment that recovery has read: (bytes read, bytes cut off).
Progress = Callable[[int, int], None]


def _no_progress(size_bytes: int, cut_bytes: int) -> None:
    """Without progress reports."""


def open_log(
    directory: str,
    *,
    config: LogConfig,
    env: LogEnvironment,
    partition: TopicPartition | None = None,
    log_start_offset: int | None = None,
    recovery_point: int | None = None,
    clean: bool = True,
    topic_id: TopicId | None = None,
    progress: Progress = _no_progress,
) -> Log:
    """Open a log. Any thread. Raises `OSError`, and `CorruptSegment` for message formats before v2; repairs everything else.

    `clean`: the directory was left by a clean shutdown. `log_start_offset` and `recovery_point` come from the checkpoints.
    Without a recovery point every segment is in doubt. Without a log start, the first segment determines it; for a log that
    may begin in the tier, the leader epochs do.
    """
    name = directory.rpartition("/")[2]
    partition = partition or names.parse_partition_dir(name).partition
    loader = _Loader(directory, partition, config, env, log_start_offset, recovery_point)
    return loader.load(clean=clean, topic_id=topic_id, progress=progress)


class _Loader:
    """One load of one log. Owner: the loading thread."""

    def __init__(
        self,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        env: LogEnvironment,
        log_start_offset: int | None,
        recovery_point: int | None,
    ) -> None:
        self._directory = directory
        self._partition = partition
        self._config = config
        self._env = env
        self._disk = env.disk
        self._log_start = log_start_offset or 0
        self._is_log_start_known = log_start_offset is not None
        self._is_tiered = env.is_tiered(config, partition.topic)
        self._recovery_point = recovery_point or 0
        self._is_recovery_point_known = recovery_point is not None
        #: Base offset of the first segment that was read whole.
        self._recovered_from = LONG_MAX
        self._now_ms = env.clock.now_ms()
        self._segments = SegmentList()
        self._snapshots = ProducerSnapshots(directory, env.disk)
        #: Whether there were snapshots when the load began: repairs may drop some.
        self._had_snapshots = False
        self._producers = self._new_producers()
        self._epoch_file = EpochFile(directory, env.disk)
        self._epochs = LeaderEpochCache()
        #: The content of the epoch file.
        self._epochs_on_file: list[EpochEntry] = []
        #: Epochs of records that are only in the tier.
        self._kept = KeptEpochs([], 0)
        #: Whether the epoch file knows the log start. A start from the tier writes it together with the producers.
        self._knew_tier = False

    def _new_producers(self) -> ProducerStateManager:
        return ProducerStateManager(
            self._partition,
            producer_id_expiration_ms=self._env.producer_id_expiration_ms,
            transaction_verification=self._env.transaction_verification,
        )

    def load(self, *, clean: bool, topic_id: TopicId | None, progress: Progress) -> Log:
        if not self._disk.exists(self._directory):
            # A new log has no files to look for: topics of thousands of partitions are created at once.
            self._disk.mkdir(self._directory)
            without_index: set[int] = set()
            replaced: set[int] = set()
            self._epochs = LeaderEpochCache(store=self._epoch_file)
        else:
            replaced = settle_leftovers(self._directory, self._disk)
            without_index = self._find_segments()
            self._read_epoch_files()
            self._drop_copied()
            self._load_epochs()
            self._find_log_start()
        try:
            if not clean:
                self._drop_deleted()
                self._recover(self._recovery_point, progress)
            self._check_indexes(without_index, replaced, clean=clean)
            if replaced:
                forget_leftovers(self._directory, self._disk)
            end_offset = self._find_end(progress)
            self._repair_epochs(end_offset)
            end_offset = self._settle_bounds(end_offset)
            self._settle_producers(end_offset, clean=clean)
        finally:
            for segment in self._segments:
                segment.release_files()
        # Only a flush moves it up: records that were read back, and indexes built from them, may be only in the page cache.
        recovery_point = min(self._recovered_from, end_offset)
        if end_offset - recovery_point >= self._config.flush_messages:
            self._sync(recovery_point)
            recovery_point = end_offset
        for segment in self._segments:
            segment.pool = self._env.pool
        self._segments.active.become_active()
        return Log(
            self._directory,
            self._partition,
            config=self._config,
            env=self._env,
            segments=self._segments,
            log_start_offset=self._log_start,
            log_end_offset=end_offset,
            recovery_point=recovery_point,
            producers=self._producers,
            snapshots=self._snapshots,
            epochs=self._epochs,
            epoch_file=self._epoch_file,
            topic_id=topic_id,
        )

    # -- finding the files

    def _find_segments(self) -> set[int]:
        """Fill `_segments`; return the base offsets of segments that lack an index."""
        files = [parsed for name in self._disk.listdir(self._directory) if (parsed := names.parse_segment_file(name))]
        present = {(file.base_offset, file.kind) for file in files if not file.transient}
        logs = sorted(base for base, kind in present if kind == names.LOG_SUFFIX)
        for base, kind in sorted(present):
            if kind == names.SNAPSHOT_SUFFIX:
                self._snapshots.offsets.append(base)
            elif (base, names.LOG_SUFFIX) not in present:
                path = f"{self._directory}/{names.offset_prefix(base)}{kind}"
                logger.warning("[partition %s] deleting %s: an index without a log file", self._partition, path)
                self._disk.unlink(path)
        self._had_snapshots = bool(self._snapshots.offsets)
        self._segments = SegmentList(self._segment(base) for base in logs)
        needed = (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        return {base for base in logs if any((base, kind) not in present for kind in needed)}

    def _segment(self, base_offset: int) -> Segment:
        path = f"{self._directory}/{names.log_file(base_offset)}"
        return Segment(
            self._directory,
            base_offset,
            disk=self._disk,
            created_ms=self._disk.modified_ms(path),
            size_bytes=self._disk.size(path),
            index_interval_bytes=self._config.index_interval_bytes,
            max_index_bytes=self._config.segment_index_bytes,
        )

    def _read_epoch_files(self) -> None:
        try:
            self._epochs_on_file = read_epochs(self._epoch_file.path, disk=self._disk)
        except FileNotFoundError:
            pass
        except CheckpointError as error:
            logger.warning(
                "[partition %s] ignoring unreadable leader epochs, the records have them: %s", self._partition, error
            )
        if not self._is_tiered:
            return
        try:
            self._kept = read_kept_epochs(self._directory, self._disk)
        except FileNotFoundError:
            pass
        except CheckpointError as error:
            logger.error(
                "[partition %s] the leader epochs of its records in the tier cannot be read; delete the replica if it does not "
                "catch up: %s",
                self._partition,
                error,
            )

    def _drop_copied(self) -> None:
        """Drop segments that a power cut brought back after they had left the disk because the tier has them. Readers would go
        from such a segment straight to the next local one, and miss the records that only the tier has.

        Drops only if a record is missing, and only segments that are known to be in the tier: their records are below the end
        that was kept before the first of them left the disk, and have the same leader epochs. After a truncation, other records
        may have replaced them.
        """
        kept = LeaderEpochCache(self._kept.epochs)
        end = self._kept.end_offset
        latest = kept.latest_epoch
        if latest is None or any(entry.start_offset < end and entry.epoch > latest for entry in self._epochs_on_file):
            return
        copied: list[Segment] = []
        before_hole: list[Segment] = []
        for segment, after in pairwise(list(self._segments)):
            if after.base_offset > end:
                break
            next_offset = self._agreed_end(segment, kept)
            if next_offset is None:
                break
            copied.append(segment)
            if next_offset != after.base_offset:
                before_hole = list(copied)
        self._drop(
            before_hole, f"the tier has its records and the ones after them, and some are missing here below {end}"
        )

    def _agreed_end(self, segment: Segment, epochs: LeaderEpochCache) -> int | None:
        """Return the offset after the segment's last good batch; None if any batch has another leader epoch.

        Records below the first epoch were already below the log start.
        """
        assert epochs.earliest is not None
        first, next_offset = epochs.earliest.start_offset, int(segment.base_offset)
        try:
            for _, header in segment.headers(0):
                if header.base_offset >= first and epochs.epoch_at(header.base_offset) != header.leader_epoch:
                    return None
                next_offset = header.next_offset
        except CorruptSegment as error:
            logger.warning(
                "[partition %s] %s is damaged and ends at offset %d: %s",
                self._partition,
                segment.log_path,
                next_offset,
                error,
            )
        finally:
            segment.release_files()
        return next_offset

    def _load_epochs(self) -> None:
        entries = self._epochs_on_file
        first = self._segments.first.base_offset if len(self._segments) else 0
        self._knew_tier = bool(entries) and entries[0].start_offset <= self._log_start
        if self._is_tiered and (self._log_start < first or not self._is_log_start_known):
            entries = with_kept_epochs(self._kept.epochs, entries, first)
        self._epochs = LeaderEpochCache(entries, store=self._epoch_file)

    def _find_log_start(self) -> None:
        """Find the start of a tiered log that the checkpoint does not name (tiering is new there): its epochs begin at it."""
        if not self._is_tiered or self._is_log_start_known or not len(self._segments):
            return
        first, earliest = self._segments.first.base_offset, self._epochs.earliest
        self._log_start = min(first, earliest.start_offset) if earliest is not None else first

    # -- after an unclean stop

    def _drop_deleted(self) -> None:
        """Drop segments below the log start: they were deleted, or will be soon. A power cut may have brought one back
        incomplete, and recovery would not check it, because it is below the recovery point too."""
        start = self._segments.floor(self._log_start) if len(self._segments) and not self._is_tiered else 0
        self._drop(list(self._segments)[: max(start, 0)], f"the log starts at {self._log_start}")

    def _recover(self, recovery_point: int, progress: Progress) -> None:
        """Read every segment from the recovery point on."""
        doubtful = self._segments.overlapping(recovery_point, LONG_MAX)
        if not doubtful:
            return
        first = self._recovered_from = doubtful[0].base_offset
        # A power cut may bring back segments that this process or the previous one deleted, in the middle of records that are
        # written from now on. The next flush syncs the directory before it counts anything as durable.
        self._epoch_file.unsynced.add(doubtful[0].log_path)
        # Use the epochs of the records: the file may know of a truncation, and of later records, that the log itself has lost.
        self._epochs.truncate_from_end(first)
        # Later snapshots cover records that may not have survived; new ones are taken during recovery.
        self._snapshots.remove_outside(self._log_start, first)
        producers = self._producers_at(first)
        next_offset = first
        for place, segment in enumerate(doubtful):
            size = segment.size_bytes
            later = doubtful[place + 1 :]
            after = later[0].base_offset if later else None
            producers.update_map_end_offset(max(producers.map_end_offset, segment.base_offset))
            self._snapshots.take(producers, sync=False)
            recovered = recover_segment(
                segment,
                producers=producers,
                epochs=self._epochs,
                start_offset=next_offset,
                end_offset=after,
                disk=self._disk,
                before_cut=partial(self._drop_damaged, later, segment),
            )
            segment.release_files()
            progress(size, recovered.cut_bytes)
            next_offset = recovered.next_offset
            if recovered.cut_bytes or after is None:
                break
            if next_offset < after and self._may_not_have_holes(recovered):
                self._drop(later, f"{segment.log_path} ends before offset {next_offset}, not {after}")
                break
        # Take no snapshot at the end: it would hold one batch of each producer, but to recognise the retries of batches from
        # before the crash needs the last five. They are read again, from the start of the last segment.
        self._snapshots.remove_outside(-1, next_offset)

    def _drop_damaged(self, later: list[Segment], segment: Segment) -> None:
        """Delete the segments after `segment`, which is about to be cut, for good. If a power cut brought one back, it would
        follow a segment that no longer shows damage, and in a compacted log the hole would look normal."""
        if later:
            self._drop(later, f"{segment.log_path} is damaged")
            self._disk.fsync_dir(self._directory)

    def _may_not_have_holes(self, recovered: RecoveredSegment) -> bool:
        """Whether a hole between this segment and the next one means that its tail was lost.

        A power cut may take the end of a segment at a batch boundary, or a whole segment: only the hole shows it, and a
        follower would never fetch the missing records. But compaction makes holes too, which must never count as damage. So the
        answer is true only if the topic is not compacted, the segment shows no trace of compaction, and it is known not to be
        flushed.
        """
        return self._is_recovery_point_known and not self._config.is_compacted and not recovered.has_gaps

    def _producers_at(self, offset: int) -> ProducerStateManager:
        """Return a separate state as of the start of a segment; the log's own is built when the bounds are known."""
        producers = self._new_producers()
        rebuild_producers(
            producers,
            self._snapshots,
            self._segments,
            log_start_offset=self._log_start,
            end_offset=offset,
            now_ms=self._now_ms,
        )
        return producers

    def _drop(self, segments: list[Segment], reason: str) -> None:
        for segment in reversed(segments):
            logger.warning("[partition %s] deleting %s: %s", self._partition, segment.log_path, reason)
            self._segments.remove(segment)
            segment.release_files()
            segment.delete_files()
            # Sync the deletion, also if no segment is read again.
            self._epoch_file.unsynced.add(segment.log_path)
            self._snapshots.remove(segment.base_offset)

    def _sync(self, offset: int) -> None:
        """With `flush.messages`, sync everything from `offset` on. Recovered records must be on disk before they count, as at
        their append: a power cut may follow the kill."""
        unsynced = self._epoch_file.unsynced
        generation, paths = unsynced.pending()
        for segment in self._segments.overlapping(offset, LONG_MAX):
            paths += segment.paths()
        for path in paths:
            self._disk.fsync_path(path)
        self._disk.fsync_dir(self._directory)
        unsynced.synced(generation)

    # -- segments that a clean stop or a flush completed

    def _check_indexes(self, without_index: set[int], replaced: set[int], *, clean: bool) -> None:
        """Check the indexes of segments that were not read whole. After a clean stop a bad index is found when it is first
        used.

        `replaced`: segments that a compaction was about to replace when the broker stopped, or that were deleted and came back.
        """
        for segment in self._segments:
            if segment.base_offset >= self._recovered_from:
                break
            if segment.base_offset in without_index:
                segment.rebuild_indexes("an index is missing")
            elif segment.base_offset in replaced:
                segment.rebuild_indexes("it was being compacted or deleted")
            elif not clean:
                segment.check_indexes()
            damage = "it was being compacted or deleted" if segment.base_offset in replaced else None
            try:
                segment.txn_index.sanity_check()
            except CorruptIndex as error:
                damage = str(error)
            if damage is not None:
                logger.warning(
                    "[partition %s] rebuilding the index of aborted transactions of %s, nothing to do: %s",
                    self._partition,
                    segment.log_path,
                    damage,
                )
                rebuild_txn_index(segment, self._producers_at(segment.base_offset), self._disk)
            segment.release_files()
            if segment.base_offset in replaced:
                for path in segment.paths()[1:]:
                    self._disk.fsync_path(path)

    def _repair_epochs(self, end_offset: int) -> None:
        """Complete the epochs from the records. The file may lack the first epochs (it was unreadable, or cut for a deletion
        that a crash undid) or the last ones (its last write was lost)."""
        if end_offset <= self._log_start:
            return
        try:
            self._read_epochs()
        except CorruptSegment as error:
            # The damage is in a segment that was flushed long ago. Its readers get an error; the broker's other logs must load.
            logger.error(
                "[partition %s] the log is damaged, its leader epochs come from their file alone: %s",
                self._partition,
                error,
            )

    def _read_epochs(self) -> None:
        known = self._epochs.entries
        if not known or known[0].start_offset > self._log_start:
            until = known[0].start_offset if known else LONG_MAX
            self._take_epochs(self._epochs_of_records(self._log_start, until), known)
            known = self._epochs.entries
        first = self._segments.first.base_offset if len(self._segments) else 0
        on_file = self._epochs_on_file
        if known and self._log_start < first and (not on_file or on_file[0].start_offset > first):
            # The kept epochs cover only the tier, and the file with the epochs of the local records was lost.
            lower = [entry for entry in known if entry.start_offset < first]
            upper = known[len(lower) :]
            found = self._epochs_of_records(first, upper[0].start_offset if upper else LONG_MAX)
            self._take_epochs(
                [*lower, *(entry for entry in found if not lower or entry.epoch > lower[-1].epoch)], upper
            )
            known = self._epochs.entries
        last = next((header for segment in reversed(list(self._segments)) if (header := segment.last_batch())), None)
        if last is not None and known and last.leader_epoch > known[-1].epoch:
            found = self._epochs_of_records(known[-1].start_offset, LONG_MAX)
            self._take_epochs(known, [entry for entry in found if entry.epoch > known[-1].epoch])

    def _epochs_of_records(self, start_offset: int, until: int) -> list[EpochEntry]:
        found: list[EpochEntry] = []
        for segment in self._segments.overlapping(start_offset, until):
            for _, header in segment.headers(0):
                if header.base_offset >= until:
                    return found
                if header.leader_epoch < 0 and not found:
                    return []  # written before epochs existed
                if not found or header.leader_epoch > found[-1].epoch:
                    found.append(EpochEntry(LeaderEpoch(header.leader_epoch), header.base_offset))
        return found

    def _take_epochs(self, lower: list[EpochEntry], upper: list[EpochEntry]) -> None:
        entries = [*lower, *upper]
        if entries != self._epochs.entries:
            logger.warning("[partition %s] its leader epochs were read from its records: %s", self._partition, entries)
            self._epochs = LeaderEpochCache(entries, store=self._epoch_file)
            self._epochs.dirty = True

    def _find_end(self, progress: Progress) -> int:
        if not len(self._segments):
            return self._log_start
        active = self._segments.active
        try:
            return active.next_offset()
        except CorruptSegment as error:
            logger.warning("[partition %s] reading %s whole: %s", self._partition, active.log_path, error)
            self._recover(active.base_offset, progress)
            return self._segments.active.next_offset()

    def _settle_bounds(self, end_offset: int) -> int:
        """Make log start <= log end, add an active segment if needed, cut epochs to the bounds; return the log end."""
        if end_offset < self._log_start:
            self._drop(
                list(self._segments),
                f"the log ends at {end_offset}, below its start offset {self._log_start}: files were removed",
            )
            self._epochs.clear()
        elif self._has_lost_the_tier(end_offset):
            self._drop(
                list(self._segments),
                f"it is empty, and the records from {self._log_start} on, in the tier, are unknown",
            )
            self._epochs.clear()
        if not len(self._segments):
            self._segments.add(self._first_segment())
            end_offset = self._log_start
        if not self._is_tiered:
            self._log_start = max(self._log_start, self._segments.first.base_offset)
        self._epochs.truncate_from_end(end_offset)
        self._epochs.truncate_from_start(self._log_start)
        if self._epochs.dirty and self._epochs.entries == self._epochs_on_file:
            # The same epochs were read from the records. The next flush makes sure that the file is on disk.
            self._epochs.dirty = False
            self._epoch_file.unsynced.add(self._epoch_file.path)
        self._epochs.flush()
        return end_offset

    def _has_lost_the_tier(self, end_offset: int) -> bool:
        """Whether the power failed just as a replica began where the tier ends: its knowledge of the tier was not on disk yet.
        It begins again at the log start. (With records it continues: the epochs were synced before them.)"""
        if not self._is_tiered or not len(self._segments):
            return False
        return self._log_start < self._segments.first.base_offset == end_offset and not self._knew_tier

    def _first_segment(self) -> Segment:
        config = self._config
        segment = Segment(
            self._directory,
            self._log_start,
            disk=self._disk,
            created_ms=self._now_ms,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )
        segment.create_files(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        self._epoch_file.unsynced.add(segment.log_path)
        return segment

    def _settle_producers(self, end_offset: int, *, clean: bool) -> None:
        self._snapshots.remove_stray(self._segments.base_offsets)
        if clean and not self._had_snapshots:
            # As in Kafka: a clean stop writes a snapshot if there is any producer, so there was no producer.
            self._producers.truncate_fully(self._log_start)
            for offset in (*self._segments.base_offsets[-2:], end_offset):
                self._producers.update_map_end_offset(offset)
                self._snapshots.take(self._producers, sync=False)
            return
        self._snapshots.remove_outside(self._log_start, end_offset)
        rebuild_producers(
            self._producers,
            self._snapshots,
            self._segments,
            log_start_offset=self._log_start,
            end_offset=end_offset,
            now_ms=self._now_ms,
        )
        self._snapshots.take(self._producers, sync=False)
