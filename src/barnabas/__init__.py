"""barnabas: Apache Kafka's broker cluster in Python.

For programs:

    barnabas.testing  real brokers for tests: Cluster, Broker, test cases; its pytest plugin has them as fixtures
    barnabas.client   a client of Kafka: asynchronous, blocking, producer, consumer, group, admin
    barnabas.spark    source, sink, pipelines and tables for Apache Spark

The other packages are the inside, and may change with each version: broker, zookeeper, services, cli, wire, base.
`barnabas --help` lists the commands; docs/ARCHITECTURE.md says where to start reading.
"""

__version__ = "0.2.0.dev0"
