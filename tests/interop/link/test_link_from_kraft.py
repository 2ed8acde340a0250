"""Mirrors of a Kafka 4.3.0 cluster in KRaft mode: whatever happens at the source, every batch is the same here."""

import time

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.kraft import KraftCluster
from tests.interop.link.batches import assert_same, fetched_batches, offsets, partitions_of
from tests.interop.link.stories import leader, linked, make_topic, wait_for_copy
from tests.interop.load import Transactor, Writer, read_all

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def write(bootstrap: str, topic: str, values: list[str], *, partition: int = -1, **config: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", **config})
    for number, value in enumerate(values):
        headers = [("number", str(number))]
        producer.produce(topic, value, f"k{number % 50}", partition, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def seen(bootstrap: str, topic: str, isolation: str) -> set[tuple[int, int, bytes]]:
    return {(m.partition(), m.offset(), m.value()) for m in read_all(bootstrap, topic, isolation=isolation)}


def test_every_codec_idempotent_and_transactional_batches_are_the_sources(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    make_topic(source, topic)
    for codec in CODECS:
        write(source.bootstrap, topic, [f"{codec} {n} " + "x" * 100 for n in range(300)], **{"compression.type": codec})
    write(source.bootstrap, topic, [f"plain {n}" for n in range(100)], **{"enable.idempotence": "false"})
    with linked(source, mirror, topic):
        writer = Writer(source.bootstrap, topic).start()
        transactors = [Transactor(source.bootstrap, topic, f"{topic}-{number}").start() for number in range(2)]
        time.sleep(5)  # load, for as long as it takes to see many transactions; nothing is asserted about it
        for each in (*transactors, writer):
            each.stop()
        wait_for_copy(source, mirror, topic)
        assert assert_same(source, mirror, topic) > 100
        for isolation in ("read_committed", "read_uncommitted"):
            assert seen(mirror.bootstrap, topic, isolation) == seen(source.bootstrap, topic, isolation)
        assert any(each.aborted for each in transactors) and all(each.committed for each in transactors)


def test_open_transaction_holds_read_committed_back_here_as_there(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    make_topic(source, topic, partitions=1)
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(60) == 0
    write(source.bootstrap, topic, ["after"], partition=0)
    with linked(source, mirror, topic):
        wait_for_copy(source, mirror, topic)
        assert seen(mirror.bootstrap, topic, "read_committed") == set()
        assert {value for _, _, value in seen(mirror.bootstrap, topic, "read_uncommitted")} == {b"open", b"after"}
        producer.commit_transaction(60)
        wait_for_copy(source, mirror, topic)
        assert {value for _, _, value in seen(mirror.bootstrap, topic, "read_committed")} == {b"open", b"after"}
        assert_same(source, mirror, topic)


def test_gaps_of_a_compacted_source_stay_gaps(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    settings = {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", "delete.retention.ms": "0"}
    make_topic(source, topic, partitions=1, **{"cleanup.policy": "compact", **settings})
    for number in range(4):
        write(source.bootstrap, topic, [f"{number}-{n}" for n in range(200)], partition=0)
        time.sleep(0.6)  # segments roll by time
    [partition] = partitions_of(source, topic)

    def is_compacted() -> bool:
        write(source.bootstrap, topic, ["tick"], partition=0)
        return len(read_all(source.bootstrap, topic)) < 400

    wait_until(is_compacted, 120, what="the source compacts")
    wait_until(lambda: _is_still(source, partition), 120, what="the source's cleaner is done")
    with linked(source, mirror, topic):
        wait_for_copy(source, mirror, topic)
        assert seen(mirror.bootstrap, topic, "read_committed") == seen(source.bootstrap, topic, "read_committed")


def _is_still(source: KraftCluster, partition: object) -> bool:
    before = fetched_batches(source, partition)  # type: ignore[arg-type]
    time.sleep(3)  # several passes of its cleaner
    return fetched_batches(source, partition) == before  # type: ignore[arg-type]


def test_deleted_records_and_added_partitions_follow(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    make_topic(source, topic, partitions=2)
    write(source.bootstrap, topic, [f"one {n}" for n in range(400)])
    with linked(source, mirror, topic):
        wait_for_copy(source, mirror, topic)
        admin = AdminClient({"bootstrap.servers": source.bootstrap})
        ends = {each.partition: end for each, (_, end) in offsets(source, partitions_of(source, topic)).items()}
        wanted = [TopicPartition(topic, index, end // 2) for index, end in ends.items()]
        for done in admin.delete_records(wanted).values():
            done.result(60)
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(60)
        wait_until(lambda: len(partitions_of(source, topic)) == 4, what="the source has four partitions")
        write(source.bootstrap, topic, [f"two {n}" for n in range(400)])
        wait_for_copy(source, mirror, topic)
        starts = {each.partition: start for each, (start, _) in offsets(mirror, partitions_of(mirror, topic)).items()}
        assert starts == {**{index: end // 2 for index, end in ends.items()}, 2: 0, 3: 0}
        assert assert_same(source, mirror, topic, files=False) >= 4


def test_leaders_that_are_killed_cost_nothing(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    make_topic(source, topic, partitions=3, **{"min.insync.replicas": "2"})
    with linked(source, mirror, topic):
        writer = Writer(source.bootstrap, topic).start()
        transactor = Transactor(source.bootstrap, topic, topic).start()
        for _ in range(2):
            node = leader(source, topic)
            source.kill(node)
            wait_until(lambda node=node: leader(source, topic) not in (node, -1), what="another leads")
            source.start(node)
        transactor.stop()
        writer.stop()
        wait_for_copy(source, mirror, topic)
        assert assert_same(source, mirror, topic) > 10
        assert seen(mirror.bootstrap, topic, "read_committed") == seen(source.bootstrap, topic, "read_committed")
        found = {
            (partition, offset): value for partition, offset, value in seen(mirror.bootstrap, topic, "read_uncommitted")
        }
        assert writer.acked.items() <= found.items() and not writer.refused


def test_brokers_of_the_mirror_that_are_killed_cost_nothing(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    make_topic(source, topic, partitions=3)
    with linked(source, mirror, topic):
        writer = Writer(source.bootstrap, topic).start()
        for broker in (1, 2):
            wait_until(lambda: len(partitions_of(mirror, topic)) == 3, what="the mirror is there")
            mirror.kill(broker)
            time.sleep(2)  # written while it is away
            mirror.start_broker(broker)
        writer.stop()
        wait_for_copy(source, mirror, topic)
        assert assert_same(source, mirror, topic) > 10


def test_records_that_an_unclean_election_loses_are_lost_here_too(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    """The follower that is behind leads: the mirror has what no one at the source has any more, and drops it."""
    make_topic(source, topic, partitions=1, replicas=2, **{"unclean.leader.election.enable": "true"})
    write(source.bootstrap, topic, [f"both {n}" for n in range(100)], partition=0)
    with linked(source, mirror, topic) as link:
        wait_for_copy(source, mirror, topic)
        first = leader(source, topic)
        admin = AdminClient({"bootstrap.servers": source.bootstrap, "log_level": 0})
        [other] = set(admin.list_topics(topic, timeout=30).topics[topic].partitions[0].replicas) - {first}
        source.kill(other)
        write(source.bootstrap, topic, [f"only the first {n}" for n in range(50)], partition=0, acks="1")
        # A link sees what is committed: the source must take the dead follower out of the ISR first.
        wait_until(lambda: _end(source, topic) == 150, 120, what="the first commits alone")
        wait_for_copy(source, mirror, topic)
        assert len(seen(mirror.bootstrap, topic, "read_uncommitted")) == 150
        source.kill(first)
        source.start(other)
        wait_until(lambda: leader(source, topic) == other, 120, what="the follower that is behind leads")
        write(source.bootstrap, topic, [f"only the other {n}" for n in range(20)], partition=0, acks="1")
        source.start(first)
        wait_until(lambda: _end(source, topic) == 120, 120, what="the other commits")
        wait_for_copy(source, mirror, topic)
        assert assert_same(source, mirror, topic) >= 2
        assert len(seen(mirror.bootstrap, topic, "read_uncommitted")) == 120
        [partition] = link.topic(topic)["partitions"]
        assert partition["truncated_records"] == 50


def _end(source: KraftCluster, topic: str) -> int:
    [(_, end)] = offsets(source, partitions_of(source, topic)).values()
    return end


def test_topic_recreated_at_the_source_stops_its_mirror(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    make_topic(source, topic, partitions=1)
    write(source.bootstrap, topic, ["old"] * 10, partition=0)
    with linked(source, mirror, topic) as link:
        wait_for_copy(source, mirror, topic)
        admin = AdminClient({"bootstrap.servers": source.bootstrap})
        admin.delete_topics([topic])[topic].result(60)
        wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, what="the topic is gone")
        make_topic(source, topic, partitions=1)
        write(source.bootstrap, topic, ["new"] * 5, partition=0)
        wait_until(lambda: link.topic(topic)["state"] not in ("mirroring", "pending"), 90, what="the mirror stops")
        assert link.topic(topic)["reason"]
        assert {value for _, _, value in seen(mirror.bootstrap, topic, "read_uncommitted")} == {b"old"}


def test_mirror_takes_no_records_of_its_own(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    make_topic(source, topic, partitions=1)
    with linked(source, mirror, topic):
        wait_for_copy(source, mirror, topic)
        refused: list[str] = []
        producer = Producer({"bootstrap.servers": mirror.bootstrap, "message.timeout.ms": 30_000})
        producer.produce(topic, b"mine", on_delivery=lambda error, message: refused.append(error.name()))
        assert producer.flush(60) == 0
        assert len(refused) == 1
        assert seen(mirror.bootstrap, topic, "read_uncommitted") == set()


def test_source_that_asks_for_a_login_is_mirrored(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    """The user may read, and not see settings: the mirror has those of a new topic."""
    make_topic(source, topic, **{"retention.ms": "86400000"})
    write(source.bootstrap, topic, [f"value {n}" for n in range(100)])
    allow = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:linker", "*")
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    for done in admin.create_acls([AclBinding(*allow, AclOperation.READ, AclPermissionType.ALLOW)]).values():
        done.result(60)
    with linked(source, mirror, topic, settings=source.login("linker")):
        wait_for_copy(source, mirror, topic)
        assert assert_same(source, mirror, topic) >= 2
