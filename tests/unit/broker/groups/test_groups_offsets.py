"""Committed offsets: permission to commit, results of fetches, deletion and expiry."""

from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.offsets import TOMBSTONES_MAX
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.runtime.machine import Result, Ticket
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.broker.groups.consumer_driver import Client
from tests.unit.broker.groups.group_harness import GROUP, Harness

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def h() -> Harness:
    return Harness()


def commit(
    h: Harness,
    offset: int,
    *,
    topic: str = "t",
    partition: int = 0,
    group_id: str = GROUP,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    metadata: str | None = "",
    version: int = 8,
    retention_time_ms: int = -1,
) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=group_id,
        member_id=member_id,
        generation_id_or_member_epoch=generation,
        group_instance_id=instance_id,
        retention_time_ms=retention_time_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    )
                ],
            )
        ],
    )
    try:
        response = h.ask(lambda machine: machine.commit_offsets(request, api_version=version, now_ms=h.now_ms))
    except Refused as refusal:
        return refusal.code
    return ErrorCode(response.topics[0].partitions[0].error_code)


def txn_commit(
    h: Harness,
    offset: int,
    *,
    producer_id: int = 7,
    partition: int = 0,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    group_id: str = GROUP,
) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group_id,
        producer_id=producer_id,
        producer_epoch=0,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
            )
        ],
    )
    requester = Requester("c", "/h", 3)
    try:
        response = h.ask(lambda machine: machine.commit_offsets_in_transaction(request, requester, h.now_ms))
    except Refused as refusal:
        return refusal.code
    return ErrorCode(response.topics[0].partitions[0].error_code)


def fetched(h: Harness, *partitions: int, stable: bool = False, group_id: str = GROUP) -> list[int | ErrorCode]:
    request = OffsetFetchRequestGroup(
        group_id=group_id, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions))]
    )
    response = h.machine.fetch_offsets(request, require_stable=stable)
    return [
        ErrorCode(each.error_code) if each.error_code else each.committed_offset
        for each in response.topics[0].partitions
    ]


def all_fetched(h: Harness, group_id: str = GROUP) -> dict[tuple[str, int], int]:
    response = h.machine.fetch_offsets(OffsetFetchRequestGroup(group_id=group_id, topics=None), require_stable=False)
    return {(topic.name, p.partition_index): p.committed_offset for topic in response.topics for p in topic.partitions}


def delete(h: Harness, topic: str, *partitions: int) -> list[ErrorCode]:
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
            )
        ],
    )
    response = h.ask(lambda machine: machine.delete_offsets(request))
    return [ErrorCode(each.error_code) for each in response.topics[0].partitions]


# -- committing --------------------------------------------------------------------------------------------------------


def test_consumer_without_a_group_commits_and_resumes(h: Harness) -> None:
    assert commit(h, 42) is ErrorCode.NONE
    assert fetched(h, 0, 1) == [42, -1]
    h.fail_over()
    assert fetched(h, 0) == [42]
    assert h.machine.store.get(GROUP, "t", 0).leader_epoch == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sender", "generation", "version", "expected"),
    [
        ("member", 1, 8, ErrorCode.NONE),
        ("member", 0, 8, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 1, 8, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 8, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_to_a_group_with_members_needs_member_and_generation(
    h: Harness, sender: str, generation: int, version: int, expected: ErrorCode
) -> None:
    leader, _ = h.stable_group()
    member_id = leader if sender == "member" else sender
    assert commit(h, 1, member_id=member_id, generation=generation, version=version) is expected


@pytest.mark.parametrize(
    ("version", "expected"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_commit_with_a_generation_to_a_missing_group(h: Harness, version: int, expected: ErrorCode) -> None:
    assert commit(h, 1, member_id="m", generation=3, version=version) is expected


def test_commit_while_the_group_completes_its_rebalance_must_rejoin(h: Harness) -> None:
    member_id, _ = h.new_member()
    assert commit(h, 1, member_id=member_id, generation=1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_while_the_group_prepares_a_rebalance_is_taken_so_that_nothing_is_read_twice(h: Harness) -> None:
    leader, follower = h.stable_group()
    h.send_join(leader)
    assert commit(h, 5, member_id=follower, generation=1) is ErrorCode.NONE
    assert fetched(h, 0) == [5]


def test_commit_keeps_the_session_alive(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=10_000)
    h.advance(6_000)
    commit(h, 5, member_id=leader, generation=1)
    h.advance(6_000)
    assert list(h.group().members) == [leader]
    assert follower not in h.group().members


def test_commit_of_a_replaced_static_member_is_fenced(h: Harness) -> None:
    first = h.answers[h.send_join(instance_id="i")].member_id
    h.sync(first, 1, {first: b"x"})
    h.send_join(instance_id="i")
    assert commit(h, 1, member_id=first, generation=1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


def test_metadata_over_the_limit_is_refused_for_its_partition_alone(h: Harness) -> None:
    assert commit(h, 1, metadata="x" * 4096) is ErrorCode.NONE
    assert commit(h, 2, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert fetched(h, 0) == [1]


def test_null_metadata_is_stored_as_empty(h: Harness) -> None:
    commit(h, 1, metadata=None)
    offset = h.machine.store.get(GROUP, "t", 0)
    assert offset is not None
    assert offset.metadata == ""


# -- fetching ----------------------------------------------------------------------------------------------------------


def test_unknown_group_has_no_offsets(h: Harness) -> None:
    assert fetched(h, 0, group_id="nobody") == [-1]
    assert all_fetched(h, "nobody") == {}


def test_all_offsets_of_a_group_are_fetched_without_naming_them(h: Harness) -> None:
    commit(h, 1, topic="a", partition=0)
    commit(h, 2, topic="b", partition=3)
    assert all_fetched(h) == {("a", 0): 1, ("b", 3): 2}


# -- transactions ------------------------------------------------------------------------------------------------------


def test_offsets_of_a_transaction_count_when_it_commits(h: Harness) -> None:
    commit(h, 1)
    assert txn_commit(h, 10) is ErrorCode.NONE
    assert fetched(h, 0) == [1]
    h.end_transaction(7, is_commit=True)
    assert fetched(h, 0) == [10]
    h.fail_over()
    assert fetched(h, 0) == [10]


def test_offsets_of_an_aborted_transaction_never_count(h: Harness) -> None:
    txn_commit(h, 10)
    h.end_transaction(7, is_commit=False)
    assert fetched(h, 0) == [-1]
    assert not h.machine.store.has_open_transaction(GROUP)


def test_fetch_of_stable_offsets_must_wait_while_a_transaction_is_open(h: Harness) -> None:
    commit(h, 1)
    txn_commit(h, 10)
    assert fetched(h, 0, 1, stable=True) == [ErrorCode.UNSTABLE_OFFSET_COMMIT, -1]
    assert fetched(h, 0, stable=False) == [1]
    h.end_transaction(7, is_commit=True)
    assert fetched(h, 0, stable=True) == [10]


def test_transaction_open_at_a_failover_is_still_pending_afterwards(h: Harness) -> None:
    txn_commit(h, 10)
    h.fail_over()
    assert fetched(h, 0, stable=True) == [ErrorCode.UNSTABLE_OFFSET_COMMIT]
    h.end_transaction(7, is_commit=True)
    assert fetched(h, 0) == [10]


def test_plain_commit_written_after_a_transactions_offset_wins_over_it(h: Harness) -> None:
    txn_commit(h, 10)
    commit(h, 20)
    h.end_transaction(7, is_commit=True)
    assert fetched(h, 0) == [20]


def test_transactions_of_several_producers_do_not_mix(h: Harness) -> None:
    txn_commit(h, 10, producer_id=7, partition=0)
    txn_commit(h, 11, producer_id=8, partition=1)
    h.end_transaction(7, is_commit=True)
    assert fetched(h, 0, 1) == [10, -1]
    assert fetched(h, 1, stable=True) == [ErrorCode.UNSTABLE_OFFSET_COMMIT]


@pytest.mark.parametrize(
    ("generation", "member", "expected"),
    [
        (1, "leader", ErrorCode.NONE),
        (0, "leader", ErrorCode.ILLEGAL_GENERATION),
        (1, "stranger", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "", ErrorCode.NONE),  # producers before KIP-447 send no member
    ],
)
def test_transactional_commit_is_fenced_by_generation(
    h: Harness, generation: int, member: str, expected: ErrorCode
) -> None:
    leader, _ = h.stable_group()
    member_id = leader if member == "leader" else member
    assert txn_commit(h, 1, generation=generation, member_id=member_id) is expected


@pytest.mark.parametrize(
    ("epoch", "member_id", "instance_id", "expected"),
    [
        (1, "a", None, ErrorCode.NONE),
        (-1, "", None, ErrorCode.NONE),  # producers may leave out the consumer
        (-1, "", "i", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "a", None, ErrorCode.ILLEGAL_GENERATION),
        (9, "a", None, ErrorCode.ILLEGAL_GENERATION),
        (1, "stranger", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_transactional_commit_to_a_consumer_group_is_fenced_by_epoch(
    h: Harness, epoch: int, member_id: str, instance_id: str | None, expected: ErrorCode
) -> None:
    h.topics.set("t", 1)
    Client(h, "a").poll()
    assert txn_commit(h, 1, generation=epoch, member_id=member_id, instance_id=instance_id) is expected


def test_transactional_commit_with_a_generation_to_a_missing_group_is_illegal(h: Harness) -> None:
    assert txn_commit(h, 1, generation=3, member_id="m") is ErrorCode.ILLEGAL_GENERATION


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_offsets_of_subscribed_topics_are_protected(h: Harness) -> None:
    leader, _ = h.stable_group()  # subscribed to t
    commit(h, 1, member_id=leader, generation=1)
    commit(h, 1, topic="u", member_id=leader, generation=1)
    assert delete(h, "t", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert delete(h, "u", 0, 5) == [ErrorCode.NONE, ErrorCode.NONE]
    assert all_fetched(h) == {("t", 0): 1}


def test_offsets_of_a_group_whose_subscription_is_unknown_are_protected_while_it_has_members(h: Harness) -> None:
    h.stable_group(protocol_type="connect", protocols=[("p", b"\xff")])
    with pytest.raises(Refused) as caught:
        delete(h, "t", 0)
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP


def test_deleting_an_offset_takes_it_from_open_transactions_as_well(h: Harness) -> None:
    txn_commit(h, 10)
    assert delete(h, "t", 0) == [ErrorCode.NONE]
    h.end_transaction(7, is_commit=True)
    assert fetched(h, 0) == [-1]


def test_deleting_a_group_deletes_its_offsets_committed_and_pending(h: Harness) -> None:
    commit(h, 1, partition=0)
    txn_commit(h, 10, partition=1)
    response = h.ask(lambda machine: machine.delete_groups([GROUP]))
    assert response.results[0].error_code == ErrorCode.NONE
    h.end_transaction(7, is_commit=True)
    for machine in (h.machine, h.replayed()):
        assert GROUP not in machine.groups
        assert machine.store.count == 0


@pytest.mark.parametrize("whole_group", [True, False], ids=["the group", "its offsets"])
def test_more_offsets_are_deleted_than_one_batch_takes(
    h: Harness, monkeypatch: pytest.MonkeyPatch, whole_group: bool
) -> None:
    """All in one batch would be larger than `max.message.bytes`, and would never be written."""
    partitions, topic = 6_000, "t" * 200
    for partition in range(partitions):
        commit(h, 1, topic=topic, partition=partition)
    sizes: list[int] = []
    carry_out = h.carry_out

    def watched(result: Result[Any], ticket: Ticket | None) -> bool:
        sizes.append(sum(len(record.key) for record in result.records))
        return carry_out(result, ticket)

    monkeypatch.setattr(h, "carry_out", watched)
    if whole_group:
        [deleted] = h.ask(lambda machine: machine.delete_groups([GROUP])).results
        assert deleted.error_code == ErrorCode.NONE
    else:
        asked = OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in range(partitions)]
        )
        request = OffsetDeleteRequest(group_id=GROUP, topics=[asked])
        assert len(h.ask(lambda machine: machine.delete_offsets(request)).topics[0].partitions) == partitions
    assert max(sizes) < 500_000 < sum(sizes)
    for machine in (h.machine, h.replayed()):
        assert machine.store.count == 0
        assert (GROUP in machine.groups) is not whole_group


def test_offsets_of_a_deleted_topic_go_with_it(h: Harness) -> None:
    commit(h, 1, topic="t")
    commit(h, 2, topic="u")
    h.carry_out(h.machine.topics_deleted(["t"]), None)
    assert all_fetched(h) == {("u", 0): 2}


def test_more_offsets_than_fit_into_a_batch_go_in_several(h: Harness) -> None:
    for partition in range(TOMBSTONES_MAX + 10):
        commit(h, 1, partition=partition)
    h.carry_out(h.machine.topics_deleted(["t"]), None)
    assert h.machine.store.count == 10
    h.advance(1)
    assert h.machine.store.count == 0


@pytest.mark.parametrize("why", ["the topic is gone", "they have expired", "their group never had a member"])
def test_long_names_are_removed_in_batches_that_can_be_written(
    h: Harness, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Clients choose the ids of groups. A batch that is too large would be retried forever, and nothing would expire."""
    ids = [f"{number:02}{'g' * 30_000}" for number in range(50)]
    for group_id in ids:
        if why == "their group never had a member":
            refused = h.send_join(group_id=group_id, protocols=())
            assert h.answers[refused].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        else:
            commit(h, 1, group_id=group_id)
    sizes: list[int] = []
    carry_out = h.carry_out

    def watched(result: Result[Any], ticket: Ticket | None) -> bool:
        sizes.append(sum(len(record.key) for record in result.records))
        return carry_out(result, ticket)

    monkeypatch.setattr(h, "carry_out", watched)
    if why == "the topic is gone":
        h.carry_out(h.machine.topics_deleted(["t"]), None)
        h.advance(1)
        assert h.machine.store.count == 0
    else:
        h.advance(7 * DAY_MS + 600_001)
        assert not h.machine.groups
    assert max(sizes) < 500_000 < sum(sizes)


def test_offsets_that_could_not_be_removed_are_removed_later_unless_the_topic_is_back(h: Harness) -> None:
    commit(h, 1, topic="t")
    h.machine.topics_deleted(["t"])  # the append is refused: nothing is replayed, no timer is set
    assert all_fetched(h) == {("t", 0): 1}
    h.advance(600_001)
    assert all_fetched(h) == {}
    commit(h, 2, topic="t")
    h.machine.topics_deleted(["t"])
    h.topics.set("t", 1)
    h.advance(600_001)
    assert all_fetched(h) == {("t", 0): 2}


# -- expiry (KIP-211) --------------------------------------------------------------------------------------------------


def test_offsets_of_a_simple_consumer_expire_a_retention_after_their_commit(h: Harness) -> None:
    commit(h, 1, partition=0)
    h.advance(3 * DAY_MS)
    commit(h, 2, partition=1)
    h.advance(4 * DAY_MS + 600_000)
    assert all_fetched(h) == {("t", 1): 2}
    h.advance(3 * DAY_MS)
    assert all_fetched(h) == {}
    assert GROUP not in h.machine.groups
    assert GROUP not in h.replayed().groups


def test_offsets_of_an_empty_group_expire_a_retention_after_the_last_member_left(h: Harness) -> None:
    leader, follower = h.stable_group(session_timeout_ms=1_800_000)
    commit(h, 1, member_id=leader, generation=1)
    for _ in range(8 * 48 * 2):
        h.advance(900_000)
        assert h.heartbeat(leader, 1) is ErrorCode.NONE
        assert h.heartbeat(follower, 1) is ErrorCode.NONE
    assert all_fetched(h) == {("t", 0): 1}  # the group lives, and reads the topic
    h.leave(leader, follower)
    h.advance(6 * DAY_MS)
    assert all_fetched(h) == {("t", 0): 1}
    h.advance(DAY_MS + 600_000)
    assert all_fetched(h) == {}


def test_offsets_of_topics_that_a_stable_group_no_longer_reads_expire(h: Harness) -> None:
    h.settings = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=60_000)
    members = h.stable_group(session_timeout_ms=1_800_000)
    commit(h, 1, topic="t", member_id=members[0], generation=1)
    commit(h, 2, topic="old", member_id=members[0], generation=1)
    h.advance(700_000)
    assert all_fetched(h) == {("t", 0): 1}


def test_offset_with_its_own_expiry_keeps_it(h: Harness) -> None:
    commit(h, 1, version=4, retention_time_ms=1_000)
    h.advance(600_000)
    assert all_fetched(h) == {}


def test_offset_with_unlimited_retention_is_kept(h: Harness) -> None:
    commit(h, 1, version=4, retention_time_ms=2**63 - 1)
    h.advance(30 * DAY_MS)
    assert all_fetched(h) == {("t", 0): 1}
    assert h.replayed().store.get(GROUP, "t", 0) == h.machine.store.get(GROUP, "t", 0)


def test_offset_with_a_pending_transaction_does_not_expire(h: Harness) -> None:
    commit(h, 1)
    txn_commit(h, 2)
    h.advance(8 * DAY_MS)
    assert all_fetched(h) == {("t", 0): 1}
    h.end_transaction(7, is_commit=False)
    h.advance(600_000)
    assert all_fetched(h) == {}


def test_empty_group_without_offsets_is_forgotten(h: Harness) -> None:
    h.leave(*h.stable_group())
    h.advance(600_000)
    assert GROUP not in h.machine.groups
