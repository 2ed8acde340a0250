"""A cluster with users, set up with the commands of docs/security.md: in the end no znode is open to strangers."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from tests.support.command_line import CliRunner, Result

DOCUMENT = Path(__file__).parents[3] / "docs/security.md"
DIGEST = "kafka:zookeeper-secret"
SETTINGS = {
    "zookeeper.set.acl": "true",
    "barnabas.zookeeper.digest": DIGEST,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
OPEN_TO_ALL = {"/kafka/consumers"}


@pytest.fixture
def coordinator() -> Iterator[str]:
    with LocalCluster(brokers=0) as running:
        yield running.zookeeper_connect


@pytest.fixture
def broker_file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    return path


def documented(command: str, connect: str, file: Path) -> list[str]:
    """Return the arguments of the document's only line that begins with this command, for this ZooKeeper and this file."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"barnabas {command} ")]
    if command == "configs":
        lines = [line for line in lines if "--zookeeper" in line]
    assert len(lines) == 1, lines
    line = lines[0].replace("HOST:PORT/PATH", connect).replace("broker.properties", str(file))
    assert str(file) in line, "the command does not say who is the creator of the znodes"
    return shlex.split(line)[1:]


def tool(*arguments: str) -> Result:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def client(connect: str, *credentials: str) -> KazooClient:
    opened = KazooClient(hosts=connect, auth_data=[("digest", each) for each in credentials])
    opened.start()
    return opened


def open_znodes(connect: str) -> set[str]:
    """Return the znodes below `/kafka` that anybody can change, or read if they have secrets, with the brokers' credentials."""
    broker = client(connect.partition("/")[0], DIGEST)
    found: set[str] = set()

    def look(path: str) -> None:
        secret = path.startswith(("/kafka/config/users", "/kafka/config/brokers", "/kafka/delegation_token/tokens"))
        for entry in broker.get_acls(path)[0]:
            if entry.id.scheme == "world" and (secret or entry.perms & ~1):
                found.add(path)
        for name in broker.get_children(path):
            look(f"{path}/{name}")

    try:
        look("/kafka")
    finally:
        broker.stop()
        broker.close()
    return found


def doctor(bootstrap: str) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(app, ["doctor", "--bootstrap-server", bootstrap, "--json"])
    return {each["check"]: each for each in json.loads(done.stdout)["findings"]}


def test_documents_commands_leave_no_znode_open(coordinator: str, broker_file: Path) -> None:
    connect = f"{coordinator}/kafka"
    done = tool(*documented("configs", connect, broker_file))
    assert "warning" not in done.output
    assert open_znodes(coordinator) == set()
    with LocalCluster(brokers=2, zookeeper=connect, config=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("orders", 2, 2)])["orders"].result(60)
        assert open_znodes(coordinator) == OPEN_TO_ALL
        assert "znodes-open" not in doctor(cluster.bootstrap)
        assert "can change" not in cluster.log(1)
        tool(*documented("zookeeper-security-migration", connect, broker_file))
        assert open_znodes(coordinator) == OPEN_TO_ALL
    stranger = client(coordinator)
    try:
        with pytest.raises(NoAuthError):
            stranger.delete("/kafka/config/users/broker")
        with pytest.raises(NoAuthError):
            stranger.get_children("/kafka/config/users")
    finally:
        stranger.stop()
        stranger.close()


def test_credential_without_a_brokers_file_is_warned_of_and_closed_by_the_first_broker(
    coordinator: str, broker_file: Path
) -> None:
    connect = f"{coordinator}/kafka"
    careless = documented("configs", connect, broker_file)
    at = careless.index("--command-config")
    done = tool(*careless[:at], *careless[at + 2 :])
    assert re.search(r"warning: every client of ZooKeeper can change /config/users.*--command-config", done.output)
    assert "/kafka/config/users/broker" in open_znodes(coordinator)
    with LocalCluster(brokers=1, zookeeper=connect, config=SETTINGS) as cluster:
        assert open_znodes(coordinator) == OPEN_TO_ALL
        assert "closed znodes that every client of ZooKeeper could change: /config/users" in cluster.log(1)
        assert "znodes-open" not in doctor(cluster.bootstrap)


def test_broker_beside_others_names_the_open_znodes_and_the_command_closes_them(
    coordinator: str, broker_file: Path
) -> None:
    connect = f"{coordinator}/kafka"
    users_only = {name: value for name, value in SETTINGS.items() if not name.startswith("zookeeper.set")}
    with LocalCluster(brokers=1, zookeeper=connect, config=users_only) as before:
        found = doctor(before.bootstrap)["znodes-open-with-acls"]
        assert found["severity"] == "warning"
        secured = SETTINGS | {"broker.id": "7"}
        with LocalCluster(brokers=1, zookeeper=connect, config=secured) as cluster:
            assert "zookeeper.set.acl=true, but every client of ZooKeeper can change /config/users" in cluster.log(1)
            assert "/kafka/config/users" in open_znodes(coordinator)
            found = doctor(cluster.bootstrap)["znodes-open"]
            assert found["severity"] == "error"
            command = re.search(r"barnabas (zookeeper-security-migration [^;]*);", found["advice"])
            assert command
            tool(*shlex.split(command.group(1).replace("BROKER.properties", str(broker_file))))
            assert open_znodes(coordinator) == OPEN_TO_ALL
            assert "znodes-open" not in doctor(cluster.bootstrap)


def test_restore_without_a_brokers_file_says_that_everybody_can_change_the_users(
    coordinator: str, broker_file: Path, tmp_path: Path
) -> None:
    tool(*documented("configs", f"{coordinator}/kafka", broker_file))
    with LocalCluster(brokers=1, zookeeper=f"{coordinator}/kafka", config=SETTINGS):
        pass
    backup = str(tmp_path / "metadata.json")
    of_brokers = ("--zookeeper-config", str(broker_file))
    tool("metadata", "backup", backup, "--zookeeper", f"{coordinator}/kafka", *of_brokers)
    done = tool("metadata", "restore", backup, "--zookeeper", f"{coordinator}/closed", *of_brokers)
    assert "warning" not in done.output
    done = tool("metadata", "restore", backup, "--zookeeper", f"{coordinator}/open")
    assert re.search(r"warning: every client of ZooKeeper can change /config/users.*--zookeeper-config", done.output)
