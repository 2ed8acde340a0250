"""The settings of the log manager."""

from dataclasses import dataclass

from barnabas.base.config.broker import BrokerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """The broker's settings that the manager needs."""

    recovery_threads_per_data_dir: int = 1
    retention_check_interval_ms: int = 300_000
    flush_scheduler_interval_ms: int = 2**63 - 1
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000
    initial_task_delay_ms: int = 30_000
    #: Delay for the directories of deleted partitions; segments have their topic's `file.delete.delay.ms`.
    segment_delete_delay_ms: int = 60_000

    @classmethod
    def of(cls, config: BrokerConfig) -> "ManagerSettings":
        return cls(
            recovery_threads_per_data_dir=config.num_recovery_threads_per_data_dir,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            flush_scheduler_interval_ms=config.log_flush_scheduler_interval_ms,
            flush_offset_checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            flush_start_offset_checkpoint_interval_ms=config.log_flush_start_offset_checkpoint_interval_ms,
            high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
            producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
            initial_task_delay_ms=config.log_initial_task_delay_ms,
            segment_delete_delay_ms=config.log_segment_delete_delay_ms,
        )
