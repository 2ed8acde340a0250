"""Everything except the records of a link from Kafka 4.3.0: TLS and SCRAM, ACLs, a throttle, retention; and Kafka's tools."""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.interop.kraft import KraftCluster, java
from tests.interop.link.batches import assert_same, offsets, partitions_of
from tests.interop.link.stories import linked, make_topic, wait_for_copy
from tests.pki import Authority

STORE_PASSWORD = "of the store"
ALLOW, LITERAL, PREFIXED = AclPermissionType.ALLOW, ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("broker", subject="/CN=broker")
    made.pkcs12("broker", STORE_PASSWORD)
    return made


@pytest.fixture(scope="module")
def guarded(java: None, authority: Authority) -> Iterator[KraftCluster]:
    """A cluster of one node with ACLs, where clients log in with SCRAM over TLS. Its other listener is for the tests."""
    cluster = KraftCluster(nodes=1)
    [login], [controller] = cluster._login_ports.values(), cluster._controller_ports.values()
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    cluster.config = {
        "listeners": f"PLAINTEXT://{cluster.address(1)},SASL_SSL://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{module} required;",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.folder / "broker.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "log.retention.check.interval.ms": "500",
    }
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("linker", scram, b"secret")])
        made["linker"].result(60)
        yield cluster


@pytest.fixture(scope="module")
def here() -> Iterator[LocalCluster]:
    """A cluster of one broker with ACLs. Anonymous clients may do everything."""
    config = {
        "password.encoder.secret": "of these tests",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalCluster(brokers=1, config=config) as cluster:
        yield cluster


def login(cluster: KraftCluster, authority: Authority) -> dict[str, str]:
    [port] = cluster._login_ports.values()
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="linker" password="secret";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "link.replication.factor": "1",
    }


def fill(bootstrap: str, topic: str, megabytes: int) -> None:
    """Write records that no codec can compress."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    for _ in range(megabytes * 100):
        producer.produce(topic, os.urandom(10_000), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def acls(bootstrap: str) -> set[tuple[str, str, str, str]]:
    """Return the ACLs of users: kind of resource, its name, principal, operation."""
    wanted = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_acls(wanted).result(60)
    return {(each.restype.name, each.name, each.principal, each.operation.name) for each in found}


def test_source_behind_tls_and_scram_is_mirrored_and_its_acls_follow(
    guarded: KraftCluster, here: LocalCluster, authority: Authority, topic: str
) -> None:
    make_topic(guarded, topic, partitions=1, replicas=1)
    fill(guarded.bootstrap, topic, 1)
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    linker = [
        AclBinding(ResourceType.TOPIC, topic, LITERAL, "User:linker", "*", operation, ALLOW)
        for operation in (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
    ]
    cluster = AclBinding(
        ResourceType.BROKER, "kafka-cluster", LITERAL, "User:linker", "*", AclOperation.DESCRIBE, ALLOW
    )
    ann = AclBinding(ResourceType.TOPIC, topic, LITERAL, "User:ann", "*", AclOperation.WRITE, ALLOW)
    group = AclBinding(ResourceType.GROUP, topic, PREFIXED, "User:ann", "*", AclOperation.READ, ALLOW)
    for done in admin.create_acls([*linker, cluster, ann, group]).values():
        done.result(60)
    of_ann = {("TOPIC", topic, "User:ann", "WRITE"), ("GROUP", topic, "User:ann", "READ")}
    # An ACL about a prefix is copied only if the link mirrors every name that begins with it.
    options = ("--acls", "--groups", f"{topic}.*")
    with linked(guarded, here, topic, *options, settings=login(guarded, authority)) as link:
        wait_for_copy(guarded, here, topic)
        assert assert_same(guarded, here, topic) >= 1
        wait_until(lambda: of_ann <= acls(here.bootstrap), 90, what="the ACLs are here")
        assert not any(kind in ("BROKER", "CLUSTER") for kind, *_ in acls(here.bootstrap))
        gone = AclBindingFilter(ResourceType.TOPIC, topic, LITERAL, "User:ann", "*", AclOperation.WRITE, ALLOW)
        for done in admin.delete_acls([gone]).values():
            done.result(60)
        wait_until(lambda: not {*of_ann} <= acls(here.bootstrap), 90, what="the ACL is gone here, too")
        assert ("GROUP", topic, "User:ann", "READ") in acls(here.bootstrap)
        shown = {name: value for name, value in link.describe()["configs"].items() if name == "sasl.jaas.config"}
        assert shown == {"sasl.jaas.config": None}


def test_throttle_holds_a_link_back(guarded: KraftCluster, here: LocalCluster, topic: str) -> None:
    make_topic(guarded, topic, partitions=1, replicas=1)
    fill(guarded.bootstrap, topic, 4)
    began_s = time.monotonic()
    settings = {"link.throttle.bytes.per.second": "300000", "link.replication.factor": "1"}
    with linked(guarded, here, topic, settings=settings):
        wait_for_copy(guarded, here, topic)
    # The copy takes 13 s at that rate. The megabyte or so of one answer arrives at once.
    assert time.monotonic() - began_s > 5
    assert assert_same(guarded, here, topic) >= 1


def test_log_start_follows_the_retention_of_the_source(guarded: KraftCluster, here: LocalCluster, topic: str) -> None:
    """The mirror does not copy the settings: it deletes records because the source has deleted them."""
    make_topic(guarded, topic, partitions=1, replicas=1, **{"segment.bytes": "1048576"})
    fill(guarded.bootstrap, topic, 4)
    settings = {"link.topic.configs": "cleanup.policy", "link.replication.factor": "1"}
    with linked(guarded, here, topic, settings=settings):
        wait_for_copy(guarded, here, topic)
        [partition] = partitions_of(here, topic)
        assert offsets(here, [partition])[partition][0] == 0
        tool(
            guarded,
            "--entity-type",
            "topics",
            "--entity-name",
            topic,
            "--alter",
            "--add-config",
            "retention.bytes=1048576",
        )
        wait_until(lambda: offsets(guarded, [partition])[partition][0] > 0, 120, what="the source deletes segments")
        wait_for_copy(guarded, here, topic)
        assert assert_same(guarded, here, topic, files=False) >= 1


def tool(cluster: KraftCluster, *arguments: str) -> None:
    run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap, *arguments)


def run_tool(main: str, *arguments: str) -> str:
    """Run one of the tools of Kafka 4.3.0."""
    done = subprocess.run(java("256m", main, *arguments), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafkas_tools_do_not_mind_the_apis_of_links(java: None, here: LocalCluster, topic: str) -> None:
    """ApiVersions lists these APIs with keys from 10000 on. Kafka 4.3.0's clients skip keys that they do not know."""
    shown = run_tool("org.apache.kafka.tools.BrokerApiVersionsCommand", "--bootstrap-server", here.bootstrap)
    assert "UNKNOWN(10000)" in shown
    at = ("--bootstrap-server", here.bootstrap, "--topic", topic)
    run_tool("org.apache.kafka.tools.TopicCommand", *at, "--create", "--partitions", "1", "--replication-factor", "1")
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", "100", "--record-size", "10",
        "--throughput", "-1", "--bootstrap-server", here.bootstrap,
    )  # fmt: skip
    read = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--from-beginning", "--max-messages", "100",
        "--timeout-ms", "60000",
    )  # fmt: skip
    assert len(read.split()) == 100
    assert topic in run_tool("org.apache.kafka.tools.TopicCommand", *at, "--describe")
