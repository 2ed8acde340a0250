"""The settings of copying and expiry, by Kafka's names, as numbers."""

from dataclasses import dataclass
from random import Random
from typing import Final

from barnabas.base.backoff import Backoff
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.derived import setting
from barnabas.base.errors import ConfigError
from barnabas.base.topics import NewInternalTopic

#: Settings for the creation of `__remote_log_metadata`, by the names after the prefix.
_PARTITIONS: Final = "remote.log.metadata.topic.num.partitions"
_REPLICAS: Final = "remote.log.metadata.topic.replication.factor"
_RETENTION: Final = "remote.log.metadata.topic.retention.ms"


def _seconds(ms: int) -> float:
    return ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    interval_s: float = setting("remote.log.manager.task.interval.ms", _seconds)
    backoff_s: float = setting("remote.log.manager.task.retry.backoff.ms", _seconds)
    backoff_max_s: float = setting("remote.log.manager.task.retry.backoff.max.ms", _seconds)
    backoff_jitter: float = setting("remote.log.manager.task.retry.jitter")
    copiers_or_default: int = setting("remote.log.manager.copier.thread.pool.size")
    expirers_or_default: int = setting("remote.log.manager.expiration.thread.pool.size")
    threads: int = setting("remote.log.manager.thread.pool.size")
    copy_bytes_per_second: int = setting("remote.log.manager.copy.max.bytes.per.second")
    #: The number of windows in which the rate is measured, and the length of each.
    copy_windows: int = setting("remote.log.manager.copy.quota.window.num")
    copy_window_ms: int = setting("remote.log.manager.copy.quota.window.size.seconds", lambda seconds: seconds * 1000)

    @property
    def copiers(self) -> int:
        """The limit of concurrent copies."""
        return self.threads if self.copiers_or_default < 0 else self.copiers_or_default

    @property
    def expirers(self) -> int:
        """The limit of partitions whose expiry is checked concurrently."""
        return self.threads if self.expirers_or_default < 0 else self.expirers_or_default

    def backoff(self, chance: Random) -> Backoff:
        return Backoff(
            self.backoff_s, self.backoff_max_s, lambda: 1 + chance.uniform(-self.backoff_jitter, self.backoff_jitter)
        )


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
