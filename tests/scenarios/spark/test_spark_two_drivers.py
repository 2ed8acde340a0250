"""Two drivers of one query, each with a Spark of its own: one that was believed dead goes on in the middle of its batch."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow.parquet import read_table
from pyiceberg.catalog import load_catalog

from barnabas.spark.pipelines.connector import Sink
from barnabas.testing import wait_until
from barnabas.testing.cluster import Cluster
from tests.scenarios.spark.two_drivers import (
    INPUT,
    OUTPUT,
    ROWS,
    batches_in,
    catalog_in,
    checkpoint_of,
    held_at,
    sinks_in,
)
from tests.soak.spark_chain import numbers_differ
from tests.soak.spark_chain_driver import kill_family

ROOT = Path(__file__).parents[3]
WAIT_S = 400


@dataclass
class Drivers:
    cluster: Cluster
    folder: Path
    sent: int = 0

    def produce(self) -> None:
        """Produce the records of one batch."""
        self.cluster.produce(INPUT, [str(number) for number in range(self.sent, self.sent + ROWS)])
        self.sent += ROWS

    @contextmanager
    def driver(self, name: str, *, holds: bool) -> Iterator["subprocess.Popen[bytes]"]:
        settings = {
            "bootstrap": self.cluster.bootstrap,
            "folder": str(self.folder),
            "master": "local[6,8]",
            "speculation": "",
            "holds": "yes" if holds else "",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.scenarios.spark.two_drivers", json.dumps(settings)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            kill_family(process.pid)
            process.wait()

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, name: str, process: "subprocess.Popen[bytes]", are_done: Callable[[], list[str]]) -> None:
        """Wait until a driver has finished all batches, or has ended."""

        def is_over() -> bool:
            return not are_done() or process.poll() is not None

        wait_until(is_over, timeout_s=WAIT_S)
        assert not are_done(), f"{are_done()}: {self.log_of(name)[-5000:]}"

    def without_batch(self, number: int) -> list[str]:
        """Return the sinks whose query has not noted this batch yet."""
        return [name for name in self.sinks() if number not in batches_in(checkpoint_of(self.folder, name))]

    def not_held(self) -> list[str]:
        return [name for name, sink in self.sinks().items() if not held_at(self.folder, sink.format).exists()]

    def sinks(self) -> dict[str, Sink]:
        return sinks_in(self.folder, self.cluster.bootstrap)

    def numbers_in(self, name: str) -> list[int]:
        match name:
            case "topic":
                return [int(record.value or b"") for record in self.cluster.records(OUTPUT)]
            case "delta":
                return DeltaTable(f"{self.folder}/delta").to_pyarrow_table().column("number").to_pylist()
            case "delta upserts":
                return DeltaTable(f"{self.folder}/upserted").to_pyarrow_table().column("number").to_pylist()
            case "iceberg":
                with closing(load_catalog("barnabas", **catalog_in(self.folder))) as catalog:
                    return catalog.load_table("a.b").scan().to_arrow().column("number").to_pylist()
            case "sqlite":
                with closing(sqlite3.connect(f"{self.folder}/database")) as connection:
                    return [number for (number,) in connection.execute("SELECT number FROM copies")]
            case "parquet":
                return [
                    number for file in self.parquet_files() for number in read_table(file).column("number").to_pylist()
                ]
        raise AssertionError(name)

    def parquet_files(self) -> list[str]:
        """Return the files that Spark's log of the folder names: readers ignore the others."""
        logs = [each for each in (self.folder / "parquet" / "_spark_metadata").iterdir() if each.name[0].isdigit()]
        lines = [line for log in logs for line in log.read_text().splitlines()[1:]]  # the first one is the version
        return [json.loads(line)["path"].removeprefix("file://") for line in lines]


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_one_of_two_drivers_with_the_same_batch_publishes_it_in_every_sink(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=1))
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, partitions=1)
        drivers = Drivers(cluster, tmp_path)
        drivers.produce()
        old = stack.enter_context(drivers.driver("old", holds=True))
        drivers.wait("old", old, lambda: drivers.without_batch(0))
        (tmp_path / "hold").touch()
        drivers.produce()
        drivers.wait("old", old, drivers.not_held)
        new = stack.enter_context(drivers.driver("new", holds=False))
        drivers.wait("new", new, lambda: drivers.without_batch(1))
        drivers.produce()
        drivers.wait("new", new, lambda: drivers.without_batch(2))
        (tmp_path / "go").touch()
        assert old.wait(WAIT_S) == 0, drivers.log_of("old")[-5000:]
        log = drivers.log_of("old")
        assert log.count("ended: ") == len(drivers.sinks()), (
            f"every query of the old driver has an error: {log[-5000:]}"
        )
        drivers.produce()
        drivers.wait("new", new, lambda: drivers.without_batch(3))
        wrong = {name: numbers_differ(drivers.numbers_in(name), drivers.sent) for name in drivers.sinks()}
    assert not any(wrong.values()), wrong
