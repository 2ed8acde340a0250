"""Moments that hardly ever occur at random: each world brings about one kind, again and again."""

import contextlib
from dataclasses import replace

from barnabas.base.errors import LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.manager_upkeep import CHECKPOINTS
from barnabas.testing.simulation.disk_files import SYNC, Dir, File
from tests.simulation.storage_few_descriptors import FallibleWorld, ScarceWorld
from tests.simulation.storage_ledger import Ledger, Promise
from tests.simulation.storage_moves import OTHER, MovingWorld
from tests.simulation.storage_world import COMPACTED, CONFIGS, PLAIN, ROOT, Crash, StorageWorld


class HastyWorld(MovingWorld):
    """A log that is completely on disk moves, and a crash comes before its copy is on disk. Only a kill leaves the page cache:
    the next process finds both logs, and then the power is cut.
    """

    def run_hasty_moves(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            self._append(rng.randint(3, 12))
            self.durable(PLAIN)
            if rng.random() < 0.5:
                self.disk.write_back()
            if rng.random() < 0.2:
                self.crashes_in = rng.randint(1, 80)
            try:
                self._move()
                if rng.random() < 0.5:
                    # Back to the directory whose checkpoint still has the recovery point of the former log.
                    self._move()
                else:
                    self._append(rng.randint(0, 3))
                    self.restart("kill")
            except Crash as crash:
                self.tell(f"crash before a {crash}")
                if rng.random() < 0.5:
                    self.restart("kill")
            self.restart("power")


class RemadeWorld(StorageWorld):
    """A topic is deleted, the process is killed before its checkpoints are updated, and a topic of the same name is created."""

    def run_deletions(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            self._fill(rng.randint(5, 25))
            log = self.log(PLAIN)
            log.update_high_watermark(log.log_end_offset)
            offset = rng.randint(int(log.log_start_offset), int(log.high_watermark))
            self.tell(f"delete records of {PLAIN} below {offset}")
            log.maybe_increment_log_start_offset(offset)
            log.flusher.flush()
            for name in CHECKPOINTS:
                self.manager.checkpoint(name)
            self.threads.run_pending()
            self._make_again()
            self._fill(rng.randint(1, 4))
            log = self.log(PLAIN)
            log.update_high_watermark(rng.randint(0, int(log.log_end_offset)))
            for _ in range(rng.randint(1, 2)):
                self.restart(rng.choice(("kill", "kill", "clean")))

    def restart(self, how: str) -> None:
        self._replicated = int(self.log(PLAIN).high_watermark)
        super().restart(how)

    def check(self, partition: TopicPartition, promise: Promise, how: str) -> None:
        if partition == PLAIN:
            flushed = self.log(PLAIN).high_watermark
            assert flushed <= self._replicated, (
                f"{PLAIN} is replicated up to {flushed}, and was up to {self._replicated}"
            )
        super().check(partition, promise, how)

    def _fill(self, count: int) -> None:
        for _ in range(count):
            self.append_data(PLAIN, self.log(PLAIN), self.ledgers[PLAIN], self._keyed(), Origin.CLIENT)

    def _make_again(self) -> None:
        self.tell(f"{PLAIN} is deleted")
        self.manager.delete(PLAIN)
        self.ledgers[PLAIN] = Ledger()
        forgotten: list[bool] = []
        self.manager.when_forgotten(lambda: forgotten.append(True))
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            self.threads.run_one()
        if self.rng.random() < 0.8:
            self.tell("restart: kill")
            self.disk.process_died(self.life)
            self.start()
            return
        while not forgotten:
            self.threads.run_one()
        self.tell(f"{PLAIN} is made again")
        self.manager.get_or_create(PLAIN, topic_id=None, is_new=True)


class FlushingWorld(StorageWorld):
    """Several clients whose records are on disk before they are acknowledged. A client writes its next record as soon as its
    last one is acknowledged, as do others acknowledged with it, while more records have arrived.
    """

    first_configs = {**CONFIGS, "plain": replace(CONFIGS["plain"], flush_messages=1)}

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: Ends of appends that are not acknowledged yet.
        self._waiting: list[int] = []
        self._acknowledged = 0
        super().__init__(seed, journaled=journaled)

    def run_flushes(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            if rng.random() < 0.2:
                self.crashes_in = rng.randint(1, 60)
            try:
                for _ in range(rng.randint(2, 6)):
                    for _ in range(rng.randint(1, 3)):
                        self._write(rng.randint(0, 4))
                    for _ in range(rng.choice((0, 0, 1, 2))):
                        self.threads.run_one()
                    if rng.random() < 0.1:
                        self.log(PLAIN).roll(self.clock.now_ms())
                self.threads.run_pending()
                assert not self._waiting, f"{len(self._waiting)} appends are never acknowledged, up to {self._waiting}"
                self.log(PLAIN).update_high_watermark(self.log(PLAIN).log_end_offset)
                if rng.random() < 0.3:
                    self.restart(rng.choice(("power", "kill", "clean")))
            except Crash as crash:
                self.tell(f"crash before a {crash}")
                self.restart("power")

    def _write(self, more: int) -> None:
        log = self.log(PLAIN)
        self.append_data(PLAIN, log, self.ledgers[PLAIN], self._keyed(), Origin.CLIENT)
        end = int(log.log_end_offset)
        assert log.flusher.is_due()
        self._waiting.append(end)

        def flushed(error: Exception | None) -> None:
            assert error is None
            self._waiting.remove(end)
            self._acknowledged = max(self._acknowledged, end)
            if more:
                self._write(more - 1)

        log.flusher.flush_then(end, flushed)

    def between_lives(self, how: str) -> None:
        self._waiting.clear()

    def promise(self, partition: TopicPartition) -> Promise:
        promised = super().promise(partition)
        return promised._replace(durable=max(promised.durable, self._acknowledged)) if partition == PLAIN else promised


class FailingWorld(FallibleWorld):
    """Several logs in two directories whose records are on disk before they are acknowledged. Syncs fail on one disk: the first
    flush that notices closes all logs there while others are flushing. The broker continues with the other disk, and answers.
    Later the disk works again, and must have the acknowledged records.
    """

    roots = (ROOT, OTHER)
    partitions = tuple(TopicPartition(PLAIN.topic, number) for number in range(5))
    first_configs = {"plain": replace(CONFIGS["plain"], flush_messages=1)}

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: Partition -> end of the acknowledged records.
        self._acknowledged = dict.fromkeys(self.partitions, 0)
        super().__init__(seed, journaled=journaled)

    def run_failures(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            self._write(rng.randint(1, 20))
            if rng.random() < 0.5:
                self.threads.run_pending()
            self._may_fail = True
            failing = rng.choice(self.roots)
            self.tell(f"no sync succeeds in {failing}")
            self.disk.fail(failing, frozenset((SYNC,)))
            self._write(rng.randint(1, 20))
            if rng.random() < 0.3:
                # The fault was short: which syncs have failed is not known.
                self.disk.heal()
                self._write(rng.randint(0, 5))
            self.threads.run_pending()
            self.disk.heal()
            # A page that could not be written counts as clean, and no later process notices: a host with a failed disk reboots.
            self.restart("power")

    def _write(self, count: int) -> None:
        for _ in range(count):
            partition = self.rng.choice(self.partitions)
            try:
                self._append(partition)
                if self.rng.random() < 0.3:
                    self.threads.run_one()
            except (LogDirFault, Refused) as error:
                self.tell(f"failed: {error}")

    def _append(self, partition: TopicPartition) -> None:
        log = self.log(partition)
        self.append_data(partition, log, self.ledgers[partition], self._keyed(), Origin.CLIENT)
        end = int(log.log_end_offset)

        def flushed(error: Exception | None) -> None:
            self.tell(f"{partition} is {'not ' if error else ''}acknowledged up to {end}")
            if error is None:
                self._acknowledged[partition] = max(self._acknowledged[partition], end)

        log.flusher.flush_then(end, flushed)

    def promise(self, partition: TopicPartition) -> Promise:
        promised = super().promise(partition)
        return promised._replace(durable=max(promised.durable, self._acknowledged[partition]))


class AbortedWorld(StorageWorld):
    """Segments with aborted transactions are deleted, and a power cut brings back some of their files: on a disk that keeps
    names in any order, perhaps the log file without the index of its aborted transactions.
    """

    def run_aborts(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            for _ in range(rng.randint(2, 4)):
                for _ in range(rng.randint(1, 2)):
                    self._abort()
                if rng.random() < 0.5:
                    self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
                log.roll(self.clock.now_ms())
            # After a hole there must be a record that shows it.
            self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            log.update_high_watermark(log.log_end_offset)
            self.durable(PLAIN)
            leaving = rng.randint(1, min(2, len(log.segments) - 1))
            offset = log.segments.base_offsets[leaving]
            self.tell(f"delete records of {PLAIN} below {offset}")
            log.maybe_increment_log_start_offset(offset)
            log.delete_old_segments(self.clock.now_ms())
            # This process or the next one unlinks the files before the checkpoint has the log start.
            chance = rng.random()
            if chance < 0.3:
                self.clock_runs(2100)
                self.threads.run_one()
            elif chance < 0.6:
                self.restart_and_lose_power(rng.randint(5, 80))
                continue
            self.restart("power")

    def _abort(self) -> None:
        values = [self.rng.randbytes(20) for _ in range(self.rng.randint(1, 3))]
        marker = self.begin_transaction(values)
        self.append_data(PLAIN, self.log(PLAIN), self.ledgers[PLAIN], marker, Origin.COORDINATOR)


class AbortedKeysWorld(StorageWorld):
    """Keys get a value, and then one that is aborted: compaction must keep the first."""

    def run_aborted_keys(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(COMPACTED), self.ledgers[COMPACTED]
            for _ in range(rng.randint(3, 6)):
                self.append_data(COMPACTED, log, ledger, self._keyed(), Origin.CLIENT)
                if rng.random() < 0.6:
                    key = b"k%d" % rng.randrange(6)
                    marker = self.begin_transaction([rng.randbytes(20)], partition=COMPACTED, key=key)
                    self.append_data(COMPACTED, log, ledger, marker, Origin.COORDINATOR)
                log.roll(self.clock.now_ms())
            log.update_high_watermark(log.log_end_offset)
            self.durable(COMPACTED)
            for _ in range(20):
                self.clock_runs(500)
                self.threads.run_pending()
            self.restart(rng.choice(("power", "kill", "clean")))


class UnlinkedWorld(AbortedWorld):
    """The index of aborted transactions of a deleted segment is unlinked: by the process that deletes the segment, or by the
    next one after a kill. At the power cut the disk no longer has its name, and has any of the other names.
    """

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: The last deleted segment's index of aborted transactions.
        self._index: File | None = None
        #: Number of operations between its unlinking and the power cut.
        self._goes_in = -1
        super().__init__(seed, journaled=journaled)

    def run_unlinks(self, rounds: int) -> None:
        for number in range(rounds):
            self._delete_some()
            if number % 2:
                self._unlinked_by_this()
            else:
                self._unlinked_by_the_next()

    def _delete_some(self) -> None:
        rng = self.rng
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        for _ in range(rng.randint(1, 2)):
            self._abort()
            log.roll(self.clock.now_ms())
        self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
        log.update_high_watermark(log.log_end_offset)
        self.durable(PLAIN)
        if rng.random() < 0.5:
            # The kernel has written everything back: only the deletion may be lost.
            self.disk.write_back()
        offset = int(log.segments.active.base_offset)
        last = log.segments.at(len(log.segments) - 2)
        found = self.disk.find(f"{log.directory}/{names.offset_prefix(last.base_offset)}{names.TXN_INDEX_SUFFIX}")
        assert isinstance(found, File)
        self._index = found
        self.tell(f"delete records of {PLAIN} below {offset}")
        log.maybe_increment_log_start_offset(offset)
        log.delete_old_segments(self.clock.now_ms())

    def _unlinked_by_this(self) -> None:
        self.clock_runs(2100)
        while not self._is_unlinked():
            self.threads.run_one()
        self._forget_name()
        self.restart("power")

    def _unlinked_by_the_next(self) -> None:
        """Cut the power before the next process is ready."""
        before = {partition: self.promise(partition) for partition in self.ledgers}
        self.tell("restart: kill")
        self.disk.process_died(self.life)
        self._goes_in = self.rng.randint(1, 4)
        with contextlib.suppress(Crash):
            self.start()
        self._goes_in = -1
        self._forget_name()
        self.tell("restart: power cut, when the start has unlinked the deleted files")
        self.disk.power_cut(self.rng)
        self.start()
        for partition, promise in before.items():
            self.check(partition, promise, "power")

    def _step(self, kind: str, size_bytes: int) -> None:
        if self._goes_in > 0 and self._is_unlinked():
            self._goes_in -= 1
            if self._goes_in == 0:
                raise Crash(kind)
        super()._step(kind, size_bytes)

    def _is_unlinked(self) -> bool:
        folder = self.disk.find(f"{ROOT}/{PLAIN.topic}-{PLAIN.partition}")
        assert isinstance(folder, Dir)
        return all(node is not self._index for node in folder.entries.values())

    def _forget_name(self) -> None:
        """Let the kernel write the names of a directory in any order, that of the index first."""
        assert self._index is not None
        if self.rng.random() < 0.8:
            self.disk.sync_name_of(self._index)


class RewrittenWorld(StorageWorld):
    """A clean stop saves the producer state at the end of the log. Then the end is cut off, and other producers write there.
    The power cut may bring back the state of producers whose records are gone.
    """

    def run_rewrites(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            for _ in range(rng.randint(3, 8)):
                try:
                    self.append(PLAIN, log, ledger)
                except Refused as refused:
                    self.tell(f"refused: {refused}")
            self.restart("clean")
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            end = int(log.log_end_offset)
            for _ in range(rng.choice((0, 0, 1))):
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            self.cut(PLAIN, rng.choice(ledger.batches[-4:]).header.base_offset)
            while log.log_end_offset < end:
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            for _ in range(rng.choice((0, 0, 1, 2))):
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            self.restart(rng.choice(("power", "power", "power", "kill")))


class UnendedWorld(ScarceWorld):
    """A segment must be rolled whose indexes are not open, with hardly any descriptors left. If it cannot, the log continues in
    it.
    """

    first_configs = {**CONFIGS, "plain": replace(CONFIGS["plain"], index_interval_bytes=100)}
    #: Enough descriptors to begin.
    left_max = 24

    def run_short_ends(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            if rng.random() < 0.3:
                self.restart(rng.choice(("power", "kill", "clean")))
            else:
                self._roll()
            self._lead()
            self._without_descriptors(self._roll)
            if self._is_offline:
                # It was the only directory: the broker ends.
                self.restart("kill")
                continue
            self.check_now()
            for _ in range(rng.randint(2, 5)):
                self._lead()
            self.check_now()
