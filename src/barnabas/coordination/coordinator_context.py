"""What every coordinator needs of its broker."""

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.coordination.internal_topic import CountPartitions, CreateTopic, InternalTopic
from barnabas.coordination.metadata_cache import MetadataCache
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.topics import NewInternalTopic
from barnabas.metrics.registry import Registry
from barnabas.runtime.internal_log import CoordinatorLog
from barnabas.runtime.tasks import Spawn
from barnabas.runtime.timers import Timers


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorContext:
    log: CoordinatorLog
    metadata: MetadataCache
    config: Callable[[], BrokerConfig]
    now_ms: Callable[[], int]
    timers: Timers
    spawn: Spawn
    create_topic: CreateTopic
    count_partitions: CountPartitions
    registry: Registry

    def internal_topic(self, name: str, new: Callable[[], NewInternalTopic]) -> InternalTopic:
        """`new`: how it is made."""
        return InternalTopic(
            name, self.metadata, new=new, create=self.create_topic, count=self.count_partitions, spawn=self.spawn
        )
