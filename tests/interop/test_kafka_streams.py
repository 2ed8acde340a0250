"""Kafka Streams, exactly-once, against our cluster: `java/WordCount.java`, with the classic protocol and with KIP-1071."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin.streams_groups import StreamsGroupDescription, describe_streams_group
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import wait_until
from tests.interop.java_client import compiled, play
from tests.interop.kraft import java as java_command

pytestmark = pytest.mark.usefixtures("java")


def word_count(folder: Path, version: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    command = compiled(version, "WordCount", "kafka-streams")
    command.insert(1, f"-Djava.io.tmpdir={folder}")
    return command


@pytest.mark.parametrize(("version", "protocol"), [("3.9.1", "classic"), ("4.3.1", "classic"), ("4.3.1", "streams")])
def test_words_are_counted_exactly_once_through_a_restart(
    cluster: LocalCluster, topic: str, tmp_path: Path, version: str, protocol: str
) -> None:
    play(word_count(tmp_path, version), cluster.bootstrap, topic, protocol)


@contextmanager
def instance(command: list[str], bootstrap: str, topic: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, bootstrap, topic, "streams", "instance"], stdout=output, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def produce(bootstrap: str, topic: str, words: list[str]) -> Counter[str]:
    """Write a line of two words for each. Returns how often each word was written."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for at, word in enumerate(words):
        producer.produce(topic, key=f"k{at}", value=f"{word} the")
    assert producer.flush(30) == 0
    return Counter(words) + Counter({"the": len(words)})


class Counts:
    """The words and their last counts in the output, as a reader of committed records finds them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "auto.offset.reset": "earliest"}
        )
        self.consumer.subscribe([f"{topic}-out"])
        self.found: Counter[str] = Counter()

    def read(self) -> Counter[str]:
        for record in self.consumer.consume(500, timeout=0.5):
            self.found[record.key().decode()] = int.from_bytes(record.value(), "big")
        return self.found


async def described(bootstrap: str, group_id: str) -> StreamsGroupDescription:
    async with AsyncClient(client_config(bootstrap)) as client:
        return await describe_streams_group(client, group_id)


def kafka_streams_groups(bootstrap: str, *arguments: str) -> list[str]:
    """Run Kafka 4.3's own tool."""
    command = java_command(
        "256m", "org.apache.kafka.tools.streams.StreamsGroupCommand", "--bootstrap-server", bootstrap, *arguments
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_counts_are_right_when_one_of_two_instances_is_killed(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    bootstrap, group_id = cluster.bootstrap, f"{topic}-app"
    wanted_topics = [NewTopic(name, 3, 3) for name in (topic, f"{topic}-out")]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(wanted_topics).values():
        created.result()
    wanted = produce(bootstrap, topic, [f"word{number % 23}" for number in range(500)])
    counts = Counts(bootstrap, topic)

    def is_shared() -> bool:
        """Whether four threads, two of each instance, have all six tasks."""
        group = asyncio.run(described(bootstrap, group_id))
        return group.state == "Stable" and sorted(each.tasks.active_count for each in group.members) == [1, 1, 2, 2]

    with (
        instance(word_count(tmp_path / "a", "4.3.1"), bootstrap, topic, tmp_path / "a.log"),
        instance(word_count(tmp_path / "b", "4.3.1"), bootstrap, topic, tmp_path / "b.log") as killed,
    ):
        wait_until(is_shared, timeout_s=90, what="the tasks are shared by both instances")
        assert group_id in kafka_streams_groups(bootstrap, "--list")
        members = kafka_streams_groups(bootstrap, "--describe", "--group", group_id, "--members")
        assert len([line for line in members if line.startswith(group_id) and "ACTIVE" in line]) == 4
        [state] = [line.split() for line in kafka_streams_groups(bootstrap, "--describe", "--group", group_id, "--state")
                   if line.startswith(group_id)]  # fmt: skip
        assert state[-2:] == ["Stable", "4"]
        wait_until(lambda: counts.read() == wanted, timeout_s=60, what="all words are counted")
        killed.kill()
        wanted += produce(bootstrap, topic, [f"word{number % 7}" for number in range(300)])
        wait_until(lambda: counts.read() == wanted, timeout_s=120, what="all words are counted after the kill")
        group = asyncio.run(described(bootstrap, group_id))
        assert [each.tasks.active_count for each in group.members] == [3, 3]
