"""`__consumer_offsets` on disk has the configured format."""

from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from barnabas.base.java_hash import partition_of
from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import CODEC_MASK, iter_batches
from tests.scenarios.groups.group_clients import create


def test_offsets_are_compressed_as_configured_and_read_back(
    new_cluster: Callable[..., LocalCluster], topic: str
) -> None:
    config = {"offsets.topic.compression.codec": str(int(Codec.LZ4)), "offsets.topic.num.partitions": "2"}
    cluster = new_cluster(brokers=1, config=config)
    create(cluster.bootstrap, topic, 1)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    for offset in range(20):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()
    folder = cluster.log_dir(1) / f"__consumer_offsets-{partition_of('g', 2)}"
    [segment] = folder.glob("*.log")
    data = segment.read_bytes()
    codecs = {header.attributes & CODEC_MASK for _, header in iter_batches(data, 0, len(data))}
    assert codecs == {Codec.LZ4}
    assert cluster.terminate(1) == 0
    cluster.start_broker(1)
    again = Consumer(settings)
    [committed] = again.committed([TopicPartition(topic, 0)], timeout=60)
    again.close()
    assert committed.offset == 19
