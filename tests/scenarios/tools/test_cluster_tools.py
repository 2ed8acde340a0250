"""Tools that look at, and change, the cluster as a whole."""

import json
from collections.abc import Callable
from pathlib import Path

from barnabas.testing import wait_until
from tests.scenarios.tools.conftest import Tool


def test_cluster_id_is_printed(tool: Tool) -> None:
    line = tool("cluster", "cluster-id").out
    assert line.startswith("Cluster ID: ")
    assert tool("cluster", "cluster-id", "--json").json["clusterId"] == line.split()[-1]


def test_api_versions_of_each_broker(tool: Tool) -> None:
    lines = tool("broker-api-versions").lines
    assert sum(" -> (" in line for line in lines) == 3
    assert any(line.startswith("\tMetadata(3): ") and "[usable: " in line for line in lines)


def test_log_directories_hold_the_replicas(tool: Tool, process: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    process("console-producer", "--topic", topic, stdin="x" * 1000)
    prose, received, document = tool("log-dirs", "--describe", "--topic-list", topic).lines
    assert prose == "Querying brokers for log directories information"
    assert received == "Received log directory information from brokers 1,2,3"
    brokers = json.loads(document)["brokers"]
    assert [entry["broker"] for entry in brokers] == [1, 2, 3]
    found = [part for entry in brokers for directory in entry["logDirs"] for part in directory["partitions"]]
    assert len(found) == 6
    assert max(part["size"] for part in found) > 1000
    assert "do not exist from --broker-list: 9" in tool("log-dirs", "--describe", "--broker-list", "9", status=1).err


def test_replicas_move_and_preferred_leaders_are_elected(
    tool: Tool, topic: str, tmp_path: Path, wait_for_topic: Callable[[str, int], None]
) -> None:
    tool("topics", "--create", "--topic", topic, "--replica-assignment", "1:2,2:3")
    wait_for_topic(topic, 2)
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": 0, "replicas": [3, 1]},
                    {"topic": topic, "partition": 1, "replicas": [1, 2, 3]},
                ],
            }
        )
    )
    started = tool("reassign-partitions", "--execute", "--reassignment-json-file", str(plan), "--throttle", "10000000")
    assert started.lines[0] == "Current partition replica assignment"
    assert started.lines[-1] == f"Successfully started partition reassignments for {topic}-0,{topic}-1"
    assert "The inter-broker throttle limit was set to 10000000 B/s" in started.lines

    def complete() -> bool:
        text = tool(
            "reassign-partitions", "--verify", "--reassignment-json-file", str(plan), "--preserve-throttles"
        ).out
        return text.count("is completed.") == 2

    wait_until(complete)
    cleared = tool("reassign-partitions", "--verify", "--reassignment-json-file", str(plan)).lines
    assert "Clearing broker-level throttles on brokers 1,2,3" in cleared
    assert f"Clearing topic-level throttles on topic {topic}" in cleared
    wait_until(lambda: "throttled" not in tool("topics", "--describe", "--topic", topic).out)
    described = tool("topics", "--describe", "--topic", topic, "--json").json[0]
    assert [part["replicas"] for part in described["partitions"]] == [[3, 1], [1, 2, 3]]
    assert tool("reassign-partitions", "--list").out == "No partition reassignments found.\n"
    # The leader has been moved to the new preferred replica already, or is now.
    tool("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    again = tool("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert again.out == f"Valid replica already elected for partitions {topic}-0\n"
    wait_until(lambda: tool("topics", "--describe", "--topic", topic, "--json").json[0]["partitions"][0]["leader"] == 3)


def test_reassignment_that_cannot_be_is_refused(tool: Tool, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic()
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [9]}]}))
    refused = tool("reassign-partitions", "--execute", "--reassignment-json-file", str(plan), status=1)
    assert refused.err == "error: Unknown broker id 9\n"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 7, "replicas": [1]}]}))
    refused = tool("reassign-partitions", "--execute", "--reassignment-json-file", str(plan), status=1)
    assert f"Unable to find partition: {topic}-7" in refused.err
    cancelled = tool("reassign-partitions", "--cancel", "--reassignment-json-file", str(plan))
    assert cancelled.lines[0] == "None of the specified partition reassignments are active."


def test_proposal_can_be_carried_out(tool: Tool, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=3, replicas=2)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    lines = tool(
        "reassign-partitions", "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"
    ).lines
    assert [lines[0], lines[3]] == [
        "Current partition replica assignment",
        "Proposed partition reassignment configuration",
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(lines[4])
    tool("reassign-partitions", "--execute", "--reassignment-json-file", str(plan))
    wait_until(
        lambda: (
            "is still in progress"
            not in tool("reassign-partitions", "--verify", "--reassignment-json-file", str(plan)).out
        )
    )
    described = tool("topics", "--describe", "--topic", topic, "--json").json[0]
    assert [part["replicas"] for part in described["partitions"]] == [
        part["replicas"] for part in json.loads(lines[4])["partitions"]
    ]


def test_transactions_are_listed_and_described(tool: Tool, process: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    name = f"tx-{topic}"
    process(
        "producer-perf-test", "--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1",
        "--transactional-id", name,
    )  # fmt: skip
    header, *_ = tool("transactions", "list").lines
    assert header.split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    wait_until(
        lambda: any(line.split()[::3] == [name, "CompleteCommit"] for line in tool("transactions", "list").lines)
    )
    described = tool("transactions", "describe", "--transactional-id", name, "--json").json[0]
    assert described["TransactionState"] == "CompleteCommit"
    producers = tool("transactions", "describe-producers", "--topic", topic, "--partition", "0", "--json").json
    assert producers[0]["ProducerId"] == described["ProducerId"]
    assert producers[0]["CurrentTransactionStartOffset"] == "None"
    assert tool("transactions", "find-hanging", "--topic", topic, "--json").json == []
    assert "TRANSACTIONAL_ID_NOT_FOUND" in tool("transactions", "describe", "--transactional-id", "nix", status=1).err
    committed = process(
        "console-consumer", "--topic", topic, "--from-beginning", "--isolation-level", "read_committed",
        "--max-messages", "10",
    )  # fmt: skip
    assert len(committed.lines) == 10


def test_cluster_without_links_says_so(tool: Tool) -> None:
    for action in ("list", "describe"):
        shown = tool("link", action)
        assert (shown.out, shown.err) == ("", "there are no links; `barnabas link create` makes one\n")
    assert tool("link", "list", "--json").json == []
