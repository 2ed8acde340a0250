"""The APIs of share groups: permissions, the gate, and the share coordinators behind them."""

import asyncio
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.metrics.exposition import render
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.runtime.share_state import SharePartitionKey
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
