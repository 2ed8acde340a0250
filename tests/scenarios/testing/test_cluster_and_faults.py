"""`barnabas.testing`: clusters and faults as a product, tested through a real client."""

import asyncio
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from barnabas.testing import Cluster, Kafka, wait_until
from barnabas.testing.shared import KEPT_MAX, SharedClusters
from tests.scenarios.testing.testing_clients import consume, produce, values


def test_each_test_has_topics_of_its_own(kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=2)
    assert kafka.cluster.partitions(topic).keys() == {0, 1}
    assert produce(kafka.bootstrap, topic, 3) == [None] * 3
    assert values(consume(kafka.bootstrap, topic, 3)) == [b"0", b"1", b"2"]


def test_request_fails_with_the_error_that_was_asked_for_then_goes_through(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.fail_api(1, "Produce", error="TOPIC_AUTHORIZATION_FAILED", times=1)
    [error] = produce(kafka.bootstrap, topic)
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(kafka.bootstrap, topic) == [None]


def test_retriable_error_is_retried_by_the_client(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.fail_api(1, "Produce", error="NOT_ENOUGH_REPLICAS", times=2)
    assert produce(kafka.bootstrap, topic, **{"retry.backoff.ms": 10}) == [None]


def test_only_the_nth_request_is_hit(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.fail_api(1, "Produce", error="TOPIC_AUTHORIZATION_FAILED", after=1, times=1)
    assert produce(kafka.bootstrap, topic) == [None]
    [error] = produce(kafka.bootstrap, topic)
    assert error is not None


def test_delayed_produce_arrives_whole(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.fail_api(1, "Produce", delay_ms=300, times=1)
    began = time.monotonic()
    assert produce(kafka.bootstrap, topic, 50, **{"linger.ms": 50}) == [None] * 50
    assert time.monotonic() - began >= 0.3
    assert values(consume(kafka.bootstrap, topic, 50)) == [str(n).encode() for n in range(50)]


def test_dropped_connection_is_made_again(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.cluster.fail_api(1, "Produce", drop=True, times=1)
    assert produce(kafka.bootstrap, topic, **{"retry.backoff.ms": 10}) == [None]


def test_unknown_fault_is_refused(kafka: Kafka) -> None:
    with pytest.raises(ValueError, match="there is no error 'NO_SUCH_ERROR'"):
        kafka.cluster.fail_api(1, "Produce", error="NO_SUCH_ERROR")


def test_clock_that_jumps_ages_segments_out(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(
        brokers=1, config={"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "0"}
    )
    cluster.create_topic("old", config={"retention.ms": "60000", "segment.ms": "1000"})
    produce(cluster.bootstrap, "old", 5)
    cluster.advance_clock(1, 3_600_000)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    wait_until(lambda: consumer.get_watermark_offsets(TopicPartition("old", 0), timeout=60) == (5, 5))
    consumer.close()


def test_full_disk_takes_the_directory_offline_and_another_broker_leads(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(brokers=3)
    cluster.create_topic("t", replication_factor=3)
    first = cluster.leader_of("t")
    cluster.fill_disk(first)
    errors = produce(cluster.bootstrap, "t", 5, **{"retry.backoff.ms": 20})
    assert errors == [None] * 5
    assert cluster.leader_of("t") != first


def test_broker_cut_off_from_the_others_leaves_the_isr_and_returns(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(brokers=3, config={"replica.lag.time.max.ms": "1000"})
    cluster.create_topic("t", replication_factor=3)
    # The controller, which shrinks the ISR for the leader, must be on the leader's side of the cut.
    needed = (cluster.leader_of("t"), cluster.controller())
    alone = next(broker for broker in cluster.broker_ids if broker not in needed)
    cluster.cut_off(alone)
    produce(cluster.bootstrap, "t", 3)
    # The isolated broker does not hear of the change: ask the leader.
    wait_until(lambda: alone not in cluster.partitions("t", seen_by=needed[0])[0].isr, what="the shrink of the ISR")
    cluster.heal()
    cluster.wait_for_isr("t", 3)


def test_leader_that_does_not_hear_a_follower_drops_it_and_still_follows_it(
    kafka_cluster: Callable[..., Cluster],
) -> None:
    cluster = kafka_cluster(brokers=2, config={"replica.lag.time.max.ms": "1000", "min.insync.replicas": "1"})
    cluster.create_topic("t", partitions=2, replication_factor=2)
    cluster.wait_for_isr("t", 2)
    led = {partition.leader: number for number, partition in cluster.partitions("t").items()}
    # The unheard broker must not be the controller, which must reach the leader.
    silent = 3 - cluster.controller()
    deaf = 3 - silent
    cluster.be_deaf_to(deaf, [silent])
    for number in (0, 1):
        assert produce(cluster.bootstrap, "t", 3, number) == [None] * 3
    wait_until(
        lambda: cluster.partitions("t", seen_by=deaf)[led[deaf]].isr == (deaf,), what="the follower to leave the ISR"
    )
    assert set(cluster.partitions("t", seen_by=deaf)[led[silent]].isr) == {deaf, silent}
    cluster.heal()
    cluster.wait_for_isr("t", 2)


def test_killed_leader_is_replaced_and_comes_back(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(
        brokers=3,
        config={"zookeeper.session.timeout.ms": "2000"},
        zookeeper_options=("--tick-time", "200", "--max-session-timeout", "60000"),
    )
    cluster.create_topic("t", replication_factor=3)
    leader = cluster.leader_of("t")
    cluster.kill(leader)
    wait_until(lambda: cluster.leader_of("t") not in (leader, -1), what="an election")
    assert produce(cluster.bootstrap, "t", 3) == [None] * 3
    cluster.start_broker(leader)
    cluster.wait_for_isr("t", 3)


async def test_cluster_works_as_an_async_context_manager() -> None:
    async with Cluster(brokers=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "t")
        assert await asyncio.to_thread(cluster.leader_of, "t") == 1


def test_cluster_in_use_is_not_stopped_for_one_of_another_shape() -> None:
    with SharedClusters() as clusters:
        held = clusters.hold(brokers=1)
        others = [clusters.get(brokers=1, config={"num.partitions": count}) for count in range(1, KEPT_MAX + 1)]
        assert held.member(1).running and clusters.get(brokers=1) is held
        assert [each.member(1).running for each in others] == [False, True, True]
