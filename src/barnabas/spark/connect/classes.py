"""The classes of connectors that run here."""

from typing import Final

from barnabas.spark.connect.connector import ConnectorClass
from barnabas.spark.connect.jdbc import sink as jdbc_sink

CLASSES: Final[tuple[ConnectorClass, ...]] = (jdbc_sink.CLASS,)
