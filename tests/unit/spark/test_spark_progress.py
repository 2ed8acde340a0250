"""Progress of a query as a group's offsets: an error with it never holds the query up."""

import logging
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from barnabas.base.ids import TopicPartition
from barnabas.client.config import client_config
from barnabas.spark import progress
from barnabas.spark.progress import GroupProgress
from barnabas.testing import Kafka


def committed(kafka: Kafka, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        return consumer.committed([KafkaTopicPartition(topic, 0)], timeout=60)[0].offset
    finally:
        consumer.close()


def test_deleted_partitions_hold_up_neither_the_query_nor_other_partitions(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic was created again with fewer partitions: the query knows the old ones until it has planned again."""
    topic, group = kafka.topic("few"), kafka.name("group")
    group_progress = GroupProgress(client_config(kafka.bootstrap, {}), group)
    began = time.monotonic()
    group_progress.commit({TopicPartition(topic, 0): 5, TopicPartition(topic, 3): 7, TopicPartition("nowhere", 0): 1})
    assert time.monotonic() - began < 30, "half the time for which a client tries"
    assert committed(kafka, group, topic) == 5
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text
    group_progress.close()


def test_commits_to_an_unreachable_cluster_pause_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE_MS", 100)
    now = [100.0]
    group_progress = GroupProgress(client_config("127.0.0.1:1", {}), "group", clock=lambda: now[0])
    for offset in range(5):
        group_progress.commit({TopicPartition("t", 0): offset})
    assert caplog.text.count("cannot commit the query's progress") == 1
    now[0] += 31
    group_progress.commit({TopicPartition("t", 0): 9})
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 2
    group_progress.close()
