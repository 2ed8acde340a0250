"""Replication throttles between the kinds: our leader throttles an Apache follower, and our follower an Apache leader."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli.main import app
from barnabas.client.admin.configs import alter_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import wait_until
from tests.interop.kinds import APACHE, OURS, MixedCluster
from tests.support.command_line import CliRunner

SIZE_BYTES = 3_000_000
RATE = 600_000
THEIRS, MINE = 1, 2


@pytest.fixture(scope="module")
def mixed(java: None) -> Iterator[MixedCluster]:
    with MixedCluster(kinds={THEIRS: APACHE, MINE: OURS}, config={"replica.fetch.max.bytes": "65536"}) as cluster:
        yield cluster


@pytest.mark.parametrize(("side", "leader", "follower"), [("leader", MINE, THEIRS), ("follower", THEIRS, MINE)])
def test_replica_is_copied_at_the_rate(
    mixed: MixedCluster, tmp_path: Path, topic: str, side: str, leader: int, follower: int
) -> None:
    admin = AdminClient({"bootstrap.servers": mixed.bootstrap})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[leader]])])[topic].result(30)
    for broker_id in (THEIRS, MINE):
        # Any broker may get the request for the topic's settings, and refuses it before the controller has announced the topic.
        asking = AdminClient({"bootstrap.servers": mixed.address(broker_id)})
        wait_until(lambda a=asking: topic in a.list_topics(timeout=20).topics, what=f"broker {broker_id} knows {topic}")
    producer = Producer({"bootstrap.servers": mixed.bootstrap, "batch.size": 32_768})
    for _ in range(SIZE_BYTES // 10_000):
        producer.produce(topic, b"x" * 10_000)
    assert producer.flush(30) == 0
    alter(mixed, ConfigResourceType.TOPIC, topic, f"{side}.replication.throttled.replicas", f"0:{MINE}")
    alter(mixed, ConfigResourceType.BROKER, str(MINE), f"{side}.replication.throttled.rate", str(RATE))
    began_s = time.monotonic()
    reassign(mixed, tmp_path, topic, [leader, follower])
    while sorted(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) != [1, 2]:
        assert time.monotonic() < began_s + 90, "the replica does not arrive"
        time.sleep(0.1)
    assert time.monotonic() - began_s > 0.75 * SIZE_BYTES / RATE


def alter(mixed: MixedCluster, kind: ConfigResourceType, name: str, setting: str, value: str) -> None:
    async def story() -> None:
        async with AsyncClient(client_config(mixed.bootstrap)) as cluster:
            await alter_configs(cluster, kind, name, {setting: (AlterOperation.SET, value)})

    asyncio.run(story())


def reassign(mixed: MixedCluster, folder: Path, topic: str, replicas: list[int]) -> None:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}))
    command = ["reassign-partitions", "--bootstrap-server", mixed.bootstrap, "--execute"]
    done = CliRunner().invoke(app, [*command, "--reassignment-json-file", str(plan)])
    assert done.exit_code == 0, done.output
