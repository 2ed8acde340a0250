"""Real logs under a real manager and cleaner on a simulated disk: random operations, crashes at any point, and checks.

The ledger knows which records were appended, which were truncated, and which were promised to be durable. Each restart is
compared with it, and all derived state (producers, transactions, epochs, indexes) with the records themselves.
"""

import contextlib
import itertools
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.base.errors import Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.cleaner.cleaner import Cleaner
from barnabas.broker.storage.cleaner.in_process import InProcessWorker
from barnabas.broker.storage.cleaner.settings import CleanerSettings
from barnabas.broker.storage.environment import InlineThreads, LogEnvironment
from barnabas.broker.storage.file_handle import SegmentPool
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.storage.manager_settings import ManagerSettings
from barnabas.testing.simulation.disk import SimDisk
from barnabas.testing.simulation.disk_files import EVERYTHING, NAME, SYNC
from barnabas.wire.record_batch import BatchHeader, read_header
from barnabas.wire.records import BatchBuilder, end_txn_marker
from tests.manual_time import ManualClock, ManualThreads, ManualTimers
from tests.simulation.storage_ledger import (
    Ledger,
    Promise,
    Stored,
    aborted_offsets,
    after_holes,
    check_derived,
    content,
    records,
)

PLAIN, COMPACTED = TopicPartition("plain", 0), TopicPartition("compacted", 0)
ROOT = "/logs"
#: The producer id of `begin_transaction`.
_TRANSACTIONAL = 7
CONFIGS = {
    "plain": LogConfig(
        segment_bytes=16_000,
        index_interval_bytes=500,
        segment_index_bytes=2000,
        retention_bytes=60_000,
        retention_ms=-1,
        file_delete_delay_ms=2000,
    ),
    "compacted": LogConfig(
        segment_bytes=9000,
        index_interval_bytes=500,
        segment_index_bytes=2000,
        cleanup_policy=frozenset({CLEANUP_COMPACT}),
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=1 << 40,
        file_delete_delay_ms=2000,
    ),
}
SETTINGS = ManagerSettings(
    retention_check_interval_ms=7000,
    flush_offset_checkpoint_interval_ms=5000,
    flush_start_offset_checkpoint_interval_ms=5000,
    high_watermark_checkpoint_interval_ms=3000,
    initial_task_delay_ms=1000,
)


class Crash(BaseException):
    """A crash in the middle of an operation. Not an `Exception`, so that no code catches it and continues."""


class InlinePool(Executor):
    """A thread pool whose work the calling thread does."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class RandomThreads(ManualThreads):
    """Threads whose work waits for its turn; turns come in random order."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    def run_one(self) -> None:
        if self._pending:
            chosen = self._rng.randrange(len(self._pending))
            work, done = self._pending[chosen]
            del self._pending[chosen]
            InlineThreads().run(work, done)


class StorageWorld:
    #: The directories of its logs.
    roots: tuple[str, ...] = (ROOT,)
    #: The settings of its topics at the beginning; they may change.
    first_configs: Mapping[str, LogConfig] = CONFIGS
    is_tiering = False
    #: The partitions of its logs.
    partitions: tuple[TopicPartition, ...] = (PLAIN, COMPACTED)
    #: How many inactive segments may be open.
    open_segments_max = 1000

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock()
        self.disk = SimDisk(now_ns=lambda: self.clock.now_ms() * 1_000_000, journaled=journaled)
        self.ledgers = {partition: Ledger() for partition in self.partitions}
        self.configs = dict(self.first_configs)
        self.story: list[str] = []
        self.crashes_in = -1
        #: The kinds of disk operations that count towards the crash.
        self.crash_kinds: Collection[str] = EVERYTHING
        self.disk.on_cost = self._step
        self.start()

    # -- life and death

    def tell(self, what: str) -> None:
        self.story.append(what)

    def _step(self, kind: str, size_bytes: int) -> None:
        if self.crashes_in > 0 and kind in self.crash_kinds:
            self.crashes_in -= 1
            if self.crashes_in == 0:
                raise Crash(kind)

    def start(self) -> None:
        self.life = self.disk.life()
        self.timers = ManualTimers(self.clock)
        self.threads = self.new_threads()
        self.env = LogEnvironment(
            disk=self.life,
            clock=self.clock,
            timers=self.timers,
            threads=self.threads,
            pool=SegmentPool(self.open_segments_max),
            make_pool=lambda count, name: InlinePool(),
            random=self.rng,
            is_tiering=self.is_tiering,
        )
        self.manager = LogManager(
            self.roots,
            env=self.env,
            settings=SETTINGS,
            config_of=lambda topic: self.configs[topic],
            on_dir_failed=self._dir_failed,
        )
        self.manager.open_dirs(broker_id=1, cluster_id="c")
        self.manager.load()
        for partition in self.ledgers:
            self.manager.get_or_create(partition, topic_id=None)
        self.manager.start()
        self.cleaner = Cleaner(
            self.manager,
            self.env,
            CleanerSettings(io_buffer_size=4096, backoff_ms=2000),
            lambda: InProcessWorker(self.env),
        )
        self.cleaner.start()

    def new_threads(self) -> RandomThreads:
        return RandomThreads(self.rng)

    def _dir_failed(self, path: str, partitions: list[TopicPartition]) -> None:
        raise AssertionError(f"{path} went offline")

    def log(self, partition: TopicPartition) -> Log:
        found = self.manager.get(partition)
        assert found is not None
        return found

    def restart(self, how: str) -> None:
        """Restart. `how`: "power" loses what is not durable, "kill" only the process, "clean" nothing."""
        self.crashes_in = -1
        self.tell(f"restart: {how}")
        before = {partition: self.promise(partition) for partition in self.ledgers}
        if how == "clean":
            self.threads.run_pending()
            self.manager.shutdown()
            before = {partition: promise._replace(durable=promise.end) for partition, promise in before.items()}
        if how == "power":
            self.disk.power_cut(self.rng)
        else:
            self.disk.process_died(self.life)
            before = {partition: promise._replace(durable=promise.end) for partition, promise in before.items()}
        self.between_lives(how)
        self.start()
        assert how == "clean" or not self.manager.dirs[0].had_clean_shutdown, f"a {how} is taken for a clean stop"
        for partition, promise in before.items():
            self.check(partition, promise, how)

    def between_lives(self, how: str) -> None:
        """Change the disk after a process has ended and before the next one begins."""

    def restart_and_lose_power(self, operations: int) -> None:
        """Kill the process, and cut the power before so many operations of the next one's recovery."""
        before = {partition: self.promise(partition) for partition in self.ledgers}
        self.tell(f"restart: kill, and a power cut before operation {operations} of the recovery")
        self.disk.process_died(self.life)
        self.between_lives("kill")
        self.crashes_in = operations
        with contextlib.suppress(Crash):
            self.start()
        self.crashes_in = -1
        self.disk.power_cut(self.rng)
        self.start()
        for partition, promise in before.items():
            self.check(partition, promise, "power")

    def promise(self, partition: TopicPartition) -> Promise:
        log, ledger = self.log(partition), self.ledgers[partition]
        end = ledger.batches[-1].header.next_offset if ledger.batches else 0
        return Promise(
            int(log.log_start_offset), min(int(log.recovery_point), ledger.cutting_to), min(end, ledger.cutting_to)
        )

    # -- what may happen

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.03:
                self.crashes_in = self.rng.randint(1, 25)
            try:
                self._act()
            except Crash as crash:
                self.tell(f"crash before a {crash}")
                self.restart(self.rng.choice(("power", "power", "kill")))
            except Refused as refused:
                self.tell(f"refused: {refused}")
        self.restart(self.rng.choice(("power", "kill", "clean")))
        self.restart("clean")

    def run_compactions(self, rounds: int) -> None:
        """Run compactions that are cut off while segments replace others, or whose recovery is cut off after that."""
        rng = self.rng
        for _ in range(rounds):
            self.write_keys()
            self.manager.checkpoint("recovery-point-offset-checkpoint")
            self.threads.run_pending()
            # Crash between two syncs of the directory, or before one of them.
            self.crash_kinds, self.crashes_in = rng.choice(
                (((NAME, SYNC), rng.randint(1, 80)), ((SYNC,), rng.randint(1, 25)))
            )
            try:
                for _ in range(20):
                    self.clock_runs(500)
                    self.threads.run_pending()
            except Crash as crash:
                self.tell(f"crash before a {crash}")
                if rng.random() < 0.5:
                    self.restart_and_lose_power(rng.randint(1, 10 if self.crash_kinds == (SYNC,) else 30))
            self.restart("power")
            self.crash_kinds = EVERYTHING

    def write_keys(self) -> None:
        """Write some segments of the compacted log, on disk and committed."""
        rng, log, ledger = self.rng, self.log(COMPACTED), self.ledgers[COMPACTED]
        for _ in range(rng.randint(3, 6)):
            for _ in range(rng.randint(1, 4)):
                self.append_data(COMPACTED, log, ledger, self._keyed(), Origin.CLIENT)
            log.roll(self.clock.now_ms())
        log.flusher.flush()
        self.threads.run_pending()
        log.update_high_watermark(log.log_end_offset)

    def _keyed(self) -> bytes:
        """Return a batch of one record, with one of few keys."""
        builder = BatchBuilder()
        builder.append(
            b"k%d" % self.rng.randrange(6),
            self.rng.randbytes(self.rng.choice((5, 50, 700))),
            timestamp=self.clock.now_ms(),
        )
        return bytes(builder.build())

    def run_cuts(self, rounds: int) -> None:
        """Truncate, and append some of the truncated records in a later epoch: the medium may have both."""
        rng = self.rng
        for _ in range(rounds):
            if rng.random() < 0.2:
                # A power cut may also lose what was written since a clean stop.
                self.restart("clean")
                for _ in range(rng.randint(1, 3)):
                    self.append_data(PLAIN, self.log(PLAIN), self.ledgers[PLAIN], self._keyed(), Origin.CLIENT)
                self.restart("power")
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            count = rng.randint(3, 9)
            for _ in range(count):
                self.append_data(PLAIN, log, ledger, self._keyed(), Origin.CLIENT)
            if rng.random() < 0.7:
                log.flusher.flush()
            lost = ledger.batches[-rng.randint(2, count) :]
            self.cut(PLAIN, lost[0].header.base_offset)
            for stored in lost[: rng.randint(1, len(lost))]:
                self.append_data(PLAIN, log, ledger, stored.data, Origin.CLIENT)
            self.restart("power")

    def run_losses(self, rounds: int) -> None:
        """Write small segments with a flush now and then, and cut the power again and again."""
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            for _ in range(rng.randint(1, 4)):
                for _ in range(rng.randint(0, 3)):
                    self.append(PLAIN, log, ledger)
                if rng.random() < 0.6 and log.segments.active.size_bytes:
                    self.tell(f"roll {PLAIN}")
                    log.roll(self.clock.now_ms())
            log.update_high_watermark(rng.randint(int(log.high_watermark), int(log.log_end_offset)))
            if rng.random() < 0.3:
                offset = rng.randint(int(log.log_start_offset), int(log.high_watermark))
                self.tell(f"delete records of {PLAIN} below {offset}")
                log.maybe_increment_log_start_offset(offset)
            if rng.random() < 0.6:
                self.tell(f"flush {PLAIN}")
                log.flusher.flush_in_background()
            if rng.random() < 0.3:
                self.manager.checkpoint("recovery-point-offset-checkpoint")
            for _ in range(rng.choice((0, 1, 3, 20))):
                self.threads.run_one()
            self.restart(rng.choice(("power", "power", "power", "kill", "clean")))

    def _act(self) -> None:
        rng = self.rng
        partition = rng.choice((PLAIN, COMPACTED))
        log, ledger = self.log(partition), self.ledgers[partition]
        choice = rng.random()
        if choice < 0.55:
            self.append(partition, log, ledger)
        elif choice < 0.62:
            offset = rng.randint(int(log.high_watermark), int(log.log_end_offset))
            log.update_high_watermark(offset)
        elif choice < 0.72:
            self.threads.run_one()
        elif choice < 0.78:
            self.clock_runs(rng.choice((100, 1000, 4000)))
        elif choice < 0.83:
            self.tell(f"flush {partition}")
            log.flusher.flush_in_background()
        elif choice < 0.86:
            self.tell(f"flush {partition} now")
            log.flusher.flush()
        elif choice < 0.89:
            self.tell(f"roll {partition}")
            if log.segments.active.size_bytes:
                log.roll(self.clock.now_ms())
        elif choice < 0.915:
            self.truncate(partition, log, ledger)
        elif choice < 0.94:
            offset = rng.randint(int(log.log_start_offset), int(log.high_watermark))
            if partition == PLAIN:
                self.tell(f"delete records of {partition} below {offset}")
                log.maybe_increment_log_start_offset(offset)
        elif choice < 0.944:
            self.begin_again(PLAIN, self.log(PLAIN), self.ledgers[PLAIN])
        elif choice < 0.955:
            ledger.epoch += rng.randint(1, 3)
            self.tell(f"{partition} in epoch {ledger.epoch}")
            log.assign_epoch_start(ledger.epoch)
        elif choice < 0.985:
            self.threads.run_pending()
        else:
            self.restart(rng.choice(("power", "power", "kill", "clean")))

    def durable(self, partition: TopicPartition) -> None:
        """Flush the log, and write the recovery point."""
        self.tell(f"flush {partition}, and write the recovery point")
        self.threads.run_pending()
        self.log(partition).flusher.flush()
        self.manager.checkpoint("recovery-point-offset-checkpoint")
        self.threads.run_pending()

    def clock_runs(self, delta_ms: int) -> None:
        self.tell(f"{delta_ms} ms pass")
        self.timers.advance_ms(delta_ms)

    def append(self, partition: TopicPartition, log: Log, ledger: Ledger) -> None:
        self.append_data(partition, log, ledger, *self._batch(log, ledger))

    def append_data(self, partition: TopicPartition, log: Log, ledger: Ledger, data: bytes, origin: Origin) -> None:
        stored = bytearray(data)
        struct.pack_into(">q", stored, 0, log.log_end_offset)
        struct.pack_into(">i", stored, 12, ledger.epoch)
        ledger.remember(bytes(stored))
        self.tell(f"append to {partition} {_short(read_header(stored))}")
        batch = bytearray(data)
        struct.pack_into(">q", batch, 0, 0)  # as a client sends it: a batch that was stored before has an offset
        log.append_as_leader(batch, leader_epoch=ledger.epoch, now_ms=self.clock.now_ms(), origin=origin)
        ledger.batches.append(Stored(read_header(stored), bytes(stored)))

    def sent_by_leader(self, data: bytes, offset: int, epoch: int) -> Stored:
        """Return a batch of `PLAIN` as its leader has stored it and sends it to this follower."""
        batch = bytearray(data)
        struct.pack_into(">q", batch, 0, offset)
        struct.pack_into(">i", batch, 12, epoch)
        sent = Stored(read_header(batch), bytes(batch))
        self.ledgers[PLAIN].remember(sent.data)
        return sent

    def follow(self, data: bytes, *, gap: int = 0) -> None:
        """Append the next batch of a leader. A leader that compacted the topic once has left out the offsets in `gap`."""
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        sent = self.sent_by_leader(data, int(log.log_end_offset) + gap, ledger.epoch)
        self.tell(f"{PLAIN} follows with {sent.header.base_offset}, {len(data)} bytes")
        log.append_as_follower(sent.data, now_ms=self.clock.now_ms())
        ledger.batches.append(sent)
        if gap:
            ledger.gaps.add(sent.header.base_offset)

    def begin_transaction(
        self, values: Sequence[bytes], *, partition: TopicPartition = PLAIN, key: bytes = b"k"
    ) -> bytes:
        """Begin a transaction of a producer that writes nothing else. Return the marker that aborts it."""
        log, ledger, now_ms = self.log(partition), self.ledgers[partition], self.clock.now_ms()
        entry = log.producers.entry(_TRANSACTIONAL)
        known = ledger.producer_epochs
        epoch = entry.producer_epoch if entry is not None else known.get(_TRANSACTIONAL, -1) + 1
        known[_TRANSACTIONAL] = epoch
        builder = BatchBuilder(
            producer_id=_TRANSACTIONAL,
            producer_epoch=epoch,
            base_sequence=0 if entry is None or entry.last_sequence < 0 else entry.last_sequence + 1,
            transactional=True,
        )
        for value in values:
            builder.append(key, value, timestamp=now_ms)
        self.append_data(partition, log, ledger, bytes(builder.build()), Origin.CLIENT)
        marker = end_txn_marker(
            commit=False, coordinator_epoch=0, producer_id=_TRANSACTIONAL, producer_epoch=epoch, timestamp=now_ms
        )
        return bytes(marker)

    def _batch(self, log: Log, ledger: Ledger) -> tuple[bytes, Origin]:
        rng = self.rng
        now_ms = self.clock.now_ms()
        producer_id = rng.choice((-1, -1, 1, 2, 3))
        entry = log.producers.entry(producer_id) if producer_id >= 0 else None
        is_open = entry is not None and entry.txn_first_offset is not None
        if is_open and rng.random() < 0.3:
            assert entry is not None
            marker = end_txn_marker(
                commit=rng.random() < 0.5,
                coordinator_epoch=0,
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                timestamp=now_ms,
            )
            return bytes(marker), Origin.COORDINATOR
        epoch = -1
        if producer_id >= 0:
            known = ledger.producer_epochs
            epoch = entry.producer_epoch if entry is not None else known.get(producer_id, -1) + 1
            known[producer_id] = max(epoch, known.get(producer_id, 0))
        sequence = -1 if producer_id < 0 else 0 if entry is None or entry.last_sequence < 0 else entry.last_sequence + 1
        builder = BatchBuilder(
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=producer_id >= 2,
        )
        for _ in range(rng.randint(1, 4)):
            key = b"k%d" % rng.randrange(8)
            builder.append(key, rng.randbytes(rng.choice((5, 50, 700))), timestamp=now_ms - rng.randrange(5000))
        return bytes(builder.build()), Origin.CLIENT

    def truncate(self, partition: TopicPartition, log: Log, ledger: Ledger) -> None:
        bounds = [
            stored.header.base_offset for stored in ledger.batches if stored.header.base_offset >= log.high_watermark
        ]
        if not bounds:
            return
        offset = self.rng.choice(bounds)
        lost = [stored for stored in ledger.batches if stored.header.base_offset >= offset]
        self.cut(partition, offset)
        if self.rng.random() < 0.4:
            # The next leader has some of the same records in a later epoch. The medium may have both.
            for stored in lost[: self.rng.randint(1, len(lost))]:
                if stored.header.producer_id >= 0:
                    break
                self.append_data(partition, log, ledger, stored.data, Origin.CLIENT)
            self.restart("power")

    def cut(self, partition: TopicPartition, offset: int) -> None:
        log, ledger = self.log(partition), self.ledgers[partition]
        self.tell(f"truncate {partition} to {offset}")
        ledger.cutting_to = offset
        ledger.was_cut = True
        # A replica truncates because there is a new leader: the next records have a later epoch.
        ledger.epoch += 1
        answers: list[Exception | None] = []
        log.truncate_then(offset, is_wanted=lambda: True, then=answers.append)
        while not answers:
            self.threads.run_one()
        assert answers == [None]
        ledger.batches = [stored for stored in ledger.batches if stored.header.base_offset < offset]
        ledger.cutting_to = 1 << 62

    def begin_again(self, partition: TopicPartition, log: Log, ledger: Ledger) -> None:
        """Begin the log again, as a follower does whose leader has deleted the next records."""
        offset = int(log.log_end_offset) + self.rng.randint(0, 5)
        self.tell(f"{partition} begins again at {offset}")
        ledger.cutting_to = 0
        ledger.was_cut = True
        ledger.epoch += 1
        answers: list[Exception | None] = []
        log.restart_then(offset, is_wanted=lambda: True, then=answers.append)
        while not answers:
            self.threads.run_one()
        assert answers == [None]
        ledger.batches = []
        ledger.deleted_below = offset
        ledger.cutting_to = 1 << 62

    # -- what must hold

    def check(self, partition: TopicPartition, promise: Promise, how: str) -> None:
        log, ledger = self.log(partition), self.ledgers[partition]
        found = content(log)
        by_base = {stored.header.base_offset: stored.data for stored in found}
        end = int(log.log_end_offset)
        if how == "power" and not self.disk.journaled and promise.durable <= promise.start < log.log_start_offset:
            # The log was never synced, and the disk has kept any of its segments' names: it begins with one of them.
            self.tell(f"{partition} has lost its beginning, and starts at {log.log_start_offset}")
            promise = promise._replace(start=int(log.log_start_offset))
        # A new log start also moves the recovery point, but promises nothing about records below it.
        assert end >= promise.durable or promise.durable <= promise.start, (
            f"{partition} ends at {end}, not {promise.durable}"
        )
        expected = [s for s in ledger.batches if s.header.last_offset >= promise.start and s.header.next_offset <= end]
        if partition.topic == PLAIN.topic:
            for stored in expected:
                if stored.header.next_offset <= promise.durable:
                    base = stored.header.base_offset
                    assert by_base.get(base) == stored.data, f"{partition}: durable batch at {base} is lost or changed"
            for stored in found:
                base = stored.header.base_offset
                assert stored.data in ledger.history.get(base, ()), (
                    f"{partition}: the batch at {base} was never written"
                )
            offsets = [(stored.header.base_offset, stored.header.next_offset) for stored in found]
            # Deleted records may come back in part: nothing is promised about them.
            ledger.deleted_below = max(ledger.deleted_below, promise.start)
            assert all(
                a[1] == b[0] or b[0] in ledger.gaps
                for a, b in itertools.pairwise(offsets)
                if b[0] > ledger.deleted_below
            ), f"{partition} has a hole: {offsets}"
            if not ledger.was_cut and ledger.cutting_to > end:
                for stored in expected:
                    base = stored.header.base_offset
                    assert by_base.get(base) == stored.data, f"{partition}: batch at {base} is not what was appended"
        else:
            self._check_compacted(partition, ledger, found, end, promise)
        epochs = [stored.header.leader_epoch for stored in found]
        assert epochs == sorted(epochs), f"{partition}: leader epochs go back: {epochs}"
        ledger.batches = found
        if how != "kill":
            # The medium has the present records; records that recovery has cut off may come back.
            ledger.was_cut = end < promise.end
        ledger.cutting_to = 1 << 62
        log.update_high_watermark(end)
        if partition.topic == PLAIN.topic:
            found = after_holes(found, ledger)
        check_derived(log, found)

    def check_now(self) -> None:
        """Check that the log is unchanged, or that the operation is complete."""
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        found = content(log)
        first = found[0].header.base_offset if found else int(log.log_end_offset)
        expected = [stored for stored in ledger.batches if stored.header.base_offset >= first]
        assert found == expected, (
            f"{PLAIN} has {[stored.header.base_offset for stored in found]}, not "
            f"{[stored.header.base_offset for stored in expected]}"
        )
        end = ledger.batches[-1].header.next_offset if ledger.batches else int(log.log_end_offset)
        assert log.log_end_offset == end, f"{PLAIN} ends at {log.log_end_offset}, not {end}"
        if self.rng.random() < 0.5:
            log.update_high_watermark(end)
            check_derived(log, after_holes(found, ledger))

    def _check_compacted(
        self, partition: TopicPartition, ledger: Ledger, found: list[Stored], end: int, promise: Promise
    ) -> None:
        # Above that, a lost tail looks like the result of compaction, which recovery must not treat as damage.
        limit = min(promise.durable, end)
        # A crash may cut off an append after all of it was written.
        half_done = [stored for stored in found if stored.header.base_offset >= promise.end]
        assert all(stored.data in ledger.history[stored.header.base_offset] for stored in half_done)
        written = [*ledger.batches, *half_done] if limit > promise.end else ledger.batches
        aborted = aborted_offsets(written)
        latest = {
            key: (offset, value) for key, offset, value in records(written, aborted) if promise.start <= offset < limit
        }
        kept = {key: (offset, value) for key, offset, value in records(found, aborted) if offset < limit}
        for key, last in latest.items():
            assert kept.get(key) == last, (
                f"{partition}: {key!r} was {last[1][:9]!r} at {last[0]}, is {str(kept.get(key))[:40]}"
            )


def _short(header: BatchHeader) -> str:
    kind = "marker" if header.is_control else "transactional" if header.is_transactional else "batch"
    return (
        f"[{header.base_offset}, {header.last_offset}] {kind} of {header.size_bytes} bytes, epoch {header.leader_epoch}, "
        f"producer {header.producer_id} sequence {header.base_sequence}"
    )
