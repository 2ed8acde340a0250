"""A full refresh of one table or sink doubles no row in the tables behind it; SQL files read topics."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from barnabas.spark.pipelines import connector, topic_ids
from barnabas.spark.pipelines.events import Event, RunState
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.runner import Runner, RunOptions
from barnabas.testing import Kafka
from tests.scenarios.spark.test_spark_pipeline_library import make_again, run

TABLES = """
from pyspark import pipelines as dp
from barnabas.spark.pipelines import sinks

@dp.table
def reset_more():
    return spark.readStream.table("reset_orders").selectExpr("text", "1 AS one")

@dp.materialized_view
def reset_counted():
    return spark.table("reset_orders").groupBy("text").count()

sinks.delta("{folder}/lake").create("reset_lake")

@dp.append_flow(target="reset_lake")
def reset_last():
    return spark.readStream.table("reset_more")
"""
SQL = """-- Rows of a topic.
CREATE STREAMING TABLE reset_orders AS
SELECT CAST(value AS STRING) AS text, offset FROM STREAM read_topic('{topic}', bootstrap => '{bootstrap}');
"""
Run = Callable[..., list[Event]]


@pytest.fixture
def project(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> tuple[Run, str]:
    topic = kafka.topic("reset")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sales.sql").write_text(SQL.format(topic=topic, bootstrap=kafka.bootstrap))
    return lambda **options: run(tmp_path, spark, TABLES.format(folder=tmp_path), RunOptions(**options)), topic


def test_a_full_refresh_by_name_leaves_no_row_twice_and_reads_a_topic_that_was_made_again(
    project: tuple[Run, str], spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, topic = project
    kafka.produce(topic, ["a", "b"])

    def rows() -> list[list[str]]:
        spark.catalog.refreshTable("reset_more")
        found = [row["text"] for row in spark.table("reset_more").collect()]
        return [sorted(found), sorted(DeltaTable(tmp_path / "lake").to_pyarrow_table()["text"].to_pylist())]

    again()
    assert rows() == [["a", "b"]] * 2
    assert [group.rpartition("-")[0] for _, group in connector.groups()] == ["library-code_sales_topic_1"]

    with pytest.raises(PipelineFailed) as raised:
        again(full_refresh=["reset_orders"])
    assert re.sub(r"version \d+", "version N", str(raised.value)) == (
        "a full refresh of reset_orders writes its rows again, and these would have them twice: "
        f"reset_lake, a Delta table {tmp_path}/lake, version N with 2 rows; reset_more. Refresh these as well: "
        "--full-refresh reset_orders --full-refresh reset_lake --full-refresh reset_more --empty-sinks"
    )
    every = ["reset_orders", "reset_lake", "reset_more"]
    with pytest.raises(PipelineFailed, match=r"write all rows again into sinks.*: reset_lake, a Delta table"):
        again(full_refresh=every)
    assert rows() == [["a", "b"]] * 2, "a refused refresh changes nothing"

    make_again(kafka, topic)
    kafka.produce(topic, ["d"])
    with pytest.raises(
        topic_ids.TopicMadeAgain, match=rf"flow code_sales_topic_1 reads topic {topic}, which was deleted"
    ):
        again()
    again(full_refresh=every, empty_sinks=True)
    assert rows() == [["d"]] * 2
    said = (
        r"a full refresh of everything would write all rows again into sinks.*reset_lake, a Delta table .* with 1 rows"
    )
    with pytest.raises(PipelineFailed, match=said):
        again(full_refresh_all=True)
    reported = again(full_refresh_all=True, empty_sinks=True)
    assert any(isinstance(each, RunState) and "reset_lake has been emptied" in each.message for each in reported)
    assert rows() == [["d"]] * 2
    again(full_refresh=["reset_lake"], sinks_again=True)
    assert rows() == [["d"], ["d", "d"]], "a sink alone starts again"
    with pytest.raises(PipelineFailed, match="reset_lake: Spark updates tables by name, not sinks"):
        again(refresh=["reset_lake"])

    def fail(*_: object) -> None:
        raise PipelineFailed("the run was killed")

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_once", fail)
        with pytest.raises(PipelineFailed, match="was killed"):
            again(full_refresh_all=True, empty_sinks=True)
    again()
    assert rows() == [["d"], ["d"]], (
        "a sink that was emptied is filled, also if the run failed before Spark started again"
    )


def test_a_mistake_in_sql_is_reported_with_file_and_line(project: tuple[Run, str], tmp_path: Path) -> None:
    again, _ = project
    (tmp_path / "code" / "sales.sql").write_text("CREATE STREAMING TABLE t AS\nSELECT * FROM STREAM read_topic('t')")
    with pytest.raises(PipelineFailed, match=r"^code/sales\.sql:2: read_topic needs bootstrap => 'host:port'"):
        again(dry=True)
