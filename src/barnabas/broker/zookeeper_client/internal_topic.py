"""The internal topic of a coordinator: where a group or a transactional id lives, and how the topic is made.

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

#: Create a topic with (name, partitions, replication factor, settings); what went wrong, or NONE.
CreateTopic = Callable[[str, int, int, Mapping[str, str]], Awaitable[ErrorCode]]
#: How many partitions a topic has in ZooKeeper; 0: there is no such topic.
CountPartitions = Callable[[str], Awaitable[int]]


class InternalTopic:
    """How many partitions the topic has comes from ZooKeeper, as in Kafka. A controller tells of some of them first, and by
    their number a key would live somewhere else: what is committed there is lost."""

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
        #: 0: there is no topic, or it has just been heard of.
        self.partitions = 0
        self._is_asking = False
        self.on_counted: Callable[[], None] = lambda: None
        metadata.subscribe(self._told)
        #: Done when the creation that is under way is, with its success.
        self._creating: asyncio.Future[bool] | None = None

    def _told(self, change: MetadataChange) -> None:
        known = self._metadata.partition_count(self.name)
        if not known and any(each.topic == self.name for each in change.deleted):
            self.partitions = 0
        elif known > self.partitions and not self._is_asking:
            self._is_asking = True  # from now on: it may be told of more before this one begins
            self._spawn(self.look(), f"partitions of {self.name}")

    async def look(self) -> None:
        """Count the partitions: before requests are served, and when more of them are heard of."""
        try:
            counted = await self._count(self.name)
        except (ZkError, Malformed) as error:
            log.warning("how many partitions %s has cannot be told: %s", self.name, error)
            return
        finally:
            self._is_asking = False
        if counted and counted != self.partitions:
            self.partitions = counted
            self.on_counted()

    def place_of(self, key: str) -> int | None:
        """Where a key lives; before the topic exists, where it will. None: that is being looked up."""
        if self.partitions:
            return partition_of(key, self.partitions)
        return None if self._metadata.topic(self.name) is not None else partition_of(key, self._new().partitions)

    def partition_for(self, key: str, /) -> int:
        """As `place_of`; refused where that is not known yet."""
        place = self.place_of(key)
        if place is None:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the partitions of {self.name} are being counted")
        return place

    def coordinator_of(self, key: str) -> BrokerId | None:
        """The live broker that coordinates a key, as far as this one knows."""
        place = self.place_of(key)
        state = None if place is None else self._metadata.partition(TopicPartition(self.name, place))
        if state is None or not self._metadata.is_alive(BrokerId(state.leader)):
            return None
        return BrokerId(state.leader)

    async def ensure(self) -> bool:
        """Create the topic if it is not there, and count its partitions. False if that failed; clients ask again."""
        if self._metadata.topic(self.name) is not None:
            if not self.partitions:
                await self.look()
            return bool(self.partitions)
        if self._creating is not None:
            return await asyncio.shield(self._creating)
        self._creating = asyncio.get_running_loop().create_future()
        new = self._new()
        is_there = False
        try:
            error = await self._create(self.name, new.partitions, new.replication_factor, new.settings)
            is_there = error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            if is_there:
                await self.look()
            else:
                log.warning(
                    "cannot create %s with %d partitions and replication factor %d (%s.*): %s",
                    *(self.name, new.partitions, new.replication_factor, new.prefix, error.name),
                )
        finally:
            self._creating.set_result(is_there)
            self._creating = None
        return is_there
