"""The APIs of share groups: permissions, the gate, and the share coordinators behind them."""

import asyncio
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.metrics.exposition import render
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.runtime.share_state import SharePartitionKey, ShareStateSummary
from barnabas.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from barnabas.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from barnabas.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.unit.broker.groups.api_harness import FakeBroker, topic_id

ORDERS = topic_id("orders")


def key(partition: int, group_id: str = "g") -> SharePartitionKey:
    return SharePartitionKey(group_id, ORDERS, partition)


async def heartbeat(broker: FakeBroker, **fields: Any) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(**{"group_id": "g", "member_id": "m", **fields})
    response = await broker.ask(request, ShareGroupHeartbeatResponse, 1)
    await asyncio.gather(*broker.tasks)
    return response


async def join(broker: FakeBroker, *topics: str, **fields: Any) -> ShareGroupHeartbeatResponse:
    return await heartbeat(broker, subscribed_topic_names=list(topics or ["orders"]), **fields)


async def describe(broker: FakeBroker, *group_ids: str) -> ShareGroupDescribeResponse:
    request = ShareGroupDescribeRequest(group_ids=list(group_ids), include_authorized_operations=True)
    return await broker.ask(request, ShareGroupDescribeResponse, 1)


async def test_member_joins_gets_partitions_and_is_described() -> None:
    broker = await FakeBroker().serve()
    first = await join(broker)
    assert (first.error_code, first.member_epoch, first.heartbeat_interval_ms) == (0, 1, 5_000)
    assert {each: state.state_epoch for each, state in broker.persister.states.items()} == {key(0): 1, key(1): 1}
    second = await heartbeat(broker, member_epoch=1)
    assert second.assignment is not None
    assert [(each.topic_id, each.partitions) for each in second.assignment.topic_partitions] == [(ORDERS, [0, 1])]
    [group, missing, empty] = (await describe(broker, "g", "nope", "")).groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert group.members[0].assignment.topic_partitions[0].topic_name == "orders"
    assert group.authorized_operations > 0
    assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group nope not found.")
    assert empty.error_code == ErrorCode.INVALID_GROUP_ID


async def test_partition_whose_share_coordinator_fails_is_tried_again_at_the_next_heartbeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = await FakeBroker().serve()
    broker.persister.failing[key(1)] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    await join(broker)
    assert "[group g] 1 of 2 share partitions have no state yet" in caplog.text
    second = await heartbeat(broker, member_epoch=1)
    assert second.assignment is not None
    assert second.assignment.topic_partitions[0].partitions == [0]
    broker.persister.failing.clear()
    await heartbeat(broker, member_epoch=2)
    third = await heartbeat(broker, member_epoch=2)
    assert third.assignment is not None
    assert third.assignment.topic_partitions[0].partitions == [0, 1]


async def test_requests_are_refused_while_share_groups_are_off() -> None:
    broker = await FakeBroker().serve()
    broker.share_groups_on = False
    assert (await join(broker)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [each.error_code for each in (await describe(broker, "g")).groups] == [ErrorCode.UNSUPPORTED_VERSION]


async def test_members_need_permissions_for_the_group_and_its_topics() -> None:
    broker = await FakeBroker().serve()
    broker.rules.forbidden = {(AclOperation.READ, AclResourceType.GROUP, "g")}
    assert (await join(broker)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.rules.forbidden = {(AclOperation.DESCRIBE, AclResourceType.TOPIC, "orders")}
    assert (await join(broker)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.rules.forbidden.clear()
    await join(broker)
    await heartbeat(broker, member_epoch=1)
    broker.rules.forbidden = {(AclOperation.DESCRIBE, AclResourceType.TOPIC, "orders")}
    [group] = (await describe(broker, "g")).groups
    assert group.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not group.members
    broker.rules.forbidden = {(AclOperation.DESCRIBE, AclResourceType.GROUP, "g")}
    [group] = (await describe(broker, "g")).groups
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_metrics_count_share_groups_and_their_rebalances() -> None:
    broker = await FakeBroker().serve()
    await join(broker)
    await heartbeat(broker, member_epoch=1)
    text = render(broker.context.registry).decode()
    assert 'kafka_server_group_coordinator_share_group_count{state="stable"} 1' in text
    assert 'kafka_server_group_coordinator_group_count{protocol="share"} 1' in text
    assert "kafka_server_group_coordinator_share_group_rebalance_total 2" in text


# -- offsets -----------------------------------------------------------------------------------------------------------


async def describe_offsets(
    broker: FakeBroker, topics: dict[str, list[int]] | None = None
) -> DescribeShareGroupOffsetsResponseGroup:
    listed = None
    if topics is not None:
        listed = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=listed)]
    )
    [group] = (await broker.ask(request, DescribeShareGroupOffsetsResponse, 1)).groups
    return group


async def alter(
    broker: FakeBroker, starts: dict[tuple[str, int], int], group_id: str = "g"
) -> AlterShareGroupOffsetsResponse:
    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for (name, number), start_offset in starts.items():
        topic = topics.setdefault(name, AlterShareGroupOffsetsRequestTopic(topic_name=name))
        topic.partitions.append(
            AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start_offset)
        )
    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values()))
    return await broker.ask(request, AlterShareGroupOffsetsResponse, 0)


async def delete_offsets(broker: FakeBroker, *topics: str) -> DeleteShareGroupOffsetsResponse:
    request = DeleteShareGroupOffsetsRequest(
        group_id="g", topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    )
    return await broker.ask(request, DeleteShareGroupOffsetsResponse, 0)


async def delete_groups(broker: FakeBroker, *group_ids: str) -> dict[str, int]:
    response = await broker.ask(DeleteGroupsRequest(groups_names=list(group_ids)), DeleteGroupsResponse, 2)
    return {each.group_id: each.error_code for each in response.results}


async def leave(broker: FakeBroker) -> None:
    assert (await heartbeat(broker, member_epoch=-1)).error_code == ErrorCode.NONE


async def test_offsets_are_described_with_the_lag() -> None:
    broker = await FakeBroker().serve()
    await join(broker)
    broker.persister.states[key(0)] = ShareStateSummary(1, 4, 10, 3)
    broker.ends[TopicPartition("orders", 0)] = 20
    group = await describe_offsets(broker)
    [topic] = group.topics
    assert (topic.topic_name, topic.topic_id) == ("orders", ORDERS)
    found = [(each.partition_index, each.start_offset, each.leader_epoch, each.lag) for each in topic.partitions]
    assert found == [(0, 10, 4, 7), (1, -1, 0, -1)]
    broker.ends[TopicPartition("orders", 0)] = ErrorCode.LEADER_NOT_AVAILABLE
    named = await describe_offsets(broker, {"orders": [0, 9], "nope": [0]})
    found_codes = [
        (each.topic_name, p.partition_index, p.start_offset, p.error_code)
        for each in named.topics
        for p in each.partitions
    ]
    assert found_codes == [
        ("orders", 0, -1, ErrorCode.LEADER_NOT_AVAILABLE),
        ("orders", 9, -1, 0),
        ("nope", 0, -1, 0),
    ]


async def test_share_coordinator_that_fails_is_an_error_and_not_an_absent_offset() -> None:
    broker = await FakeBroker().serve()
    await join(broker)
    broker.persister.failing[key(0)] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    [topic] = (await describe_offsets(broker, {"orders": [0]})).topics
    assert topic.partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_offsets_of_an_empty_group_are_set() -> None:
    broker = await FakeBroker().serve()
    await join(broker)
    assert (await alter(broker, {("orders", 0): 5})).error_code == ErrorCode.NON_EMPTY_GROUP
    await leave(broker)
    before = broker.persister.states[key(1)]
    response = await alter(broker, {("orders", 0): 5, ("orders", 7): 1, ("nope", 0): 1, ("orders", 1): -3})
    codes = {
        (topic.topic_name, each.partition_index): each.error_code
        for topic in response.responses
        for each in topic.partitions
    }
    assert codes == {
        ("orders", 0): 0,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", 1): ErrorCode.INVALID_REQUEST,
    }
    state = broker.persister.states[key(0)]
    assert state.start_offset == 5
    assert state.state_epoch > before.state_epoch, "a leader that has the former state is fenced"
    assert broker.persister.states[key(1)] == before


async def test_offsets_of_a_group_that_does_not_exist_create_it() -> None:
    broker = await FakeBroker().serve()
    await alter(broker, {("orders", 1): 8})
    assert broker.persister.states[key(1)].start_offset == 8
    [group] = (await describe(broker, "g")).groups
    assert (group.group_state, group.group_epoch) == ("Empty", 1)
    await join(broker)
    assert broker.persister.states[key(1)].start_offset == 8, "the first member does not begin elsewhere"
    second = await heartbeat(broker, member_epoch=2)
    assert second.assignment is not None
    assert second.assignment.topic_partitions[0].partitions == [0, 1]


async def test_alteration_that_a_share_coordinator_refuses_is_reported_for_its_partition() -> None:
    broker = await FakeBroker().serve()
    broker.persister.failing[key(0)] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    [topic] = (await alter(broker, {("orders", 0): 1, ("orders", 1): 2})).responses
    assert [each.error_code for each in topic.partitions] == [ErrorCode.COORDINATOR_NOT_AVAILABLE, 0]


async def test_offsets_of_topics_are_deleted_and_the_group_begins_again() -> None:
    broker = await FakeBroker().serve()
    broker.tell({"other": 1})
    assert (await delete_offsets(broker, "orders")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await join(broker)
    assert (await delete_offsets(broker, "orders")).error_code == ErrorCode.NON_EMPTY_GROUP
    await leave(broker)
    broker.persister.failing[key(1)] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    [answer] = (await delete_offsets(broker, "orders")).responses
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not (await describe_offsets(broker)).topics, "half deleted is not there any more"
    broker.persister.failing.clear()
    answers = (await delete_offsets(broker, "orders", "other", "nope")).responses
    assert [(each.topic_name, each.error_code) for each in answers] == [
        ("orders", 0),
        ("other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert not broker.persister.states
    await join(broker)
    assert {each.start_offset for each in broker.persister.states.values()} == {-1}


async def test_group_is_deleted_with_its_states() -> None:
    broker = await FakeBroker().serve()
    await join(broker)
    assert await delete_groups(broker, "g", "nope") == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "nope": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    await leave(broker)
    broker.persister.failing[key(0)] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await delete_groups(broker, "g") == {"g": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    broker.persister.failing.clear()
    assert await delete_groups(broker, "g") == {"g": ErrorCode.NONE}
    assert not broker.persister.states
    [group] = (await describe(broker, "g")).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_permissions_for_offsets() -> None:
    broker = await FakeBroker().serve()
    await join(broker)
    await leave(broker)
    for operation in (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.DELETE):
        broker.rules.forbidden.add((operation, AclResourceType.GROUP, "g"))
    assert (await describe_offsets(broker)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await alter(broker, {("orders", 0): 1})).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await delete_offsets(broker, "orders")).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.rules.forbidden = {
        (operation, AclResourceType.TOPIC, "orders") for operation in (AclOperation.DESCRIBE, AclOperation.READ)
    }
    assert not (await describe_offsets(broker)).topics
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    [topic] = (await describe_offsets(broker, {"orders": [0]})).topics
    assert [each.error_code for each in topic.partitions] == [denied]
    [altered] = (await alter(broker, {("orders", 0): 1})).responses
    assert [each.error_code for each in altered.partitions] == [denied]
    assert [each.error_code for each in (await delete_offsets(broker, "orders")).responses] == [denied]
    assert broker.persister.states[key(0)].start_offset == -1


async def test_requests_for_offsets_are_refused_while_share_groups_are_off() -> None:
    broker = await FakeBroker().serve()
    broker.share_groups_on = False
    assert (await describe_offsets(broker)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await alter(broker, {("orders", 0): 1})).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await delete_offsets(broker, "orders")).error_code == ErrorCode.UNSUPPORTED_VERSION
