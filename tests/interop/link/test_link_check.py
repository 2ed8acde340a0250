"""`barnabas link check` on Kafka 4.3.0 in KRaft mode: it finds everything, and prints what happens to it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.kraft import KraftCluster, java

Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Run the check; return the exit status and the document."""
    folder = tmp_path_factory.mktemp("check")

    def run(source: KraftCluster, *arguments: str, user: str = "") -> tuple[int, dict[str, Any]]:
        file = folder / "source.properties"
        settings = source.login(user) if user else {"bootstrap.servers": source.bootstrap}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # A process of its own: after a browser test this one has a running event loop.
        command = [sys.executable, "-m", "barnabas", "link", "check", "--config", str(file), "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def tool(main: str, *arguments: str) -> None:
    """Run one of Kafka's tools."""
    done = subprocess.run(java("256m", main, *arguments), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def furnished(kraft_cluster: KraftCluster) -> Iterator[str]:
    """Yield the name of a topic in a cluster with groups of every protocol, users, quotas, ACLs and subscriptions."""
    admin = AdminClient({"bootstrap.servers": kraft_cluster.bootstrap})
    topics = [NewTopic("check-orders", 2, 3, config={"cleanup.policy": "compact"}), NewTopic("check-closed", 1, 3)]
    for made in admin.create_topics(topics).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": kraft_cluster.bootstrap})
    for number in range(100):
        producer.produce("check-orders", b"value", f"k{number}")
    assert producer.flush(60) == 0
    _commit(kraft_cluster, "check-classic", "classic")
    _commit(kraft_cluster, "check-modern", "consumer")
    share = ["--topic", "check-orders", "--group", "check-share", "--timeout-ms", "8000"]
    tool("org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", kraft_cluster.bootstrap, *share)
    configs = ("kafka.admin.ConfigCommand", "--bootstrap-server", kraft_cluster.bootstrap, "--alter")
    tool(*configs, "--entity-type", "users", "--entity-name", "ann", "--add-config", "SCRAM-SHA-256=[password=secret]")
    tool(*configs, "--entity-type", "users", "--entity-name", "ann", "--add-config", "producer_byte_rate=1000")
    metrics = (
        "--entity-type",
        "client-metrics",
        "--entity-name",
        "lags",
        "--add-config",
        "interval.ms=10000,metrics=a.",
    )
    tool(*configs, *metrics)
    allowed = [("check-closed", AclOperation.DESCRIBE), ("check-orders", AclOperation.READ)]
    entries = [
        AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, "User:linker", "*", what, AclPermissionType.ALLOW
        )
        for name, what in allowed
    ]
    for done in admin.create_acls(entries).values():
        done.result(60)
    for node in kraft_cluster.ids:
        # Nodes apply changes in order: a node with the last one has all.
        wait_until(lambda node=node: _acls_at(kraft_cluster, node) == 2, what=f"node {node} knows the entries")
    yield "check-orders"
    for made in admin.delete_topics(["check-orders"]).values():
        made.result(60)


def _acls_at(source: KraftCluster, node: int) -> int:
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = AdminClient({"bootstrap.servers": source.address(node)})
    return len(admin.describe_acls(every).result(60))


def _commit(source: KraftCluster, group: str, protocol: str) -> None:
    settings = {"bootstrap.servers": source.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe(["check-orders"])
        seen = 0

        def reads() -> bool:
            nonlocal seen
            seen += len([each for each in consumer.consume(100, 0.5) if each.error() is None])
            return seen >= 100

        wait_until(reads, what=f"{group} reads")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_check_shows_what_is_mirrored_from_kafka_in_kraft_mode(
    source: KraftCluster, furnished: str, check: Check
) -> None:
    status, document = check(source, "--topics", furnished)
    checks = {finding["check"]: finding for finding in document["findings"]}
    assert "KRaft" in document["source"]["kind"]
    assert document["source"]["features"]["share.version"] == 1
    assert [(topic["name"], topic["partitions"], topic["records_max"]) for topic in document["topics"]] == [
        (furnished, 2, 100)
    ]
    assert document["size_bytes"] > 0
    # The user ann, the share group and the quota are not mirrored; nothing prevents the link.
    assert status == 3
    assert {"share-groups", "scram-users", "quotas"} <= checks.keys()
    assert not [finding for finding in document["findings"] if finding["severity"] == "error"]
    assert "check-share" in checks["share-groups"]["message"]
    assert "check-modern" in checks["consumer-groups"]["message"]
    assert "ann" in checks["scram-users"]["message"]
    assert "lags" in checks["client-metrics"]["message"]
    assert "check-closed" in checks["acls"]["message"]


def test_check_names_the_rights_that_its_user_lacks(source: KraftCluster, furnished: str, check: Check) -> None:
    status, document = check(source, "--topics", "check-.*", user="linker")
    missing = {f["subject"]: f["message"] for f in document["findings"] if f["check"] == "missing-right"}
    assert status == 1
    assert "READ" in missing["topic check-closed"]
    assert "DESCRIBE_CONFIGS" in missing[f"topic {furnished}"] and "READ" not in missing[f"topic {furnished}"]
    assert "DESCRIBE" in missing["cluster"]
    assert "ACLs" in {f["subject"] for f in document["findings"] if f["check"] == "not-answered"}


def test_check_compares_with_the_cluster_that_it_is_for(
    source: KraftCluster, mirror: LocalCluster, furnished: str, check: Check, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": mirror.bootstrap})
    admin.create_topics([NewTopic(furnished, 1, 1)])[furnished].result(60)
    try:
        arguments = ("--topics", furnished, "--bootstrap-server", mirror.bootstrap)
        status, document = check(source, *arguments)
        assert status == 1
        assert "topic-exists" in {finding["check"] for finding in document["findings"]}
    finally:
        admin.delete_topics([furnished])[furnished].result(60)
