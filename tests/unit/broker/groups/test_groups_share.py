"""Share groups: members, epochs, assignments, and the states of share partitions."""

import pytest

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import records
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_commit import OffsetCommitRequest
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from barnabas.wire.messages.share_group_records import (
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
)
from tests.unit.broker.groups.consumer_driver import Client
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness
from tests.unit.broker.groups.share_driver import ShareClient, answer_share_coordinators, send, settle, share_group

T = FakeTopics.id_of("t")


@pytest.fixture
def h() -> Harness:
    return Harness(topics=FakeTopics({"t": 3, "u": 1}))


# -- members -----------------------------------------------------------------------------------------------------------


def test_member_gets_its_partitions_once_the_share_coordinators_have_their_states(h: Harness) -> None:
    member = ShareClient(h, "a")
    first = member.poll()
    assert (first.member_id, first.member_epoch, first.heartbeat_interval_ms) == ("a", 1, 5_000)
    assert first.assignment is not None
    assert not first.assignment.topic_partitions
    starts = answer_share_coordinators(h)
    assert starts == {("t", 0): -1, ("t", 1): -1, ("t", 2): -1}, "the leader applies share.auto.offset.reset"
    assert member.poll().member_epoch == 2
    assert member.numbers() == {0, 1, 2}
    assert member.poll().assignment is None, "nothing has changed"


def test_members_share_partitions_if_there_are_more_of_them(h: Harness) -> None:
    members = [ShareClient(h, f"m{number}", topics=["u"]) for number in range(50)]
    settle(*members)
    assert all(member.numbers("u") == {0} for member in members)


def test_members_divide_partitions_and_rebalance_as_they_come_and_go(h: Harness) -> None:
    a, b = ShareClient(h, "a"), ShareClient(h, "b")
    settle(a)
    settle(a, b)
    assert sorted(len(each.owned) for each in (a, b)) == [1, 2]
    assert a.numbers() | b.numbers() == {0, 1, 2}
    a.leave()
    settle(b)
    assert b.numbers() == {0, 1, 2}


def test_member_that_is_silent_past_its_session_leaves_the_group(h: Harness) -> None:
    a, b = ShareClient(h, "a"), ShareClient(h, "b")
    settle(a, b)
    h.advance(44_000)
    settle(b)
    h.advance(2_000)
    assert set(share_group(h).members) == {"b"}
    settle(b)
    assert b.numbers() == {0, 1, 2}
    assert a.poll_refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_settings_of_the_group_apply_to_running_members(h: Harness) -> None:
    member = ShareClient(h, "a")
    settle(member)
    h.group_configs[GROUP] = GroupConfig(share_session_timeout_ms=50_000, share_heartbeat_interval_ms=7_000)
    assert member.poll().heartbeat_interval_ms == 7_000
    h.advance(49_000)
    assert share_group(h).members
    h.advance(1_000)
    assert not share_group(h).members


def test_lost_answer_is_sent_again_with_the_assignment(h: Harness) -> None:
    member = ShareClient(h, "a")
    member.poll()
    answer_share_coordinators(h)
    epoch = member.epoch
    member.poll()
    member.epoch, member.owned = epoch, set()  # the answer did not arrive
    assert member.poll().member_epoch == epoch + 1
    assert member.numbers() == {0, 1, 2}


@pytest.mark.parametrize("epoch", [70, 1])
def test_member_with_a_wrong_epoch_is_fenced_and_may_start_over(h: Harness, epoch: int) -> None:
    member = ShareClient(h, "a")
    settle(member)
    for _ in range(2):
        member.subscribe("t", "u")
        settle(member)
        member.subscribe("t")
        settle(member)
    member.epoch = epoch
    assert member.poll_refused() is ErrorCode.FENCED_MEMBER_EPOCH
    member.epoch, member.owned, member.is_full = 0, set(), True
    member.poll()
    assert member.numbers() == {0, 1, 2}


def test_change_of_the_subscription_moves_the_member(h: Harness) -> None:
    a, b = ShareClient(h, "a"), ShareClient(h, "b")
    settle(a, b)
    a.subscribe("u")
    settle(a, b)
    assert (a.owned, b.numbers()) == ({("u", 0)}, {0, 1, 2})


def test_group_is_full_at_its_maximum_size() -> None:
    h = Harness(GroupSettings(share_max_size=1), FakeTopics({"t": 1}))
    member = ShareClient(h, "a")
    settle(member)
    assert ShareClient(h, "b").poll_refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.poll_refused() is ErrorCode.NONE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"member_id": ""}, "Invalid member id in the request."),
        ({"member_id": "m" * 37}, "Invalid member id in the request."),
        ({"group_id": " "}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_invalid_heartbeats_are_refused_with_kafkas_words(h: Harness, fields: dict[str, object], message: str) -> None:
    with pytest.raises(Refused) as refused:
        send(h, **{"member_id": "a", "member_epoch": 0, "subscribed_topic_names": ["t"], **fields})
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, message)


def test_unknown_groups_and_members_are_refused(h: Harness) -> None:
    with pytest.raises(Refused) as refused:
        send(h, member_id="a", member_epoch=3)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    settle(ShareClient(h, "a"))
    with pytest.raises(Refused) as refused:
        send(h, member_id="b", member_epoch=-1)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


# -- topics ------------------------------------------------------------------------------------------------------------


def test_new_partitions_are_read_from_their_first_record_on(h: Harness) -> None:
    member = ShareClient(h, "a")
    settle(member)
    h.topics.set("t", 5)
    member.poll()
    assert answer_share_coordinators(h) == {("t", 3): 0, ("t", 4): 0}
    settle(member)
    assert member.numbers() == {0, 1, 2, 3, 4}


def test_topic_that_is_created_after_its_subscription_is_assigned(h: Harness) -> None:
    member = ShareClient(h, "a", topics=["t", "later"])
    settle(member)
    assert member.numbers("later") == set()
    h.topics.set("later", 2)
    settle(member)
    assert member.numbers("later") == {0, 1}


def test_deleted_topic_is_unassigned_and_its_states_are_forgotten(h: Harness) -> None:
    member = ShareClient(h, "a", topics=["t", "u"])
    settle(member)
    h.topics.set("t", 0)
    h.carry_out(h.machine.topics_deleted({"t"}, {T}), None)
    settle(member)
    assert member.owned == {("u", 0)}
    assert set(share_group(h).states.initialized) == {FakeTopics.id_of("u")}


# -- states of share partitions ------------------------------------------------------------------------------------------


def test_state_that_could_not_be_created_is_asked_for_again_at_the_next_heartbeat(h: Harness) -> None:
    member = ShareClient(h, "a")
    member.poll()
    answer_share_coordinators(h, ("t", 1))
    member.poll()
    assert member.numbers() == {0, 2}
    assert set(answer_share_coordinators(h)) == {("t", 1)}
    settle(member)
    assert member.numbers() == {0, 1, 2}


def test_states_are_asked_for_once_until_the_retry_interval_has_passed(h: Harness) -> None:
    member = ShareClient(h, "a")
    for _ in range(3):
        member.poll()
    assert len(h.sent) == 1
    for _ in range(3):
        h.advance(10_000)
        member.poll()
    assert len(h.sent) == 2


def test_next_coordinator_asks_at_once_for_states_that_were_not_confirmed(h: Harness) -> None:
    member = ShareClient(h, "a")
    member.poll()
    h.sent.clear()
    h.fail_over()
    member.poll()
    assert set(answer_share_coordinators(h)) == {("t", 0), ("t", 1), ("t", 2)}
    settle(member)
    assert member.numbers() == {0, 1, 2}


def test_confirmation_after_the_topic_was_deleted_changes_nothing(h: Harness) -> None:
    ShareClient(h, "a").poll()
    h.carry_out(h.machine.topics_deleted({"t"}, {T}), None)
    answer_share_coordinators(h)
    assert share_group(h).states.topic_ids == frozenset()


# -- the log -----------------------------------------------------------------------------------------------------------


def test_next_coordinator_has_the_same_group_and_watches_its_members(h: Harness) -> None:
    a, b = ShareClient(h, "a"), ShareClient(h, "b", topics=["t", "u"])
    settle(a, b)
    before = share_group(h)
    h.fail_over()
    after = share_group(h)
    assert (after.group_epoch, after.target_epoch, after.metadata_hash) == (
        before.group_epoch,
        before.target_epoch,
        before.metadata_hash,
    )
    assert (after.members, after.target, after.states) == (before.members, before.target, before.states)
    epoch = a.epoch
    settle(a, b)
    assert a.epoch == epoch, "nothing has changed, so the new coordinator rebalances nothing"
    h.advance(45_000)
    assert not share_group(h).members


def test_group_outlives_its_members_and_goes_only_when_it_is_deleted(h: Harness) -> None:
    member = ShareClient(h, "a")
    settle(member)
    assert h.ask(lambda machine: machine.delete_groups([GROUP])).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    h.advance(14 * 24 * 3_600_000)
    assert share_group(h).states.initialized
    assert h.ask(lambda machine: machine.delete_groups([GROUP])).results[0].error_code == ErrorCode.NONE
    assert GROUP not in h.machine.groups
    assert GROUP not in h.replayed().groups


def test_records_have_kafkas_bytes(h: Harness) -> None:
    entry = records.decode(KeyValue(b"\x00\x0b\x00\x01g", bytes.fromhex("0000 00000003 0102030405060708 00")))
    assert entry == (
        ShareGroupMetadataKey(group_id="g"),
        ShareGroupMetadataValue(epoch=3, metadata_hash=0x0102030405060708),
    )
    written = "0000" + "01" + "02" + T.hex() + "02" + "74" + "03" + "00000000" + "00000002" + "00" + "01" + "00"
    entry = records.decode(KeyValue(b"\x00\x0f\x00\x01g", bytes.fromhex(written)))
    assert entry is not None
    assert isinstance(entry.key, ShareGroupStatePartitionMetadataKey)
    value = entry.value
    assert isinstance(value, ShareGroupStatePartitionMetadataValue)
    assert [(each.topic_name, each.partitions) for each in value.initialized_topics] == [("t", [0, 2])]


# -- other protocols -----------------------------------------------------------------------------------------------------


def test_share_group_is_listed_and_described_as_what_it_is(h: Harness) -> None:
    settle(ShareClient(h, "a", topics=["u"]))
    [listed] = h.machine.list_groups(ListGroupsRequest(types_filter=["Share"]))
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        GROUP,
        "share",
        "Stable",
        "share",
    )
    described = h.machine.share.describe(GROUP)
    assert (described.group_state, described.assignor_name, described.error_code) == ("Stable", "simple", 0)
    [member] = described.members
    assert (member.member_id, member.client_host, member.subscribed_topic_names) == ("a", "/127.0.0.1", ["u"])
    assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [("u", [0])]


def test_requests_of_other_protocols_are_refused(h: Harness) -> None:
    settle(ShareClient(h, "a"))
    with pytest.raises(Refused, match="not a consumer group") as refused:
        h.ask(
            lambda machine: machine.consumer_heartbeat(
                ConsumerGroupHeartbeatRequest(
                    group_id=GROUP,
                    member_id="c",
                    member_epoch=0,
                    rebalance_timeout_ms=1_000,
                    topic_partitions=[],
                    subscribed_topic_names=["t"],
                ),
                Requester("client", "/127.0.0.1", 1),
                h.now_ms,
            )
        )
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert h.answers[h.send_join()].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.heartbeat("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    for request in (
        lambda machine: machine.commit_offsets(
            OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1), api_version=9, now_ms=h.now_ms
        ),
        lambda machine: machine.delete_offsets(OffsetDeleteRequest(group_id=GROUP)),
    ):
        with pytest.raises(Refused, match="not a consumer group") as refused:
            h.ask(request)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    fetched = h.machine.fetch_offsets(
        OffsetFetchRequestGroup(group_id=GROUP, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]),
        require_stable=False,
    )
    assert fetched.error_code == ErrorCode.NONE
    assert fetched.topics[0].partitions[0].committed_offset == -1
    assert h.machine.describe(GROUP, api_version=6).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_share_member_cannot_join_a_group_of_another_kind(h: Harness) -> None:
    Client(h, "c").poll()
    assert ShareClient(h, "a").poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND
    h.new_member(group_id="classic")
    assert ShareClient(h, "a", group_id="classic").poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND
