"""Whether a partition exists, by ZooKeeper's word: what a broker has heard from the controller may be behind."""

from barnabas.coordination import paths
from barnabas.coordination.session import ZooKeeperSession
from barnabas.coordination.zk_errors import NoNode
from barnabas.coordination.znodes import TopicAssignment
from barnabas.core.ids import TopicPartition


async def partition_exists(session: ZooKeeperSession, partition: TopicPartition) -> bool:
    """Raises a `BarnabasError` where that cannot be told: ZooKeeper is away, or the znode cannot be read."""
    try:
        data, _ = await session.get(paths.topic(partition.topic))
    except NoNode:
        return False
    return partition.partition in TopicAssignment.decode(partition.topic, data or b"").partitions
