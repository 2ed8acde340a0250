"""The classes of connectors that run here."""

from typing import Final

from barnabas.spark.connect.connector import ConnectorClass
from barnabas.spark.connect.debezium import source as debezium
from barnabas.spark.connect.jdbc import sink as jdbc_sink
from barnabas.spark.connect.jdbc import source as jdbc_source

CLASSES: Final[tuple[ConnectorClass, ...]] = (jdbc_sink.CLASS, jdbc_source.CLASS, debezium.CLASS)
