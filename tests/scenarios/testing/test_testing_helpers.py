"""Helpers that tests of Kafka applications would write anyway: write, read, compare, wait."""

import json

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.base.ids import TopicPartition
from barnabas.testing import Kafka, Record
from tests.scenarios.testing.testing_clients import consume, produce, values


def test_records_that_a_test_writes_are_read_by_a_client_and_the_other_way_round(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    written = kafka.produce(topic, ["coffee", ("table 1", b"tea"), Record("soup", headers=(("hot", b"1"),))])
    assert [(record.partition, record.offset) for record in written] == [(0, 0), (0, 1), (0, 2)]
    read = consume(kafka.bootstrap, topic, 3)
    assert values(read) == [b"coffee", b"tea", b"soup"]
    assert (read[1].key(), read[2].headers()) == (b"table 1", [("hot", b"1")])
    assert produce(kafka.bootstrap, topic) == [None]
    assert [record.value for record in kafka.records(topic)] == [b"coffee", b"tea", b"soup", b"0"]
    assert kafka.records(topic)[1] == Record(b"tea", b"table 1")


def test_keys_go_where_every_other_client_sends_them(kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=4)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"})
    for number in range(20):
        producer.produce(topic, "theirs", key=f"key {number}")
    producer.flush(60)
    theirs = {record.key: record.partition for record in kafka.records(topic)}
    ours = {record.key: record.partition for record in kafka.produce(topic, [(f"key {n}", "ours") for n in range(20)])}
    assert theirs == {str(key).encode(): partition for key, partition in ours.items()}


def test_assert_records_waits_for_what_is_still_to_come(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 200})
    producer.produce(topic, json.dumps({"dish": "soup"}))
    kafka.assert_records(topic, [{"dish": "soup"}], decode=json.loads)
    producer.flush(60)


def test_aborted_records_are_not_seen_unless_they_are_asked_for(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name("tx")})
    producer.init_transactions(60)
    for value, end in (("good", producer.commit_transaction), ("bad", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(60)
        end(60)
    kafka.assert_records(topic, ["good"])
    kafka.assert_records(topic, ["good", "bad"], isolation="read_uncommitted")


def test_lag_counts_records_and_ends_when_the_group_has_read_them(kafka: Kafka) -> None:
    topic, group = kafka.topic("orders"), kafka.name("readers")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name("tx")})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in ("a", "b", "c"):
        producer.produce(topic, value)
    producer.commit_transaction(60)
    assert kafka.lag(group, topic) == {TopicPartition(topic, 0): 3}
    with pytest.raises(TimeoutError, match=f"group '{group}' lags: {topic}-0 by 3, after 0.1 s"):
        kafka.wait_for_lag(group, topic=topic, timeout_s=0.1)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    try:
        assert len(consumer.consume(3, 60)) == 3
        kafka.wait_for_members(group, 1)
        consumer.commit(asynchronous=False)
        # The transaction's end has the offset 3, and is no record that anybody could read.
        kafka.wait_for_lag(group, 0)
    finally:
        consumer.close()
    kafka.wait_for_members(group, 0)


async def test_helpers_work_while_an_event_loop_runs(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    kafka.produce(topic, ["coffee"])
    kafka.assert_records(topic, ["coffee"])


def test_mistakes_are_told_in_sentences(kafka: Kafka) -> None:
    topic, cluster = kafka.topic("orders"), kafka.cluster
    for mistake, sentence in (
        (lambda: cluster.kill(9), "there is no broker 9: this cluster has broker 1 alone"),
        (lambda: cluster.fill_disk(7), "there is no broker 7: this cluster has broker 1 alone"),
        (lambda: cluster.leader_of(topic[:-1]), f"there is no topic '{topic[:-1]}'; did you mean {topic}?"),
        (lambda: kafka.records(topic[:-1]), f"there is no topic '{topic[:-1]}'; did you mean {topic}?"),
        (lambda: cluster.leader_of(topic, 4), f"{topic} has no partition 4: it has 0 to 0"),
        (
            lambda: cluster.fail_api(1, "Produce"),
            "this fault does nothing: give error=, delay_ms=, drop=True or lose_answer=True",
        ),
        (lambda: cluster.fail_api(1, "Produce", drop=True, times=0), "times=0 must be at least 1"),
        (lambda: cluster.fail_log_dir(1, "/nope"), "/nope is no log directory of broker 1: it has"),
        (lambda: cluster.expire_certificate(1), "there are no certificates: start the cluster with secure=True"),
        (lambda: cluster.move_controller(), "the controller cannot move: it takes two brokers that run"),
        (lambda: cluster.throttle(), "this fault does nothing: give produce_bytes_per_s= or fetch_bytes_per_s="),
    ):
        with pytest.raises(Exception) as caught:
            mistake()
        assert str(caught.value).startswith(sentence)
    cluster.pause(1)
    with pytest.raises(Exception, match=r"broker 1 is paused: resume\(1\) lets it go on"):
        cluster.fail_api(1, "Produce", drop=True)
    cluster.kill(1)
    with pytest.raises(Exception, match=r"broker 1 is down: start_broker\(1\) starts it"):
        cluster.fail_api(1, "Produce", drop=True)
