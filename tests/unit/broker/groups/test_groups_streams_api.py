"""The APIs of streams groups: permissions, the gate, and the controller that creates internal topics."""

import asyncio
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.metrics.exposition import render
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.groups.streams_topics import StatusCode
from barnabas.wire.messages.streams_group_describe import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from barnabas.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from tests.unit.broker.groups.api_harness import FakeBroker
from tests.unit.broker.groups.streams_driver import topic

AT_ONCE = {"group.streams.initial.rebalance.delay.ms": "0", "group.streams.assignment.interval.ms": "0"}
COUNT = Subtopology(subtopology_id="0", source_topics=["orders"], state_changelog_topics=[topic("counts-changelog")])


async def heartbeat(broker: FakeBroker, **fields: Any) -> StreamsGroupHeartbeatResponse:
    request = StreamsGroupHeartbeatRequest(**{"group_id": "g", "member_id": "m", **fields})
    response = await broker.ask(request, StreamsGroupHeartbeatResponse, 0)
    await asyncio.gather(*broker.tasks)
    return response


async def join(broker: FakeBroker, *subtopologies: Subtopology) -> StreamsGroupHeartbeatResponse:
    return await heartbeat(
        broker,
        rebalance_timeout_ms=60_000,
        topology=Topology(subtopologies=list(subtopologies or [COUNT])),
        process_id="p",
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )


async def describe(broker: FakeBroker, *group_ids: str) -> StreamsGroupDescribeResponse:
    request = StreamsGroupDescribeRequest(group_ids=list(group_ids), include_authorized_operations=True)
    return await broker.ask(request, StreamsGroupDescribeResponse, 0)


async def test_member_joins_and_its_internal_topics_are_created_and_described() -> None:
    broker = await FakeBroker(**AT_ONCE).serve()
    first = await join(broker)
    assert (first.error_code, first.heartbeat_interval_ms) == (0, 5_000)
    assert [each.status_code for each in first.status or ()] == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert broker.created[-1] == ("counts-changelog", 2, -1, {})
    [group, missing, empty] = (await describe(broker, "g", "nope", "")).groups
    assert (group.group_state, group.members[0].member_id) == ("NotReady", "m")
    assert group.authorized_operations > 0
    assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group nope not found.")
    assert empty.error_code == ErrorCode.INVALID_GROUP_ID
    text = render(broker.context.registry).decode()
    assert 'kafka_server_group_coordinator_streams_group_count{state="not_ready"} 1' in text
    assert "kafka_server_group_coordinator_streams_group_rebalance_total 1" in text


async def test_member_gets_tasks_when_all_topics_exist() -> None:
    broker = await FakeBroker(**AT_ONCE).serve()
    answer = await join(broker, Subtopology(subtopology_id="0", source_topics=["orders"]))
    assert [(each.subtopology_id, each.partitions) for each in answer.active_tasks or ()] == [("0", [0, 1])]
    assert answer.status == []


async def test_reason_of_the_controller_is_logged_and_sent_to_the_member(caplog: pytest.LogCaptureFixture) -> None:
    broker = await FakeBroker(**AT_ONCE).serve()
    broker.creation_errors["counts-changelog"] = "too few brokers"
    first = await join(broker)
    assert "its internal topic counts-changelog cannot be created; members try again: too few brokers" in caplog.text
    [status] = (await heartbeat(broker, member_epoch=first.member_epoch)).status or ()
    assert status.status_detail.endswith("Creation failed: counts-changelog (too few brokers).")


async def test_requests_are_refused_while_streams_groups_are_off() -> None:
    broker = await FakeBroker().serve()
    broker.streams_groups_on = False
    assert (await join(broker)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [each.error_code for each in (await describe(broker, "g")).groups] == [ErrorCode.UNSUPPORTED_VERSION]


async def test_members_need_permissions_for_the_group_and_the_topics_of_the_topology() -> None:
    broker = await FakeBroker(**AT_ONCE).serve()
    broker.rules.forbidden = {(AclOperation.READ, AclResourceType.GROUP, "g")}
    assert (await join(broker)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    hidden = {(AclOperation.DESCRIBE, AclResourceType.TOPIC, "counts-changelog")}
    broker.rules.forbidden = set(hidden)
    assert (await join(broker)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.rules.forbidden = {
        (AclOperation.CREATE, AclResourceType.CLUSTER, "kafka-cluster"),
        (AclOperation.CREATE, AclResourceType.TOPIC, "counts-changelog"),
    }
    created = list(broker.created)
    [status] = (await join(broker)).status or ()
    assert status.status_detail.endswith("Unauthorized to CREATE on topics counts-changelog.")
    broker.rules.forbidden = set(hidden)
    [group] = (await describe(broker, "g")).groups
    assert (group.error_code, group.members, group.topology) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [], None)
    broker.rules.forbidden = {(AclOperation.DESCRIBE, AclResourceType.GROUP, "g")}
    [group] = (await describe(broker, "g")).groups
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert [each for each in broker.created if each not in created] == []


async def test_topology_with_an_internal_topic_of_kafka_is_refused() -> None:
    broker = await FakeBroker().serve()
    answer = await join(broker, Subtopology(subtopology_id="0", source_topics=["__consumer_offsets"]))
    assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert "is prohibited" in (answer.error_message or "")
