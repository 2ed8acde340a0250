"""Faults beyond single requests, each seen through librdkafka."""

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from barnabas.testing import Kafka, wait_until
from tests.scenarios.testing.testing_clients import consume, produce, values

three_brokers = pytest.mark.kafka(brokers=3)


def took_s(bootstrap: str, topic: str) -> float:
    began_s = time.monotonic()
    assert produce(bootstrap, topic) == [None]
    return time.monotonic() - began_s


def test_slow_disk_keeps_producers_waiting(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.slow_disk(1, delay_ms=400)
    assert took_s(kafka.bootstrap, topic) >= 0.4


def test_slow_network_delays_every_request(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.slow_network(1, delay_ms=200)
    # ApiVersions, Metadata, Produce: one after the other.
    assert took_s(kafka.bootstrap, topic) >= 0.6
    kafka.assert_records(topic, ["0"])


@three_brokers
def test_slow_network_of_a_follower_slows_what_waits_for_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    view = kafka.cluster.partitions(topic)[0]
    follower = next(each for each in view.replicas if each != view.leader)
    kafka.cluster.slow_network(follower, delay_ms=300)
    # acks=all: the record is in the second fetch of the follower that comes after it.
    assert took_s(kafka.bootstrap, topic) >= 0.3


def test_clock_that_is_wrong_gives_wrong_timestamps_until_it_is_healed(kafka: Kafka) -> None:
    topic = kafka.topic(config={"message.timestamp.type": "LogAppendTime"})
    kafka.cluster.skew_clock(1, -3_600_000)
    assert produce(kafka.bootstrap, topic) == [None]
    kafka.cluster.heal()
    assert produce(kafka.bootstrap, topic) == [None]
    wrong, right = (message.timestamp()[1] / 1000 for message in consume(kafka.bootstrap, topic, 2))
    assert wrong - time.time() == pytest.approx(-3_600, abs=600)
    assert right - time.time() == pytest.approx(0, abs=600)


def test_throttled_producer_is_told_so(kafka: Kafka) -> None:
    topic, told_s = kafka.topic(), []
    kafka.cluster.throttle(produce_bytes_per_s=100, client_id="greedy")
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "client.id": "greedy",
            "throttle_cb": lambda event: told_s.append(event.throttle_time),
        }
    )

    def is_told() -> bool:
        producer.produce(topic, b"x" * 10_000)
        producer.flush(10)
        return any(told_s)

    # The quota travels through ZooKeeper; what is sent before it arrives is not held to it.
    wait_until(is_told, 60, what="a producer that is told to wait")
    assert produce(kafka.bootstrap, topic, **{"client.id": "modest"}) == [None]


@three_brokers
def test_leader_whose_session_expires_is_replaced_and_comes_back(kafka: Kafka) -> None:
    topic, cluster = kafka.topic(), kafka.cluster
    leader = cluster.leader_of(topic)
    registered = cluster.log(leader).count("registered with epoch")
    cluster.expire_session(leader)
    assert produce(kafka.bootstrap, topic, 3) == [None] * 3
    wait_until(lambda: cluster.log(leader).count("registered with epoch") > registered, 60, what="its registration")
    cluster.wait_for_isr(topic, 3)
    assert cluster.member(leader).running


@three_brokers
def test_topic_that_is_deleted_while_a_broker_is_away_is_gone_there_too(kafka: Kafka) -> None:
    """It has no replica of the topic: nobody waits for it, and nobody tells it of the deletion when it is back."""
    cluster, stays, gone = kafka.cluster, kafka.topic(), kafka.name("deleted")
    cluster.create_topic(gone, replication_factor=1)
    away = next(each for each in (1, 2, 3) if each not in (cluster.leader_of(gone), cluster.controller()))
    cluster.pause(away)
    cluster.wait_for_isr(stays, 2)  # its session is over
    cluster.delete_topic(gone)
    cluster.resume(away)
    cluster.wait_for_isr(stays, 3)
    wait_until(lambda: not cluster.partitions(gone, seen_by=away), 60, what=f"the end of {gone} on broker {away}")


@three_brokers
def test_controller_moves_and_the_new_one_makes_topics(kafka: Kafka) -> None:
    cluster = kafka.cluster
    before = cluster.controller()
    after = cluster.move_controller()
    assert after != before
    wait_until(lambda: {cluster.controller(seen_by=each) for each in (1, 2, 3)} == {after}, 60, what="news of it")
    assert produce(kafka.bootstrap, kafka.topic(), 3) == [None] * 3
    assert cluster.member(before).running


def test_write_that_a_crash_tore_is_not_there_and_what_was_acknowledged_is(kafka: Kafka) -> None:
    topic, cluster = kafka.topic(), kafka.cluster
    assert produce(kafka.bootstrap, topic, 5) == [None] * 5
    log = cluster.log_dir(1) / f"{topic}-0" / "00000000000000000000.log"
    whole_bytes = log.stat().st_size
    cluster.tear_write(1)
    outcomes: list[list[KafkaError | None]] = []
    producer = threading.Thread(target=lambda: outcomes.append(produce(kafka.bootstrap, topic, 3)))
    producer.start()
    cluster.wait_until_down(1)
    assert log.stat().st_size > whole_bytes
    cluster.repair()
    producer.join(60)
    assert outcomes == [[None] * 3]  # it was sent again
    assert values(consume(kafka.bootstrap, topic, 8)) == [b"0", b"1", b"2", b"3", b"4", b"0", b"1", b"2"]


@pytest.mark.kafka(secure=True)
def test_expired_certificate_keeps_new_clients_out_until_it_is_healed(kafka: Kafka) -> None:
    topic = kafka.topic()
    told: list[str] = []
    kafka.cluster.expire_certificate(1)
    consumer = Consumer(
        {
            **kafka.librdkafka_settings(),
            "group.id": "g",
            "log_level": 0,
            "error_cb": lambda error: told.append(error.str()),
        }
    )
    wait_until(lambda: consumer.poll(0.2) is None and any("certificate" in each for each in told), 60, what="a refusal")
    consumer.close()
    assert "CERTIFICATE_EXPIRED" in kafka.cluster.log(1)  # as the client answered; librdkafka tells its user less
    kafka.cluster.heal()
    assert produce(kafka.librdkafka_settings(), topic) == [None]


@pytest.mark.parametrize(("idempotent", "written"), [(False, ["0", "0"]), (True, ["0"])])
def test_lost_answer_makes_a_client_write_again_what_was_written(
    kafka: Kafka, idempotent: bool, written: list[str]
) -> None:
    topic = kafka.topic()
    kafka.cluster.fail_api(1, "Produce", lose_answer=True, times=1)
    assert produce(kafka.bootstrap, topic, **{"enable.idempotence": idempotent}) == [None]
    kafka.assert_records(topic, written)


def test_fault_tells_how_often_it_has_fired_and_spares_the_tests_own_questions(kafka: Kafka) -> None:
    topic = kafka.topic()
    every = kafka.cluster.fail_api(1, "Metadata", delay_ms=1)
    once = kafka.cluster.fail_api(1, "Produce", error="NOT_ENOUGH_REPLICAS", times=1)
    kafka.produce(topic, ["by the test itself"])
    kafka.records(topic)
    assert (every.fired, once.fired) == (0, 0)
    assert produce(kafka.bootstrap, topic) == [None]
    assert every.fired >= 1
    assert once.fired == 1
    kafka.cluster.kill(1)
    assert once.fired == 1
