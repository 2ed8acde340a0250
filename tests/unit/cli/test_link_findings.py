"""The findings of `link check` about a source and a target."""

from typing import Any

import pytest

from barnabas.base.words import ACL_OPERATIONS, AclOperation, AclResourceType, PatternType, Permission
from barnabas.cli._link_findings import judge, kind_of, rows
from barnabas.cli._link_source import Source, SourceTopic, Target
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.client.admin.groups import GroupListing
from barnabas.client.exchange import BrokerVersions, VersionRange
from barnabas.client.image import NO_TOPIC_ID, PartitionInfo, TopicInfo
from barnabas.services.doctor.finding import Finding, Severity
from barnabas.wire.versions import api_named

EVERY = frozenset(ACL_OPERATIONS)


def versions(*, features: dict[str, tuple[int, int]] | None = None, **served: int) -> BrokerVersions:
    newest = {"Fetch": 17, "Metadata": 13, "OffsetForLeaderEpoch": 4, "CreateLink": 0} | served
    apis = {api_named(name).key: VersionRange(0, high) for name, high in newest.items() if high >= 0}
    return BrokerVersions(apis=apis, finalized_features=features or {})


def topic(name: str = "orders", *, topic_id: bytes = b"i" * 16, leader: int = 1, **more: Any) -> SourceTopic:
    partition = PartitionInfo(0, leader=leader, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3))
    found = SourceTopic(TopicInfo(name, topic_id, False, (partition,)), settings={}, operations=EVERY)
    for attribute, value in more.items():
        setattr(found, attribute, value)
    return found


def source(*topics: SourceTopic, served: BrokerVersions | None = None, **more: Any) -> Source:
    found = Source(cluster_id="there", brokers={1: served or versions()}, groups=[], acls={})
    found.topics = {each.info.name: each for each in topics or (topic(),)}
    for attribute, value in more.items():
        setattr(found, attribute, value)
    return found


def target(**more: Any) -> Target:
    given: dict[str, Any] = {
        "cluster_id": "here",
        "brokers": dict.fromkeys((1, 2, 3), versions()),
        "topics": {},
        "active_groups": [],
        "usable_bytes": {1: None},
    }
    return Target(**given | more)


def found(seen: Source, at: Target | None = None) -> dict[str, Finding]:
    findings = judge(seen, at)
    assert all(finding.advice for finding in findings), "each finding says what to do"
    return {finding.check: finding for finding in findings}


def severities(seen: Source, at: Target | None = None) -> dict[str, Severity]:
    return {check: finding.severity for check, finding in found(seen, at).items()}


def test_plain_cluster_carries_over_without_a_word():
    assert severities(source(), target()) == {}
    assert [row.carries for row in rows(source())][:2] == ["yes: partitions, offsets, batches", "0 of 0"]


def test_source_without_todays_batches_is_too_old():
    assert severities(source(served=versions(Fetch=3)))["too-old"] is Severity.ERROR


def test_source_without_leader_epochs_or_topic_ids_is_followed_with_less_care():
    old = source(topic(topic_id=NO_TOPIC_ID), served=versions(OffsetForLeaderEpoch=-1, Metadata=9))
    assert severities(old) == {"no-leader-epochs": Severity.WARNING, "no-topic-ids": Severity.WARNING}


def test_link_without_a_matching_topic_is_an_error():
    nothing = source()
    nothing.topics = {}
    assert severities(nothing) == {"no-topics": Severity.ERROR}


def test_partition_without_a_leader_stands_in_the_way():
    assert severities(source(topic(leader=-1))) == {"no-leader": Severity.ERROR}


@pytest.mark.parametrize(
    ("lacking", "severity"),
    [(AclOperation.READ, Severity.ERROR), (AclOperation.DESCRIBE_CONFIGS, Severity.WARNING)],
)
def test_right_that_the_user_lacks_is_named(lacking: AclOperation, severity: Severity):
    finding = found(source(topic(operations=EVERY - {lacking})))["missing-right"]
    assert finding.severity is severity and lacking.name in finding.message


def test_finding_for_a_user_without_describe_names_the_loss():
    assert severities(source(cluster_operations=frozenset())) == {"missing-right": Severity.WARNING}
    assert severities(source(cluster_operations=frozenset({AclOperation.DESCRIBE}))) == {}


def test_history_in_remote_storage_must_be_readable():
    tiered = {"remote.storage.enable": "true"}
    here = severities(source(topic(settings=tiered, remote=2)))
    assert here["tiered"] is Severity.WARNING and "unreadable-history" not in here
    gone = severities(source(topic(settings=tiered, remote=2, unreadable="KAFKA_STORAGE_ERROR")))
    assert gone["unreadable-history"] is Severity.ERROR


def test_messages_of_before_batches_stand_in_the_way():
    assert severities(source(topic(magic=1))) == {"old-format": Severity.ERROR}
    assert severities(source(topic(magic=2))) == {}


def test_settings_are_sorted_into_known_unknown_and_refused():
    seen = source(topic(settings={"retention.ms": "1000", "confluent.placement.constraints": "x"}))
    assert severities(seen) == {"unknown-setting": Severity.WARNING}
    assert "confluent.placement.constraints" in found(seen)["unknown-setting"].message
    assert next(row for row in rows(seen) if row.what == "topic settings").carries == "1 of 2"
    assert severities(source(topic(settings={"min.insync.replicas": "2"}))) == {"setting-left-behind": Severity.NOTE}
    assert severities(source(topic(settings={"cleanup.policy": "shred"}))) == {"refused-setting": Severity.ERROR}


def test_groups_are_reported_by_their_protocol():
    kinds = {"s": "Share", "t": "Streams", "c": "Consumer", "o": "Classic"}
    groups = [GroupListing(name, "consumer", "Empty", kind) for name, kind in kinds.items()]
    seen = source(groups=groups)
    assert severities(seen) == {
        "share-groups": Severity.WARNING,
        "streams-groups": Severity.WARNING,
        "consumer-groups": Severity.NOTE,
    }
    assert next(row for row in rows(seen) if row.what == "groups' offsets").found == "2"


def test_data_that_no_link_carries_is_reported_with_the_way_to_create_it():
    seen = source(
        quotas=2,
        scram_users=["ann"],
        tokens=1,
        client_metrics=["m"],
        group_settings=["g"],
        open_transactions=["tx"],
        groups=[GroupListing("g", "consumer", "Stable", "Classic")],
    )
    assert severities(seen) == {
        "active-groups": Severity.NOTE,
        "open-transactions": Severity.NOTE,
        "scram-users": Severity.WARNING,
        "delegation-tokens": Severity.WARNING,
        "quotas": Severity.WARNING,
        "client-metrics": Severity.NOTE,
        "group-settings": Severity.WARNING,
    }


def test_acls_by_prefix_are_named():
    entry = Ace("User:ann", "*", AclOperation.READ, Permission.ALLOW)
    acls = {ResourcePattern(AclResourceType.TOPIC, "team-", PatternType.PREFIXED): [entry]}
    assert "team-" in found(source(acls=acls))["acls"].message


def test_data_that_the_source_does_not_report_is_a_finding():
    assert severities(source(unread={"quotas": "CLUSTER_AUTHORIZATION_FAILED"})) == {"not-answered": Severity.NOTE}


def test_cluster_that_it_is_for_must_have_room_names_and_brokers():
    seen = source(topic(size_bytes=10), groups=[GroupListing("g", "consumer", "Empty", "Classic")])
    here = target(
        cluster_id="there",
        topics={"orders": topic().info},
        brokers={1: versions()},
        active_groups=["g"],
        usable_bytes={1: 9},
    )
    assert severities(seen, here) == {
        "same-cluster": Severity.ERROR,
        "topic-exists": Severity.ERROR,
        "fewer-replicas": Severity.WARNING,
        "group-active-here": Severity.WARNING,
        "no-room": Severity.ERROR,
    }
    assert "no-room" not in severities(seen, target(brokers={1: versions()}, usable_bytes={1: 10}))


def test_cluster_with_a_broker_that_has_no_links_cannot_take_one():
    mixed = target(brokers={1: versions(), 2: versions(CreateLink=-1), 3: versions()})
    assert severities(source(), mixed) == {"no-links": Severity.ERROR}
    assert "2" in found(source(), mixed)["no-links"].message


def test_kinds_of_cluster_are_recognised():
    assert "KRaft" in kind_of(source(served=versions(features={"metadata.version": (1, 30)})))
    assert "ZooKeeper" in kind_of(source(served=versions(LeaderAndIsr=7)))
    assert kind_of(source(cluster_id="redpanda.1f")) == "Redpanda"
