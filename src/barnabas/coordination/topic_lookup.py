"""Whether a partition or a topic exists, by ZooKeeper's word: what a broker has heard from the controller may be behind."""

from barnabas.coordination import paths
from barnabas.coordination.session import ZooKeeperSession
from barnabas.coordination.zk_errors import NoNode
from barnabas.coordination.znodes import TopicAssignment
from barnabas.core.ids import TopicId, TopicPartition


async def partition_exists(session: ZooKeeperSession, partition: TopicPartition) -> bool:
    """Raises a `BarnabasError` where that cannot be told: ZooKeeper is away, or the znode cannot be read."""
    try:
        data, _ = await session.get(paths.topic(partition.topic))
    except NoNode:
        return False
    return partition.partition in TopicAssignment.decode(partition.topic, data or b"").partitions


async def count_partitions(session: ZooKeeperSession, topic: str) -> int:
    """Of the topic as it is in ZooKeeper now; 0: there is none. Raises a `BarnabasError` where that cannot be told."""
    try:
        await session.catch_up(paths.BROKER_TOPICS)
        data, _ = await session.get(paths.topic(topic))
    except NoNode:
        return 0
    return len(TopicAssignment.decode(topic, data or b"").partitions)


async def topic_exists(session: ZooKeeperSession, topic: str, topic_id: TopicId) -> bool:
    """This one, not another of the same name. Raises a `BarnabasError` where that cannot be told."""
    try:
        data, _ = await session.get(paths.topic(topic))
    except NoNode:
        return False
    return TopicAssignment.decode(topic, data or b"").topic_id in (topic_id, None)
