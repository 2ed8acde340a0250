"""`barnabas link check`, with a cluster of ours as the source."""

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.tools.conftest import Tool


@pytest.fixture
def file(shared_cluster: LocalCluster, tmp_path: Path) -> str:
    path = tmp_path / "source.properties"
    path.write_text(f"bootstrap.servers={shared_cluster.bootstrap}\n")
    return str(path)


def test_check_shows_topics_sizes_and_obstacles(
    tool: Tool, process: Tool, new_topic: Callable[..., str], file: str
) -> None:
    """Source and target are the same cluster here: that is the only finding, beside the topic, which exists."""
    topic = new_topic(partitions=2, **{"cleanup.policy": "compact", "min.insync.replicas": "1"})
    process("console-producer", "--topic", topic, "--property", "parse.key=true", stdin="k\tone\nk\ttwo\n")
    document = tool("link", "check", "--config", file, "--topics", topic, "--groups", "none", "--json", status=1).json
    [found] = document["topics"]
    assert (found["name"], found["partitions"], found["records_max"]) == (topic, 2, 2)
    assert found["size_bytes"] > 0
    by_severity = {finding["check"]: finding["severity"] for finding in document["findings"]}
    assert {check for check, severity in by_severity.items() if severity == "error"} == {"same-cluster", "topic-exists"}
    assert by_severity["setting-left-behind"] == "note"
    [settings] = [row for row in document["carries"] if row["what"] == "topic settings"]
    assert settings["carries"] == "1 of 2"


def test_check_says_what_to_do_in_words(tool: Tool, file: str) -> None:
    outcome = tool("link", "check", "--config", file, "--topics", "there-is-no-such-topic", status=1)
    assert "no topic matches" in outcome.out and "do:" in outcome.out and outcome.lines[1].startswith("WHAT")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("link.throtle=1", "link.throtle"), ("security.protocol=SSSL", "security.protocol")],
)
def test_check_refuses_a_file_that_create_would_refuse(tool: Tool, tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "wrong.properties"
    path.write_text(f"bootstrap.servers=localhost:1\n{line}\n")
    assert complaint in tool("link", "check", "--config", str(path), status=1).err


def test_check_needs_a_file(tool: Tool) -> None:
    assert "--config" in tool("link", "check", status=1).err
