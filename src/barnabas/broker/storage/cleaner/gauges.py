"""The cleaner's metrics, with Kafka's names."""

from barnabas.base.metrics.registry import Registry
from barnabas.broker.storage.cleaner.cleaner import Cleaner


def add_gauges(registry: Registry, cleaner: Cleaner) -> None:
    """Add gauges that are computed at each scrape."""
    gauges = {
        "cleaner_recopy_percent": ("Share of bytes that the last cleanings kept.", "cleaner_recopy_percent"),
        "max_clean_time_secs": ("Longest of the last cleanings.", "max_clean_time_secs"),
        "max_buffer_utilization_percent": ("Fullest key map of the last cleanings.", "max_buffer_utilization_percent"),
        "max_dirty_percent": ("Dirtiest log.", "max_dirty_percent"),
        "max_compaction_delay_secs": ("Longest overdue compaction.", "max_compaction_delay_secs"),
        "time_since_last_run_ms": ("Since the cleaner last looked at the logs.", "time_since_last_run_ms"),
        "dead_thread_count": ("Workers that died since the last cleaning that went well.", "dead_worker_count"),
    }
    for name, (what, attribute) in gauges.items():

        def read(attribute: str = attribute) -> float:
            return float(getattr(cleaner.metrics, attribute))

        registry.gauge(f"kafka_log_cleaner_{name}", what, read)
    registry.gauge(
        "kafka_log_cleaner_uncleanable_bytes",
        "Bytes of partitions that cannot be cleaned.",
        lambda: sum(cleaner.metrics.uncleanable_bytes.values()),
    )
    registry.gauge(
        "kafka_log_cleaner_uncleanable_partitions_count",
        "Partitions whose bytes cannot be cleaned.",
        lambda: sum(cleaner.metrics.uncleanable_partitions_count.values()),
    )
