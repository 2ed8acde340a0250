"""The share coordinator of one broker: it finds the partition of `__share_group_state` of a share partition, runs operations on
the machine of that partition, and deletes records that no state needs any more.

Owner: the event loop. The answer of an operation contains its error; `Refused` is raised if this broker does not coordinate the
share partition, or cannot write.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from barnabas.base.config.derived import Derived
from barnabas.base.errors import LogDirFault, Refused
from barnabas.base.ids import TopicId, format_uuid, parse_uuid
from barnabas.base.topics import SHARE_GROUP_STATE_TOPIC
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.machine import Result
from barnabas.broker.runtime.share_state import SharePartitionKey
from barnabas.broker.share_coordinator import metrics
from barnabas.broker.share_coordinator.machine import Answer, Prune, ShareCoordinatorMachine
from barnabas.broker.share_coordinator.settings import ShareCoordinatorSettings
from barnabas.broker.share_coordinator.state import Change
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange

log = logging.getLogger(__name__)


def coordinator_key(key: SharePartitionKey) -> str:
    """Return the text that determines the coordinator of a share partition; FindCoordinator has it, too."""
    return f"{key.group_id}:{format_uuid(key.topic_id)}:{key.partition}"


def is_coordinator_key(text: str) -> bool:
    """Whether the text names a share partition. The group's id may contain colons."""
    group_id, _, rest = text.rpartition(":")
    group_id, _, topic_id = group_id.rpartition(":")
    try:
        parse_uuid(topic_id)
    except ValueError:
        return False
    return bool(group_id.strip()) and rest.isascii() and rest.isdigit()


class ShareCoordinator:
    def __init__(self, context: CoordinatorContext) -> None:
        metadata = context.metadata
        self._log = context.log
        self._now_ms = context.now_ms
        self._timers = context.timers
        self.settings = Derived(context.config, ShareCoordinatorSettings)
        self.topic = context.internal_topic(SHARE_GROUP_STATE_TOPIC, lambda: self.settings().new_topic)
        #: Offsets before which records were deleted, by partition.
        self.pruned: dict[int, int] = {}
        self._runtime = CoordinatorRuntime[ShareCoordinatorMachine](
            self.topic.name,
            context.log,
            make_machine=lambda partition: ShareCoordinatorMachine(
                settings=self.settings, partition_exists=_partition_exists(metadata)
            ),
            now_ms=context.now_ms,
            timers=context.timers,
            spawn=context.spawn,
            on_effect=self._carry_out,
            answer_timeout_ms=lambda: self.settings().write_timeout_ms,
            on_loaded=metrics.load_time(context.registry),
        )
        self._write_took_ms = metrics.write_time(context.registry)
        metrics.add_gauges(context.registry, self)
        self._unsubscribe = metadata.subscribe(self._metadata_changed)

    # -- where share partitions live ----------------------------------------------------------------------------------

    def partition_for(self, key: SharePartitionKey) -> int:
        return self.topic.partition_for(coordinator_key(key))

    def elected(self, partition: int, epoch: int) -> None:
        """This broker has become leader of a partition of the topic."""
        self._runtime.elected(partition, epoch)

    def resigned(self, partition: int) -> None:
        self.pruned.pop(partition, None)
        self._runtime.resigned(partition)

    def close(self) -> None:
        self._unsubscribe()
        self._runtime.close()

    @property
    def machines(self) -> Mapping[int, ShareCoordinatorMachine]:
        """Machines of the partitions that are served, for metrics and tests."""
        return self._runtime.active

    # -- operations ---------------------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, *, state_epoch: int, start_offset: int) -> "asyncio.Future[Answer]":
        return self._begin(
            key,
            lambda machine: machine.initialize(
                key, state_epoch=state_epoch, start_offset=start_offset, now_ms=self._now_ms()
            ),
        )

    def read(self, key: SharePartitionKey, *, leader_epoch: int) -> "asyncio.Future[Answer]":
        return self._begin(key, lambda machine: machine.read(key, leader_epoch=leader_epoch, now_ms=self._now_ms()))

    def write(self, key: SharePartitionKey, change: Change) -> "asyncio.Future[Answer]":
        began_s = self._timers.time()
        future = self._begin(key, lambda machine: machine.write(key, change, now_ms=self._now_ms()))
        future.add_done_callback(lambda done: self._write_took_ms((self._timers.time() - began_s) * 1000))
        return future

    def delete(self, key: SharePartitionKey) -> "asyncio.Future[Answer]":
        return self._begin(key, lambda machine: machine.delete(key))

    def read_summary(self, key: SharePartitionKey) -> "asyncio.Future[Answer]":
        return self._begin(key, lambda machine: machine.read_summary(key))

    def _begin(
        self, key: SharePartitionKey, operation: Callable[[ShareCoordinatorMachine], Result[Answer]]
    ) -> "asyncio.Future[Answer]":
        return self._runtime.begin(self.partition_for(key), lambda machine, ticket: operation(machine))

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def _carry_out(self, partition: int, message: object) -> None:
        assert isinstance(message, Prune)
        try:
            self._log.delete_before(partition, message.offset)
        except (Refused, LogDirFault) as error:
            log.warning(
                "[partition %s-%d] cannot delete records before offset %d, trying again at the next interval: %s",
                *(self.topic.name, partition, message.offset, error),
            )
        else:
            self.pruned[partition] = message.offset

    def _metadata_changed(self, change: MetadataChange) -> None:
        if change.deleted_ids:
            self._runtime.submit_all(lambda machine: machine.topics_deleted(change.deleted_ids))


def _partition_exists(metadata: MetadataCache) -> Callable[[TopicId, int], bool]:
    def exists(topic_id: TopicId, partition: int) -> bool:
        name = metadata.topic_name(topic_id)
        return name is not None and partition < metadata.partition_count(name)

    return exists
