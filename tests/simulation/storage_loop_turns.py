"""What an event loop does with its logs, turn by turn: it reads little, and what is cut off was never there."""

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.environment import InlineThreads
from barnabas.broker.storage.log_types import Origin
from barnabas.wire.records import BatchBuilder
from tests.simulation.storage_world import CONFIGS, PLAIN, RandomThreads, StorageWorld

#: What one turn of the loop may read of its logs. A look-up by timestamp reads most: headers, one MiB of the segment at a time,
#: and then the batch that has the record. (All else reads pages of 4 KiB from an index entry on.)
TURN_BYTES_MAX = (1 << 20) + (1 << 17) + (1 << 16)
#: A batch, so that few of them are more than that.
_VALUE_BYTES = 100_000


class LoopHeld(AssertionError):
    """A turn of the loop reads a whole segment."""


class ReadingWorld(StorageWorld):
    """Segments that are much larger than what a turn may read."""

    first_configs = {
        **CONFIGS,
        "plain": LogConfig(
            segment_bytes=1 << 28,
            index_interval_bytes=4096,
            segment_index_bytes=1 << 16,
            retention_bytes=-1,
            retention_ms=-1,
        ),
    }

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: What the turn of the loop that runs has read; None: a thread reads, or nobody.
        self._turn_bytes: int | None = None
        super().__init__(seed, journaled=journaled)
        self.disk.on_read = self._on_read

    def _on_read(self, size_bytes: int) -> None:
        if self._turn_bytes is not None:
            self._turn_bytes += size_bytes
            if self._turn_bytes > TURN_BYTES_MAX:
                raise LoopHeld(f"one turn of the loop has read {self._turn_bytes} bytes and more")

    @contextmanager
    def turn(self) -> Iterator[None]:
        self._turn_bytes = 0
        try:
            yield
        finally:
            self._turn_bytes = None

    def new_threads(self) -> RandomThreads:
        return TurningThreads(self)

    def run_reads(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            is_idempotent, is_ascending = rng.random() < 0.5, rng.random() < 0.5
            now_ms = self.clock.now_ms()
            for number in range(25):
                entry = log.producers.entry(1) if is_idempotent else None
                builder = BatchBuilder(
                    producer_id=1 if is_idempotent else -1,
                    producer_epoch=0 if is_idempotent else -1,
                    base_sequence=(0 if entry is None else entry.last_sequence + 1) if is_idempotent else -1,
                )
                timestamp = now_ms + number if is_ascending else now_ms - number
                builder.append(b"k", rng.randbytes(_VALUE_BYTES), timestamp=timestamp)
                with self.turn():
                    self.append_data(PLAIN, log, ledger, bytes(builder.build()), Origin.CLIENT)
            if rng.random() < 0.5:
                self.cut(PLAIN, rng.choice(ledger.batches[-5:]).header.base_offset)
            log.update_high_watermark(log.log_end_offset)
            with self.turn():
                found = log.offset_for_timestamp(now_ms)
            assert found is not None
            if rng.random() < 0.5:
                self.tell(f"delete all records of {PLAIN}")
                with self.turn():
                    log.maybe_increment_log_start_offset(log.log_end_offset)
                with self.turn():
                    assert log.offset_for_timestamp(now_ms - 100) is None
            self.restart(rng.choice(("kill", "clean")))
            with self.turn():
                self.begin_anew(PLAIN, self.log(PLAIN), ledger)

    def cut(self, partition: TopicPartition, offset: int) -> None:
        with self.turn():
            super().cut(partition, offset)


class TurningThreads(RandomThreads):
    """What a thread reads, the loop does not wait for. What follows from it is another turn."""

    def __init__(self, world: ReadingWorld) -> None:
        super().__init__(world.rng)
        self._world = world

    def run_one(self) -> None:
        if self._pending:
            chosen = self._rng.randrange(len(self._pending))
            work, done = self._pending[chosen]
            del self._pending[chosen]
            world = self._world
            was, world._turn_bytes = world._turn_bytes, None

            def turn(error: BaseException | None) -> None:
                with world.turn():
                    done(error)

            InlineThreads().run(work, turn)
            world._turn_bytes = was


class TransactionsWorld(StorageWorld):
    def run_transactions(self, rounds: int) -> None:
        """Transactions of several segments, of which the first records are deleted and the last cut off, again and again."""
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            for _ in range(rng.randint(2, 8)):
                self._try_append()
                if rng.random() < 0.25:
                    self.tell(f"roll {PLAIN}")
                    log.roll(self.clock.now_ms())
            log.update_high_watermark(rng.randint(int(log.high_watermark), int(log.log_end_offset)))
            if rng.random() < 0.6:
                offset = rng.randint(int(log.log_start_offset), int(log.high_watermark))
                self.tell(f"delete records of {PLAIN} below {offset}")
                log.maybe_increment_log_start_offset(offset)
                if rng.random() < 0.5:
                    log.delete_old_segments(self.clock.now_ms())
            for _ in range(rng.randint(0, 2)):
                self._try_append()
            bounds = [s.header.base_offset for s in ledger.batches if s.header.base_offset >= log.high_watermark]
            if bounds:
                self.cut(PLAIN, rng.choice(bounds))
                self._check_transactions()
            if rng.random() < 0.2:
                self.restart(rng.choice(("power", "kill", "clean")))

    def _try_append(self) -> None:
        try:
            self.append(PLAIN, self.log(PLAIN), self.ledgers[PLAIN])
        except Refused as refused:
            self.tell(f"refused: {refused}")

    def _check_transactions(self) -> None:
        """What has ended is not open, wherever the log starts."""
        markers = [stored.header for stored in self.ledgers[PLAIN].batches if stored.header.is_control]
        for producer_id, entry in self.log(PLAIN).producers.producers.items():
            first = entry.txn_first_offset
            if first is not None:
                ends = [m.base_offset for m in markers if m.producer_id == producer_id and m.base_offset > first]
                assert not ends, f"{PLAIN}: producer {producer_id} is open since {first}, and has ended at {ends}"
