"""How fast the storage engine is, beside what the file system itself can do.

    python -m bench storage -- [--dir FOLDER] [--megabytes 256] [--partitions 500]

Everything stays in the page cache, so only our own cost is measured. Prints a table, and writes it as JSON to
bench/results/storage.json.
"""

import argparse
import gc
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crc32c import crc32c

from barnabas.base.config.log_config import LogConfig
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.recovery import open_log
from barnabas.wire.records import BatchBuilder

CONFIG = LogConfig(segment_bytes=1 << 30)
NOW_MS = 1_700_000_000_000
RESULTS = Path(__file__).parent / "results" / "storage.json"


@dataclass
class Figure:
    name: str
    value: float
    unit: str
    #: The goal as (">=" or "<=", number); None if there is no goal.
    target: tuple[str, float] | None = None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        sign, limit = self.target
        met = self.value >= limit if sign == ">=" else self.value <= limit
        return f"{sign} {limit:g} {'ok' if met else 'MISSED'}"


def make_batch(size_bytes: int, records: int = 16) -> bytearray:
    """Return about `size_bytes` of records without compression."""
    builder = BatchBuilder()
    value = os.urandom(max(1, (size_bytes - 61) // records - 10))
    for number in range(records):
        builder.append(None, value, timestamp=NOW_MS + number)
    return bytearray(builder.build())


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def new_log(root: Path, name: str) -> Log:
    return open_log(str(root / f"{name}-0"), config=CONFIG, env=LogEnvironment())


def bench_append(root: Path, total_bytes: int, size_bytes: int) -> list[Figure]:
    """Write the same batches with `pwrite` alone and through the log, in turns, so that both see the same machine."""
    count = total_bytes // size_bytes
    original = make_batch(size_bytes)
    size = len(original)
    pieces = [bytearray(original) for _ in range(64)]
    # An appended batch has its final offset, but a producer's batches begin at 0.
    blank = bytes(original[:16])
    log = new_log(root, f"append{size_bytes}")
    fd = os.open(root / f"raw{size_bytes}", os.O_RDWR | os.O_CREAT)
    raw_s = append_s = 0.0
    rounds = 8
    for turn in range(rounds):
        start = turn * (count // rounds)

        def raw(start: int = start) -> None:
            for number in range(start, start + count // rounds):
                os.pwrite(fd, pieces[number % 64], number * size)

        def append() -> None:
            for number in range(count // rounds):
                piece = pieces[number % 64]
                piece[:16] = blank
                log.append_as_leader(piece, leader_epoch=0, now_ms=NOW_MS)

        raw_s += timed(raw)
        append_s += timed(append)
    os.close(fd)
    (root / f"raw{size_bytes}").unlink()
    done = count // rounds * rounds
    crc_s = timed(lambda: [crc32c(memoryview(pieces[n % 64])[21:]) for n in range(done)])
    log.abandon()
    label = f"{size_bytes // 1024} KB"
    figures = [
        Figure(f"append {label}", done * size / append_s / 1e6, "MB/s"),
        Figure(f"append {label} / raw write", raw_s / append_s, "", (">=", 0.5) if size_bytes == 65536 else None),
    ]
    if size_bytes == 16384:
        own_us = (append_s - raw_s - crc_s) / done * 1e6
        figures.append(Figure(f"append {label}, besides CRC and write", own_us, "us", ("<=", 15)))
    return figures


def bench_idempotent(root: Path, count: int = 3000) -> list[Figure]:
    log = new_log(root, "idempotent")
    batches = []
    for number in range(count):
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=number)
        builder.append(None, b"x" * 1000, timestamp=NOW_MS)
        batches.append(bytearray(builder.build()))
    took_s = timed(lambda: [log.append_as_leader(b, leader_epoch=0, now_ms=NOW_MS) for b in batches])
    log.abandon()
    return [Figure("append 1 KB, idempotent producer", took_s / count * 1e6, "us")]


def bench_read(root: Path, total_bytes: int) -> list[Figure]:
    log = new_log(root, "read")
    size = len(make_batch(16384))
    for _ in range(total_bytes // size):
        log.append_as_leader(make_batch(16384, 4), leader_epoch=0, now_ms=NOW_MS)
    end = log.log_end_offset

    def sequential() -> None:
        offset = 0
        while offset < end:
            result = log.read(offset, max_bytes=1 << 20, max_offset=end)
            result.read()
            offset = result.upper_offset

    def plan() -> None:
        offset = 0
        while offset < end:
            result = log.read(offset, max_bytes=1 << 20, max_offset=end)
            result.release()
            offset = result.upper_offset

    segment = log.active_segment

    def raw() -> None:
        fd = segment.file.fd
        for position in range(0, segment.size_bytes, 1 << 20):
            os.pread(fd, 1 << 20, position)

    read_s, raw_s, plan_s = timed(sequential), timed(raw), timed(plan)
    fetches = log.size_bytes / (1 << 20)
    choose = random.Random(5)
    offsets = [choose.randrange(end) for _ in range(20_000)]
    find_s = timed(lambda: [segment.find(offset) for offset in offsets])
    fetch_s = timed(lambda: [log.read(o, max_bytes=1, max_offset=end).release() for o in offsets])
    tail_s = timed(lambda: [log.read(end, max_bytes=1 << 20, max_offset=end) for _ in range(20_000)])
    log.abandon()
    return [
        Figure("sequential read, 1 MB fetches", log.size_bytes / read_s / 1e6, "MB/s"),
        Figure("sequential read / raw read", raw_s / read_s, ""),
        Figure("cost of a 1 MB fetch, besides its bytes", plan_s / fetches * 1e6, "us"),
        Figure("look-up by offset", find_s / len(offsets) * 1e6, "us", ("<=", 10)),
        Figure("smallest fetch at a random offset", fetch_s / len(offsets) * 1e6, "us"),
        Figure("fetch at the log end, nothing there", tail_s / 20_000 * 1e6, "us"),
    ]


def bench_recovery(root: Path, total_bytes: int, size_bytes: int) -> Figure:
    name = f"recover{size_bytes}"
    log = new_log(root, name)
    batch = make_batch(size_bytes)
    blank = bytes(batch[:16])
    for _ in range(total_bytes // len(batch)):
        batch[:16] = blank
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    size = log.size_bytes
    log.abandon()
    best_s = float("inf")
    for _ in range(3):

        def recover() -> None:
            open_log(str(root / f"{name}-0"), config=CONFIG, env=LogEnvironment(), clean=False).abandon()

        best_s = min(best_s, timed(recover))
    target = (">=", 1.0) if size_bytes >= 16384 else None
    return Figure(f"recovery, batches of {size_bytes // 1024} KB", size / best_s / 1e9, "GB/s", target)


def bench_compaction(root: Path, records: int) -> list[Figure]:
    """Measure ours only; in `python -m bench compaction` Kafka's cleaner cleans the same segments."""
    from bench.compaction import LOADS, our_cost, write_log

    figures = []
    for number, load in enumerate(LOADS):
        job = write_log(root / f"compaction{number}-0", load, int(records * load.share))
        figures.append(Figure(f"compaction, {load.name}", job.end_offset / our_cost(job).wall_s / 1000, "k/s"))
    return figures


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bench_partitions(root: Path, count: int) -> list[Figure]:
    env = LogEnvironment()
    logs = [open_log(str(root / f"warm-{n}"), config=CONFIG, env=env) for n in range(50)]
    gc.collect()
    before = resident_bytes()
    create_s = timed(
        lambda: logs.extend(open_log(str(root / f"many-{n}"), config=CONFIG, env=env) for n in range(count))
    )
    idle_bytes = resident_bytes() - before
    batch = make_batch(1024)
    blank = bytes(batch[:16])
    fds = len(list(Path("/proc/self/fd").iterdir()))
    for log in logs[50:]:
        for _ in range(6):
            batch[:16] = blank
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    fds = len(list(Path("/proc/self/fd").iterdir())) - fds

    def close() -> None:
        for log in logs:
            log.close()

    close_s = timed(close)
    loaded: list[Log] = []
    load_s = timed(
        lambda: loaded.extend(open_log(str(root / f"many-{n}"), config=CONFIG, env=env) for n in range(count))
    )
    for log in loaded:
        log.abandon()
    return [
        Figure("create a partition", create_s / count * 1e3, "ms", ("<=", 1.5)),
        Figure("idle partition, resident", idle_bytes / count / 1024, "KB", ("<=", 15)),
        Figure("descriptors of a partition that is written", fds / count, "", ("<=", 5)),
        Figure("close a partition, with fsync", close_s / len(logs) * 1e3, "ms"),
        Figure("load a partition after a clean stop", load_s / count * 1e3, "ms"),
    ]


def main(options: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", help="a folder to work in; a temporary one where it is not given")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--partitions", type=int, default=300)
    arguments = parser.parse_args(options)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    total = arguments.megabytes << 20
    figures: list[Figure] = []
    try:
        # First, before memory that earlier work has freed hides what partitions take.
        figures += bench_partitions(root, arguments.partitions)
        for size in (16384, 65536):
            figures += bench_append(root, total, size)
        figures += bench_idempotent(root)
        figures += bench_read(root, total)
        for size in (1024, 16384, 65536):
            figures.append(bench_recovery(root, total if size > 1024 else total // 4, size))
        figures += bench_compaction(root, total // 1024)
    finally:
        shutil.rmtree(root)
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        print(f"{figure.name:<{width}}  {figure.value:>10.2f} {figure.unit:<5} {figure.verdict}")
    RESULTS.parent.mkdir(exist_ok=True)
    about = {"python": sys.version.split()[0], "machine": platform.machine(), "cores": os.cpu_count()}
    content = {"about": about, "figures": [asdict(figure) for figure in figures]}
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
