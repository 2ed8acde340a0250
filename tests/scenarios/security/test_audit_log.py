"""The audit log of a real broker: changes and denials with their user, and no client can forge a line."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import client_config
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.scenarios.security.secured import PLAIN_MODULE, bootstrap_of

FORGED = 'x"}\n{"event": "change", "principal": "User:admin"}\x1b[2J'


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("audit")) / "audit.log"


@pytest.fixture(scope="module")
def cluster(audit: Path) -> Iterator[LocalCluster]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLEAR://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clear.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_admin="a" user_eve="e";',
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "auto.create.topics.enable": "false",
        "barnabas.audit.log": str(audit),
        "barnabas.audit.log.max.bytes": "20000",
    }
    with LocalCluster(brokers=1, config=config) as running:
        yield running


def connect(cluster: LocalCluster, user: str, password: str) -> BlockingConnection:
    address = bootstrap_of(cluster, "CLEAR")
    host, port = address.split(":")
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{user}" password="{password}";',
    }
    return BlockingConnection(host, int(port), client_config(address, settings))


def create(connection: BlockingConnection, topic: str) -> int:
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    return (
        connection.request(CreateTopicsRequest(topics=[new], timeout_ms=10_000), CreateTopicsResponse)
        .topics[0]
        .error_code
    )


def entries(audit: Path) -> list[dict]:
    return [json.loads(line) for line in audit.read_text("ascii").splitlines()] if audit.exists() else []


def test_changes_and_denials_are_logged_once_and_cannot_be_forged(cluster: LocalCluster, audit: Path):
    with connect(cluster, "admin", "a") as admin, connect(cluster, "eve", "e") as eve:
        assert create(admin, "made") == 0
        assert create(eve, "not-made") != 0
        assert create(eve, FORGED) != 0
        eve.request(MetadataRequest(topics=None), MetadataResponse)  # a hidden topic was not requested by name
    wait_until(lambda: len(entries(audit)) >= 5, what="the audit log")
    logged = [(each["event"], each["principal"], each["request"], each["names"]) for each in entries(audit)]
    assert logged[0] == ("change", "User:admin", "CreateTopics", ["made"])
    assert ("denied", "User:eve", "CreateTopics", ["not-made"]) in logged
    assert ("denied", "User:eve", "CreateTopics", [FORGED]) in logged
    assert {principal for _, principal, _, _ in logged} == {"User:admin", "User:eve"}
    assert not [each for each in logged if each[2] == "Metadata"]
    denial = next(each for each in entries(audit) if each["event"] == "denied")
    assert (denial["host"], denial["operation"], denial["resource"]) == ("127.0.0.1", "CREATE", "TOPIC")
    refused = next(each for each in entries(audit) if each["event"] == "change" and each["principal"] == "User:eve")
    assert refused["errors"] == ["TOPIC_AUTHORIZATION_FAILED"]
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600
    log = cluster.log(1)
    line = (
        "Principal = User:eve is Denied operation = Create from host = 127.0.0.1 on resource = Topic:LITERAL:not-made"
    )
    assert line in log
    assert not any(each.startswith('{"event": "change"') for each in log.splitlines())


def test_files_rotate(cluster: LocalCluster, audit: Path):
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(100)]
    with connect(cluster, "eve", "e") as eve:
        for _ in range(5):
            eve.request(MetadataRequest(topics=names, allow_auto_topic_creation=False), MetadataResponse)
    wait_until(lambda: (audit.parent / "audit.log.1").exists(), what="a second file")
    for path in audit.parent.iterdir():
        assert all(json.loads(line) for line in path.read_text("ascii").splitlines())
