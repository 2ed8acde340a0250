"""The topics whose share partitions have a state at the share coordinators, as the record `ShareGroupStatePartitionMetadata`
lists them. Pure.

The state of a share partition is created before a member gets the partition, and deleted with the group, with the group's
offsets for the topic, or with the topic. The record says how far each is, so that another coordinator can go on.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from barnabas.broker.groups import records
from barnabas.broker.groups.records import Partitions
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages import share_group_records as written


class StatePartitions(NamedTuple):
    """Share partitions of one topic."""

    topic: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class StateTopics:
    """The keys are topic ids. A set of partitions is never empty."""

    #: The share coordinators were asked to create these states.
    initializing: Mapping[bytes, StatePartitions] = field(default_factory=dict)
    #: The share coordinators have confirmed these states. Members may be assigned these partitions.
    initialized: Mapping[bytes, StatePartitions] = field(default_factory=dict)
    #: Names of topics whose states the share coordinators were asked to delete.
    deleting: Mapping[bytes, str] = field(default_factory=dict)

    def initialized_partitions(self, topic_id: bytes) -> frozenset[int]:
        found = self.initialized.get(topic_id)
        return frozenset() if found is None else found.partitions

    def known_partitions(self, topic_id: bytes) -> frozenset[int]:
        """Return the partitions that have a state, or may have one because a share coordinator was asked."""
        asked = self.initializing.get(topic_id)
        return self.initialized_partitions(topic_id) | (frozenset() if asked is None else asked.partitions)

    @property
    def topic_ids(self) -> frozenset[bytes]:
        return frozenset((*self.initializing, *self.initialized, *self.deleting))

    # -- changes ------------------------------------------------------------------------------------------------------

    def begin(self, wanted: Mapping[bytes, StatePartitions]) -> "StateTopics":
        """The states are about to be created, or set back. A topic that is created is no longer deleted."""
        return replace(
            self,
            initializing=_joined(self.initializing, wanted),
            deleting={topic_id: name for topic_id, name in self.deleting.items() if topic_id not in wanted},
        )

    def created(self, confirmed: Partitions) -> "StateTopics":
        """The share coordinators have these states. Partitions that are not initializing are ignored: they were deleted
        meanwhile."""
        finished = {
            topic_id: StatePartitions(asked.topic, asked.partitions & confirmed[topic_id])
            for topic_id, asked in self.initializing.items()
            if asked.partitions & confirmed.get(topic_id, frozenset())
        }
        return replace(
            self,
            initializing=_without(self.initializing, confirmed),
            initialized=_joined(self.initialized, finished),
        )

    def failed(self, partitions: Partitions) -> "StateTopics":
        """These states were not created. A later heartbeat asks again."""
        return replace(self, initializing=_without(self.initializing, partitions))

    def begin_delete(self, topics: Mapping[bytes, str]) -> "StateTopics":
        return StateTopics(
            initializing={key: each for key, each in self.initializing.items() if key not in topics},
            initialized={key: each for key, each in self.initialized.items() if key not in topics},
            deleting={**self.deleting, **topics},
        )

    def forget(self, topic_ids: Collection[bytes]) -> "StateTopics":
        """The states are deleted, or the topics are."""
        return StateTopics(
            initializing={key: each for key, each in self.initializing.items() if key not in topic_ids},
            initialized={key: each for key, each in self.initialized.items() if key not in topic_ids},
            deleting={key: name for key, name in self.deleting.items() if key not in topic_ids},
        )

    # -- the record ---------------------------------------------------------------------------------------------------

    def record(self, group_id: str) -> KeyValue:
        value = written.ShareGroupStatePartitionMetadataValue(
            initializing_topics=_listed(self.initializing),
            initialized_topics=_listed(self.initialized),
            deleting_topics=[
                written.TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in self.deleting.items()
            ],
        )
        return records.share_state_topics(group_id, value)

    @classmethod
    def of_record(cls, value: written.ShareGroupStatePartitionMetadataValue) -> "StateTopics":
        return cls(
            initializing=_read(value.initializing_topics),
            initialized=_read(value.initialized_topics),
            deleting={each.topic_id: each.topic_name for each in value.deleting_topics},
        )


NO_STATES: Final = StateTopics()


def _joined(
    first: Mapping[bytes, StatePartitions], second: Mapping[bytes, StatePartitions]
) -> dict[bytes, StatePartitions]:
    joined = dict(first)
    for topic_id, (topic, partitions) in second.items():
        before = joined.get(topic_id)
        joined[topic_id] = StatePartitions(topic, partitions if before is None else partitions | before.partitions)
    return joined


def _without(states: Mapping[bytes, StatePartitions], gone: Partitions) -> dict[bytes, StatePartitions]:
    remaining = {
        topic_id: StatePartitions(topic, partitions - gone.get(topic_id, frozenset()))
        for topic_id, (topic, partitions) in states.items()
    }
    return {topic_id: each for topic_id, each in remaining.items() if each.partitions}


def _listed(states: Mapping[bytes, StatePartitions]) -> list[written.TopicPartitionsInfo]:
    return [
        written.TopicPartitionsInfo(topic_id=topic_id, topic_name=topic, partitions=sorted(partitions))
        for topic_id, (topic, partitions) in states.items()
    ]


def _read(listed: Iterable[written.TopicPartitionsInfo]) -> dict[bytes, StatePartitions]:
    return {
        each.topic_id: StatePartitions(each.topic_name, frozenset(each.partitions))
        for each in listed
        if each.partitions
    }
