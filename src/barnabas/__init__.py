"""barnabas: Apache Kafka's broker cluster in Python."""

__version__ = "0.1.0"
