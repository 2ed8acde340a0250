"""What `pyspark.pipelines` lacks: connectors in and out, transforms, codecs, dead letters, expectations, upserts.

    from pyspark import pipelines as dp
    from barnabas.spark.pipelines import sinks, sources

Nothing is imported before it is used: a pipeline that reads topics needs no Delta, and the command line needs no Spark.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from barnabas.spark.pipelines import cdc as cdc
    from barnabas.spark.pipelines import codecs as codecs
    from barnabas.spark.pipelines import dead_letter as dead_letter
    from barnabas.spark.pipelines import expectations as expectations
    from barnabas.spark.pipelines import sinks as sinks
    from barnabas.spark.pipelines import sources as sources
    from barnabas.spark.pipelines import transforms as transforms

__all__ = ["analyzed", "cdc", "codecs", "dead_letter", "expectations", "register", "sinks", "sources", "transforms"]


def register(spark: "SparkSession") -> None:
    """Make all our formats known to a session: at the top of a pipeline's file that Spark's own `spark-pipelines` runs."""
    from barnabas.spark.pipelines.connector import register_all

    register_all(spark)


def analyzed(df: "DataFrame") -> "DataFrame":
    """Return the same DataFrame with its columns known, for methods that ask for them inside a function of a project.

    `analyzed(events).groupBy("id").transformWithStateInPandas(…)`.
    """
    from barnabas.spark.pipelines._schema import schema_of

    schema_of(df)
    return df


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
