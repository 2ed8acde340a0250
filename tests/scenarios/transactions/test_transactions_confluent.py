"""Transactions of librdkafka, through confluent-kafka."""

import uuid

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from barnabas.cli.local_cluster import wait_until
from tests.scenarios.transactions.txn_clients import consumer, create_topic, read_all, transactional_producer, values


def unique() -> str:
    return f"txn-{uuid.uuid4().hex[:12]}"


def test_committed_records_are_seen_and_aborted_ones_are_not(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 3)
    producer = transactional_producer(bootstrap, unique())
    for turn in range(6):
        producer.begin_transaction()
        for number in range(9):
            producer.produce(topic, b"%d-%d" % (turn, number), partition=number % 3)
        assert producer.flush(60) == 0
        if turn % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    committed = sorted(values(read_all(bootstrap, topic)))
    assert committed == sorted(b"%d-%d" % (turn, number) for turn in (0, 2, 4) for number in range(9))
    everything = read_all(bootstrap, topic, isolation="read_uncommitted")
    assert len(everything) == 54


def test_a_reader_of_committed_records_stops_before_an_open_transaction(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    open_one = transactional_producer(bootstrap, unique())
    other = transactional_producer(bootstrap, unique())
    open_one.begin_transaction()
    open_one.produce(topic, b"open")
    assert open_one.flush(60) == 0
    other.begin_transaction()
    other.produce(topic, b"done")
    other.commit_transaction(60)
    assert values(read_all(bootstrap, topic)) == []
    assert values(read_all(bootstrap, topic, isolation="read_uncommitted")) == [b"open", b"done"]
    open_one.commit_transaction(60)
    wait_until(lambda: values(read_all(bootstrap, topic)) == [b"open", b"done"], what="both to be committed")


def test_offsets_and_records_are_committed_together(bootstrap: str, topic: str) -> None:
    source, sink, group = topic, f"{topic}-out", f"{topic}-group"
    create_topic(bootstrap, source, 2)
    create_topic(bootstrap, sink)
    feeder = transactional_producer(bootstrap, unique())
    feeder.begin_transaction()
    for number in range(40):
        feeder.produce(source, b"%d" % number, partition=number % 2)
    feeder.commit_transaction(60)
    reader = consumer(bootstrap, group)
    reader.subscribe([source])
    worker = transactional_producer(bootstrap, unique())
    done = 0
    turn = 0
    while done < 40:
        messages = [message for message in reader.consume(10, timeout=5.0) if message.error() is None]
        if not messages:
            continue
        worker.begin_transaction()
        for message in messages:
            worker.produce(sink, b"x" + message.value())
        ends: dict[int, int] = {}
        for message in messages:
            ends[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(source, partition, end) for partition, end in ends.items()]
        worker.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 30)
        turn += 1
        if turn % 3 == 2:
            # The transaction is aborted: go back to the committed offsets.
            worker.abort_transaction(60)
            for partition in reader.committed(reader.assignment(), timeout=60):
                reader.seek(TopicPartition(source, partition.partition, max(partition.offset, 0)))
        else:
            worker.commit_transaction(60)
            done += len(messages)
    reader.close()
    assert sorted(values(read_all(bootstrap, sink))) == sorted(b"x%d" % number for number in range(40))


def test_a_zombie_is_fenced_by_its_successor(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    name = unique()
    zombie = transactional_producer(bootstrap, name)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    assert zombie.flush(60) == 0
    successor = transactional_producer(bootstrap, name)
    with pytest.raises(KafkaException) as refusal:
        zombie.commit_transaction(60)
    assert refusal.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(topic, b"successor")
    successor.commit_transaction(60)
    assert values(read_all(bootstrap, topic)) == [b"successor"]


def test_a_transaction_that_times_out_is_aborted(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    slow = transactional_producer(bootstrap, unique(), **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce(topic, b"late")
    assert slow.flush(60) == 0
    other = transactional_producer(bootstrap, unique())
    other.begin_transaction()
    other.produce(topic, b"in time")
    other.commit_transaction(60)
    wait_until(lambda: values(read_all(bootstrap, topic)) == [b"in time"], what="the coordinator to abort")
    with pytest.raises(KafkaException):
        slow.commit_transaction(10)


def test_an_idempotent_producer_needs_no_transaction(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(500):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    assert sorted(map(int, values(read_all(bootstrap, topic)))) == list(range(500))


def test_transactions_follow_each_other_without_a_pause(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    producer = transactional_producer(bootstrap, unique())
    for number in range(50):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.commit_transaction(60)
    assert values(read_all(bootstrap, topic)) == [b"%d" % number for number in range(50)]
