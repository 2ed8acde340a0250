"""The group coordinator's metrics, as they are scraped."""

from barnabas.base.metrics.exposition import render
from barnabas.wire.messages.offset_commit import OffsetCommitResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.unit.broker.groups.api_harness import FakeBroker
from tests.unit.broker.groups.test_groups_api import commit_request, join


def scrape(broker: FakeBroker) -> dict[str, float]:
    lines = render(broker.context.registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_groups_are_counted_by_state_and_their_events_by_kind() -> None:
    broker = await FakeBroker().serve()
    joined = await join(broker, 9)
    seen = scrape(broker)
    assert seen["kafka_coordinator_group_num_groups"] == 1
    assert seen["kafka_coordinator_group_num_groups_completing_rebalance"] == 1
    assert seen["kafka_server_group_coordinator_group_completed_rebalance_total"] == 0
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id)],
    )
    assert (await broker.ask(sync, SyncGroupResponse, 5)).error_code == 0
    commit = commit_request(
        5, member_id=joined.member_id, generation_id_or_member_epoch=joined.generation_id, group_instance_id=None
    )
    await broker.ask(commit, OffsetCommitResponse, 8)
    seen = scrape(broker)
    assert seen["kafka_coordinator_group_num_groups_stable"] == 1
    assert seen["kafka_coordinator_group_num_groups_completing_rebalance"] == 0
    assert seen["kafka_coordinator_group_num_offsets"] == 1
    assert seen['kafka_server_group_coordinator_group_count{protocol="classic"}'] == 1
    assert seen['kafka_server_group_coordinator_group_count{protocol="consumer"}'] == 0
    assert seen["kafka_server_group_coordinator_group_completed_rebalance_total"] == 1
    assert seen["kafka_server_group_coordinator_offset_commit_total"] == 1
    assert seen['kafka_server_group_coordinator_num_partitions{state="active"}'] == 4
    assert seen["kafka_server_group_coordinator_partition_load_time_ms_count"] == 4
