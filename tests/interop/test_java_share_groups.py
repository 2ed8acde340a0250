"""Share groups with Kafka 4.3.0's own consumer and tools."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.java_client import compiled, play
from tests.interop.kraft import java as java_command

COUNT = 200


def tool(main: str, *arguments: str, may_fail: bool = False) -> str:
    done = subprocess.run(
        java_command("256m", main, *arguments), capture_output=True, text=True, timeout=120, check=False
    )
    assert may_fail or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def cluster(java: None) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as cluster:
        yield cluster


def test_every_request_of_kafka_is_served_but_those_of_kraft(cluster: LocalCluster) -> None:
    out = tool("org.apache.kafka.tools.BrokerApiVersionsCommand", "--bootstrap-server", cluster.bootstrap)
    assert out.count("(id: ") == 3
    missing = set(re.findall(r"(\w+)\(\d+\): UNSUPPORTED", out))
    assert missing == {"DescribeQuorum", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter"}


def test_console_share_consumer_reads_each_record_once_and_the_tool_shows_no_lag(cluster: LocalCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    create = ("--create", "--topic", "jobs", "--partitions", "2", "--replication-factor", "3")
    tool("org.apache.kafka.tools.TopicCommand", *at, *create)
    of_group = ("--entity-type", "groups", "--entity-name", "workers")
    tool("kafka.admin.ConfigCommand", *at, "--alter", *of_group, "--add-config", "share.auto.offset.reset=earliest")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(COUNT):
        producer.produce("jobs", f"job-{number}", partition=number % 2)
    assert producer.flush(60) == 0

    read = tool(
        *("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *at, "--topic", "jobs", "--group", "workers"),
        *("--max-messages", str(COUNT), "--timeout-ms", "60000"),
    )
    found = [line for line in read.splitlines() if line.startswith("job-")]
    assert sorted(found) == sorted(f"job-{number}" for number in range(COUNT))

    groups = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    assert "workers" in tool(groups, *at, "--list")
    described = tool(groups, *at, "--describe", "--group", "workers")
    rows = [line.split() for line in described.splitlines() if line.startswith("workers")]
    assert {row[2] for row in rows} == {"0", "1"}
    assert "Empty" in tool(groups, *at, "--describe", "--group", "workers", "--state")

    tool(groups, *at, "--reset-offsets", "--group", "workers", "--topic", "jobs", "--to-earliest", "--execute")
    again = tool(
        *("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *at, "--topic", "jobs", "--group", "workers"),
        *("--max-messages", str(COUNT), "--timeout-ms", "60000", "--reject"),
    )
    assert sum(line.startswith("job-") for line in again.splitlines()) == COUNT
    tool(groups, *at, "--delete", "--group", "workers")
    assert "workers" not in tool(groups, *at, "--list")


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_share_consumer_walks_through_every_type_of_acknowledgement(cluster: LocalCluster, mode: str) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    tool("org.apache.kafka.tools.TopicCommand", *at, "--create", "--topic", "jobs", "--partitions", "1")
    of_group = ("--entity-type", "groups", "--entity-name", mode)
    tool("kafka.admin.ConfigCommand", *at, "--alter", *of_group, "--add-config", "share.auto.offset.reset=earliest")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(5):
        producer.produce("jobs", f"job-{number}")
    assert producer.flush(60) == 0
    play(compiled("4.3.0", "ShareClient"), cluster.bootstrap, "jobs", mode)
