"""The topology of a Kafka Streams application (KIP-1071): its subtopologies, and the topics that they read and write. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.topics import check_topic_name, is_internal
from barnabas.wire.messages import streams_group_heartbeat as asked
from barnabas.wire.messages import streams_group_records as written
from barnabas.wire.messages.streams_group_describe import KeyValue as DescribedSetting
from barnabas.wire.messages.streams_group_describe import Subtopology as DescribedSubtopology
from barnabas.wire.messages.streams_group_describe import TopicInfo as DescribedTopic

#: Subtopologies that a group may have: members choose them, and their order can make each need a look at all others.
SUBTOPOLOGIES_MAX: Final = 1_000


def invalid_topology(reason: str) -> Refused:
    return Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, reason)


@dataclass(frozen=True, slots=True)
class InternalTopicSpec:
    """A repartition or changelog topic, which the group coordinator creates."""

    name: str
    #: 0: follows from the topics that the topology reads.
    partitions: int
    #: 0: the default of the cluster.
    replication_factor: int
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, listed: asked.TopicInfo | written.TopicInfo) -> "InternalTopicSpec":
        settings = tuple((each.key, each.value) for each in listed.topic_configs)
        return cls(listed.name, listed.partitions, listed.replication_factor, settings)

    def record(self) -> written.TopicInfo:
        return written.TopicInfo(
            name=self.name,
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            topic_configs=[written.TopicConfig(key=key, value=value) for key, value in self.settings],
        )

    def describe(self, partitions: int) -> DescribedTopic:
        return DescribedTopic(
            name=self.name,
            partitions=partitions,
            replication_factor=self.replication_factor,
            topic_configs=[DescribedSetting(key=key, value=value) for key, value in self.settings],
        )


@dataclass(frozen=True, slots=True)
class CopartitionIndexes:
    """Topics that must have the same number of partitions, as positions in the lists of their subtopology."""

    sources: tuple[int, ...]
    repartition_sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subtopology:
    subtopology_id: str
    #: Topics of the user that the subtopology reads.
    sources: tuple[str, ...]
    changelogs: tuple[InternalTopicSpec, ...]
    #: Repartition topics that the subtopology writes.
    repartition_sinks: tuple[str, ...]
    #: Repartition topics that the subtopology reads.
    repartition_sources: tuple[InternalTopicSpec, ...]
    copartition: tuple[CopartitionIndexes, ...]

    @classmethod
    def of(cls, listed: asked.Subtopology | written.Subtopology) -> "Subtopology":
        return cls(
            listed.subtopology_id,
            tuple(listed.source_topics),
            tuple(InternalTopicSpec.of(each) for each in listed.state_changelog_topics),
            tuple(listed.repartition_sink_topics),
            tuple(InternalTopicSpec.of(each) for each in listed.repartition_source_topics),
            tuple(
                CopartitionIndexes(tuple(each.source_topics), tuple(each.repartition_source_topics))
                for each in listed.copartition_groups
            ),
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all topics that the subtopology reads."""
        return (*self.sources, *(each.name for each in self.repartition_sources))

    def copartition_groups(self) -> Iterable[frozenset[str]]:
        for each in self.copartition:
            yield frozenset(
                (
                    *(self.sources[index] for index in each.sources),
                    *(self.repartition_sources[index].name for index in each.repartition_sources),
                )
            )

    def check(self) -> None:
        """:raises Refused: if no application can have this subtopology."""
        for topic in self.changelogs:
            if topic.partitions != 0:
                raise invalid_topology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )
        for topic in self.repartition_sources:
            if topic.partitions < 0:
                raise invalid_topology(f"Repartition topic {topic.name} has {topic.partitions} partitions.")
        if not self.inputs:
            raise invalid_topology(f"No source topics found for subtopology {self.subtopology_id}")
        for each in self.copartition:
            for indexes, size in ((each.sources, self.sources), (each.repartition_sources, self.repartition_sources)):
                if any(not 0 <= index < len(size) for index in indexes):
                    raise invalid_topology(
                        f"A copartition group of subtopology {self.subtopology_id} names a topic that the subtopology does "
                        "not read."
                    )

    def record(self) -> written.Subtopology:
        return written.Subtopology(
            subtopology_id=self.subtopology_id,
            source_topics=list(self.sources),
            state_changelog_topics=[each.record() for each in self.changelogs],
            repartition_sink_topics=list(self.repartition_sinks),
            repartition_source_topics=[each.record() for each in self.repartition_sources],
            copartition_groups=[
                written.CopartitionGroup(
                    source_topics=list(each.sources), repartition_source_topics=list(each.repartition_sources)
                )
                for each in self.copartition
            ],
        )

    def describe(self, partitions: dict[str, int]) -> DescribedSubtopology:
        """`partitions`: the numbers that were decided for internal topics; others are described as the client set them."""

        def topics(listed: tuple[InternalTopicSpec, ...]) -> list[DescribedTopic]:
            return [
                each.describe(partitions.get(each.name, each.partitions))
                for each in sorted(listed, key=lambda each: each.name)
            ]

        return DescribedSubtopology(
            subtopology_id=self.subtopology_id,
            source_topics=sorted(self.sources),
            repartition_sink_topics=sorted(self.repartition_sinks),
            state_changelog_topics=topics(self.changelogs),
            repartition_source_topics=topics(self.repartition_sources),
        )


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    epoch: int
    #: In the order of their ids.
    subtopologies: tuple[Subtopology, ...]

    @classmethod
    def of(cls, listed: asked.Topology | written.StreamsGroupTopologyValue) -> "StreamsTopology":
        subtopologies = (Subtopology.of(each) for each in listed.subtopologies)
        return cls(listed.epoch, tuple(sorted(subtopologies, key=lambda each: each.subtopology_id)))

    def check(self) -> None:
        """:raises Refused: if no application can have this topology."""
        if self.epoch < 0:
            raise invalid_topology(f"The topology epoch is {self.epoch}, but must not be negative.")
        if len(self.subtopologies) > SUBTOPOLOGIES_MAX:
            raise invalid_topology(
                f"The topology has {len(self.subtopologies)} subtopologies, but a streams group has at most "
                f"{SUBTOPOLOGIES_MAX}."
            )
        ids = [each.subtopology_id for each in self.subtopologies]
        if len(set(ids)) < len(ids):
            raise invalid_topology("Two subtopologies have the same id.")
        for each in self.subtopologies:
            each.check()

    def record(self) -> written.StreamsGroupTopologyValue:
        return written.StreamsGroupTopologyValue(
            epoch=self.epoch, subtopologies=[each.record() for each in self.subtopologies]
        )

    def required_topics(self) -> frozenset[str]:
        """Return the topics that must exist before a task can run."""
        return frozenset(
            name
            for each in self.subtopologies
            for name in (*each.inputs, *(changelog.name for changelog in each.changelogs))
        )

    def readers(self) -> dict[str, str]:
        """Return the ids of subtopologies by the topics that they read."""
        return {name: each.subtopology_id for each in self.subtopologies for name in each.inputs}


def named_topics(topology: asked.Topology) -> list[str]:
    """Return all topics that a request names, each once."""
    return list(
        dict.fromkeys(
            name
            for each in topology.subtopologies
            for name in (
                *each.source_topics,
                *each.repartition_sink_topics,
                *(topic.name for topic in each.repartition_source_topics),
                *(topic.name for topic in each.state_changelog_topics),
            )
        )
    )


def check_topic_names(names: Iterable[str]) -> None:
    """:raises Refused: for an internal topic of Kafka, or a name that no topic can have."""
    names = list(names)
    if prohibited := [name for name in names if is_internal(name)]:
        raise invalid_topology(
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited."
        )
    if invalid := [name for name in names if not _is_valid(name)]:
        raise invalid_topology(f"Topic names {','.join(invalid)} are not valid topic names.")


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except Refused:
        return False
    return True
