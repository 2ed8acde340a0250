"""What the tests of the log share: batches, a partition in a folder of its own, and a view of all that is in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import LogDirFault
from barnabas.base.host.disk import Disk
from barnabas.broker.storage.environment import InlineThreads, LogEnvironment
from barnabas.broker.storage.file_handle import SegmentPool
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.storage.recovery import open_log
from barnabas.broker.storage.segment import Segment
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import check_crc, iter_batches
from barnabas.wire.records import BatchBuilder, end_txn_marker, iter_records
from tests.manual_time import ManualClock, ManualThreads, ManualTimers

NOW_MS = 1_700_000_000_000


def batch(
    values: Sequence[bytes],
    *,
    timestamp: int = NOW_MS,
    key: bytes | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = Codec.NONE,
) -> bytearray:
    """One batch; the records' timestamps count up from `timestamp`."""
    builder = BatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
        leader_epoch=leader_epoch,
        codec=codec,
    )
    for index, value in enumerate(values):
        builder.append(key, value, timestamp=timestamp + index)
    return bytearray(builder.build())


class Entry(NamedTuple):
    offset: int
    value: bytes | None
    epoch: int


def contents(log: Log, *, max_bytes: int = 700) -> list[Entry]:
    """Every record from the log start to its end, read piece by piece, every CRC checked."""
    entries: list[Entry] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=max_bytes, max_offset=log.log_end_offset)
        data = result.read()
        if not data:
            break
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            for record in iter_records(data, position, header):
                entries.append(Entry(record.offset, record.value, header.leader_epoch))
            offset = header.next_offset
        assert result.upper_offset >= offset
    return [entry for entry in entries if entry.offset >= log.log_start_offset]


def epoch_at(log: Log, offset: int) -> int:
    """The leader epoch in which the record at `offset` was written, as the log's epochs tell it."""
    return max(entry for entry in log.epochs.entries if entry.start_offset <= offset).epoch


class QuickDisk(Disk):
    """Does not wait for the hardware: what matters to most tests is in the page cache."""

    __slots__ = ()

    def fsync(self, fd: int) -> None:
        """Nothing is lost here but time."""


class Partition:
    """A log in `root/topic-0`, its clock, timers and threads in the test's hands."""

    def __init__(
        self,
        root: Path,
        config: LogConfig | None = None,
        *,
        disk: Disk | None = None,
        max_open_segments: int = 100,
        manual_threads: bool = False,
    ) -> None:
        self.root = root
        self.config = config or LogConfig(segment_bytes=2000, index_interval_bytes=100, segment_index_bytes=1200)
        self.clock = ManualClock(NOW_MS)
        self.timers = ManualTimers(self.clock)
        self.threads = ManualThreads() if manual_threads else InlineThreads()
        self.faults: list[LogDirFault] = []
        self.env = LogEnvironment(
            disk=disk or QuickDisk(),
            clock=self.clock,
            timers=self.timers,
            threads=self.threads,
            pool=SegmentPool(max_open_segments),
            on_fault=self.faults.append,
        )
        self.log = self.open()

    @property
    def directory(self) -> Path:
        return self.root / "topic-0"

    def open(self, *, clean: bool = True, recovery_point: int | None = None, log_start_offset: int = 0) -> Log:
        self.log = open_log(
            str(self.directory),
            config=self.config,
            env=self.env,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        return self.log

    def reopen(self) -> Log:
        """A clean stop and a start."""
        start = self.log.log_start_offset
        self.log.close()
        return self.open(clean=True, log_start_offset=start)

    def crash(self, *, recovery_point: int | None = None) -> Log:
        """Kill the process: the page cache stays, nothing more is written."""
        point = self.log.recovery_point if recovery_point is None else recovery_point
        start = self.log.log_start_offset
        self.log.abandon()
        return self.open(clean=False, recovery_point=point, log_start_offset=start)

    def append(self, *values: bytes, epoch: int = 0, timestamp: int | None = None) -> int:
        """One batch of these values; its first offset."""
        stamp = self.clock.now_ms() if timestamp is None else timestamp
        info = self.log.append_as_leader(
            batch(values or (b"value",), timestamp=stamp, key=b"key"), leader_epoch=epoch, now_ms=self.clock.now_ms()
        )
        return info.first_offset

    def fill(self, batches: int, *, size: int = 50, epoch: int = 0) -> None:
        """That many batches of two records each."""
        for number in range(batches):
            self.append(b"a%d" % number + b"." * size, b"b%d" % number, epoch=epoch)

    def transact(self, producer_id: int, *, sequence: int = 0, commit: bool = True) -> None:
        """A transaction of one record and its marker."""
        self.log.append_as_leader(
            batch(
                [b"in a transaction"], producer_id=producer_id, producer_epoch=0, sequence=sequence, transactional=True
            ),
            leader_epoch=0,
            now_ms=self.clock.now_ms(),
        )
        marker = end_txn_marker(
            commit=commit,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=self.clock.now_ms(),
        )
        self.log.append_as_leader(
            bytearray(marker), leader_epoch=0, now_ms=self.clock.now_ms(), origin=Origin.COORDINATOR
        )

    def commit(self) -> None:
        """Everything is replicated."""
        self.log.update_high_watermark(self.log.log_end_offset)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


def replace_segments(log: Log, cleaned: list[Segment], old: list[Segment]) -> None:
    """Where threads work at once."""
    answers: list[Exception | None] = []
    log.replace_segments_then(cleaned, old, is_wanted=lambda: True, then=answers.append)
    assert answers == [None]
