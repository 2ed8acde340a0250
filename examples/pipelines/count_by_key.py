"""Aggregation by key: how often each customer has ordered and for how much, each change as a new record of its key.

The output is a changelog, what Streams calls a table: make it a compacted topic, and its last record of a key is the count.

    python examples/pipelines/count_by_key.py --bootstrap localhost:9092 --input orders --output customer-totals
"""

from _topics import main, read, to_topic
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, struct, sum
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode, encode

ORDER = "customer string, price double, pieces int"


def pipeline(spark: SparkSession, bootstrap: str, input: str, output: str, checkpoint: str) -> DataStreamWriter:
    orders = decode(read(spark, bootstrap, input), Json(ORDER), mode="DROP").select("data.*")
    totals = orders.groupBy(col("customer").alias("key")).agg(
        count("*").alias("orders"), sum(col("price") * col("pieces")).alias("total")
    )
    changes = encode(totals.select("key", struct("orders", "total").alias("data")), Json()).select("key", "value")
    return to_topic(changes, bootstrap, output, checkpoint, output_mode="update")


if __name__ == "__main__":
    main(pipeline)
