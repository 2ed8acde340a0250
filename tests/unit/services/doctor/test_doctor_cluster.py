"""`barnabas doctor --bootstrap-server`: clusters that are ill, as the protocol shows them."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import barnabas
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.image import Broker, ClusterImage, PartitionInfo, TopicInfo
from barnabas.services.doctor import look
from barnabas.services.doctor.checks import examine
from barnabas.services.doctor.cluster import check_cluster
from barnabas.services.doctor.finding import Finding, Severity, in_order
from barnabas.services.doctor.view import BrokerView, ClusterView, DirView, Limits, TokenView, ZooKeeperView
from barnabas.testing.cluster import Cluster as RealCluster

GIB = 1 << 30
BROKERS = {number: Broker(number, f"kafka{number}", 9092) for number in (1, 2, 3)}
APIS = {0: (0, 12), 1: (0, 17)}
HEALTHY = BrokerView(versions=APIS, log_dirs=(DirView("/data", "", 100 * GIB, 50 * GIB),), controller_id=1)


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
        brokers=dict.fromkeys(BROKERS, HEALTHY),
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


def test_differing_versions_are_reported_with_their_brokers() -> None:
    view = replace(healthy(), brokers={**healthy().brokers, 3: replace(HEALTHY, versions={0: (0, 9)})})
    assert "1, 2 | 3" in found(view)["versions-differ"].message


@pytest.mark.parametrize(
    ("name", "feature"), [("share-groups-refused", "share.version"), ("streams-groups-refused", "streams.version")]
)
def test_refused_groups_are_reported_with_the_brokers_that_lack_them(name: str, feature: str) -> None:
    known = frozenset({feature})
    ours = replace(HEALTHY, is_ours=True, features=known, finalized=known)
    whole = replace(healthy(), brokers=dict.fromkeys(BROKERS, ours))
    assert name not in found(whole)
    off = replace(ours, finalized=frozenset())
    mixed = replace(whole, brokers={1: off, 2: off, 3: HEALTHY})
    assert "(not on: 3)" in found(mixed)[name].message
    silent = replace(whole, brokers={1: off, 2: off}, unreachable={3: "refused"})
    assert "(no answer from: 3)" in found(silent)[name].message
    assert name not in found(healthy()), "Apache Kafka alone does not have them either"


def test_partition_without_a_leader_is_an_error_that_names_the_missing_broker() -> None:
    findings = found(healthy(topic(leader=-1, replicas=(7, 1), isr=(7,))))
    assert findings["partitions-offline"].severity is Severity.ERROR
    assert "missing: 7" in findings["partitions-offline"].advice
    assert "partitions-under-replicated" not in findings


def test_broker_that_is_down_comes_before_the_problems_that_it_causes() -> None:
    """Doctor once began with `__transaction_state`, and advised to restart everything with fewer replicas."""
    factors = {"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "3"}
    alive = {number: BROKERS[number] for number in (1, 2)}
    reported = replace(HEALTHY, settings=factors)
    led = topic(isr=(1,))
    view = replace(healthy(), image=image(led, brokers=alive), brokers=dict.fromkeys(alive, reported))
    first, *others = in_order(examine(view))
    assert (first.check, first.subject, first.severity) == ("broker-down", "broker 3", Severity.ERROR)
    assert "start it" in first.advice
    assert [each.check for each in others if each.severity is Severity.ERROR] == ["partitions-under-min-isr"]
    impossible = [each for each in others if each.check == "internal-topic-impossible"]
    assert [(each.subject, each.severity) for each in impossible] == [
        ("topic __consumer_offsets", Severity.WARNING),
        ("topic __transaction_state", Severity.NOTE),
    ]
    assert {each.advice for each in impossible} == {"start broker 3"}


def test_partition_with_few_in_sync_is_under_replicated_and_below_its_minimum_refuses_writes() -> None:
    assert found(healthy(topic(isr=(1, 2)))).keys() == {"partitions-under-replicated"}
    assert found(healthy(topic(isr=(1,)))).keys() == {"partitions-under-replicated", "partitions-under-min-isr"}


def test_min_insync_replicas_that_cannot_be_met_counts_as_the_number_of_replicas() -> None:
    wrong = found(healthy(topic(replicas=(1,))))["min-isr-above-replicas"]
    assert (wrong.severity, wrong.subject) == (Severity.WARNING, "topic orders")
    view = replace(healthy(topic(replicas=(1, 2), isr=(1,))), min_isr={"orders": 3})
    assert "orders-0" in found(view)["partitions-under-min-isr"].message


def test_internal_topic_with_one_replica_is_wrong_and_another_topic_is_a_note() -> None:
    view = healthy(topic("__consumer_offsets", replicas=(1,), internal=True), topic("t", replicas=(1,)))
    findings = found(replace(view, min_isr={}))
    assert findings["internal-topic-replicas-one"].severity is Severity.WARNING
    assert findings["topic-replicas-one"].severity is Severity.NOTE


def test_single_broker_cannot_have_more_replicas() -> None:
    alone = image(topic("__consumer_offsets", replicas=(1,), internal=True), brokers={1: BROKERS[1]})
    assert found(replace(healthy(), image=alone)) == {}


def test_offline_and_nearly_full_and_short_lived_directories_have_different_findings() -> None:
    directories = {
        1: (DirView("/a", "KAFKA_STORAGE_ERROR"),),
        2: (DirView("/b", "", 100 * GIB, 2 * GIB),),
        3: (DirView("/tmp/c", "", -1, -1),),
    }
    findings = found(
        replace(healthy(), brokers={broker: replace(HEALTHY, log_dirs=dirs) for broker, dirs in directories.items()})
    )
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
    factor = {"offsets.topic.replication.factor": "9"}
    view = replace(healthy(), brokers=dict.fromkeys(BROKERS, replace(HEALTHY, settings=factor)))
    finding = found(view)["internal-topic-impossible"]
    assert finding.severity is Severity.ERROR
    assert "offsets.topic.replication.factor=9" in finding.message
    assert finding.means == "consumer groups do not work"
    assert (
        found(replace(view, image=image(topic("__consumer_offsets")))).keys().isdisjoint({"internal-topic-impossible"})
    )


@pytest.fixture(scope="module")
def one_broker() -> Iterator[RealCluster]:
    with RealCluster(brokers=1, config={"offsets.topic.replication.factor": "3"}) as cluster:
        yield cluster


def test_internal_topics_of_one_broker_with_kafkas_default_factor_are_found_on_a_real_cluster(
    one_broker: RealCluster,
) -> None:
    report = asyncio.run(check_cluster(client_config(one_broker.bootstrap)))
    assert "internal-topic-impossible" in {finding.check for finding in report.findings}


def test_things_that_are_gone_since_the_list_was_made_hide_nothing_and_cut_lists_are_noted(
    one_broker: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [SimpleNamespace(transactional_id=f"ended-{number}") for number in range(3)]

    async def listed(*given: object, **options: object) -> list[SimpleNamespace]:
        return ended

    monkeypatch.setattr(look, "list_transactions", listed)
    monkeypatch.setattr(look, "ONE_BY_ONE_MAX", 2)

    async def seen() -> ClusterView:
        async with AsyncClient(client_config(one_broker.bootstrap)) as client:
            await create_topics(client, [NewTopic(name="there", partitions=1, replication_factor=1)])
            there = await client.refresh(None)
            topics = {**there.topics, "gone": TopicInfo("gone", bytes(16), False, ())}
            return await look.Looker(client, replace(there, topics=topics), Limits()).look()

    view = asyncio.run(seen())
    assert view.min_isr["there"] == 1 and "gone" not in view.min_isr
    assert view.refused == ("transactions beyond the first 2 of 3",)


def seen_by(trouble: dict[int, str]) -> ClusterView:
    brokers = {broker: replace(HEALTHY, zookeeper_trouble=trouble.get(broker, "")) for broker in BROKERS}
    return replace(healthy(), brokers=brokers, zookeeper=ZooKeeperView("zk:2181"))


def test_zookeeper_that_no_broker_reaches_is_an_error_and_one_cut_off_broker_is_named() -> None:
    assert "no broker reaches it" in found(seen_by(dict.fromkeys(BROKERS, "gone")))["zookeeper-unreachable"].message
    assert found(seen_by({2: "gone"}))["zookeeper-cut-off"].subject == "broker 2"


def test_zookeeper_that_is_away_is_away_since_the_first_broker_lost_it() -> None:
    reported = {1: "zk:2181 has not answered since 2026-11-16T05:47:43Z; x", 2: "since 2026-11-16T05:47:41Z", 3: "gone"}
    assert found(seen_by(reported))["zookeeper-unreachable"].as_json()["since"] == "2026-11-16T05:47:41Z"


def test_zookeeper_that_only_we_cannot_reach_is_a_note() -> None:
    reported = {broker: replace(HEALTHY, zookeeper_ms=3.0) for broker in BROKERS}
    view = replace(healthy(), brokers=reported, zookeeper=ZooKeeperView("zk:2181", trouble="firewall"))
    assert found(view)["zookeeper-not-asked"].severity is Severity.NOTE
    unasked = replace(view, brokers=healthy().brokers)
    assert found(unasked)["zookeeper-not-asked"].severity is Severity.WARNING


def test_registrations_are_held_beside_the_metadata() -> None:
    registered = {1: ("PLAINTEXT://kafka1:9092",), 2: ("PLAINTEXT://elsewhere:9092",), 8: ("PLAINTEXT://kafka8:9092",)}
    findings = found(replace(healthy(), zookeeper=ZooKeeperView("zk:2181", registrations=registered, controller_id=1)))
    assert {check: finding.subject for check, finding in findings.items()} == {
        "broker-not-registered": "broker 3",
        "broker-not-in-metadata": "broker 8",
        "registration-differs": "broker 2",
    }


def test_brokers_that_name_another_controller_are_reported() -> None:
    brokers = {**healthy().brokers, 3: replace(HEALTHY, controller_id=2)}
    assert "broker 3: 2" in found(replace(healthy(), brokers=brokers))["controller-disputed"].message


def test_token_is_reported_in_the_last_tenth_of_its_life() -> None:
    fresh = TokenView("t", "User:a", issued_ms=999_000, ends_ms=1_600_000, max_ms=9_000_000)
    assert found(replace(healthy(), tokens=(fresh,))) == {}
    late = replace(fresh, issued_ms=0, ends_ms=1_050_000)
    assert "renew it" in found(replace(healthy(), tokens=(late,)))["token-ends"].advice
    assert (
        "create a new one" in found(replace(healthy(), tokens=(replace(late, max_ms=1_050_000),)))["token-ends"].advice
    )


def test_every_error_and_warning_says_what_it_means_for_clients() -> None:
    view = replace(
        seen_by({1: "gone"}),
        image=image(topic(leader=-1, isr=(1,)), topic("t", isr=(1,), replicas=(1, 2)), controller=9),
        min_isr={"t": 3},
        unreachable={2: "no"},
    )
    findings = [each for each in examine(view) if each.severity is not Severity.NOTE]
    assert len(findings) > 4
    assert [each.check for each in findings if not each.means] == []


def test_the_documentation_names_every_check_and_no_other() -> None:
    root = Path(barnabas.__file__).parents[2]
    code = "".join(
        path.read_text() for path in (root / "src/barnabas/services/doctor").rglob("*.py") if path.name != "files.py"
    )
    in_code = set(re.findall(r'Finding\(\s*[\w.]+,\s*"([a-z-]+)"', code))
    section = (root / "docs/tools.md").read_text().partition("## doctor")[2].partition("\n## ")[0]
    assert in_code and in_code == set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", section))
