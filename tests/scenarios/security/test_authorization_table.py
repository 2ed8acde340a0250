"""Every API under every ACL: our broker decides as Apache Kafka 3.9.1 did (`tests/golden/kafka-3.9.1/authorization.json`)."""

import asyncio

import pytest

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.asynchronous import AsyncClient
from barnabas.wire.versions import api_of
from tests.authorization import acl_keeping, quota_keeping, table
from tests.authorization.probes import PROBES
from tests.authorization.worlds import WORLDS

#: APIs before there is a principal.
AUTHENTICATION = {"SaslHandshake", "SaslAuthenticate"}
#: APIs that Kafka 3.9 does not serve in ZooKeeper mode: there is nothing to compare with.
BEYOND = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "DescribeTopicPartitions", "ListConfigResources"}
BEYOND |= {"InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState"}
BEYOND |= {"ReadShareGroupStateSummary", "ShareFetch", "ShareAcknowledge", "ShareGroupHeartbeat", "ShareGroupDescribe"}
BEYOND |= {"StreamsGroupHeartbeat", "StreamsGroupDescribe"}
BEYOND |= {"DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"}
BEYOND |= {"GetTelemetrySubscriptions", "PushTelemetry", "DescribeClientMetrics"}
BEYOND |= {"ReportToNeighbour", "DescribeNeighbours"}
#: APIs that only barnabas has. The tests of links check their permissions.
BEYOND |= {"CreateLink", "DescribeLinks", "AlterLink", "DeleteLink", "RenewLeaderEpoch"}


@pytest.mark.parametrize("name", WORLDS)
def test_broker_decides_as_apache_kafka(name: str) -> None:
    world = WORLDS[name]
    config = {**world.config, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with LocalCluster(brokers=1, config=config) as cluster:
        served = asyncio.run(apis_of(cluster.bootstrap))
        found = asyncio.run(table.ask_broker(cluster.bootstrap, probes=world.probes, with_singles=world.with_singles))
    assert table.differences(table.load()[name], found) == []
    assert served - {probe.api for probe in PROBES} == AUTHENTICATION | BEYOND


def test_acls_and_quotas_are_kept_and_found_as_apache_kafka_does() -> None:
    config = {**table.BROKER_CONFIG, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with LocalCluster(brokers=1, config=config) as cluster:
        where = (cluster.bootstrap, cluster.zookeeper_connect)
        acls, quotas = asyncio.run(acl_keeping.kept(*where)), asyncio.run(quota_keeping.kept(*where))
    for part, recorded in acl_keeping.load().items():
        assert acls[part] == recorded, part
    for part, recorded in quota_keeping.load().items():
        assert quotas[part] == recorded, part


async def apis_of(bootstrap: str) -> set[str]:
    async with AsyncClient(table.client_of(bootstrap, "alice")) as alice:
        return {api_of(key).name for key in (await alice.any_connection()).versions.apis}
