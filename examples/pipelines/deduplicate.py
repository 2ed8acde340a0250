"""Deduplication: orders that a shop sent twice pass once, if the second comes within ten minutes of event time.

python examples/pipelines/deduplicate.py --bootstrap localhost:9092 --input orders --output once
"""

from _topics import main, read, to_topic
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode

ORDER = "id long, at timestamp"


def pipeline(spark: SparkSession, bootstrap: str, input: str, output: str, checkpoint: str) -> DataStreamWriter:
    orders = decode(read(spark, bootstrap, input), Json(ORDER), mode="DROP").select("key", "value", "data.*")
    once = orders.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["id"])
    return to_topic(once.select("key", "value"), bootstrap, output, checkpoint)


if __name__ == "__main__":
    main(pipeline)
