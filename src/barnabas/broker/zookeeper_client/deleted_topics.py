"""Topics that were deleted while nobody could tell this broker.

The controller tells of a deletion once, and whoever comes back is told what there is, not what there was. So a broker that was
away without a restart, or whose controller died just then, would know a deleted topic for ever: its clients would find no
leader for it, and as controller it would not let anybody make it again. Owner: the event loop.
"""

import logging
from collections.abc import Callable

from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import ZkError

_log = logging.getLogger(__name__)


class DeletedTopics:
    """Looks into ZooKeeper when another controller speaks, or the same one to another registration of this broker: of what is
    deleted from then on, it tells."""

    def __init__(
        self,
        session: ZooKeeperSession,
        metadata: MetadataCache,
        *,
        epochs: Callable[[], tuple[int, int]],
        spawn: Spawn,
    ) -> None:
        """`epochs`: of the controller, and of this broker."""
        self._session = session
        self._metadata = metadata
        self._epochs = epochs
        self._spawn = spawn
        self._told_in = epochs()
        metadata.subscribe(self._told)

    def _told(self, change: MetadataChange) -> None:
        epochs = self._epochs()
        if epochs != self._told_in:
            self._told_in = epochs
            self._spawn(self._look(), "deleted topics")

    async def _look(self) -> None:
        known = {name: topic.version for name, topic in self._metadata.topics.items()}
        try:
            await self._session.catch_up(paths.BROKER_TOPICS)
            there = set(await self._session.children(paths.BROKER_TOPICS))
        except ZkError as error:
            # With the next session comes another registration. Anything else is for whoever keeps ZooKeeper to mend.
            _log.info("whether topics were deleted cannot be told: %s", error)
            return
        gone = [
            name
            for name, version in known.items()
            # What the controller has spoken of meanwhile may have been made again.
            if name not in there and (topic := self._metadata.topic(name)) is not None and topic.version == version
        ]
        if gone:
            _log.warning("topics that were deleted while this broker was away: %s", ", ".join(gone))
            self._metadata.forget(gone)
