"""Kafka Streams, exactly-once, against our cluster: `java/WordCount.java`."""

from pathlib import Path

import pytest
from java_client import compiled, play

from barnabas.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.usefixtures("java")


def test_words_are_counted_exactly_once_through_a_restart(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    command = compiled("3.9.1", "WordCount", "kafka-streams")
    command.insert(1, f"-Djava.io.tmpdir={tmp_path}")
    play(command, cluster.bootstrap, topic)
