"""`python -m tests.fuzz.answers [COUNT] [API…]`: how long a small request with a large answer occupies a broker's loop.

The broker has COUNT topics, groups, offsets and ACL entries, and a topic with a tenth as many partitions. The largest requests
that change something are measured too. `turns` explains the measure.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.compose import Broker
from barnabas.wire.frame import encode_request
from barnabas.wire.messages import (
    alter_user_scram_credentials as scram,
)
from barnabas.wire.messages import (
    create_acls,
    create_topics,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_fetch,
    update_metadata,
)
from barnabas.wire.messages import (
    incremental_alter_configs as configs,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.versions import api_of
from tests.fuzz.turns import HEADING, SETTINGS, Turns
from tests.unit.broker.compose.live_broker import LISTENER, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

COUNT = 10_000


def names(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


def known_topics(broker: Broker, count: int) -> ApiMessage:
    """Return the controller's metadata update for that many topics."""
    topics = [
        update_metadata.UpdateMetadataTopicState(
            topic_name=name,
            topic_id=number.to_bytes(16),
            partition_states=[
                update_metadata.UpdateMetadataPartitionState(
                    partition_index=0, controller_epoch=1, leader=1, leader_epoch=0, isr=[1], zk_version=0, replicas=[1]
                )
            ],
        )
        for number, name in enumerate(names(count), 1)
    ]
    endpoint = update_metadata.UpdateMetadataEndpoint(
        port=broker.ports[LISTENER], host="127.0.0.1", listener=LISTENER, security_protocol=0
    )
    return update_metadata.UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=-1,
        topic_states=topics,
        live_brokers=[update_metadata.UpdateMetadataBroker(id=1, endpoints=[endpoint])],
    )


def commit(group: str, topics: list[str]) -> ApiMessage:
    partitions = [offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    return offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[offset_commit.OffsetCommitRequestTopic(name=name, partitions=partitions) for name in topics],
    )


def acls(count: int) -> ApiMessage:
    return create_acls.CreateAclsRequest(
        creations=[
            create_acls.AclCreation(
                resource_type=AclResourceType.TOPIC,
                resource_name=f"topic-{number % 100}",
                resource_pattern_type=3,
                principal=f"User:u{number}",
                host="*",
                operation=AclOperation.READ,
                permission_type=3,
            )
            for number in range(count)
        ]
    )


def topics_to_create(count: int, partitions: int, *, validate_only: bool) -> ApiMessage:
    return create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(
                name=f"made-{partitions}-{number}", num_partitions=partitions, replication_factor=1
            )
            for number in range(count)
        ],
        timeout_ms=60_000,
        validate_only=validate_only,
    )


def config_changes(count: int) -> ApiMessage:
    changes = [
        configs.AlterableConfig(name=f"setting.{number}", config_operation=0, value="1") for number in range(count)
    ]
    resource = configs.AlterConfigsResource(resource_type=4, resource_name="", configs=changes)
    return configs.IncrementalAlterConfigsRequest(resources=[resource])


def users(count: int) -> ApiMessage:
    return scram.AlterUserScramCredentialsRequest(
        upsertions=[
            scram.ScramCredentialUpsertion(
                name=f"user{number}", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
            )
            for number in range(count)
        ]
    )


def everything(resource_type: int, count: int) -> ApiMessage:
    resources = [
        describe_configs.DescribeConfigsResource(resource_type=resource_type, resource_name=name)
        for name in names(count)
    ]
    return describe_configs.DescribeConfigsRequest(
        resources=resources, include_synonyms=True, include_documentation=True
    )


def fetched(partitions: int) -> ApiMessage:
    wanted = [
        fetch.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=2**31 - 1)
        for number in range(partitions)
    ]
    return fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=2**31 - 1,
        session_id=0,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic=f"made-{partitions}-0", partitions=wanted)],
    )


def asked(partitions: int) -> ApiMessage:
    wanted = [
        list_offsets.ListOffsetsPartition(partition_index=number, timestamp=1_700_000_000_000)
        for number in range(partitions)
    ]
    topic = list_offsets.ListOffsetsTopic(name=f"made-{partitions}-0", partitions=wanted)
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])


def requests(broker: Broker, count: int) -> Iterator[tuple[str, ApiMessage, int]]:
    """Yield (title, request, version). In this order: the first requests fill the broker."""
    part = count // 10
    yield f"CreateTopics of one topic with {part} partitions", topics_to_create(1, part, validate_only=False), 7
    yield "CreateTopics of 3,300 topics, to be validated", topics_to_create(3_300, 1, validate_only=True), 7
    yield "CreateTopics of 300 topics", topics_to_create(300, 1, validate_only=False), 7
    yield f"DescribeLogDirs of {part} partitions", describe_log_dirs.DescribeLogDirsRequest(topics=None), 4
    yield f"Fetch of {part} partitions without a bound of bytes", fetched(part), 12
    yield f"ListOffsets by time of {part} partitions", asked(part), 7
    yield "UpdateMetadata", known_topics(broker, count), 7
    yield "Metadata of all", metadata.MetadataRequest(topics=None), 12
    yield "Metadata of all again", metadata.MetadataRequest(topics=None), 12
    all_allowed = metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True)
    yield "Metadata of all with what is allowed", all_allowed, 12
    yield (
        "DescribeTopicPartitions of all",
        describe_topic_partitions.DescribeTopicPartitionsRequest(response_partition_limit=100_000),
        0,
    )
    yield "DescribeConfigs of all", everything(2, count), 4
    yield "FindCoordinator", find_coordinator.FindCoordinatorRequest(key="group", key_type=0), 3
    time.sleep(3)
    yield "UpdateMetadata again", known_topics(broker, count), 7
    for at in range(0, count, 3_300):
        yield "OffsetCommit of 3,300 partitions", commit("group", names(count)[at : at + 3_300]), 8
    yield "OffsetCommit of 100,000 partitions", commit("group", names(100_000)), 8
    group = offset_fetch.OffsetFetchRequestGroup(group_id="group", topics=None)
    yield "OffsetFetch of all", offset_fetch.OffsetFetchRequest(groups=[group]), 8
    for at in range(0, count, 2_400):
        yield "CreateAcls of 2,400 entries", acls(min(count, at + 2_400)), 3
    nothing = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    anything = nothing | {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    yield "DescribeAcls of all", describe_acls.DescribeAclsRequest(**anything), 3
    no_match = delete_acls.DeleteAclsFilter(**(anything | {"principal_filter": "User:nobody"}))
    yield "DeleteAcls of nothing, 1,000 filters", delete_acls.DeleteAclsRequest(filters=[no_match] * 1_000), 3
    yield "AlterUserScramCredentials of 1,000 users", users(1_000), 0
    yield "IncrementalAlterConfigs of 9,000 settings", config_changes(9_000), 1
    yield "IncrementalAlterConfigs of 100,000 settings", config_changes(100_000), 1
    yield "DescribeClientQuotas of all", describe_client_quotas.DescribeClientQuotasRequest(), 1
    for number in range(count):
        yield "", commit(f"group-{number}", ["topic-1"]), 8
    yield "ListGroups", list_groups.ListGroupsRequest(), 5
    yield "ListTransactions", list_transactions.ListTransactionsRequest(), 1


def attack(loop: asyncio.AbstractEventLoop, broker: Broker, turns: Turns, count: int) -> None:
    print(HEADING)
    for what, request, version in requests(broker, count):
        frame = encode_request(request, min(version, api_of(request.API_KEY).max_version), 1, "answers")
        line = turns.of(loop, broker.ports[LISTENER], frame)
        if what:
            print(f"{line}   {what}", flush=True)


async def main(count: int) -> None:
    gc.disable()  # as in `turns`
    turns = Turns()
    settings = SETTINGS | {"max.request.partition.size.limit": "100000"}
    with tempfile.TemporaryDirectory() as folder:
        async with zookeeper() as ensemble, live_broker(ensemble, Path(folder), settings) as broker:
            await asyncio.to_thread(attack, asyncio.get_running_loop(), broker, turns, count)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
