"""Expectations: rows that do not meet them, and the counts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from barnabas.spark.pipelines.expectations import (
    ExpectationCount,
    Expectations,
    Tally,
    counts,
    expect,
    expect_or_drop,
    expect_or_fail,
)

SCHEMA = "topic string, partition int, offset long, id int, total double"


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    rows = [("orders", 0, 1, 1, 5.0), ("orders", 0, 2, 2, -1.0), ("orders", 0, 3, None, 7.0), ("orders", 0, 4, 4, None)]
    return spark.createDataFrame(rows, SCHEMA).coalesce(1).cache()


def test_rows_are_kept_dropped_and_quarantined_and_all_are_counted(orders: DataFrame) -> None:
    expected = Expectations(
        "orders",
        keep={"has id": "id is not null"},
        drop={"not negative": "total >= 0 or total is null"},
        quarantine={"has total": col("total").isNotNull()},
    )
    checked, observation = expected.observed(orders)
    rows = checked.collect()
    assert [row.offset for row in rows] == [1, 3, 4]
    assert [row.error and row.error.message for row in rows] == [
        None,
        None,
        "topic orders, partition 0, offset 4: expectation 'has total' failed",
    ]
    assert counts({"expectations.orders": observation.get, "other": {"rows": 1}}) == [
        ExpectationCount("orders", "has id", "keep", 3, 1),
        ExpectationCount("orders", "not negative", "drop", 3, 1),
        ExpectationCount("orders", "has total", "quarantine", 3, 1),
    ]


def test_a_row_that_does_not_meet_a_fail_expectation_fails_the_query_and_is_named(orders: DataFrame) -> None:
    message = r"topic orders, partition 0, offset 2: expectation 'positive' \(total > 0\) failed: .*\"id\":2"
    with pytest.raises(PySparkException, match=message):
        orders.transform(expect_or_fail("positive", "total > 0")).collect()


def test_decorators_stack_on_a_function_that_makes_a_dataset(orders: DataFrame) -> None:
    @expect("has id", "id is not null")
    @expect_or_drop("positive", "total > 0")
    def good_orders() -> DataFrame:
        """Orders that are worth something."""
        return orders

    make: Callable[[], DataFrame] = good_orders
    assert (make.__name__, make.__doc__) == ("good_orders", "Orders that are worth something.")
    assert [row.offset for row in make().collect()] == [1, 3]


def test_counts_of_a_stream_are_in_its_progress_and_add_up_over_batches(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number, lines in enumerate(("1\n2\n-3\n", "4\n-5\n")):
        (source / f"{number}.csv").write_text(lines)
    numbers = spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).csv(str(source))
    checked = numbers.transform(Expectations("numbers", drop={"positive": "n > 0"}))
    out = str(tmp_path / "out")
    writer = checked.writeStream.format("parquet").option("path", out)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    query.awaitTermination()
    tally = Tally()
    for progress in [*query.recentProgress, *query.recentProgress]:
        tally.add(progress["batchId"], progress["observedMetrics"])
    assert tally.counts() == [ExpectationCount("numbers", "positive", "drop", 3, 2)]
    assert sorted(row.n for row in spark.read.parquet(out).collect()) == [1, 2, 4]

    failing = numbers.transform(Expectations("numbers", fail={"positive": "n > 0"})).writeStream.format("noop")
    query = failing.option("checkpointLocation", str(tmp_path / "other")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"expectation 'positive' \(n > 0\) failed: \{\"n\":-3\}"):
        query.awaitTermination()
