"""What the examples share: a session, topics in and out, and a command line out of a function's parameters."""

import argparse
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

import barnabas.spark
from barnabas.spark.pipelines import sinks

Pipeline = Callable[..., DataStreamWriter]


def read(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """A topic as a stream, from its beginning."""
    source = spark.readStream.format("barnabas").option("kafka.bootstrap.servers", bootstrap)
    return source.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()


def read_all(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """All that a topic holds, as a table."""
    source = spark.read.format("barnabas").option("kafka.bootstrap.servers", bootstrap)
    return source.option("subscribe", topic).load()


def to_topic(
    rows: DataFrame, bootstrap: str, topic: str | None, checkpoint: str, output_mode: str = "append"
) -> DataStreamWriter:
    """Rows into a topic, each exactly once; with `topic=None` the column `topic` says which."""
    return sinks.topic(topic, bootstrap=bootstrap).writer(rows, checkpoint=checkpoint, output_mode=output_mode)


def main(pipeline: Pipeline) -> None:
    """Run a pipeline from the command line: `--bootstrap HOST:PORT`, and an option for each of its other parameters."""
    parser = argparse.ArgumentParser(
        description=sys.modules[pipeline.__module__].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, parameter in list(inspect.signature(pipeline).parameters.items())[1:]:
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        if name == "checkpoint":
            default = str(Path(".checkpoints", Path(sys.argv[0]).stem))
        parser.add_argument(f"--{name}", default=default, required=default is None)
    parser.add_argument(
        "--continuous", action="store_true", help="go on as records come; else end with what there is now"
    )
    arguments = vars(parser.parse_args())
    continuous = arguments.pop("continuous")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("example").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    barnabas.spark.register(spark)
    writer = pipeline(spark, **arguments)
    writer = writer.trigger(processingTime="1 second") if continuous else writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()
