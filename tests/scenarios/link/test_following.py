"""Mirrors follow changes of the source: elections, deleted records, new partitions, recreated topics."""

import time

from confluent_kafka import Producer

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin import links as admin
from barnabas.client.admin.configs import alter_configs, describe_configs
from barnabas.client.admin.partitions import delete_records
from barnabas.client.admin.topics import create_partitions
from barnabas.client.errors import BrokerRefused
from barnabas.testing.cluster import Cluster
from tests.scenarios.link.linked import (
    batches,
    create,
    ends_of,
    mirror,
    partitions,
    wait_for_copy,
    wait_for_state,
)

TIMEOUT_S = 60.0


def other_than(cluster: Cluster, broker: int) -> int:
    return next(each for each in cluster.broker_ids if each != broker)


def recreate(cluster: Cluster, topic: str) -> None:
    cluster.delete_topic(topic)

    def is_created() -> bool:
        try:
            cluster.create_topic(topic)
        except BrokerRefused as refused:  # it is still being deleted
            assert refused.code is ErrorCode.TOPIC_ALREADY_EXISTS
            return False
        return True

    wait_until(is_created, TIMEOUT_S, what="the topic is recreated")


def test_mirror_truncates_with_a_source_that_lost_records_and_logs_it(
    source: Cluster, target: Cluster, topic: str
) -> None:
    """An unclean election: the elected follower lacks records that its leader had committed alone."""
    source.create_topic(topic, replication_factor=2, config={"unclean.leader.election.enable": "true"})
    name = f"l-{topic}"
    source.produce(topic, ["both have it"])
    source.wait_for_isr(topic, 2)
    leader = source.leader_of(topic)
    follower = other_than(source, leader)
    source.terminate(follower)
    source.wait_for_isr(topic, 1)
    source.produce(topic, [f"lost {number}" for number in range(40)], partition=0)
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 41})
    target.wait_for_isr(topic, 2)
    source.kill(leader)
    source.start_broker(follower)
    wait_until(lambda: source.leader_of(topic) == follower, TIMEOUT_S, what="the follower leads")
    source.produce(topic, ["in another epoch"] * 3)
    wait_for_copy(target, name, topic, {0: 4})
    source.start_broker(leader)
    source.wait_for_isr(topic, 2)
    [described] = partitions(target, name, topic).values()
    assert described.truncated_records == 40
    target.wait_for_isr(topic, 2)
    theirs = batches(source, follower, topic)
    for broker in target.broker_ids:
        assert batches(target, broker, topic) == theirs
    assert "dropping 40 records from offset 1 on" in target.log(target.leader_of(topic))
    source.produce(topic, ["and on"])
    wait_for_copy(target, name, topic, {0: 5})


def test_records_deleted_at_the_source_are_deleted_here(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    source.produce(topic, [f"r{number}" for number in range(20)])
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 20})
    source.ask(lambda client: delete_records(client, {TopicPartition(topic, 0): 12}))
    wait_until(
        lambda: partitions(target, name, topic)[0].log_start_offset == 12, TIMEOUT_S, what="the log starts at 12"
    )


def test_mirror_begins_where_the_source_does(source: Cluster, target: Cluster, topic: str) -> None:
    """Even inside a batch: the batch is copied whole, and its deleted part is hidden."""
    source.create_topic(topic)
    name = f"l-{topic}"
    source.produce(topic, [f"r{number}" for number in range(20)])
    source.ask(lambda client: delete_records(client, {TopicPartition(topic, 0): 7}))
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 20})
    assert partitions(target, name, topic)[0].log_start_offset == 7
    assert [record.offset for record in target.records(topic)] == list(range(7, 20))


def test_mirror_that_is_far_behind_starts_again_where_the_source_starts(
    source: Cluster, target: Cluster, topic: str
) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    source.produce(topic, ["a", "b"])
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 2})
    target.ask(lambda client: admin.alter_link(client, name, "pause"))
    source.produce(topic, [f"r{number}" for number in range(20)])
    source.ask(lambda client: delete_records(client, {TopicPartition(topic, 0): 22}))
    source.produce(topic, ["after"])
    target.ask(lambda client: admin.alter_link(client, name, "resume"))
    wait_for_copy(target, name, topic, {0: 23})
    assert [record.offset for record in target.records(topic)] == [22]


def test_partitions_and_settings_follow(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic, config={"retention.ms": "100000000"})
    name = f"l-{topic}"
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 0})

    def setting(key: str) -> str | None:
        where = (ConfigResourceType.TOPIC, topic)
        [entries] = target.ask(lambda client: describe_configs(client, [where])).values()
        return next(each.value for each in entries if each.name == key)

    assert setting("retention.ms") == "100000000"
    changes = {
        "retention.ms": (AlterOperation.DELETE, None),
        "max.message.bytes": (AlterOperation.SET, "1234567"),
        # Settings that concern that cluster only.
        "unclean.leader.election.enable": (AlterOperation.SET, "true"),
    }
    source.ask(lambda client: alter_configs(client, ConfigResourceType.TOPIC, topic, changes))
    source.ask(lambda client: create_partitions(client, {topic: 3}))
    wait_until(lambda: setting("max.message.bytes") == "1234567", TIMEOUT_S, what="the setting follows")
    assert setting("retention.ms") == "604800000"
    assert setting("unclean.leader.election.enable") == "false"
    source.produce(topic, ["new partition"], partition=2)
    wait_for_copy(target, name, topic, {0: 0, 1: 0, 2: 1})


def test_topic_created_again_at_the_source_stops_its_mirror(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    source.produce(topic, ["first life"] * 3)
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 3})
    recreate(source, topic)
    source.produce(topic, ["second life"])
    stopped = wait_for_state(target, name, topic, "stopped")
    assert "created again" in (stopped.reason or "")
    assert [record.value for record in target.records(topic)] == [b"first life"] * 3


def test_topic_recreated_at_the_source_is_recreated_here_if_the_link_allows_it(
    source: Cluster, target: Cluster, topic: str
) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    source.produce(topic, ["first life"] * 3)
    create(target, source, name, topic, restart_recreated=True)
    wait_for_copy(target, name, topic, {0: 3})
    recreate(source, topic)
    source.produce(topic, ["second life"])
    wait_for_copy(target, name, topic, {0: 1})
    assert [record.value for record in target.records(topic)] == [b"second life"]


def test_stopped_mirror_restarts_when_it_is_deleted_here(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    target.create_topic(topic)
    target.produce(topic, ["ours"])
    name = f"l-{topic}"
    source.produce(topic, ["theirs"] * 2)
    create(target, source, name, topic)
    stopped = wait_for_state(target, name, topic, "stopped")
    assert "not a mirror" in (stopped.reason or "")
    target.produce(topic, ["still ours"])
    target.delete_topic(topic)
    wait_for_copy(target, name, topic, {0: 2})
    assert [record.value for record in target.records(topic)] == [b"theirs"] * 2


def test_leaders_die_here_and_there(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic, replication_factor=2)
    name = f"l-{topic}"
    producer = Producer({"bootstrap.servers": source.bootstrap, "enable.idempotence": True})

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(60) == 0

    produce(50)
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 50})
    source.wait_for_isr(topic, 2)
    target.wait_for_isr(topic, 2)
    there, here = source.leader_of(topic), target.leader_of(topic)
    source.kill(there)
    target.kill(here)
    produce(50)
    wait_for_copy(target, name, topic, {0: 100})
    source.start_broker(there)
    target.start_broker(here)
    source.wait_for_isr(topic, 2)
    target.wait_for_isr(topic, 2)
    produce(50)
    wait_for_copy(target, name, topic, ends_of(source, topic))
    theirs = batches(source, other_than(source, there), topic)
    for broker in target.broker_ids:
        assert batches(target, broker, topic) == theirs
    assert [each.truncated_records for each in partitions(target, name, topic).values()] == [0]


def test_link_begins_at_the_end_or_at_a_time(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    source.produce(topic, ["old"] * 10)
    middle_ms = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > middle_ms + 5, TIMEOUT_S)
    source.produce(topic, ["new"] * 5)
    create(target, source, f"t-{topic}", topic, start=str(middle_ms))
    wait_for_copy(target, f"t-{topic}", topic, {0: 15})
    assert [record.offset for record in target.records(topic)] == list(range(10, 15))
    found = mirror(target, f"t-{topic}", topic)
    assert found is not None
    assert found.partitions[0].log_start_offset == 10


def test_records_that_are_corrupt_stop_their_partition_alone(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic, partitions=2, replication_factor=1)
    for index in (0, 1):
        source.produce(topic, ["a" * 100], partition=index)
    [file] = [
        file
        for broker in source.broker_ids
        for folder in source.log_dirs(broker)
        for file in (folder / f"{topic}-0").glob("*.log")
    ]
    with file.open("r+b") as segment:
        segment.seek(100)
        segment.write(b"!")
    name = f"l-{topic}"
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {1: 1})
    wait_until(lambda: partitions(target, name, topic)[0].state == "failed", TIMEOUT_S, what="the partition has failed")
    [broken, whole] = partitions(target, name, topic).values()
    assert "corrupt" in (broken.error or "")
    assert (broken.log_end_offset, whole.error) == (0, None)
    source.produce(topic, ["b"], partition=1)
    wait_for_copy(target, name, topic, {1: 2})


def test_gaps_of_a_compacted_source_are_kept(source: Cluster, target: Cluster, topic: str) -> None:
    eager = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    source.create_topic(topic, replication_factor=1, config=eager)
    producer = Producer({"bootstrap.servers": source.bootstrap})

    def produce() -> None:
        for number in range(30):
            producer.produce(topic, key=b"k%d" % (number % 3), value=b"v" * 100)
            producer.flush(60)

    produce()
    leader = source.leader_of(topic)

    def has_gaps() -> bool:
        producer.produce(topic, key=b"k", value=b"v" * 100)  # the active segment is not compacted
        producer.flush(60)
        return len(batches(source, leader, topic)) < ends_of(source, topic)[0] - 10

    wait_until(has_gaps, TIMEOUT_S, what="the source is compacted")
    end = ends_of(source, topic)
    create(target, source, f"l-{topic}", topic)
    wait_for_copy(target, f"l-{topic}", topic, end)
    for broker in target.broker_ids:
        offsets = [int.from_bytes(batch[:8], "big") for batch in batches(target, broker, topic)]
        assert offsets == sorted(set(offsets))
        assert len(offsets) < end[0]
