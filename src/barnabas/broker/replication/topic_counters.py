"""The counters of each topic."""

from typing import NamedTuple

from barnabas.base.metrics.registry import Counter, Registry


class TopicCounters(NamedTuple):
    """One topic's part of Kafka's BrokerTopicMetrics."""

    bytes_in: Counter
    bytes_out: Counter
    messages_in: Counter
    failed_produce: Counter

    @classmethod
    def of(cls, registry: Registry, topic: str) -> "TopicCounters":
        def counter(name: str, what: str) -> Counter:
            return registry.counter(f"kafka_server_topic_{name}", what, topic=topic)

        return cls(
            counter("bytes_in", "Bytes produced, by topic."),
            counter("bytes_out", "Bytes fetched by consumers, by topic."),
            counter("messages_in", "Records produced, by topic."),
            counter("failed_produce_requests", "Refused appends, by topic."),
        )

    @staticmethod
    def remove(registry: Registry, topic: str) -> None:
        for name in ("bytes_in", "bytes_out", "messages_in", "failed_produce_requests"):
            registry.remove(f"kafka_server_topic_{name}", topic=topic)
