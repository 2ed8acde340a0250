"""Tiered storage: history read through a broker, the cost of copying for producers, and Spark beside the broker.

The store is a directory in which every request takes 20 ms more. The first two are compared with an untiered topic of the same
broker. Spark reads the same rows straight from the store and through the broker. Rounds alternate. The broker's cache is
smaller than the history, as for long histories: repeated reads come from the store again.

The cost of copying is measured by many short pairs. The two halves of a pair run one after the other, so other load on the
machine affects both, or only one of many pairs. The median of the differences with its 95 % interval is more exact than two
medians.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST_LOCAL, LATEST_TIERED
from barnabas.broker.compose import Broker
from barnabas.broker.features.tiered.store import open_store
from barnabas.broker.server.platform import Platform
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.blocking import BlockingClient, drive
from barnabas.client.config import client_config
from bench.broker import Load, Target, measure_consume, measure_produce
from bench.memory import touched_memory
from bench.report import Row, write_report
from bench.slow_store import DELAY_S, Slow

LOAD = Load("1 KB", 1000, 500_000, "1")
PATIENCE_S = 240.0
#: The load of half a pair: four segments to copy, and the newest.
PAIR = Load("1 KB", 1000, 140_000, "1")
COPIED_SEGMENT_BYTES = 32 << 20
#: Upper bound of the records in a segment.
SEGMENT_RECORDS = COPIED_SEGMENT_BYTES // PAIR.size_bytes + 1000
COPIED = {"tiered": {"remote.storage.enable": "true"}, "plain": {}}
SEGMENT = {"segment.bytes": str(32 << 20), "retention.ms": "-1"}


def _tier(directory: str) -> dict[str, str]:
    return {"remote.log.storage.system.enable": "true", "barnabas.remote.storage.url": f"file://{directory}/tier"}


def serve(zookeeper: str, directory: str) -> None:
    """Run a broker in a separate process; it prints its port."""
    import uvloop

    properties = {
        "zookeeper.connect": zookeeper,
        "broker.id": "7",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{directory}/logs",
        **_tier(directory),
        "remote.log.manager.task.interval.ms": "500",
        "barnabas.remote.chunk.cache.bytes": str(128 << 20),
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
        "log.segment.delete.delay.ms": "0",
    }
    platform = Platform(open_store=lambda url, settings: Slow(open_store(url, settings)))
    broker = Broker(properties, platform=platform)
    uvloop.run(broker.run(lambda ready: print(ready.ports["PLAINTEXT"], flush=True)))


@contextmanager
def running() -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as directory, LocalCluster(brokers=1, config=_tier(directory)) as cluster:
        command = [sys.executable, "-m", "bench.tiered", "--serve", cluster.zookeeper_connect, directory]
        with (Path(directory) / "broker.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield Target("tiered", f"127.0.0.1:{port}", [process.pid])
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def create(target: Target, topic: str, settings: Mapping[str, str]) -> None:
    """Create a topic on the broker with the store."""
    admin = AdminClient(target.settings)
    new = NewTopic(topic, 1, replica_assignment=[[7]], config={**SEGMENT, **settings})
    admin.create_topics([new])[topic].result(30)
    time.sleep(0.5)


def wait_until_copied(target: Target, topic: str, count: int) -> None:
    """Wait until only the last segment is on the disk."""
    last_segment = 40 * (1 << 20) // LOAD.size_bytes
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if local_start(target, topic) >= max(1, count - last_segment):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{topic} is not in the tier after {PATIENCE_S} s")


def local_start(target: Target, topic: str) -> int:
    """Return the first local offset; lower offsets are in the store only."""
    partition = TopicPartition(topic, 0)
    with BlockingClient(client_config(target.bootstrap)) as client:
        return drive(list_offsets(client.core, {partition: EARLIEST_LOCAL}))[partition].offset


def broker_cpu_s(target: Target) -> float:
    """Return the CPU time of the process, including threads that have ended, such as those that read the store."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in target.pids)


def one_round(target: Target, number: int, load: Load, results: dict[str, list[float]]) -> None:
    tiered, plain = f"tiered-{number}", f"plain-{number}"
    create(target, tiered, {"remote.storage.enable": "true", "local.retention.bytes": "1"})
    create(target, plain, {})
    for topic in (tiered, plain):
        measure_produce(target, topic, load)
    wait_until_copied(target, tiered, load.count)
    for topic, name in ((tiered, "tiered"), (plain, "plain")):
        for measure, value in measure_consume(target, topic, load).items():
            results.setdefault(f"{name} consume {measure}", []).append(value)


# -- what copying costs -------------------------------------------------------------------------------------------------------


def idle_cpu_share(target: Target, seconds: float = 3.0) -> float:
    """Return the CPU of the idle broker, as a share of a core."""
    before = broker_cpu_s(target)
    time.sleep(seconds)
    return (broker_cpu_s(target) - before) / seconds


def produce_pair(target: Target, number: int, load: Load, idle: float, results: dict[str, list[float]]) -> None:
    """Produce the same records twice: to a topic that is copied, and to one that is not. CPU counts until all is copied."""
    gigabytes = load.count * load.size_bytes / 1e9
    for name in ("tiered", "plain")[:: 1 if number % 2 else -1]:
        topic = f"copying-{name}-{number}"
        create(target, topic, {"segment.bytes": str(COPIED_SEGMENT_BYTES), **COPIED[name]})
        before_s, began_s = broker_cpu_s(target), time.monotonic()
        speed = measure_produce(target, topic, load)["MB/s"]
        if name == "tiered":
            wait_until_tiered(target, topic, load)
        used_s = broker_cpu_s(target) - before_s - idle * (time.monotonic() - began_s)
        results.setdefault(f"{name} produce MB/s", []).append(speed)
        results.setdefault(f"{name} produce CPU s/GB", []).append(used_s / gigabytes)


def wait_until_tiered(target: Target, topic: str, load: Load) -> None:
    """Wait until everything is copied except what may be in the newest segment, which is never copied."""
    partition = TopicPartition(topic, 0)
    deadline_s = time.monotonic() + PATIENCE_S
    with BlockingClient(client_config(target.bootstrap)) as client:
        while client.list_offsets({partition: LATEST_TIERED})[partition] < load.count - SEGMENT_RECORDS:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{topic} is not in the tier after {PATIENCE_S} s")
            time.sleep(1)  # asking often would add load to the measured broker


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median for any distribution: it lies between two of the values."""
    ordered, rank = sorted(values), 0
    below = 0.5 ** len(ordered)
    while below <= 0.025:
        rank += 1
        below += math.comb(len(ordered), rank) / 2 ** len(ordered)
    at = max(0, rank - 1)
    return ordered[at], ordered[-1 - at]


def copying_rows(pairs: int, load: Load) -> tuple[str, str, list[Row], dict[str, list[float]], str]:
    results: dict[str, list[float]] = {}
    with touched_memory(), running() as target:
        produce_pair(target, -1, load, 0.0, {})  # warms up
        idle = idle_cpu_share(target)
        for number in range(pairs):
            produce_pair(target, number, load, idle, results)
    rows = [_compared(results, "produce MB/s"), _compared(results, "produce CPU s/GB")]
    for row, unit in zip(rows, ("MB/s", "CPU s/GB"), strict=True):
        pairs_of = zip(results[f"tiered {row.name}"], results[f"plain {row.name}"], strict=True)
        more = [100 * (ours / theirs - 1) for ours, theirs in pairs_of]
        results[f"{unit} more by copying, %"] = more
        low, high = median_interval(more)
        print(f"copying changes {row.name} by {statistics.median(more):+.1f} % ({low:+.1f} to {high:+.1f})")
    return "tiered_copying", "What copying to the tier costs those who produce; pairs", rows, results, "not tiered"


def _compared(results: dict[str, list[float]], what: str) -> Row:
    return Row(what, statistics.median(results[f"tiered {what}"]), statistics.median(results[f"plain {what}"]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=LOAD.count)
    parser.add_argument("--spark", action="store_true", help="Spark straight from the store beside the broker")
    parser.add_argument("--pairs", type=int, default=0, help="what copying costs those who produce, by so many pairs")
    parser.add_argument("--no-report", action="store_true", help="print only")
    parser.add_argument("--serve", nargs=2, metavar=("ZOOKEEPER", "DIRECTORY"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve is not None:
        serve(*given.serve)
        return
    load = Load(LOAD.name, LOAD.size_bytes, given.records, LOAD.acks)
    if given.spark:
        from bench.tiered_spark import spark_rows

        report(given, *spark_rows(given.rounds, load))
        return
    if given.pairs:
        report(given, *copying_rows(given.pairs, PAIR))
        return
    results: dict[str, list[float]] = {}
    with touched_memory(), running() as target:
        for number in range(given.rounds):
            one_round(target, number, load, results)
    rows = [_compared(results, what) for what in ("consume MB/s", "consume CPU s/GB")]
    title = f"Tiered storage: a store with {DELAY_S * 1000:.0f} ms a request; one partition"
    report(given, "tiered", title, rows, results, "not tiered")


def report(
    given: argparse.Namespace, name: str, title: str, rows: list[Row], raw: dict[str, list[float]], rival: str
) -> None:
    if given.no_report:
        for row in rows:
            limit = "" if row.limit is None else f", at best {row.limit:.2f}"
            print(f"{row.name}: {row.ours:.2f}, {rival} {row.theirs:.2f}{limit}")
        return
    write_report(name, title, rows, rounds=given.pairs or given.rounds, raw=raw, rival=rival)


if __name__ == "__main__":
    main()
