"""The broker's copy of the cluster's metadata: live brokers, topics, leaders.

Owner: the event loop. Written by the controller's UpdateMetadata, and by what other brokers know while ZooKeeper is away
(`replication.lost_leadership`); read by any handler. Pure: no I/O, no clock.

A topic has a version that changes with it, and so has the set of live brokers: together they show whether an earlier encoded
response is still valid.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from barnabas.base.words import SECURITY_PROTOCOLS
from barnabas.broker.zookeeper_client.znodes import LEADER_DURING_DELETE, Endpoint
from barnabas.wire.messages.base import EncodedItems
from barnabas.wire.messages.metadata import MetadataResponsePartition
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)

#: One partition, as the controller described it. Readers must not change it.
PartitionMetadata = UpdateMetadataPartitionState

Listener = Callable[["MetadataChange"], None]


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A live broker."""

    id: BrokerId
    endpoints: Mapping[str, Endpoint]
    rack: str | None


@dataclass(slots=True)
class TopicImage:
    """A topic with at least one partition. Owner: the cache; others only read."""

    name: str
    #: All zeros if the controller sent none.
    id: TopicId
    partitions: dict[int, PartitionMetadata]
    #: Unique for each state of a topic, also across topics of the same name.
    version: int
    #: Partitions of the topic, encoded for (listener, version) of Metadata responses. Cleared when any of them may have
    #: changed.
    encoded: dict[tuple[str, int], EncodedItems[MetadataResponsePartition]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """The changes of one update."""

    #: Partitions whose topic is being deleted.
    deleted: tuple[TopicPartition, ...] = ()
    #: Topics with a new or changed partition.
    topics: frozenset[str] = field(default_factory=frozenset)
    brokers_changed: bool = False
    controller_changed: bool = False
    #: Ids of topics that are gone. A topic of the same name may exist, with another id.
    deleted_ids: frozenset[TopicId] = field(default_factory=frozenset)


class MetadataCache:
    def __init__(self) -> None:
        self._brokers: dict[BrokerId, BrokerImage] = {}
        self._topics: dict[str, TopicImage] = {}
        self._names: dict[TopicId, str] = {}
        self._controller_id: BrokerId | None = None
        self._version = 0
        #: Grows with every update, whatever it changes.
        self.changes = 0
        self._listeners: list[Listener] = []

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def controller_id(self) -> BrokerId | None:
        return self._controller_id

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerImage]:
        return MappingProxyType(self._brokers)

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        return MappingProxyType(self._topics)

    def topic(self, name: str) -> TopicImage | None:
        return self._topics.get(name)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def topic_id(self, name: str) -> TopicId:
        topic = self._topics.get(name)
        return topic.id if topic else ZERO_TOPIC_ID

    def partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        topic = self._topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions; 0 for an unknown topic."""
        image = self._topics.get(topic)
        return len(image.partitions) if image else 0

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionMetadata]]:
        for topic in self._topics.values():
            for number, state in topic.partitions.items():
                yield TopicPartition(topic.name, number), state

    def is_alive(self, broker_id: BrokerId) -> bool:
        return broker_id in self._brokers

    def rack_of(self, broker_id: BrokerId) -> str | None:
        """Return a broker's rack; None: it has no rack, or is not known to be alive."""
        image = self._brokers.get(broker_id)
        return image.rack if image is not None else None

    def endpoint(self, broker_id: BrokerId, listener: str) -> Endpoint | None:
        """Return the address of a live broker's listener."""
        broker = self._brokers.get(broker_id)
        return broker.endpoints.get(listener) if broker else None

    def alive_endpoints(self, listener: str) -> list[tuple[BrokerImage, Endpoint]]:
        """Return the live brokers that have this listener, sorted by id."""
        return [
            (broker, endpoint)
            for _, broker in sorted(self._brokers.items())
            if (endpoint := broker.endpoints.get(listener)) is not None
        ]

    def leader_error(self, leader: int, listener: str) -> ErrorCode:
        """Return the reason why a client on `listener` cannot reach a leader; NONE if it can."""
        broker = self._brokers.get(BrokerId(leader))
        if broker is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        if listener not in broker.endpoints:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.NONE

    def has_all_leaders(self, topic: str, partitions: Iterable[int]) -> bool:
        """Whether each of these partitions has a live leader, so that a new topic is ready to use."""
        image = self._topics.get(topic)
        if image is None:
            return False
        for number in partitions:
            state = image.partitions.get(number)
            if state is None or BrokerId(state.leader) not in self._brokers:
                return False
        return True

    # --- writing ------------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each update, on the loop; return a function that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def update(self, request: UpdateMetadataRequest) -> MetadataChange:
        """Apply an update of the controller. The caller has checked the controller's and the broker's epoch."""
        controller_id = BrokerId(request.controller_id) if request.controller_id >= 0 else None
        controller_changed = controller_id != self._controller_id
        self._controller_id = controller_id
        brokers_changed = self._replace_brokers(request.live_brokers)

        changed: set[str] = set()
        deleted: dict[TopicPartition, None] = {}
        gone: set[TopicId] = set()
        for name, topic_id, states in _topic_states(request):
            before = self._topics.get(name)
            id_before = ZERO_TOPIC_ID if before is None else before.id
            self._update_topic(name, topic_id, states, changed, deleted)
            if id_before not in (ZERO_TOPIC_ID, self.topic_id(name)):
                gone.add(id_before)

        change = MetadataChange(
            tuple(deleted), frozenset(changed), brokers_changed, controller_changed, frozenset(gone)
        )
        self._notify(change)
        return change

    def learn(self, topic: str, topic_id: TopicId, states: list[PartitionMetadata]) -> None:
        """Take newer states of partitions from another broker: the controller cannot reach this one."""
        changed: set[str] = set()
        self._update_topic(topic, topic_id, states, changed, {})
        self._notify(MetadataChange(topics=frozenset(changed)))

    def forget(self, topics: Iterable[str]) -> None:
        """Remove deleted topics whose deletion no controller has reported."""
        deleted: list[TopicPartition] = []
        gone: set[TopicId] = set()
        for name in topics:
            topic = self._topics.pop(name, None)
            if topic is not None:
                self._names.pop(topic.id, None)
                deleted += [TopicPartition(name, number) for number in topic.partitions]
                gone.add(topic.id)
        self._notify(MetadataChange(deleted=tuple(deleted), deleted_ids=frozenset(gone - {ZERO_TOPIC_ID})))

    def _notify(self, change: MetadataChange) -> None:
        self.changes += 1
        for listener in tuple(self._listeners):
            listener(change)

    def _replace_brokers(self, live: list[UpdateMetadataBroker]) -> bool:
        brokers = {BrokerId(broker.id): _broker_image(broker) for broker in live}
        if brokers == self._brokers:
            return False
        self._brokers = brokers
        for topic in self._topics.values():
            topic.encoded.clear()
        return True

    def _update_topic(
        self,
        name: str,
        topic_id: TopicId,
        states: list[PartitionMetadata],
        changed: set[str],
        deleted: dict[TopicPartition, None],
    ) -> None:
        self._version += 1
        topic = self._topics.get(name)
        if topic is not None and topic.id != topic_id and ZERO_TOPIC_ID not in (topic.id, topic_id):
            # Deleted and created again between two updates. The former topic may have had more partitions, which Kafka keeps.
            deleted.update(dict.fromkeys(TopicPartition(name, number) for number in topic.partitions))
            topic.partitions.clear()
        for state in states:
            partition = TopicPartition(name, state.partition_index)
            if state.leader == LEADER_DURING_DELETE:
                deleted[partition] = None
                if topic is not None:
                    topic.partitions.pop(state.partition_index, None)
                continue
            if topic is None:
                topic = self._topics[name] = TopicImage(name, ZERO_TOPIC_ID, {}, self._version)
            topic.partitions[state.partition_index] = state
            deleted.pop(partition, None)
            changed.add(name)
        if topic is None:
            return
        topic.version = self._version
        topic.encoded.clear()
        if topic.id != topic_id:
            self._names.pop(topic.id, None)
            topic.id = topic_id
        if not topic.partitions:
            del self._topics[name]
            self._names.pop(topic_id, None)
        elif topic_id != ZERO_TOPIC_ID:
            self._names[topic_id] = name


def _topic_states(request: UpdateMetadataRequest) -> Iterator[tuple[str, TopicId, list[PartitionMetadata]]]:
    for topic in request.topic_states:
        yield topic.topic_name, TopicId(topic.topic_id), topic.partition_states
    # Before version 5 partitions came one by one, each with the name of its topic.
    by_topic: dict[str, list[PartitionMetadata]] = {}
    for state in request.ungrouped_partition_states:
        by_topic.setdefault(state.topic_name, []).append(state)
    for name, states in by_topic.items():
        yield name, ZERO_TOPIC_ID, states


def _broker_image(broker: UpdateMetadataBroker) -> BrokerImage:
    endpoints = {
        each.listener: Endpoint(
            listener=each.listener,
            security_protocol=SECURITY_PROTOCOLS[each.security_protocol],
            host=each.host,
            port=each.port,
        )
        for each in broker.endpoints
    }
    return BrokerImage(BrokerId(broker.id), endpoints, broker.rack)
