"""What `pyspark.pipelines` lacks: connectors in and out, transforms, codecs, dead letters, expectations, upserts.

    from pyspark import pipelines as dp
    from barnabas.spark.pipelines import sinks, sources

Nothing is imported before it is used: a pipeline that reads topics needs no Delta, and the command line needs no Spark.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.spark.pipelines import cdc as cdc
    from barnabas.spark.pipelines import codecs as codecs
    from barnabas.spark.pipelines import dead_letter as dead_letter
    from barnabas.spark.pipelines import expectations as expectations
    from barnabas.spark.pipelines import sinks as sinks
    from barnabas.spark.pipelines import sources as sources
    from barnabas.spark.pipelines import transforms as transforms

__all__ = ["cdc", "codecs", "dead_letter", "expectations", "sinks", "sources", "transforms"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
