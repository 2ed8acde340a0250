"""Faults on purpose: what the desk does when Kafka does not do what it should."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from shop.desk import Desk, NotTaken, bill

if TYPE_CHECKING:
    from barnabas.testing import Cluster, Kafka


def test_guest_is_told_when_the_desk_may_not_write(kafka: "Kafka") -> None:
    desk = Desk(kafka.bootstrap, kafka.topic("orders"))
    kafka.cluster.fail_api(1, "Produce", error="TOPIC_AUTHORIZATION_FAILED", times=1)
    with pytest.raises(NotTaken, match="authorization"):
        desk.take(1, "soup")


def test_order_survives_a_dropped_connection_and_is_taken_once(kafka: "Kafka") -> None:
    topic = kafka.topic("orders")
    desk = Desk(kafka.bootstrap, topic)
    kafka.cluster.fail_api(1, "Produce", drop=True, times=1)
    assert desk.take(1, "soup") == 0
    assert desk.take(1, "bread") == 1


def test_no_order_is_lost_with_a_leader(kafka_cluster: "Callable[..., Cluster]") -> None:
    cluster = kafka_cluster(brokers=3)
    cluster.create_topic("orders", replication_factor=3)
    desk = Desk(cluster.bootstrap, "orders")
    desk.take(1, "soup")
    assert bill(cluster.bootstrap, "orders", group="cashier", orders=1) == {(1, "soup"): 1}
    cluster.terminate(cluster.leader_of("orders"))
    desk.take(1, "bread")
    assert bill(cluster.bootstrap, "orders", group="cashier", orders=1) == {(1, "bread"): 1}
