"""Access to links, secrets, and copied ACLs."""

from collections.abc import Iterator

import pytest

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin import links as admin
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls, delete_acls, describe_acls
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused
from barnabas.testing.cluster import Cluster
from tests.scenarios.link.linked import describe, wait_for_copy

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    """A cluster with TLS, SCRAM and ACLs. It mirrors itself, which a link allows."""
    with Cluster(brokers=1, secure=True) as cluster:
        yield cluster


def configs(cluster: Cluster, user: str = "admin") -> dict[str, str]:
    return {
        **cluster.client_settings(user),
        "bootstrap.servers": cluster.bootstrap,
        "link.refresh.interval.ms": "200",
    }


async def test_client_may_neither_make_nor_see_links(secure: Cluster) -> None:
    settings = secure.client_settings("client")
    async with AsyncClient(client_config(secure.bootstrap, settings)) as client:
        for attempt in (
            admin.create_link(client, "mine", configs=configs(secure), topics="x"),
            admin.describe_links(client),
            admin.alter_link(client, "mine", "pause"),
            admin.delete_link(client, "mine"),
        ):
            with pytest.raises(BrokerRefused, match="CLUSTER_AUTHORIZATION_FAILED"):
                await attempt


def test_link_reaches_a_secured_source_and_hides_its_password(secure: Cluster, target: Cluster, topic: str) -> None:
    secure.create_topic(topic)
    secure.produce(topic, ["over TLS"])
    name = f"l-{topic}"
    given = configs(secure)
    target.ask(lambda client: admin.create_link(client, name, configs=given, topics=topic))
    wait_for_copy(target, name, topic, {0: 1})
    shown = {each.name: each.value for each in describe(target, name).configs}
    assert shown["sasl.jaas.config"] is None
    assert shown["bootstrap.servers"] == secure.bootstrap


def test_password_that_cannot_be_encrypted_is_refused(source: Cluster, secure: Cluster) -> None:
    given = configs(secure)
    with pytest.raises(BrokerRefused, match=r"password\.encoder\.secret"):
        source.ask(lambda client: admin.create_link(client, "plain", configs=given, topics="x"))


def test_wrong_settings_are_refused_with_the_nearest_name(target: Cluster) -> None:
    for wrong, words in (
        ({"bootstrap.servers": "x:1", "link.throttle.bytes.per.secnd": "1"}, "did you mean"),
        ({"bootstrap.servers": "x:1", "sasl.mechanims": "PLAIN"}, "sasl.mechanism"),
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "x:1", "config.providers": "file"}, "config.providers"),
    ):
        with pytest.raises(BrokerRefused, match=words):
            target.ask(lambda client, wrong=wrong: admin.create_link(client, "wrong", configs=wrong, topics="x"))  # type: ignore[misc]
    with pytest.raises(BrokerRefused, match="regular expression"):
        target.ask(lambda client: admin.create_link(client, "w", configs={"bootstrap.servers": "x:1"}, topics="("))
    with pytest.raises(BrokerRefused, match="RESOURCE_NOT_FOUND"):
        target.ask(lambda client: admin.delete_link(client, "nobody"))


def test_unreachable_source_is_reported_and_affects_no_other_link(target: Cluster, topic: str) -> None:
    given = {"bootstrap.servers": "127.0.0.1:1", "link.refresh.interval.ms": "200"}
    target.ask(lambda client: admin.create_link(client, f"l-{topic}", configs=given, topics=topic))
    wait_until(lambda: describe(target, f"l-{topic}").error is not None, TIMEOUT_S, what="the link tells")
    target.create_topic(topic)
    target.produce(topic, ["fine"])
    target.ask(lambda client: admin.delete_link(client, f"l-{topic}"))

    def is_gone() -> bool:
        """Ask the broker that made the change; the other one is notified later."""
        return f"l-{topic}" not in [each.name for each in target.ask(lambda client: admin.describe_links(client))]

    wait_until(is_gone, TIMEOUT_S, what="every broker has heard")


def acls_of(cluster: Cluster, pattern: ResourcePattern) -> list[Ace]:
    return cluster.ask(lambda client: describe_acls(client, pattern)).get(pattern, [])


def test_acls_come_and_go_with_those_of_the_source(topic: str) -> None:
    open_to_all = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    pattern = ResourcePattern(AclResourceType.TOPIC, topic, PatternType.PREFIXED)
    cluster_wide = ResourcePattern(AclResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL)
    everything = ResourcePattern(AclResourceType.TOPIC, "*", PatternType.LITERAL)
    own = ResourcePattern(AclResourceType.TOPIC, f"{topic}-", PatternType.PREFIXED)
    entry = Ace("User:alice", "*", AclOperation.READ, Permission.ALLOW)
    other = Ace("User:alice", "*", AclOperation.WRITE, Permission.ALLOW)
    with Cluster(brokers=1, config=open_to_all) as there, Cluster(brokers=1, config=open_to_all) as here:
        there.ask(lambda client: create_acls(client, pattern, [entry]))
        there.ask(lambda client: create_acls(client, cluster_wide, [entry]))
        there.ask(lambda client: create_acls(client, everything, [entry]))
        given = {"bootstrap.servers": there.bootstrap, "link.refresh.interval.ms": "200"}
        here.ask(lambda client: admin.create_link(client, "acls", configs=given, topics=f"{topic}.*", acls=True))
        wait_until(lambda: acls_of(here, pattern) == [entry], TIMEOUT_S, what="the entry is here")
        assert acls_of(here, cluster_wide) == [] and acls_of(here, everything) == []
        here.ask(lambda client: create_acls(client, own, [entry]))
        there.ask(lambda client: create_acls(client, own, [entry, other]))
        wait_until(lambda: {*acls_of(here, own)} == {entry, other}, TIMEOUT_S, what="the other entry is here")
        there.ask(lambda client: delete_acls(client, own, [entry, other]))
        wait_until(lambda: acls_of(here, own) == [entry], TIMEOUT_S, what="only our own entry is here")
        there.ask(lambda client: delete_acls(client, pattern, [entry]))
        wait_until(lambda: acls_of(here, pattern) == [], TIMEOUT_S, what="the entry is gone here, too")
