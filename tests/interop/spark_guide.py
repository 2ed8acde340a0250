"""The examples of Spark's own guide to Kafka, with only the format's name changed: no import of ours, no `register`.

`python spark_guide.py BOOTSTRAP FOLDER`. The topics topic1 and topic2 have two partitions with fifty records each.
"""

import sys

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

bootstrap, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    .config("spark.python.authenticate.socketTimeout", "120s")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")


def batch(**options: object) -> DataFrame:
    return spark.read.format("barnabas").option("kafka.bootstrap.servers", bootstrap).options(**options).load()


def stream(**options: object) -> DataFrame:
    return spark.readStream.format("barnabas").option("kafka.bootstrap.servers", bootstrap).options(**options).load()


def write_stream(frame: DataFrame, name: str, mode: str = "append", **options: object) -> None:
    query = (
        frame.writeStream.format("barnabas")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("checkpointLocation", f"{folder}/{name}")
        .options(**options)
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def count(topic: str) -> int:
    return batch(subscribe=topic, **{"kafka.isolation.level": "read_committed"}).count()


def refusal(attempt: object) -> str:
    try:
        attempt()  # type: ignore[operator]
    except PySparkException as error:
        return str(error)
    raise AssertionError("nothing was refused")


# Batch queries: one topic, several with explicit offsets, a pattern.
df = batch(subscribe="topic1")
assert df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").count() == 100
several = batch(
    subscribe="topic1,topic2",
    startingOffsets="""{"topic1":{"0":23,"1":-2},"topic2":{"0":-2,"1":-2}}""",
    endingOffsets="""{"topic1":{"0":50,"1":-1},"topic2":{"0":-1,"1":-1}}""",
)
assert several.count() == 177
assert batch(subscribePattern="topic.*", startingOffsets="earliest", endingOffsets="latest").count() == 200

# Writing batches: to the option's topic, to the column's.
pairs = df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
pairs.write.format("barnabas").option("kafka.bootstrap.servers", bootstrap).option("topic", "out1").mode(
    "append"
).save()
assert count("out1") == 100
named = df.selectExpr("'out1' AS topic", "CAST(key AS STRING)", "CAST(value AS STRING)")
named.write.format("barnabas").option("kafka.bootstrap.servers", bootstrap).mode("append").save()
assert count("out1") == 200

# Streams: with headers, with a window, in output mode complete, in foreachBatch.
rows = stream(subscribe="topic1", startingOffsets="earliest", includeHeaders=True)
write_stream(rows.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "headers"), "copy", topic="out2")
assert count("out2") == 100
windows = rows.withWatermark("timestamp", "10 minutes").groupBy(f.window("timestamp", "10 minutes", "5 minutes"))
write_stream(windows.count().selectExpr("to_json(window) AS value"), "windows", topic="out3")
counts = rows.groupBy(f.col("partition").cast("string").alias("key")).agg(f.count("*").cast("string").alias("value"))
write_stream(counts, "counts", "complete", topic="out3")
found = batch(subscribe="out3").where("key is not null").selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) v")
assert sorted(map(tuple, found.distinct().collect())) == [("0", "50"), ("1", "50")]


def each(part: DataFrame, number: int) -> None:
    part.select("key", "value").write.format("barnabas").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", "out4"
    ).mode("append").save()


query = rows.writeStream.foreachBatch(each).option("checkpointLocation", f"{folder}/each").trigger(availableNow=True)
query.start().awaitTermination()
assert count("out4") == 100

# SQL.
spark.sql(
    f"CREATE TEMPORARY VIEW topic1 USING barnabas OPTIONS ('kafka.bootstrap.servers' '{bootstrap}', 'subscribe' 'topic1')"
)
assert spark.sql("SELECT count(*) FROM topic1").first()[0] == 100

# Consumer settings that have no effect here are accepted.
tuned = {"kafka.session.timeout.ms": "10000", "kafka.max.poll.records": 10, "kafka.group.id": "g"}
assert batch(subscribe="topic1", minPartitions=4, failOnDataLoss=False, **tuned).rdd.getNumPartitions() == 4

# Features that Spark does not offer to Python sources and sinks; docs/spark-options.md has the alternatives.
writer = pairs.write.format("barnabas").option("kafka.bootstrap.servers", bootstrap).option("topic", "out1")
assert 'use either the "Append" or "Overwrite" mode' in refusal(writer.save)
assert "does not support Update mode" in refusal(lambda: write_stream(counts, "update", "update", topic="out3"))
continuous = rows.writeStream.format("console").trigger(continuous="1 second")
assert "does not support continuous processing" in refusal(lambda: continuous.start().awaitTermination())
assert "topic missing does not exist" in refusal(
    lambda: write_stream(stream(subscribe="missing"), "missing", topic="out3")
)
print("all of it works")
spark.stop()
