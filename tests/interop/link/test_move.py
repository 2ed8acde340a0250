"""Clients move from Kafka in KRaft mode into a cluster of ours, through a link: 0 lost, 0 twice."""

from collections import Counter

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.kraft import KraftCluster
from tests.interop.link.batches import assert_same, offsets, partitions_of
from tests.interop.link.stories import linked, make_topic, wait_for_copy
from tests.interop.load import GroupReader, Transactor, Writer, read_all

PARTITIONS = 2


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        found = reader.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=30)
        return {each.partition: each.offset for each in found}
    finally:
        reader.close()


def test_consumers_move_over_in_mid_stream_and_writers_after_a_promotion(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    make_topic(source, topic, partitions=PARTITIONS)
    group = f"{topic}-group"
    writer = Writer(source.bootstrap, topic).start()
    first = GroupReader(source.bootstrap, topic, group).start()
    wait_until(lambda: len(first.seen) > 200, what="records flow")
    with linked(source, mirror, topic, "--groups", group) as link:
        wait_until(lambda: len(first.seen) > 400, what="records flow")
        first.stop()
        at = committed(source.bootstrap, group, topic)
        wait_until(lambda: committed(mirror.bootstrap, group, topic) == at, 90, what="the offsets are here")
        second = GroupReader(mirror.bootstrap, topic, group).start()
        wait_until(lambda: len(second.seen) > 200, 90, what="records come over")
        writer.stop()
        link.do("promote")
        link.wait_for_state(topic, "promoted")
        assert assert_same(source, mirror, topic) > 10
        ends = {each.partition: end for each, (_, end) in offsets(source, partitions_of(source, topic)).items()}
        assert {each["partition"]: each["final_offset"] for each in link.topic(topic)["partitions"]} == ends
        successor = Writer(mirror.bootstrap, topic, first=writer.number).start()
        wait_until(lambda: len(successor.acked) > 200, 90, what="records are taken here")
        successor.stop()
        written = Counter(writer.acked.values()) + Counter(successor.acked.values())
        wait_until(lambda: written.keys() <= (first.seen + second.seen).keys(), 90, what="everything is read")
        second.stop()
        assert not writer.refused and not successor.refused
        assert first.seen + second.seen == written


def test_planned_promotion_under_load_waits_until_nothing_is_left(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    """Writers go on at the source while the promotion is asked for and waits, and are stopped then. The mirror has all that was
    acknowledged before it was asked for, and the source's records up to the offset that is told."""
    make_topic(source, topic, partitions=PARTITIONS)
    with linked(source, mirror, topic) as link:
        writer = Writer(source.bootstrap, topic).start()
        transactor = Transactor(source.bootstrap, topic, topic).start()
        wait_until(lambda: len(writer.acked) > 500 and len(transactor.committed) > 10, what="there is load")
        before, committed_before = dict(writer.acked), set(transactor.committed)
        link.do("promote", "--no-wait")
        wait_until(lambda: len(writer.acked) > len(before) + 500, what="the writers go on")
        transactor.stop()
        writer.stop()
        told = link.wait_for_state(topic, "promoted")["partitions"]
        final = {each["partition"]: each["final_offset"] for each in told}
        found = {(m.partition(), m.offset()): m.value() for m in read_all(mirror.bootstrap, topic)}
        assert before.items() <= found.items()
        assert {at: value for at, value in writer.acked.items() if at[1] < final[at[0]]}.items() <= found.items()
        assert {at for at in found if at[1] >= final[at[0]]} == set()
        check_mirror = {m.value() for m in read_all(mirror.bootstrap, topic, isolation="read_committed")}
        assert committed_before <= check_mirror and not transactor.aborted & check_mirror
        # The new cluster hands out producer ids that nobody had at the source: both kinds of writers begin.
        after = Transactor(mirror.bootstrap, topic, topic).start()
        wait_until(lambda: len(after.committed) > 5, 90, what="transactions end here")
        after.stop()


def test_promotion_aborts_what_is_open(source: KraftCluster, mirror: LocalCluster, topic: str) -> None:
    make_topic(source, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", partition=0)
    assert producer.flush(60) == 0
    with linked(source, mirror, topic) as link:
        wait_for_copy(source, mirror, topic)
        link.do("promote")
        link.wait_for_state(topic, "promoted")
        writer = Producer({"bootstrap.servers": mirror.bootstrap})
        writer.produce(topic, b"after", partition=0)
        assert writer.flush(60) == 0
        assert [m.value() for m in read_all(mirror.bootstrap, topic, isolation="read_committed")] == [b"after"]
    try:
        producer.abort_transaction(60)
    except KafkaException as refused:
        assert refused.args[0].fatal(), refused


def test_group_that_is_active_here_keeps_its_own_offsets(
    source: KraftCluster, mirror: LocalCluster, topic: str
) -> None:
    make_topic(source, topic, partitions=PARTITIONS)
    group = f"{topic}-group"
    writer = Writer(source.bootstrap, topic).start()
    with linked(source, mirror, topic, "--groups", group):
        wait_until(lambda: len(partitions_of(mirror, topic)) == PARTITIONS, what="the mirror is there")
        wait_until(lambda: len(writer.acked) > 300, what="records flow")
        writer.stop()
        wait_for_copy(source, mirror, topic)
        here = GroupReader(mirror.bootstrap, topic, group).start()
        wait_until(lambda: len(here.seen) == len(writer.acked), 90, what="all is read here")
        at = committed(mirror.bootstrap, group, topic)
        # The same group commits the beginning at the source.
        rewinder = Consumer({"bootstrap.servers": source.bootstrap, "group.id": group, "enable.auto.commit": False})
        rewinder.commit(offsets=[TopicPartition(topic, number, 1) for number in range(PARTITIONS)], asynchronous=False)
        rewinder.close()
        # A turn of the link has passed since: a writer's records of after it are here.
        again = Writer(source.bootstrap, topic, first=writer.number).start()
        wait_until(lambda: len(here.seen) > len(writer.acked) + 300, 90, what="records of after the commit are here")
        again.stop()
        here.stop()
        assert all(offset >= at[partition] for partition, offset in committed(mirror.bootstrap, group, topic).items())
