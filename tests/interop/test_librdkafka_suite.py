"""librdkafka's own test suite: confluent-kafka, kcat and most clients outside Java are built on librdkafka.

Tests of more than a minute (0026, 0033, 0081, 0098, 0103, 0113 …) or with limits of milliseconds (0001, 0055, 0086) are left
out: docs/clients.md has the results of all.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop import librdkafka_suite
from tests.interop.librdkafka_suite import Outcome, Suite

pytestmark = pytest.mark.timeout(2400)  # the first run builds the suite

PRODUCE_AND_CONSUME = (
    "0002 0003 0005 0007 0008 0011 0012 0013 0014 0015 0017 0021 0022 0029 0031 0034 0035 0036 0039 0041 0042 0044"
    " 0048 0049 0051 0053 0054 0057 0060 0063 0065 0067 0068 0070 0073 0083 0085 0090 0099 0101 0110 0112"
)
GROUPS = "0018 0019 0020 0030 0040 0050 0056 0059 0061 0064 0069 0084 0118 0130 0132 0140"
#: With KIP-848 heartbeats in place of JoinGroup and SyncGroup.
CONSUMER_PROTOCOL = "0018 0019 0030 0050 0102 0118 0130 0140 0153"
WITHOUT_AUTO_CREATION = "0045 0107 0111"
#: Tests that skip themselves if librdkafka was built without rapidjson.
NEED_RAPIDJSON = {"0053", "0101", "0110"}

#: The settings of the cluster with which the suite's authors test, as far as its tests depend on them.
CONFIG = {
    "num.partitions": "4",
    "zookeeper.session.timeout.ms": "18000",
    "default.replication.factor": "3",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    if not librdkafka_suite.is_available():
        pytest.skip("needs npm, make, gcc and g++")
    return Suite.built()


def _cluster(**config: str) -> LocalCluster:
    racks = {broker_id: {"broker.rack": f"RACK{broker_id}"} for broker_id in (1, 2, 3)}
    return LocalCluster(brokers=3, config=CONFIG | config, broker_config=racks)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with _cluster(**{"auto.create.topics.enable": "true"}) as cluster:
        yield cluster


def _assert_passed(suite: Suite, outcomes: list[Outcome], tests: str, work: Path) -> None:
    assert [each for each in outcomes if each.state != "PASSED"] == [], librdkafka_suite.failures(work)
    wanted = set(tests.split()) if suite.has_rapidjson else set(tests.split()) - NEED_RAPIDJSON
    assert {each.name[:4] for each in outcomes} == wanted


@pytest.mark.parametrize("tests", [PRODUCE_AND_CONSUME, GROUPS], ids=["produce and consume", "groups"])
def test_librdkafka_passes(suite: Suite, cluster: LocalCluster, tests: str, tmp_path: Path) -> None:
    _assert_passed(suite, suite.run(cluster.bootstrap, tests.split(), work=tmp_path), tests, tmp_path)


def test_librdkafka_passes_with_the_consumer_protocol(suite: Suite, cluster: LocalCluster, tmp_path: Path) -> None:
    outcomes = suite.run(
        cluster.bootstrap,
        CONSUMER_PROTOCOL.split(),
        work=tmp_path,
        environment={"TEST_CONSUMER_GROUP_PROTOCOL": "consumer"},
    )
    _assert_passed(suite, outcomes, CONSUMER_PROTOCOL, tmp_path)


def test_librdkafka_passes_where_topics_are_not_created_by_asking(suite: Suite, tmp_path: Path) -> None:
    with _cluster(**{"auto.create.topics.enable": "false"}) as cluster:
        outcomes = suite.run(
            cluster.bootstrap,
            WITHOUT_AUTO_CREATION.split(),
            work=tmp_path,
            environment={"TEST_SCENARIO": "noautocreate"},
        )
    _assert_passed(suite, outcomes, WITHOUT_AUTO_CREATION, tmp_path)
