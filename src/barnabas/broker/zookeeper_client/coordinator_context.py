"""The parts of a broker that every coordinator needs."""

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.metrics.registry import Registry
from barnabas.base.topics import NewInternalTopic
from barnabas.broker.runtime.internal_log import CoordinatorLog
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.timers import Timers
from barnabas.broker.zookeeper_client.internal_topic import CountPartitions, CreateTopic, InternalTopic
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache


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
        """Return the coordinator's internal topic. `new` returns the settings with which it is created."""
        return InternalTopic(
            name, self.metadata, new=new, create=self.create_topic, count=self.count_partitions, spawn=self.spawn
        )
