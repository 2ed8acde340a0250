"""Tiered storage: history read through a broker, and what copying costs those who produce.

The store is a directory in which every request takes 20 ms more. Both are compared with a topic of the same broker that is not
tiered. Rounds alternate.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.broker import Broker
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.blocking import BlockingClient, drive
from barnabas.client.config import client_config
from barnabas.core.ids import TopicPartition
from barnabas.core.words import EARLIEST_LOCAL
from barnabas.server.platform import Platform
from barnabas.tiered.store import FilePart, Store, open_store
from bench.broker import Load, Target, measure_consume, measure_produce
from bench.report import Row, write_report

DELAY_S = 0.02
LOAD = Load("1 KB", 1000, 500_000, "1")
PATIENCE_S = 240.0
SEGMENT = {"segment.bytes": str(32 << 20), "retention.ms": "-1"}


class Slow:
    """A store that takes longer for every request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, key: str, data: bytes | FilePart) -> None:
        await asyncio.sleep(DELAY_S)
        await self._store.put(key, data)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await asyncio.sleep(DELAY_S)
        return await self._store.get_range(key, start, end)

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(DELAY_S)
        return await self._store.get(key)

    async def delete(self, keys: Iterable[str]) -> None:
        await asyncio.sleep(DELAY_S)
        await self._store.delete(keys)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        await asyncio.sleep(DELAY_S)
        return await self._store.list(prefix)


def _tier(directory: str) -> dict[str, str]:
    return {"remote.log.storage.system.enable": "true", "barnabas.remote.storage.url": f"file://{directory}/tier"}


def serve(zookeeper: str, directory: str) -> None:
    """In a process of its own: a broker, which prints its port."""
    import uvloop

    properties = {
        "zookeeper.connect": zookeeper,
        "broker.id": "7",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{directory}/logs",
        **_tier(directory),
        "remote.log.manager.task.interval.ms": "500",
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
    """On the broker with the store."""
    admin = AdminClient(target.settings)
    new = NewTopic(topic, 1, replica_assignment=[[7]], config={**SEGMENT, **settings})
    admin.create_topics([new])[topic].result(30)
    time.sleep(0.5)


def wait_until_copied(target: Target, topic: str, count: int) -> None:
    """History is in the store only, but for the last segment."""
    partition = TopicPartition(topic, 0)
    last_segment = 40 * (1 << 20) // 1000
    deadline_s = time.monotonic() + PATIENCE_S
    with BlockingClient(client_config(target.bootstrap)) as client:
        while time.monotonic() < deadline_s:
            found = drive(list_offsets(client.core, {partition: EARLIEST_LOCAL}))
            if found[partition].offset >= count - last_segment:
                return
            time.sleep(0.2)
    raise TimeoutError(f"{topic} is not in the tier after {PATIENCE_S} s")


def one_round(target: Target, number: int, load: Load, results: dict[str, list[float]]) -> None:
    tiered, plain = f"tiered-{number}", f"plain-{number}"
    create(target, tiered, {"remote.storage.enable": "true", "local.retention.bytes": "1"})
    create(target, plain, {})
    for topic, name in ((tiered, "tiered"), (plain, "plain"))[:: 1 if number % 2 else -1]:
        for measure, value in measure_produce(target, topic, load).items():
            results.setdefault(f"{name} produce {measure}", []).append(value)
    wait_until_copied(target, tiered, load.count)
    for topic, name in ((tiered, "tiered"), (plain, "plain")):
        for measure, value in measure_consume(target, topic, load).items():
            results.setdefault(f"{name} consume {measure}", []).append(value)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=LOAD.count)
    parser.add_argument("--no-report", action="store_true", help="print only")
    parser.add_argument("--serve", nargs=2, metavar=("ZOOKEEPER", "DIRECTORY"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve is not None:
        serve(*given.serve)
        return
    load = Load(LOAD.name, LOAD.size_bytes, given.records, LOAD.acks)
    results: dict[str, list[float]] = {}
    with running() as target:
        for number in range(given.rounds):
            one_round(target, number, load, results)
    rows = [
        Row(what, statistics.median(results[f"tiered {what}"]), statistics.median(results[f"plain {what}"]))
        for what in ("produce MB/s", "produce CPU s/GB", "consume MB/s", "consume CPU s/GB")
    ]
    if given.no_report:
        print(*(f"{row.name}: {row.ours:.1f} tiered, {row.theirs:.1f} plain" for row in rows), sep="\n")
        return
    title = f"Tiered storage: a store with {DELAY_S * 1000:.0f} ms a request; one partition"
    write_report("tiered", title, rows, rounds=given.rounds, raw=results, rival="not tiered")


if __name__ == "__main__":
    main()
