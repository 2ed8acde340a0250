"""`barnabas rebalance` and `barnabas brokers`, on a separate cluster: replicas really move."""

import asyncio
import functools
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaError, Message, Producer

from barnabas.base.ids import TopicPartition
from barnabas.base.words import ConfigResourceType
from barnabas.cli import _throttles
from barnabas.cli._reassign_plan import Move
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
    return tool_at(cluster.bootstrap, *arguments, status=status)


@pytest.fixture
def crowded(cluster: Cluster) -> str:
    """Create a topic with records of which the third broker has no replica."""
    name = "crowded"
    assignment = ",".join(["1:2"] * PARTITIONS)
    tool(cluster, "topics", "--create", "--topic", name, "--replica-assignment", assignment)
    cluster.wait_until_led(name)
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


class CountedLoad:
    """Writes numbers to a topic with acks=all, and knows which were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "log_level": 0, "enable.idempotence": True}
        )
        self._is_over = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def _write(self) -> None:
        for number in itertools.count():
            if self._is_over.wait(0.005):
                break
            self._producer.produce(self._topic, str(number), on_delivery=functools.partial(self._delivered, number))
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(number)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._writer.join(90)


def test_broker_is_replaced_and_moves_are_stopped_while_every_record_is_kept(cluster: Cluster) -> None:
    cluster.create_topic("counted", partitions=4, replication_factor=3, config={"min.insync.replicas": "2"})
    with CountedLoad(cluster, "counted") as load:
        cluster.kill(3)
        for folder in cluster.log_dirs(3):
            shutil.rmtree(folder)
        away = cluster.address(1)
        wait_until_gone(cluster, 3)
        assert "is not in sync after 1 s" in tool_at(away, "brokers", "replace", "3", "--timeout", "1", status=1)
        assert "waiting for broker 4" in tool_at(away, "brokers", "add", "4", "--timeout", "1", status=1)
        command = [sys.executable, "-m", "barnabas", "brokers", "replace", "3", "--throttle", "50000000"]
        command += ["--bootstrap-server", away]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as replacing:
            cluster.start_broker(3)
            said, _ = replacing.communicate(timeout=120)
        assert "broker 3 is in sync with all 4 partitions that it has" in said
        # The tool has asked one broker; the others learn of the same ISRs a moment later.
        wait_until(lambda: all(3 in part.isr for part in cluster.partitions("counted").values()), 60, what="broker 3")
        assert throttles(cluster, "counted") == {}
        stop_a_move(cluster)
    written = Counter(
        int(record.value) for number in range(4) for record in cluster.records("counted", partition=number)
    )
    assert load.acknowledged <= written.keys()
    assert set(written.values()) == {1}


def stop_a_move(cluster: Cluster) -> None:
    """Begin a move that never ends, and stop it."""
    cluster.create_topic("stuck", partitions=1, replication_factor=1)
    [before] = cluster.partitions("stuck").values()
    other = next(broker for broker in cluster.broker_ids if broker not in before.replicas)
    # More than one fetch brings, which passes before the throttle counts it.
    cluster.produce("stuck", [b"x" * 100_000] * 40)
    where = TopicPartition("stuck", 0)

    move = Move(frozenset(before.replicas), frozenset({other}))

    async def limit() -> None:
        async with AsyncClient(client_config(cluster.bootstrap)) as client:
            await _throttles.limit_moves(client, {where: move}, 1)

    async def begin() -> None:
        async with AsyncClient(client_config(cluster.bootstrap)) as client:
            await alter_reassignments(client, {where: [other]})

    asyncio.run(limit())
    wait_until(lambda: len(throttles(cluster, "stuck")) == 3, 60, what="the throttles")
    asyncio.run(begin())
    assert "moves that were cancelled: 1" in tool(cluster, "rebalance", "--stop")
    wait_until(lambda: cluster.partitions("stuck")[0].replicas == before.replicas, 60, what="the former replicas")
    assert throttles(cluster, "stuck") == {}


def test_broker_with_the_only_records_is_not_replaced(cluster: Cluster) -> None:
    tool(cluster, "topics", "--create", "--topic", "alone", "--replica-assignment", "3")
    assert "no partition has a replica on broker 2" in tool(cluster, "brokers", "replace", "2", status=1)
    cluster.kill(3)
    away = cluster.address(1)
    wait_until_gone(cluster, 3)
    refused = tool_at(away, "brokers", "replace", "3", status=1)
    assert "only broker 3 has all records of alone-0" in refused
    assert "not both" in tool_at(away, "rebalance", "--stop", "--execute", status=1)


def tool_at(bootstrap: str, *arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, [arguments[0], *arguments[1:], "--bootstrap-server", bootstrap])
    assert result.exit_code == status, result.output + result.stderr
    return result.stdout + result.stderr


def wait_until_gone(cluster: Cluster, broker: int) -> None:
    def is_gone() -> bool:
        result = CliRunner().invoke(app, ["brokers", "list", "--bootstrap-server", cluster.address(1)])
        return result.exit_code == 0 and f"{broker}       down" in result.stdout

    wait_until(is_gone, 60, what=f"the end of broker {broker}")
