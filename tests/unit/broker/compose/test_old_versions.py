"""A broker's answers in very old versions, and to requests of Kafka's own tests."""

import asyncio
import errno
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.topics import CLUSTER_METADATA_TOPIC
from barnabas.base.words import ConfigResourceType
from barnabas.broker.compose import Broker
from barnabas.broker.controller.topics import FORMER_TOPIC_WAIT_S
from barnabas.wire.messages import alter_configs
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper


async def create(broker: Broker, name: str, **configs: str) -> CreatableTopicResult:
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=entries)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    [result] = (await ask(broker, request, CreateTopicsResponse, version=7)).topics
    return result


async def produce(broker: Broker, topic: str) -> int:
    builder = BatchBuilder()
    builder.append(None, b"v", timestamp=1_000)
    data = PartitionProduceData(index=0, records=bytearray(builder.build()))
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    response = await ask(broker, request, ProduceResponse, version=9)
    return response.responses[0].partition_responses[0].error_code


async def fetch(broker: Broker, topic: str, *, version: int) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=10_000, min_bytes=1, max_bytes=1_000_000, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )
    [answer] = (await ask(broker, request, FetchResponse, version=version)).responses[0].partitions
    return answer


async def test_consumer_that_does_not_know_zstd_gets_an_error_and_no_bytes(broker: Broker) -> None:
    await create(broker, "z", compression_type="zstd")
    assert await produce(broker, "z") == ErrorCode.NONE
    old = await fetch(broker, "z", version=9)
    assert old.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE and not old.records
    new = await fetch(broker, "z", version=10)
    assert new.error_code == ErrorCode.NONE and new.records


@pytest.mark.parametrize(
    ("version", "expected"), [(5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)]
)
async def test_consumer_that_does_not_know_failed_disks_looks_for_another_leader(
    tmp_path: Path, version: int, expected: ErrorCode
) -> None:
    settings = {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"}
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, settings) as broker:
        await create(broker, "t")
        assert await produce(broker, "t") == ErrorCode.NONE
        [log] = [each for each in broker.logs if each.partition.topic == "t"]
        broker.logs.fail_dir(log.log_dir, OSError(errno.EIO, "broken"))
        assert (await fetch(broker, "t", version=version)).error_code == expected


async def test_move_to_another_directory_is_kept_or_refused_as_in_kafka(tmp_path: Path) -> None:
    """As Kafka's AlterReplicaLogDirsRequestTest: a wish for a topic that is not there yet is kept for when it is made."""
    first, second, third = (str(tmp_path / name) for name in "abc")

    async def move(broker: Broker, topic: str, path: str) -> int:
        wish = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[0])])
        request = AlterReplicaLogDirsRequest(dirs=[wish])
        [answer] = (await ask(broker, request, AlterReplicaLogDirsResponse, version=2)).results
        return answer.partitions[0].error_code

    def folder_of(broker: Broker, topic: str) -> str:
        [log] = [each for each in broker.logs if each.partition.topic == topic]
        return log.log_dir

    settings = {"log.dirs": ",".join((first, second, third))}
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, settings) as broker:
        assert await move(broker, "t", "nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await move(broker, "t", second) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await create(broker, "t")
        assert folder_of(broker, "t") == second
        assert await move(broker, "t", second) == ErrorCode.NONE
        broker.logs.fail_dir(second, OSError(errno.EIO, "broken"))
        for path in (second, third):
            assert await move(broker, "t", path) == ErrorCode.KAFKA_STORAGE_ERROR


async def test_name_of_krafts_own_topic_is_not_given_to_another(broker: Broker) -> None:
    """A broker that starts takes no log of that name for its own, so the records would be gone."""

    refused = await create(broker, CLUSTER_METADATA_TOPIC)
    assert refused.error_code == ErrorCode.INVALID_REQUEST and "prohibited" in (refused.error_message or "")
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=CLUSTER_METADATA_TOPIC)])
    [topic] = (await ask(broker, asked, MetadataResponse, version=9)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_resource_that_is_altered_twice_in_one_request_stays_as_it_was(broker: Broker) -> None:
    await create(broker, "t", retention_ms="1000")
    await create(broker, "u")
    request = alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=name,
                configs=[alter_configs.AlterableConfig(name="retention.ms", value=value)],
            )
            for name, value in (("t", "2000"), ("u", "3000"), ("t", "4000"))
        ]
    )
    response = await ask(broker, request, alter_configs.AlterConfigsResponse, version=2)
    codes = [(each.resource_name, each.error_code) for each in response.responses]
    twice = ("t", ErrorCode.INVALID_REQUEST)
    assert codes == [twice, ("u", ErrorCode.NONE), twice]
    resource = DescribeConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name="t", configuration_keys=["retention.ms"]
    )
    described = DescribeConfigsRequest(resources=[resource])
    [result] = (await ask(broker, described, DescribeConfigsResponse, version=4)).results
    assert result.configs[0].value == "1000"


async def test_deleted_topic_is_created_again_by_create_topics_and_not_by_metadata(broker: Broker) -> None:
    """As with KRaft. A test of kafka-go deletes topics, and asks whether they are gone, with creation allowed."""

    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=10_000)
    for _ in range(3):
        assert (await create(broker, "t")).error_code == ErrorCode.NONE
        [deleted] = (await ask(broker, deletion, DeleteTopicsResponse, version=6)).responses
        assert deleted.error_code == ErrorCode.NONE
    broker.controller.machine.context.to_delete.add("going")
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="going")], allow_auto_topic_creation=True)
    began_s = asyncio.get_running_loop().time()
    [topic] = (await ask(broker, asked, MetadataResponse, version=9)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert asyncio.get_running_loop().time() - began_s < FORMER_TOPIC_WAIT_S / 2


async def test_topic_in_a_metadata_request_is_created_and_answered_with_its_leader(broker: Broker) -> None:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    [topic] = (await ask(broker, asked, MetadataResponse, version=9)).topics
    assert topic.error_code == ErrorCode.NONE
    assert [partition.leader_id for partition in topic.partitions] == [1]
