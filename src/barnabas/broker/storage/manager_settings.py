"""The settings of the log manager."""

from dataclasses import dataclass

from barnabas.base.config.derived import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    recovery_threads_per_data_dir: int = setting("num.recovery.threads.per.data.dir")
    retention_check_interval_ms: int = setting("log.retention.check.interval.ms")
    flush_scheduler_interval_ms: int = setting("log.flush.scheduler.interval.ms")
    flush_offset_checkpoint_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms")
    flush_start_offset_checkpoint_interval_ms: int = setting("log.flush.start.offset.checkpoint.interval.ms")
    high_watermark_checkpoint_interval_ms: int = setting("replica.high.watermark.checkpoint.interval.ms")
    producer_id_expiration_check_interval_ms: int = setting("producer.id.expiration.check.interval.ms")
    initial_task_delay_ms: int = setting("log.initial.task.delay.ms")
    #: Delay for the directories of deleted partitions; segments have their topic's `file.delete.delay.ms`.
    segment_delete_delay_ms: int = setting("log.segment.delete.delay.ms")
