"""The cleaner's settings and metrics."""

from dataclasses import dataclass, field
from typing import Final

from barnabas.base.config.derived import setting

#: Default of `log.cleaner.io.max.bytes.per.second`: practically no limit.
_UNLIMITED: Final = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """`log.cleaner.*`. All workers share the buffers and the rate."""

    enable: bool = setting("log.cleaner.enable")
    threads: int = setting("log.cleaner.threads", lambda threads: max(threads, 1))
    dedupe_buffer_size: int = setting("log.cleaner.dedupe.buffer.size")
    io_buffer_size: int = setting("log.cleaner.io.buffer.size")
    io_buffer_load_factor: float = setting("log.cleaner.io.buffer.load.factor")
    io_max_bytes_per_second: float | None = setting(
        "log.cleaner.io.max.bytes.per.second", lambda rate: None if rate > _UNLIMITED else rate
    )
    backoff_ms: int = setting("log.cleaner.backoff.ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerMetrics:
    """The present values of Kafka's gauges of the same names."""

    cleaner_recopy_percent: int = 0
    max_clean_time_secs: float = 0.0
    max_buffer_utilization_percent: int = 0
    max_dirty_percent: int = 0
    max_compaction_delay_secs: float = 0.0
    time_since_last_run_ms: int = 0
    #: Kafka's DeadThreadCount: workers that died since the last successful job.
    dead_worker_count: int = 0
    #: Uncleanable partitions by log directory.
    uncleanable_partitions_count: dict[str, int] = field(default_factory=dict)
    uncleanable_bytes: dict[str, int] = field(default_factory=dict)
