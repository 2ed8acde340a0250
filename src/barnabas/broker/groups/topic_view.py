"""The cluster's topics for group machines, from the broker's metadata cache."""

from collections.abc import Iterable

from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, TopicId
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange


class TopicView:
    """A `barnabas.broker.groups.group.Topics`. Owner: the event loop."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self.version = 1
        metadata.subscribe(self._changed)

    def _changed(self, change: MetadataChange) -> None:
        if change.topics or change.deleted or change.brokers_changed:
            self.version += 1

    def topic_id(self, name: str) -> bytes | None:
        topic_id = self._metadata.topic_id(name)
        return None if topic_id == ZERO_TOPIC_ID else topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._metadata.topic_name(TopicId(topic_id))

    def partition_count(self, name: str) -> int:
        return self._metadata.partition_count(name)

    def racks(self, name: str, partition: int) -> frozenset[str]:
        topic = self._metadata.topic(name)
        state = None if topic is None else topic.partitions.get(partition)
        if state is None:
            return frozenset()
        brokers = self._metadata.brokers
        racks = (brokers[BrokerId(replica)].rack for replica in state.replicas if BrokerId(replica) in brokers)
        return frozenset(rack for rack in racks if rack is not None)

    def names(self) -> Iterable[str]:
        return self._metadata.topics.keys()
