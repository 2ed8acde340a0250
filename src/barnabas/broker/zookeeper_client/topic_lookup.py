"""Looks topics up in ZooKeeper: the controller's updates to this broker may be behind."""

from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import NoNode
from barnabas.broker.zookeeper_client.znodes import TopicAssignment


async def _assignment(session: ZooKeeperSession, topic: str) -> TopicAssignment | None:
    """Return the topic's assignment; None: there is no such topic. At least as recent as what other brokers have announced.

    Raises a `BarnabasError` if ZooKeeper is unavailable, or the znode cannot be read.
    """
    try:
        await session.catch_up(paths.BROKER_TOPICS)
        data, _ = await session.get(paths.topic(topic))
    except NoNode:
        return None
    return TopicAssignment.decode(topic, data or b"")


async def partition_exists(session: ZooKeeperSession, partition: TopicPartition) -> bool:
    """Whether the partition exists. Raises as `_assignment`."""
    found = await _assignment(session, partition.topic)
    return found is not None and partition.partition in found.partitions


async def count_partitions(session: ZooKeeperSession, topic: str) -> int:
    """Return the number of partitions in ZooKeeper now; 0: there is no such topic. Raises as `_assignment`."""
    found = await _assignment(session, topic)
    return 0 if found is None else len(found.partitions)


async def topic_exists(session: ZooKeeperSession, topic: str, topic_id: TopicId) -> bool:
    """Whether the topic with this id exists, not another of the same name. Raises as `_assignment`."""
    found = await _assignment(session, topic)
    return found is not None and found.topic_id in (topic_id, None)
