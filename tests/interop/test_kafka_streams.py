"""Kafka Streams, exactly-once, against our cluster: `java/WordCount.java`, with the classic protocol and with KIP-1071."""

from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.java_client import compiled, play

pytestmark = pytest.mark.usefixtures("java")


@pytest.mark.parametrize(("version", "protocol"), [("3.9.1", "classic"), ("4.3.1", "classic"), ("4.3.1", "streams")])
def test_words_are_counted_exactly_once_through_a_restart(
    cluster: LocalCluster, topic: str, tmp_path: Path, version: str, protocol: str
) -> None:
    command = compiled(version, "WordCount", "kafka-streams")
    command.insert(1, f"-Djava.io.tmpdir={tmp_path}")
    play(command, cluster.bootstrap, topic, protocol)
