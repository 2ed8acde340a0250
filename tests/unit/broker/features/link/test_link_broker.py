"""Links on one broker: refused next to a broker that does not support them, and damaged znodes."""

import pytest

from barnabas.base.config.topic import LINK_NAME, keep_link
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.compose import Broker
from barnabas.broker.features.link.feature import LinkPlugin
from barnabas.broker.features.link.source import LinkThrottle
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.features import LINK_VERSION
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint
from barnabas.broker.zookeeper_client.znodes_link import LinkChange, MirrorState, MirrorTopic
from barnabas.wire.messages import alter_configs as full
from barnabas.wire.messages import incremental_alter_configs as incremental
from barnabas.wire.messages.alter_link import AlterLinkRequest, AlterLinkResponse
from barnabas.wire.messages.create_link import CreateLinkRequest, CreateLinkResponse, LinkConfig
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_link import DeleteLinkRequest, DeleteLinkResponse
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.describe_links import DescribeLinksRequest, DescribeLinksResponse
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import ask

NOWHERE = [LinkConfig(name="bootstrap.servers", value="127.0.0.1:1")]


async def test_link_is_refused_beside_a_broker_that_does_not_know_links(broker: Broker) -> None:
    apache = BrokerRegistration(id=2, endpoints=(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 1),))
    await broker.session.create(paths.broker_id(2), apache.encode())
    await eventually(lambda: not broker.features.level(LINK_VERSION))
    request = CreateLinkRequest(name="l", configs=NOWHERE, topics=".*")
    refused = await ask(broker, request, CreateLinkResponse, version=0)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
    await broker.session.delete(paths.broker_id(2))
    await eventually(lambda: broker.features.level(LINK_VERSION))
    made = await ask(broker, request, CreateLinkResponse, version=0)
    assert (made.error_code, made.error_message) == (ErrorCode.NONE, None)


async def test_broker_without_links_leaves_the_tree_as_kafka_does(broker: Broker) -> None:
    assert await broker.session.exists(paths.BARNABAS) is None
    answer = await ask(broker, DescribeLinksRequest(), DescribeLinksResponse, version=0)
    assert (answer.error_code, answer.links) == (ErrorCode.NONE, [])


async def test_spoilt_link_hurts_only_itself(broker: Broker) -> None:
    for name in ("good", "bad"):
        request = CreateLinkRequest(name=name, configs=NOWHERE, topics=".*")
        assert not (await ask(broker, request, CreateLinkResponse, version=0)).error_code
    await broker.session.set(paths.link("bad"), b"{not json")
    await broker.session.create(paths.link_topic("good", "t"), b"[]")
    await broker.plugin(LinkPlugin).manager.store.tell(LinkChange("bad"))
    await broker.plugin(LinkPlugin).manager.store.tell(LinkChange("good", "t"))
    await eventually(lambda: broker.plugin(LinkPlugin).manager.links["bad"].error is not None)
    answer = await ask(broker, DescribeLinksRequest(), DescribeLinksResponse, version=0)
    errors = {link.name: link.error for link in answer.links}
    assert "does not hold JSON" in (errors["bad"] or "")
    paused = AlterLinkRequest(name="bad", action="pause")
    assert (await ask(broker, paused, AlterLinkResponse, version=0)).error_code
    gone = await ask(broker, DeleteLinkRequest(name="bad"), DeleteLinkResponse, version=0)
    assert gone.error_code == ErrorCode.NONE
    answer = await ask(broker, DescribeLinksRequest(), DescribeLinksResponse, version=0)
    assert [link.name for link in answer.links] == ["good"]


async def test_topic_that_does_not_exist_here_yet_is_not_promoted(broker: Broker) -> None:
    """It would become an ordinary topic without records, or would not exist at all."""

    request = CreateLinkRequest(name="l", configs=NOWHERE, topics=".*")
    assert not (await ask(broker, request, CreateLinkResponse, version=0)).error_code
    manager = broker.plugin(LinkPlugin).manager
    await manager.store.create_topic("l", "t", MirrorTopic())
    await eventually(lambda: "t" in manager.links["l"].topics)
    at_once = AlterLinkRequest(name="l", topic="t", action="promote-now")
    refused = await ask(broker, at_once, AlterLinkResponse, version=0)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "does not exist here yet" in (refused.error_message or "")
    planned = AlterLinkRequest(name="l", topic="t", action="promote")
    assert not (await ask(broker, planned, AlterLinkResponse, version=0)).error_code
    for ending in manager.endings:
        await ending(manager.links["l"])
    mirror = await manager.store.topic("l", "t")
    assert mirror is not None
    assert mirror.state is MirrorState.PROMOTING


async def test_setting_of_a_mirror_is_not_for_clients(broker: Broker) -> None:
    config = CreatableTopicConfig(name="barnabas.link.name", value="mine")
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[config])
    made = await ask(broker, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, version=5)
    assert made.topics[0].error_code == ErrorCode.INVALID_CONFIG


async def test_settings_of_an_ordinary_topic_can_be_written_back_as_they_were_read(broker: Broker) -> None:
    """As confluent-kafka-go's test does: AlterConfigs replaces all settings, so a client reads them first."""

    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await ask(broker, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, version=5)
    kind = ConfigResourceType.TOPIC
    asked = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name="t", configuration_keys=None)]
    )
    read = await ask(broker, asked, DescribeConfigsResponse, version=4)
    settings = {entry.name: entry.value for entry in read.results[0].configs}
    assert settings["barnabas.link.name"] == ""
    back = full.AlterConfigsResource(
        resource_type=kind,
        resource_name="t",
        configs=[full.AlterableConfig(name=name, value=value) for name, value in settings.items()],
    )
    request = full.AlterConfigsRequest(resources=[back])
    replaced = await ask(broker, request, full.AlterConfigsResponse, version=2)
    assert (replaced.responses[0].error_code, replaced.responses[0].error_message) == (ErrorCode.NONE, None)
    single = incremental.AlterConfigsResource(
        resource_type=kind,
        resource_name="t",
        configs=[
            incremental.AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value)
            for name, value in settings.items()
        ],
    )
    changed = await ask(
        broker,
        incremental.IncrementalAlterConfigsRequest(resources=[single]),
        incremental.IncrementalAlterConfigsResponse,
        version=1,
    )
    assert (changed.responses[0].error_code, changed.responses[0].error_message) == (ErrorCode.NONE, None)
    copied = CreatableTopic(
        name="copy",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
    )
    made = await ask(broker, CreateTopicsRequest(topics=[copied]), CreateTopicsResponse, version=5)
    assert (made.topics[0].error_code, made.topics[0].error_message) == (ErrorCode.NONE, None)


@pytest.mark.parametrize("value", ["", "other"])
def test_mirror_stays_one_whatever_a_client_writes(value: str) -> None:
    mirror = {LINK_NAME: "l", "retention.ms": "1"}
    assert keep_link({"retention.ms": "2"}, mirror) == {LINK_NAME: "l", "retention.ms": "2"}
    with pytest.raises(Refused):
        keep_link({LINK_NAME: value}, mirror)


def test_throttle_is_used_up_while_the_rate_is_above_it() -> None:
    now_ms = 0
    throttle = LinkThrottle(1000, lambda: now_ms)
    tp = TopicPartition("t", 0)
    throttle.record(tp, 900)
    assert not throttle.is_throttled(tp)
    throttle.record(tp, 5_000)
    assert throttle.is_throttled(tp)
    now_ms = 20_000
    assert not throttle.is_throttled(tp)
    free = LinkThrottle(None, lambda: now_ms)
    free.record(tp, 10**12)
    assert not free.is_throttled(tp)
