"""Kafka topics in Spark through PySpark, with no JAR: format `barnabas` (a cluster), `barnabas-log` (segments on disk).

`pip install barnabas[spark]` on the driver and the executors; Java 17 is Spark's own need. Then::

    import barnabas.spark

    barnabas.spark.register(spark)
    spark.read.format("barnabas").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

Options and columns are those of Spark's own `kafka` source: see docs/spark-options.md.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings of Spark for a session that reads or writes much (docs/spark.md): workers start with the imports made, talk over
#: Unix sockets, and have time to start on a busy machine.
WORKER_SETTINGS: Final[Mapping[str, str]] = {
    "spark.python.daemon.module": "barnabas.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",
}


def register(spark: "SparkSession") -> None:
    """Make the formats known to a session. Not needed where `pyspark_barnabas` is installed: there Spark finds them by
    itself."""
    from barnabas.spark.python_command import early_python
    from barnabas.spark.segments import BarnabasLogDataSource
    from barnabas.spark.source import BarnabasDataSource

    with early_python(spark):
        spark.dataSource.register(BarnabasDataSource)
        spark.dataSource.register(BarnabasLogDataSource)


def explain(options: Mapping[str, str]) -> str:
    """Return in words what a batch query with these options would read now: offsets, their source, and the number of tasks."""
    from barnabas.spark.explaining import explain

    return explain(options)
