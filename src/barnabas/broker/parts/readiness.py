"""Decides when a starting broker may answer clients: once the controller has sent it the cluster's metadata."""

import asyncio
import logging
from collections.abc import Callable

from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.wire.versions import api_named

log = logging.getLogger(__name__)

#: How long a starting broker waits for the topics that ZooKeeper has.
TOPICS_WAIT_S = 3.0
#: A controller that reaches a broker sends it the cluster's metadata at once. After a longer wait, the log explains it.
WARN_AFTER_S = 10.0
#: APIs that are answered from the cluster's metadata. Without it a broker would send clients away, report topics as missing,
#: and take all partitions from the members of a consumer group. It may lead partitions, and so coordinate groups and
#: transactions, before it has the metadata: if all brokers start, or the only one.
CLUSTER_APIS = tuple(
    api_named(name).key
    for name in (
        *("Metadata", "DescribeCluster", "DescribeTopicPartitions", "FindCoordinator"),
        *("OffsetCommit", "OffsetFetch", "OffsetDelete", "TxnOffsetCommit", "AddPartitionsToTxn"),
        *("JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
        *("DeleteTopics", "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "DescribeProducers"),
    )
)


class Readiness:
    """Owner: the event loop."""

    def __init__(self, broker_id: BrokerId, metadata: MetadataCache, stop: asyncio.Event, *, address: str) -> None:
        """`stop` ends the wait: it is set when the broker has to stop. `address`: where other brokers reach this one."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._stop = stop
        self._address = address
        self._is_ready = False

    def is_known(self, partition: TopicPartition) -> bool:
        """Whether the cluster has this partition. Before the metadata has come, any partition may exist."""
        return not self._is_ready or self._metadata.partition(partition) is not None

    async def wait(self, session: ZooKeeperSession) -> None:
        """Wait until the controller has sent this broker's own registration, and then topics, if there are any.

        A new controller sends brokers first. It never sends topics that are being deleted.
        """
        topics = await session.outlive(lambda: session.children(paths.BROKER_TOPICS))
        warning = asyncio.get_running_loop().call_later(WARN_AFTER_S, self._warn)
        try:
            await self._metadata_shows(lambda: self._metadata.is_alive(self._broker_id))
        finally:
            warning.cancel()
        try:
            async with asyncio.timeout(TOPICS_WAIT_S):
                await self._metadata_shows(lambda: bool(self._metadata.topics) or not topics)
        except TimeoutError:
            log.info("[metadata] the controller has sent no topic, though ZooKeeper has: %s", ", ".join(topics))
        self._is_ready = True

    def _warn(self) -> None:
        log.warning(
            "[metadata] waiting for the controller, which has sent none: clients are not served until then. Does it reach this "
            "broker at %s? If not, correct advertised.listeners; `barnabas doctor` shows which broker is controller",
            self._address,
        )

    async def _metadata_shows(self, condition: Callable[[], bool]) -> None:
        shown = asyncio.Event()
        unsubscribe = self._metadata.subscribe(lambda change: shown.set() if condition() else None)
        try:
            if not condition():
                await _first_of(shown, self._stop)
        finally:
            unsubscribe()


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
