"""Benchmarks beside Apache Kafka and Apache ZooKeeper: same machine, same client, same run."""
