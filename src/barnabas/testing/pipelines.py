"""Test projects of `barnabas pipeline`: given records in, expected rows out, on a real Spark and a real cluster.

    def test_turnover(kafka, pipeline):
        shop = pipeline("shop")
        shop.send("orders", {"item": "ink", "price": 3}, at="2026-05-06T12:01Z")
        shop.run()
        shop.assert_rows("turnover", [{"item": "ink", "sum": 3}])

A project runs as a copy with its own database, so tests do not see each other's data. All tests share one Spark.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli.faults.asking import Question
from barnabas.client.admin.configs import alter_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.spark import WORKER_SETTINGS
from barnabas.spark.python_command import set_python
from barnabas.testing.records import Record, RecordHelpers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from barnabas.spark.pipelines.events import Event, FlowStatus, Status

_BOOTSTRAP = "BARNABAS_BOOTSTRAP_SERVER"
Row = Mapping[str, Any]


@contextmanager
def spark_session(folder: Path) -> Iterator["SparkSession"]:
    """Yield this process's Spark session, or start one on two cores that ends with it."""
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    set_python("local[2]")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("barnabas-testing")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder))
        .config(map=dict(WORKER_SETTINGS))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


class PipelineProject:
    """A copy of one project. Owner: the test."""

    def __init__(
        self,
        spark: "SparkSession",
        cluster: RecordHelpers,
        bootstrap: str,
        folder: Path,
        *,
        database: str,
        configuration: Mapping[str, str],
    ) -> None:
        from barnabas.spark.pipelines.project import load_project

        self.spark = spark
        self.cluster = cluster
        self.bootstrap = bootstrap
        self.folder = folder
        self.database = database
        project = load_project(folder)
        settings = {**project.configuration, **configuration}
        self.project = replace(project, database=database, configuration=settings)
        #: The events of the last run, and the status of its flows.
        self.events: list[Event] = []
        self.status: Status | None = None
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")

    def send(self, topic: str, *values: object, key: str | None = None, at: str | None = None) -> None:
        """Send records with these values to one partition, as text, or as JSON if they are no text. `at`: the time of the
        records, in UTC unless it has a zone. Tests can choose any times, because watermarks follow records, not clocks.
        """
        time_ms = -1 if at is None else _milliseconds(at)
        if at is not None:
            self.cluster.ask(_keeping(topic))
        texts = [value if isinstance(value, str) or value is None else json.dumps(value) for value in values]
        self.cluster.produce(topic, [Record(text, key, timestamp_ms=time_ms) for text in texts], partition=0)

    def run(self, **options: Any) -> "dict[str, FlowStatus]":
        """Run until all existing records have been read; return the state of each flow. Options are those of `RunOptions`.

        Raises `PipelineFailed`, with flow, file, line and cause.
        """
        from barnabas.spark.pipelines.events import Status
        from barnabas.spark.pipelines.live import now
        from barnabas.spark.pipelines.runner import Runner, RunOptions
        from barnabas.spark.pipelines.session import attach

        self.events = []
        status = self.status = Status(self.project.name, "once", "test", os.getpid(), now(), now())

        def take_event(event: "Event") -> None:
            self.events.append(event)
            status.take(event)

        with _bootstrap(self.bootstrap), attach(self.spark) as session:
            Runner(self.project, session, take_event).run(RunOptions(**options))
        return status.flows

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return the rows of a table or view of the project, with all columns or these, in no particular order."""
        name = f"{self.database}.{table}"
        self.spark.catalog.refreshTable(name)  # another session wrote the table
        frame = self.spark.table(name)
        found = [row.asDict(recursive=True) for row in (frame.select(*columns) if columns else frame).collect()]
        return sorted(found, key=_sort_key)

    def assert_rows(self, table: str, expected: Sequence[Row]) -> None:
        """Compare with exactly these rows, in any order. Columns that no expected row names are ignored."""
        columns = list(dict.fromkeys(name for row in expected for name in row))
        found = self.rows(table, *columns)
        wanted = sorted(({name: row.get(name) for name in columns} for row in expected), key=_sort_key)
        if found == wanted:
            return
        missing = [f"- {row}" for row in _without(wanted, found)]
        extra = [f"+ {row}" for row in _without(found, wanted)]
        lines = "\n".join((*missing, *extra))
        raise AssertionError(f"{table} has {len(found)} rows, {len(wanted)} were expected:\n{lines}")

    def close(self) -> None:
        self.spark.sql(f"DROP DATABASE IF EXISTS {self.database} CASCADE")


def copy_project(folder: Path, into: Path) -> Path:
    """Copy a project without the files of its runs."""
    from barnabas.spark.pipelines.project import find_spec

    place = find_spec(folder).parent
    copy = into / place.name
    shutil.copytree(place, copy, ignore=shutil.ignore_patterns(".barnabas", "storage", "__pycache__"))
    return copy


@contextmanager
def _bootstrap(address: str) -> Iterator[None]:
    before = os.environ.get(_BOOTSTRAP)
    os.environ[_BOOTSTRAP] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BOOTSTRAP]
        else:
            os.environ[_BOOTSTRAP] = before


def _keeping(topic: str) -> Question[None]:
    """Keep the topic's records however old they are."""

    async def ask(client: AsyncClient) -> None:
        await alter_configs(client, ConfigResourceType.TOPIC, topic, {"retention.ms": (AlterOperation.SET, "-1")})

    return ask


def _milliseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _sort_key(row: Row) -> str:
    return json.dumps(row, default=str, sort_keys=True)


def _without(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    remaining = list(others)
    kept = []
    for row in rows:
        if row in remaining:
            remaining.remove(row)
        else:
            kept.append(row)
    return kept
