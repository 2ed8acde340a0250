"""The parts of pipelines that need no Spark: projects, events, progress, the statements of the SQL sink, ranges of rows."""

import io
import json
import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType
from rich.console import Console

from barnabas.base.backoff import Backoff
from barnabas.client.errors import ConnectionLost
from barnabas.spark.pipelines import connector, events, live, sinks, sources, status, topic_ids
from barnabas.spark.pipelines._flows import Flows
from barnabas.spark.pipelines.database import Database, DatabaseError
from barnabas.spark.pipelines.events import Event, FlowState, RunState
from barnabas.spark.pipelines.failures import PipelineFailed, Telling, cause_of, innermost, once_each, plain_message
from barnabas.spark.pipelines.live import HEADERS
from barnabas.spark.pipelines.project import ProjectError, create_project, load_project
from barnabas.spark.pipelines.runner import Runner, RunOptions, _Running
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.spark.pipelines.sources.generator import Plan, SyntheticStreamReader, generate, split
from barnabas.spark.pipelines.sources.sql_query import (
    SqlQuery,
    SqlRange,
    SqlSource,
    SqlStreamReader,
    bounds,
    read_range,
)
from barnabas.spark.pipelines.sql_files import BadCall, Statement, statements, topic_views

PROGRESS = {
    "id": "f",
    "name": "spark_catalog.default.orders",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 7,
    "numInputRows": 120,
    "processedRowsPerSecond": 60.0,
    "batchDuration": 2000,
    "durationMs": {"triggerExecution": 2000},
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 2048}],
    "sources": [
        {"endOffset": '{"orders": {"0": 10, "1": 20}}', "latestOffset": {"orders": {"0": 15, "1": 20, "2": 5}}},
        {"endOffset": {"row": 5}, "latestOffset": None},
    ],
}


def test_a_new_project_can_be_loaded(tmp_path: Path) -> None:
    files = create_project(tmp_path / "shop", bootstrap="here:1")
    project = load_project(tmp_path / "shop" / "transformations")
    assert project.name == "shop"
    assert project.files() == [tmp_path / "shop" / "transformations" / "orders.py"]
    assert project.storage == f"file://{tmp_path}/shop/storage"
    code = files[1].read_text()
    compile(code, "orders.py", "exec")
    assert '"here:1"' in code and "shop-orders" in code and "{{" not in code
    with pytest.raises(ProjectError, match="not empty"):
        create_project(tmp_path / "shop", bootstrap="here:1")
    with pytest.raises(ProjectError, match="use a letter first"):
        create_project(tmp_path / "1 shop", bootstrap="here:1")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("a: [", "not YAML"),
        ("just text", "at least name"),
        ("name: x", "storage is missing or not text"),
        ("name: x\nstorage: s\nflows: []", "unknown flows"),
        ("name: x\nstorage: s\nconfiguration: {a: 1}", 'write "1" in quotes'),
        ("name: x\nstorage: s\nlibraries: [{include: y}]", "must be glob"),
        ("name: x\nstorage: s\nlibraries: [{glob: {include: nothing/**}}]", "name no file"),
    ],
)
def test_errors_of_a_spec_name_the_place(tmp_path: Path, spec: str, said: str) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    with pytest.raises(ProjectError, match=said) as raised:
        load_project(tmp_path)
    assert str(tmp_path / "spark-pipeline.yml") in str(raised.value)


def test_folder_without_a_spec_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="barnabas pipeline init"):
        load_project(tmp_path)
    with pytest.raises(ProjectError, match="no such"):
        load_project(tmp_path / "nowhere")


def test_messages_of_spark_become_states() -> None:
    assert events.parse_message("t", "Flow spark_catalog.default.orders is RUNNING.") == events.FlowState(
        "t", "orders", "RUNNING", "Flow spark_catalog.default.orders is RUNNING."
    )
    assert events.parse_message("t", "Run is COMPLETED.") == events.RunState("t", "COMPLETED", "Run is COMPLETED.")
    for name in ("publish", "spark_catalog.default.publish"):
        failed = events.parse_message("t", f"Flow '{name}' has FAILED more than 2 times and will not be restarted.")
        assert isinstance(failed, events.FlowState) and failed.state == "FAILED"
        assert failed.flow == "publish", "the one that ran, not another with quotes around its name"
    skipped = events.parse_message("t", "Flow 'x' SKIPPED due to upstream failure(s).")
    assert isinstance(skipped, events.FlowState) and (skipped.flow, skipped.state) == ("x", "SKIPPED")
    assert events.parse_message("t", "Something else happened.") is None


def test_progress_counts_lag_of_topics_only() -> None:
    progress = events.parse_progress(PROGRESS)
    assert (progress.flow, progress.batch, progress.rows, progress.batch_ms) == ("orders", 7, 120, 2000)
    assert (progress.lag, progress.state_rows, progress.state_bytes) == (10, 3, 2048)
    assert progress.watermark == "2026-01-01T00:00:00.000Z"
    assert json.loads(events.as_json(progress))["event"] == "progress"
    assert events.lag_of([{"endOffset": "{}", "latestOffset": "not json"}]) is None


def test_status_outlives_its_process_and_is_shown(tmp_path: Path) -> None:
    known = events.Status("shop", "continuous", "local[*]", os.getpid(), "t0", "t0")
    known.take(events.FlowState("t1", "orders", "STARTING", "m"))
    known.take(events.parse_progress(PROGRESS))
    known.take(events.RunState("t2", "RUNNING", ""))
    known.groups = [("here:1", "g")]
    file = tmp_path / "state" / "progress.json"
    assert status.load(file) is None
    status.save(file, known)
    again = status.load(file)
    assert again == known
    assert status.is_running(again)
    assert [*live.rows(again)] == [
        ("orders", "RUNNING", "7", "120", "60", "2,000 ms", "10", "3 / 2 KB", "2026-01-01 00:00:00")
    ]
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(live.render(again, console.width))
    assert "2,000 ms" in console.export_text()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(live.render(again, console.width))
    assert "…" not in (drawn := console.export_text()) and "2026-01-01 00:00:00" in drawn, "nothing is cut"
    console = Console(width=50, record=True, file=io.StringIO())
    console.print(live.render(again, console.width))
    assert "…" not in (drawn := console.export_text()) and "kept" not in drawn and "RUNNING" in drawn
    again.take(events.RunState("t3", "STOPPED", ""))
    assert not status.is_running(again)
    again.pid = 2**22 + 1
    again.state = "RUNNING"
    assert not status.is_running(again)


def test_a_run_with_nothing_to_do_keeps_what_is_known_of_flows() -> None:
    def progress(batch: int, passed: int) -> events.Progress:
        counts = {"priced": {"action": "warn", "passed": passed, "failed": 1}}
        return replace(events.parse_progress(PROGRESS), batch=batch, expectations=counts)

    before = events.Status("shop", "once", "local[*]", os.getpid(), "t0", "t0")
    for batch in (6, 7):
        before.take(progress(batch, 10))
    before.take(events.FlowState("t1", "orders", "COMPLETED", "m"))
    known = events.Status("shop", "once", "local[*]", os.getpid(), "t2", "t2")
    known.remember(before)
    for state in ("STARTING", "COMPLETED"):
        known.take(events.FlowState("t3", "orders", state, ""))
    (row,) = live.rows(known)
    assert row[:4] == ("orders", "COMPLETED", "7", "240")
    waiting = events.Status("shop", "once", "local[*]", os.getpid(), "t2", "t2", message="starting Spark …")
    waiting.take(events.FlowState("t3", "orders", "STARTING", ""))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(live.render(waiting, console.width))
    drawn = console.export_text()
    assert "starting Spark …" in drawn and "watermark" not in drawn, "empty columns are left out"
    # One that has something to do, after a full refresh: its batches have numbers from 0, and count.
    known.remember(known)
    known.take(progress(0, 3))
    known.take(progress(1, 4))
    (row,) = live.rows(known)
    assert row[:4] == ("orders", "RUNNING", "1", "240")
    assert known.flows["orders"].expectations["priced"] == {"action": "warn", "passed": 7, "failed": 2}
    assert before.flows["orders"].expectations["priced"]["passed"] == 20


def test_flows_that_read_one_topic_have_a_group_each(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[str, str]] = []
    monkeypatch.setattr(sources, "pipeline_name", lambda: "shop")
    monkeypatch.setattr(sources, "note_group", lambda bootstrap, group: noted.append((bootstrap, group)))
    for flow in ("to_lake", "to_database", None):
        monkeypatch.setattr(sources, "active_flow", lambda flow=flow: flow)
        sources.topic("orders", bootstrap="here:1")
    sources.topic("orders", bootstrap="here:1", group="mine")
    groups = [group for _, group in noted]
    assert len(set(groups)) == 4
    assert groups[0].startswith("shop-to_lake-") and groups[1].startswith("shop-to_database-")
    assert groups[2].startswith("shop-") and groups[3] == "mine"


def test_expectations_are_summed_over_batches_and_drawn(tmp_path: Path) -> None:
    def batch(number: int, passed: int, failed: int) -> events.Progress:
        row = {"rows": passed + failed, "drop:positive": failed}
        return events.parse_progress(
            PROGRESS | {"batchId": number, "observedMetrics": {"expectations.orders": row, "else": {"rows": 9}}}
        )

    known = events.Status("shop", "once", "local[*]", os.getpid(), "t0", "t0")
    for progress in (batch(0, 7, 3), batch(0, 7, 3), batch(1, 1_000, 0), events.parse_progress(PROGRESS)):
        known.take(progress)  # a batch that is reported again counts once, one without counts changes nothing
    assert json.loads(events.as_json(batch(0, 7, 3)))["expectations"] == {
        "orders.positive": {"action": "drop", "passed": 7, "failed": 3}
    }
    file = tmp_path / "progress.json"
    status.save(file, known)
    again = status.load(file)
    assert again == known
    assert live.expectation_rows(again) == [("orders", "orders.positive", "drop", "1,007", "3")]
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(live.render(again, console.width))
    drawn = console.export_text()
    assert re.search(r"orders\.positive\W+drop\W+1,007\W+3", drawn), drawn


def test_settings_of_clients_come_from_a_file_that_the_spec_names(tmp_path: Path) -> None:
    create_project(tmp_path / "shop", bootstrap="here:1")
    spec = tmp_path / "shop" / "spark-pipeline.yml"
    assert load_project(tmp_path / "shop").client_settings() == {}
    spec.write_text(
        spec.read_text().replace("configuration:\n", "configuration:\n  barnabas.client.config: client.properties\n")
    )
    project = load_project(tmp_path / "shop")
    with pytest.raises(ProjectError, match=r"spark-pipeline.yml: barnabas.client.config client.properties: "):
        project.client_settings()
    (tmp_path / "shop" / "client.properties").write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
    settings = project.client_settings()
    with connector.defining("shop", settings):
        source, sink = sources.topic("orders", bootstrap="here:1"), sinks.topic("orders", bootstrap="here:1")
        other = sources.topic("orders", bootstrap="there:1", options={"kafka.security.protocol": "PLAINTEXT"})
    for options in (source.options, sink.options):
        assert options["kafka.security.protocol"] == "SASL_SSL"
        assert options["kafka.sasl.mechanism"] == "PLAIN"
        assert options["kafka.bootstrap.servers"] == "here:1"
    assert other.options["kafka.security.protocol"] == "PLAINTEXT"
    assert "kafka.security.protocol" not in sources.topic("orders", bootstrap="here:1").options


def test_error_of_spark_is_reported_without_its_stack() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] no x.\n\nJVM stacktrace:\norg.apache…\n\tat a.b.c(D.scala:1)"
    assert plain_message(text) == "[TABLE_OR_VIEW_NOT_FOUND] no x."
    chain = ["Job aborted", "Traceback (most recent call last):\n  File x\nTopicMissing: orders is not there\n", "gone"]
    assert innermost(chain) == "TopicMissing: orders is not there"
    assert innermost(["Job aborted\n at x", "disk full\n\tat y"]) == "disk full"
    assert innermost([]) == "no reason was given"


def test_failed_views_are_computed_again_and_end_a_continuous_run_only_after_too_many_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first failure once ended the run, and all its flows with it."""
    reported: list[Event] = []
    activated: list[int] = []
    session: Any = SimpleNamespace(activate=lambda: activated.append(1))
    runner = Runner(project=session, session=session, report=reported.append)
    outcomes = iter([False, False, True, False, False, False])

    def once(graph_id: str, options: RunOptions, *, quiet: bool) -> None:
        assert (graph_id, list(options.refresh), quiet) == ("graph", ["turnover"], True)
        if not next(outcomes):
            raise PipelineFailed("flow turnover failed: the database is away")

    monkeypatch.setattr(runner, "_define", lambda: "graph")
    monkeypatch.setattr(runner, "_once", once)
    options = RunOptions(continuous=True, failures_max=2, views_s=60)
    for _ in range(5):
        runner._compute(["turnover"], options)
    with pytest.raises(PipelineFailed, match="the database is away"):
        runner._compute(["turnover"], options)
    assert len(activated) == 6
    assert {each.message for each in reported if isinstance(each, RunState)} == {
        "Materialized views keep their rows, and are computed again in 60 s: flow turnover failed: the database is away"
    }
    assert len(reported) == 4


def test_a_flow_does_not_start_again_on_a_topic_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The flow failed because its query noticed it. The next query knows offsets only, and noticed nothing once the topic had
    grown."""
    reported: list[Event] = []
    options = {"kafka.bootstrap.servers": "here:1", "subscribe": "orders"}
    project: Any = SimpleNamespace(topics_file=tmp_path / "topics.json")
    runner = Runner(project=project, session=project, report=reported.append)
    runner._flows.views.add("decoded")
    runner._flows.reads["received"] = {"decoded"}
    ids = {"orders": "1"}

    def ids_of(given: Mapping[str, str]) -> dict[str, str]:
        if not ids:
            raise ConnectionLost("no such topic")
        return dict(ids)

    monkeypatch.setattr(connector, "streams", lambda: [("decoded", options), ("other", options | {"subscribe": "x"})])
    monkeypatch.setattr(topic_ids, "ids_of", ids_of)
    runner._check_topics(set())
    ended: Any = SimpleNamespace(
        isCompleted=lambda: True, exception=lambda: SimpleNamespace(isDefined=lambda: False), executeAsync=lambda: None
    )
    started: list[object] = []
    planner: Any = SimpleNamespace(plan=lambda flow: started.append(flow) or ended)
    flow = _Running("spark_catalog.shop.received", "flow", ended, Backoff(0, 0))

    def fails_and_starts() -> None:
        for _ in range(2):
            runner._watch(flow, planner, RunOptions(continuous=True, failures_max=9, pause_s=0))

    fails_and_starts()
    ids.clear()
    fails_and_starts()
    assert started == ["flow", "flow"], "also while the cluster is away: the flow waits for it"
    ids["orders"] = "2"
    with pytest.raises(PipelineFailed, match="flow decoded reads topic orders, which was deleted and made again"):
        fails_and_starts()
    assert len(started) == 2
    assert isinstance(reported[-1], FlowState) and reported[-1].state == "FAILED"


def test_database_hides_the_password_and_knows_two_kinds() -> None:
    assert Database("postgresql://me:secret@db/shop").name == "postgresql://db/shop"
    assert Database("postgresql://db/shop?user=me&password=secret").name == "postgresql://db/shop"
    assert Database("sqlite:///x").quoted('a"b.c') == '"a""b"."c"'
    with pytest.raises(DatabaseError, match="only postgresql"):
        Database("mysql://db/shop")
    with pytest.raises(DatabaseError, match="is not the name of a type"):
        Database("sqlite:///x").parameter(1, "int); DROP TABLE x; --")


def test_range_of_two_columns_is_one_comparison() -> None:
    query = SqlQuery.parse({"uri": "postgresql://db/shop", "table": "orders", "cursor": "at,id"})
    where, parameters = bounds(
        query,
        {"cursor": ["t0", "5"], "types": ["timestamp", "bigint"]},
        {"cursor": ["t1", "9"], "types": ["timestamp", "bigint"]},
    )
    assert '("at", "id") > (CAST($1 AS timestamp), CAST($2 AS bigint))' in where
    assert '("at", "id") <= (CAST($3 AS timestamp), CAST($4 AS bigint))' in where
    assert parameters == ["t0", "5", "t1", "9"]


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%SZ"])
def test_sqlite_rows_wait_for_their_delay_and_no_longer(tmp_path: Path, form: str) -> None:
    """In every form of a time: with a T it once counted as later than every moment of its day."""
    now = datetime.now(UTC)
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        connection.execute("CREATE TABLE t (at TIMESTAMP, id INTEGER)")
        for number, age_s in enumerate((7200, 0)):
            connection.execute("INSERT INTO t VALUES (?, ?)", ((now - timedelta(seconds=age_s)).strftime(form), number))
    options = {"uri": f"sqlite:///{tmp_path}/db", "table": "t", "cursor": "at,id"}
    delayed = SqlSource(CaseInsensitiveDict({**options, "delayMs": "3600000"}))
    reader = delayed.streamReader(delayed.schema())
    assert reader.latestOffset({}, ReadAllAvailable())["cursor"][1] == "0"
    by_number = SqlSource(CaseInsensitiveDict({**options, "cursor": "id", "delayMs": "1"}))
    with pytest.raises(ValueError, match="delayMs needs a time as the first column of the cursor; id is bigint"):
        by_number.streamReader(by_number.schema())


def test_sqlite_rows_are_read_in_the_types_of_their_columns_whatever_the_first_ones_hold(tmp_path: Path) -> None:
    """Arrow's driver looked at 1,024 rows, took nulls for whole numbers, and refused the first text behind them."""
    last = (5000, "tea", 2.5, b"x", "2026-01-02 03:04:05")
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER, note TEXT, price NUMERIC, data BLOB, at TIMESTAMP)")
        many = [(number, None, number, None, None) for number in range(3000)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", [*many, last])
    query = SqlQuery.parse({"uri": f"sqlite:///{tmp_path}/db", "table": "t", "cursor": "id"})
    read = [row for batch in read_range(query, query.schema(), SqlRange()) for row in batch.to_pylist()]
    assert len(read) == 3001
    assert read[-1] == {"id": 5000, "note": "tea", "price": 2.5, "data": b"x", "at": datetime(2026, 1, 2, 3, 4, 5)}
    assert read[0] == {"id": 0, "note": None, "price": 0.0, "data": None, "at": None}
    # A float is a bound as it is, to the last bit.
    query = replace(query, cursor=("price",))
    end = SqlStreamReader(query, query.schema()).latestOffset({}, ReadMaxRows(4))
    some = [row["id"] for batch in read_range(query, query.schema(), SqlRange({}, end)) for row in batch.to_pylist()]
    assert some == [0, 1, 2, 5000]


def test_a_number_is_not_taken_for_a_time(tmp_path: Path) -> None:
    """A column of SQLite that is declared as a timestamp may have seconds since 1970: they were once read as microseconds."""
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        connection.execute("CREATE TABLE t (at TIMESTAMP)")
        connection.execute("INSERT INTO t VALUES (1763356000)")
    query = SqlQuery.parse({"uri": f"sqlite:///{tmp_path}/db", "table": "t"})
    with pytest.raises(DatabaseError, match="t, column at: a number and not a time"):
        list(read_range(query, query.schema(), SqlRange()))
    numbers = StructType([StructField("at", LongType())])
    [found] = read_range(query, numbers, SqlRange())
    assert found.to_pylist() == [{"at": 1763356000}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "t"}, "option uri"),
        ({"uri": "sqlite:///x"}, "option table"),
        ({"uri": "sqlite:///x", "table": "t", "mode": "replace"}, "append or upsert"),
        ({"uri": "sqlite:///x", "table": "t", "mode": "upsert"}, "go together"),
        ({"uri": "sqlite:///x", "table": "t", "mode": "upsert", "key": "nr"}, "rows do not have"),
        ({"uri": "sqlite:///x", "table": "t", "deleteColumn": "gone"}, "deleted by key"),
    ],
)
def test_sql_sink_refuses_options_that_do_not_go_together(options: dict[str, str], said: str) -> None:
    schema = StructType([StructField("id", LongType()), StructField("gone", BooleanType())])
    with pytest.raises(ValueError, match=said):
        SqlTarget(options, schema)


def test_upsert_without_other_columns_inserts_new_rows(tmp_path: Path) -> None:
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    target = SqlTarget({"uri": f"sqlite:///{tmp_path}/db", "table": "t", "mode": "upsert", "key": "id,name"}, schema)
    [statement] = target._moves(["s1", "s2"])
    assert statement.endswith('ON CONFLICT ("id", "name") DO NOTHING')


def test_synthetic_rows_come_by_the_clock_up_to_the_given_number() -> None:
    clock = [10_000]
    plan = Plan.parse({"rowsPerSecond": "100", "rows": "250", "columns": '{"n": "sequence"}'})
    reader = SyntheticStreamReader(plan, lambda: clock[0])
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())["row"] == 100
    clock[0] += 60_000
    assert reader.latestOffset(start, ReadAllAvailable())["row"] == 250
    [part] = reader.partitions(start, {"row": 3, "origin_ms": 9_000})
    assert next(generate(plan, part)).to_pydict() == {"n": [0, 1, 2]}  # type: ignore[arg-type]
    assert [(each.first, each.end) for each in split(0, 200_001, 0)] == [(0, 100_000), (100_000, 200_001)]
    for wrong in ("dice", "uniform:6", "choices:a"):
        with pytest.raises(ValueError, match=r"uniform|one of"):
            Plan.parse({"columns": json.dumps({"a": wrong})})


def test_a_failure_that_spark_repeats_is_reported_once() -> None:
    reason = "column n is int in the table and string in the rows"
    causes = [f"Flow a has FAILED: {reason}", f"Flow a has FAILED: {reason}", reason, "", "Run has FAILED"]
    assert once_each(causes) == [f"Flow a has FAILED: {reason}", "Run has FAILED"]


TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_X] Failed: Traceback (most recent call last):
  File "/x/reader.py", line 176, in f
    self.g()
    ^^^^^^^
{error}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: t"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (TRACE.format(error="barnabas.base.errors.ConfigError: topic x does not exist"), "topic x does not exist"),
        (TRACE.format(error="adbc.Error: a\nb"), "Error: a b"),
        (TRACE.format(error="KeyError"), "KeyError"),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: [USER_RAISED_EXCEPTION] bad SQLSTATE: P0001",
            "bad",
        ),
        ("Job aborted due to stage failure: Task 0 (TID 7) (vm executor driver): java.io.IOException: full", "full"),
        ("[TABLE_OR_VIEW_NOT_FOUND] no x. SQLSTATE: 42P01;\n'Unresolved [x]", "[TABLE_OR_VIEW_NOT_FOUND] no x.;"),
    ],
)
def test_the_cause_is_one_sentence_of_sparks_error(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_states_are_reported_as_they_come_and_causes_once() -> None:
    telling = Telling({"a": "code/flows.py:4"})
    failed = "Flow 'spark_catalog.default.a' has FAILED.\nError: " + TRACE.format(error="barnabas.x.Y: no topic")

    def states(*messages: str) -> list[tuple[str, str]]:
        reported = [event for message in messages for event in telling.take("t", message)]
        return [(event.state, event.message) for event in reported if not isinstance(event, events.Progress)]

    assert [state for state, _ in states("Flow a is QUEUED.", "Flow b is QUEUED.", "Flow a is STARTING.")] == [
        "QUEUED",
        "QUEUED",
        "STARTING",
    ]
    assert states("Flow a has COMPLETED.", failed) == [
        ("RETRYING", "Flow a (code/flows.py:4) failed, and starts again: no topic")
    ]
    assert states("Flow a is STARTING.", "Flow a has COMPLETED.", failed)[1:] == [
        ("RETRYING", "Flow a (code/flows.py:4) failed again, for the same reason, and starts again")
    ]
    ended = [(event.state, event.message) for event in telling.end("t") if isinstance(event, events.FlowState)]
    assert ended == [
        ("FAILED", "Flow a (code/flows.py:4) failed 2 times, and is not started again: no topic"),
        ("SKIPPED", "Flow b has not run: the run failed before it."),
    ]
    assert telling.failure("Run has FAILED") == "flow a (code/flows.py:4) failed: no topic"


def test_a_flow_is_reported_as_completed_when_a_flow_that_waited_for_it_starts() -> None:
    """On a busy machine other flows start between the COMPLETED and the FAILED that Spark says of one flow."""
    flows = Flows(
        reads={"b": {"view"}, "view": {"a_table"}}, targets={"a": "a_table", "b": "b", "view": "view"}, views={"view"}
    )
    assert (flows.inputs("b"), flows.inputs("a")) == ({"a"}, set())
    telling = Telling({}, {flow: flows.inputs(flow) for flow in flows.targets})

    def states(*messages: str) -> list[str]:
        reported = [event for message in messages for event in telling.take("t", message)]
        return [f"{getattr(event, 'flow', 'run')} {getattr(event, 'state', '')}" for event in reported]

    assert states("Flow c.d.a has COMPLETED.", "Flow other is STARTING.") == ["other STARTING"]
    assert states("Flow c.d.a has FAILED.\nError: x") == ["c.d.a RETRYING"]
    assert states("Flow c.d.a is STARTING.", "Flow c.d.a has COMPLETED.", "Flow b is STARTING.") == [
        "c.d.a STARTING",
        "c.d.a COMPLETED",
        "b STARTING",
    ]
    assert states("Flow b has COMPLETED.", "Run is COMPLETED.") == ["b COMPLETED", "run COMPLETED"]


def test_a_flow_that_cannot_be_resolved_is_named() -> None:
    telling = Telling({"v": "code/flows.py:2"})
    telling.take("t", "Failed to resolve flow: 'spark_catalog.default.v'.\nError: [TABLE_OR_VIEW_NOT_FOUND] no x.")
    assert telling.failure("Failed") == "flow v (code/flows.py:2) failed: [TABLE_OR_VIEW_NOT_FOUND] no x."
    telling = Telling({})
    telling.take("t", "Flow a is STARTING.")
    telling.take("t", "Flow a has COMPLETED.")
    assert [getattr(each, "state", "") for each in telling.rest()] == ["COMPLETED"]


def test_a_late_progress_report_does_not_make_a_failed_flow_running() -> None:
    known = events.Status("shop", "once", "local[*]", 1, "t0", "t0")
    known.take(events.FlowState("t1", "orders", "FAILED", "Flow orders failed: x"))
    known.take(events.parse_progress(PROGRESS))
    assert known.flows["orders"].state == "FAILED" and known.failures() == ["Flow orders failed: x"]


def test_a_flow_that_failed_and_completed_in_the_end_has_no_part_in_a_failure() -> None:
    telling = Telling({})
    for message in (
        "Flow a is STARTING.",
        "Flow a has FAILED.\nError: x",
        "Flow a is STARTING.",
        "Flow a has COMPLETED.",
    ):
        telling.take("t", message)
    assert [getattr(event, "state", "") for event in telling.take("t", "Run is COMPLETED.")] == ["COMPLETED"] * 2
    assert telling.failure("[X] other") == "[X] other"


def test_records_of_open_and_aborted_transactions_are_read_only_on_request() -> None:
    level = "kafka.isolation.level"
    assert sources.topic("orders", bootstrap="here:1").options[level] == "read_committed"
    asked = sources.topic("orders", bootstrap="here:1", options={level: "read_uncommitted"})
    assert asked.options[level] == "read_uncommitted"


def test_a_topic_is_read_from_a_time_with_its_zone() -> None:
    def options(**given: str) -> dict[str, str]:
        found = sources.topic("orders", bootstrap="here:1", **given).options  # type: ignore[arg-type]
        return {name: value for name, value in found.items() if name.startswith(("starting", "ending"))}

    assert options() == {"startingOffsets": "earliest"}
    assert options(starting='{"orders": {"0": 1}}') == {"startingOffsets": '{"orders": {"0": 1}}'}
    assert options(starting="2026-11-01T00:00Z", ending="2026-11-01T02:00+01:00") == {
        "startingTimestamp": "1793491200000",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": "1793494800000",
    }
    with pytest.raises(ValueError, match="has no time zone: write 2026-11-01T00:00Z for UTC"):
        options(starting="2026-11-01T00:00")
    with pytest.raises(ValueError, match="ending='soon' is not valid: use earliest, latest"):
        options(ending="soon")


def test_calls_of_read_topic_in_sql_become_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", "there:2")
    text = """-- read_topic('not', this)
CREATE STREAMING TABLE a AS SELECT 'read_topic(''x'')' AS s, "read_topic('y')" AS t FROM STREAM read_topic('orders');
CREATE VIEW b AS SELECT * FROM stream(READ_TOPIC ( 'o''s' , bootstrap=>'here:1', max_records => 5, headers => true ));
CREATE MATERIALIZED VIEW c AS SELECT `read_topic(` FROM read_topic(pattern => 'o\\\\.*')"""
    changed, views = topic_views(text, Path("code/all-sales.sql"))
    assert changed.splitlines() == [
        "-- read_topic('not', this)",
        "CREATE STREAMING TABLE a AS SELECT 'read_topic(''x'')' AS s, \"read_topic('y')\" AS t "
        "FROM STREAM code_all_sales_topic_1;",
        "CREATE VIEW b AS SELECT * FROM stream(code_all_sales_topic_2);",
        "CREATE MATERIALIZED VIEW c AS SELECT `read_topic(` FROM code_all_sales_topic_3",
    ]
    assert [(each.is_stream, each.line) for each in views] == [(True, 2), (True, 3), (False, 4)]
    assert views[0].source().options["kafka.bootstrap.servers"] == "there:2"
    second = views[1].source().options
    assert (second["subscribe"], second["maxOffsetsPerTrigger"], second["includeHeaders"]) == ("o's", "5", "true")
    assert views[2].source().options["subscribePattern"] == r"o\.*"


def test_statements_of_sql_have_the_names_that_they_make_and_read() -> None:
    text = """CREATE STREAMING TABLE `a` COMMENT 'CREATE VIEW x' AS
SELECT * FROM STREAM(sales_topic_1) JOIN cat.db.`people` USING (id);
CREATE TEMPORARY VIEW v AS WITH part AS (SELECT * FROM b) SELECT * FROM (SELECT * FROM part -- FROM nothing
);
CREATE OR REFRESH STREAMING TABLE t;
CREATE FLOW f AS INSERT INTO t BY NAME SELECT * FROM STREAM v"""
    assert statements(text) == [
        Statement("a", "a", False, 1, frozenset({"sales_topic_1", "people"}), frozenset({"sales_topic_1"})),
        Statement("v", "v", True, 3, frozenset({"b"}), frozenset()),
        Statement("t", "t", False, 5, frozenset(), frozenset()),
        Statement("f", "t", False, 6, frozenset({"v"}), frozenset({"v"})),
    ]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("read_topic(orders)", "^2: read_topic takes texts"),
        ("read_topic()", "^2: read_topic takes texts"),
        ("read_topic('a', 'b')", "^2: read_topic takes the topic's name, and each other argument once"),
        ("read_topic('a', name => 'b')", "^2: read_topic takes the topic's name, and each other argument once"),
        ("read_topic('a', from => 'b')", "^2: read_topic has no from; there are name, bootstrap"),
        ("read_topic('a', bootstrap => 'h:1', starting => 'soon')", "^2: starting='soon'"),
        ("read_topic('a')", r"^2: read_topic needs bootstrap => 'host:port', or \$BARNABAS_BOOTSTRAP_SERVER"),
    ],
)
def test_an_invalid_call_of_read_topic_is_reported_with_its_line(
    call: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BARNABAS_BOOTSTRAP_SERVER", raising=False)
    with pytest.raises(BadCall, match=said):
        _, [view] = topic_views(f"SELECT *\nFROM STREAM {call}", Path("x.sql"))
        view.source()


def test_columns_of_the_live_view_have_names_of_their_own() -> None:
    assert len(set(HEADERS)) == len(HEADERS)
