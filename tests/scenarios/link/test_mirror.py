"""A link copies the source exactly: same offsets, same bytes."""

from pathlib import Path

from confluent_kafka import KafkaError, Producer

from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin.topics import delete_topics
from barnabas.testing.cluster import Cluster
from tests.scenarios.link.linked import (
    TIMEOUT_S,
    as_json,
    batches,
    create,
    describe,
    ends_of,
    partitions,
    tool,
    wait_for_copy,
)


def produce(cluster: Cluster, topic: str, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for number in range(count):
        producer.produce(topic, value=b"value %d " % number * 20, key=b"k%d" % number, headers={"h": b"%d" % number})
        if number % 50 == 49:
            producer.flush()
    assert producer.flush(60) == 0


def test_mirror_has_the_bytes_of_its_source_on_every_replica(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic, partitions=2, config={"max.message.bytes": "2000000"})
    for codec in ("none", "zstd", "lz4", "gzip"):
        produce(source, topic, 120, **{"compression.type": codec, "enable.idempotence": codec == "lz4"})
    create(target, source, f"l-{topic}", topic)
    ends = ends_of(source, topic)
    assert sum(ends.values()) == 480
    wait_for_copy(target, f"l-{topic}", topic, ends)
    for index in (0, 1):
        theirs = batches(source, source.leader_of(topic, index), topic, index)
        for broker in target.broker_ids:
            assert batches(target, broker, topic, index) == theirs
    # Later records are copied, too.
    produce(source, topic, 50)
    wait_for_copy(target, f"l-{topic}", topic, ends_of(source, topic))
    for index in (0, 1):
        assert batches(target, 1, topic, index) == batches(source, 1, topic, index)
    assert all(each.lag_records == 0 for each in partitions(target, f"l-{topic}", topic).values())


def test_tool_creates_lists_describes_pauses_and_resumes(
    source: Cluster, target: Cluster, topic: str, tmp_path: Path
) -> None:
    source.create_topic(topic)
    file = tmp_path / "source.properties"
    file.write_text(f"bootstrap.servers={source.bootstrap}\nlink.refresh.interval.ms=200\n")
    at = ("--bootstrap-server", target.bootstrap)
    name = f"l-{topic}"
    tool("link", "create", name, *at, "--config", str(file), "--topics", topic)
    wait_for_copy(target, name, topic, {0: 0})
    assert name in tool("link", "list", *at)
    [shown] = as_json(tool("link", "describe", name, *at, "--json"))
    assert shown["topics"][0]["name"] == topic
    tool("link", "pause", name, *at)
    assert describe(target, name).state == "paused"
    source.produce(topic, ["while paused"])
    tool("link", "resume", name, *at)
    wait_for_copy(target, name, topic, {0: 1})
    outcome = target.ask(lambda client: delete_topics(client, [topic]))
    assert outcome == {topic: ErrorCode.POLICY_VIOLATION}


def test_producers_are_refused_with_advice(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    create(target, source, f"l-{topic}", topic)
    wait_for_copy(target, f"l-{topic}", topic, {0: 0})
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": target.bootstrap})
    producer.produce(topic, b"mine", on_delivery=lambda error, message: errors.append(error))
    producer.flush(60)
    assert [error.name() for error in errors] == ["POLICY_VIOLATION"]
    assert ends_of(target, topic) == {0: 0}


def test_topic_whose_settings_the_source_refuses_is_mirrored(source: Cluster, target: Cluster, topic: str) -> None:
    """The link's user may read, but lacks DESCRIBE_CONFIGS."""
    source.create_topic(topic, config={"retention.ms": "86400000"})
    source.produce(topic, ["one"])
    for broker in source.broker_ids:
        source.fail_api(broker, "DescribeConfigs", error="TOPIC_AUTHORIZATION_FAILED", client_id="barnabas-link")
    try:
        create(target, source, f"l-{topic}", topic)
        wait_for_copy(target, f"l-{topic}", topic, {0: 1})
        wait_until(
            lambda: "settings" in (describe(target, f"l-{topic}").error or ""), TIMEOUT_S, what="the error is reported"
        )
    finally:
        source.heal()
    wait_until(lambda: not describe(target, f"l-{topic}").error, TIMEOUT_S, what="it is over")
