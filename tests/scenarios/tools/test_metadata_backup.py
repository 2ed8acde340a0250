"""A cluster's metadata in a file, and back: through znodes, where brokers find their logs again, and through brokers."""

import copy
import json
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.client.admin.groups import CommittedOffset, commit_offsets
from barnabas.testing import Cluster
from tests.support.command_line import CliRunner

Command = Callable[..., list[str]]
SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.replication.factor": "1",
    "log.segment.bytes": "1048576",
}
RECORDS = ["coffee", "tea", "milk"]


@pytest.fixture(scope="module")
def command() -> Command:
    """`command("topics", "--list")` returns the printed lines."""

    def run(*arguments: str, status: int = 0) -> list[str]:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result.stdout.splitlines()

    return run


class Lost:
    """A cluster that has stopped for good: its log directories, and a backup of its metadata."""

    def __init__(self, folder: Path, zookeeper: str, command: Command) -> None:
        self.data, self.file, self.secret = folder / "data", folder / "backup.json", folder / "secret"
        self.secret.write_text("correct horse\n")
        with Cluster(
            brokers=1, data=self.data, zookeeper=f"{zookeeper}/{uuid.uuid4().hex}", config=SETTINGS
        ) as cluster:
            self.ids = fill(cluster, command)
            at = ["--bootstrap-server", cluster.bootstrap, "--zookeeper", cluster.zookeeper_connect]
            self.said = command(
                "metadata", "backup", str(self.file), *at, "--offsets", "--secret-file", str(self.secret)
            )
            by_brokers = folder / "by-brokers.json"
            self.said_by_brokers = command("metadata", "backup", str(by_brokers), *at[:2], "--offsets")
            self.by_brokers = json.loads(by_brokers.read_text())
        self.document: dict[str, Any] = json.loads(self.file.read_text())


def fill(cluster: Cluster, command: Command) -> dict[str, str]:
    """Create something of each kind. Return the ids of topics."""
    at = ("--bootstrap-server", cluster.bootstrap)
    cluster.create_topic("orders", partitions=3, config={"retention.ms": 7200000, "cleanup.policy": "compact"})
    cluster.create_topic("plain")
    cluster.produce("plain", RECORDS)
    where = TopicPartition("plain", 0)
    committed = cluster.ask(lambda client: commit_offsets(client, "billing", {where: CommittedOffset(len(RECORDS))}))
    assert committed == {where: ErrorCode.NONE}
    acl = ("--add", "--allow-principal", "User:alice", "--operation", "Read")
    command("acls", *at, *acl, "--topic", "orders")
    command("acls", *at, *acl, "--topic", "pre-", "--resource-pattern-type", "prefixed")
    alter = ("configs", *at, "--alter")
    command(
        *alter, "--entity-type", "users", "--entity-name", "alice", "--add-config", "SCRAM-SHA-256=[password=secret]"
    )
    command(*alter, "--entity-type", "users", "--entity-name", "alice", "--add-config", "producer_byte_rate=1048576")
    command(*alter, "--entity-type", "users", "--entity-default", "--add-config", "request_percentage=50.5")
    command(*alter, "--entity-type", "ips", "--entity-name", "127.0.0.9", "--add-config", "connection_creation_rate=7")
    command(*alter, "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=3600000")
    command(*alter, "--entity-type", "brokers", "--entity-name", "1", "--add-config", "message.max.bytes=2097152")
    return topic_ids(cluster, command)


def topic_ids(cluster: LocalCluster, command: Command) -> dict[str, str]:
    described = command("topics", "--bootstrap-server", cluster.bootstrap, "--describe", "--json")
    return {each["topic"]: each["topicId"] for each in json.loads("\n".join(described))}


@pytest.fixture(scope="module")
def lost(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory, command: Command) -> Iterator[Lost]:
    yield Lost(tmp_path_factory.mktemp("lost"), shared_cluster.zookeeper_connect, command)


def test_backup_holds_everything_and_its_owner_alone_can_read_it(lost: Lost) -> None:
    assert stat.S_IMODE(lost.file.stat().st_mode) == 0o600
    document = lost.document
    assert document["version"] == 1
    topics = {each["name"]: each for each in document["topics"]}
    assert {"orders", "plain", "__consumer_offsets"} <= topics.keys()
    assert topics["orders"]["settings"] == {"retention.ms": "7200000", "cleanup.policy": "compact"}
    assert [each["replicas"] for each in topics["orders"]["partitions"]] == [[1], [1], [1]]
    assert topics["orders"]["id"] == lost.ids["orders"]
    assert {each["name"] for each in document["acls"]} == {"orders", "pre-"}
    assert document["brokers"] == {"<default>": {"log.retention.ms": "3600000"}, "1": {"message.max.bytes": "2097152"}}
    assert {"entity": {"user": None}, "values": {"request_percentage": 50.5}} in document["quotas"]
    assert len(document["quotas"]) == 3
    assert document["groups"]["billing"][0]["offset"] == len(RECORDS)
    assert document["producer_id_next"] >= 1000
    assert "sealed" in document["scram"] and "alice" not in json.dumps(document["scram"])
    assert "1 SCRAM verifiers" in lost.said[0]


def test_backup_through_brokers_lists_what_they_do_not_reveal(lost: Lost) -> None:
    assert lost.by_brokers["scram"] == {} and lost.by_brokers["producer_id_next"] is None
    assert any("1 SCRAM verifiers of 1 users" in line for line in lost.said_by_brokers)
    for part in ("topics", "brokers", "quotas", "acls", "groups"):
        assert lost.by_brokers[part] == lost.document[part], part


def test_brokers_find_their_logs_again_after_zookeeper_was_lost(
    lost: Lost, shared_cluster: LocalCluster, tmp_path: Path, command: Command
) -> None:
    fresh = f"{shared_cluster.zookeeper_connect}/{uuid.uuid4().hex}"
    restore = ("metadata", "restore", str(lost.file), "--zookeeper", fresh, "--secret-file", str(lost.secret))
    previewed = command(*restore, "--dry-run")
    assert any(line.startswith("would restore topic orders: 3 partitions") for line in previewed)
    assert command(*restore, "--dry-run") == previewed  # the dry run changed nothing
    done = command(*restore)
    assert done[-1].startswith(f"{len(done) - 1}/{len(done) - 1} topic ")
    assert command(*restore) == ["nothing to do: everything of the backup is here"]

    with Cluster(brokers=1, data=lost.data, zookeeper=fresh, config=SETTINGS) as cluster:
        cluster.wait_until_led("plain")
        assert topic_ids(cluster, command) == lost.ids
        cluster.produce("plain", ["more"])
        cluster.assert_records("plain", [*RECORDS, "more"])
        again = tmp_path / "again.json"
        at = ("--bootstrap-server", cluster.bootstrap, "--zookeeper", fresh, "--offsets")
        command("metadata", "backup", str(again), *at)
    found = json.loads(again.read_text())
    for part in ("cluster_id", "brokers", "quotas", "acls"):
        assert found[part] == lost.document[part], part
    assert found["groups"]["billing"] == lost.document["groups"]["billing"]  # from the surviving __consumer_offsets
    assert found["scram"]["alice"]["SCRAM-SHA-256"].startswith("salt=")
    assert found["producer_id_next"] > lost.document["producer_id_next"] + 1_000_000
    epochs = [each["leader_epoch"] for topic in found["topics"] for each in topic["partitions"]]
    assert min(epochs) > 1000  # above the epochs in all logs


def test_another_cluster_gets_the_metadata_through_its_brokers(lost: Lost, tmp_path: Path, command: Command) -> None:
    with Cluster(brokers=1, config=SETTINGS) as cluster:
        at = ("--bootstrap-server", cluster.bootstrap, "--offsets")
        restore = ("metadata", "restore", str(lost.file), *at, "--secret-file", str(lost.secret))
        done = command(*restore)
        assert done[0] == "note: 1 SCRAM verifiers of 1 users are left out: they need --zookeeper"
        assert command(*restore)[-1] == "nothing to do: everything of the backup is here"
        again = tmp_path / "again.json"
        command("metadata", "backup", str(again), *at)
        found = json.loads(again.read_text())
        for part in ("brokers", "quotas", "acls"):
            assert found[part] == lost.document[part], part
        assert found["groups"]["billing"][0]["offset"] == len(RECORDS)
        settings = {each["name"]: each["settings"] for each in found["topics"]}
        assert settings["orders"] == {"retention.ms": "7200000", "cleanup.policy": "compact"}

        # A different topic of the same name prevents the restore, and nothing is changed.
        other = tmp_path / "other.json"
        document = copy.deepcopy(lost.document) | {
            "scram": {},
            "quotas": [{"entity": {"user": "bob"}, "values": {"producer_byte_rate": 1.0}}],
        }
        for topic in document["topics"]:
            if topic["name"] == "orders":
                topic["partitions"] = topic["partitions"][:2]
        other.write_text(json.dumps(document))
        said = command("metadata", "restore", str(other), *at, status=1)
        assert "in the way: topic orders has 3 partitions, in the backup 2" in said
        described = command("configs", *at[:2], "--describe", "--entity-type", "users", "--entity-name", "bob")
        assert described == []


def test_running_cluster_gets_topics_with_their_ids_through_znodes(
    lost: Lost, tmp_path: Path, command: Command
) -> None:
    with Cluster(brokers=2, config=SETTINGS) as cluster:
        at = ("--zookeeper", cluster.zookeeper_connect)
        command("metadata", "restore", str(lost.file), *at, "--without-scram", "--spread")
        cluster.wait_until_led("orders")
        cluster.produce("orders", [("k", "v")])
        ids = topic_ids(cluster, command)
        assert ids["orders"] == lost.ids["orders"]


def test_mistakes_are_reported_before_anything_is_changed(lost: Lost, tmp_path: Path, command: Command) -> None:
    nowhere = ("--zookeeper", "127.0.0.1:1")
    for arguments in (
        ("backup", "f"),
        ("backup", "f", *nowhere, "--offsets"),
        ("backup", "f", *nowhere, "--dry-run"),
        ("restore", str(lost.file), *nowhere),  # the secrets are sealed
        ("restore", str(tmp_path / "missing"), *nowhere),
    ):
        assert command("metadata", *arguments, status=1) == []
