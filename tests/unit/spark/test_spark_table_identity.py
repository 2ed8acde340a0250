"""Another batch comes under a number that a Delta or Iceberg table has: it is refused, or an option decides."""

import json
import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from barnabas.base.errors import ConfigError
from barnabas.spark.batch_identity import NotTheSameBatch
from barnabas.spark.checkpoint import BY_CALLER, BY_CHECKPOINT, NOT_KNOWN, REPEATED_FILE, CheckpointElsewhere
from barnabas.spark.pipelines.connector import Origin, origin_of
from barnabas.spark.pipelines.sinks import exactly_once
from tests.unit.spark.test_spark_tables import Frame, Table, nullable, schema_of


class Context:
    """Spark's TaskContext, as far as these sinks look at it."""

    def __init__(self, query: str, batch: int) -> None:
        self._known = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}

    def getLocalProperty(self, name: str) -> str | None:
        return self._known.get(name)

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 0


class Stream:
    """A query into a table, with its checkpoint."""

    def __init__(self, table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = table
        self.checkpoint = folder / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "q"}))
        self._monkeypatch = monkeypatch

    def plan(self, batch: int, end: int) -> None:
        (self.checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{{"in":{{"0":{end}}}}}')

    def write(self, batch: int, *keys: int, **options: str) -> None:
        self._monkeypatch.setattr(exactly_once.TaskContext, "get", lambda: Context("q", batch))
        writer = self._source(**options).streamWriter(self._schema, False)
        writer.commit([writer.write(iter([self._data(*keys)]))], batch)

    def write_once(self, name: str, number: int, *keys: int, **options: str) -> None:
        self._monkeypatch.setattr(exactly_once.TaskContext, "get", lambda: Context("q", 0))
        origin = {"onceOrigin": BY_CHECKPOINT, "onceCheckpoint": str(self.checkpoint)} | options
        writer = self.table.batch_writer(self._schema, onceName=name, onceBatch=str(number), **origin)
        writer.commit([writer.write(iter([self._data(*keys)]))])

    def keys(self) -> list[int]:
        return [row["id"] for row in self.table.rows()]

    @property
    def _schema(self) -> Any:
        upserts = self.table.kind == "delta upsert"
        return schema_of("id long" + (", _deleted boolean, _sequence long" if upserts else ""))

    def _data(self, *keys: int) -> pa.RecordBatch:
        rows = [{"id": key, "_deleted": False, "_sequence": key} for key in keys]
        return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(nullable(self._schema), timezone="UTC"))

    def _source(self, **options: str) -> Any:
        return self.table.source(checkpointLocation=str(self.checkpoint), **options)


@pytest.fixture(params=["delta", "iceberg", "delta upsert"])
def stream(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    found = Stream(Table(request.param, tmp_path), tmp_path, monkeypatch)
    for batch in (0, 1):
        found.plan(batch, 10 * batch)
        found.write(batch, batch)
    return found


def test_a_batch_planned_again_is_refused_and_nothing_of_it_is_thrown_away(stream: Stream) -> None:
    stream.plan(1, 99)
    with pytest.raises(NotTheSameBatch) as refused:
        stream.write(1, 7)
    said = str(refused.value)
    assert "it differs in the planned offsets" in said and "acceptReplannedBatch=1:write" in said
    assert "(unknown)" not in said, "the table says what it has"
    assert stream.keys() == [0, 1]
    stream.write(1, 7, acceptReplannedBatch="1:write")
    stream.write(1, 7)  # it comes again
    stream.plan(2, 100)
    stream.write(2, 8)
    assert stream.keys() == [0, 1, 7, 8]


def test_a_batch_below_the_last_one_is_refused_and_can_be_accepted(stream: Stream) -> None:
    (stream.checkpoint / "offsets" / "1").unlink()
    stream.plan(0, 99)
    with pytest.raises(NotTheSameBatch):
        stream.write(0, 7)
    stream.write(0, 7, acceptReplannedBatch="0:write")
    stream.plan(1, 120)
    stream.write(1, 8)
    assert stream.keys() == [0, 1, 7, 8]


def test_a_batch_that_the_user_skips_is_remembered_without_rows(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.plan(1, 99)
    with caplog.at_level(logging.WARNING):
        stream.write(1, 7, acceptReplannedBatch="1:skip")
    assert "its 1 rows are thrown away" in caplog.text
    stream.write(1, 7)
    assert stream.keys() == [0, 1]


def test_the_option_for_one_batch_does_nothing_to_the_next(stream: Stream) -> None:
    stream.plan(2, 20)
    stream.write(2, 2, acceptReplannedBatch="2:skip")
    assert stream.keys() == [0, 1, 2]
    with pytest.raises(ConfigError, match="acceptReplannedBatch='2' is not valid"):
        stream.write(2, 2, acceptReplannedBatch="2")


def test_a_batch_that_comes_again_is_in_the_log_and_counted_in_the_checkpoint(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        stream.write(1, 1)
    assert "batch 1 of query q came again" in caplog.text and "its 1 rows are not written a second time" in caplog.text
    assert json.loads((stream.checkpoint / REPEATED_FILE).read_text())["rows"] == 1
    assert stream.keys() == [0, 1]


def test_a_copied_checkpoint_is_refused_and_may_become_a_query_of_its_own(stream: Stream) -> None:
    original, copy = stream.checkpoint, stream.checkpoint.with_name("copy")
    shutil.copytree(original, copy)
    stream.checkpoint = copy
    stream.plan(2, 20)
    with pytest.raises(CheckpointElsewhere):
        stream.write(2, 20)
    stream.write(2, 20, acceptCheckpoint="copied")
    stream.checkpoint = original
    stream.plan(2, 20)
    stream.write(2, 2)
    assert stream.keys() == [0, 1, 2, 20]


def test_a_batch_that_begins_where_none_has_ended_is_refused(stream: Stream) -> None:
    stream.plan(1, 5)
    stream.plan(2, 20)
    with pytest.raises(
        NotTheSameBatch, match="The offsets of batch 1 in the checkpoint are not those that were written"
    ):
        stream.write(2, 2)
    stream.write(2, 2, acceptReplannedBatch="2:write")
    stream.plan(3, 30)
    stream.write(3, 3)
    assert stream.keys() == [0, 1, 2, 3]


def test_a_checkpoint_with_another_id_is_refused_at_every_number(stream: Stream) -> None:
    shutil.rmtree(stream.checkpoint / "barnabas")
    stream.plan(2, 20)
    with pytest.raises(NotTheSameBatch, match="differs in the checkpoint"):
        stream.write(2, 2)


def test_writes_with_once_know_the_micro_batch_that_they_are_a_part_of(stream: Stream) -> None:
    for number, key in ((2, 20), (3, 30), (2, 20), (3, 30)):
        stream.write_once("parts", number, key)
    assert stream.keys() == [0, 1, 20, 30]
    stream.plan(1, 99)
    with pytest.raises(NotTheSameBatch, match="acceptReplannedBatch=3:write"):
        stream.write_once("parts", 3, 31)
    stream.write_once("parts", 3, 31, acceptReplannedBatch="3:write")
    assert stream.keys() == [0, 1, 20, 30, 31]


def test_writes_with_once_whose_checkpoint_is_not_known_are_not_skipped(stream: Stream) -> None:
    unknown = {"onceOrigin": NOT_KNOWN, "onceCheckpoint": ""}
    stream.write_once("parts", 2, 20, **unknown)
    stream.write_once("parts", 3, 30, **unknown)
    with pytest.raises(NotTheSameBatch, match="give it to write as checkpoint="):
        stream.write_once("parts", 3, 30, **unknown)
    assert stream.keys() == [0, 1, 20, 30]


def test_a_write_with_once_finds_out_whose_part_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Frame("")
    assert origin_of(session, None) == Origin(BY_CALLER)
    assert origin_of(session, "/state/q") == Origin(BY_CHECKPOINT, "/state/q")
    in_a_query: Any = Frame("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    assert origin_of(in_a_query, None) == Origin(NOT_KNOWN)
    running = SimpleNamespace(resolvedCheckpointRoot=lambda: "file:/state/q")
    shared = SimpleNamespace(activeStreamingQueries=lambda: {in_a_query.query: running})
    in_a_query._jsparkSession = SimpleNamespace(sharedState=lambda: shared)
    in_a_query._jvm = SimpleNamespace(java=SimpleNamespace(util=SimpleNamespace(UUID=SimpleNamespace(fromString=str))))
    assert origin_of(in_a_query, None) == Origin(BY_CHECKPOINT, "file:/state/q")
    # Spark Connect runs the function of foreachBatch in this module, and says neither query nor checkpoint.
    worker = SimpleNamespace(name="pyspark.sql.connect.streaming.worker.foreach_batch_worker")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", worker)
    assert origin_of(session, None) == Origin(NOT_KNOWN)
