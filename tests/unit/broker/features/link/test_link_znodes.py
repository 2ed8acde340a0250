"""The znodes of links: written data can be read back, and damaged data is refused with its path."""

import json

import pytest

from barnabas.base.errors import ConfigError, Malformed
from barnabas.base.ids import LeaderEpoch, Offset, TopicId
from barnabas.broker.features.link.producer_ids import ProducerIdSpace
from barnabas.broker.features.link.settings import LinkSettings, check_pattern, check_start, matching
from barnabas.broker.zookeeper_client.znodes_link import (
    LinkChange,
    LinkSpec,
    MirrorPartition,
    MirrorState,
    MirrorTopic,
    is_link_name,
)

SPEC = LinkSpec(configs={"bootstrap.servers": "a:1"}, topics="o.*", groups="g", acls=True, start="latest", paused=True)
TOPIC = MirrorTopic(state=MirrorState.STOPPED, reason="because", source_id=TopicId(bytes(range(16))))
PARTITION = MirrorPartition(
    epochs=((LeaderEpoch(1), Offset(0)), (LeaderEpoch(4), Offset(10))),
    final_offset=Offset(12),
    source_end=13,
    lag_ms=5,
    is_done=True,
    producer_id_max=99,
)


def test_decoded_znode_equals_the_encoded_one() -> None:
    assert LinkSpec.decode("/p", SPEC.encode()) == SPEC
    assert MirrorTopic.decode("/p", TOPIC.encode()) == TOPIC
    assert MirrorPartition.decode("/p", PARTITION.encode()) == PARTITION
    assert MirrorPartition.decode("/p", MirrorPartition().encode()) == MirrorPartition()
    assert LinkChange.decode("/p", LinkChange("l", "t").encode()) == LinkChange("l", "t")


@pytest.mark.parametrize(
    ("kind", "written", "changes"),
    [
        (LinkSpec, SPEC, {"version": 2}),
        (LinkSpec, SPEC, {"configs": {"a": 1}}),
        (LinkSpec, SPEC, {"paused": "yes"}),
        (LinkSpec, SPEC, {"groups": 3}),
        (MirrorTopic, TOPIC, {"state": "asleep"}),
        (MirrorTopic, TOPIC, {"source_topic_id": "x"}),
        (MirrorPartition, PARTITION, {"epochs": [[4, 0], [1, 10]]}),
        (MirrorPartition, PARTITION, {"epochs": [[1, 10], [4, 0]]}),
        (MirrorPartition, PARTITION, {"epochs": [[1, -5]]}),
        (MirrorPartition, PARTITION, {"final_offset": "12"}),
        (MirrorPartition, PARTITION, {"producer_id_max": 2**70}),
        (LinkChange, LinkChange("l"), {"link": "../secret"}),
    ],
)
def test_invalid_znode_is_refused_and_the_error_names_its_path(
    kind: type, written: LinkSpec, changes: dict[str, object]
) -> None:
    data = json.dumps({**json.loads(written.encode()), **changes}).encode()
    with pytest.raises(Malformed, match="/where"):
        kind.decode("/where", data)  # type: ignore[attr-defined]
    with pytest.raises(Malformed, match="/where"):
        kind.decode("/where", b"\xff")  # type: ignore[attr-defined]


def test_history_of_epochs_is_bounded() -> None:
    long = MirrorPartition(epochs=tuple((LeaderEpoch(each), Offset(each)) for each in range(2000)))
    read = MirrorPartition.decode("/p", long.encode())
    assert read.epochs[-1] == (1999, 1999)
    assert len(long.encode()) < 20_000


def test_names_of_links_are_names_of_znodes() -> None:
    assert all(map(is_link_name, ("a", "dc-1", "old.cluster_2")))
    assert not any(map(is_link_name, ("", "..", ".", "a/b", "-a", "a" * 101, "ä", "a b")))


def test_patterns_match_whole_names() -> None:
    assert matching("orders.*", ["orders", "orders-eu", "my-orders"]) == ["orders", "orders-eu"]
    with pytest.raises(ConfigError, match="regular expression"):
        check_pattern("(", what="topics")


def test_start_is_an_end_or_a_time() -> None:
    for fine in ("earliest", "latest", "0", "1700000000000"):
        check_start(fine)
    for wrong in ("", "newest", "-5", "1.5", "²", "9" * 30):
        with pytest.raises(ConfigError):
            check_start(wrong)


def test_settings_of_a_link_and_of_its_client() -> None:
    settings = LinkSettings.of(
        {
            "bootstrap.servers": "a:1,b:2",
            "link.throttle.bytes.per.second": "1000",
            "link.topic.configs": "retention.ms, cleanup.policy",
            "link.replication.factor": "3",
        },
        name="l",
    )
    assert settings.client.bootstrap == (("a", 1), ("b", 2))
    assert settings.client.client_id == "barnabas-link-l"
    assert settings.throttle_bytes_per_second == 1000
    assert settings.topic_configs == ("retention.ms", "cleanup.policy")
    assert settings.replication_factor == 3
    for wrong in (
        {"link.throttle.bytes.per.second": "0"},
        {"link.partitions.max": "0"},
        {"link.refresh.interval.ms": "soon"},
        {"link.topic.configs": "retention.mss"},
        {"link.topic.configs": "barnabas.link.name"},
    ):
        with pytest.raises(ConfigError):
            LinkSettings.of({"bootstrap.servers": "a:1", **wrong}, name="l")


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", " file:///etc/hostname", "fi\nle:///x", "FILE:///x", "ftp://h/x"]
)
def test_link_takes_no_token_from_a_file_of_the_brokers(url: str) -> None:
    with pytest.raises(ConfigError, match="no token from a file"):
        LinkSettings.of(
            {
                "bootstrap.servers": "a:1",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": 'x required clientId="a" clientSecret="b";',
                "sasl.oauthbearer.token.endpoint.url": url,
            },
            name="l",
        )


def test_clusters_with_links_hand_out_producer_ids_of_their_own() -> None:
    here, there = ProducerIdSpace.of("one cluster"), ProducerIdSpace.of("another cluster")
    assert here.floor != there.floor
    assert here.floor >= 2**43
    assert here.first_free(-1) == here.floor
    # Kafka's range, and another cluster's range: this cluster never hands out their ids.
    assert here.first_free(5000) == here.floor
    assert here.first_free(there.floor + 7) == here.floor
    # Ids of this cluster's own range, which came back through a link.
    assert here.first_free(here.floor + 7) == here.floor + 8
