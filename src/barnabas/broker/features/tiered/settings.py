"""The settings of copying and expiry, by Kafka's names, as numbers."""

from random import Random
from typing import Final, NamedTuple

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ConfigError
from barnabas.base.topics import NewInternalTopic

#: Settings for the creation of `__remote_log_metadata`, by the names after the prefix.
_PARTITIONS: Final = "remote.log.metadata.topic.num.partitions"
_REPLICAS: Final = "remote.log.metadata.topic.replication.factor"
_RETENTION: Final = "remote.log.metadata.topic.retention.ms"


class TierSettings(NamedTuple):
    #: `remote.log.manager.task.interval.ms`
    interval_s: float = 30.0
    #: `remote.log.manager.task.retry.backoff.ms`, `.max.ms`, and its jitter.
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    backoff_jitter: float = 0.2
    #: Limits of concurrent copies, and (below) of partitions whose expiry is checked concurrently.
    copiers: int = 10
    expirers: int = 10
    #: `remote.log.manager.copy.max.bytes.per.second`, and the windows in which it is measured.
    copy_bytes_per_second: int = 2**63 - 1
    copy_windows: int = 11
    copy_window_ms: int = 1000

    @classmethod
    def of(cls, config: BrokerConfig) -> "TierSettings":
        threads = config.remote_log_manager_thread_pool_size
        copiers = config.remote_log_manager_copier_thread_pool_size
        expirers = config.remote_log_manager_expiration_thread_pool_size
        return cls(
            interval_s=config.remote_log_manager_task_interval_ms / 1000,
            backoff_s=config.remote_log_manager_task_retry_backoff_ms / 1000,
            backoff_max_s=config.remote_log_manager_task_retry_backoff_max_ms / 1000,
            backoff_jitter=config.remote_log_manager_task_retry_jitter,
            copiers=threads if copiers < 0 else copiers,
            expirers=threads if expirers < 0 else expirers,
            copy_bytes_per_second=config.remote_log_manager_copy_max_bytes_per_second,
            copy_windows=config.remote_log_manager_copy_quota_window_num,
            copy_window_ms=config.remote_log_manager_copy_quota_window_size_seconds * 1000,
        )

    def pause_s(self, failures: int, chance: Random) -> float:
        """Return the delay after this many consecutive failures."""
        longest: float = min(self.backoff_s * 2.0 ** min(failures, 30), self.backoff_max_s)
        return longest * (1 + chance.uniform(-self.backoff_jitter, self.backoff_jitter))


def store_settings(config: BrokerConfig) -> dict[str, str]:
    """Return the store's own settings: `rsm.config.*` without the prefix."""
    return _with_prefix(config, config.remote_log_storage_manager_impl_prefix)


def new_metadata_topic(config: BrokerConfig) -> NewInternalTopic:
    """:raises ConfigError: if a setting is not valid."""
    prefix = config.remote_log_metadata_manager_impl_prefix
    given = _with_prefix(config, prefix)
    values = {_PARTITIONS: 50, _REPLICAS: 3, _RETENTION: -1}
    for name in values:
        if name in given:
            values[name] = _integer(f"{prefix}{name}", given[name], at_least=-1 if name == _RETENTION else 1)
    settings = {"cleanup.policy": "delete", "retention.ms": str(values[_RETENTION])}
    return NewInternalTopic(values[_PARTITIONS], values[_REPLICAS], settings, f"{prefix}remote.log.metadata.topic")


def _with_prefix(config: BrokerConfig, prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value for name, value in config.originals.items() if name.startswith(prefix)}


def _integer(name: str, text: str, *, at_least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = at_least - 1
    if value < at_least:
        raise ConfigError(f"{name}={text} is not valid: use a number of at least {at_least}")
    return value
