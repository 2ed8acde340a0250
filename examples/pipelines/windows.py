"""Aggregation by window of event time, into a table of Parquet files.

`--kind tumbling`: ten minutes each. `hopping`: ten minutes, a new one every five. `session`: as long as there are orders, until
five minutes without one. A window is written once it is closed: when the watermark, ten minutes behind the newest order, has
passed it.

    python examples/pipelines/windows.py --bootstrap localhost:9092 --input orders --table /tmp/sales --kind tumbling
"""

from _topics import main, read
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, count, session_window, window
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode

ORDER = "customer string, at timestamp"


def window_of(kind: str) -> Column:
    match kind:
        case "tumbling":
            return window("at", "10 minutes")
        case "hopping":
            return window("at", "10 minutes", "5 minutes")
        case "session":
            return session_window("at", "5 minutes")
    raise SystemExit(f"--kind {kind}: tumbling, hopping or session")


def pipeline(
    spark: SparkSession, bootstrap: str, input: str, table: str, checkpoint: str, kind: str = "tumbling"
) -> DataStreamWriter:
    orders = decode(read(spark, bootstrap, input), Json(ORDER), mode="DROP").select("data.*")
    counts = (
        orders.withWatermark("at", "10 minutes")
        .groupBy(window_of(kind).alias("window"), "customer")
        .agg(count("*").alias("orders"))
        .select("customer", "orders", col("window.start").alias("start"), col("window.end").alias("end"))
    )
    return counts.writeStream.format("parquet").option("path", table).option("checkpointLocation", checkpoint)


if __name__ == "__main__":
    main(pipeline)
