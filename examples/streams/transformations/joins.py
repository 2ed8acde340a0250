"""A join of two streams, and of a stream with a table."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from shop import BOOTSTRAP

from barnabas.spark.pipelines import sources

spark = SparkSession.active()


@dp.table
def paid_orders() -> DataFrame:
    """Orders with payments that come within an hour. Both sides need a watermark, and the condition a bound in time."""
    orders = spark.readStream.table("orders").withWatermark("at", "10 minutes")
    payments = spark.readStream.table("payments").withWatermark("paid_at", "10 minutes")
    in_time = F.expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR")
    return orders.join(payments, in_time).select("id", "customer", "price", "at", "paid_at")


@dp.materialized_view
def customers() -> DataFrame:
    """The newest name of each customer, from a compacted topic: made anew at each run."""
    rows = sources.topic("customers", bootstrap=BOOTSTRAP).batch()
    named = rows.groupBy(F.col("key").cast("string").alias("customer"))
    return named.agg(F.max_by(F.col("value").cast("string"), F.struct("timestamp", "offset")).alias("name"))


@dp.table
def named_orders() -> DataFrame:
    """Each order with the name that its customer has when the order is read."""
    orders = spark.readStream.table("orders")
    return orders.join(spark.read.table("customers"), "customer", "left").select("id", "customer", "name")
