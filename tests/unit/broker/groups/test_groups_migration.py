"""Groups that change their protocol: classic to consumer and back, empty or running."""

from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.classic_group import ClassicGroup, GroupState
from barnabas.broker.groups.consumer_group import ConsumerGroup
from barnabas.broker.groups.settings import GroupSettings, MigrationPolicy
from barnabas.wire import codec
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.consumer_protocol_subscription import TopicPartition as OwnedPartition
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup
from tests.unit.broker.groups.consumer_driver import Client, consumer_group, settle
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness, subscription


def settings(policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL, **more: Any) -> GroupSettings:
    return GroupSettings(initial_rebalance_delay_ms=0, migration_policy=policy, **more)


@pytest.fixture
def h() -> Harness:
    return Harness(settings(), FakeTopics({"t": 6}))


def assignment(*numbers: int) -> bytes:
    value = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="t", partitions=list(numbers))])
    return codec.encode_versioned(value, 1)


def read_assignment(data: bytes) -> set[int]:
    value, _ = codec.decode_versioned(ConsumerProtocolAssignment, data)
    return {number for each in value.assigned_partitions for number in each.partitions}


class ClassicClient:
    """A cooperative classic member, in the coordinator's view."""

    def __init__(self, h: Harness, member_id: str = "", generation: int = 0, owned: set[int] | None = None) -> None:
        self.h = h
        self.member_id = member_id
        self.generation = generation
        self.owned = owned or set()

    def metadata(self) -> bytes:
        value = ConsumerProtocolSubscription(
            topics=["t"], owned_partitions=[OwnedPartition(topic="t", partitions=sorted(self.owned))]
        )
        return codec.encode_versioned(value, 1)

    def join(self) -> None:
        answer = self.h.answers[self.h.send_join(self.member_id, protocols=[("range", self.metadata())])]
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.h.answers[self.h.send_join(self.member_id, protocols=[("range", self.metadata())])]
        assert answer.error_code == ErrorCode.NONE, answer
        assert answer.leader == ""  # the coordinator leads
        self.generation = answer.generation_id
        sync = self.h.answers[self.h.send_sync(self.member_id, self.generation)]
        if isinstance(sync, Refused) or sync.error_code:
            return
        self.owned = read_assignment(sync.assignment)

    def poll(self) -> ErrorCode:
        error = self.h.heartbeat(self.member_id, self.generation)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
        return error


def classic_pair(h: Harness) -> list[ClassicClient]:
    """Return a stable classic group with two members that share t."""
    ids = h.stable_group(2)
    h.send_join(ids[0])
    ticket = h.send_join(ids[1])
    generation = h.answers[ticket].generation_id
    h.send_sync(ids[1], generation)
    h.sync(ids[0], generation, {ids[0]: assignment(0, 1, 2), ids[1]: assignment(3, 4, 5)})
    return [
        ClassicClient(h, ids[0], generation, {0, 1, 2}),
        ClassicClient(h, ids[1], generation, {3, 4, 5}),
    ]


def settle_mixed(h: Harness, classic: list[ClassicClient], *consumers: Client) -> None:
    for _ in range(8):
        for each in classic:
            each.poll()
        settle(*consumers, rounds=1)


# -- empty groups ------------------------------------------------------------------------------------------------------


def commit(h: Harness) -> None:
    request = OffsetCommitRequest(
        group_id=GROUP,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(committed_offset=9)])],
    )
    h.ask(lambda machine: machine.commit_offsets(request, api_version=8, now_ms=h.now_ms))


@pytest.mark.parametrize("policy", MigrationPolicy)
def test_empty_classic_group_becomes_a_consumer_group_with_its_offsets(h: Harness, policy: MigrationPolicy) -> None:
    h.settings = settings(policy)
    h.leave(*h.stable_group())
    commit(h)
    Client(h, "a").poll()
    for machine in (h.machine, h.replayed()):
        assert isinstance(machine.groups[GROUP], ConsumerGroup)
        assert machine.store.get(GROUP, "t", 0) is not None
    assert consumer_group(h).group_epoch > 2


def test_first_member_of_a_former_classic_group_begins_an_epoch_though_it_wants_no_topic_yet(h: Harness) -> None:
    """The Java client joins like this while its pattern matches nothing. Its epoch must not fall when a topic comes."""
    h.leave(*h.stable_group())
    generation = h.group().generation
    client = Client(h, "a", topics=[])
    client.poll()
    assert consumer_group(h).group_epoch == client.epoch > generation
    consumer_group(h).validate()
    client.topics = ["t"]
    client.poll()
    assert client.seen == sorted(client.seen)
    assert client.numbers() == set(range(6))


def test_group_that_has_just_become_classic_exists_after_a_failover(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    a.leave()
    commit(h)
    assert h.join_error(h.send_join()) is ErrorCode.MEMBER_ID_REQUIRED
    h.fail_over()
    group = h.group()
    group.validate()
    wanted = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    fetched = h.machine.fetch_offsets(wanted, require_stable=False)
    assert fetched.topics[0].partitions[0].committed_offset == 9
    [deleted] = h.ask(lambda machine: machine.delete_groups([GROUP])).results
    assert deleted.error_code == ErrorCode.NONE
    assert h.machine.store.count == 0


def test_offsets_of_a_group_that_became_classic_expire_after_a_failover(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    a.leave()
    commit(h)
    h.send_join()
    h.fail_over()
    h.advance(h.settings.offsets_retention_ms + h.settings.offsets_retention_check_interval_ms)
    assert h.machine.store.count == 0
    assert h.machine.groups == {}


def test_empty_consumer_group_stays_one_while_the_change_cannot_be_written(h: Harness) -> None:
    a = Client(h, "a")
    a.poll()
    a.leave()
    h.refuses = True
    assert h.join_error(h.send_join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.refuses = False
    assert consumer_group(h).is_empty
    a.epoch = 0
    a.poll()
    assert a.numbers() == set(range(6))


def test_classic_members_go_on_when_the_upgrade_cannot_be_written(h: Harness) -> None:
    ids = [client.member_id for client in classic_pair(h)]
    again = h.send_join(ids[0])
    assert again in h.waiting
    h.refuses = True
    assert Client(h, "a").poll_refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.refuses = False
    assert again in h.waiting, "no member knows of an upgrade"
    h.group().validate()
    h.send_join(ids[1])
    assert h.answers[again].error_code == ErrorCode.NONE


@pytest.mark.parametrize("policy", MigrationPolicy)
def test_empty_consumer_group_becomes_a_classic_group_with_its_offsets(h: Harness, policy: MigrationPolicy) -> None:
    h.settings = settings(policy)
    a = Client(h, "a")
    a.poll()
    a.leave()
    commit(h)
    member_id, ticket = h.new_member()
    assert h.answers[ticket].leader == member_id
    h.sync(member_id, h.answers[ticket].generation_id, {})
    for machine in (h.machine, h.replayed()):
        assert isinstance(machine.groups[GROUP], ClassicGroup)
        assert machine.store.get(GROUP, "t", 0) is not None


def test_simple_group_that_only_has_offsets_becomes_a_consumer_group(h: Harness) -> None:
    commit(h)
    Client(h, "a").poll()
    assert isinstance(h.replayed().groups[GROUP], ConsumerGroup)


# -- upgrade -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_running_classic_group_is_not_upgraded_against_the_policy(h: Harness, policy: MigrationPolicy) -> None:
    h.settings = settings(policy)
    classic_pair(h)
    assert Client(h, "a").poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND
    assert h.group().state is GroupState.STABLE


def test_group_of_another_protocol_type_is_not_upgraded(h: Harness) -> None:
    h.stable_group(protocol_type="connect", protocols=[("p", b"")])
    assert Client(h, "a").poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND


def test_group_with_malformed_subscriptions_is_not_upgraded(h: Harness) -> None:
    h.stable_group(protocols=[("range", b"\xff")])
    assert Client(h, "a").poll_refused() is ErrorCode.GROUP_ID_NOT_FOUND
    assert h.group().state is GroupState.STABLE


def test_rolling_upgrade_shares_partitions_between_old_and_new_members_once_each(h: Harness) -> None:
    classic = classic_pair(h)
    new = Client(h, "new")
    new.poll()
    assert isinstance(h.machine.groups[GROUP], ConsumerGroup)
    settle_mixed(h, classic, new)
    assert sorted([*classic[0].owned, *classic[1].owned, *new.numbers()]) == list(range(6))
    assert len(new.numbers()) == 2
    # The old ones leave one after the other and come back as new ones.
    for n, each in enumerate(list(classic)):
        assert h.leave(each.member_id) == [ErrorCode.NONE]
        classic.remove(each)
        other = Client(h, f"other{n}")
        other.poll()
        settle_mixed(h, classic, new, other)
        if n == 0:
            first = other
    settle(new, first, other)
    assert sorted([*first.numbers(), *other.numbers(), *new.numbers()]) == list(range(6))
    assert not any(member.uses_classic_protocol for member in consumer_group(h).members.values())


def test_upgrade_during_a_rebalance_sends_waiting_members_back_to_join(h: Harness) -> None:
    classic = classic_pair(h)
    ticket = h.send_join(classic[0].member_id, protocols=[("range", subscription("t"))])
    assert ticket in h.waiting
    Client(h, "new").poll()
    assert h.join_error(ticket) is ErrorCode.REBALANCE_IN_PROGRESS
    assert h.waiting == []


def test_refused_upgrade_leaves_waiting_members_alone(h: Harness) -> None:
    h.settings = settings(consumer_max_size=2)
    classic = classic_pair(h)
    ticket = h.send_join(classic[0].member_id, protocols=[("range", subscription("t"))])
    assert Client(h, "new").poll_refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert h.waiting == [ticket]


def test_upgraded_group_replays(h: Harness) -> None:
    classic = classic_pair(h)
    new = Client(h, "new")
    new.poll()
    settle_mixed(h, classic, new)
    before = consumer_group(h)
    h.fail_over()
    after = consumer_group(h)
    assert after.members == before.members
    assert after.target == before.target


# -- classic members of a consumer group -------------------------------------------------------------------------------


@pytest.fixture
def mixed(h: Harness) -> tuple[list[ClassicClient], Client]:
    classic = classic_pair(h)
    new = Client(h, "new")
    new.poll()
    settle_mixed(h, classic, new)
    return classic, new


def test_classic_member_must_share_a_protocol_with_the_other_classic_ones(h: Harness, mixed: Any) -> None:
    ticket = h.send_join(protocols=[("sticky", subscription("t"))])
    assert h.join_error(ticket) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_requests_of_a_consumer_group_are_fenced_by_epoch(h: Harness, mixed: Any) -> None:
    classic, new = mixed
    member_id, generation = classic[0].member_id, classic[0].generation
    assert h.heartbeat(member_id, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert h.heartbeat(new.member_id, new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert h.join_error(h.send_sync(member_id, generation - 1)) is ErrorCode.ILLEGAL_GENERATION
    assert h.join_error(h.send_sync(member_id, generation, protocol_name="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert h.join_error(h.send_sync("stranger", generation)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_member_that_does_not_rejoin_in_time_is_removed(h: Harness, mixed: Any) -> None:
    classic, new = mixed
    h.topics.set("t", 9)
    new.poll()
    lazy = classic[0]
    for _ in range(7):
        assert h.heartbeat(lazy.member_id, lazy.generation) in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
        )
        classic[1].poll()
        new.poll()
        h.advance(9_000)
    assert lazy.member_id not in consumer_group(h).members


def test_classic_member_silent_past_its_own_session_is_removed(h: Harness, mixed: Any) -> None:
    classic, new = mixed
    h.advance(9_000)
    classic[1].poll()
    new.poll()
    h.advance(1_000)
    assert set(consumer_group(h).members) == {classic[1].member_id, "new"}


def test_classic_members_leave_a_consumer_group_in_one_request(h: Harness, mixed: Any) -> None:
    classic, new = mixed
    codes = h.leave(classic[0].member_id, classic[0].member_id, "stranger", new.member_id)
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


# -- downgrade ---------------------------------------------------------------------------------------------------------


def test_group_becomes_classic_when_its_last_consumer_member_leaves(h: Harness, mixed: Any) -> None:
    classic, new = mixed
    epoch = consumer_group(h).group_epoch
    new.leave()
    for machine in (h.machine, h.replayed()):
        group = machine.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        assert group.generation == epoch
        assert set(group.members) == {each.member_id for each in classic}
    h.advance(1)
    assert h.group().state is GroupState.PREPARING_REBALANCE
    tickets = [h.send_join(each.member_id, protocols=[("range", each.metadata())]) for each in classic]
    assert {h.answers[ticket].generation_id for ticket in tickets} == {epoch + 1}
    h.group().validate()


def test_group_becomes_classic_when_its_last_consumer_member_times_out(h: Harness, mixed: Any) -> None:
    classic, _ = mixed
    for _ in range(5):
        h.advance(9_000)
        for each in classic:
            h.heartbeat(each.member_id, each.generation)
    assert isinstance(h.machine.groups[GROUP], ClassicGroup)


def test_group_is_not_downgraded_against_the_policy(h: Harness, mixed: Any) -> None:
    _, new = mixed
    h.settings = settings(MigrationPolicy.UPGRADE)
    new.leave()
    assert isinstance(h.machine.groups[GROUP], ConsumerGroup)
    assert len(consumer_group(h).members) == 2


def test_static_consumer_member_that_comes_back_as_a_classic_one_downgrades_the_group(h: Harness) -> None:
    a = Client(h, "a", instance_id="i")
    a.poll()
    a.leave(epoch=-2)
    ticket = h.send_join(instance_id="i", protocols=[("range", subscription("t"))])
    answer = h.answers[ticket]
    assert answer.error_code == ErrorCode.NONE
    for machine in (h.machine, h.replayed()):
        group = machine.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        assert group.static_members == {"i": answer.member_id}
    sync = h.answers[h.send_sync(answer.member_id, answer.generation_id, instance_id="i")]
    assert read_assignment(sync.assignment) == set(range(6))
