"""A compacted log in the test's hands: records with keys, transactions, and a cleaning that runs where it stands."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.base.host.disk import Disk
from barnabas.broker.storage.cleaner.compaction import clean_log
from barnabas.broker.storage.cleaner.engine import PYTHON, Engine
from barnabas.broker.storage.cleaner.job import CleanJob, Died, Finished, GroupCleaned, Report
from barnabas.broker.storage.cleaner.planning import clean_job, dirty_range
from barnabas.broker.storage.cleaner.settings import CleanerSettings
from barnabas.broker.storage.cleaner.worker import run_job
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.replacement import open_cleaned
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import BatchHeader, check_crc, iter_batches
from barnabas.wire.records import BatchBuilder, Record, end_txn_marker, iter_records
from tests.unit.broker.storage.log.log_support import Partition

DELETE_RETENTION_MS = 10_000
CONFIG = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=100,
    segment_index_bytes=1200,
    cleanup_policy=frozenset({CLEANUP_COMPACT}),
    delete_retention_ms=DELETE_RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)
SETTINGS = CleanerSettings(io_buffer_size=4096)

Pairs = Iterable[tuple[bytes | None, bytes | None]]


class Batch(NamedTuple):
    header: BatchHeader
    records: list[Record]
    data: bytes


class CompactedLog(Partition):
    """`put`, `roll`, `clean`; `batches` and `records` say what is left."""

    engine: ClassVar[Engine] = PYTHON

    def __init__(self, root: Path, config: LogConfig = CONFIG, *, disk: Disk | None = None) -> None:
        super().__init__(root, config, disk=disk)
        self.checkpoint: int | None = None
        self.last: Finished | None = None

    def put(
        self,
        *pairs: tuple[bytes | None, bytes | None],
        codec: int = Codec.NONE,
        timestamp: int | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
        transactional: bool = False,
    ) -> int:
        """One batch; the offset of its first record. `producer` is (id, epoch, first sequence)."""
        builder = BatchBuilder(
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            transactional=transactional,
        )
        stamp = self.clock.now_ms() if timestamp is None else timestamp
        for number, (key, value) in enumerate(pairs):
            builder.append(key, value, timestamp=stamp + number, headers=[("h", b"x")] if number % 2 else ())
        info = self.log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=self.clock.now_ms())
        self.commit()
        return info.first_offset

    def end_txn(self, producer_id: int, epoch: int, *, commit: bool) -> int:
        marker = end_txn_marker(
            commit=commit,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp=self.clock.now_ms(),
        )
        info = self.log.append_as_leader(
            bytearray(marker), leader_epoch=0, now_ms=self.clock.now_ms(), origin=Origin.COORDINATOR
        )
        self.commit()
        return info.first_offset

    def roll(self) -> None:
        if self.log.segments.active.size_bytes:
            self.log.roll(self.clock.now_ms())

    def job(self, settings: CleanerSettings = SETTINGS) -> CleanJob | None:
        """None where nothing is dirty."""
        dirty = dirty_range(self.log, self.checkpoint, self.clock.now_ms())
        return clean_job(self.log, dirty, settings, self.clock.now_ms()) if dirty.dirty_bytes else None

    def clean(self, settings: CleanerSettings = SETTINGS) -> Finished | None:
        """One pass over what is dirty, swapped in; None where nothing was."""
        job = self.job(settings)
        if job is None:
            return None
        # Over the wire and back, as in a broker.
        clean_log(CleanJob.decode(job.encode()), self.take, engine=self.engine, disk=self.env.disk)
        assert self.last is not None
        return self.last

    def take(self, report: Report) -> None:
        if isinstance(report, GroupCleaned):
            swap_in(self.log, report, self.env.disk)
        elif isinstance(report, Finished):
            self.checkpoint = report.next_dirty_offset
            self.last = report

    def batches(self) -> list[Batch]:
        """Every batch of every segment, CRCs checked."""
        return [found for segment in self.log.segments for found in read_batches(Path(segment.log_path).read_bytes())]

    def records(self) -> list[Record]:
        """But for those of control batches."""
        return [record for batch in self.batches() if not batch.header.is_control for record in batch.records]

    def values(self) -> dict[bytes | None, list[bytes | None]]:
        found: dict[bytes | None, list[bytes | None]] = {}
        for record in self.records():
            found.setdefault(record.key, []).append(record.value)
        return found


def swap_in(log: Log, report: GroupCleaned, disk: Disk) -> None:
    old = [segment for base in report.replaced if (segment := log.segments.get(base)) is not None]
    cleaned = open_cleaned(log.directory, report.base_offset, disk=disk, config=log.config)
    answers: list[Exception | None] = []
    log.replace_segments_then([cleaned], old, is_wanted=lambda: True, then=answers.append)
    assert answers == [None]


def read_batches(data: bytes) -> list[Batch]:
    found = []
    for position, header in iter_batches(data):
        check_crc(data, position, header)
        whole = data[position : position + header.size_bytes]
        found.append(Batch(header, list(iter_records(data, position, header)), whole))
    return found


class InlineWorker:
    """A worker whose job runs when the test says so, up to a report of the test's choice."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk
        self.job: CleanJob | None = None
        self.killed = 0
        self.closed = False
        self._reported: Callable[[Report], None] | None = None

    def submit(self, job: CleanJob, reported: Callable[[Report], None]) -> None:
        assert self._reported is None
        self.job, self._reported = job, reported

    def run(self) -> None:
        """The whole job."""
        assert self.job is not None
        reports: list[Report] = []
        run_job(self.job, reports.append)
        for report in reports:
            self.tell(report)

    def tell(self, report: Report) -> None:
        if self._reported is None:
            return
        reported = self._reported
        if not isinstance(report, GroupCleaned):
            self._reported, self.job = None, None
        reported(report)

    def kill(self) -> None:
        self.killed += 1

    def die(self) -> None:
        self.tell(Died("killed"))

    async def close(self) -> None:
        self.closed = True
        self.die()
