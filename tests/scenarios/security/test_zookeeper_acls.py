"""zookeeper.set.acl: clients with the brokers' credentials change znodes, others only read what is not secret."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from barnabas.cli.local_cluster import ClusterFailed, LocalCluster
from barnabas.cli.main import app
from tests.support.command_line import CliRunner

DIGEST = "kafka:zookeeper-secret"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {
        "zookeeper.set.acl": "true",
        "barnabas.zookeeper.digest": DIGEST,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "delegation.token.secret.key": "key",
    }
    with LocalCluster(brokers=2, config=settings) as running:
        yield running


@contextmanager
def client(cluster: LocalCluster, *credentials: str) -> Iterator[KazooClient]:
    opened = KazooClient(hosts=cluster.zookeeper_connect, auth_data=[("digest", each) for each in credentials])
    opened.start()
    try:
        yield opened
    finally:
        opened.stop()
        opened.close()


def test_brokers_work_and_strangers_neither_change_anything_nor_read_secrets(cluster: LocalCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 2)])[topic].result(60)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("alice", credential, b"alice-secret")]
    ).values():
        future.result(60)
    paths = (f"/brokers/topics/{topic}", "/brokers/ids/1", "/controller", "/kafka-acl", f"/config/topics/{topic}")
    with client(cluster) as stranger, client(cluster, "kafka:wrong") as liar:
        for opened in (stranger, liar):
            for path in paths:
                opened.get(path)
                with pytest.raises(NoAuthError):
                    opened.set(path, b"{}")
            with pytest.raises(NoAuthError):
                opened.create("/brokers/topics/mine", b"{}")
            with pytest.raises(NoAuthError):
                opened.delete(f"/brokers/topics/{topic}", recursive=False)
            for secret in ("/config/users", "/config/users/alice", "/config/brokers", "/delegation_token/tokens"):
                with pytest.raises(NoAuthError):
                    opened.get_children(secret)
        stranger.create("/consumers/old-group", b"")  # Kafka leaves this znode open to its oldest consumers
        entries, _ = stranger.get_acls("/brokers/topics")
        assert [(each.perms, each.id.scheme) for each in entries] == [(31, "digest"), (1, "world")]
    with client(cluster, DIGEST) as broker:
        assert broker.get_children("/config/users") == ["alice"]
        broker.get("/config/users/alice")


def test_shell_shows_secrets_only_with_the_credentials(cluster: LocalCluster) -> None:
    def shell(*lines: str) -> str:
        return (
            CliRunner()
            .invoke(app, ["zookeeper-shell", cluster.zookeeper_connect], input="\n".join((*lines, "quit\n")))
            .output
        )

    assert "Insufficient permission" in shell("ls /config/users")
    assert "[" in shell(f"addauth digest {DIGEST}", "ls /config/users").replace("Insufficient", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zookeeper.set.acl": "true"}, r"set barnabas\.zookeeper\.digest"),
        ({"barnabas.zookeeper.digest": "hush"}, "user:password"),
    ],
)
def test_broker_that_zookeeper_would_not_know_does_not_start(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ClusterFailed, match=words) as failed:
        LocalCluster(brokers=1, config=settings).__enter__()
    assert "hush" not in str(failed.value)


def test_broker_with_another_password_is_kept_out(cluster: LocalCluster) -> None:
    other = LocalCluster(
        brokers=1,
        zookeeper=cluster.zookeeper_connect,
        config={"zookeeper.set.acl": "true", "barnabas.zookeeper.digest": "kafka:wrong", "broker.id": "7"},
    )
    with pytest.raises(ClusterFailed, match="not authorized"):
        other.__enter__()
