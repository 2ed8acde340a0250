"""What the tests of links share: a link from Kafka into a cluster of ours, and waiting for it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.kraft import KraftCluster
from tests.interop.link.batches import Side, offsets, partitions_of

REFRESH_MS = "500"


def barnabas(*arguments: str, status: int | None = 0) -> str:
    """The tool, as a person runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "barnabas", *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert status in (None, done.returncode), (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if done.returncode == 0 else done.stderr


class Link:
    def __init__(self, mirror: LocalCluster, name: str) -> None:
        self.mirror = mirror
        self.name = name

    def do(self, action: str, *options: str, status: int | None = 0) -> str:
        return barnabas("link", action, self.name, "--bootstrap-server", self.mirror.bootstrap, *options, status=status)

    def describe(self) -> dict[str, Any]:
        [link] = json.loads(self.do("describe", "--json"))
        return dict(link)

    def topic(self, topic: str) -> dict[str, Any]:
        """Empty while the mirror is not there."""
        return next((dict(each) for each in self.describe()["topics"] if each["name"] == topic), {})

    def wait_for_state(self, topic: str, state: str, timeout_s: float = 90.0) -> dict[str, Any]:
        wait_until(lambda: self.topic(topic).get("state") == state, timeout_s, what=f"{topic} is {state}")
        return self.topic(topic)


@contextmanager
def linked(
    source: Side, mirror: LocalCluster, topics: str, *options: str, settings: Mapping[str, str] | None = None
) -> Iterator[Link]:
    """A link while the block runs. It rests then: what it mirrored stays, for whoever looks."""
    link = Link(mirror, f"link-{topics.strip('.*')}")
    given = {"bootstrap.servers": source.bootstrap, "link.refresh.interval.ms": REFRESH_MS, **(settings or {})}
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write("".join(f"{name}={value}\n" for name, value in given.items()))
        file.flush()
        link.do("create", "--config", file.name, "--topics", topics, *options)
    try:
        yield link
    finally:
        link.do("pause", status=None)


def make_topic(source: Side, topic: str, partitions: int = 2, replicas: int = 3, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, partitions, replicas, config=config)])[topic].result(60)

    def has_leaders() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == partitions and all(each.leader >= 0 for each in found.values())

    wait_until(has_leaders, what=f"{topic} has leaders")


def wait_for_copy(source: Side, mirror: LocalCluster, topic: str, timeout_s: float = 120.0) -> None:
    """Until the mirror begins and ends where the source does, now that nobody writes."""
    partitions = partitions_of(source, topic)

    def is_copied() -> bool:
        here = partitions_of(mirror, topic)
        return here == partitions and offsets(mirror, partitions) == offsets(source, partitions)

    wait_until(is_copied, timeout_s, what=f"the mirror of {topic} is where its source is")


def leader(source: KraftCluster, topic: str, partition: int = 0) -> int:
    admin = AdminClient({"bootstrap.servers": source.bootstrap, "log_level": 0})
    return int(admin.list_topics(topic, timeout=30).topics[topic].partitions[partition].leader)
