"""The pipeline's process, as the demo sees it: started, listened to, and its results counted at the end."""

import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from orders import DEAD, ENRICHED, ORDERS, TOTALS, Stream

QUERIES = ("enriched", "totals", "table")


@dataclass
class Job:
    """`with Job(bootstrap, folder) as job`: the queries' last progress is in `progress`."""

    bootstrap: str
    folder: Path
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    _failure: str = ""

    def __enter__(self) -> "Job":
        script = Path(__file__).parent / "pipeline.py"
        self._errors = (self.folder / "spark.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--bootstrap", self.bootstrap, "--folder", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reader = threading.Thread(target=self._listen, name="pipeline")
        self._reader.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "error" in event:
                self._failure = f"{event['query']}: {event['error']}"
            if "batch" in event:
                self.progress[event["query"]] = event
                self.rows[event["query"]] += event["rows"]

    @property
    def failed(self) -> bool:
        return self._process.poll() is not None

    def why(self) -> str:
        return self._failure or (self.folder / "spark.log").read_text()[-1500:]

    @property
    def under_way(self) -> bool:
        """Every query has seen orders."""
        return all(self.rows[query] for query in QUERIES)

    def has_read(self, count: int) -> bool:
        return all(_total(self.progress.get(query, {}).get("ends", {})) >= count for query in QUERIES)


def _total(ends: dict[str, Any]) -> int:
    return sum(ends.get(ORDERS, {}).values())


@dataclass(frozen=True)
class Outcome:
    """What came out of the pipeline: enriched orders, dead letters, orders in windows, rows of the table."""

    enriched: int
    enriched_twice: int
    dead: int
    in_windows: int
    in_table: int
    table_twice: int

    def matches(self, stream: Stream) -> bool:
        bad, everything = len(stream.bad), len(stream.acknowledged)
        good = everything - bad
        return (self.enriched, self.dead, self.in_windows, self.in_table) == (good, bad, good, everything) and (
            not self.enriched_twice and not self.table_twice
        )


def count(bootstrap: str, folder: Path) -> Outcome:
    enriched = Counter(key for key, _ in _read(bootstrap, ENRICHED))
    dead = {key for key, _ in _read(bootstrap, DEAD)}
    windows = dict(_read(bootstrap, TOTALS))
    table = Counter(DeltaTable(str(folder / "orders")).to_pyarrow_table(columns=["text"])["text"].to_pylist())
    return Outcome(
        enriched=len(enriched),
        enriched_twice=sum(times > 1 for times in enriched.values()),
        dead=len(dead),
        in_windows=sum(json.loads(value)["orders"] for value in windows.values()),
        in_table=len(table),
        table_twice=sum(times > 1 for times in table.values()),
    )


def _read(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Everything that was committed to a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[tuple[bytes, bytes]] = []
    ended = 0
    while ended < len(partitions):
        for message in consumer.consume(1000, 1.0):
            if message.error() is not None:
                ended += 1
            else:
                found.append((message.key(), message.value()))
    consumer.close()
    return found
