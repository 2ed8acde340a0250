"""The internal topic of a coordinator: which partition holds a group or a transactional id, and how the topic is created.

Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.java_hash import partition_of
from barnabas.base.topics import NewInternalTopic
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.broker.zookeeper_client.zk_errors import ZkError

log = logging.getLogger(__name__)

#: Creates a topic of (name, partitions, replication factor, settings); returns the error, or NONE.
CreateTopic = Callable[[str, int, int, Mapping[str, str]], Awaitable[ErrorCode]]
#: Returns the number of partitions of a topic in ZooKeeper; 0: there is no such topic.
CountPartitions = Callable[[str], Awaitable[int]]


class InternalTopic:
    """The number of partitions comes from ZooKeeper, as in Kafka. A controller may announce only some partitions at first; with
    that number a key would hash to another partition, and offsets committed there would be lost."""

    def __init__(
        self,
        name: str,
        metadata: MetadataCache,
        *,
        new: Callable[[], NewInternalTopic],
        create: CreateTopic,
        count: CountPartitions,
        spawn: Spawn,
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._new = new
        self._create = create
        self._count = count
        self._spawn = spawn
        #: Number of partitions. 0: there is no topic, or its partitions were not counted yet.
        self.partitions = 0
        self._is_asking = False
        self.on_counted: Callable[[], None] = lambda: None
        metadata.subscribe(self._on_change)
        #: Resolves when the creation in progress ends, with whether it succeeded.
        self._creating: asyncio.Future[bool] | None = None

    def _on_change(self, change: MetadataChange) -> None:
        known = self._metadata.partition_count(self.name)
        if not known and any(deleted.topic == self.name for deleted in change.deleted):
            self.partitions = 0
        elif known > self.partitions and not self._is_asking:
            self._is_asking = True  # set now: another update may come before the task begins
            self._spawn(self.look(), f"partitions of {self.name}")

    async def look(self) -> None:
        """Count the partitions: before requests are served, and when an update announces more of them."""
        try:
            counted = await self._count(self.name)
        except (ZkError, Malformed) as error:
            log.warning(
                "[topic %s] cannot read its number of partitions, trying again at the next use: %s", self.name, error
            )
            return
        finally:
            self._is_asking = False
        if counted and counted != self.partitions:
            self.partitions = counted
            self.on_counted()

    def place_of(self, key: str) -> int | None:
        """Return the partition of a key; before the topic exists, its future partition. None: it is being looked up."""
        if self.partitions:
            return partition_of(key, self.partitions)
        return None if self._metadata.topic(self.name) is not None else partition_of(key, self._new().partitions)

    def partition_for(self, key: str, /) -> int:
        """Like `place_of`; raises `COORDINATOR_LOAD_IN_PROGRESS` if the partition is not known yet."""
        place = self.place_of(key)
        if place is None:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the partitions of {self.name} are being counted")
        return place

    def coordinator_of(self, key: str) -> BrokerId | None:
        """Return the live broker that coordinates a key, as far as this broker knows."""
        place = self.place_of(key)
        state = None if place is None else self._metadata.partition(TopicPartition(self.name, place))
        if state is None or not self._metadata.is_alive(BrokerId(state.leader)):
            return None
        return BrokerId(state.leader)

    async def ensure(self) -> bool:
        """Create the topic if it does not exist, and count its partitions. False if that failed: the client tries again."""
        if self._metadata.topic(self.name) is not None:
            if not self.partitions:
                await self.look()
            return bool(self.partitions)
        if self._creating is not None:
            return await asyncio.shield(self._creating)
        self._creating = asyncio.get_running_loop().create_future()
        new = self._new()
        exists = False
        try:
            error = await self._create(self.name, new.partitions, new.replication_factor, new.settings)
            exists = error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            if exists:
                await self.look()
            else:
                log.warning(
                    "[topic %s] cannot be created with %d partitions and replication factor %d, check %s.*: %s",
                    *(self.name, new.partitions, new.replication_factor, new.prefix, error.name),
                )
        finally:
            self._creating.set_result(exists)
            self._creating = None
        return exists
