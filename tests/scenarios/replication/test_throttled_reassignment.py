"""A reassignment with `--throttle`: it takes its time, other replicas do not wait, and `--verify` ends the throttle."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.words import ConfigResourceType
from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.cli.main import app
from barnabas.client.admin.configs import describe_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from tests.support.command_line import CliRunner

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
        async with AsyncClient(client_config(cluster.bootstrap)) as connected:
            [entries] = (await describe_configs(connected, [(kind, name)])).values()
            return {each.name: each.value for each in entries if "throttled" in each.name and not each.is_default}

    return asyncio.run(story())


def is_moved(admin: AdminClient, topic: str) -> bool:
    return sorted(admin.list_topics(topic, timeout=60).topics[topic].partitions[0].isrs) == [1, 2]


@pytest.mark.timeout(180)
def test_throttled_replica_is_copied_at_the_rate_and_others_at_once(tmp_path: Path, topic: str) -> None:
    measured, slow, free = topics = [topic, f"{topic}-slow", f"{topic}-free"]
    # Small fetches and short waits, so that a few megabytes show the rate.
    config = {
        "replica.fetch.max.bytes": "65536",
        "replica.fetch.backoff.ms": "100",
        "replica.fetch.wait.max.ms": "100",
    }
    with LocalCluster(brokers=2, config=config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for name in topics:
            admin.create_topics([NewTopic(name, 1, replica_assignment=[[1]])])[name].result(60)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 32_768})
        for name in topics:
            for _ in range(SIZE_BYTES // 10_000):
                producer.produce(name, b"x" * 10_000)
            assert producer.flush(60) == 0
        plans = {name: plan_for(tmp_path, name) for name in topics}

        began_s = time.monotonic()
        assert f"limit was set to {RATE} B/s" in tool(cluster, plans[measured], "--execute", "--throttle", str(RATE))
        assert overrides(cluster, ConfigResourceType.TOPIC, measured) == {
            "leader.replication.throttled.replicas": "0:1",
            "follower.replication.throttled.replicas": "0:2",
        }
        wait_until(lambda: is_moved(admin, measured), 60, what="the throttled replica")
        assert time.monotonic() - began_s > 0.75 * SIZE_BYTES / RATE
        verify(cluster, plans[measured], measured)

        # At this rate it would take most of an hour. Replicas that are not on the list do not wait for it.
        tool(cluster, plans[slow], "--execute", "--throttle", "1000")
        # `--additional` leaves the throttles of brokers alone; this topic is not on their lists.
        tool(cluster, plans[free], "--execute", "--additional")
        wait_until(lambda: is_moved(admin, free), 60, what="the replica that is not throttled")
        assert not is_moved(admin, slow)
        tool(cluster, plans[slow], "--execute", "--additional", "--throttle", "1000000000")
        wait_until(lambda: is_moved(admin, slow), 60, what="the replica whose throttle was raised")
        verify(cluster, plans[slow], slow)


def verify(cluster: LocalCluster, plan: Path, topic: str) -> None:
    """Check that `--verify` reports the end and removes the throttle."""
    assert "is completed" in tool(cluster, plan, "--verify")
    assert overrides(cluster, ConfigResourceType.TOPIC, topic) == {}
    for broker in ("1", "2"):
        assert overrides(cluster, ConfigResourceType.BROKER, broker) == {}
