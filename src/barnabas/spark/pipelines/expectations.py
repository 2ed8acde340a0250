"""Expectations of rows: conditions, what to do with rows that do not meet them, and how many there were.

    keep        counted, and kept
    drop        counted, and dropped
    quarantine  counted, and given an error, for a dead-letter topic (`dead_letter`)
    fail        the query fails, with a message that names topic, partition and offset where the DataFrame has them

A condition that is null is not met. Counts are observed metrics: they cost no pass of their own, and are in
the progress of a streaming query, where `counts` finds them.

    checked = orders.transform(Expectations("orders", drop={"positive": "total > 0"}, keep={"named": "name is not null"}))

In a pipeline an expectation stands between the decorator and the function:

    @dp.table
    @expect_or_drop("positive", "total > 0")
    def orders(): ...
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias, overload

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from barnabas.spark.pipelines._errors import ERROR_DDL, place_of
from barnabas.spark.pipelines._fields import column
from barnabas.spark.pipelines._schema import columns_of
from barnabas.spark.pipelines.expectation_counts import PREFIX, ROWS, STACKED, ExpectationCount, Tally, counts

__all__ = [
    "Action",
    "Expectation",
    "ExpectationCount",
    "Expectations",
    "Tally",
    "counts",
    "expect",
    "expect_or_drop",
    "expect_or_fail",
]

Action: TypeAlias = Literal["keep", "drop", "quarantine", "fail"]
Query: TypeAlias = Callable[[], DataFrame]
Conditions: TypeAlias = Mapping[str, Column | str]

ERROR_CLASS: Final = "barnabas.spark.pipelines.expectations.ExpectationFailed"
_SHOWN: Final = 500


class Expectation(NamedTuple):
    name: str
    condition: Column | str
    action: Action

    @property
    def metric(self) -> str:
        return f"{self.action}:{self.name}"

    @property
    def met(self) -> Column:
        condition = F.expr(self.condition) if isinstance(self.condition, str) else self.condition
        return F.coalesce(condition, F.lit(False))

    @property
    def text(self) -> str:
        return f"expectation {self.name!r}" + (f" ({self.condition})" if isinstance(self.condition, str) else "")


@dataclass(frozen=True)
class Expectations:
    """Expectations of one dataset, checked together. A transform of a DataFrame, and a decorator of a function that makes one.

    `dataset` names the metric, `expectations.<dataset>`, so it may be used once in a query.
    """

    dataset: str = ROWS
    keep: Conditions = field(default_factory=dict)
    drop: Conditions = field(default_factory=dict)
    quarantine: Conditions = field(default_factory=dict)
    fail: Conditions = field(default_factory=dict)
    error: str = "error"

    def all(self) -> Iterator[Expectation]:
        groups: tuple[tuple[Action, Conditions], ...] = (
            ("keep", self.keep),
            ("drop", self.drop),
            ("quarantine", self.quarantine),
            ("fail", self.fail),
        )
        for action, conditions in groups:
            for name, condition in conditions.items():
                yield Expectation(name, condition, action)

    @overload
    def __call__(self, target: DataFrame) -> DataFrame: ...

    @overload
    def __call__(self, target: Query) -> Query: ...

    def __call__(self, target: DataFrame | Query) -> DataFrame | Query:
        if not callable(target):
            return self._checked(target, PREFIX + self.dataset)
        query = target
        named = self if self.dataset != ROWS else None

        @functools.wraps(query)
        def checked() -> DataFrame:
            metric = PREFIX + (named.dataset if named is not None else _stacked(query, self))
            return self._checked(query(), metric)

        return checked

    def observed(self, df: DataFrame) -> tuple[DataFrame, Observation]:
        """For a batch: return the rows, and the counts, available after an action (`counts({o.name: o.get})`)."""
        observation = Observation(PREFIX + self.dataset)
        return self._checked(df, observation), observation

    def _checked(self, df: DataFrame, metric: str | Observation) -> DataFrame:
        expected = list(self.all())
        failures = [F.count_if(~one.met).alias(one.metric) for one in expected]
        df = df.observe(metric, F.count(F.lit(1)).alias(ROWS), *failures)
        for one in expected:
            if one.action == "fail":
                df = df.filter(F.when(one.met, F.lit(True)).otherwise(F.raise_error(_complaint(df, one))))
        if self.quarantine:
            df = self._quarantined(df, [one for one in expected if one.action == "quarantine"])
        for one in expected:
            if one.action == "drop":
                df = df.filter(one.met)
        return df

    def _quarantined(self, df: DataFrame, expected: Iterable[Expectation]) -> DataFrame:
        problem = F.lit(None).cast("string")
        for one in reversed(list(expected)):
            problem = F.when(~one.met, F.concat(place_of(df), F.lit(f"{one.text} failed"))).otherwise(problem)
        found = F.when(problem.isNotNull(), F.struct(F.lit(ERROR_CLASS).alias("class"), problem.alias("message"))).cast(
            ERROR_DDL
        )
        return df.withColumn(
            self.error, F.coalesce(column(self.error), found) if self.error in columns_of(df) else found
        )


def _stacked(query: Query, expectations: Expectations) -> str:
    """Return a name for the metric: decorators may be stacked on one function, and each metric of a query needs its own
    name."""
    names = "+".join(one.name for one in expectations.all())
    return f"{getattr(query, '__name__', 'query')}{STACKED}{names}"


def _complaint(df: DataFrame, one: Expectation) -> Column:
    row = F.substring(F.to_json(F.struct(*[column(name) for name in columns_of(df)])), 1, _SHOWN)
    return F.concat(place_of(df), F.lit(f"{one.text} failed: "), row)


def expect(name: str, condition: Column | str) -> Expectations:
    """Count rows that do not meet the condition, and keep them."""
    return Expectations(keep={name: condition})


def expect_or_drop(name: str, condition: Column | str) -> Expectations:
    """Drop rows that do not meet the condition."""
    return Expectations(drop={name: condition})


def expect_or_fail(name: str, condition: Column | str) -> Expectations:
    """Fail on a row that does not meet the condition."""
    return Expectations(fail={name: condition})
