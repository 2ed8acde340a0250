"""The internal topic of a coordinator: where a group or a transactional id lives, and how the topic is made.

Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from barnabas.coordination.metadata_cache import MetadataCache
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import BrokerId, TopicPartition
from barnabas.core.java_hash import partition_of
from barnabas.core.topics import NewInternalTopic

log = logging.getLogger(__name__)

#: Create a topic with (name, partitions, replication factor, settings); what went wrong, or NONE.
CreateTopic = Callable[[str, int, int, Mapping[str, str]], Awaitable[ErrorCode]]


class InternalTopic:
    def __init__(
        self, name: str, metadata: MetadataCache, *, new: Callable[[], NewInternalTopic], create: CreateTopic
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._new = new
        self._create = create
        #: Done when the creation that is under way is, with its success.
        self._creating: asyncio.Future[bool] | None = None

    def partition_for(self, key: str, /) -> int:
        """Where a key lives; before the topic exists, where it will."""
        return partition_of(key, self._metadata.partition_count(self.name) or self._new().partitions)

    def coordinator_of(self, key: str) -> BrokerId | None:
        """The live broker that coordinates a key, as far as this one knows."""
        state = self._metadata.partition(TopicPartition(self.name, self.partition_for(key)))
        if state is None or not self._metadata.is_alive(BrokerId(state.leader)):
            return None
        return BrokerId(state.leader)

    async def ensure(self) -> bool:
        """Create the topic if it is not there. False if that failed; clients ask again."""
        if self._metadata.topic(self.name) is not None:
            return True
        if self._creating is not None:
            return await asyncio.shield(self._creating)
        self._creating = asyncio.get_running_loop().create_future()
        new = self._new()
        is_there = False
        try:
            error = await self._create(self.name, new.partitions, new.replication_factor, new.settings)
            is_there = error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            if not is_there:
                log.warning(
                    "cannot create %s with %d partitions and replication factor %d (%s.*): %s",
                    *(self.name, new.partitions, new.replication_factor, new.prefix, error.name),
                )
        finally:
            self._creating.set_result(is_there)
            self._creating = None
        return is_there
