"""`barnabas doctor --bootstrap-server`: clusters that are ill, as the protocol shows them."""

import asyncio
from dataclasses import replace

import pytest

from barnabas.cli._doctor_cluster import ClusterView, DirView, check_cluster, examine
from barnabas.cli._doctor_finding import Finding, Severity
from barnabas.client.config import client_config
from barnabas.client.image import Broker, ClusterImage, PartitionInfo, TopicInfo
from barnabas.core.ids import TopicPartition
from barnabas.testing.cluster import Cluster as RealCluster

GIB = 1 << 30
BROKERS = {number: Broker(number, f"kafka{number}", 9092) for number in (1, 2, 3)}
APIS = {0: (0, 12), 1: (0, 17)}


def topic(
    name: str = "orders",
    *,
    leader: int = 1,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] | None = None,
    internal: bool = False,
) -> TopicInfo:
    info = PartitionInfo(0, leader, 0, replicas, replicas if isr is None else isr)
    return TopicInfo(name, bytes(16), internal, (info,))


def image(*topics: TopicInfo, controller: int = 1, brokers: dict[int, Broker] = BROKERS) -> ClusterImage:
    return ClusterImage(
        brokers=brokers, cluster_id="c", controller_id=controller, topics={each.name: each for each in topics}
    )


def healthy(*topics: TopicInfo) -> ClusterView:
    return ClusterView(
        image=image(*(topics or (topic(),))),
        now_ms=1_000_000,
        versions=dict.fromkeys(BROKERS, APIS),
        log_dirs=dict.fromkeys(BROKERS, (DirView("/data", "", 100 * GIB, 50 * GIB),)),
        min_isr={"orders": 2},
    )


def found(view: ClusterView) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(view)}


def test_healthy_cluster_has_no_finding() -> None:
    assert found(healthy()) == {}


def test_broker_that_does_not_answer_at_its_advertised_address_is_an_error() -> None:
    wrong = found(replace(healthy(), unreachable={2: "Connection refused"}))["advertised-listener-unreachable"]
    assert wrong.subject == "broker 2" and "kafka2:9092" in wrong.message


def test_two_brokers_that_advertise_one_address_are_an_error() -> None:
    brokers = {**BROKERS, 2: Broker(2, "kafka1", 9092)}
    assert (
        found(replace(healthy(), image=image(brokers=brokers)))["advertised-listener-twice"].subject == "brokers 1, 2"
    )


def test_loopback_beside_real_addresses_is_warned_of() -> None:
    brokers = {**BROKERS, 2: Broker(2, "localhost", 9092)}
    assert "broker 2" in found(replace(healthy(), image=image(brokers=brokers)))["advertised-listener-loopback"].message


@pytest.mark.parametrize("controller", [-1, 9])
def test_missing_controller_is_an_error(controller: int) -> None:
    view = replace(healthy(), image=image(topic(), controller=controller))
    assert found(view)["no-controller"].severity is Severity.ERROR


def test_versions_that_differ_name_who_has_which() -> None:
    view = replace(healthy(), versions={1: APIS, 2: APIS, 3: {0: (0, 9)}})
    assert "1, 2 | 3" in found(view)["versions-differ"].message


def test_partition_without_a_leader_is_an_error_that_names_the_missing_broker() -> None:
    findings = found(healthy(topic(leader=-1, replicas=(7, 1), isr=(7,))))
    assert findings["partitions-offline"].severity is Severity.ERROR
    assert "missing: 7" in findings["partitions-offline"].advice
    assert "partitions-under-replicated" not in findings


def test_partition_with_few_in_sync_is_under_replicated_and_below_its_minimum_refuses_writes() -> None:
    assert found(healthy(topic(isr=(1, 2)))).keys() == {"partitions-under-replicated"}
    assert found(healthy(topic(isr=(1,)))).keys() == {"partitions-under-replicated", "partitions-under-min-isr"}


def test_topic_that_can_never_have_enough_replicas_in_sync_is_an_error() -> None:
    assert found(healthy(topic(replicas=(1,))))["min-isr-above-replicas"].subject == "topic orders"


def test_internal_topic_with_one_replica_is_wrong_and_another_topic_is_a_note() -> None:
    view = healthy(topic("__consumer_offsets", replicas=(1,), internal=True), topic("t", replicas=(1,)))
    findings = found(replace(view, min_isr={}))
    assert findings["internal-topic-replicas-one"].severity is Severity.WARNING
    assert findings["topic-replicas-one"].severity is Severity.NOTE


def test_single_broker_cannot_have_more_replicas() -> None:
    alone = image(topic("__consumer_offsets", replicas=(1,), internal=True), brokers={1: BROKERS[1]})
    assert found(replace(healthy(), image=alone)) == {}


def test_offline_and_nearly_full_and_short_lived_directories_are_told_apart() -> None:
    directories = {
        1: (DirView("/a", "KAFKA_STORAGE_ERROR"),),
        2: (DirView("/b", "", 100 * GIB, 2 * GIB),),
        3: (DirView("/tmp/c", "", -1, -1),),
    }
    findings = found(replace(healthy(), log_dirs=directories))
    assert {check: finding.subject for check, finding in findings.items()} == {
        "log-dir-offline": "broker 1",
        "disk-nearly-full": "broker 2",
        "log-dirs-in-tmp": "broker 3",
    }


def test_record_of_a_coordinator_from_the_future_gives_its_clock_away() -> None:
    view = healthy(topic("__consumer_offsets", leader=2))
    at = TopicPartition("__consumer_offsets", 0)
    wrong = found(replace(view, newest_ms={at: 1_060_000}))["clock-skew"]
    assert wrong.subject == "broker 2" and "60.0 s" in wrong.message
    assert found(replace(view, newest_ms={at: 1_001_000})) == {}


def test_question_without_an_answer_is_a_note() -> None:
    assert found(replace(healthy(), refused=("settings of topics (no)",)))["not-answered"].severity is Severity.NOTE


def test_internal_topic_that_needs_more_brokers_than_there_are_is_an_error() -> None:
    """U6: a consumer hung, and nothing was wrong."""
    view = replace(healthy(), internal_factors={"offsets.topic.replication.factor": 9})
    finding = found(view)["internal-topic-impossible"]
    assert finding.severity is Severity.ERROR
    assert "offsets.topic.replication.factor=9" in finding.message
    assert "consumer groups wait" in finding.message
    assert (
        found(replace(view, image=image(topic("__consumer_offsets")))).keys().isdisjoint({"internal-topic-impossible"})
    )


def test_internal_topics_of_one_broker_with_kafkas_default_factor_are_found_on_a_real_cluster() -> None:
    with RealCluster(brokers=1, config={"offsets.topic.replication.factor": "3"}) as cluster:
        findings, _ = asyncio.run(check_cluster(client_config(cluster.bootstrap)))
    assert "internal-topic-impossible" in {finding.check for finding in findings}
