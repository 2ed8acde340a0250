"""`barnabas tables` as a user runs it: tables are added, filled, described, paused, and go on after they have stopped."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from barnabas.base.topics import TABLES_TOPIC
from barnabas.cli.main import app
from barnabas.client.config import client_config
from barnabas.spark.pipelines.sinks.exactly_once import Span
from barnabas.spark.tables import command, upkeep
from barnabas.spark.tables.catalogue import Catalogue, Known
from barnabas.spark.tables.definition import BadDefinition, Definition, checked
from barnabas.spark.tables.places import IcebergPlace, place_of
from barnabas.spark.tables.rows import columns_beside
from barnabas.spark.tables.targets import target_of
from barnabas.spark.tables.upkeep import Upkeep
from barnabas.testing import Cluster, Kafka
from tests.scenarios.docs.runner import blocks_of, first_missing
from tests.support.command_line import CliRunner
from tests.topic_tables import Tables, polars_rows


class User:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: object, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["tables", *map(str, arguments), "--bootstrap-server", self.bootstrap])
        assert result.exit_code == status, result.output
        return result.output

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def user(kafka: Kafka, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    @contextmanager
    def session(master: str) -> Iterator[SparkSession]:
        """Return the session of all tests: another one would take seconds to start."""
        yield spark

    monkeypatch.setattr(command, "session", session)
    yield User(kafka.bootstrap)
    with Catalogue(client_config(kafka.bootstrap)) as catalogue:
        for name in list(catalogue.read().tables):
            catalogue.remove(name)


def test_tables_are_added_filled_described_paused_rebuilt_and_removed(
    spark: SparkSession, kafka: Kafka, user: User, tmp_path: Path
) -> None:
    tables = Tables(spark, kafka, tmp_path)
    topics = [kafka.topic(name, partitions=2) for name in ("one", "two")]
    urls = [tmp_path / "lake" / name for name in ("one", "two")]
    assert "Added table one" in user("add", topics[0], "--name", "one", "--to", urls[0])
    user(
        "add", topics[1], "--name", "two", "--to", urls[1], "--format", "iceberg", "--schema", "raw", "--mode", "upsert"
    )
    assert "there is already a table one" in user("add", topics[1], "--name", "one", "--to", tmp_path / "x", status=1)
    assert "is at file:" in user("add", topics[1], "--name", "three", "--to", urls[0], status=1)
    assert "UNKNOWN_TOPIC" in user("add", "no-such-topic", "--to", tmp_path / "y", status=1)
    assert [(row["name"], row["state"]) for row in user.json("list")] == [("one", "new"), ("two", "new")]
    one, two = (Definition(**{**row, "key": (), "partition_by": ()}) for row in map(_defined, user.json("list")))
    tables.produce(one, ("a", {"n": 1}, 0), ("b", b"bad", 1), ("c", {"n": 2}, 1))
    tables.produce(two, ("a", b"1", 0), ("a", b"2", 0))
    [before, _] = user.json("describe")
    assert (before["lag"], before["rows"], before["behind_ms"] > 0) == (3, 0, True)

    said = user("run", "--once")
    assert "table one filling: 2 rows, 1 errors in" in said
    assert "table two ended: 2 rows" in said
    [described] = user.json("describe", "one")
    assert {name: described[name] for name in ("rows", "lag", "behind_ms", "errors", "state", "error")} == {
        "rows": 2, "lag": 0, "behind_ms": 0, "errors": 1, "state": "ended", "error": None,
    }  # fmt: skip
    assert described["positions"] == {"0": 1, "1": 2}
    assert described["files"] >= 1
    text = user("describe", "two")
    assert "1 rows in 1 files" in text
    assert "up to date; last commit" in text

    user("pause", "one")
    tables.produce(one, ("d", {"n": 3}, 0))
    user("run", "--once")
    [paused] = user.json("describe", "one")
    assert (paused["state"], paused["lag"]) == ("paused", 1)
    assert "1 records behind, the oldest for" in user("describe", "one")
    user("resume", "one")
    user("run", "one", "--once")
    assert sorted(row["n"] for row in polars_rows(one)) == [1, 2, 3]
    user("rebuild", "one")
    assert "table one filling: 3 rows, 1 errors" in user("run", "--once")
    assert sorted(row["n"] for row in polars_rows(one)) == [1, 2, 3]
    assert "/lake/one stay." in user("remove", "one")
    assert "there is no table 'one'; there are: two" in user("describe", "one", status=1)
    assert "there is no table 'one'; there are: two" in user("run", "one", "--once", status=1)


def _defined(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "state"}


def test_table_that_stops_says_why_and_the_others_go_on(
    spark: SparkSession, kafka: Kafka, user: User, tmp_path: Path
) -> None:
    tables = Tables(spark, kafka, tmp_path)
    for name in ("strict", "fine"):
        error = "stop" if name == "strict" else "keep"
        user("add", kafka.topic(name), "--name", name, "--to", tmp_path / name, "--on-error", error)
    strict, fine = (
        Definition(**{**_defined(row), "key": (), "partition_by": ()}) for row in reversed(user.json("list"))
    )
    for table in (strict, fine):
        tables.produce(table, ("a", {"n": 1}, 0), ("b", b"bad", 0))
    said = user("run", "--once", status=1)
    assert "table strict stopped: 1 records do not fit, the first of them: topic" in said
    assert [row["n"] for row in polars_rows(fine)] == [1]
    [described] = user.json("describe", "strict")
    assert described["state"] == "stopped"
    assert "partition 0, offset 1: value: not JSON" in described["error"]


def test_run_reports_an_unreadable_definition_and_fails(kafka: Kafka, user: User) -> None:
    with Catalogue(client_config(kafka.bootstrap)) as catalogue:
        catalogue._write(["table", "newer"], b'{"version": 2}')
        try:
            assert "table newer cannot be filled: the definition is of version 2" in user("run", "--once", status=1)
        finally:
            catalogue.remove("newer")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_small_files_are_compacted_and_old_versions_removed(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, kind: str
) -> None:
    tables = Tables(spark, kafka, tmp_path)
    table = tables.define("small", format=kind, schema="raw", compact_files=3)
    for n in range(3):
        tables.produce(table, (str(n), b"v", 0))
        tables.fill(table)
    folder = tmp_path / "small"
    left = folder / ("left.parquet" if kind == "delta" else "data/left.parquet")
    left.write_bytes(b"of a run that died")
    young = left.with_name("young.parquet")
    young.write_bytes(b"of a batch that is under way")
    long_ago = young.stat().st_mtime - 169 * 3600
    os.utime(left, (long_ago, long_ago))
    Upkeep().after_batch(table)
    assert place_of(table).facts().files == 1
    assert sorted(row["_offset"] for row in polars_rows(table)) == [0, 1, 2]
    assert not left.exists()
    assert young.exists()
    tables.produce(table, ("4", b"v", 0))
    assert tables.fill(table).rows == 1, "it goes on where it was"


def test_an_iceberg_table_keeps_no_more_snapshots_than_a_commit_can_carry(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(spark, kafka, tmp_path)
    table = tables.define("many", format="iceberg", schema="raw")
    tables.produce(table, ("a", b"v", 0))
    tables.fill(table)
    target = target_of(table, columns_beside(StructType().add("value", "binary")))
    for n in range(4):
        target.publish([], Span({}, {"else": n}))
    monkeypatch.setattr(upkeep, "SNAPSHOTS_MAX", 4)
    Upkeep().after_batch(table)
    there = place_of(table)
    assert isinstance(there, IcebergPlace) and there.table is not None
    assert len(there.table.metadata.snapshots) == 2
    assert [row["value"] for row in polars_rows(table)] == [b"v"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "deltta"}, "--format 'deltta' is not valid: use one of delta, iceberg; did you mean delta?"),
        ({"url": ""}, "--to must name the table's folder"),
        ({"key": ("id",)}, "are for --mode upsert"),
        ({"mode": "upsert", "schema": "raw", "key": ("id",)}, "raw has no columns"),
        ({"schema": "registry"}, "needs --schema-registry URL"),
        ({"subject": "s"}, "are for --schema registry"),
        ({"partition_by": ("day(at)",)}, "names columns"),
        ({"catalog": {"type": "sql"}}, "are for --format iceberg"),
        ({"format": "iceberg", "url": "s3://lake/t"}, "needs a catalog"),
        ({"format": "iceberg", "table": "orders"}, "is not namespace.name"),
        ({"keep_hours": 0}, "--keep-hours at least 1"),
        ({"name": "a b"}, "--name 'a b'"),
    ],
)
def test_invalid_definitions_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=re.escape(said)):
        checked(Definition(**{"name": "orders", "topic": "orders", "url": "/lake/orders", **given}))


def test_unreadable_definition_is_listed_and_the_others_are_read() -> None:
    known = Known()
    good = checked(Definition(name="orders", topic="orders", url="/lake/orders", key=("id",), mode="upsert"))
    known.replay(b'["table", "orders"]', good.to_json())
    known.replay(b'["table", "new"]', b'{"version": 2}')
    assert known.table("orders") == good
    with pytest.raises(BadDefinition, match="of version 2; this program knows 1"):
        known.table("new")
    known.replay(b'["table", "orders"]', None)
    assert list(known.tables) == []
    assert TABLES_TOPIC.startswith("__"), "tools leave it out as they do the cluster's own"


def test_every_command_of_the_document_runs(
    kafka_cluster: Callable[..., Cluster], user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process: a Spark for each `run` would take too long."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()
    text = text.replace("127.0.0.1:9092", kafka_cluster(brokers=1).bootstrap)
    blocks = blocks_of(text)
    assert [block.language for block in blocks] == ["sh", "sh", "python"]
    for block in blocks:
        said = _run_python(block.code) if block.language == "python" else _run_shell(block.code)
        assert first_missing(block.expected, said.splitlines()) is None, said


def _run_python(code: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "docs/tables.md", "exec"), {})
    return out.getvalue()


def _run_shell(code: str) -> str:
    said = ""
    for line in code.splitlines():
        if " | " in line:
            program = Path(sys.executable).parent
            env = {**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"}
            said += subprocess.run(["bash", "-c", line], env=env, check=True, capture_output=True, text=True).stdout
            continue
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, (line, result.output)
        said += result.output
    return said
