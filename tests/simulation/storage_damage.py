"""Logs whose files are damaged, belong to another segment, or come back after they were deleted.

A start rebuilds damaged files from the records, and the rebuilt files must survive the next power cut.
"""

from dataclasses import replace

from barnabas.base.config.log_config import LogConfig
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.log_types import Origin
from barnabas.testing.simulation.disk_files import EVERYTHING, NAME, SYNC
from barnabas.testing.simulation.disk_life import Life
from barnabas.wire.records import BatchBuilder, end_txn_marker
from tests.simulation.storage_ledger import Promise
from tests.simulation.storage_world import COMPACTED, CONFIGS, PLAIN, ROOT, Crash, StorageWorld

#: How a file of each kind may be damaged so that a start can notice. A start cannot notice one changed byte, because neither an
#: index nor a file of offsets has a checksum. A missing snapshot, or a missing index of aborted transactions, means that there
#: was nothing to write. And a log without its log start brings back deleted records, for which nothing is promised.
DAMAGES = {
    names.INDEX_SUFFIX: ("torn", "longer", "gone"),
    names.TIME_INDEX_SUFFIX: ("torn", "longer", "gone"),
    names.TXN_INDEX_SUFFIX: ("torn", "nonsense"),
    names.SNAPSHOT_SUFFIX: ("torn", "nonsense", "empty"),
    names.LEADER_EPOCH_CHECKPOINT: ("nonsense", "empty", "gone"),
    names.LOG_SUFFIX: ("longer", "nonsense behind"),
    names.RECOVERY_POINT_CHECKPOINT: ("nonsense", "empty"),
    names.REPLICATION_OFFSET_CHECKPOINT: ("nonsense", "empty"),
    names.CLEANER_OFFSET_CHECKPOINT: ("nonsense", "empty"),
}


def damage(life: Life, path: str, how: str) -> None:
    data = life.read_file(path)
    nonsense = b"\7" * 40
    if how == "gone":
        life.unlink(path)
        return
    damaged = {
        "torn": data[:-5],
        "longer": data + bytes(48),
        "nonsense": data[: max(len(data) - 40, 0)] + nonsense,
        "nonsense behind": data + nonsense,
        "empty": b"",
    }[how]
    life.replace_file(path, damaged)


class DamagedWorld(StorageWorld):
    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: Number of damaged files that the next start finds.
        self.damages = 0
        super().__init__(seed, journaled=journaled)

    def between_lives(self, how: str) -> None:
        if not self.damages:
            return
        life = self.disk.life()
        for _ in range(self.damages):
            files = self._small_files(life)
            kind = self.rng.choice([kind for kind in DAMAGES if any(path.endswith(kind) for path in files)])
            path = self.rng.choice([path for path in files if path.endswith(kind)])
            how_damaged = self.rng.choice(DAMAGES[kind])
            self.tell(f"damage {path}: {how_damaged}")
            damage(life, path, how_damaged)
            aborted = path.removesuffix(names.LOG_SUFFIX) + names.TXN_INDEX_SUFFIX
            if aborted in files and self.rng.random() < 0.5:
                self.tell(f"damage {aborted}: torn")
                damage(life, aborted, "torn")
        self.damages = 0
        self.disk.process_died(life)

    def _small_files(self, life: Life) -> list[str]:
        found = [f"{ROOT}/{name}" for name in life.listdir(ROOT) if name in DAMAGES]
        for partition in self.ledgers:
            folder = f"{ROOT}/{names.partition_dir(partition)}"
            files = life.listdir(folder)
            last = max(name for name in files if name.endswith(names.LOG_SUFFIX))
            # Damage only the last log file: a reader of a damaged record gets an error, and a broker can do no more.
            found += [
                f"{folder}/{name}"
                for name in files
                if name == last or (not name.endswith(names.LOG_SUFFIX) and name.endswith(tuple(DAMAGES)))
            ]
        return found

    def check(self, partition: TopicPartition, promise: Promise, how: str) -> None:
        # After a clean stop, a thread rebuilds indexes when a reader needs them.
        while True:
            try:
                super().check(partition, promise, how)
                return
            except IndexUnderRepair:
                self.threads.run_pending()

    def run_damages(self, rounds: int) -> None:
        """Damage files at a clean stop or a kill; often the power is cut after the start that found the damage."""
        rng = self.rng
        for _ in range(rounds):
            for partition in (PLAIN, COMPACTED):
                log, ledger = self.log(partition), self.ledgers[partition]
                for _ in range(rng.randint(0, 8)):
                    self.append(partition, log, ledger)
                    if rng.random() < 0.2:
                        self.tell(f"roll {partition}")
                        log.roll(self.clock.now_ms())
                log.update_high_watermark(log.log_end_offset)
            if rng.random() < 0.2:
                offset = rng.randint(int(self.log(PLAIN).log_start_offset), int(self.log(PLAIN).high_watermark))
                self.tell(f"delete records of {PLAIN} below {offset}")
                self.log(PLAIN).maybe_increment_log_start_offset(offset)
            if rng.random() < 0.5:
                self.durable(PLAIN)
            self.damages = rng.choice((1, 2, 4))
            self.restart(rng.choice(("clean", "clean", "kill")))
            if rng.random() < 0.6:
                self.restart("power")


class RottenWorld(StorageWorld):
    """A record in the middle of a log goes bad, and a start reads the whole log, because the recovery point is lost or was not
    written since. Records before it stay. Records after it are removed, or stay with it if the power is cut while the start
    removes them; no later start may find a hole and leave it.
    """

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: Index of the damaged batch among the batches.
        self._bad: int | None = None
        self._is_losing_checkpoint = False
        super().__init__(seed, journaled=journaled)

    def run_rot(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            ledger = self.ledgers[PLAIN]
            known, is_leaving_out = len(ledger.batches), rng.random() < 0.5
            for _ in range(rng.randint(3, 6)):
                for _ in range(rng.randint(1, 4)):
                    gap = rng.choice((0, 3)) if is_leaving_out else 0
                    self.follow(self._keyed(), gap=gap)
                self.log(PLAIN).roll(self.clock.now_ms())
            self.follow(self._keyed())
            self.log(PLAIN).flusher.flush()
            # If no offsets were left out, a hole is visible, unless the recovery point is lost.
            self._is_losing_checkpoint = not is_leaving_out
            self._bad = rng.randrange(max(known, 1), len(ledger.batches))
            # Crash between two syncs of the directory, or before one of them.
            self.crash_kinds, operations = rng.choice((((NAME,), rng.randint(5, 150)), ((SYNC,), rng.randint(1, 3))))
            self.restart_and_lose_power(operations)
            self.crash_kinds = EVERYTHING
            self._bad = None

    def promise(self, partition: TopicPartition) -> Promise:
        promised = super().promise(partition)
        if partition != PLAIN or self._bad is None:
            return promised
        before = self.ledgers[PLAIN].batches[self._bad - 1]
        return promised._replace(durable=min(promised.durable, before.header.next_offset))

    def between_lives(self, how: str) -> None:
        if self._bad is None:
            return
        life = self.disk.life()
        bad = self.ledgers[PLAIN].batches[self._bad].data
        folder = f"{ROOT}/{names.partition_dir(PLAIN)}"
        for name in life.listdir(folder):
            at = life.read_file(f"{folder}/{name}").find(bad) if name.endswith(names.LOG_SUFFIX) else -1
            if at >= 0:
                self.tell(f"the record at position {at} of {name} goes bad")
                self.disk.damage(f"{folder}/{name}", at + len(bad) - 1, bad[-1] ^ 1)
        if self._is_losing_checkpoint:
            self.tell(f"{names.RECOVERY_POINT_CHECKPOINT} is lost")
            damage(life, f"{ROOT}/{names.RECOVERY_POINT_CHECKPOINT}", "gone")
            self.disk.write_back()
        self.disk.process_died(life)


class RepairedWorld(StorageWorld):
    """Indexes of several pages: after a power cut one may be wrong in the middle, where a start does not look."""

    first_configs = {
        **CONFIGS,
        "plain": LogConfig(
            segment_bytes=1 << 20,
            index_interval_bytes=1,
            segment_index_bytes=1 << 15,
            retention_bytes=-1,
            retention_ms=-1,
        ),
    }

    def run_repairs(self, rounds: int) -> None:
        """Rebuild the indexes of a segment that was flushed long ago, and then cut the power."""
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        for producer_id in range(1, 4):
            self._abort(producer_id)
        for number in range(800):
            builder = BatchBuilder()
            builder.append(b"k", b"%d" % number, timestamp=self.clock.now_ms() + number)
            self.append_data(PLAIN, log, ledger, bytes(builder.build()), Origin.CLIENT)
        log.roll(self.clock.now_ms())
        self.durable(PLAIN)
        for _ in range(rounds):
            self.restart("kill")
            self.restart("power")

    def _abort(self, producer_id: int) -> None:
        log, ledger, now_ms = self.log(PLAIN), self.ledgers[PLAIN], self.clock.now_ms()
        builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(b"k", b"aborted", timestamp=now_ms)
        self.append_data(PLAIN, log, ledger, bytes(builder.build()), Origin.CLIENT)
        marker = end_txn_marker(
            commit=False, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=now_ms
        )
        self.append_data(PLAIN, log, ledger, bytes(marker), Origin.COORDINATOR)

    def between_lives(self, how: str) -> None:
        if how == "kill":
            life = self.disk.life()
            folder = f"{ROOT}/{names.partition_dir(PLAIN)}"
            for name in (names.index_file(0), names.time_index_file(0)):
                # As after a power cut, when the index had not been cut to its length.
                damage(life, f"{folder}/{name}", "longer")
            damage(life, f"{folder}/{names.txn_index_file(0)}", "torn")
            self.disk.process_died(life)


class SwappedWorld(StorageWorld):
    """Kafka syncs no directory between the renames of a compaction. If one of its brokers lost power in the middle of a
    compaction, a segment may have the old log and the indexes of its replacement.
    """

    first_configs = {
        **CONFIGS,
        "compacted": replace(CONFIGS["compacted"], segment_bytes=1600, index_interval_bytes=100),
    }

    def run_swaps(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(COMPACTED), self.ledgers[COMPACTED]
            for _ in range(rng.randint(2, 4)):
                # More than half of a segment, so that two of them are not merged into one.
                for _ in range(rng.randint(7, 10)):
                    self.append_data(COMPACTED, log, ledger, self._untimely(), Origin.CLIENT)
                log.roll(self.clock.now_ms())
            self.durable(COMPACTED)
            log.update_high_watermark(log.log_end_offset)
            self.crash_kinds, self.crashes_in = (NAME,), rng.randint(5, 60)
            try:
                for _ in range(20):
                    self.clock_runs(500)
                    self.threads.run_pending()
            except Crash as crash:
                self.tell(f"crash before a {crash}")
            self.restart("kill")
            # The rebuilt files must survive this power cut, too.
            self.restart("power")

    def _untimely(self) -> bytes:
        """Return one record that always has the same size, so that a position in one segment is valid in the other. Its
        timestamp may be before those of others.
        """
        builder = BatchBuilder()
        timestamp = self.clock.now_ms() - self.rng.randrange(5000)
        builder.append(b"k%02d" % self.rng.randrange(30), self.rng.randbytes(60), timestamp=timestamp)
        return bytes(builder.build())

    def between_lives(self, how: str) -> None:
        life = self.disk.life()
        folder = f"{ROOT}/{names.partition_dir(COMPACTED)}"
        files = life.listdir(folder)
        for name in files:
            cleaned = name.removesuffix(names.CLEANED_SUFFIX)
            is_index = cleaned.endswith((names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX))
            if name != cleaned and is_index and cleaned in files:
                self.tell(f"{cleaned} is replaced by the file of {name}")
                life.replace_file(f"{folder}/{cleaned}", life.read_file(f"{folder}/{name}"))
        self.disk.process_died(life)


class KilledWorld(StorageWorld):
    def run_kills(self, rounds: int) -> None:
        """Kill a process that has just deleted segments. Their records must not come back among records that are flushed later.

        The process is a follower that led, alone, in an epoch that no other broker knows: after the cut it gets records of an
        older one.
        """
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            ledger.epoch = log.latest_epoch or 0
            if rng.random() < 0.3:
                self._delete_the_first()
                continue
            for _ in range(rng.randint(1, 3)):
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            if rng.random() < 0.7:
                log.roll(self.clock.now_ms())
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            epoch, end = ledger.epoch, int(log.log_end_offset)
            ledger.epoch += 1
            for _ in range(rng.randint(1, 3)):
                log.roll(self.clock.now_ms())
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            if rng.random() < 0.7:
                self.durable(PLAIN)
            self.cut(PLAIN, end)
            ledger.epoch = epoch
            self.restart("kill")
            log = self.log(PLAIN)
            for _ in range(rng.randint(1, 5)):
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            self.durable(PLAIN)
            self.restart("power")

    def _delete_the_first(self) -> None:
        """Delete segments that were never flushed, and that the process before has deleted: they may come back, torn."""
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        for _ in range(self.rng.randint(2, 4)):
            for _ in range(self.rng.randint(1, 8)):
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            log.roll(self.clock.now_ms())
        self.life.fsync_dir(log.directory)  # the kernel writes back the names by itself, and no records yet
        log.update_high_watermark(log.log_end_offset)
        offset = self.rng.choice(log.segments.base_offsets[-3:])
        self.tell(f"delete records of {PLAIN} below {offset}")
        log.maybe_increment_log_start_offset(offset)
        log.delete_old_segments(self.clock.now_ms())
        self.restart("kill")
        self.restart("power")
