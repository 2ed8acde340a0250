"""Where a group or a transactional id lives."""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId
from barnabas.base.java_hash import partition_of
from barnabas.base.topics import NewInternalTopic
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.topic_lookup import count_partitions
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment, TopicAssignment
from tests.unit.broker.zookeeper_client.test_metadata_cache import ORDERS_ID, update
from tests.unit.broker.zookeeper_client.test_metadata_cache import partition as state

NAME = "__consumer_offsets"
GROUP = "chaos-group"


class Host:
    """A broker that would make the topic with 50 partitions."""

    def __init__(self, zk: ZooKeeperSession) -> None:
        self._zk = zk
        self.metadata = MetadataCache()
        self.tasks: list[asyncio.Task[None]] = []
        self.topic = InternalTopic(
            NAME,
            self.metadata,
            new=lambda: NewInternalTopic(50, 1, {}, "offsets.topic"),
            create=self._create,
            count=partial(count_partitions, zk),
            spawn=self._spawn,
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def _create(self, name: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> ErrorCode:
        await put_topic(self._zk, partitions)
        return ErrorCode.NONE

    def hear(self, *partitions: int) -> None:
        """From the controller."""
        self.metadata.update(update((NAME, ORDERS_ID, [state(number, 1) for number in partitions])))

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


async def put_topic(zk: ZooKeeperSession, partitions: int) -> None:
    assignment = {number: ReplicaAssignment((BrokerId(1),)) for number in range(partitions)}
    await zk.create(paths.topic(NAME), TopicAssignment(ORDERS_ID, assignment).encode())


def place(partitions: int) -> int:
    return partition_of(GROUP, partitions)


async def test_group_keeps_its_partition_while_the_controller_has_announced_only_some(zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    await put_topic(zk, 6)
    host = Host(zk)
    await host.topic.look()
    assert host.topic.partition_for(GROUP) == place(6)
    host.hear(0)
    assert host.topic.partition_for(GROUP) == place(6), "one partition was announced, and there are six"
    host.hear(0, 1, 2, 3, 4, 5)
    await host.settle()
    assert host.topic.partition_for(GROUP) == place(6)
    assert not host.tasks, "there was nothing to ask"


async def test_coordinator_is_unknown_until_the_partitions_of_a_new_topic_are_counted(zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    host = Host(zk)
    await host.topic.look()
    assert host.topic.partition_for(GROUP) == place(50), "where it will live, as far as this broker knows"
    await put_topic(zk, 6)  # by another broker, whose setting is another one
    host.hear(0)
    assert host.topic.coordinator_of(GROUP) is None
    with pytest.raises(Refused) as refusal:
        host.topic.partition_for(GROUP)
    assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await host.settle()
    assert host.topic.partition_for(GROUP) == place(6)


async def test_topic_that_this_broker_makes_has_its_partitions_counted_at_once(zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    host = Host(zk)
    assert await host.topic.ensure()
    assert host.topic.partitions == 50


async def test_partitions_that_are_added_count_and_those_of_a_deleted_topic_do_not(zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    await put_topic(zk, 2)
    host = Host(zk)
    await host.topic.look()
    await zk.delete(paths.topic(NAME))
    await put_topic(zk, 6)
    host.hear(0, 1, 2)
    await host.settle()
    assert host.topic.partitions == 6
    host.metadata.forget([NAME])
    assert host.topic.partition_for(GROUP) == place(50)
