"""Settings by request: a change goes to what ZooKeeper has, and one bad entity keeps no other from its answer."""

import asyncio
import math
from pathlib import Path

import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.api.quotas import quota_text
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.znodes import encode_config
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.unit.broker.compose.live_broker import LISTENER, ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import session, zookeeper


async def test_a_topic_with_a_value_that_cannot_be_used_hides_no_other(tmp_path: Path) -> None:
    """Another client has written it: a tool, or a broker that knows other values."""

    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
        async with AsyncClient(client_config(f"127.0.0.1:{broker.ports[LISTENER]}")) as client:
            names = ("good", "bad")
            await topic_admin.create_topics(
                client, [topic_admin.NewTopic(name=name, partitions=1, replication_factor=1) for name in names]
            )
        await other.set(paths.config_entity(paths.TOPICS, "bad"), encode_config({"retention.ms": "long"}))
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=name) for name in names
            ]
        )
        good, bad = (await ask(broker, request, DescribeConfigsResponse, version=4)).results
        assert (good.error_code, bool(good.configs)) == (ErrorCode.NONE, True)
        assert bad.error_code == ErrorCode.INVALID_CONFIG
        assert "retention.ms" in (bad.error_message or "")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["producer_byte_rate", "request_percentage", "connection_creation_rate"])
def test_a_quota_that_is_not_a_number_is_refused_for_its_entity(key: str, value: float) -> None:
    with pytest.raises(Refused) as refusal:
        quota_text(key, value)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("key", "most"), [("producer_byte_rate", 2**63 - 1), ("connection_creation_rate", 2**31 - 1)])
def test_a_quota_is_as_large_as_java_has_numbers(key: str, most: int) -> None:
    """A Kafka broker of the cluster that finds a larger one does not start any more."""
    assert quota_text(key, float(most)) == str(most)
    with pytest.raises(Refused, match="must be a"):
        quota_text(key, float(most) * 4)


def change(broker: str, name: str, value: str) -> IncrementalAlterConfigsRequest:
    entry = AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value)
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name=broker, configs=[entry])]
    )


@pytest.mark.parametrize("broker_name", ["", "1"], ids=["the cluster's default", "one broker"])
async def test_a_change_keeps_what_another_broker_has_just_written(tmp_path: Path, broker_name: str) -> None:
    """The notification of the other change is still on its way here."""
    entity = broker_name or paths.DEFAULT_ENTITY

    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
        written = {"log.cleaner.threads": "2"}
        path = paths.config_entity(paths.BROKERS_ENTITY, entity)
        await other.create(path, encode_config(written), make_path=True)
        response = await ask(
            broker,
            change(broker_name, "log.retention.ms", "1000000"),
            IncrementalAlterConfigsResponse,
            version=1,
        )
        assert [each.error_code for each in response.responses] == [ErrorCode.NONE]
        stored = await ConfigStore(other, SystemClock()).read(paths.BROKERS_ENTITY, entity)
        assert stored == {**written, "log.retention.ms": "1000000"}


async def test_changes_of_several_settings_at_once_lose_none(tmp_path: Path) -> None:
    """Two tools, each with one setting of the same broker, or of the same topic: each writes all of them."""
    names = ["log.retention.ms", "log.retention.bytes", "log.segment.bytes"]

    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        await asyncio.gather(
            *(ask(broker, change("", name, "1000000"), IncrementalAlterConfigsResponse, version=1) for name in names)
        )
        stored = await broker.settings.store.read(paths.BROKERS_ENTITY, paths.DEFAULT_ENTITY)
        assert stored == dict.fromkeys(names, "1000000")
        assert broker.dynamic.cluster_default == stored
