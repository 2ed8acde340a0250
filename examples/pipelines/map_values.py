"""Stateless: each order is read, changed and written on; what Streams does with mapValues and Connect with transforms.

python examples/pipelines/map_values.py --bootstrap localhost:9092 --input orders --output totals
"""

from _topics import main, read, to_topic
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode, encode
from barnabas.spark.pipelines.transforms import Filter, InsertField, MaskField

ORDER = "id long, customer string, card string, price double, pieces int"


def pipeline(spark: SparkSession, bootstrap: str, input: str, output: str, checkpoint: str) -> DataStreamWriter:
    orders = decode(read(spark, bootstrap, input), Json(ORDER), mode="DROP")
    totals = (
        orders.transform(Filter("data.pieces <= 0"))
        .transform(MaskField(["card"], replacement="****", of="data"))
        .withColumn("data", col("data").withField("total", col("data.price") * col("data.pieces")))
        .transform(InsertField(offset="offset", of="data"))
    )
    out = encode(totals, Json()).select("key", "value")
    return to_topic(out, bootstrap, output, checkpoint)


if __name__ == "__main__":
    main(pipeline)
