"""Two clusters and a link between them, shared by the tests of links."""

import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from barnabas.cli.local_cluster import wait_until
from barnabas.cli.main import app
from barnabas.client.admin import links as admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing.cluster import Cluster
from barnabas.wire.messages.describe_links import DescribedLink, DescribedMirrorPartition, DescribedMirrorTopic
from tests.support.command_line import CliRunner

TIMEOUT_S = 60.0
LOG_OVERHEAD, EPOCH_AT = 12, 12


def tool(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def create(target: Cluster, source: Cluster, name: str, topics: str, **options: Any) -> None:
    configs = {"bootstrap.servers": source.bootstrap, "link.refresh.interval.ms": "200", **options.pop("configs", {})}
    target.ask(lambda client: admin.create_link(client, name, configs=configs, topics=topics, **options))


def describe(target: Cluster, name: str) -> DescribedLink:
    [link] = target.ask(lambda client: admin.describe_links(client, [name]))
    return link


def mirror(target: Cluster, name: str, topic: str) -> DescribedMirrorTopic | None:
    return next((each for each in describe(target, name).topics if each.name == topic), None)


def partitions(target: Cluster, name: str, topic: str) -> dict[int, DescribedMirrorPartition]:
    found = mirror(target, name, topic)
    return {} if found is None else {each.partition: each for each in found.partitions}


def wait_for_state(target: Cluster, name: str, topic: str, state: str) -> DescribedMirrorTopic:
    found: list[DescribedMirrorTopic] = []

    def has_state() -> bool:
        now = mirror(target, name, topic)
        if now is not None and now.state == state:
            found.append(now)
        return bool(found)

    wait_until(has_state, TIMEOUT_S, what=f"{topic} is {state}")
    return found[0]


def wait_for_copy(target: Cluster, name: str, topic: str, ends: dict[int, int]) -> None:
    """Wait until the mirrors end where the source does, and all replicas here have the records."""

    def is_there() -> bool:
        now = partitions(target, name, topic)
        return {index: now[index].high_watermark for index in ends if index in now} == ends

    wait_until(is_there, TIMEOUT_S, what=f"the mirror of {topic} ends at {ends}")


def ends_of(cluster: Cluster, topic: str) -> dict[int, int]:
    from barnabas.base.ids import TopicPartition
    from barnabas.base.words import LATEST
    from barnabas.client.admin.partitions import list_offsets

    wanted = {TopicPartition(topic, index): LATEST for index in cluster.partitions(topic)}
    found = cluster.ask(lambda client: list_offsets(client, wanted))
    return {tp.partition: listed.offset for tp, listed in found.items()}


def batches(cluster: Cluster, broker_id: int, topic: str, partition: int = 0) -> list[bytes]:
    """Return the record batches in a replica's files without their leader epochs: everything else must equal the source's."""
    [folder] = [
        folder for each in cluster.log_dirs(broker_id) if (folder := Path(each) / f"{topic}-{partition}").is_dir()
    ]
    data = b"".join(file.read_bytes() for file in sorted(folder.glob("*.log")))
    return list(_split(data))


def _split(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + LOG_OVERHEAD < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        if length == 0:
            return  # the rest of a preallocated file
        batch = bytearray(data[position : position + LOG_OVERHEAD + length])
        batch[EPOCH_AT : EPOCH_AT + 4] = bytes(4)
        yield bytes(batch)
        position += LOG_OVERHEAD + length


def asking(cluster: Cluster, story: Callable[[AsyncClient], Any]) -> Any:
    async def main() -> Any:
        async with AsyncClient(client_config(cluster.bootstrap)) as client:
            return await story(client)

    return asyncio.run(main())


def as_json(text: str) -> Any:
    return json.loads(text)
