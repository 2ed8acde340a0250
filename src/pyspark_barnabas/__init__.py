"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: format `barnabas` is there by itself."""

from barnabas.spark.source import BarnabasDataSource as DefaultSource

__all__ = ["DefaultSource"]
