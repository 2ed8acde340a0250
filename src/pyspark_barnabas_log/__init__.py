"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: format `barnabas-log` is there by itself."""

from barnabas.spark.segments import BarnabasLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
