"""Stream-stream join: orders with the payment that came within an hour, and those for which none came.

Watermarks say for how long either side has to wait for the other, so the state stays small.

    python examples/pipelines/join_streams.py --bootstrap localhost:9092 --orders orders --payments payments --output paid
"""

from _topics import main, read, to_topic
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, struct
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode, encode

ORDER = "id long, customer string, at timestamp"
PAYMENT = "order_id long, amount double, paid_at timestamp"


def pipeline(
    spark: SparkSession, bootstrap: str, orders: str, payments: str, output: str, checkpoint: str
) -> DataStreamWriter:
    ordered = decode(read(spark, bootstrap, orders), Json(ORDER), mode="DROP").select("data.*")
    paid = decode(read(spark, bootstrap, payments), Json(PAYMENT), mode="DROP").select("data.*")
    joined = ordered.withWatermark("at", "10 minutes").join(
        paid.withWatermark("paid_at", "10 minutes"),
        expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR"),
        "left_outer",
    )
    rows = joined.select(col("customer").alias("key"), struct("id", "amount", "paid_at").alias("data"))
    return to_topic(encode(rows, Json()).select("key", "value"), bootstrap, output, checkpoint)


if __name__ == "__main__":
    main(pipeline)
