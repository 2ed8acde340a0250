"""The contents of a Metadata response as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

NO_TOPIC_ID: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        """As Kafka's tools print a node."""
        rack = f" rack: {self.rack}" if self.rack is not None else " rack: null"
        return f"{self.host}:{self.port} (id: {self.id}{rack})"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    #: -1 if there is no leader.
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes
    internal: bool
    #: Sorted by index.
    partitions: tuple[PartitionInfo, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Immutable: a refresh creates a new one."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = -1
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def with_topics(self, topics: Mapping[str, TopicInfo]) -> "ClusterImage":
        return replace(self, topics=topics)

    def topic_id(self, topic: str) -> bytes:
        """Return `NO_TOPIC_ID` if the topic is unknown, or the cluster has no ids."""
        info = self.topics.get(topic)
        return info.topic_id if info is not None else NO_TOPIC_ID

    def leader_of(self, partition: TopicPartition) -> int:
        """Return the leader's id; -1 if there is none, or none whose address is known."""
        info = self.partition(partition)
        return info.leader if info is not None and info.leader in self.brokers else -1

    def leader_epoch_of(self, partition: TopicPartition) -> int:
        """Return the leader epoch; -1 if it is unknown, and the broker then checks no epoch."""
        info = self.partition(partition)
        return info.leader_epoch if info is not None else -1

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(partition.topic)
        if topic is None:
            return None
        index, partitions = partition.partition, topic.partitions
        # The list is normally complete and sorted. An index avoids a search, which matters with thousands of partitions.
        if 0 <= index < len(partitions) and partitions[index].index == index:
            return partitions[index]
        return next((info for info in partitions if info.index == index), None)


class LeaderEpochs:
    """The latest leader epoch of each partition in a broker's metadata (KIP-320).

    A broker that is cut off from its cluster answers Metadata with old leaders, and may still believe that it is leader itself.
    A client that followed it would read from a log that is behind.
    """

    def __init__(self) -> None:
        #: By topic id (which is unique, unlike names) and partition.
        self._latest: dict[tuple[bytes, int], int] = {}

    def checked(self, image: ClusterImage, *, is_whole: bool) -> ClusterImage:
        """Return the image without outdated leaders. `is_whole`: it has all topics, so epochs of other topics are forgotten."""
        before, after = self._latest, {} if is_whole else self._latest
        topics: dict[str, TopicInfo] = {}
        for name, topic in image.topics.items():
            partitions = topic.partitions
            if topic.topic_id != NO_TOPIC_ID:
                keys = [(topic.topic_id, each.index) for each in partitions]
                known = [
                    max(before.get(key, -1), each.leader_epoch) for key, each in zip(keys, partitions, strict=True)
                ]
                after.update(zip(keys, known, strict=True))
                partitions = tuple(
                    each if each.leader_epoch == latest else replace(each, leader=-1)
                    for each, latest in zip(partitions, known, strict=True)
                )
            topics[name] = replace(topic, partitions=partitions)
        self._latest = after
        return image.with_topics(topics)


def image_of(response: MetadataResponse) -> ClusterImage:
    return ClusterImage(
        brokers={b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers},
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        topics={topic.name: _topic(topic.name, topic) for topic in response.topics if topic.name is not None},
    )


def _topic(name: str, topic: MetadataResponseTopic) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=name,
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions=tuple(
            PartitionInfo(
                index=p.partition_index,
                leader=p.leader_id,
                leader_epoch=p.leader_epoch,
                replicas=tuple(p.replica_nodes),
                isr=tuple(p.isr_nodes),
                offline=tuple(p.offline_replicas),
            )
            for p in partitions
        ),
        error=ErrorCode(topic.error_code),
    )
