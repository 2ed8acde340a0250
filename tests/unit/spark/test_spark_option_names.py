"""A misspelt option is refused by every format, with the name that was meant."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from barnabas.base.errors import ConfigError
from barnabas.spark import sink
from barnabas.spark.pipelines.delta_upsert import DeltaUpsertSource
from barnabas.spark.pipelines.sinks.delta_table import DeltaSource
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergSource
from barnabas.spark.pipelines.sources.generator import SyntheticSource
from barnabas.spark.pipelines.sources.sql_query import SqlSource

ROWS = StructType().add("value", "string")
CHANGES = ROWS.add("_deleted", "boolean").add("_sequence", "long")


def topic(options: CaseInsensitiveDict) -> object:
    return sink.stream_writer(options, ROWS, False)


def delta(options: CaseInsensitiveDict) -> object:
    return DeltaSource(options).writer(ROWS, False)


def delta_upsert(options: CaseInsensitiveDict) -> object:
    return DeltaUpsertSource(options).writer(CHANGES, False)


def iceberg(options: CaseInsensitiveDict) -> object:
    return IcebergSource(options).writer(ROWS, False)


def sql(options: CaseInsensitiveDict) -> object:
    return SqlSource(options).writer(ROWS, False)


def sql_query(options: CaseInsensitiveDict) -> object:
    return SqlSource(options).schema()


def synthetic(options: CaseInsensitiveDict) -> object:
    return SyntheticSource(options).schema()


@pytest.mark.parametrize(
    ("make", "given", "misspelt", "meant"),
    [
        (topic, {"kafka.bootstrap.servers": "b:1", "topic": "t"}, "deliveryGuarentee", "deliveryGuarantee"),
        (delta, {"path": "PATH", "storage.any": "x"}, "partitonBy", "partitionBy"),
        (delta_upsert, {"path": "PATH", "key": "value"}, "delets", "deletes"),
        (iceberg, {"table": "a.b", "catalog.uri": "x"}, "tabel", "table"),
        (sql, {"uri": "sqlite:///PATH/db", "table": "t"}, "createTabel", "createTable"),
        (sql_query, {"uri": "sqlite:///PATH/db", "query": "select 1 one"}, "maxRowPerTrigger", "maxRowsPerTrigger"),
        (synthetic, {}, "rowsPerSec", "rowsPerSecond"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(
    make: Callable[[CaseInsensitiveDict], object], given: dict[str, str], misspelt: str, meant: str, tmp_path: Path
) -> None:
    options = {name: value.replace("PATH", str(tmp_path)) for name, value in given.items()}
    if make is not iceberg:  # which asks its catalog
        make(CaseInsensitiveDict(options))
    with pytest.raises(ConfigError, match=f"'{misspelt.lower()}' is not supported.*did you mean '{meant}'"):
        make(CaseInsensitiveDict(options | {misspelt: "x"}))


def test_deletes_are_hard_or_soft(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not valid: use hard or soft"):
        delta_upsert(CaseInsensitiveDict({"path": str(tmp_path), "key": "value", "deletes": "sfot"}))
