"""Topics that were deleted while no controller could reach a broker."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.deleted_topics import DeletedTopics
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from tests.unit.broker.zookeeper_client.test_metadata_cache import ORDERS_ID, OTHER_ID, partition, update


class Hearing:
    """A broker's image of the cluster, which knows `orders` and `gone`; ZooKeeper has `orders` alone."""

    def __init__(self, zk: ZooKeeperSession) -> None:
        self.epochs = (1, 100)
        self.cache = MetadataCache()
        self.changes: list[MetadataChange] = []
        self.looks: list[asyncio.Task[None]] = []
        self.topics = DeletedTopics(zk, self.cache, epochs=lambda: self.epochs, spawn=self._spawn)
        self.cache.update(update(("orders", ORDERS_ID, [partition(0, 1)]), ("gone", OTHER_ID, [partition(0, 1)])))
        self.cache.subscribe(self.changes.append)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        self.looks.append(asyncio.get_running_loop().create_task(work))
        return self.looks[-1]

    async def hear(self, epochs: tuple[int, int]) -> None:
        """From a controller that knows only what there is."""
        self.epochs = epochs
        self.cache.update(update(("orders", ORDERS_ID, [partition(0, 1)])))
        await asyncio.gather(*self.looks)

    @property
    def known(self) -> list[str]:
        return sorted(self.cache.topics)


async def topics_in(zk: ZooKeeperSession, *topics: str) -> None:
    await create_top_level_paths(zk)
    for topic in topics:
        await zk.create(paths.topic(topic))


async def test_broker_that_returns_forgets_topics_that_were_deleted_meanwhile(zk: ZooKeeperSession) -> None:
    await topics_in(zk, "orders")
    cluster = Hearing(zk)
    await cluster.hear((1, 200))
    assert cluster.known == ["orders"]
    assert cluster.cache.topic_name(OTHER_ID) is None
    assert cluster.changes[-1] == MetadataChange(
        deleted=(TopicPartition("gone", 0),), deleted_ids=frozenset({OTHER_ID})
    )


async def test_broker_looks_again_when_another_controller_speaks_and_not_each_time(zk: ZooKeeperSession) -> None:
    await topics_in(zk, "orders")
    cluster = Hearing(zk)
    await cluster.hear((1, 100))
    assert cluster.known == ["gone", "orders"], "the controller that announced it also reports its deletion"
    await cluster.hear((2, 100))
    assert cluster.known == ["orders"]
    await cluster.hear((2, 100))
    assert len(cluster.looks) == 1


async def test_topic_that_was_made_again_meanwhile_stays(zk: ZooKeeperSession) -> None:
    await topics_in(zk, "orders")
    cluster = Hearing(zk)
    hearing = asyncio.ensure_future(cluster.hear((1, 200)))
    for _ in range(2):
        await asyncio.sleep(0)  # ZooKeeper has been asked
    new = TopicId(bytes(range(2, 18)))
    cluster.cache.update(update(("gone", new, [partition(0, 2)])))
    await hearing
    assert cluster.known == ["gone", "orders"]
    assert cluster.cache.topic_id("gone") == new


async def test_session_that_ends_meanwhile_forgets_nothing_and_ends_nothing(zk: ZooKeeperSession) -> None:
    await topics_in(zk, "orders")
    cluster = Hearing(zk)
    await zk.stop()
    await cluster.hear((1, 200))
    assert cluster.known == ["gone", "orders"]


async def test_deletion_of_the_topics_znode_ends_no_broker(zk: ZooKeeperSession) -> None:
    await topics_in(zk)
    await zk.delete(paths.BROKER_TOPICS)
    cluster = Hearing(zk)
    await cluster.hear((1, 200))
    assert cluster.known == ["gone", "orders"]


class BehindOthers:
    """A session with a server of an ensemble that has not heard of `orders`, until it has caught up."""

    def __init__(self, zk: ZooKeeperSession) -> None:
        self._zk = zk
        self._is_behind = True

    async def catch_up(self, path: str) -> None:
        self._is_behind = False

    async def children(self, path: str) -> tuple[str, ...]:
        return tuple(each for each in await self._zk.children(path) if each != "orders" or not self._is_behind)


async def test_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_stays(zk: ZooKeeperSession) -> None:
    await topics_in(zk, "orders")
    cluster = Hearing(cast(ZooKeeperSession, BehindOthers(zk)))
    await cluster.hear((2, 100))
    assert cluster.known == ["orders"]
