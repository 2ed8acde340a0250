"""Our cleaner beside Apache Kafka 3.9.1's: the same segments, cleaned by both.

    python -m bench compaction -- [--records 600000] [--rounds 5]

Our storage writes the logs once. Kafka gets copies of them as topics, starts, and logs how long each cleaning took. Our cleaner
runs in a worker process, as in a broker. The first cleaning of each kind is left out on both sides: it warms up the JVM, and in
it our worker imports numba, which takes half a second (`start_s` in the raw results). CPU time is that of the worker, and that
of Kafka's cleaner thread without the JVM's compiler and collector.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import IO

from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.config.log_config import CLEANUP_COMPACT, LogConfig
from barnabas.broker.storage.cleaner.job import CleanJob, CleanStats, Finished, GroupCleaned, decode_report
from barnabas.broker.storage.cleaner.planning import clean_job, dirty_range
from barnabas.broker.storage.cleaner.process import WORKER_COMMAND
from barnabas.broker.storage.cleaner.settings import CleanerSettings
from barnabas.broker.storage.cleaner.worker import LENGTH, frame
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.recovery import open_log
from barnabas.wire.compression import Codec
from barnabas.wire.records import BatchBuilder
from bench.kafka import ApacheKafka
from bench.limits import machine_limits
from bench.report import Row, announce, write_report

NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 64 << 20
CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES, cleanup_policy=frozenset({CLEANUP_COMPACT}))
_CLEANED = re.compile(r"cleaned log (\S+) \(.*?\)\s+([\d.,]+) MB of log processed in ([\d.,]+) seconds", re.DOTALL)


@dataclass(frozen=True)
class Load:
    name: str
    records_per_batch: int
    value_bytes: int
    #: The share of records whose key no other record has.
    distinct: float
    codec: Codec = Codec.NONE
    #: The share of records that is written, less than 1 for large or slow ones.
    share: float = 1.0
    #: Values have half of `value_bytes` to all of it, so that neighbours rarely have the same size.
    varied: bool = False


LOADS = (
    Load("100 B values, 100 a batch, 20% survive", 100, 100, 0.2),
    Load("1 KB values, 16 a batch, 50% survive", 16, 1000, 0.5, share=0.5),
    Load("100 B values, 1 a batch, 20% survive", 1, 100, 0.2),
    Load("100 B values, 100 a batch, zstd, 20% survive", 100, 100, 0.2, Codec.ZSTD),
    Load("50 to 100 B values, 100 a batch, 20% survive", 100, 100, 0.2, varied=True),
)


def write_log(directory: Path, load: Load, records: int) -> CleanJob:
    """A log in which all segments but the active one are dirty, and the job of cleaning it."""
    log = open_log(str(directory), config=CONFIG, env=LogEnvironment())
    random = Random(1)
    keys = max(int(records * load.distinct), 1)
    value = random.randbytes(load.value_bytes // 2) + b"x" * (load.value_bytes - load.value_bytes // 2)
    for number in range(0, records, load.records_per_batch):
        builder = BatchBuilder(codec=load.codec)
        for at in range(load.records_per_batch):
            size = random.randint(load.value_bytes // 2, load.value_bytes) if load.varied else load.value_bytes
            builder.append(b"key-%010d" % random.randrange(keys), value[:size], timestamp=NOW_MS + number + at)
        log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    job = clean_job(log, dirty_range(log, None, NOW_MS), CleanerSettings(), NOW_MS)
    log.close()
    return job


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    #: Additional CPU time of the worker's first cleaning.
    start_s: float = 0.0


def our_costs(job: CleanJob, rounds: int) -> list[Cost]:
    """Return the costs of one worker that cleans the same log repeatedly, without the first time."""
    costs = []
    with subprocess.Popen(WORKER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        for _ in range(rounds + 1):
            before_s = cpu_s(worker.pid)
            worker.stdin.write(frame(job.encode()))
            worker.stdin.flush()
            stats = finished(worker.stdout)
            costs.append(Cost(stats.total_s, cpu_s(worker.pid) - before_s))
            for leftover in Path(job.directory).glob("*.cleaned"):
                leftover.unlink()
        worker.stdin.close()
    first, *others = costs
    start_s = first.cpu_s - statistics.median(cost.cpu_s for cost in others)
    return [replace(cost, start_s=start_s) for cost in others]


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def finished(reports: IO[bytes]) -> CleanStats:
    """Wait for the end of a cleaning."""
    while True:
        (size,) = LENGTH.unpack(reports.read(LENGTH.size))
        report = decode_report(reports.read(size))
        if isinstance(report, Finished):
            return report.stats
        if not isinstance(report, GroupCleaned):
            raise RuntimeError(f"the worker reported {report}")


def kafkas_costs(logs: dict[str, Path], rounds: int) -> dict[str, list[Cost]]:
    """Return the costs of each cleaning by the name of the log, without the first of each."""
    topics = {f"{name}-{turn}": path for name, path in logs.items() for turn in range(rounds + 1)}
    config = {
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleanup.policy": "compact",
        "log.segment.bytes": str(SEGMENT_BYTES),
        "log.retention.ms": "-1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
    }
    with ApacheKafka(brokers=0, config=config) as kafka:
        with (kafka.folder / "log4j.properties").open("a") as file:
            file.write("log4j.logger.kafka.log.LogCleaner=INFO\n")
        kafka.start_broker(1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            future.result(60)
        broker = kafka.processes["broker-1"]
        broker.terminate()
        broker.wait(60)
        for topic, path in topics.items():
            target = kafka.log_dir(1) / f"{topic}-0"
            for old in target.glob("0*"):
                old.unlink()
            for source in path.glob("0*"):
                shutil.copy(source, target / source.name)
        kafka.start_broker(1)
        return watch(kafka, list(logs), len(topics))


def watch(kafka: ApacheKafka, names: list[str], cleanings: int) -> dict[str, list[Cost]]:
    """Read Kafka's log while it cleans. Its cleaner handles one log at a time, so the CPU time between two ends is one
    cleaning's."""
    output = kafka.folder / "broker-1.log"
    found: dict[str, list[Cost]] = {name: [] for name in names}
    seen, cpu_before = 0, 0.0
    deadline = time.monotonic() + 120 + 60 * cleanings
    while sum(map(len, found.values())) < cleanings:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Kafka has cleaned {found} so far:\n{output.read_text()[-3000:]}")
        time.sleep(0.02)
        ends = _CLEANED.findall(output.read_text())[seen:]
        if not ends:
            continue
        cpu = cleaner_thread_cpu_s(kafka.pid(1))
        for topic, _, seconds in ends:
            name = topic.rpartition("-")[0].rpartition("-")[0]
            if name in found:
                found[name].append(Cost(float(seconds.replace(",", "")), (cpu - cpu_before) / len(ends)))
        seen, cpu_before = seen + len(ends), cpu
    return {name: costs[1:] for name, costs in found.items()}


def cleaner_thread_cpu_s(pid: int) -> float:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("kafka-log-clean"):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError("Kafka has no cleaner thread")


def main(options: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(options)
    share = arguments.records / 1e6
    announce("compaction", arguments.rounds, round_s=20 * share, setup_s=25 + 110 * share)
    limits = machine_limits()
    root = Path(tempfile.mkdtemp())
    try:
        jobs = {
            f"load{number}": write_log(root / f"load{number}-0", load, int(arguments.records * load.share))
            for number, load in enumerate(LOADS)
        }
        theirs = kafkas_costs({name: root / f"{name}-0" for name in jobs}, arguments.rounds)
        ours = {name: our_costs(job, arguments.rounds) for name, job in jobs.items()}
    finally:
        shutil.rmtree(root)
    rows = []
    for (name, job), load in zip(jobs.items(), LOADS, strict=True):
        for label, cost_s in (("s", lambda cost: cost.wall_s), ("CPU s", lambda cost: cost.cpu_s)):
            rate = [
                job.end_offset / 1000 / statistics.median(map(cost_s, costs)) for costs in (ours[name], theirs[name])
            ]
            rows.append(Row(f"{load.name}, k/{label}", *rate))
    raw = {
        side: {name: [asdict(cost) for cost in costs] for name, costs in found.items()}
        for side, found in (("ours", ours), ("theirs", theirs))
    }
    title = "Compaction: thousand records a second"
    write_report("compaction", title, rows, rounds=arguments.rounds, raw=raw, interleaved=False, limits=limits)
