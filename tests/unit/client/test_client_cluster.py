"""A client's metadata of a cluster: its source, its renewal, and how long the client waits for it."""

import asyncio

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.client.admin import topics as topic_admin
from barnabas.client.admin.acls import describe_acls
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.connection import Connection
from barnabas.client.core import COORDINATION
from barnabas.client.errors import BrokerRefused, ConnectionLost, DeadlineExceeded, RequestTimedOut
from barnabas.client.image import Broker, ClusterImage
from barnabas.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from barnabas.wire.messages.describe_acls import AclDescription, DescribeAclsResource, DescribeAclsResponse
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.unit.client.client_fake_broker import Call, FakeBroker
from tests.unit.client.client_fake_cluster import METADATA, FakeCluster, canned

pytestmark = pytest.mark.uvloop

CREATE_TOPICS, FIND_COORDINATOR, HEARTBEAT, DESCRIBE_ACLS, DESCRIBE_CLUSTER = 19, 10, 12, 29, 60


async def test_topics_and_brokers_are_as_metadata_has_them() -> None:
    async with FakeCluster(topics={"a": 1, "b": 3}).client() as cluster:
        topics = await cluster.all_topics()
        assert {name: len(info.partitions) for name, info in topics.items()} == {"a": 1, "b": 3}
        assert list(await cluster.brokers()) == [1]
        assert cluster.image.cluster_id == "fake"


async def test_known_leaders_are_not_requested_again() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster:
        for _ in range(5):
            assert await cluster.leaders([TopicPartition("t", 0)]) == {1: [TopicPartition("t", 0)]}
        assert fake.metadata_count == 1
        cluster.forget_leaders(["t"])
        await cluster.leaders([TopicPartition("t", 0)])
        assert fake.metadata_count == 2


async def test_missing_partition_has_another_error_than_one_without_a_leader() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster:
        with pytest.raises(BrokerRefused, match="UNKNOWN_TOPIC_OR_PARTITION: partition t-7"):
            await cluster.leaders([TopicPartition("t", 7)])
        with pytest.raises(BrokerRefused, match="UNKNOWN_TOPIC_OR_PARTITION: topic nix"):
            await cluster.leaders([TopicPartition("nix", 0)])
        leaderless = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host=fake.broker.host, port=fake.broker.port)],
            topics=[MetadataResponseTopic(name="t", partitions=[MetadataResponsePartition(leader_id=-1)])],
        )
        fake.broker.handlers[METADATA] = canned([leaderless])
        cluster.forget_leaders(["t"])
        with pytest.raises(BrokerRefused, match="LEADER_NOT_AVAILABLE: partition t-0 has no leader"):
            await cluster.leaders([TopicPartition("t", 0)])


async def test_second_bootstrap_server_is_tried_when_the_first_is_down() -> None:
    async with FakeBroker() as gone:
        dead = (gone.host, gone.port)
    async with FakeBroker(handlers={METADATA: canned([MetadataResponse(cluster_id="x")])}) as broker:
        config = ClientConfig(bootstrap=(dead, (broker.host, broker.port)))
        async with AsyncClient(config) as cluster:
            await cluster.brokers()
            assert cluster.image.cluster_id == "x"


def never(call: Call) -> None:
    """Behave like a starting broker that waits for the controller."""


@pytest.mark.parametrize("operation", ["refresh, as doctor does", "metadata", "any", "coordinator"])
async def test_broker_that_accepts_connections_and_never_answers_is_skipped(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.client.core._METADATA_PATIENCE_MS", 50)
    fake = FakeCluster()
    fake.broker.handlers[FIND_COORDINATOR] = canned(
        [FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1)])]
    )
    fake.broker.handlers[DESCRIBE_CLUSTER] = canned([DescribeClusterResponse(cluster_id="x")])
    silent_apis = (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER)
    async with FakeBroker(handlers=dict.fromkeys(silent_apis, never)) as waiting, fake.broker as healthy:
        bootstrap = ((waiting.host, waiting.port), (healthy.host, healthy.port))
        config = ClientConfig(bootstrap=bootstrap, request_timeout_ms=200, retry_backoff_ms=1)
        async with AsyncClient(config) as cluster:
            match operation:
                case "refresh, as doctor does":
                    assert list((await cluster.refresh(None)).brokers) == [1]
                case "metadata":
                    assert list(await cluster.brokers()) == [1]
                case "any":
                    answer = await cluster.ask_any(DescribeClusterRequest(), DescribeClusterResponse)
                    assert answer.cluster_id == "x"
                case "coordinator":
                    assert await cluster.coordinator("g") == 1
            await cluster.brokers()  # the broker that answered is the one that is asked again
            assert (await cluster.any_link()).address == f"{healthy.host}:{healthy.port}"


async def test_a_cluster_of_brokers_that_answer_nothing_fails_and_a_broker_that_answers_again_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barnabas.client.core._METADATA_PATIENCE_MS", 50)
    async with FakeBroker(handlers={METADATA: never}) as one, FakeBroker(handlers={METADATA: never}) as two:
        bootstrap = ((one.host, one.port), (two.host, two.port))
        config = ClientConfig(bootstrap=bootstrap, request_timeout_ms=100, retry_backoff_ms=1)
        async with AsyncClient(config) as cluster:
            with pytest.raises(RequestTimedOut, match="Metadata"):
                await cluster.refresh(())
            one.handlers[METADATA] = canned([MetadataResponse(cluster_id="x")])
            await cluster.refresh(())
            assert cluster.image.cluster_id == "x"


async def test_the_cluster_may_change_while_a_client_looks_for_a_broker_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another task of the client has refreshed the metadata in the meantime."""

    async def link(broker_id: int) -> Connection:
        cluster.image = ClusterImage()
        raise ConnectionLost("it is gone")

    async with (
        FakeBroker(handlers={METADATA: canned([MetadataResponse(cluster_id="x")])}) as broker,
        AsyncClient(ClientConfig(bootstrap=((broker.host, broker.port),))) as cluster,
    ):
        monkeypatch.setattr(cluster, "link", link)
        cluster.image = ClusterImage(brokers={each: Broker(each, "127.0.0.1", 1) for each in (1, 2)})
        assert (await cluster.any_link()).address == f"{broker.host}:{broker.port}"


async def test_concurrent_requests_share_the_first_connection() -> None:
    """A second connection would be forgotten, and never be closed."""
    async with FakeCluster().client() as cluster:
        links = await asyncio.gather(*(cluster.any_link() for _ in range(5)))
        assert len(set(map(id, links))) == 1


async def test_cluster_that_was_never_reached_fails_soon_and_names_every_address() -> None:
    async with FakeBroker() as one, FakeBroker() as two:
        ports = (one.port, two.port)
    config = ClientConfig(bootstrap=tuple(("127.0.0.1", port) for port in ports), retry_backoff_ms=1)
    async with AsyncClient(config) as cluster:
        with pytest.raises(ConnectionLost) as failure:
            await cluster.brokers()
    assert all(f"127.0.0.1:{port}" in str(failure.value) for port in ports)


async def test_request_to_a_former_controller_is_repeated_at_the_new_one() -> None:
    def outcome(code: ErrorCode) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="n", error_code=code)])

    fake = FakeCluster()
    fake.broker.handlers[CREATE_TOPICS] = canned([outcome(ErrorCode.NOT_CONTROLLER), outcome(ErrorCode.NONE)])
    async with fake.client() as cluster:
        await topic_admin.create_topics(cluster, [topic_admin.NewTopic(name="n")])
        assert fake.metadata_count == 2


async def test_refusal_that_will_not_pass_is_not_repeated() -> None:
    fake = FakeCluster()
    refusal = CreatableTopicResult(name="n", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="Topic 'n' …")
    fake.broker.handlers[CREATE_TOPICS] = canned([CreateTopicsResponse(topics=[refusal])])
    async with fake.client() as cluster:
        with pytest.raises(BrokerRefused, match="TOPIC_ALREADY_EXISTS"):
            await topic_admin.create_topics(cluster, [topic_admin.NewTopic(name="n")])
        assert sum(call.message.API_KEY == CREATE_TOPICS for call in fake.broker.calls) == 1


async def test_coordinator_that_moved_is_looked_up_again() -> None:
    fake = FakeCluster()

    def found(code: ErrorCode = ErrorCode.NONE) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1, error_code=code)])

    fake.broker.handlers[FIND_COORDINATOR] = canned([found(ErrorCode.COORDINATOR_NOT_AVAILABLE), found(), found()])
    fake.broker.handlers[HEARTBEAT] = canned(
        [
            HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR),
            HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            HeartbeatResponse(),
        ]
    )
    async with fake.client() as cluster:
        response = await cluster.ask_coordinator(
            "g", HeartbeatRequest(group_id="g"), HeartbeatResponse, error_of=lambda answer: answer.error_code
        )
        assert response.error_code == 0
        look_ups = sum(call.message.API_KEY == FIND_COORDINATOR for call in fake.broker.calls)
        assert look_ups == 3


async def test_retries_end_at_the_deadline_with_the_last_error() -> None:
    fake = FakeCluster()

    async def refused() -> None:
        raise BrokerRefused(ErrorCode.NOT_ENOUGH_REPLICAS, "two of three")

    async with fake.client() as cluster:
        with pytest.raises(DeadlineExceeded, match="writing: gave up after 60 ms: NOT_ENOUGH_REPLICAS: two of three"):
            await cluster.retrying("writing", refused, timeout_ms=60)


async def test_coordination_has_a_connection_of_its_own() -> None:
    async with FakeCluster().client() as cluster:
        await cluster.brokers()
        data = await cluster.connection(1)
        coordination = await cluster.connection(1, purpose=COORDINATION)
        assert data is not coordination
        assert await cluster.connection(1, purpose=COORDINATION) is coordination


async def test_lost_connection_is_replaced_at_the_next_request() -> None:
    fake = FakeCluster()
    async with fake.client() as cluster:
        await cluster.brokers()
        first = await cluster.connection(1)
        fake.broker.drop_connections()
        await first.wait_closed()
        assert list(await cluster.brokers()) == [1]
        assert await cluster.connection(1) is not first


@pytest.mark.parametrize(("number", "operation"), [(15, AclOperation.TWO_PHASE_COMMIT), (99, AclOperation.UNKNOWN)])
async def test_entries_of_newer_operations_are_listed(number: int, operation: AclOperation) -> None:
    """A list with operation 15 once raised ValueError; so would any later operation."""
    fake = FakeCluster()
    entry = AclDescription(principal="User:a", host="*", operation=number, permission_type=Permission.ALLOW)
    resource = DescribeAclsResource(
        resource_type=AclResourceType.TRANSACTIONAL_ID,
        resource_name="x",
        pattern_type=PatternType.LITERAL,
        acls=[entry],
    )
    fake.broker.handlers[DESCRIBE_ACLS] = canned([DescribeAclsResponse(resources=[resource])])
    async with fake.client() as cluster:
        ((_, entries),) = (await describe_acls(cluster)).items()
        assert [each.operation for each in entries] == [operation]
