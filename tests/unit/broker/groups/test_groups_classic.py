"""Classic groups, rule by rule."""

import pytest

from barnabas.base.errors import ErrorCode, IllegalTransition, Refused
from barnabas.broker.groups.classic import ABANDONED_GRACE_MS, NEW_MEMBER_JOIN_TIMEOUT_MS
from barnabas.broker.groups.classic_group import TRANSITIONS, ClassicGroup, GroupState
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.runtime.machine import Ticket
from barnabas.wire.messages.list_groups import ListGroupsRequest
from tests.unit.broker.groups.group_harness import GROUP, Harness, subscription


@pytest.fixture
def h() -> Harness:
    return Harness()


# -- joining -----------------------------------------------------------------------------------------------------------


def test_dynamic_member_is_given_an_id_and_must_come_back_with_it(h: Harness) -> None:
    answer = h.answers[h.send_join(client_id="app", version=4)]
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "app-uuid1"
    ticket = h.send_join(answer.member_id, client_id="app", version=4)
    assert h.answers[ticket].generation_id == 1
    assert h.answers[ticket].leader == "app-uuid1"


def test_before_version_4_a_member_joins_at_once(h: Harness) -> None:
    answer = h.answers[h.send_join(version=3)]
    assert answer.error_code == ErrorCode.NONE
    assert answer.generation_id == 1


def test_an_id_that_was_never_given_out_is_unknown(h: Harness) -> None:
    assert h.join_error(h.send_join("invented")) is ErrorCode.UNKNOWN_MEMBER_ID
    h.stable_group()
    assert h.join_error(h.send_join("invented")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_given_id_that_is_not_used_within_the_session_timeout_is_forgotten(h: Harness) -> None:
    answer = h.answers[h.send_join(session_timeout_ms=8_000)]
    h.advance(7_999)
    assert h.group().pending_joins == {answer.member_id}
    h.advance(1)
    assert h.group().pending_joins == set()
    assert h.join_error(h.send_join(answer.member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_session_timeout_out_of_bounds_is_refused(h: Harness, session_timeout_ms: int) -> None:
    ticket = h.send_join(session_timeout_ms=session_timeout_ms)
    assert h.join_error(ticket) is ErrorCode.INVALID_SESSION_TIMEOUT


def test_empty_group_id_is_refused(h: Harness) -> None:
    assert h.join_error(h.send_join(group_id="")) is ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", [("range", b"")]), ("consumer", [])])
def test_first_member_must_name_a_type_and_a_protocol(
    h: Harness, protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    ticket = h.send_join(protocol_type=protocol_type, protocols=protocols)
    assert h.join_error(ticket) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_must_share_type_and_one_protocol_with_all_others(h: Harness) -> None:
    h.stable_group(protocols=[("range", b""), ("roundrobin", b"")])
    assert h.join_error(h.send_join(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.join_error(h.send_join(protocols=[("sticky", b"")])) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.join_error(h.send_join(protocols=[("roundrobin", b"")])) is ErrorCode.MEMBER_ID_REQUIRED


def test_protocol_with_most_first_votes_among_the_common_ones_is_chosen() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=100))
    wishes = (["a", "b", "c"], ["b", "c", "a"], ["d", "b", "a"])
    tickets = [h.new_member(protocols=[(name, name.encode()) for name in names])[1] for names in wishes]
    h.advance(1_000)
    # Not all members support c and d; of a and b, b has two first votes.
    assert {h.answers[ticket].protocol_name for ticket in tickets} == {"b"}


def test_only_the_leader_gets_the_list_of_members(h: Harness) -> None:
    h.settings = GroupSettings(initial_rebalance_delay_ms=100)
    (leader, first), (_, second) = h.new_member(), h.new_member()
    h.advance(1_000)
    assert h.answers[first].leader == h.answers[second].leader == leader
    assert len(h.answers[first].members) == 2
    assert h.answers[first].members[0].metadata == subscription("t")
    assert h.answers[second].members == []


# -- the initial delay -------------------------------------------------------------------------------------------------


def test_first_rebalance_waits_for_the_initial_delay() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    _, ticket = h.new_member()
    h.advance(2_999)
    assert ticket in h.waiting
    h.advance(1)
    assert h.answers[ticket].generation_id == 1


def test_initial_delay_is_extended_while_members_keep_coming_up_to_the_rebalance_timeout() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    tickets = [h.new_member(rebalance_timeout_ms=7_000)[1]]
    elapsed_ms = 0
    while tickets[0] in h.waiting:
        h.advance(1_000)
        elapsed_ms += 1_000
        if tickets[0] in h.waiting:
            tickets.append(h.new_member(rebalance_timeout_ms=7_000)[1])
    assert elapsed_ms == 7_000
    assert len({h.answers[ticket].generation_id for ticket in tickets}) == 1


def test_initial_delay_is_not_extended_when_no_member_joined() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    _, first = h.new_member()
    h.advance(1_000)
    _, second = h.new_member()
    h.advance(2_000)
    assert first in h.waiting  # one more delay, for the second
    h.advance(3_000)
    assert h.answers[first].generation_id == h.answers[second].generation_id == 1


def test_initial_delay_does_not_end_early_when_a_member_gives_up() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=30_000))
    _, first = h.new_member()
    h.send_join()  # gets an id, and never comes back with it
    h.advance(29_999)
    assert first in h.waiting
    h.advance(1)
    assert h.answers[first].generation_id == 1


# -- syncing -----------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment_and_get_their_own() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=100))
    (leader, _), (follower, _) = h.new_member(), h.new_member()
    h.advance(1_000)
    ticket = h.send_sync(follower, 1)
    assert ticket in h.waiting
    assert h.sync(leader, 1, {leader: b"L", follower: b"F"}).assignment == b"L"
    assert h.answers[ticket].assignment == b"F"
    assert h.answers[ticket].protocol_name == "range"
    assert h.group().state is GroupState.STABLE


def test_sync_of_a_stable_group_is_a_sign_of_life(h: Harness) -> None:
    leader, follower = h.stable_group()
    for _ in range(3):
        h.advance(9_000)
        h.heartbeat(leader, 1)
        assert h.sync(follower, 1).assignment == follower.encode()
    assert set(h.group().members) == {leader, follower}


def test_member_that_the_leader_forgot_gets_an_empty_assignment(h: Harness) -> None:
    (leader, _) = h.new_member()
    assert h.sync(leader, 1, {}).assignment == b""
    assert h.group().state is GroupState.STABLE


def test_sync_again_when_stable_answers_the_same(h: Harness) -> None:
    leader, follower = h.stable_group()
    assert h.sync(follower, 1).assignment == follower.encode()
    assert h.sync(leader, 1, {leader: b"other"}).assignment == leader.encode()


def test_sync_is_refused_with_the_right_reason(h: Harness) -> None:
    leader, _ = h.stable_group()
    assert h.join_error(h.send_sync("stranger", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert h.join_error(h.send_sync(leader, 2)) is ErrorCode.ILLEGAL_GENERATION
    assert h.join_error(h.send_sync(leader, 1, protocol_name="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.join_error(h.send_sync(leader, 1, protocol_type="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.join_error(h.send_sync(leader, 1, group_id="other")) is ErrorCode.UNKNOWN_MEMBER_ID
    h.new_member()
    assert h.join_error(h.send_sync(leader, 1)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=100))
    options = {"rebalance_timeout_ms": 20_000, "session_timeout_ms": 60_000}
    (leader, _), (follower, _) = h.new_member(**options), h.new_member(**options)
    h.advance(1_000)
    h.send_sync(leader, 1, {leader: b"L", follower: b"F"})
    h.advance(19_000)
    assert h.group().state is GroupState.STABLE
    h.advance(1_000)
    assert h.group().state is GroupState.PREPARING_REBALANCE
    assert list(h.group().members) == [leader]


def test_new_member_during_sync_makes_all_members_rejoin() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=100))
    (_, _), (follower, _) = h.new_member(), h.new_member()
    h.advance(1_000)
    ticket = h.send_sync(follower, 1)
    h.new_member()
    assert h.answers[ticket].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert h.group().state is GroupState.PREPARING_REBALANCE


# -- rejoining ---------------------------------------------------------------------------------------------------------


def test_follower_that_joins_again_unchanged_gets_the_current_generation(h: Harness) -> None:
    _, follower = h.stable_group()
    answer = h.answers[h.send_join(follower)]
    assert (answer.generation_id, answer.members) == (1, [])
    assert h.group().state is GroupState.STABLE


def test_follower_with_new_metadata_causes_a_rebalance(h: Harness) -> None:
    _, follower = h.stable_group()
    ticket = h.send_join(follower, protocols=[("range", subscription("t", "u"))])
    assert ticket in h.waiting
    assert h.group().state is GroupState.PREPARING_REBALANCE


def test_leader_that_joins_again_causes_a_rebalance(h: Harness) -> None:
    leader, follower = h.stable_group()
    h.send_join(leader)
    assert h.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    ticket = h.send_join(follower)
    assert h.answers[ticket].generation_id == 2


def test_join_that_is_repeated_while_the_first_waits_replaces_it(h: Harness) -> None:
    leader, _ = h.stable_group()
    first = h.send_join(leader)
    second = h.send_join(leader)
    assert h.join_error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert h.waiting == [second]


def test_join_that_is_repeated_after_a_lost_answer_gets_it_again() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=100))
    (leader, first), _ = h.new_member(), h.new_member()
    h.advance(1_000)
    again = h.send_join(leader)
    assert h.answers[again] == h.answers[first]


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_left_behind(h: Harness) -> None:
    leader, follower = h.stable_group(rebalance_timeout_ms=30_000, session_timeout_ms=100_000)
    ticket = h.send_join(follower, protocols=[("range", subscription("u"))], session_timeout_ms=100_000)
    h.advance(59_999)
    assert ticket in h.waiting
    h.advance(1)
    assert h.answers[ticket].generation_id == 2
    assert h.answers[ticket].leader == follower
    assert leader not in h.group().members


# -- heartbeats, sessions, leaving -------------------------------------------------------------------------------------


def test_member_silent_past_its_session_timeout_is_removed_and_the_others_rebalance(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    h.advance(8_000)
    assert h.heartbeat(leader, 1) is ErrorCode.NONE
    h.advance(2_000)
    assert list(h.group().members) == [leader]
    assert h.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert h.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_waiting_for_a_join_counts_as_a_heartbeat(h: Harness) -> None:
    _, follower = h.stable_group(session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    ticket = h.send_join(follower, protocols=[("range", subscription("u"))])
    h.advance(11_000)  # the leader's session ends, and with it the rebalance; the follower's does not
    assert h.answers[ticket].generation_id == 2


def test_new_member_whose_join_is_never_completed_is_removed(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=1_000_000, rebalance_timeout_ms=1_000_000)
    _, ticket = h.new_member(rebalance_timeout_ms=1_000_000)
    h.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert h.join_error(ticket) is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(h.group().members) == {leader, follower}


def test_heartbeat_is_refused_with_the_right_reason(h: Harness) -> None:
    leader, _ = h.stable_group()
    assert h.heartbeat("stranger", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert h.heartbeat(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert h.heartbeat(leader, 1, group_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert h.heartbeat(leader, 1, group_id="") is ErrorCode.INVALID_GROUP_ID


def test_members_leave_in_one_request_each_with_its_own_answer(h: Harness) -> None:
    leader, follower = h.stable_group()
    assert h.leave(leader, "stranger", ("", "nobody")) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert h.group().leader_id == follower
    assert h.group().state is GroupState.PREPARING_REBALANCE


def test_last_member_that_leaves_empties_the_group(h: Harness) -> None:
    assert h.leave(*h.stable_group()) == [ErrorCode.NONE] * 2
    assert h.group().state is GroupState.EMPTY
    assert h.group().generation == 2
    fresh = h.replayed().groups[GROUP]
    assert isinstance(fresh, ClassicGroup)
    assert (fresh.state, fresh.generation, fresh.protocol_type) == (GroupState.EMPTY, 2, "consumer")


def test_pending_member_that_leaves_does_not_disturb_a_stable_group(h: Harness) -> None:
    h.stable_group()
    pending = h.answers[h.send_join()].member_id
    assert h.leave(pending) == [ErrorCode.NONE]
    assert h.group().state is GroupState.STABLE


def test_member_that_leaves_while_its_requests_wait_is_answered() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=100))
    (_, _), (follower, _) = h.new_member(), h.new_member()
    h.advance(1_000)
    sync = h.send_sync(follower, 1)
    h.leave(follower)
    assert h.join_error(sync) is ErrorCode.UNKNOWN_MEMBER_ID
    member_id, join = h.new_member()
    h.leave(member_id)
    assert h.join_error(join) is ErrorCode.UNKNOWN_MEMBER_ID


# -- size --------------------------------------------------------------------------------------------------------------


def test_group_takes_no_more_than_its_maximum_size(h: Harness) -> None:
    h.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    h.stable_group(2)
    assert h.join_error(h.send_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_loaded_group_over_its_size_rebalances_and_rejects_the_last_to_rejoin(h: Harness) -> None:
    ids = h.stable_group(3)
    h.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    h.fail_over()
    assert h.group().state is GroupState.PREPARING_REBALANCE
    tickets = [h.send_join(member_id) for member_id in ids]
    assert h.join_error(tickets[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert h.answers[tickets[0]].generation_id == h.answers[tickets[1]].generation_id == 2


# -- static members ----------------------------------------------------------------------------------------------------


def static_group(h: Harness) -> list[str]:
    """Two static members, the leader first."""
    settings, h.settings = h.settings, GroupSettings(initial_rebalance_delay_ms=100)
    tickets = [h.send_join(instance_id=f"i{n}") for n in range(2)]
    h.advance(1_000)
    h.settings = settings
    ids = [h.answers[ticket].member_id for ticket in tickets]
    h.send_sync(ids[1], 1, instance_id="i1")
    h.sync(ids[0], 1, {member_id: member_id.encode() for member_id in ids})
    return ids


def test_static_member_joins_without_the_detour_and_is_named_after_its_instance(h: Harness) -> None:
    answer = h.answers[h.send_join(instance_id="i0")]
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, "i0-uuid1")


def test_static_member_that_restarts_gets_its_assignment_back_without_a_rebalance(h: Harness) -> None:
    leader, follower = static_group(h)
    answer = h.answers[h.send_join(instance_id="i1")]
    assert answer.generation_id == 1
    assert answer.member_id != follower
    assert (answer.leader, answer.skip_assignment) == (leader, False)
    assert h.answers[h.send_sync(answer.member_id, 1, instance_id="i1")].assignment == follower.encode()
    assert h.group().state is GroupState.STABLE
    fresh = h.replayed().groups[GROUP]
    assert isinstance(fresh, ClassicGroup)
    assert fresh.static_members == {"i0": leader, "i1": answer.member_id}


def test_static_member_whose_return_could_not_be_written_is_as_before_and_expires(h: Harness) -> None:
    leader, follower = static_group(h)
    h.refuses = True
    changed = [("range", subscription("t", "u"))]
    assert h.join_error(h.send_join(instance_id="i1", protocols=changed)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.refuses = False
    group = h.group()
    group.validate()
    assert group.static_members == {"i0": leader, "i1": follower}
    assert h.heartbeat(follower, 1, instance_id="i1") is ErrorCode.NONE
    h.advance(9_000)
    h.heartbeat(leader, 1, instance_id="i0")
    h.advance(9_000)
    assert list(group.members) == [leader], "the other member was silent for a session"


def test_members_whose_assignment_could_not_be_written_rebalance_and_expire(h: Harness) -> None:
    h.settings = GroupSettings(initial_rebalance_delay_ms=100)
    (leader, first), (follower, _) = h.new_member(), h.new_member()
    h.advance(1_000)
    generation = h.answers[first].generation_id
    waiting = h.send_sync(follower, generation)
    for _ in range(4):
        # The follower's session runs out while it waits, which does not count.
        h.advance(5_000)
        assert h.heartbeat(leader, generation) is ErrorCode.NONE
    h.refuses = True
    answer = h.answers[h.send_sync(leader, generation, {leader: b"l", follower: b"f"})]
    assert isinstance(answer, Refused)
    assert isinstance(h.answers[waiting], Refused)
    h.refuses = False
    assert h.group().state is GroupState.PREPARING_REBALANCE
    again = h.send_join(leader)
    h.advance(11_000)
    assert h.answers[again].generation_id == generation + 1
    assert list(h.group().members) == [leader], "the other one has not come back within its session"


def test_static_leader_that_restarts_must_skip_the_assignment(h: Harness) -> None:
    leader, _ = static_group(h)
    answer = h.answers[h.send_join(instance_id="i0")]
    assert answer.skip_assignment
    assert answer.leader == answer.member_id != leader
    assert len(answer.members) == 2


def test_static_leader_before_version_9_gets_its_old_id_as_leader_so_that_it_follows(h: Harness) -> None:
    leader, _ = static_group(h)
    answer = h.answers[h.send_join(instance_id="i0", version=8)]
    assert answer.leader == leader
    assert not answer.skip_assignment
    assert answer.members == []


def test_static_member_that_comes_back_with_another_protocol_causes_a_rebalance(h: Harness) -> None:
    h.settings = GroupSettings(initial_rebalance_delay_ms=100)
    both = [("range", b""), ("sticky", b"")]
    first, second = h.send_join(instance_id="i0", protocols=both), h.send_join(instance_id="i1", protocols=both)
    h.advance(1_000)
    h.send_sync(h.answers[second].member_id, 1, instance_id="i1")
    h.send_sync(h.answers[first].member_id, 1, {})
    ticket = h.send_join(instance_id="i1", protocols=[("sticky", b"")])
    assert ticket in h.waiting
    assert h.group().state is GroupState.PREPARING_REBALANCE


def test_old_id_of_a_static_member_is_fenced_everywhere(h: Harness) -> None:
    _, follower = static_group(h)
    h.send_join(instance_id="i1")
    assert h.heartbeat(follower, 1, instance_id="i1") is ErrorCode.FENCED_INSTANCE_ID
    assert h.join_error(h.send_sync(follower, 1, instance_id="i1")) is ErrorCode.FENCED_INSTANCE_ID
    assert h.join_error(h.send_join(follower, instance_id="i1")) is ErrorCode.FENCED_INSTANCE_ID
    assert h.leave((follower, "i1")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert h.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_two_with_the_same_instance_id_fence_each_other_while_joining(h: Harness) -> None:
    leader, follower = static_group(h)
    first = h.send_join(follower, instance_id="i1", protocols=[("range", subscription("u"))])
    assert first in h.waiting
    second = h.send_join(instance_id="i1", protocols=[("range", subscription("u"))])
    assert h.join_error(first) is ErrorCode.FENCED_INSTANCE_ID
    h.send_join(leader, instance_id="i0")
    assert h.answers[second].generation_id == 2


def test_static_member_stays_in_the_group_through_a_rebalance_that_it_misses(h: Harness) -> None:
    leader, follower = static_group(h)
    ticket = h.send_join(leader, instance_id="i0", session_timeout_ms=100_000, rebalance_timeout_ms=8_000)
    h.heartbeat(follower, 1, instance_id="i1")
    h.advance(9_000)
    assert h.group().state is GroupState.PREPARING_REBALANCE  # the follower's own rebalance timeout is longer
    h.heartbeat(follower, 1, instance_id="i1")
    for _ in range(10):
        h.advance(6_000)
        h.heartbeat(follower, 1, instance_id="i1")
    assert h.answers[ticket].generation_id == 2
    assert {member.member_id for member in h.answers[ticket].members} == {leader, follower}


def test_static_member_is_removed_by_name_alone(h: Harness) -> None:
    leader, _ = static_group(h)
    assert h.leave(("", "i1")) == [ErrorCode.NONE]
    assert list(h.group().members) == [leader]


# -- failover ----------------------------------------------------------------------------------------------------------


def test_new_coordinator_knows_the_stable_group_and_gives_its_members_a_session(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    h.fail_over()
    assert h.heartbeat(leader, 1) is ErrorCode.NONE
    assert h.sync(follower, 1).assignment == follower.encode()
    h.advance(9_000)
    h.heartbeat(leader, 1)
    h.advance(1_000)
    assert list(h.group().members) == [leader]


def test_new_coordinator_loads_a_group_whose_members_have_agreed_on_another_protocol_since(h: Harness) -> None:
    """Members keep their ids. The coordinator used the first record's protocols, did not find the later protocol, and loaded
    nothing: all groups of that partition had no coordinator."""
    both = [("range", subscription("t")), ("sticky", subscription("t"))]
    first, ticket = h.new_member(protocols=both)
    assert h.answers[ticket].protocol_name == "range"
    h.sync(first, 1, {first: b"all"})
    second, _ = h.new_member(protocols=both[1:])
    ticket = h.send_join(first, protocols=both)
    assert h.answers[ticket].protocol_name == "sticky"
    h.send_sync(second, 2)
    h.sync(first, 2, {first: b"one", second: b"other"})
    h.fail_over()
    assert {member.member_id: member.assignment for member in h.group().members.values()} == {
        first: b"one",
        second: b"other",
    }
    assert h.heartbeat(first, 2) is ErrorCode.NONE
    third, _ = h.new_member(protocols=both)
    for member in (first, second):
        assert h.send_join(member, protocols=both[1:]) in (*h.waiting, *h.answers)
    assert h.group().protocol == "sticky" and third in h.group().members


def test_new_coordinator_knows_what_members_subscribe_to_now(h: Harness) -> None:
    """With the members' first subscriptions, offsets of topics that were added later would expire, or could be deleted."""
    member, _ = h.new_member(protocols=[("range", subscription("t"))])
    h.sync(member, 1, {member: b"t"})
    h.send_join(member, protocols=[("range", subscription("u"))])
    h.sync(member, 2, {member: b"u"})
    h.fail_over()
    assert h.group().subscribed_topics == frozenset({"u"})
    assert h.machine.describe(GROUP, api_version=5).members[0].member_metadata == subscription("u")


def test_requests_that_wait_at_the_old_coordinator_get_not_coordinator(h: Harness) -> None:
    leader, _ = h.stable_group()
    ticket = h.send_join(leader)
    assert h.fail_over() == [ticket]
    assert h.waiting == []


# -- looking at groups -------------------------------------------------------------------------------------------------


def test_stable_group_is_described_with_its_members_metadata_and_assignments(h: Harness) -> None:
    leader, follower = h.stable_group()
    described = h.machine.describe(GROUP, api_version=5)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert {m.member_id: m.member_assignment for m in described.members} == {
        leader: leader.encode(),
        follower: follower.encode(),
    }
    assert described.members[0].member_metadata == subscription("t")
    assert described.members[0].client_host == "/127.0.0.1"
    h.send_join(leader)
    described = h.machine.describe(GROUP, api_version=5)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")


def test_unknown_group_is_described_as_dead_and_from_version_6_on_as_an_error(h: Harness) -> None:
    assert h.machine.describe("nobody", api_version=5).group_state == "Dead"
    assert h.machine.describe("nobody", api_version=5).error_code == ErrorCode.NONE
    assert h.machine.describe("nobody", api_version=6).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ([], [], {"g", "empty"}),
        (["stable"], [], {"g"}),
        (["Empty", "Dead"], [], {"empty"}),
        ([], ["Classic"], {"g", "empty"}),
        ([], ["consumer"], set()),
        (["Stable"], ["classic"], {"g"}),
    ],
)
def test_groups_are_listed_by_state_and_type(
    h: Harness, states: list[str], types: list[str], expected: set[str]
) -> None:
    h.stable_group()
    h.send_join(group_id="empty")
    listed = h.machine.list_groups(ListGroupsRequest(states_filter=states, types_filter=types))
    assert {each.group_id for each in listed} == expected


def test_only_empty_groups_are_deleted(h: Harness) -> None:
    members = h.stable_group()
    response = h.ask(lambda machine: machine.delete_groups([GROUP, "nobody"]))
    assert [each.error_code for each in response.results] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    h.leave(*members)
    response = h.ask(lambda machine: machine.delete_groups([GROUP]))
    assert response.results[0].error_code == ErrorCode.NONE
    assert GROUP not in h.machine.groups
    assert GROUP not in h.replayed().groups


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", GroupState)
@pytest.mark.parametrize("target", GroupState)
def test_transitions_outside_of_the_table_are_bugs(source: GroupState, target: GroupState) -> None:
    group = ClassicGroup("g", state=source)
    if target in TRANSITIONS[source]:
        group.transition(target, 1)
        assert (group.state, group.previous_state) == (target, source)
    else:
        with pytest.raises(IllegalTransition):
            group.transition(target, 1)


def test_refusals_contain_their_error_code() -> None:
    with pytest.raises(Refused) as caught:
        ClassicGroup("g").require_member("m", None)
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


# -- clients that disappear while they wait ----------------------------------------------------------------------------


def abandon(h: Harness, ticket: Ticket) -> None:
    h.carry_out(h.machine.join_abandoned(GROUP, lambda each: each is ticket, h.now_ms), None)
    h.issued.remove(ticket)


def test_new_member_that_disconnects_while_it_waits_is_forgotten_and_the_others_go_on(h: Harness) -> None:
    leader, follower = h.stable_group()
    ghost, ticket = h.new_member()
    waiting = [h.send_join(leader)]
    abandon(h, ticket)
    assert ghost not in h.group().members
    h.group().validate()
    waiting.append(h.send_join(follower))
    assert {h.answers[each].generation_id for each in waiting} == {2}


def test_last_missing_member_disconnects_and_the_others_continue_at_once(h: Harness) -> None:
    [leader] = h.stable_group(1)
    _, ticket = h.new_member()
    h.leave(leader)  # the new one is alone, and gets its generation
    assert h.answers[ticket].generation_id == 2


def test_member_that_disconnects_while_it_rejoins_keeps_its_place_for_a_while(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=10_000, rebalance_timeout_ms=300_000)
    ticket = h.send_join(follower, protocols=[("range", subscription("u"))], rebalance_timeout_ms=300_000)
    abandon(h, ticket)
    assert follower in h.group().members
    waiting = h.send_join(leader, rebalance_timeout_ms=300_000)
    assert waiting in h.waiting, "a ghost does not count as joined"
    h.group().validate()
    h.advance(ABANDONED_GRACE_MS - 1)
    assert waiting in h.waiting
    h.advance(1)
    assert h.answers[waiting].generation_id == 2
    assert list(h.group().members) == [leader]


def test_member_that_disconnects_and_rejoins_in_time_is_in_the_generation(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    abandon(h, h.send_join(follower, protocols=[("range", subscription("u"))]))
    tickets = [h.send_join(leader), h.send_join(follower)]
    assert {h.answers[each].generation_id for each in tickets} == {2}
