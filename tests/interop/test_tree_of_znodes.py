"""The tree in ZooKeeper that a cluster of ours leaves for the operations that made the golden one is Kafka's, byte for byte,
but for ids, times, ports, and the features by which brokers of ours know each other."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient

from barnabas.testing import wait_until
from tests.interop.kinds import OURS, MixedCluster
from tests.interop.load import GroupReader

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/kafka-3.9.1/znodes.json").read_text())
FOR_EVER = {"retention.ms": "-1", "segment.ms": "99999999999999"}
INTERNAL = ("__consumer_offsets", "__transaction_state")
SECURITY = ("/config/users/alice", "/kafka-acl", "/config/changes/config_change_0000000001")
#: Whatever differs from one run to the next.
VARYING = [
    (re.compile(r'"features":\{.*\},"listener_security'), '"features":F,"listener_security'),
    (re.compile(r'"topic_id":"[^"]{22}"'), '"topic_id":"ID"'),
    (re.compile(r'"timestamp":"\d+"'), '"timestamp":"T"'),
    (re.compile(r"127\.0\.0\.1:\d+"), "HOST"),
    (re.compile(r'"port":\d+'), '"port":P'),
    (re.compile(r'"id":"[^"]{22}"'), '"id":"ID"'),
    (re.compile(r'"(brokerid|broker)":[01]'), r'"\1":B'),
]


def masked(path: str, data: str | None) -> str | None:
    if data is None or data == "":
        return None
    for pattern, text in VARYING:
        data = pattern.sub(text, data)
    if any(f"/topics/{name}" in path for name in INTERNAL):
        data = re.sub(r"\[[01],[01]\]", "[REPLICAS]", data)
        data = re.sub(r'"leader":[01]', '"leader":L', data)
    return data


def tree(zk: KazooClient, path: str = "/") -> dict[str, tuple[str | None, bool, int]]:
    data, stat = zk.get(path)
    found = {path: (masked(path, data.decode() if data else None), stat.ephemeralOwner != 0, stat.version)}
    for child in zk.get_children(path):
        found |= tree(zk, f"{path.rstrip('/')}/{child}")
    return found


def operate(cluster: MixedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wait_until(lambda: len(admin.list_topics(timeout=20).brokers) == 2, what="both brokers")
    topics = []
    for path, node in GOLDEN.items():
        _, _, name = path.partition("/brokers/topics/")
        if name and "/" not in name and name not in INTERNAL:
            replicas = list(json.loads(node["data"])["partitions"].values())
            settings = json.loads(GOLDEN[f"/config/topics/{name}"]["data"])["config"]
            topics.append(NewTopic(name, len(replicas), replica_assignment=replicas, config=settings))
    for future in admin.create_topics(topics).values():
        future.result(30)
    change = ConfigResource("broker", "0")
    change.add_incremental_config(ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET))
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("txn", b"x")
    producer.commit_transaction(30)
    reader = GroupReader(cluster.bootstrap, "txn", "g", log_level=0).start()
    wait_until(lambda: bool(reader.seen), what="a group reads")
    reader.stop()


def secure(cluster: MixedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("alice", scram, b"secret", b"saltsaltsalt")
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(30)
    allow = AclBinding(
        ResourceType.TOPIC,
        "keyed",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    deny = AclBinding(
        ResourceType.TOPIC,
        "plain-",
        ResourcePatternType.PREFIXED,
        "User:bob",
        "10.0.0.1",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for binding in (allow, deny):
        for future in admin.create_acls([binding]).values():
            future.result(30)


def differences(zk: KazooClient, *, security: bool) -> list[str]:
    ours = tree(zk)
    theirs = {path: (masked(path, node["data"]), node["ephemeral"], node["version"]) for path, node in GOLDEN.items()}
    found = []
    for path in sorted(ours.keys() | theirs.keys()):
        if path.startswith(SECURITY) is security and ours.get(path) != theirs.get(path):
            found.append(f"{path}: ours {ours.get(path)}, Kafka's {theirs.get(path)}")
    return found


@pytest.fixture
def two() -> MixedCluster:
    settings = {
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.min.isr": "1",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    racks = {0: {"broker.rack": "r0"}, 1: {"broker.rack": "r1"}}
    return MixedCluster(kinds={0: OURS, 1: OURS}, config=settings, broker_config=racks)


def test_tree_is_kafkas(two: MixedCluster) -> None:
    with two as cluster:
        operate(cluster)
        zk = KazooClient(cluster.zookeeper)
        zk.start()
        try:
            assert differences(zk, security=False) == []
        finally:
            zk.stop()
            zk.close()


def test_tree_of_credentials_and_acls_is_kafkas(two: MixedCluster) -> None:
    with two as cluster:
        operate(cluster)
        secure(cluster)
        zk = KazooClient(cluster.zookeeper)
        zk.start()
        try:
            assert differences(zk, security=True) == []
        finally:
            zk.stop()
            zk.close()
