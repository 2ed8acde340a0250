"""What a transform is, and several as one."""

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


def chain(*transforms: Transform) -> Transform:
    """One transform out of several, first to last."""

    def apply(df: DataFrame) -> DataFrame:
        for transform in transforms:
            df = df.transform(transform)
        return df

    return apply


def as_condition(given: Column | str) -> Column:
    return F.expr(given) if isinstance(given, str) else given
