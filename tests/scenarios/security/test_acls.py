"""ACLs on a real cluster, through the clients of Kafka users."""

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.acls import describe_acls
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.connection import Connection
from barnabas.client.errors import BrokerRefused
from barnabas.testing import wait_until
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

#: confluent-kafka has no name for this error code.
SECURITY_DISABLED = 54
NOBODY_ELSE = "User:nobody-else"


@pytest.fixture(scope="module")
def open_cluster() -> Iterator[LocalCluster]:
    """A cluster where all clients are anonymous: entries about everybody for single topics decide."""
    config = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalCluster(brokers=2, config=config) as cluster:
        yield cluster


def binding(
    topic: str, operation: AclOperation, permission: AclPermissionType, principal: str = "User:*"
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, "*", operation, permission)


def create(admin: AdminClient, *bindings: AclBinding) -> None:
    for future in admin.create_acls(list(bindings)).values():
        future.result(60)


def filter_of(topic: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def send(bootstrap: str, topic: str) -> KafkaError | None:
    """Send a record; return None, or the error."""
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 20_000})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    return outcome[0]


def test_denied_write_is_refused_and_allowed_again_at_once(open_cluster: LocalCluster, topic: str) -> None:
    bootstrap = open_cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 2)])[topic].result(60)
    assert send(bootstrap, topic) is None

    create(
        admin,
        binding(topic, AclOperation.WRITE, AclPermissionType.DENY),
        binding(topic, AclOperation.ALL, AclPermissionType.ALLOW),
    )

    def is_refused() -> bool:
        error = send(bootstrap, topic)
        return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    wait_until(is_refused)
    described = admin.describe_acls(filter_of(topic)).result(60)
    assert {(each.operation, each.permission_type) for each in described} == {
        (AclOperation.WRITE, AclPermissionType.DENY),
        (AclOperation.ALL, AclPermissionType.ALLOW),
    }
    [removed] = admin.delete_acls([filter_of(topic)]).values()
    assert len(removed.result(60)) == 2
    wait_until(lambda: admin.describe_acls(filter_of(topic)).result(60) == [])
    wait_until(lambda: send(bootstrap, topic) is None)


def test_revoked_read_stops_a_running_consumer(open_cluster: LocalCluster, topic: str) -> None:
    bootstrap = open_cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    assert send(bootstrap, topic) is None
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        first = consumer.poll(60)
        assert first is not None and first.error() is None and first.value() == b"v"
        create(
            admin,
            binding(topic, AclOperation.READ, AclPermissionType.DENY),
            binding(topic, AclOperation.ALL, AclPermissionType.ALLOW),
        )
        read_errors: list[KafkaError] = []

        def is_stopped() -> bool:
            # As in Kafka, the waiting fetch was authorized when it arrived, and may return one more record.
            message = consumer.poll(1)
            if message is None:
                assert send(bootstrap, topic) is None
            elif message.error() is not None:
                read_errors.append(message.error())
            return bool(read_errors)

        wait_until(is_stopped)
        assert read_errors[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    finally:
        consumer.close()


def test_revoked_permission_holds_for_the_next_request_to_the_broker_that_revoked_it(
    open_cluster: LocalCluster, topic: str
) -> None:
    """The other broker obeys it when it has read the notification: without a new connection and without waiting."""
    admin = AdminClient({"bootstrap.servers": open_cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    denied = AclCreation(
        resource_type=2,
        resource_name=topic,
        resource_pattern_type=3,
        principal="User:*",
        host="*",
        operation=8,
        permission_type=2,
    )
    deletion = DeleteAclsFilter(resource_type_filter=2, resource_name_filter=topic, pattern_type_filter=3)
    deletion.principal_filter = deletion.host_filter = None
    deletion.operation = deletion.permission_type = 1
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    async def story() -> None:
        async with AsyncClient(client_config(open_cluster.bootstrap)) as cluster, asyncio.timeout(60):
            await cluster.brokers()
            changed, other = await cluster.connection(1), await cluster.connection(2)

            async def code_at(connection: Connection) -> int:
                return (await connection.request(wanted, MetadataResponse)).topics[0].error_code

            for connection in (changed, other):
                while await code_at(connection) != ErrorCode.NONE:
                    continue  # the broker does not know the topic yet
            for _ in range(5):
                await changed.request(CreateAclsRequest(creations=[denied]), CreateAclsResponse)
                assert await code_at(changed) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                while await code_at(other) != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    continue
                await changed.request(DeleteAclsRequest(filters=[deletion]), DeleteAclsResponse)
                assert await code_at(changed) == ErrorCode.NONE
                while await code_at(other) != ErrorCode.NONE:
                    continue

    asyncio.run(story())


def test_topic_that_may_not_be_described_is_hidden(open_cluster: LocalCluster, topic: str) -> None:
    bootstrap = open_cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    assert topic in admin.list_topics(timeout=60).topics
    create(admin, binding(topic, AclOperation.ALL, AclPermissionType.ALLOW, NOBODY_ELSE))
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics)
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics([topic])[topic].result(60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_acls_without_an_authorizer_are_refused(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with pytest.raises(KafkaException) as refused:
        create(admin, binding(topic, AclOperation.READ, AclPermissionType.ALLOW))
    assert refused.value.args[0].code() == SECURITY_DISABLED

    async def describe() -> None:
        async with AsyncClient(client_config(bootstrap)) as cluster:
            await describe_acls(cluster)

    # Use our client: confluent-kafka treats the refusal as an empty list.
    with pytest.raises(BrokerRefused, match="No Authorizer is configured on the broker"):
        asyncio.run(describe())
