"""Limits for replica moves (KIP-73): a rate on the brokers, and the throttled replicas on the topics."""

from collections.abc import Iterable, Mapping
from typing import Final

from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli import _reassign_plan as plan
from barnabas.client.admin import configs as admin
from barnabas.client.asynchronous import AsyncClient

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

_DELETE: Final[tuple[AlterOperation, str | None]] = (AlterOperation.DELETE, None)


async def limit_moves(cluster: AsyncClient, moving: Mapping[TopicPartition, plan.Move], bytes_per_s: int) -> None:
    for topic, (leaders, followers) in plan.topic_throttles(moving).items():
        await admin.alter_configs(
            cluster,
            ConfigResourceType.TOPIC,
            topic,
            {LEADER_REPLICAS: (AlterOperation.SET, leaders), FOLLOWER_REPLICAS: (AlterOperation.SET, followers)},
        )
    rate = (AlterOperation.SET, str(bytes_per_s))
    for broker in plan.moving_brokers(moving):
        await admin.alter_configs(
            cluster, ConfigResourceType.BROKER, str(broker), {LEADER_RATE: rate, FOLLOWER_RATE: rate}
        )


async def clear_brokers(cluster: AsyncClient, brokers: Iterable[int]) -> None:
    for broker in brokers:
        changes = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE, DIR_RATE), _DELETE)
        await admin.alter_configs(cluster, ConfigResourceType.BROKER, str(broker), changes)


async def clear_topics(cluster: AsyncClient, topics: Iterable[str]) -> None:
    for topic in topics:
        changes = dict.fromkeys((LEADER_REPLICAS, FOLLOWER_REPLICAS), _DELETE)
        await admin.alter_configs(cluster, ConfigResourceType.TOPIC, topic, changes)
