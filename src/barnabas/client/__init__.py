"""Clients of any Kafka cluster: one connection, a whole cluster, and the blocking one for tools and Spark executors."""
