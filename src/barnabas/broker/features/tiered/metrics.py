"""Counters of the tier, with Kafka's names (BrokerTopicMetrics with `topic`)."""

from typing import Final, NamedTuple

from barnabas.base.metrics.registry import Counter, Registry

_COUNTERS: Final = {
    "remote_copy_bytes": "Bytes copied to the tier, by topic.",
    "remote_copy_requests": "Attempts to copy a segment to the tier, by topic.",
    "remote_copy_errors": "Attempts to copy a segment that failed, by topic.",
    "remote_delete_requests": "Attempts to delete a segment from the tier, by topic.",
    "remote_delete_errors": "Attempts to delete a segment that failed, by topic.",
    "remote_fetch_bytes": "Bytes that consumers got from the tier, by topic.",
    "remote_fetch_requests": "Reads of the tier for consumers, by topic.",
    "remote_fetch_errors": "Reads of the tier that failed, by topic.",
    "build_remote_log_aux_state_requests": "Attempts of followers to begin where the tier ends, by topic.",
    "build_remote_log_aux_state_errors": "Attempts of followers to begin where the tier ends that failed, by topic.",
}


class TopicTierCounters(NamedTuple):
    copied_bytes: Counter
    copy_requests: Counter
    copy_errors: Counter
    delete_requests: Counter
    delete_errors: Counter
    fetched_bytes: Counter
    fetch_requests: Counter
    fetch_errors: Counter
    begin_requests: Counter
    begin_errors: Counter


class TierMetrics:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_topic: dict[str, TopicTierCounters] = {}

    def of(self, topic: str) -> TopicTierCounters:
        counters = self._by_topic.get(topic)
        if counters is None:
            counted = [
                self._registry.counter(f"kafka_server_topic_{name}", what, topic=topic)
                for name, what in _COUNTERS.items()
            ]
            counters = self._by_topic[topic] = TopicTierCounters(*counted)
        return counters

    def forget(self, topic: str) -> None:
        if self._by_topic.pop(topic, None) is not None:
            for name in _COUNTERS:
                self._registry.remove(f"kafka_server_topic_{name}", topic=topic)
