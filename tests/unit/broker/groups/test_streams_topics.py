"""How a topology is resolved against the topics that exist."""

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.streams_topics import StatusCode, configure
from barnabas.broker.groups.streams_topology import StreamsTopology, check_topic_names
from barnabas.wire.messages.streams_group_heartbeat import CopartitionGroup, Subtopology, Topology
from tests.unit.broker.groups.group_harness import FakeTopics
from tests.unit.broker.groups.streams_driver import topic


def topology(*subtopologies: Subtopology) -> StreamsTopology:
    for number, each in enumerate(subtopologies):
        each.subtopology_id = each.subtopology_id or str(number)
    found = StreamsTopology.of(Topology(subtopologies=list(subtopologies)))
    found.check()
    return found


def test_repartition_topic_follows_the_largest_input_of_the_subtopology_that_writes_it() -> None:
    chain = topology(
        Subtopology(repartition_source_topics=[topic("r2")], state_changelog_topics=[topic("c")]),
        Subtopology(repartition_source_topics=[topic("r1")], repartition_sink_topics=["r2"]),
        Subtopology(source_topics=["s", "t"], repartition_sink_topics=["r1"]),
    )
    configured = configure(chain, 0, FakeTopics({"s": 2, "t": 5}))
    assert configured.partitions == {"r1": 5, "r2": 5, "c": 5}
    assert configured.task_counts == {"0": 5, "1": 5, "2": 5}
    assert configured.problem is not None and configured.problem.status_code == StatusCode.MISSING_INTERNAL_TOPICS
    assert configured.problem.status_detail == "Internal topics are missing: c, r1, r2"
    assert configure(chain, 0, FakeTopics({"s": 2, "t": 5, "r1": 5, "r2": 5, "c": 5})).is_ready


def test_repartition_topic_keeps_the_number_that_the_user_chose() -> None:
    fixed = topology(
        Subtopology(source_topics=["t"], repartition_sink_topics=["r"]),
        Subtopology(repartition_source_topics=[topic("r", 7)], state_changelog_topics=[topic("c")]),
    )
    configured = configure(fixed, 0, FakeTopics({"t": 2}))
    assert configured.partitions == {"r": 7, "c": 7}
    assert configured.task_counts == {"0": 2, "1": 7}


def joined(**copartitioned: list[int]) -> StreamsTopology:
    return topology(
        Subtopology(source_topics=["big"], repartition_sink_topics=["r"]),
        Subtopology(
            source_topics=["left", "right"],
            repartition_source_topics=[topic("r"), topic("f", 3)],
            copartition_groups=[CopartitionGroup(**copartitioned)],
        ),
    )


TOPICS = {"big": 9, "left": 3, "right": 3, "f": 3}


def test_repartition_topic_gets_the_number_of_the_topic_with_which_it_is_joined() -> None:
    configured = configure(joined(source_topics=[0], repartition_source_topics=[0]), 0, FakeTopics(TOPICS))
    assert configured.partitions["r"] == 3


def test_repartition_topic_gets_the_number_of_the_fixed_one_with_which_it_is_joined() -> None:
    assert configure(joined(repartition_source_topics=[0, 1]), 0, FakeTopics(TOPICS)).partitions["r"] == 3


@pytest.mark.parametrize(
    ("groups", "topics", "detail"),
    [
        (
            {"source_topics": [0, 1]},
            {**TOPICS, "right": 4},
            "Following topics do not have the same number of partitions: [{left=3, right=4}]",
        ),
        (
            {"source_topics": [0], "repartition_source_topics": [1]},
            {**TOPICS, "left": 4},
            "Number of partitions [3] of repartition topic [f] doesn't match number of partitions [4] of the source topic.",
        ),
    ],
)
def test_topics_that_cannot_be_joined_are_reported(
    groups: dict[str, list[int]], topics: dict[str, int], detail: str
) -> None:
    problem = configure(joined(**groups), 0, FakeTopics(topics)).problem
    assert problem is not None
    assert (problem.status_code, problem.status_detail) == (StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_only_some_missing_topics_are_named() -> None:
    problem = configure(topology(Subtopology(source_topics=list("edcba"))), 0, FakeTopics()).problem
    assert problem is not None
    assert problem.status_detail == "Source topics a, b, c and 2 additional topics are missing."


@pytest.mark.parametrize(
    ("subtopologies", "reason"),
    [
        ([Subtopology()], "No source topics found"),
        (
            [Subtopology(source_topics=["t"], state_changelog_topics=[topic("c", 3)])],
            "must have an undefined partition",
        ),
        ([Subtopology(repartition_source_topics=[topic("r", -1)])], "has -1 partitions"),
        ([Subtopology(subtopology_id="x", source_topics=["t"])] * 2, "the same id"),
        (
            [Subtopology(source_topics=["t"], copartition_groups=[CopartitionGroup(source_topics=[1])])],
            "names a topic that the subtopology does not read",
        ),
        ([Subtopology(repartition_source_topics=[topic("r")])], "never used as a sink topic"),
        ([Subtopology(repartition_source_topics=[topic("r")], repartition_sink_topics=["r"])], "may be loops"),
        ([Subtopology(source_topics=["t"]) for _ in range(1_001)], "1001 subtopologies"),
        ([Subtopology(source_topics=["large"]) for _ in range(2)], "200000 tasks"),
    ],
)
def test_topology_that_no_application_can_have_is_refused(subtopologies: list[Subtopology], reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        configure(topology(*subtopologies), 0, FakeTopics({"t": 3, "large": 100_000}))
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


@pytest.mark.parametrize(
    ("name", "reason"), [("__consumer_offsets", "is prohibited"), ("a b", "not valid topic names")]
)
def test_names_that_no_topology_may_have_are_refused(name: str, reason: str) -> None:
    check_topic_names(["fine"])
    with pytest.raises(Refused, match=reason):
        check_topic_names(["fine", name])
