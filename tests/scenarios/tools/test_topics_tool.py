"""`barnabas topics` and `barnabas configs`."""

import re
from collections.abc import Callable

from barnabas.testing import wait_until
from tests.scenarios.tools.conftest import Tool


def test_topic_is_created_listed_described_grown_and_deleted(
    tool: Tool, topic: str, wait_for_topic: Callable[[str, int], None]
) -> None:
    created = tool("topics", "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    assert created.out == f"Created topic {topic}.\n"
    wait_for_topic(topic, 2)
    assert topic in tool("topics", "--list").lines
    first, *partitions = tool("topics", "--describe", "--topic", topic).lines
    assert re.fullmatch(
        rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 2\tReplicationFactor: 3\tConfigs: \S*", first
    )
    assert len(partitions) == 2
    for index, line in enumerate(partitions):
        assert re.fullmatch(
            rf"\tTopic: {topic}\tPartition: {index}\tLeader: [123]\tReplicas: [123],[123],[123]\tIsr: [123,]+"
            r"\tElr: \tLastKnownElr: ",
            line,
        )
    tool("topics", "--alter", "--topic", topic, "--partitions", "4")
    wait_for_topic(topic, 4)
    tool("topics", "--delete", "--topic", topic)
    wait_until(lambda: topic not in tool("topics", "--list").lines)


def test_topic_that_exists_or_does_not_is_an_error_unless_that_is_fine(tool: Tool, topic: str) -> None:
    assert "does not exist as expected" in tool("topics", "--describe", "--topic", topic, status=1).err
    assert tool("topics", "--describe", "--topic", topic, "--if-exists").out == ""
    assert tool("topics", "--delete", "--topic", topic, "--if-exists").out == ""
    tool("topics", "--create", "--topic", topic)
    assert "TOPIC_ALREADY_EXISTS" in tool("topics", "--create", "--topic", topic, status=1).err
    assert tool("topics", "--create", "--topic", topic, "--if-not-exists").out == ""


def test_replicas_can_be_placed_by_hand(tool: Tool, topic: str, wait_for_topic: Callable[[str, int], None]) -> None:
    tool("topics", "--create", "--topic", topic, "--replica-assignment", "3:1,2:3")
    wait_for_topic(topic, 2)
    described = tool("topics", "--describe", "--topic", topic, "--json").json[0]
    assert [part["replicas"] for part in described["partitions"]] == [[3, 1], [2, 3]]
    tool("topics", "--alter", "--topic", topic, "--partitions", "3", "--replica-assignment", "3:1,2:3,1:2")
    wait_for_topic(topic, 3)
    described = tool("topics", "--describe", "--topic", topic, "--json").json[0]
    assert described["partitions"][2]["replicas"] == [1, 2]


def test_broker_refuses_what_cannot_be(tool: Tool, topic: str) -> None:
    refused = tool("topics", "--create", "--topic", topic, "--replication-factor", "9", status=1)
    assert refused.err.startswith("error: INVALID_REPLICATION_FACTOR")
    assert len(refused.err.splitlines()) == 1
    assert "INVALID_TOPIC_EXCEPTION" in tool("topics", "--create", "--topic", "a b", status=1).err
    assert "INVALID_CONFIG" in tool("topics", "--create", "--topic", topic, "--config", "a=b", status=1).err


def test_only_topics_with_settings_of_their_own(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="1234")
    lines = tool("topics", "--describe", "--topics-with-overrides").lines
    assert any(f"Topic: {topic}\t" in line and "retention.ms=1234" in line for line in lines)
    assert all(not line.startswith("\t") for line in lines)


def test_healthy_cluster_has_no_partition_in_trouble(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    for trouble in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        wait_until(lambda trouble=trouble: tool("topics", "--describe", "--topic", topic, trouble).out == "")


def test_regular_expression_chooses_topics(tool: Tool, topic: str) -> None:
    for suffix in ("a", "b"):
        tool("topics", "--create", "--topic", f"{topic}-{suffix}")
    wait_until(lambda: tool("topics", "--list", "--topic", f"{topic}.*").lines == [f"{topic}-a", f"{topic}-b"])
    tool("topics", "--delete", "--topic", f"{topic}-[ab]")
    wait_until(lambda: tool("topics", "--list", "--topic", f"{topic}.*").out == "\n")


def test_topic_settings_are_changed_and_taken_back(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    added = tool(
        "configs", "--alter", "--topic", topic, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]"
    )
    assert added.out == f"Completed updating config for topic {topic}.\n"
    wait_until(lambda: len(tool("configs", "--describe", "--topic", topic).lines) == 3)
    head, *settings = tool("configs", "--describe", "--topic", topic).lines
    assert head == f"Dynamic configs for topic {topic} are:"
    assert [line.split()[0] for line in settings] == ["cleanup.policy=compact,delete", "retention.ms=5000"]
    assert "sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000" in settings[1]
    tool("configs", "--alter", "--topic", topic, "--delete-config", "retention.ms")
    wait_until(lambda: len(tool("configs", "--describe", "--topic", topic).lines) == 2)
    refused = tool("configs", "--alter", "--topic", topic, "--delete-config", "retention.ms", status=1)
    assert refused.err == "error: Invalid config(s): retention.ms\n"
    assert (
        "INVALID_CONFIG" in tool("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=x", status=1).err
    )


def test_all_settings_are_shown_when_asked_for(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    described = tool("configs", "--describe", "--topic", topic, "--all", "--json").json[0]["configs"]
    by_name = {entry["name"]: entry for entry in described}
    assert by_name["cleanup.policy"]["value"] == "delete"
    assert by_name["cleanup.policy"]["source"] == "DEFAULT_CONFIG"
    assert len(by_name) > 25


def test_broker_settings_by_default_and_for_one(tool: Tool) -> None:
    tool("configs", "--alter", "--broker-defaults", "--add-config", "log.segment.delete.delay.ms=12345")
    tool("configs", "--alter", "--broker", "2", "--add-config", "log.segment.delete.delay.ms=23456")
    try:
        brokers = ("configs", "--describe", "--entity-type", "brokers")
        wait_until(lambda: "log.segment.delete.delay.ms=12345" in tool(*brokers, "--entity-default").out)
        own = "  log.segment.delete.delay.ms=23456 sensitive=false"
        wait_until(lambda: any(line.startswith(own) for line in tool(*brokers, "--entity-name", "2").lines))
    finally:
        tool("configs", "--alter", "--broker", "2", "--delete-config", "log.segment.delete.delay.ms")
        tool("configs", "--alter", "--broker-defaults", "--delete-config", "log.segment.delete.delay.ms")
