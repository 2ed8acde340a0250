"""Apache Kafka's Java client, 3.9 and 4.3, against our cluster and a mixed one: `java/Client.java` plays each scenario."""

from collections.abc import Iterator

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.java_client import SCENARIOS, compiled, play
from tests.interop.kinds import APACHE, OURS, MixedCluster
from tests.interop.steering import Steering

pytestmark = pytest.mark.usefixtures("java")
NEW, OLD = "4.3.1", "3.9.1"


@pytest.fixture(scope="module")
def mixed() -> Iterator[MixedCluster]:
    with MixedCluster(kinds={1: APACHE, 2: OURS, 3: OURS}) as cluster:
        Steering(cluster).close()  # waits until every broker knows all others
        yield cluster


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_java_client_of_our_cluster(cluster: LocalCluster, topic: str, version: str, scenario: str) -> None:
    play(compiled(version), cluster.bootstrap, scenario, topic)


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "consumer"])
def test_java_client_of_a_mixed_cluster(mixed: MixedCluster, topic: str, scenario: str) -> None:
    play(compiled(NEW), mixed.bootstrap, scenario, topic)


@pytest.mark.parametrize("scenario", ["share", "streams"])
def test_group_of_kafka_4_is_refused_with_a_reason_beside_brokers_that_do_not_have_it(
    mixed: MixedCluster, topic: str, scenario: str
) -> None:
    play(compiled(NEW, "Unsupported", "kafka-streams"), mixed.bootstrap, scenario, topic)
