"""The end of a mirror: planned or immediate, with open transactions, with a leader that fails during it."""

import threading

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin import links as admin
from barnabas.testing.cluster import Cluster
from tests.scenarios.link.linked import (
    create,
    describe,
    ends_of,
    mirror,
    partitions,
    tool,
    wait_for_copy,
    wait_for_state,
)


def transactional(cluster: Cluster, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    return producer


def committed(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"g-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while len(values) < count:
        message = consumer.poll(60)
        assert message is not None, values
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def test_planned_promotion_copies_everything_and_writers_move_over(
    source: Cluster, target: Cluster, topic: str
) -> None:
    source.create_topic(topic, partitions=2)
    name = f"l-{topic}"
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 0, 1: 0})
    source.produce(topic, [f"r{number}" for number in range(500)])
    done = tool("link", "promote", name, "--bootstrap-server", target.bootstrap)
    assert "writers may move over" in done
    ends = ends_of(source, topic)
    assert ends_of(target, topic) == ends
    described = partitions(target, name, topic)
    assert {index: each.final_offset for index, each in described.items()} == ends
    assert all(each.lag_records == 0 for each in described.values())
    target.produce(topic, ["first here"], partition=0)
    assert ends_of(target, topic)[0] == ends[0] + 1
    tool("link", "delete", name, "--bootstrap-server", target.bootstrap)
    target.delete_topic(topic)


class Writing:
    """Writes records to partition 0 on a thread, and keeps the acknowledged ones: offset -> value."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
        self._topic = topic
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.acked: dict[int, bytes | None] = {}

    def __enter__(self) -> "Writing":
        self._thread.start()
        return self

    def __exit__(self, *trouble: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._has_ended.is_set():
            self._producer.produce(self._topic, b"r%d" % number, partition=0, on_delivery=self._delivered)
            assert self._producer.flush(60) == 0
            number += 1

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None
        offset = message.offset()
        assert offset is not None
        self.acked[offset] = message.value()

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.acked) >= count, 60, what=f"{count} records are written")


def test_planned_promotion_under_load_has_all_that_was_acknowledged_before_it_was_asked_for(
    source: Cluster, target: Cluster, topic: str
) -> None:
    """The writer continues at the source during and after the promotion. The mirror has exactly the source's records below the
    reported offset."""
    source.create_topic(topic)
    name = f"l-{topic}"
    create(target, source, name, topic)
    with Writing(source, topic) as writing:
        writing.wait_for(50)
        before = dict(writing.acked)
        target.ask(lambda client: admin.alter_link(client, name, "promote"))
        writing.wait_for(len(before) + 200)
    wait_for_state(target, name, topic, "promoted")
    [described] = partitions(target, name, topic).values()
    assert max(before) < described.final_offset <= described.source_offset
    found = {record.offset: record.value for record in target.records(topic)}
    assert found == {offset: value for offset, value in writing.acked.items() if offset < described.final_offset}
    target.produce(topic, ["here"], partition=0)
    assert ends_of(target, topic) == {0: described.final_offset + 1}


def test_immediate_promotion_under_load_reports_its_exact_end(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    create(target, source, name, topic)
    with Writing(source, topic) as writing:
        writing.wait_for(50)
        wait_until(lambda: partitions(target, name, topic)[0].high_watermark > 20, 60, what="records come over")
        target.ask(lambda client: admin.alter_link(client, name, "promote-now"))
        wait_for_state(target, name, topic, "promoted")
        [described] = partitions(target, name, topic).values()
        writing.wait_for(len(writing.acked) + 50)  # to the source, which does not know of the promotion
    assert described.lag_records == max(0, described.source_offset - described.final_offset)
    found = {record.offset: record.value for record in target.records(topic)}
    assert found == {offset: value for offset, value in writing.acked.items() if offset < described.final_offset}
    assert max(writing.acked) >= described.final_offset


def test_promotion_aborts_open_transactions(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    whole, cut = transactional(source, f"whole-{topic}"), transactional(source, f"cut-{topic}")
    for producer, value in ((whole, b"committed"), (cut, b"never")):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(60) == 0
    whole.commit_transaction(60)
    create(target, source, name, topic)
    ends = ends_of(source, topic)
    wait_for_copy(target, name, topic, ends)
    assert partitions(target, name, topic)[0].open_transactions == 1
    target.ask(lambda client: admin.alter_link(client, name, "promote"))
    wait_for_state(target, name, topic, "promoted")
    [described] = partitions(target, name, topic).values()
    assert described.final_offset == ends[0]
    assert described.log_end_offset == ends[0] + 1  # the marker
    assert described.open_transactions == 0
    here = transactional(target, f"whole-{topic}")
    here.begin_transaction()
    here.produce(topic, b"here")
    here.commit_transaction(60)
    assert committed(target, topic, 2) == [b"committed", b"here"]
    cut.abort_transaction(60)


def test_producer_here_is_not_confused_with_a_producer_of_the_same_id_at_the_source(
    source: Cluster, target: Cluster, topic: str
) -> None:
    """Both clusters hand out producer ids from 0 on. A log with one would mistake the other's records for duplicates."""
    source.create_topic(topic)
    name = f"l-{topic}"
    for number in range(3):
        producer = Producer({"bootstrap.servers": source.bootstrap, "enable.idempotence": True})
        producer.produce(topic, b"there %d" % number, partition=0)
        assert producer.flush(60) == 0
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 3})
    target.ask(lambda client: admin.alter_link(client, name, "promote"))
    wait_for_state(target, name, topic, "promoted")
    for number in range(5):
        producer = Producer({"bootstrap.servers": target.bootstrap, "enable.idempotence": True})
        producer.produce(topic, b"here %d" % number, partition=0)
        assert producer.flush(60) == 0
    values = [record.value for record in target.records(topic)]
    assert values == [b"there 0", b"there 1", b"there 2", *(b"here %d" % number for number in range(5))]


def test_immediate_promotion_needs_no_source_and_reports_its_end(target: Cluster, topic: str) -> None:
    with Cluster(brokers=1) as lost:
        lost.create_topic(topic)
        lost.produce(topic, ["a", "b", "c"])
        name = f"l-{topic}"
        create(target, lost, name, topic)
        wait_for_copy(target, name, topic, {0: 3})
    output = tool("link", "promote", name, "--now", "--bootstrap-server", target.bootstrap)
    assert topic in output
    [partition] = partitions(target, name, topic).values()
    assert (partition.final_offset, partition.source_offset, partition.lag_records) == (3, 3, 0)
    target.produce(topic, ["d"])
    assert ends_of(target, topic) == {0: 4}


def test_leader_that_dies_in_the_middle_of_a_promotion_is_continued_by_the_next(
    source: Cluster, target: Cluster, topic: str
) -> None:
    source.create_topic(topic)
    name = f"l-{topic}"
    cut = transactional(source, f"open-{topic}")
    cut.begin_transaction()
    cut.produce(topic, b"never")
    assert cut.flush(60) == 0
    create(target, source, name, topic)
    wait_for_copy(target, name, topic, {0: 1})
    target.wait_for_isr(topic, 2)
    leader = target.leader_of(topic)
    target.pause(leader)
    other = next(each for each in target.broker_ids if each != leader)
    target.ask(lambda client: admin.alter_link(client, name, "promote-now"), of=other)
    target.kill(leader)
    wait_for_state(target, name, topic, "promoted")
    assert describe(target, name).state == "paused"
    target.start_broker(leader)
    target.wait_for_isr(topic, 2)
    found = mirror(target, name, topic)
    assert found is not None
    assert [each.final_offset for each in found.partitions] == [1]
    target.produce(topic, ["here"])
    assert committed(target, topic, 1) == [b"here"]
    cut.abort_transaction(60)
