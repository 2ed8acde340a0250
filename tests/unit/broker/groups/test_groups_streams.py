"""Streams groups: members, epochs, tasks, internal topics, and what other requests see of them."""

from typing import Any

import pytest

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.classic_group import ClassicGroup
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.streams_group import StreamsGroupState, TaskState
from barnabas.broker.groups.streams_tasks import TaskId
from barnabas.broker.groups.streams_topics import StatusCode
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from barnabas.wire.messages.streams_group_heartbeat import (
    KeyValue,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskOffset,
    Topology,
)
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness
from tests.unit.broker.groups.streams_driver import (
    AT_ONCE,
    StreamsClient,
    answer_controller,
    listed,
    send,
    settle,
    streams_group,
    topic,
    word_count,
)

ALL = {("0", 0), ("0", 1), ("1", 0), ("1", 1)}


@pytest.fixture
def h() -> Harness:
    harness = Harness(topics=FakeTopics({"t": 2}))
    harness.group_configs[GROUP] = AT_ONCE
    return harness


# -- members -----------------------------------------------------------------------------------------------------------


def test_first_member_brings_the_topology_and_gets_tasks_once_the_internal_topics_exist(h: Harness) -> None:
    member = StreamsClient(h, "a")
    first = member.poll()
    assert (first.member_id, first.heartbeat_interval_ms, first.active_tasks) == ("a", 5_000, [])
    assert member.statuses == {StatusCode.MISSING_INTERNAL_TOPICS: "Internal topics are missing: c, r"}
    assert streams_group(h).state is StreamsGroupState.NOT_READY
    assert answer_controller(h) == ["c", "r"]
    assert h.topics.counts == {"t": 2, "r": 2, "c": 2}
    member.poll()
    assert (member.active, member.statuses) == (ALL, {})
    assert streams_group(h).state is StreamsGroupState.STABLE
    assert member.poll().active_tasks is None, "nothing has changed"


def test_internal_topics_are_asked_for_with_the_settings_of_the_topology(h: Harness) -> None:
    StreamsClient(h, "a").poll()
    [message] = h.sent
    asked = {each.name: (each.partitions, each.replication_factor, dict(each.settings)) for each in message.topics}  # type: ignore[attr-defined]
    assert asked == {"r": (2, -1, {"cleanup.policy": "delete"}), "c": (2, -1, {"cleanup.policy": "compact"})}


def test_second_member_gets_tasks_only_after_the_first_has_given_them_up(h: Harness) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a)
    a.is_stuck = True
    b.poll()
    assert b.active == set(), "the first member still has all tasks"
    a.poll()
    assert streams_group(h).members["a"].state is TaskState.UNREVOKED_TASKS
    b.poll()
    assert b.active == set()
    a.is_stuck = False
    a.active = {(each.subtopology, each.partition) for each in streams_group(h).members["a"].assigned.active}
    settle(a, b)
    assert a.active | b.active == ALL
    assert len(a.active) == len(b.active) == 2


def test_members_leave_with_a_heartbeat_or_by_silence(h: Harness) -> None:
    a, b, c = (StreamsClient(h, name) for name in "abc")
    settle(a, b, c)
    c.leave()
    settle(a, b)
    assert a.active | b.active == ALL
    h.advance(44_000)
    settle(b)
    h.advance(2_000)
    assert set(streams_group(h).members) == {"b"}
    settle(b)
    assert b.active == ALL
    assert a.poll_refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_keeps_a_task_past_its_rebalance_timeout_is_removed(h: Harness) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a)
    a.is_stuck = True
    for _ in range(14):
        b.poll()
        a.poll_refused()
        h.advance(5_000)
    assert set(streams_group(h).members) == {"b"}
    settle(b)
    assert b.active == ALL


def test_session_and_rebalance_are_watched_by_a_new_coordinator(h: Harness) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a)
    b.poll()
    a.is_stuck = True
    a.poll()
    h.fail_over()
    for _ in range(13):
        b.poll()
        a.poll_refused()
        h.advance(5_000)
    assert set(streams_group(h).members) == {"b"}
    h.advance(46_000)
    assert not streams_group(h).members


def test_settings_of_the_group_apply_to_running_members(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    h.group_configs[GROUP] = GroupConfig(streams_session_timeout_ms=50_000, streams_heartbeat_interval_ms=7_000)
    assert member.poll().heartbeat_interval_ms == 7_000
    h.advance(49_000)
    assert streams_group(h).members
    h.advance(1_000)
    assert not streams_group(h).members


def test_lost_answer_is_sent_again_with_the_tasks(h: Harness) -> None:
    member = StreamsClient(h, "a")
    member.poll()
    answer_controller(h)
    epoch = member.epoch
    member.poll()
    member.epoch, member.active = epoch, set()  # the answer did not arrive
    assert member.poll().member_epoch == epoch + 1
    assert member.active == ALL


def test_member_that_starts_over_keeps_its_tasks(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    epoch = member.epoch
    member.restart()
    member.poll()
    assert (member.epoch, member.active) == (epoch, ALL)


@pytest.mark.parametrize("epoch", [70, 1])
def test_member_with_a_wrong_epoch_is_fenced_and_may_start_over(h: Harness, epoch: int) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a, b)
    b.leave()
    settle(a)
    a.epoch = epoch
    assert a.poll_refused() is ErrorCode.FENCED_MEMBER_EPOCH
    a.restart()
    settle(a)
    assert a.active == ALL


def test_group_has_a_largest_size(h: Harness) -> None:
    h.settings = GroupSettings(streams_max_size=1)
    a = StreamsClient(h, "a")
    settle(a)
    assert StreamsClient(h, "b").poll_refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    a.restart()
    assert a.poll_refused() is ErrorCode.NONE


def test_new_group_waits_for_more_members_before_the_first_assignment(h: Harness) -> None:
    h.group_configs[GROUP] = GroupConfig(streams_initial_rebalance_delay_ms=3_000)
    h.topics.counts.update(r=2, c=2)
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    a.poll()
    h.advance(2_900)
    b.poll()
    assert StatusCode.ASSIGNMENT_DELAYED in a.statuses.keys() & b.statuses.keys()
    assert not a.active | b.active
    h.advance(200)
    assert streams_group(h).target_epoch == streams_group(h).group_epoch, "the timer computes the assignment"
    epoch = streams_group(h).target_epoch
    settle(a, b)
    assert len(a.active) == len(b.active) == 2
    assert streams_group(h).target_epoch == epoch


def test_assignments_of_a_group_have_a_distance(h: Harness) -> None:
    h.group_configs[GROUP] = GroupConfig(streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=1_000)
    h.topics.counts.update(r=2, c=2)
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a)
    b.poll()
    assert b.statuses == {
        StatusCode.ASSIGNMENT_DELAYED: "Assignment delayed due to the configured assignment interval."
    }
    assert a.active == ALL
    h.advance(1_000)
    settle(a, b)
    assert len(b.active) == 2


def test_standbys_run_in_other_processes_and_follow_the_setting(h: Harness) -> None:
    a1, a2, b1 = StreamsClient(h, "a1", "a"), StreamsClient(h, "a2", "a"), StreamsClient(h, "b1", "b")
    settle(a1, a2, b1)
    assert not a1.standby | a2.standby | b1.standby
    h.group_configs[GROUP] = GroupConfig(
        streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0, streams_num_standby_replicas=1
    )
    settle(a1, a2, b1)
    assert a1.standby | a2.standby | b1.standby == {("1", 0), ("1", 1)}, "only tasks with state have standbys"
    assert not (a1.active | a2.active) & (a1.standby | a2.standby)
    assert not b1.active & b1.standby
    h.machine.groups[GROUP].validate()  # type: ignore[attr-defined]


def test_standby_takes_over_the_task_of_a_member_that_is_gone(h: Harness) -> None:
    h.group_configs[GROUP] = GroupConfig(
        streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0, streams_num_standby_replicas=1
    )
    h.topics.set("t", 3)
    counting = Subtopology(subtopology_id="0", source_topics=["t"], state_changelog_topics=[topic("c")])
    clients = [StreamsClient(h, name, topology=Topology(subtopologies=[counting])) for name in "abc"]
    settle(*clients)
    gone = next(each for each in clients if ("0", 0) in each.active)
    heir = next(each for each in clients if ("0", 0) in each.standby)
    gone.leave()
    settle(*(each for each in clients if each is not gone))
    assert ("0", 0) in heir.active


# -- topology and topics ----------------------------------------------------------------------------------------------


def test_members_must_have_the_topology_of_the_group(h: Harness) -> None:
    settle(StreamsClient(h, "a"))
    changed = word_count()
    changed.subtopologies.append(Subtopology(subtopology_id="2", source_topics=["t"]))
    with pytest.raises(Refused, match=r"Topology updates are not supported yet\.") as refused:
        StreamsClient(h, "b", topology=changed).poll()
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_member_with_an_earlier_topology_is_told_so_and_gets_tasks(h: Harness) -> None:
    a, b = StreamsClient(h, "a", topology=word_count(epoch=2)), StreamsClient(h, "b", topology=word_count(epoch=1))
    settle(a, b)
    detail = "The member's topology epoch 1 is behind the group's topology epoch 2."
    assert b.statuses == {StatusCode.STALE_TOPOLOGY: detail}
    assert b.active
    assert a.statuses == {}


def test_missing_source_topic_is_reported_until_it_exists(h: Harness) -> None:
    h.topics.set("t", 0)
    member = StreamsClient(h, "a")
    settle(member)
    assert member.statuses == {StatusCode.MISSING_SOURCE_TOPICS: "Source topics t are missing."}
    h.topics.set("t", 3)
    settle(member)
    assert (member.statuses, len(member.active)) == ({}, 6)


def test_deleted_source_topic_stops_the_tasks(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    h.topics.set("t", 0)
    settle(member)
    assert (member.active, list(member.statuses)) == (set(), [StatusCode.MISSING_SOURCE_TOPICS])


def test_internal_topic_with_another_number_of_partitions_is_reported(h: Harness) -> None:
    h.topics.set("c", 5)
    member = StreamsClient(h, "a")
    settle(member)
    detail = "Existing topic c has different number of partitions: expected 2, found 5"
    assert member.statuses == {StatusCode.INCORRECTLY_PARTITIONED_TOPICS: detail}
    assert not h.sent, "no topic is created"


def test_reason_of_the_controller_reaches_the_members_and_the_creation_is_tried_again(h: Harness) -> None:
    member = StreamsClient(h, "a")
    member.poll()
    answer_controller(h, c="too few brokers")
    member.poll()
    detail = "Internal topics are missing: c; Creation failed: c (too few brokers)."
    assert member.statuses == {StatusCode.MISSING_INTERNAL_TOPICS: detail}
    assert not h.sent, "the error is not 10 s old"
    h.advance(10_000)
    member.poll()
    assert answer_controller(h) == ["c"]
    settle(member)
    assert member.active == ALL


def test_topics_that_the_member_may_not_create_are_not_created(h: Harness) -> None:
    member = StreamsClient(h, "a")
    member.poll(forbidden=("c",))
    detail = "Internal topics are missing: c, r; Unauthorized to CREATE on topics c."
    assert member.statuses == {StatusCode.MISSING_INTERNAL_TOPICS: detail}
    assert not h.sent


def test_controller_is_not_asked_twice_at_the_same_time(h: Harness) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    a.poll()
    b.poll()
    a.poll()
    assert len(h.sent) == 1


# -- endpoints and the end ---------------------------------------------------------------------------------------------


def test_members_learn_which_instance_has_which_partitions(h: Harness) -> None:
    a = StreamsClient(h, "a", endpoint=("host-a", 81))
    b = StreamsClient(h, "b", endpoint=("host-b", 82))
    settle(a, b)
    a.endpoint_epoch = -1
    shown = a.poll().partitions_by_user_endpoint
    assert shown is not None
    places = {(each.user_endpoint.host, each.user_endpoint.port) for each in shown}
    assert places == {("host-a", 81), ("host-b", 82)}
    found = sorted(
        (part.topic, number) for each in shown for part in each.active_partitions for number in part.partitions
    )
    assert found == [("r", 0), ("r", 1), ("t", 0), ("t", 1)]
    assert a.poll().partitions_by_user_endpoint is None, "the member knows this epoch"


def test_request_to_stop_the_application_reaches_all_members_until_they_have_left(h: Harness) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a, b)
    a.leave(shutdown_application=True)
    b.poll()
    assert "member a encountered a fatal error" in b.statuses[StatusCode.SHUTDOWN_APPLICATION]
    b.leave()
    settle(b)
    assert b.statuses == {}


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"task_offsets": [TaskOffset()]}, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": []}, "TaskEndOffsets are not supported yet."),
        ({"warmup_tasks": listed({("0", 0)})}, "WarmupTasks are not supported yet."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"active_tasks": listed({("0", 0)})}, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": listed({("0", 0)})}, "StandbyTasks must be empty when (re-)joining."),
        ({"active_tasks": None}, "If one task-type is non-null, all must be non-null."),
        ({"member_epoch": 1}, "Topology can only be provided when (re-)joining."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (
            {"topology": Topology(subtopologies=[Subtopology(subtopology_id="0", source_topic_regex=["t.*"])])},
            "Regular expressions for source topics are not supported yet.",
        ),
    ],
)
def test_requests_that_no_client_may_send_are_refused(h: Harness, fields: dict[str, Any], reason: str) -> None:
    valid: dict[str, Any] = {
        "member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 60_000, "topology": word_count(),
        "active_tasks": [], "standby_tasks": [], "warmup_tasks": [],
    }  # fmt: skip
    with pytest.raises(Refused) as refused:
        send(h, **{**valid, **fields})
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, reason)
    assert not h.machine.groups


def test_tasks_that_the_topology_does_not_have_are_refused(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    for task in (("7", 0), ("0", 2), ("0", -1)):
        member.active = ALL | {task}
        assert member.poll_refused() is ErrorCode.INVALID_REQUEST


def test_heartbeat_to_a_group_of_another_kind_is_refused(h: Harness) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="a", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    h.ask(lambda machine: machine.consumer_heartbeat(request, Requester("c", "/h", 1), h.now_ms))
    assert StreamsClient(h, "a").poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND
    assert StreamsClient(h, "a", group_id="other", epoch=3).poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND


def test_members_of_other_protocols_are_refused_by_a_streams_group(h: Harness) -> None:
    settle(StreamsClient(h, "a"))
    assert h.join_error(h.send_join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="b", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    with pytest.raises(Refused, match="is not a consumer group"):
        h.ask(lambda machine: machine.consumer_heartbeat(request, Requester("c", "/h", 1), h.now_ms))


# -- offsets -----------------------------------------------------------------------------------------------------------


def commit(h: Harness, member_id: str, epoch: int, name: str = "t", partition: int = 0, version: int = 9) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=7)],
            )
        ],
    )
    try:
        answer = h.ask(lambda machine: machine.commit_offsets(request, api_version=version, now_ms=h.now_ms))
    except Refused as refusal:
        return refusal.code
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_commits_with_an_earlier_epoch_are_accepted_for_tasks_that_the_member_has_had_since_then(h: Harness) -> None:
    a, b = StreamsClient(h, "a"), StreamsClient(h, "b")
    settle(a)
    before = a.epoch
    settle(a, b)
    kept = next(number for subtopology, number in a.active if subtopology == "0")
    assert a.epoch > before
    assert commit(h, "a", a.epoch, partition=kept) is ErrorCode.NONE
    assert commit(h, "a", before, partition=kept) is ErrorCode.NONE
    assert commit(h, "a", before - 1, partition=kept) is ErrorCode.STALE_MEMBER_EPOCH, "it did not have the task then"
    assert commit(h, "a", before, partition=1 - kept) is ErrorCode.STALE_MEMBER_EPOCH, "the task has moved"
    assert commit(h, "a", before, name="other") is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(h, "a", a.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(h, "x", a.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(h, "a", a.epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(h, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID, "an administrator must wait until the group is empty"


def test_offsets_are_fetched_by_members_of_the_present_epoch_and_by_administrators(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    assert commit(h, "a", member.epoch) is ErrorCode.NONE

    def fetch(member_id: str | None, epoch: int) -> tuple[int, int]:
        request = OffsetFetchRequestGroup(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
        )
        answer = h.machine.fetch_offsets(request, require_stable=True)
        return answer.error_code, answer.topics[0].partitions[0].committed_offset if answer.topics else -1

    assert fetch("a", member.epoch) == (0, 7)
    assert fetch(None, -1) == (0, 7)
    assert fetch("a", member.epoch - 1)[0] == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", 1)[0] == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_an_empty_group_expire_and_the_group_with_them(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    commit(h, "a", member.epoch)
    for _ in range(40):
        member.poll()
        h.advance(40_000)
    member.leave()
    h.settings = GroupSettings(offsets_retention_ms=1_000)
    h.advance(1_300_000)
    assert GROUP not in h.machine.groups
    assert GROUP not in h.replayed().groups


# -- administration ----------------------------------------------------------------------------------------------------


def test_group_is_listed_and_described(h: Harness) -> None:
    a = StreamsClient(h, "a", "p", endpoint=("host", 80))
    settle(a)
    [group] = h.machine.list_groups(ListGroupsRequest(types_filter=["Streams"]))
    assert (group.group_id, group.protocol_type, group.group_state, group.group_type) == (
        GROUP, "streams", "Stable", "streams",
    )  # fmt: skip
    assert not h.machine.list_groups(ListGroupsRequest(types_filter=["share"]))
    described = h.machine.streams.describe(GROUP)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    assert described.topology is not None and described.topology.subtopologies is not None
    second = described.topology.subtopologies[1]
    assert [(each.name, each.partitions) for each in second.repartition_source_topics] == [("r", 2)]
    assert second.state_changelog_topics[0].topic_configs[0].key == "cleanup.policy"
    [member] = described.members
    assert (member.process_id, member.topology_epoch, member.user_endpoint.port) == ("p", 0, 80)  # type: ignore[union-attr]
    assert {(e.subtopology_id, n) for e in member.assignment.active_tasks for n in e.partitions} == ALL
    missing = h.machine.streams.describe("other")
    assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group other not found.")


def test_only_an_empty_group_is_deleted(h: Harness) -> None:
    member = StreamsClient(h, "a")
    settle(member)
    commit(h, "a", member.epoch)
    [kept] = h.ask(lambda machine: machine.delete_groups([GROUP])).results
    assert kept.error_code == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    [deleted] = h.ask(lambda machine: machine.delete_groups([GROUP])).results
    assert deleted.error_code == ErrorCode.NONE
    assert GROUP not in h.machine.groups
    assert not h.replayed().groups
    assert not h.replayed().store.of_group(GROUP)


def test_empty_classic_group_becomes_a_streams_group_and_keeps_its_offsets(h: Harness) -> None:
    [member] = h.stable_group(size=1)
    assert commit(h, member, 1, version=8) is ErrorCode.NONE
    h.leave(member)
    client = StreamsClient(h, "a")
    settle(client)
    assert client.active == ALL
    assert h.machine.store.get(GROUP, "t", 0) is not None
    assert streams_group(h).members.keys() == {"a"}
    h.fail_over()
    assert streams_group(h).members.keys() == {"a"}
    assert h.machine.store.get(GROUP, "t", 0) is not None


def test_empty_streams_group_becomes_a_classic_one_and_keeps_its_offsets(h: Harness) -> None:
    client = StreamsClient(h, "a")
    settle(client)
    commit(h, "a", client.epoch)
    client.leave()
    h.stable_group(size=1)
    assert isinstance(h.machine.groups[GROUP], ClassicGroup)
    h.fail_over()
    assert isinstance(h.machine.groups[GROUP], ClassicGroup)
    assert h.machine.store.get(GROUP, "t", 0) is not None


def test_records_without_assignment_epochs_count_as_assigned_in_the_epoch_of_the_member(h: Harness) -> None:
    """Kafka 4.1 wrote such records."""
    member = StreamsClient(h, "a")
    settle(member)
    held = streams_group(h).members["a"]
    record = held.assignment_record(GROUP)
    assert record.value is not None
    assert streams_group(h).members["a"].active_epochs[TaskId("0", 0)] == member.epoch


def test_refused_records_leave_no_trace_of_the_first_member(h: Harness) -> None:
    h.group_configs[GROUP] = GroupConfig()
    h.refuses = True
    assert StreamsClient(h, "a").poll_refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not h.machine.groups
    h.refuses = False
    member = StreamsClient(h, "a")
    settle(member)
    h.advance(4_000)
    settle(member)
    assert member.active == ALL


def test_tags_of_clients_are_described(h: Harness) -> None:
    answer = StreamsClient(h, "a").poll(client_tags=[KeyValue(key="zone", value="z1")])
    assert isinstance(answer, StreamsGroupHeartbeatResponse)
    [member] = h.machine.streams.describe(GROUP).members
    assert [(each.key, each.value) for each in member.client_tags] == [("zone", "z1")]
