"""The coordinator's driver and the handlers: all versions, permissions, waiting commits, moves, creation of the topic."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.support.async_fixture import async_fixture
from tests.unit.broker.groups.api_harness import FakeBroker, topic_id


@async_fixture
async def broker() -> AsyncIterator[FakeBroker]:
    yield await FakeBroker().serve()


def join_request(member_id: str = "", instance_id: str | None = None) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"meta")],
    )


async def join(broker: FakeBroker, version: int) -> JoinGroupResponse:
    response = await broker.ask(join_request(), JoinGroupResponse, version)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = await broker.ask(join_request(response.member_id), JoinGroupResponse, version)
    assert response.error_code == ErrorCode.NONE
    return response


def commit_request(offset: int, topic: str = "orders", partition: int = 0, **more: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id(topic),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
        ],
        **more,
    )


def fetch_request(version: int, group_id: str = "g", topic: str = "orders") -> OffsetFetchRequest:
    if version >= 8:
        topics = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id(topic), partition_indexes=[0])]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)])
    return OffsetFetchRequest(group_id=group_id, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])])


async def fetched(broker: FakeBroker, version: int = 8) -> int:
    response = await broker.ask(fetch_request(version), OffsetFetchResponse, version)
    [topic] = response.groups[0].topics if version >= 8 else response.topics
    return topic.partitions[0].committed_offset


# -- every version -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_member_joins_syncs_beats_and_leaves_in_every_version_of_join(broker: FakeBroker, version: int) -> None:
    joined = await join(broker, version)
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert joined.members[0].metadata == b"meta"
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
    )
    synced = await broker.ask(sync, SyncGroupResponse, min(version, 5))
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    beat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    assert (await broker.ask(beat, HeartbeatResponse, min(version, 4))).error_code == ErrorCode.NONE
    leave_version = min(version, 5)
    leave = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
    if leave_version >= 3:
        leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=joined.member_id)])
    left = await broker.ask(leave, LeaveGroupResponse, leave_version)
    assert left.error_code == ErrorCode.NONE
    assert (await broker.ask(beat, HeartbeatResponse, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
async def test_leaving_a_missing_group_is_an_error_of_each_member(broker: FakeBroker, version: int) -> None:
    request = LeaveGroupRequest(group_id="none", member_id="m")
    if version >= 3:
        request = LeaveGroupRequest(group_id="none", members=[MemberIdentity(member_id="m")])
    left = await broker.ask(request, LeaveGroupResponse, version)
    if version >= 3:
        assert (left.error_code, left.members[0].error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    else:
        assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(2, 11))
async def test_offset_is_committed_in_every_version(broker: FakeBroker, version: int) -> None:
    response = await broker.ask(commit_request(5), OffsetCommitResponse, version)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
    if version >= 10:
        assert response.topics[0].topic_id == topic_id("orders")
    else:
        assert response.topics[0].name == "orders"
    assert await fetched(broker) == 5


@pytest.mark.parametrize("version", range(1, 11))
async def test_offset_is_fetched_in_every_version(broker: FakeBroker, version: int) -> None:
    await broker.ask(commit_request(5), OffsetCommitResponse, 8)
    response = await broker.ask(fetch_request(version), OffsetFetchResponse, version)
    [topic] = response.groups[0].topics if version >= 8 else response.topics
    assert (topic.partitions[0].committed_offset, topic.partitions[0].metadata) == (5, "m")
    if version >= 10:
        assert topic.topic_id == topic_id("orders")


@pytest.mark.parametrize("version", range(2, 11))
async def test_all_offsets_are_fetched_and_those_of_hidden_topics_left_out(broker: FakeBroker, version: int) -> None:
    broker.tell({"hidden": 1})
    await broker.ask(commit_request(5), OffsetCommitResponse, 8)
    await broker.ask(commit_request(6, "hidden"), OffsetCommitResponse, 8)
    broker.rules.forbidden.add((AclOperation.DESCRIBE, AclResourceType.TOPIC, "hidden"))
    request = OffsetFetchRequest(group_id="g", topics=None)
    if version >= 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    response = await broker.ask(request, OffsetFetchResponse, version)
    topics = response.groups[0].topics if version >= 8 else response.topics
    assert [topic.partitions[0].committed_offset for topic in topics] == [5]
    if version >= 10:
        assert response.groups[0].topics[0].topic_id == topic_id("orders")


@pytest.mark.parametrize("version", range(6))
async def test_offsets_are_committed_in_a_transaction_in_every_version(broker: FakeBroker, version: int) -> None:
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=9,
        producer_epoch=2,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name, partitions=[TxnOffsetCommitRequestPartition(committed_offset=8, committed_metadata="")]
            )
            for name in ("orders", "gone")
        ],
    )
    response = await broker.ask(request, TxnOffsetCommitResponse, version)
    codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert codes == {"orders": ErrorCode.NONE, "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    [verified] = broker.verified
    assert verified == (broker.coordinator.partition_for("g"), "tx", 9, 2, version)
    assert broker.log.guard is broker.guard
    assert await fetched(broker) == -1
    partition = broker.coordinator.partition_for("g")
    broker.coordinator.txn_completed(partition, 9, 2, committed=True, offset=1)
    assert await fetched(broker) == 8


async def test_offsets_are_committed_in_a_transaction_by_topic_ids(broker: FakeBroker) -> None:
    def request(**fields: Any) -> TxnOffsetCommitRequest:
        topics = [
            TxnOffsetCommitRequestTopic(
                topic_id=topic_id(name),
                partitions=[TxnOffsetCommitRequestPartition(committed_offset=8, committed_metadata="")],
            )
            for name in ("orders", "gone")
        ]
        return TxnOffsetCommitRequest(transactional_id="tx", group_id="g", producer_id=9, topics=topics, **fields)

    response = await broker.ask(request(), TxnOffsetCommitResponse, 6)
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in response.topics}
    assert codes == {topic_id("orders"): ErrorCode.NONE, topic_id("gone"): ErrorCode.UNKNOWN_TOPIC_ID}
    broker.coordinator.txn_completed(broker.coordinator.partition_for("g"), 9, 0, committed=True, offset=1)
    fetched = await broker.ask(fetch_request(8), OffsetFetchResponse, 8)
    assert fetched.groups[0].topics[0].partitions[0].committed_offset == 8


@pytest.mark.parametrize(
    ("version", "expected"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
async def test_newer_producers_get_group_id_not_found(broker: FakeBroker, version: int, expected: ErrorCode) -> None:
    topic = TxnOffsetCommitRequestTopic(
        name="orders",
        topic_id=topic_id("orders"),
        partitions=[TxnOffsetCommitRequestPartition(committed_metadata="")],
    )
    request = TxnOffsetCommitRequest(
        transactional_id="tx", group_id="g", producer_id=9, generation_id=3, member_id="m", topics=[topic]
    )
    response = await broker.ask(request, TxnOffsetCommitResponse, version)
    assert response.topics[0].partitions[0].error_code == expected


@pytest.mark.parametrize(
    ("version", "message"), [(2, None), (3, "Group nope not found.")], ids=["without message", "with message"]
)
async def test_deletion_of_a_group_that_does_not_exist_says_so(
    broker: FakeBroker, version: int, message: str | None
) -> None:
    response = await broker.ask(DeleteGroupsRequest(groups_names=["nope"]), DeleteGroupsResponse, version)
    assert [(each.error_code, each.error_message) for each in response.results] == [
        (ErrorCode.GROUP_ID_NOT_FOUND, message)
    ]


async def test_offsets_of_a_transaction_that_is_not_open_are_refused(broker: FakeBroker) -> None:
    broker.verification_error = ErrorCode.INVALID_TXN_STATE
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=[TxnOffsetCommitRequestPartition()])],
    )
    response = await broker.ask(request, TxnOffsetCommitResponse, 3)
    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(6))
async def test_old_producers_get_coordinator_not_available_while_it_loads(broker: FakeBroker, version: int) -> None:
    """Producers before v2 give up after COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""

    broker.verification_error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        topics=[
            TxnOffsetCommitRequestTopic(
                name="orders", partitions=[TxnOffsetCommitRequestPartition(committed_metadata="")]
            )
        ],
    )
    response = await broker.ask(request, TxnOffsetCommitResponse, version)
    expected = ErrorCode.COORDINATOR_NOT_AVAILABLE if version < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert response.topics[0].partitions[0].error_code == expected


@pytest.mark.parametrize("version", range(7))
async def test_group_is_described_in_every_version(broker: FakeBroker, version: int) -> None:
    await join(broker, 9)
    request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True)
    response = await broker.ask(request, DescribeGroupsResponse, version)
    first, second = response.groups
    assert (first.group_state, first.members[0].client_host) == ("CompletingRebalance", "/127.0.0.1")
    assert second.group_state == "Dead"
    assert second.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    if version >= 3:
        assert first.authorized_operations & (1 << AclOperation.READ)


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed_in_every_version(broker: FakeBroker, version: int) -> None:
    await join(broker, 9)
    request = ListGroupsRequest()
    if version >= 4:
        request.states_filter = ["completingrebalance"]
    if version >= 5:
        request.types_filter = ["classic"]
    response = await broker.ask(request, ListGroupsResponse, version)
    assert [(each.group_id, each.protocol_type) for each in response.groups] == [("g", "consumer")]


@pytest.mark.parametrize("version", range(3))
async def test_groups_are_deleted_in_every_version(broker: FakeBroker, version: int) -> None:
    await broker.ask(commit_request(5), OffsetCommitResponse, 8)
    request = DeleteGroupsRequest(groups_names=["g", "none", "g"])
    response = await broker.ask(request, DeleteGroupsResponse, version)
    codes = {each.group_id: each.error_code for each in response.results}
    assert codes == {"g": ErrorCode.NONE, "none": ErrorCode.GROUP_ID_NOT_FOUND}
    assert await fetched(broker) == -1


@pytest.mark.parametrize("version", range(2))
async def test_consumer_protocol_in_every_version(broker: FakeBroker, version: int) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    response = await broker.ask(request, ConsumerGroupHeartbeatResponse, version)
    assert (response.member_id, response.member_epoch) == ("m", 1)
    assert response.assignment is not None
    assert response.assignment.topic_partitions[0].partitions == [0, 1]
    described = await broker.ask(
        ConsumerGroupDescribeRequest(group_ids=["g", ""], include_authorized_operations=True),
        ConsumerGroupDescribeResponse,
        version,
    )
    assert described.groups[0].members[0].assignment.topic_partitions[0].topic_name == "orders"
    assert described.groups[1].error_code == ErrorCode.INVALID_GROUP_ID


async def test_members_that_read_a_hidden_topic_are_not_described(broker: FakeBroker) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    await broker.ask(request, ConsumerGroupHeartbeatResponse, 1)
    broker.rules.forbidden.add((AclOperation.DESCRIBE, AclResourceType.TOPIC, "orders"))
    describe = ConsumerGroupDescribeRequest(group_ids=["g"])
    [group] = (await broker.ask(describe, ConsumerGroupDescribeResponse, 1)).groups
    assert group.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and not group.members
    response = await broker.ask(request, ConsumerGroupHeartbeatResponse, 1)
    assert response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# -- permissions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "request_", "version", "read"),
    [
        (AclOperation.READ, join_request(), 9, lambda r: r.error_code),
        (AclOperation.READ, SyncGroupRequest(group_id="g"), 4, lambda r: r.error_code),
        (AclOperation.READ, HeartbeatRequest(group_id="g"), 4, lambda r: r.error_code),
        (AclOperation.READ, LeaveGroupRequest(group_id="g"), 5, lambda r: r.error_code),
        (AclOperation.READ, commit_request(1), 8, lambda r: r.topics[0].partitions[0].error_code),
        (AclOperation.DESCRIBE, fetch_request(8), 8, lambda r: r.groups[0].error_code),
        (AclOperation.DESCRIBE, fetch_request(7), 7, lambda r: r.error_code),
        (AclOperation.DESCRIBE, fetch_request(1), 1, lambda r: r.topics[0].partitions[0].error_code),
        (AclOperation.DELETE, OffsetDeleteRequest(group_id="g"), 0, lambda r: r.error_code),
        (AclOperation.DESCRIBE, DescribeGroupsRequest(groups=["g"]), 5, lambda r: r.groups[0].error_code),
        (AclOperation.DELETE, DeleteGroupsRequest(groups_names=["g"]), 2, lambda r: r.results[0].error_code),
        (AclOperation.READ, ConsumerGroupHeartbeatRequest(group_id="g"), 1, lambda r: r.error_code),
        (AclOperation.DESCRIBE, ConsumerGroupDescribeRequest(group_ids=["g"]), 1, lambda r: r.groups[0].error_code),
        (
            AclOperation.DESCRIBE,
            FindCoordinatorRequest(coordinator_keys=["g"]),
            4,
            lambda r: r.coordinators[0].error_code,
        ),
        (AclOperation.DESCRIBE, FindCoordinatorRequest(key="g"), 3, lambda r: r.error_code),
    ],
)
async def test_request_without_permission_for_the_group_is_refused(
    broker: FakeBroker, operation: AclOperation, request_: Any, version: int, read: Callable[[Any], int]
) -> None:
    broker.rules.forbidden.add((operation, AclResourceType.GROUP, "g"))
    response = await broker.send(request_, version)
    assert read(response) == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_topics_that_may_not_be_read_or_do_not_exist_are_refused_one_by_one(broker: FakeBroker) -> None:
    broker.tell({"secret": 1})
    broker.rules.forbidden.add((AclOperation.READ, AclResourceType.TOPIC, "secret"))
    request = commit_request(1)
    request.topics += commit_request(1, "secret").topics + commit_request(1, "gone").topics
    request.topics += commit_request(1, "orders", partition=7).topics
    response = await broker.ask(request, OffsetCommitResponse, 8)
    codes = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
    assert codes == {
        ("orders", 0): ErrorCode.NONE,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("secret", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def some_partitions(topic: type[Any], partition: type[Any], **more: Any) -> list[Any]:
    """One partition exists, and one is unknown to this broker, because the topic has grown."""
    return [topic(name="orders", partitions=[partition(partition_index=index, **more) for index in (0, 7)])]


@pytest.mark.parametrize(
    ("request_", "response_type", "version"),
    [
        (
            OffsetCommitRequest(
                group_id="g", topics=some_partitions(OffsetCommitRequestTopic, OffsetCommitRequestPartition)
            ),
            OffsetCommitResponse,
            8,
        ),
        (
            TxnOffsetCommitRequest(
                transactional_id="tx",
                group_id="g",
                producer_id=9,
                producer_epoch=2,
                topics=some_partitions(TxnOffsetCommitRequestTopic, TxnOffsetCommitRequestPartition),
            ),
            TxnOffsetCommitResponse,
            3,
        ),
        (
            OffsetDeleteRequest(
                group_id="g", topics=some_partitions(OffsetDeleteRequestTopic, OffsetDeleteRequestPartition)
            ),
            OffsetDeleteResponse,
            0,
        ),
    ],
    ids=["OffsetCommit", "TxnOffsetCommit", "OffsetDelete"],
)
async def test_topic_is_answered_once_though_some_of_its_partitions_are_refused(
    broker: FakeBroker, request_: Any, response_type: type[Any], version: int
) -> None:
    """Sarama keeps answers by topic: if a topic comes twice, it sees only the last, and misses the partitions of the first."""

    await broker.ask(commit_request(1), OffsetCommitResponse, 8)
    response = await broker.ask(request_, response_type, version)
    [topic] = response.topics
    codes = {each.partition_index: each.error_code for each in topic.partitions}
    assert codes == {0: ErrorCode.NONE, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("at_once", [True, False])
async def test_refused_commit_has_the_error_for_all_its_partitions(broker: FakeBroker, at_once: bool) -> None:
    request = commit_request(1)
    request.topics += commit_request(1, "gone").topics + commit_request(1, "orders", partition=7).topics
    if at_once:
        for partition in range(4):
            broker.coordinator.resigned(partition)
    else:
        broker.log.refuses_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
    response = await broker.ask(request, OffsetCommitResponse, 8)
    codes = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
    asked = [("orders", 0), ("gone", 0), ("orders", 7)]
    assert codes == dict.fromkeys(asked, ErrorCode.NOT_COORDINATOR)


async def test_unknown_topic_ids_are_answered_separately(broker: FakeBroker) -> None:
    request = commit_request(1, "gone")
    request.topics += commit_request(1).topics + commit_request(1, "lost").topics
    committed = await broker.ask(request, OffsetCommitResponse, 10)
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in committed.topics}
    assert codes == {
        topic_id("gone"): ErrorCode.UNKNOWN_TOPIC_ID,
        topic_id("orders"): ErrorCode.NONE,
        topic_id("lost"): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    response = await broker.ask(fetch_request(10, topic="gone"), OffsetFetchResponse, 10)
    assert response.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_offsets_are_deleted_where_they_may_be(broker: FakeBroker) -> None:
    await broker.ask(commit_request(1), OffsetCommitResponse, 8)
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("orders", "gone")
        ],
    )
    response = await broker.ask(request, OffsetDeleteResponse, 0)
    codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert codes == {"orders": ErrorCode.NONE, "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await fetched(broker) == -1


async def test_groups_that_may_not_be_described_are_not_listed(broker: FakeBroker) -> None:
    await join(broker, 9)
    broker.rules.forbidden.add((AclOperation.DESCRIBE, AclResourceType.GROUP, "g"))
    # A client that may describe the cluster sees all groups.
    assert (await broker.ask(ListGroupsRequest(), ListGroupsResponse, 5)).groups
    broker.rules.forbidden.add((AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME))
    assert (await broker.ask(ListGroupsRequest(), ListGroupsResponse, 5)).groups == []


async def test_sync_without_protocol_is_inconsistent_from_version_5_on(broker: FakeBroker) -> None:
    response = await broker.ask(SyncGroupRequest(group_id="g"), SyncGroupResponse, 5)
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(6))
async def test_member_whose_coordinator_is_loading_joins_again(broker: FakeBroker, version: int) -> None:
    """The Java client does not expect COORDINATOR_LOAD_IN_PROGRESS from SyncGroup, and its application ends with an error."""

    joined = await join(broker, 9)
    partition = broker.coordinator.partition_for("g")
    broker.coordinator.resigned(partition)
    broker.log.may_load.clear()
    broker.coordinator.elected(partition, 2)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
    )
    assert (await broker.ask(request, SyncGroupResponse, version)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    broker.log.may_load.set()


# -- commits, failures, moves ------------------------------------------------------------------------------------------


async def test_commit_is_answered_when_it_is_replicated_and_not_before(broker: FakeBroker) -> None:
    broker.log.commits_at_once = False
    answer = broker.send(commit_request(5), 8)
    seen = broker.send(fetch_request(8), 8)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not answer.done()
    assert not seen.done(), "offsets that may still be lost must not be shown"
    broker.log.settle()
    response = await answer
    assert isinstance(response, OffsetCommitResponse)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert isinstance(await seen, OffsetFetchResponse)


@pytest.mark.parametrize("version", range(1, 11))
async def test_consumer_that_waits_for_slow_replicas_gets_an_error_and_asks_again(
    broker: FakeBroker, version: int
) -> None:
    """Java consumers before 3.9 give up if OffsetFetch answers COORDINATOR_NOT_AVAILABLE. Kafka's OffsetFetch never waits."""

    broker.log.commits_at_once = False
    broker.send(commit_request(5), 8)
    answer = broker.send(fetch_request(version), version)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker.timers.advance_ms(5_001)
    response = await answer
    assert isinstance(response, OffsetFetchResponse)
    if version >= 8:
        codes = [group.error_code for group in response.groups]
    elif version >= 2:
        codes = [response.error_code]
    else:
        codes = [part.error_code for topic in response.topics for part in topic.partitions]
    assert codes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_commit_that_cannot_be_written_gets_a_coordinators_error(
    broker: FakeBroker, cause: ErrorCode, expected: ErrorCode, at_once: bool
) -> None:
    if at_once:
        broker.log.refuses_with = cause
        answer = broker.send(commit_request(5), 8)
    else:
        broker.log.commits_at_once = False
        answer = broker.send(commit_request(5), 8)
        while not broker.log.pending:
            await asyncio.sleep(0)
        broker.log.settle(cause)
    response = await answer
    assert isinstance(response, OffsetCommitResponse)
    assert response.topics[0].partitions[0].error_code == expected


async def test_group_recovers_when_its_assignment_could_not_be_written(broker: FakeBroker) -> None:
    joined = await join(broker, 9)
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    broker.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await broker.ask(sync, SyncGroupResponse, 4)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.log.refuses_with = None
    again = await broker.ask(join_request(joined.member_id), JoinGroupResponse, 9)
    assert again.generation_id == 2
    sync.generation_id = 2
    assert (await broker.ask(sync, SyncGroupResponse, 4)).error_code == ErrorCode.NONE


async def test_waiting_members_get_not_coordinator_when_the_coordinator_moves(broker: FakeBroker) -> None:
    first = await join(broker, 9)
    required = await broker.ask(join_request(), JoinGroupResponse, 9)
    waiting = broker.send(join_request(required.member_id), 9)
    await asyncio.sleep(0)
    broker.coordinator.resigned(broker.coordinator.partition_for("g"))
    response = await waiting
    assert isinstance(response, JoinGroupResponse)
    assert response.error_code == ErrorCode.NOT_COORDINATOR
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=first.member_id)
    assert (await broker.ask(beat, HeartbeatResponse, 4)).error_code == ErrorCode.NOT_COORDINATOR


async def test_no_commit_is_lost_when_the_coordinator_moves_away_and_back(broker: FakeBroker) -> None:
    await broker.ask(commit_request(5), OffsetCommitResponse, 8)
    partition = broker.coordinator.partition_for("g")
    broker.coordinator.resigned(partition)
    broker.log.may_load.clear()
    broker.coordinator.elected(partition, 1)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    loading = await broker.ask(request, HeartbeatResponse, 4)
    assert loading.error_code == ErrorCode.NONE  # it is being loaded: no reason to frighten members
    response = await broker.ask(commit_request(6), OffsetCommitResponse, 8)
    assert response.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    listed = await broker.ask(ListGroupsRequest(), ListGroupsResponse, 5)
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.log.may_load.set()
    await asyncio.gather(*broker.tasks)
    assert await fetched(broker) == 5


async def test_offsets_of_a_deleted_topic_are_deleted(broker: FakeBroker) -> None:
    await broker.ask(commit_request(5), OffsetCommitResponse, 8)
    broker.tell({"orders": 2}, leader=-2)
    assert await fetched(broker) == -1


async def test_session_timeout_is_measured_by_the_injected_timers(broker: FakeBroker) -> None:
    joined = await join(broker, 9)
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    await broker.ask(sync, SyncGroupResponse, 4)
    broker.timers.advance_ms(10_001)
    described = await broker.ask(DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse, 5)
    assert described.groups[0].group_state == "Empty"


# -- FindCoordinator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_coordinator_is_the_leader_of_the_groups_partition(broker: FakeBroker, version: int) -> None:
    broker.tell({GROUP_METADATA_TOPIC: 4}, leader=2)
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
    response = await broker.ask(request, FindCoordinatorResponse, version)
    if version >= 4:
        found = [(each.key, each.node_id, each.host, each.port) for each in response.coordinators]
        assert found == [("g", 2, "host2", 9002), ("h", 2, "host2", 9002)]
    else:
        assert (response.node_id, response.host, response.port) == (2, "host2", 9002)
        assert response.error_code == ErrorCode.NONE
        assert response.error_message == ("NONE" if version else "")  # v0 has no message


@pytest.mark.parametrize("key_type", [1, 2, 9])
async def test_coordinator_types_that_are_not_served_are_invalid(broker: FakeBroker, key_type: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
    response = await broker.ask(request, FindCoordinatorResponse, 6)
    assert response.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    one = await broker.ask(FindCoordinatorRequest(key_type=key_type, key="g"), FindCoordinatorResponse, 3)
    assert one.error_code == ErrorCode.INVALID_REQUEST


async def test_missing_topic_is_created_once_with_its_settings_and_waited_for() -> None:
    broker = FakeBroker(offsets_topic_replication_factor="2")
    broker.tell({"orders": 1})
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    answers = await asyncio.gather(*(broker.ask(request, FindCoordinatorResponse, 4) for _ in range(5)))
    assert {each.coordinators[0].node_id for each in answers} == {1}
    assert broker.created == [
        (
            GROUP_METADATA_TOPIC,
            4,
            2,
            {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
        )
    ]


async def test_topic_that_cannot_be_created_leaves_the_coordinator_unavailable() -> None:
    broker = FakeBroker()
    broker.create_error = ErrorCode.INVALID_REPLICATION_FACTOR
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    response = await broker.ask(request, FindCoordinatorResponse, 4)
    assert response.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_partition_without_a_leader_has_no_coordinator(broker: FakeBroker) -> None:
    broker.tell({GROUP_METADATA_TOPIC: 4}, leader=-1)
    response = await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
    assert response.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
