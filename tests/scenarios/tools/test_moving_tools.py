"""`barnabas rebalance` and `barnabas brokers`, on a separate cluster: replicas really move."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.base.words import ConfigResourceType
from barnabas.cli import _throttles
from barnabas.cli.main import app
from barnabas.client.admin.configs import describe_configs
from barnabas.client.admin.partitions import alter_reassignments
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import Cluster, wait_until
from tests.support.command_line import CliRunner

PARTITIONS = 9


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Start a cluster for each test: topics of other tests would be balanced, too."""
    with Cluster(brokers=3) as cluster:
        yield cluster


def tool(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, [arguments[0], *arguments[1:], "--bootstrap-server", cluster.bootstrap])
    assert result.exit_code == status, result.output + result.stderr
    return result.stdout + result.stderr


@pytest.fixture
def crowded(cluster: Cluster) -> str:
    """Create a topic with records of which the third broker has no replica."""
    name = "crowded"
    assignment = ",".join(["1:2"] * PARTITIONS)
    tool(cluster, "topics", "--create", "--topic", name, "--replica-assignment", assignment)
    cluster.wait_for_isr(name, 2)
    for number in range(PARTITIONS):
        cluster.produce(name, [f"record {number}"], partition=number)
    return name


def replicas(cluster: Cluster, topic: str) -> Counter[int]:
    return Counter(broker for part in cluster.partitions(topic).values() for broker in part.replicas)


def test_rebalance_says_what_it_would_do_then_does_it(cluster: Cluster, crowded: str) -> None:
    preview = tool(cluster, "rebalance", "--measure", "0")
    assert "nothing was changed" in preview and "3       0 -> " in preview.replace("\t", " ")
    assert replicas(cluster, crowded)[3] == 0

    done = tool(cluster, "rebalance", "--measure", "0", "--execute", "--throttle", "50000000", "--batch", "4")
    assert "partitions done" in done
    # Brokers learn of the moves one after the other.
    wait_until(lambda: replicas(cluster, crowded)[3] >= PARTITIONS // 3, 60, what="replicas on broker 3")
    wait_until(lambda: replicas(cluster, crowded).total() == 2 * PARTITIONS, 60, what="two replicas of each")
    wait_until(
        lambda: len({part.leader for part in cluster.partitions(crowded).values()}) == 3, 60, what="leaders everywhere"
    )
    for number in range(PARTITIONS):
        assert [record.value for record in cluster.records(crowded, partition=number)] == [f"record {number}".encode()]
    assert throttles(cluster, crowded) == {}
    wait_until(lambda: "nothing to move" in tool(cluster, "rebalance", "--measure", "0"), 60, what="balance")


def throttles(cluster: Cluster, topic: str) -> dict[str, str | None]:
    async def ask() -> dict[str, str | None]:
        async with AsyncClient(client_config(cluster.bootstrap)) as client:
            kinds = [(ConfigResourceType.TOPIC, topic), *((ConfigResourceType.BROKER, str(id)) for id in (1, 2, 3))]
            names = {_throttles.LEADER_RATE, _throttles.FOLLOWER_RATE, _throttles.LEADER_REPLICAS}
            found = await describe_configs(client, kinds)
            return {
                entry.name: entry.value
                for entries in found.values()
                for entry in entries
                if entry.name in names and entry.value and entry.value != str(2**63 - 1)
            }

    return asyncio.run(ask())


def test_plan_that_was_begun_is_carried_on(cluster: Cluster, crowded: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    tool(cluster, "rebalance", "--measure", "0", "--plan", str(plan))
    targets = {
        TopicPartition(each["topic"], each["partition"]): each["replicas"]
        for each in json.loads(plan.read_text())["partitions"]
    }
    first = dict(sorted(targets.items())[: len(targets) // 2])

    async def begin() -> None:
        async with AsyncClient(client_config(cluster.bootstrap)) as client:
            await alter_reassignments(client, first)

    asyncio.run(begin())
    tool(cluster, "rebalance", "--measure", "0", "--execute", "--plan", str(plan))

    def is_carried_out() -> bool:
        now = cluster.partitions(crowded)
        return all(
            list(now[where.partition].replicas) == target for where, target in targets.items() if where.topic == crowded
        )

    wait_until(is_carried_out, 60, what="the plan")


def test_drained_broker_has_nothing_left(cluster: Cluster, crowded: str) -> None:
    said = tool(cluster, "brokers", "drain", "2")
    assert "nothing was changed" in said
    assert "it can be stopped" in tool(cluster, "brokers", "drain", "2", "--execute")
    wait_until(lambda: replicas(cluster, crowded)[2] == 0, 60, what="an empty broker 2")

    def listed() -> dict[int, int]:
        return {each["id"]: each["replicas"] for each in json.loads(tool(cluster, "brokers", "list", "--json"))}

    wait_until(lambda: listed()[2] == 0, 60, what="an empty broker 2 on the list")
    assert "there is no broker 7" in tool(cluster, "brokers", "drain", "7", status=1)
    assert "brokers would be left" in tool(cluster, "brokers", "drain", "1", "2", "--execute", status=1)
