"""The findings of `migrate check` about brokers and topics."""

from barnabas.base.words import ConfigSource
from barnabas.cli.migrate import check_broker_settings, check_topic, check_versions
from barnabas.client.admin.configs import ConfigEntry
from barnabas.client.exchange import BrokerVersions, VersionRange
from barnabas.client.image import PartitionInfo, TopicInfo
from barnabas.wire.versions import api_named

ZOOKEEPER = {"zookeeper.connect": "localhost:2181", "broker.id": "1"}


def entry(name: str, value: str, source: ConfigSource = ConfigSource.STATIC_BROKER_CONFIG) -> ConfigEntry:
    return ConfigEntry(name, value, source, read_only=True, sensitive=False, synonyms=())


def versions(**served: int) -> BrokerVersions:
    return BrokerVersions(apis={api_named(name).key: VersionRange(0, high) for name, high in served.items()})


def blocks(**settings: str) -> list[str]:
    given = ZOOKEEPER | {name.replace("_", "."): value for name, value in settings.items()}
    found = check_broker_settings("b", [entry(name, value) for name, value in given.items()])
    return [finding.text for finding in found if finding.level == "blocks"]


def topic(*partitions: tuple[int, tuple[int, ...], tuple[int, ...]]) -> TopicInfo:
    infos = tuple(
        PartitionInfo(number, leader=leader, leader_epoch=0, replicas=replicas, isr=isr)
        for number, (leader, replicas, isr) in enumerate(partitions)
    )
    return TopicInfo("t", b"", False, infos)


def test_kafka_3_9_with_zookeeper_can_be_moved():
    assert check_versions("b", versions(LeaderAndIsr=7, Fetch=17)) == []


def test_older_kafka_must_be_upgraded_first():
    [finding] = check_versions("b", versions(LeaderAndIsr=7, Fetch=16))
    assert finding.level == "blocks" and "upgrade" in finding.text


def test_kraft_cannot_be_moved():
    [finding] = check_versions("b", versions(Fetch=17))
    assert finding.level == "blocks" and "KRaft" in finding.text


def test_plain_settings_are_accepted():
    assert blocks(num_partitions="3", log_retention_hours="24") == []


def test_authorizer_tiered_storage_and_kerberos_block():
    assert len(blocks(authorizer_class_name="com.example.Mine")) == 1
    assert blocks(authorizer_class_name="kafka.security.authorizer.AclAuthorizer") == []
    assert "tiered storage" in blocks(remote_log_storage_system_enable="true")[0]
    assert "GSSAPI" in blocks(sasl_enabled_mechanisms="PLAIN,GSSAPI")[0]


def test_unknown_and_idle_settings_are_noted_once_set():
    given = [
        entry("my.own.setting", "1"),
        entry("num.io.threads", "4"),
        entry("num.network.threads", "3", ConfigSource.DEFAULT_CONFIG),
    ]
    found = check_broker_settings("b", [*given, *(entry(name, value) for name, value in ZOOKEEPER.items())])
    assert [finding.text.split()[0] for finding in found if finding.level == "note"] == [
        "my.own.setting",
        "num.io.threads",
    ]


def test_topic_out_of_sync_or_without_leader_blocks():
    assert check_topic(topic((1, (1, 2), (1, 2))), [], broker_count=2) == []
    assert [f.level for f in check_topic(topic((1, (1, 2), (1,))), [], broker_count=2)] == ["blocks"]
    assert [f.level for f in check_topic(topic((-1, (1, 2), (1, 2))), [], broker_count=2)] == ["blocks"]


def test_single_replica_is_noted():
    assert [f.level for f in check_topic(topic((1, (1,), (1,))), [], broker_count=2)] == ["note"]
    assert check_topic(topic((1, (1,), (1,))), [], broker_count=1) == []


def test_tiered_topic_blocks():
    tiered = entry("remote.storage.enable", "true", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [f.level for f in check_topic(topic(), [tiered], broker_count=3)] == ["blocks"]
