"""Requests to a broker that is not the coordinator: NOT_COORDINATOR in each version, so that clients look for it again."""

import asyncio
from collections.abc import Iterator
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.errors import ErrorCode
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.connection import Connection
from barnabas.client.core import GROUP, TRANSACTION
from barnabas.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    describe_transactions,
    end_txn,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from barnabas.wire.messages.base import ApiMessage, Message
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def group_requests(name: str, topic: str, topic_id: bytes) -> list[tuple[ApiMessage, type[ApiMessage]]]:
    members = [leave_group.MemberIdentity(member_id="m")]
    committed = offset_commit.OffsetCommitRequestTopic(
        name=topic, topic_id=topic_id, partitions=[offset_commit.OffsetCommitRequestPartition(partition_index=0)]
    )
    fetched = offset_fetch.OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0])
    return [
        (
            join_group.JoinGroupRequest(
                group_id=name,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            join_group.JoinGroupResponse,
        ),
        (
            sync_group.SyncGroupRequest(
                group_id=name, member_id="m", protocol_type="consumer", protocol_name="range", assignments=[]
            ),
            sync_group.SyncGroupResponse,
        ),
        (heartbeat.HeartbeatRequest(group_id=name, member_id="m"), heartbeat.HeartbeatResponse),
        (
            leave_group.LeaveGroupRequest(group_id=name, member_id="m", members=members),
            leave_group.LeaveGroupResponse,
        ),
        (
            offset_commit.OffsetCommitRequest(group_id=name, topics=[committed]),
            offset_commit.OffsetCommitResponse,
        ),
        (
            offset_fetch.OffsetFetchRequest(
                group_id=name,
                topics=[offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
                groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=[fetched])],
            ),
            offset_fetch.OffsetFetchResponse,
        ),
        (
            offset_delete.OffsetDeleteRequest(
                group_id=name,
                topics=[
                    offset_delete.OffsetDeleteRequestTopic(
                        name=topic, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
                    )
                ],
            ),
            offset_delete.OffsetDeleteResponse,
        ),
        (
            txn_offset_commit.TxnOffsetCommitRequest(
                transactional_id=name,
                group_id=name,
                producer_id=1,
                topics=[
                    txn_offset_commit.TxnOffsetCommitRequestTopic(
                        name=topic,
                        topic_id=topic_id,
                        partitions=[txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0)],
                    )
                ],
            ),
            txn_offset_commit.TxnOffsetCommitResponse,
        ),
        (describe_groups.DescribeGroupsRequest(groups=[name]), describe_groups.DescribeGroupsResponse),
        (delete_groups.DeleteGroupsRequest(groups_names=[name]), delete_groups.DeleteGroupsResponse),
        (
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=name,
                member_id="m",
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            ),
            consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
        ),
        (
            consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[name]),
            consumer_group_describe.ConsumerGroupDescribeResponse,
        ),
    ]


def transaction_requests(name: str, topic: str) -> list[tuple[ApiMessage, type[ApiMessage]]]:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=[0])]
    return [
        (
            init_producer_id.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000),
            init_producer_id.InitProducerIdResponse,
        ),
        (
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_topics=topics,
                transactions=[
                    add_partitions_to_txn.AddPartitionsToTxnTransaction(transactional_id=name, topics=topics),
                    add_partitions_to_txn.AddPartitionsToTxnTransaction(
                        transactional_id=name, verify_only=True, topics=topics
                    ),
                ],
            ),
            add_partitions_to_txn.AddPartitionsToTxnResponse,
        ),
        (
            add_offsets_to_txn.AddOffsetsToTxnRequest(transactional_id=name, group_id=name),
            add_offsets_to_txn.AddOffsetsToTxnResponse,
        ),
        (end_txn.EndTxnRequest(transactional_id=name), end_txn.EndTxnResponse),
        (
            describe_transactions.DescribeTransactionsRequest(transactional_ids=[name]),
            describe_transactions.DescribeTransactionsResponse,
        ),
    ]


def errors_in(message: Any) -> Iterator[ErrorCode]:
    """Yield all error codes of a response except NONE, wherever they are."""
    if isinstance(message, list):
        for each in message:
            yield from errors_in(each)
    elif isinstance(message, Message):
        for field in message.__slots__:
            value = getattr(message, field)
            if field.endswith("error_code") and value:
                yield ErrorCode(value)
            else:
                yield from errors_in(value)


async def id_of(topic: str, connection: Connection) -> bytes:
    """Return the topic's id as soon as this broker knows the topic."""
    while True:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        [found] = (await connection.request(asked, MetadataResponse)).topics
        if not found.error_code:
            return bytes(found.topic_id)
        await asyncio.sleep(0.02)


async def ask_all_others(cluster: AsyncClient, topic: str, kind: int) -> None:
    coordinator = await cluster.coordinator(topic, kind)
    for broker in {1, 2, 3} - {coordinator}:
        connection = await cluster.connection(broker)
        topic_id = await id_of(topic, connection)
        asked = group_requests(topic, topic, topic_id) if kind == GROUP else transaction_requests(topic, topic)
        for request, response_type in asked:
            served = connection.versions.apis[request.API_KEY]
            for version in range(served.min_version, served.max_version + 1):
                response = await connection.request(request, response_type, version=version)
                heard = set(errors_in(response))
                assert heard == {ErrorCode.NOT_COORDINATOR}, f"{type(request).__name__} v{version}: {heard}"


async def test_broker_that_does_not_coordinate_answers_not_coordinator_in_every_version(
    bootstrap: str, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, replication_factor=3)])[topic].result(60)
    hosts = tuple((host, int(port)) for host, _, port in (each.rpartition(":") for each in bootstrap.split(",")))

    cluster = AsyncClient(ClientConfig(bootstrap=hosts, client_id=topic))
    try:
        async with asyncio.timeout(100):
            await ask_all_others(cluster, topic, GROUP)
            await ask_all_others(cluster, topic, TRANSACTION)
    finally:
        await cluster.close()
