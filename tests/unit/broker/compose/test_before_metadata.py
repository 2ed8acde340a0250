"""A starting broker leads its partitions before it knows the cluster's topics. Clients do not get errors about missing
topics."""

import asyncio
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerId
from barnabas.base.words import ConfigResourceType
from barnabas.broker.parts.readiness import Readiness
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.unit.broker.compose.live_broker import LISTENER, ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble

COMMIT = OffsetCommitRequest(
    group_id="g",
    topics=[OffsetCommitRequestTopic(name="orders", partitions=[OffsetCommitRequestPartition(committed_offset=5)])],
)
DESCRIBE = DescribeConfigsRequest(
    resources=[DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name="orders")]
)


def code_of(response: ApiMessage) -> ErrorCode:
    if isinstance(response, OffsetCommitResponse):
        return ErrorCode(response.topics[0].partitions[0].error_code)
    assert isinstance(response, DescribeConfigsResponse)
    return ErrorCode(response.results[0].error_code)


@pytest.mark.parametrize(
    ("request_", "response_type", "version", "expected"),
    [
        # The client knows its coordinator from before, and asks it first of all.
        (COMMIT, OffsetCommitResponse, 8, {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}),
        (DESCRIBE, DescribeConfigsResponse, 4, set()),
    ],
    ids=["OffsetCommit", "DescribeConfigs"],
)
async def test_topics_exist_from_the_first_request_on(
    ensemble: Ensemble,
    tmp_path: Path,
    request_: ApiMessage,
    response_type: type[ApiMessage],
    version: int,
    expected: set[ErrorCode],
) -> None:
    async with live_broker(ensemble, tmp_path) as broker:
        address = f"127.0.0.1:{broker.ports[LISTENER]}"
        async with AsyncClient(client_config(address)) as client:
            topic = topic_admin.NewTopic(name="orders", partitions=1, replication_factor=1)
            await topic_admin.create_topics(client, [topic])
    ensemble.expire_sessions()
    async with live_broker(ensemble, tmp_path, ready=False) as broker:
        code = code_of(await ask(broker, request_, response_type, version=version))
        assert code in {ErrorCode.NONE, *expected}


async def test_a_session_that_expires_while_a_broker_waits_for_the_controller_does_not_end_the_broker(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    await zk.ensure_path(paths.BROKER_TOPICS)
    stop = asyncio.Event()
    stop.set()  # no controller will come
    ensemble.expire_sessions()
    await Readiness(BrokerId(1), MetadataCache(), stop, address="b1:9092").wait(zk)
    assert zk.expirations.value == 1
