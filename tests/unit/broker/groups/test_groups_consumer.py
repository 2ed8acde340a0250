"""Consumer groups (KIP-848), rule by rule."""

from typing import Any

import pytest

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.consumer_group import MemberState
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.subscriptions import check_regex
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup
from tests.unit.broker.groups.consumer_driver import Client, consumer_group, send, settle
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness


@pytest.fixture
def h() -> Harness:
    return Harness(topics=FakeTopics({"t": 6, "u": 2}))


def refusal(h: Harness, **fields: Any) -> ErrorCode:
    with pytest.raises(Refused) as caught:
        send(h, **fields)
    return caught.value.code


JOIN: dict[str, Any] = {
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


# -- what a request must look like -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"group_id": " "},
        {"instance_id": ""},
        {"rack_id": " "},
        {"member_epoch": -3},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [RequestTopicPartitions(topic_id=FakeTopics.id_of("t"), partitions=[0])]},
        {"subscribed_topic_names": None},
        {"member_id": ""},
        {"member_id": "", "member_epoch": 3},
        {"member_epoch": -2},
    ],
)
def test_malformed_heartbeat_is_an_invalid_request(h: Harness, change: dict[str, Any]) -> None:
    assert refusal(h, **{**JOIN, **change}) is ErrorCode.INVALID_REQUEST


def test_version_0_lets_the_coordinator_choose_the_member_id(h: Harness) -> None:
    assert send(h, version=0, **{**JOIN, "member_id": ""}).member_id == "uuid1"


def test_member_may_join_without_a_topic(h: Harness) -> None:
    response = send(h, **{**JOIN, "subscribed_topic_names": []})
    assert response.member_epoch > 0
    assert response.assignment is None or response.assignment.topic_partitions == []


def test_unknown_assignor_is_refused(h: Harness) -> None:
    assert refusal(h, **JOIN, server_assignor="sticky") is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_broken_regular_expression_is_refused(h: Harness) -> None:
    assert refusal(h, **JOIN, subscribed_topic_regex="(") is ErrorCode.INVALID_REGULAR_EXPRESSION
    with pytest.raises(Refused, match=r"`\(` is not a valid regular expression: missing \): \(\.$"):
        check_regex("(")


def test_protocol_that_is_off_is_an_unsupported_version(h: Harness) -> None:
    h.consumer_protocol_enabled = False
    assert refusal(h, **JOIN) is ErrorCode.UNSUPPORTED_VERSION


def test_full_group_accepts_no_more_members(h: Harness) -> None:
    h.settings = GroupSettings(consumer_max_size=1)
    send(h, **JOIN)
    assert refusal(h, **{**JOIN, "member_id": "n"}) is ErrorCode.GROUP_MAX_SIZE_REACHED
    send(h, **JOIN)


def test_heartbeat_to_a_missing_group_or_member_is_refused(h: Harness) -> None:
    assert refusal(h, member_id="m", member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert refusal(h, member_id="m", member_epoch=-1) is ErrorCode.GROUP_ID_NOT_FOUND
    send(h, **JOIN)
    assert refusal(h, member_id="n", member_epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(h, member_id="n", member_epoch=-1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(h, member_id="n", member_epoch=1, instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID


# -- joining and moving ------------------------------------------------------------------------------------------------


def test_first_member_gets_everything_at_once(h: Harness) -> None:
    a = Client(h, "a")
    response = a.poll()
    assert (response.member_epoch, response.heartbeat_interval_ms) == (1, 5_000)
    assert a.numbers() == {0, 1, 2, 3, 4, 5}
    assert consumer_group(h).state_name() == "Stable"


def test_partition_is_given_to_a_new_member_only_after_the_old_one_gave_it_up(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    a.poll()
    b.poll()
    assert b.owned == set()
    assert consumer_group(h).members["b"].state is MemberState.UNRELEASED_PARTITIONS
    a.poll()  # must revoke three
    assert len(a.numbers()) == 3
    assert consumer_group(h).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    b.poll()
    assert b.owned == set()  # a has not confirmed the revocation yet
    a.poll()
    b.poll()
    assert a.numbers() | b.numbers() == set(range(6))
    assert not a.numbers() & b.numbers()
    assert consumer_group(h).state_name() == "Stable"


def test_assignment_is_sent_only_when_it_changed_or_was_asked_for(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    assert send(h, member_id="a", member_epoch=1).assignment is None
    assert a.poll().assignment is not None  # a full request


def test_member_that_leaves_frees_its_partitions(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    settle(a, b)
    b.leave()
    settle(a)
    assert a.numbers() == set(range(6))


def test_last_member_that_leaves_empties_the_group_and_its_epoch_lives_on(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    a.leave()
    assert consumer_group(h).state_name() == "Empty"
    b = Client(h, "b")
    b.poll()
    assert b.epoch > a.epoch


def test_subscription_change_moves_the_group(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    a.topics = ["u"]
    settle(a)
    assert a.owned == {("u", 0), ("u", 1)}


def test_new_partitions_and_new_topics_are_assigned(h: Harness) -> None:
    a = Client(h, "a", topics=["t", "later"])
    a.poll()
    h.topics.set("t", 8)
    settle(a)
    assert a.numbers() == set(range(8))
    h.topics.set("later", 1)
    settle(a)
    assert ("later", 0) in a.owned


def test_deleted_topic_is_taken_away(h: Harness) -> None:
    a = Client(h, "a", topics=["t", "u"])
    a.poll()
    h.topics.set("u", 0)
    settle(a)
    assert a.numbers("u") == set()
    assert a.numbers("t") == set(range(6))


def test_change_of_something_else_in_the_cluster_changes_nothing(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    h.topics.set("unrelated", 3)
    written = len(h.log)
    a.poll()
    assert len(h.log) == written


def test_majority_chooses_the_assignor(h: Harness) -> None:
    a, b = Client(h, "a", topics=["t", "u"], assignor="range"), Client(h, "b", topics=["t", "u"], assignor="range")
    settle(a, b)
    assert a.owned == {("t", 0), ("t", 1), ("t", 2), ("u", 0)}
    assert h.machine.describe_consumer_group(GROUP).assignor_name == "range"


def test_members_near_a_replica_are_preferred(h: Harness) -> None:
    for number in range(6):
        h.topics.rack_of["t", number] = frozenset({"x" if number % 2 else "y"})
    a, b = Client(h, "a", rack="x"), Client(h, "b", rack="y")
    settle(b, a)
    # b had all at first, and revokes those that are far from it.
    assert (a.numbers(), b.numbers()) == ({1, 3, 5}, {0, 2, 4})


# -- epochs ------------------------------------------------------------------------------------------------------------


def test_member_with_a_wrong_epoch_is_fenced_and_may_start_over(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    a.epoch = 7
    assert a.poll_refused() is ErrorCode.FENCED_MEMBER_EPOCH
    a.epoch, a.owned = 0, set()
    a.poll()
    assert a.numbers() == set(range(6))


def test_member_that_missed_an_answer_is_accepted_with_its_previous_epoch(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    settle(a, b)
    b.leave()
    a.poll()
    lost, a.epoch, a.owned = a.owned, a.seen[-2], set()
    a.poll()
    assert a.owned == lost


def test_member_that_missed_an_assignment_within_its_epoch_gets_it_again(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    settle(a, b)
    c = Client(h, "c")
    settle(c, a, b, rounds=2)  # c is in the new epoch, and waits until the others revoke
    held = set(c.owned)
    epoch = c.epoch
    listed = [RequestTopicPartitions(topic_id=FakeTopics.id_of("t"), partitions=[n for _, n in held])] if held else []
    send(h, member_id="c", member_epoch=epoch, topic_partitions=listed)  # its answer is lost
    again = send(h, member_id="c", member_epoch=epoch, topic_partitions=listed)
    assert again.member_epoch == epoch
    assert again.assignment is not None
    assert again.assignment.topic_partitions[0].partitions == sorted(
        number for numbers in consumer_group(h).members["c"].assigned.values() for number in numbers
    )


def test_member_that_missed_a_revocation_gets_it_until_it_reports_what_it_owns(h: Harness) -> None:
    """After a lost answer librdkafka continues with empty heartbeats, and other members wait for the partitions."""
    a, b = Client(h, "a"), Client(h, "b")
    a.poll()
    b.poll()
    lost = send(h, member_id="a", member_epoch=a.epoch)
    assert lost.assignment is not None
    [kept] = lost.assignment.topic_partitions
    assert len(kept.partitions) == 3
    for _ in range(2):
        again = send(h, member_id="a", member_epoch=a.epoch)
        assert (again.member_epoch, again.assignment) == (a.epoch, lost.assignment)
    owned = [RequestTopicPartitions(topic_id=kept.topic_id, partitions=kept.partitions)]
    done = send(h, member_id="a", member_epoch=a.epoch, topic_partitions=owned)
    assert done.member_epoch == b.epoch
    assert send(h, member_id="a", member_epoch=done.member_epoch).assignment is None


def test_previous_epoch_is_not_enough_when_the_member_claims_what_is_not_its_own(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    settle(a, b)
    b.leave()
    a.poll()
    a.epoch = a.seen[-2]
    a.owned = {("t", 99)}
    assert a.poll_refused() is ErrorCode.FENCED_MEMBER_EPOCH


# -- time-outs ---------------------------------------------------------------------------------------------------------


def test_silent_member_is_removed_after_its_session(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    settle(a, b)
    h.advance(44_000)
    a.poll()
    h.advance(1_000)
    assert list(consumer_group(h).members) == ["a"]
    assert b.poll_refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_own_session_and_heartbeat_interval_apply_to_live_members_from_their_next_heartbeat_on(
    h: Harness,
) -> None:
    a = Client(h, "a")
    assert a.poll().heartbeat_interval_ms == 5_000
    h.group_configs[GROUP] = GroupConfig(consumer_session_timeout_ms=50_000, consumer_heartbeat_interval_ms=7_000)
    assert a.poll().heartbeat_interval_ms == 7_000
    h.advance(49_000)
    assert list(consumer_group(h).members) == ["a"]
    h.advance(1_000)
    assert not consumer_group(h).members


def test_new_coordinator_gives_members_their_groups_own_session(h: Harness) -> None:
    h.group_configs[GROUP] = GroupConfig(consumer_session_timeout_ms=50_000)
    Client(h, "a").poll()
    h.fail_over()
    h.advance(49_000)
    assert list(consumer_group(h).members) == ["a"]
    h.advance(1_000)
    assert not consumer_group(h).members


def test_member_that_does_not_give_partitions_up_in_time_is_removed(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    a.poll()
    held = set(a.owned)
    b.poll()
    for _ in range(6):
        a.poll()
        a.owned = held  # the application is slow
        h.advance(10_000)
        b.poll()
    assert "a" not in consumer_group(h).members
    assert b.poll().member_epoch > 0
    assert b.numbers() == set(range(6))


def test_revocation_in_time_ends_the_countdown(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    a.poll()
    b.poll()
    settle(a, b)
    for _ in range(4):
        h.advance(30_000)
        settle(a, b, rounds=1)
    assert set(consumer_group(h).members) == {"a", "b"}


# -- static members ----------------------------------------------------------------------------------------------------


def test_static_member_that_restarts_gets_its_partitions_back_and_no_partition_moves(h: Harness) -> None:
    a, b = Client(h, "a", instance_id="i0"), Client(h, "b", instance_id="i1")
    settle(a, b)
    before, epoch = set(a.owned), consumer_group(h).group_epoch
    a.leave(epoch=-2)
    again = Client(h, "a2", instance_id="i0")
    again.poll()
    assert again.owned == before
    assert consumer_group(h).group_epoch == epoch
    assert consumer_group(h).static_members == {"i0": "a2", "i1": "b"}
    b.poll()
    assert b.numbers() == set(range(6)) - {number for _, number in before}


def test_instance_id_in_use_is_unreleased(h: Harness) -> None:
    a = Client(h, "a", instance_id="i")
    a.poll()
    assert Client(h, "thief", instance_id="i").poll_refused() is ErrorCode.UNRELEASED_INSTANCE_ID


def test_instance_id_of_a_member_that_dropped_it_is_free_for_others(h: Harness) -> None:
    a = Client(h, "a", instance_id="i0")
    a.poll()
    a.instance_id, a.epoch, a.owned = "i1", 0, set()
    a.poll()
    assert consumer_group(h).static_members == {"i1": "a"}
    a.leave()
    b = Client(h, "b", instance_id="i0")
    settle(b)
    assert b.numbers() == set(range(6))
    consumer_group(h).validate()


@pytest.mark.parametrize("topics", [["t"], ["t", "u"]])
def test_member_that_takes_a_static_members_place_gives_up_its_own(h: Harness, topics: list[str]) -> None:
    """No partition has two targets. With other topics than the static member had, the target is computed again."""
    h.topics.set("u", 1)
    static, dynamic, other = Client(h, "s", instance_id="i0"), Client(h, "d", topics=topics), Client(h, "o")
    settle(static, dynamic, other)
    static.leave(epoch=-2)
    dynamic.instance_id, dynamic.epoch, dynamic.owned = "i0", 0, set()
    dynamic.poll()
    consumer_group(h).validate()
    settle(dynamic, other)
    consumer_group(h).validate()
    assert dynamic.numbers() | other.numbers() == set(range(6))


def test_old_id_of_a_static_member_is_fenced(h: Harness) -> None:
    a = Client(h, "a", instance_id="i")
    a.poll()
    a.leave(epoch=-2)
    Client(h, "a2", instance_id="i").poll()
    assert a.poll_refused() is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_that_does_not_come_back_is_removed_after_its_session(h: Harness) -> None:
    a, b = Client(h, "a", instance_id="i0"), Client(h, "b", instance_id="i1")
    settle(a, b)
    a.leave(epoch=-2)
    h.advance(30_000)
    b.poll()
    assert set(consumer_group(h).members) == {"a", "b"}
    h.advance(15_000)
    settle(b)
    assert b.numbers() == set(range(6))


def test_static_member_that_leaves_for_good_is_gone_at_once(h: Harness) -> None:
    a = Client(h, "a", instance_id="i")
    a.poll()
    a.leave()
    assert consumer_group(h).static_members == {}


# -- regular expressions -----------------------------------------------------------------------------------------------


def test_regular_expression_subscribes_to_what_it_matches_now_and_later(h: Harness) -> None:
    h.topics.set("orders-eu", 1)
    h.topics.set("xorders", 1)
    a = Client(h, "a", topics=[], regex="orders.*")
    a.poll()
    assert a.owned == {("orders-eu", 0)}
    h.topics.set("orders-us", 2)
    settle(a)
    assert a.owned == {("orders-eu", 0), ("orders-us", 0), ("orders-us", 1)}
    h.topics.set("orders-eu", 0)
    settle(a)
    assert a.owned == {("orders-us", 0), ("orders-us", 1)}


def test_regular_expression_matches_internal_topics_as_well(h: Harness) -> None:
    h.topics.set("__consumer_offsets", 50)
    a = Client(h, "a", topics=[], regex=".*")
    a.poll()
    assert {topic for topic, _ in a.owned} == {"t", "u", "__consumer_offsets"[:16]}, (
        "names end with the ids of this test"
    )


def test_regular_expression_matches_only_topics_that_the_member_may_see(h: Harness) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="m",
        rebalance_timeout_ms=1,
        subscribed_topic_regex=".",
        topic_partitions=[],
    )
    response = h.ask(
        lambda m: m.consumer_heartbeat(request, Requester("c", "/h", 1), h.now_ms, lambda topic: topic != "t")
    )
    assert [each.topic_id for each in response.assignment.topic_partitions] == [FakeTopics.id_of("u")]


def test_names_and_an_expression_add_up_and_an_empty_expression_ends_it(h: Harness) -> None:
    a = Client(h, "a", topics=["t"], regex="u")
    a.poll()
    assert {topic for topic, _ in a.owned} == {"t", "u"}
    a.regex = ""
    settle(a)
    assert {topic for topic, _ in a.owned} == {"t"}
    assert consumer_group(h).regexes == {}


# -- offsets, listing, describing, deleting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member_id", "epoch", "version", "expected"),
    [
        ("a", 1, 9, ErrorCode.NONE),
        ("a", 0, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 1, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("x", 1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_needs_the_members_epoch(
    h: Harness, member_id: str, epoch: int, version: int, expected: ErrorCode
) -> None:
    Client(h, "a").poll()
    request = OffsetCommitRequest(
        group_id=GROUP,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(committed_offset=1)])],
    )
    try:
        h.ask(lambda machine: machine.commit_offsets(request, api_version=version, now_ms=h.now_ms))
        code = ErrorCode.NONE
    except Refused as refused:
        code = refused.code
    assert code is expected


@pytest.mark.parametrize(
    ("member_id", "epoch", "expected"),
    [
        (None, -1, ErrorCode.NONE),
        ("a", 1, ErrorCode.NONE),
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_fetch_of_offsets_checks_the_members_epoch_if_it_has_one(
    h: Harness, member_id: str | None, epoch: int, expected: ErrorCode
) -> None:
    Client(h, "a").poll()
    request = OffsetFetchRequestGroup(group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=[])
    assert h.machine.fetch_offsets(request, require_stable=True).error_code == expected


def test_consumer_group_is_listed_and_described(h: Harness) -> None:
    a = Client(h, "a", rack="r")
    a.poll()
    [listed] = h.machine.list_groups(ListGroupsRequest(types_filter=["Consumer"]))
    assert (listed.group_id, listed.group_state, listed.group_type, listed.protocol_type) == (
        GROUP,
        "Stable",
        "consumer",
        "consumer",
    )
    described = h.machine.describe_consumer_group(GROUP)
    [member] = described.members
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (1, 1, "uniform")
    assert (member.member_id, member.rack_id, member.subscribed_topic_names, member.member_type) == ("a", "r", ["t"], 1)
    assert member.assignment.topic_partitions[0].topic_name == "t"
    assert member.assignment == member.target_assignment
    assert h.machine.describe_consumer_group("nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.machine.describe(GROUP, api_version=6).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_only_empty_consumer_groups_are_deleted(h: Harness) -> None:
    a = Client(h, "a", topics=[], regex="t")
    a.poll()
    response = h.ask(lambda machine: machine.delete_groups([GROUP]))
    assert response.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    h.ask(lambda machine: machine.delete_groups([GROUP]))
    assert GROUP not in h.machine.groups
    assert GROUP not in h.replayed().groups


# -- failover ----------------------------------------------------------------------------------------------------------


def test_new_coordinator_carries_on_in_the_middle_of_a_reconciliation(h: Harness) -> None:
    a, b = Client(h, "a"), Client(h, "b")
    a.poll()
    b.poll()
    a.poll()
    h.fail_over()
    assert consumer_group(h).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    settle(a, b)
    assert not a.numbers() & b.numbers()
    assert a.numbers() | b.numbers() == set(range(6))
    h.advance(60_000)
    assert consumer_group(h).is_empty


def test_members_that_are_gone_after_a_failover_time_out(h: Harness) -> None:
    Client(h, "a").poll()
    h.fail_over()
    h.advance(45_000)
    assert consumer_group(h).is_empty
