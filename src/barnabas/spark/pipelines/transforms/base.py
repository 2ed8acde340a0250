"""The type of a transform, and a chain of several."""

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


def chain(*transforms: Transform) -> Transform:
    """Return one transform that applies these from first to last."""

    def apply(df: DataFrame) -> DataFrame:
        for transform in transforms:
            df = df.transform(transform)
        return df

    return apply


def as_condition(given: Column | str) -> Column:
    return F.expr(given) if isinstance(given, str) else given
