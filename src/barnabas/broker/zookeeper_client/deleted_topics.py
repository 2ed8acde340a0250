"""Finds topics that were deleted while the controller could not reach this broker.

The controller reports a deletion once. A broker that returns gets the current topics, not the deletions that it missed. A
broker that was away without a restart, or whose controller died just then, would know a deleted topic for ever: its clients
would find no leader for it, and as controller it would refuse to create the topic again. Owner: the event loop.
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
    """Compares with ZooKeeper when another controller sends its first update, or the same one after this broker registered
    again: the controller reports deletions from then on."""

    def __init__(
        self,
        session: ZooKeeperSession,
        metadata: MetadataCache,
        *,
        epochs: Callable[[], tuple[int, int]],
        spawn: Spawn,
    ) -> None:
        """`epochs` returns the controller's epoch and this broker's."""
        self._session = session
        self._metadata = metadata
        self._epochs = epochs
        self._spawn = spawn
        self._checked_epochs = epochs()
        metadata.subscribe(self._on_change)

    def _on_change(self, change: MetadataChange) -> None:
        epochs = self._epochs()
        if epochs != self._checked_epochs:
            self._checked_epochs = epochs
            self._spawn(self._look(), "deleted topics")

    async def _look(self) -> None:
        known = {name: topic.version for name, topic in self._metadata.topics.items()}
        try:
            await self._session.catch_up(paths.BROKER_TOPICS)
            existing = set(await self._session.children(paths.BROKER_TOPICS))
        except ZkError as error:
            # A new session causes another registration, and then another check. Other errors are for the operator to solve.
            _log.info("[metadata] cannot check whether topics were deleted: %s", error)
            return
        gone = [
            name
            for name, version in known.items()
            # A topic that the controller has announced meanwhile may have been created again.
            if name not in existing and (topic := self._metadata.topic(name)) is not None and topic.version == version
        ]
        if gone:
            _log.warning(
                "[metadata] forgetting topics that were deleted while this broker was away: %s", ", ".join(gone)
            )
            self._metadata.forget(gone)
