"""Look-ups of topics in ZooKeeper."""

from typing import cast

from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Stat
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.topic_lookup import count_partitions, partition_exists, topic_exists
from barnabas.broker.zookeeper_client.zk_errors import NoNode
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment, TopicAssignment

ID, OTHER = TopicId(bytes(range(16))), TopicId(bytes(range(1, 17)))


class BehindOthers:
    """A session with a server of an ensemble that has heard of no topic, until it has caught up."""

    def __init__(self, zk: ZooKeeperSession) -> None:
        self._zk = zk
        self._is_behind = True

    async def catch_up(self, path: str) -> None:
        self._is_behind = False
        await self._zk.catch_up(path)

    async def get(self, path: str) -> tuple[bytes | None, Stat]:
        if self._is_behind:
            raise NoNode(path)
        return await self._zk.get(path)


async def test_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_exists(zk: ZooKeeperSession) -> None:
    """What follows cannot be undone: its history is removed from the tier, and the markers of its transactions are dropped."""

    await create_top_level_paths(zk)
    data = TopicAssignment(ID, {0: ReplicaAssignment((1,)), 1: ReplicaAssignment((2,))}).encode()
    await zk.create(paths.topic("orders"), data)

    def behind() -> ZooKeeperSession:
        return cast(ZooKeeperSession, BehindOthers(zk))

    assert await topic_exists(behind(), "orders", ID)
    assert not await topic_exists(behind(), "orders", OTHER)
    assert await partition_exists(behind(), TopicPartition("orders", 1))
    assert not await partition_exists(behind(), TopicPartition("orders", 2))
    assert await count_partitions(behind(), "orders") == 2
    assert await count_partitions(behind(), "gone") == 0


async def test_there_is_no_topic_after_the_topics_znode_was_deleted(zk: ZooKeeperSession) -> None:
    assert not await topic_exists(zk, "orders", ID)
    assert await count_partitions(zk, "orders") == 0
