"""Windows of event time. A window is written once it is closed: when the watermark has passed its end."""

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()


def counted(window: Column) -> DataFrame:
    """Orders that come up to ten minutes late still count."""
    orders = spark.readStream.table("orders").withWatermark("at", "10 minutes")
    totals = orders.groupBy(window.alias("window"), "customer").agg(F.count("*").alias("orders"))
    return totals.select("customer", "orders", F.col("window.start").alias("start"), F.col("window.end").alias("end"))


@dp.table
def sales() -> DataFrame:
    """Tumbling windows; F.window("at", "10 minutes", "5 minutes") are hopping ones."""
    return counted(F.window("at", "10 minutes"))


@dp.table
def visits() -> DataFrame:
    """A session goes on until five minutes pass without an order."""
    return counted(F.session_window("at", "5 minutes"))
