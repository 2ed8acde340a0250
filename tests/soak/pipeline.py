"""The pipeline of the documentation, killed again and again while its topics change. Every row is counted at every sink.

    python -m tests.soak.pipeline --rounds 3 --orders 2000 --seed 1

Orders in JSON and changes of customers in Avro arrive in rounds. A project enriches orders with items (Avro) into Delta. It
also writes orders to Iceberg, SQLite and a topic, invalid orders to a dead-letter topic, customers by change data capture into
Delta and SQLite, and windows with late data into Delta. In each round its process is killed at a random moment, and runs again
until it is complete. In the second round the topics get more partitions and orders a new column, and at the end the topic of
orders is deleted and created again.

It takes many minutes. `--folder` keeps everything there, and an interrupted soak continues after the last complete step.
"""

import argparse
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastavro
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from barnabas.client.admin.topics import create_partitions
from barnabas.client.errors import BrokerRefused
from barnabas.testing import Cluster, Record, wait_until
from tests.spark_python import spark_environment

NOON: Final = datetime(2026, 5, 6, 12, 0, tzinfo=UTC)
WINDOW: Final = timedelta(minutes=1)
#: Event time of a round.
ROUND: Final = timedelta(minutes=3)
#: The watermark delay of the windows, which is more than any order is late.
DELAY: Final = timedelta(minutes=1)
LATE: Final = timedelta(seconds=20)
ITEMS: Final = 10
RUN_S: Final = 900
STATE: Final = "soak.json"
PERSON: Final = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
#: Spark gives a Python worker ten seconds to start; on a busy machine it needs another attempt.
SPEC: Final = """
name: soak
storage: storage
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "20"
libraries:
  - glob:
      include: code/**
"""
CODE: Final = """
import os
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from barnabas.spark.pipelines import cdc, sinks, sources
from barnabas.spark.pipelines.codecs import Avro, Json, decode
from barnabas.spark.pipelines.dead_letter import to_topics

HERE, SERVER = {folder!r}, os.environ["BARNABAS_BOOTSTRAP_SERVER"]
ORDER = "id long not null, item long, at timestamp{more}"
PERSON = Avro({person!r})
CATALOG = {{"type": "sql", "uri": f"sqlite:///{{HERE}}/catalog.db", "warehouse": f"file://{{HERE}}/warehouse"}}

def records(name):
    return sources.topic(name, bootstrap=SERVER, headers=True).stream()

def good():
    return decode(records("orders"), Json(ORDER), mode="DROP").select("data.*")

sinks.delta(f"{{HERE}}/lake", merge_schema=True).create("lake")
sinks.iceberg("shop.orders", catalog=CATALOG, merge_schema=True).create("ice")
sinks.sql(f"sqlite:///{{HERE}}/shop.db", "orders", merge_schema=True).create("database")
sinks.topic(bootstrap=SERVER).create("topics")
sinks.delta(f"{{HERE}}/windows").create("windows_lake")
cdc.upsert_into_delta(f"{{HERE}}/customers", keys=["id"]).create("customers_lake")
cdc.upsert_into_sql(f"sqlite:///{{HERE}}/customers.db", "customers", keys=["id"]).create("customers_database")

@dp.append_flow(target="lake")
def to_lake():
    items = decode(sources.topic("items", bootstrap=SERVER).batch(), PERSON, mode="FAIL")
    named = items.selectExpr("data.id AS item", "data.name AS item_name")
    return good().join(F.broadcast(named), "item", "left")

@dp.append_flow(target="ice")
def to_ice():
    return good()

@dp.append_flow(target="database")
def to_database():
    return good()

@dp.append_flow(target="topics")
def to_clean():
    read = decode(records("orders"), Json(ORDER))
    return to_topics(read, topic="clean", dead_letter_topic="dead", value="value")

@dp.append_flow(target="windows_lake")
def to_windows():
    counted = good().withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count()
    return counted.select(F.col("window.start").alias("start"), "count")

def customers():
    read = decode(records("customers"), PERSON, mode="FAIL")
    return cdc.keyed(read.withColumn("who", F.col("key").cast("string")), keys=["id"], key="who")

@dp.append_flow(target="customers_lake")
def to_customers_lake():
    return customers()

@dp.append_flow(target="customers_database")
def to_customers_database():
    return customers()
"""


def avro(number: int, name: str) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PERSON, {"id": number, "name": name})
    return out.getvalue()


class Soak:
    def __init__(
        self, cluster: Cluster, folder: Path, *, orders: int, seed: int, kill_after_s: tuple[float, float]
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.orders = orders
        self.seed = seed
        self.random = random.Random(seed)
        self.kill_after_s = kill_after_s
        self.environment = os.environ | spark_environment(folder) | {"BARNABAS_BOOTSTRAP_SERVER": cluster.bootstrap}
        #: Number of completed steps.
        self.done = 0
        #: Order id -> event time, of the orders in the present topic.
        self.sent: dict[int, datetime] = {}
        #: Number of these orders that have no note.
        self.plain = 0
        #: (id, note) of orders of the deleted topic, which sinks still have.
        self.before: list[tuple[int, str | None]] = []
        self.bad = 0
        self.changes = 0
        self.names: dict[int, str] = {}
        self.kills = 0

    def go(self, rounds: int) -> None:
        steps: list[Callable[[], None]] = [self.set_up]
        for number in range(rounds):
            steps += [partial(step, number) for step in (self.feed, self.interrupt, self.finish)]
        steps += [self.feed_again, self.notice, self.read_again]
        self.load()
        for step in steps[self.done :]:
            self.random = random.Random(f"{self.seed} {self.done}")
            step()
            self.done += 1
            self.save()

    def save(self) -> None:
        state = {name: getattr(self, name) for name in ("done", "plain", "before", "bad", "changes", "kills")}
        sent = {number: at.isoformat() for number, at in self.sent.items()}
        (self.folder / STATE).write_text(json.dumps(state | {"sent": sent, "names": self.names}))

    def load(self) -> None:
        with suppress(FileNotFoundError):
            state = json.loads((self.folder / STATE).read_text())
            self.names = {int(number): name for number, name in state.pop("names").items()}
            self.sent = {int(number): datetime.fromisoformat(at) for number, at in state.pop("sent").items()}
            self.before = [(number, note) for number, note in state.pop("before")]
            vars(self).update(state)

    def set_up(self) -> None:
        for topic, partitions in (("orders", 3), ("customers", 3), ("clean", 2), ("dead", 1), ("items", 1)):
            self.create(topic, partitions)
        self.cluster.produce("items", [Record(avro(number, f"item {number}")) for number in range(ITEMS)])
        (self.folder / "code").mkdir()
        (self.folder / "spark-pipeline.yml").write_text(SPEC)
        self.write_code("")

    def create(self, topic: str, partitions: int) -> None:
        # The records have chosen timestamps in the past.
        self.cluster.create_topic(topic, partitions=partitions, config={"retention.ms": "-1"})

    def write_code(self, more: str) -> None:
        code = CODE.format(folder=str(self.folder), more=more, person=PERSON)
        (self.folder / "code" / "flows.py").write_text(code)

    # -- what goes in ---------------------------------------------------------------------------------------------------

    def produce(self, *, note: bool) -> None:
        """Produce some minutes of orders, some of them late, some invalid, and changes and deletions of customers."""
        records: list[Record] = []
        for number in range(len(self.sent), len(self.sent) + self.orders):
            at = NOON + ROUND / self.orders * number - self.random.choice((timedelta(), timedelta(), LATE))
            self.sent[number] = at
            row: dict[str, Any] = {"id": number, "item": number % ITEMS, "at": at.isoformat()}
            records.append(Record(json.dumps(row | ({"note": f"n{number}"} if note else {})), f"{number}"))
        if not note:
            self.plain = len(self.sent)
        bad = self.orders // 100
        self.cluster.produce("orders", [*records, *[Record("{no order", "x")] * bad])
        self.bad += bad
        self.cluster.produce("customers", [self.change() for _ in range(50)])

    def change(self) -> Record:
        """Return a change of a customer, later than all changes before."""
        self.changes += 1
        time_ms = int(NOON.timestamp() * 1000) + self.changes
        key = self.random.randrange(40)
        if self.random.random() < 0.2:
            self.names.pop(key, None)
            return Record(None, f"{key}", timestamp_ms=time_ms)
        self.names[key] = f"name {self.changes}"
        return Record(avro(key, self.names[key]), f"{key}", timestamp_ms=time_ms)

    # -- the pipeline ---------------------------------------------------------------------------------------------------

    def run(self, *options: str, kill_after_s: float | None = None) -> int:
        """Run the pipeline until it ends or is killed."""
        program = str(Path(sys.executable).parent / "barnabas")
        arguments = ["pipeline", "run", str(self.folder), "--master", "local[2]", *options]
        with open(self.folder / "output", "ab") as out:
            process = subprocess.Popen([program, *arguments], stdout=out, stderr=out, env=self.environment)
        try:
            return process.wait(RUN_S if kill_after_s is None else kill_after_s)
        except subprocess.TimeoutExpired:
            if kill_after_s is None:
                raise
            self.kills += 1
            return -signal.SIGKILL
        finally:
            process.kill()
            process.wait()

    def tail(self) -> str:
        return (self.folder / "output").read_text()[-3000:]

    # -- what comes out -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        lake = DeltaTable(self.folder / "lake").to_pyarrow_table()
        self.has_every_order(lake.to_pylist(), "Delta")
        wrong = [
            row for row in lake.select(["item", "item_name"]).to_pylist() if row["item_name"] != f"item {row['item']}"
        ]
        assert not wrong, f"enriched wrongly: {wrong[:5]}"
        warehouse = f"file://{self.folder}/warehouse"
        settings = {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": warehouse}
        with closing(load_catalog("barnabas", **settings)) as catalog:
            self.has_every_order(catalog.load_table("shop.orders").scan().to_arrow().to_pylist(), "Iceberg")
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            connection.row_factory = sqlite3.Row
            self.has_every_order(map(dict, connection.execute("SELECT * FROM orders")), "SQLite")
        self.has_every_order((json.loads(each.value or b"") for each in self.cluster.records("clean")), "topic")
        assert len(self.cluster.records("dead")) == self.bad, "dead letters"
        names = sorted(self.names.items())
        customers = DeltaTable(self.folder / "customers").to_pyarrow_table().sort_by("id")
        in_delta = zip(customers["id"].to_pylist(), customers["name"].to_pylist(), strict=True)
        self.equal(in_delta, names, "customers in Delta")
        with closing(sqlite3.connect(self.folder / "customers.db")) as connection:
            found = connection.execute("SELECT id, name FROM customers ORDER BY id").fetchall()
        self.equal(found, names, "customers in SQLite")

    def check_windows(self) -> None:
        """Check that every window that the watermark has passed appears once, with all its orders, also the late ones."""
        place = self.folder / "windows"
        rows = DeltaTable(place).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(str(place)) else []
        found = {row["start"]: row["count"] for row in rows}
        assert len(found) == len(rows), "a window is there twice"
        counts = Counter(NOON + (at - NOON) // WINDOW * WINDOW for at in self.sent.values())
        closed = max(self.sent.values()) - DELAY
        wanted = {start: count for start, count in counts.items() if start + WINDOW <= closed}
        self.equal(found.items(), wanted.items(), "windows")

    def has_every_order(self, rows: Iterable[Mapping[str, Any]], where: str) -> None:
        """Check that every order is there, with its note if it has one; a table has no such column before the first note."""
        self.equal(((row["id"], row.get("note")) for row in rows), [*self.before, *self.numbers_and_notes()], where)

    def numbers_and_notes(self) -> list[tuple[int, str | None]]:
        return [(number, None if number < self.plain else f"n{number}") for number in self.sent]

    @staticmethod
    def equal(found: Iterable[Any], wanted: Iterable[Any], where: str) -> None:
        has, should = Counter(found), Counter(wanted)
        missing, extra = should - has, has - should
        assert has == should, f"{where}: missing {list(missing)[:5]} of {missing.total()}, extra {list(extra)[:5]}"

    # -- rounds ---------------------------------------------------------------------------------------------------------

    def feed(self, number: int) -> None:
        if number == 1:
            self.cluster.ask(lambda client: create_partitions(client, {"orders": 5, "customers": 5}))
            for topic in ("orders", "customers"):
                self.cluster.wait_until_led(topic)
            self.write_code(", note string")
        self.produce(note=number >= 1)

    def interrupt(self, _number: int) -> None:
        self.run(kill_after_s=self.random.uniform(*self.kill_after_s))

    def finish(self, number: int) -> None:
        assert self.run() == 0, self.tail()
        self.check()
        self.check_windows()
        self.say(f"round {number}: {len(self.sent)} orders and {self.bad} bad ones are where they should be")

    def feed_again(self) -> None:
        self.cluster.delete_topic("orders")

        def is_made() -> bool:
            with suppress(BrokerRefused):
                self.create("orders", 2)
                return True
            return False

        wait_until(is_made)
        self.before, self.sent, self.plain = self.numbers_and_notes(), {}, 0
        self.produce(note=True)

    def notice(self) -> None:
        assert self.run() == 1 and "deleted and made again" in self.tail(), self.tail()
        self.say("the topic that was made again was noticed")

    def read_again(self) -> None:
        """Run a full refresh, which reads the new topic into sinks that keep their rows."""
        assert self.run("--full-refresh-all", "--sinks-again") == 0, self.tail()
        self.check()
        self.say("the topic that was made again was read from its start")

    def say(self, what: str) -> None:
        print(f"{datetime.now(UTC):%H:%M:%S} {what}", flush=True)


def soak(rounds: int, orders: int, seed: int, kill_after_s: tuple[float, float], folder: Path) -> None:
    with Cluster(brokers=1, data=folder / "cluster") as cluster:
        made = Soak(cluster, folder, orders=orders, seed=seed, kill_after_s=kill_after_s)
        made.go(rounds)
    made.say(f"{made.kills} runs were killed")
    assert made.kills, "no run was killed: nothing is proved of that"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-after-s", type=float, nargs=2, default=(10.0, 50.0))
    parser.add_argument("--folder", type=Path, help="folder that is kept and from which a soak continues")
    chosen = parser.parse_args()
    # SIGTERM also ends the pipeline and the cluster.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        folder = chosen.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak")))
        folder.mkdir(parents=True, exist_ok=True)
        soak(chosen.rounds, chosen.orders, chosen.seed, tuple(chosen.kill_after_s), folder.resolve())


if __name__ == "__main__":
    main()
