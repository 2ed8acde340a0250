"""Stream-table join: each order gets the name and city of its customer, from a compacted topic that is read as a table.

The table is the last record of each key as of the start of the query; what changes it later shows after a restart.

    python examples/pipelines/join_table.py --bootstrap localhost:9092 --orders orders --customers customers --output labels
"""

from _topics import main, read, read_all, to_topic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, max_by, struct
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode, encode

ORDER = "id long, customer string"
CUSTOMER = "name string, city string"


def table_of(changelog: DataFrame) -> DataFrame:
    """The last record of each key, without the keys whose last record is a tombstone."""
    last = changelog.groupBy(col("key").cast("string").alias("customer")).agg(max_by("value", "offset").alias("value"))
    return last.filter("value is not null")


def pipeline(
    spark: SparkSession, bootstrap: str, orders: str, customers: str, output: str, checkpoint: str
) -> DataStreamWriter:
    table = decode(table_of(read_all(spark, bootstrap, customers)), Json(CUSTOMER), mode="DROP")
    known = table.select("customer", "data.*")
    ordered = decode(read(spark, bootstrap, orders), Json(ORDER), mode="DROP").select("data.*")
    labels = ordered.join(broadcast(known), "customer", "left")
    rows = labels.select(col("customer").alias("key"), struct("id", "name", "city").alias("data"))
    return to_topic(encode(rows, Json()).select("key", "value"), bootstrap, output, checkpoint)


if __name__ == "__main__":
    main(pipeline)
