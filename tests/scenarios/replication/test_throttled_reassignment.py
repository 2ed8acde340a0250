"""A reassignment with `--throttle`: it takes its time, what is not throttled does not, and `--verify` ends the throttle."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.client.admin.configs import describe_configs
from barnabas.client.cluster import Cluster
from barnabas.client.config import client_config
from barnabas.core.words import ConfigResourceType

SIZE_BYTES = 2_400_000
RATE = 600_000


def tool(cluster: LocalCluster, plan: Path, *arguments: str) -> str:
    command = ["reassign-partitions", "--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan)]
    done = CliRunner().invoke(app, [*command, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def plan_for(folder: Path, topic: str) -> Path:
    file = folder / f"{topic}.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1, 2]}]}))
    return file


def overrides(cluster: LocalCluster, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
    async def story() -> dict[str, str | None]:
        async with Cluster(client_config(cluster.bootstrap)) as connected:
            [entries] = (await describe_configs(connected, [(kind, name)])).values()
            return {each.name: each.value for each in entries if "throttled" in each.name and not each.is_default}

    return asyncio.run(story())


def seconds_until_moved(admin: AdminClient, topic: str, began_s: float) -> float:
    while True:
        partition = admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
        if sorted(partition.isrs) == [1, 2]:
            return time.monotonic() - began_s
        assert time.monotonic() < began_s + 60, "the replica does not arrive"
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_throttled_replica_is_copied_at_the_rate_and_others_at_once(tmp_path: Path, topic: str) -> None:
    topics = [topic, f"{topic}-free"]
    # Small steps, and a second look soon: or a few megabytes say little about a rate.
    config = {
        "replica.fetch.max.bytes": "65536",
        "replica.fetch.backoff.ms": "100",
        "replica.fetch.wait.max.ms": "100",
    }
    with LocalCluster(brokers=2, config=config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for name in topics:
            admin.create_topics([NewTopic(name, 1, replica_assignment=[[1]])])[name].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 32_768})
        for name in topics:
            for _ in range(SIZE_BYTES // 10_000):
                producer.produce(name, b"x" * 10_000)
            assert producer.flush(30) == 0
        throttled, free = (plan_for(tmp_path, name) for name in topics)

        began_s = time.monotonic()
        assert f"limit was set to {RATE} B/s" in tool(cluster, throttled, "--execute", "--throttle", str(RATE))
        assert overrides(cluster, ConfigResourceType.TOPIC, topic) == {
            "leader.replication.throttled.replicas": "0:1",
            "follower.replication.throttled.replicas": "0:2",
        }
        free_began_s = time.monotonic()
        # Brokers that are throttled are not touched again; this topic is not on anybody's list.
        tool(cluster, free, "--execute", "--additional")
        free_s = seconds_until_moved(admin, topics[1], free_began_s)
        throttled_s = seconds_until_moved(admin, topic, began_s)
        assert throttled_s > 0.75 * SIZE_BYTES / RATE
        assert free_s < 0.5 * throttled_s

        assert "is completed" in tool(cluster, throttled, "--verify")
        assert overrides(cluster, ConfigResourceType.TOPIC, topic) == {}
        for broker in ("1", "2"):
            assert overrides(cluster, ConfigResourceType.BROKER, broker) == {}
