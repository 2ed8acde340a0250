"""Requests leave no cyclic garbage: a collection searches the heap and holds the loop, and all clients wait for it."""

import re
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.broker_metrics import metrics_of

RECORDS = 1200


def collections(cluster: LocalCluster) -> float:
    """Return how often the youngest generation was collected."""
    (line,) = re.findall(r'^python_gc_collections\{generation="0"\} (\S+)$', metrics_of(cluster), re.MULTILINE)
    return float(line)


def test_steady_traffic_has_the_heap_searched_next_to_never(new_cluster: Callable[..., LocalCluster]) -> None:
    """Forty objects in a cycle for each long poll once caused a collection every 500 records."""
    cluster = new_cluster(brokers=1, config={"barnabas.metrics.port": "0"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "fetch.wait.max.ms": 500}
    )  # fmt: skip
    try:
        producer.produce("steady", b"first")
        assert producer.flush(60) == 0
        consumer.assign([TopicPartition("steady", 0, 0)])
        assert consumer.poll(60) is not None
        consumer.commit(asynchronous=False)
        before = collections(cluster)
        for number in range(RECORDS):
            producer.produce("steady", b"%d" % number)
            assert producer.flush(60) == 0
            found = consumer.poll(60)
            assert found is not None and found.value() == b"%d" % number
        assert collections(cluster) - before <= 1
    finally:
        consumer.close()
