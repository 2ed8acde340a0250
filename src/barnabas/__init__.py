"""barnabas: Apache Kafka's broker cluster in Python."""

__version__ = "0.2.0.dev0"
