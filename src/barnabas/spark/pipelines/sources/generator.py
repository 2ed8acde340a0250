"""Format `barnabas-synthetic`: makes up rows, so many a second; the same row number always gives the same row.

`columns` is JSON, name to kind: `sequence` (the row's number, or `sequence:1000` from there), `uniform:1..6`,
`uniform:0.0..1.0`, `choice:red,green,blue`, `text:12`, `boolean`, `timestamp` (the time at which the row was due).
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.spark.options import check_names

if TYPE_CHECKING:
    import pyarrow

_OPTIONS = ("columns", "rowsPerSecond", "rows", "seed")
_ROWS_PER_ARROW_BATCH = 8192
_UNIFORM = re.compile(r"(-?[0-9.]+?)\.\.(-?[0-9.]+)")


@dataclass(frozen=True)
class Plan:
    """The columns of rows, and the time at which each row is due."""

    columns: Mapping[str, str]
    rows_per_second: float
    rows: int | None
    seed: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "Plan":
        check_names(options, _OPTIONS, what="format barnabas-synthetic", prefixes=())
        columns = json.loads(options.get("columns", '{"number": "sequence", "at": "timestamp"}'))
        plan = cls(
            columns=columns,
            rows_per_second=float(options.get("rowsPerSecond", "10")),
            rows=int(options["rows"]) if "rows" in options else None,
            seed=int(options.get("seed", "0")),
        )
        if plan.rows_per_second <= 0:
            raise ValueError("rowsPerSecond of barnabas-synthetic must be more than 0")
        for kind in columns.values():
            type_of(kind)
        return plan

    def schema(self) -> StructType:
        return StructType([StructField(name, type_of(kind), False) for name, kind in self.columns.items()])

    def due(self, origin_ms: int, now_ms: int) -> int:
        """Return the number of rows that are due by now."""
        elapsed = int((now_ms - origin_ms) / 1000 * self.rows_per_second)
        return elapsed if self.rows is None else min(elapsed, self.rows)


@dataclass
class Rows(InputPartition):
    first: int
    end: int
    origin_ms: int


class SyntheticSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-synthetic"

    def schema(self) -> StructType:
        return Plan.parse(self.options).schema()

    def reader(self, schema: StructType) -> "SyntheticReader":
        return SyntheticReader(Plan.parse(self.options))

    def streamReader(self, schema: StructType) -> "SyntheticStreamReader":  # noqa: N802
        return SyntheticStreamReader(Plan.parse(self.options), lambda: int(time.time() * 1000))


class SyntheticReader(DataSourceReader):
    def __init__(self, plan: Plan) -> None:
        if plan.rows is None:
            raise ValueError("a batch of barnabas-synthetic needs the option rows")
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return split(0, self.plan.rows or 0, 0)

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, Rows)
        return generate(self.plan, partition)


class SyntheticStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of rows so far and the time of row 0, so that a restart goes on with the same rows."""

    def __init__(self, plan: Plan, now_ms: Callable[[], int]) -> None:
        self.plan = plan
        self._now_ms = now_ms
        self._stop_ms: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        # The source began a second ago: so the first batch has rows, even in a run that ends when it has read all.
        return {"row": 0, "origin_ms": self._now_ms() - 1000}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stop_ms = self._now_ms() + 1

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        origin_ms = start["origin_ms"]
        now_ms = self._now_ms() if self._stop_ms is None else max(self._stop_ms, origin_ms + 1000)
        return {"row": max(start["row"], self.plan.due(origin_ms, now_ms)), "origin_ms": origin_ms}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return split(start["row"], end["row"], end["origin_ms"])

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, Rows)
        return generate(self.plan, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the source keeps no rows."""

    def stop(self) -> None:
        """Do nothing: the source has nothing open."""


def split(first: int, end: int, origin_ms: int, *, parts: int = 2, rows_min: int = 50_000) -> list[Rows]:
    """Divide the rows into up to `parts` ranges, none of them small."""
    parts = max(1, min(parts, (end - first) // rows_min))
    edges = [first + (end - first) * n // parts for n in range(parts + 1)]
    return [Rows(low, high, origin_ms) for low, high in itertools.pairwise(edges)]


def type_of(kind: str) -> DataType:
    name, _, argument = kind.partition(":")
    match name:
        case "sequence":
            return LongType()
        case "uniform":
            found = _UNIFORM.fullmatch(argument)
            if found is None:
                raise ValueError(f"{kind!r}: write uniform:1..6 or uniform:0.0..1.0")
            return DoubleType() if "." in found[1] or "." in found[2] else LongType()
        case "choice" | "text":
            return StringType()
        case "boolean":
            return BooleanType()
        case "timestamp":
            return TimestampType()
    raise ValueError(f"{kind!r} is not valid: use sequence, uniform:…, choice:…, text:…, boolean or timestamp")


def generate(plan: Plan, rows: Rows) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(plan.schema(), timezone="UTC")
    for first in range(rows.first, rows.end, _ROWS_PER_ARROW_BATCH):
        numbers = numpy.arange(first, min(rows.end, first + _ROWS_PER_ARROW_BATCH), dtype=numpy.int64)
        arrays = [
            _column(kind, numbers, plan, rows.origin_ms, salt).cast(field.type)
            for salt, (kind, field) in enumerate(zip(plan.columns.values(), schema, strict=True))
        ]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _column(kind: str, numbers: NDArray[numpy.int64], plan: Plan, origin_ms: int, salt: int) -> "pyarrow.Array":
    import pyarrow

    name, _, argument = kind.partition(":")
    if name == "sequence":
        return pyarrow.array(numbers + int(argument or 0))
    if name == "timestamp":
        due_us = (origin_ms * 1000 + numbers * (1_000_000 / plan.rows_per_second)).astype(numpy.int64)
        return pyarrow.array(due_us).cast(pyarrow.timestamp("us", "UTC"))
    noise = _noise(numbers, plan.seed * 1000 + salt)
    if name == "boolean":
        return pyarrow.array((noise & numpy.uint64(1)).astype(bool))
    if name == "choice":
        choices = argument.split(",")
        return pyarrow.array(choices).take(pyarrow.array((noise % numpy.uint64(len(choices))).astype(numpy.int64)))
    if name == "text":
        length = int(argument or 12)
        return pyarrow.array([(f"{value:016x}" * (length // 16 + 1))[:length] for value in noise.tolist()])
    found = _UNIFORM.fullmatch(argument)
    assert found is not None
    if isinstance(type_of(kind), LongType):
        low, high = int(found[1]), int(found[2])
        return pyarrow.array((noise % numpy.uint64(high - low + 1)).astype(numpy.int64) + low)
    low_f, high_f = float(found[1]), float(found[2])
    return pyarrow.array(low_f + (noise >> numpy.uint64(11)).astype(numpy.float64) / (1 << 53) * (high_f - low_f))


def _noise(numbers: NDArray[numpy.int64], seed: int) -> NDArray[numpy.uint64]:
    """Return SplitMix64 of each number: random enough, and any row can be made without those before it."""
    with numpy.errstate(over="ignore"):
        z = numbers.astype(numpy.uint64) + numpy.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % (1 << 64))
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return z ^ (z >> numpy.uint64(31))
