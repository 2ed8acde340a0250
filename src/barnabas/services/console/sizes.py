"""Disk space of topics on the brokers."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from barnabas.base.ids import TopicPartition
from barnabas.client.admin.partitions import describe_log_dirs
from barnabas.client.errors import ClientError
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsResult

if TYPE_CHECKING:
    from barnabas.services.console.cluster import ConsoleCluster

#: By replica: broker and partition.
ReplicaSizes = Mapping[tuple[int, TopicPartition], int]


async def replica_sizes(cluster: "ConsoleCluster", partitions: Iterable[TopicPartition] | None) -> ReplicaSizes:
    """Return sizes of these partitions, or of all. Brokers that do not answer, or refuse, are left out."""
    wanted = None if partitions is None else list(partitions)

    async def ask(broker_id: int) -> list[DescribeLogDirsResult]:
        return await describe_log_dirs(cluster.client, broker_id, wanted)

    sizes: dict[tuple[int, TopicPartition], int] = {}
    for broker_id, answer in (await cluster.on_brokers(ask)).items():
        if isinstance(answer, ClientError):
            continue
        for directory in answer:
            for topic in directory.topics:
                for part in topic.partitions:
                    if not part.is_future_key:
                        sizes[broker_id, TopicPartition(topic.name, part.partition_index)] = part.partition_size
    return sizes


async def topic_sizes(cluster: "ConsoleCluster") -> Mapping[str, int]:
    """Return the total size of all replicas of each topic."""

    async def ask() -> Mapping[str, int]:
        totals: dict[str, int] = {}
        for (_, partition), size in (await replica_sizes(cluster, None)).items():
            totals[partition.topic] = totals.get(partition.topic, 0) + size
        return totals

    max_age_s = max(5.0, cluster.paced_s(cluster.partitions, 60.0))
    return await cluster.kept("topic sizes", max_age_s, ask, paced_s=30.0)
