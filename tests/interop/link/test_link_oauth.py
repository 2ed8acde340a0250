"""Links that log in with OAUTHBEARER continue after the end of their tokens: from Kafka 4.3.0, and from a cluster of ours."""

import re
import time
import urllib.request
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Producer

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from tests.interop.kraft import KraftCluster
from tests.interop.link.batches import Side, assert_same
from tests.interop.link.stories import Link, linked, make_topic, wait_for_copy
from tests.oauth_provider import AUDIENCE, ISSUER, Provider, SigningKey, serving

#: Lifetime of a token, with which sessions end.
TOKEN_S = 5
LIFETIMES = 3
SETTINGS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    # Get a new token long before the session is renewed: brokers refuse the renewal of a young session.
    "sasl.login.refresh.window.factor": "0.5",
    "link.replication.factor": "1",
}


@pytest.fixture(scope="module")
def here() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, inside=True, config={"password.encoder.secret": "of these tests"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka(java: None) -> Iterator[KraftCluster]:
    """A cluster that accepts unsigned tokens, with Kafka's validator for that."""
    cluster = KraftCluster(nodes=1)
    [login], [controller] = cluster._login_ports.values(), cluster._controller_ports.values()
    cluster.config = {
        "listeners": f"PLAINTEXT://{cluster.address(1)},SASL_PLAINTEXT://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
            f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="x";'
        ),
    }
    with cluster:
        yield cluster


class ShortLived(Provider):
    """A provider whose tokens expire soon."""

    def answer(self, path: str, authorization: str, body: str) -> tuple[int, str]:
        if path != "/token":
            return super().answer(path, authorization, body)
        self.requests.append((path, authorization, body))
        return 200, f'{{"access_token": "{self.keys[0].token(sub="linker", exp=time.time() + TOKEN_S)}"}}'

    @property
    def given(self) -> int:
        return sum(path == "/token" for path, *_ in self.requests)


@pytest.fixture(scope="module")
def provider() -> Iterator[ShortLived]:
    with serving(ShortLived(SigningKey("one", "ES256"))) as running:
        assert isinstance(running, ShortLived)
        yield running


@pytest.fixture(scope="module")
def ours(provider: ShortLived) -> Iterator[LocalCluster]:
    """A cluster that accepts tokens that the provider signed."""
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OAUTH://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OAUTH:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    with LocalCluster(brokers=1, config=config) as cluster:
        yield cluster


def goes_on(source: Side, here: LocalCluster, topic: str, settings: Mapping[str, str]) -> None:
    """Check that records of three token lifetimes are mirrored without an error: no session ends, no login fails."""
    make_topic(source, topic, partitions=1, replicas=1)
    producer = Producer({"bootstrap.servers": source.bootstrap, "acks": "all"})
    with linked(source, here, topic, settings={**SETTINGS, **settings}) as link:
        link.wait_for_state(topic, "mirroring")
        before = errors(here, link)
        until_s = time.monotonic() + LIFETIMES * TOKEN_S
        while time.monotonic() < until_s:
            producer.produce(topic, b"token")
            assert producer.flush(60) == 0
            wait_for_copy(source, here, topic)
        assert errors(here, link) == before
        assert assert_same(source, here, topic, files=False) >= LIFETIMES


def errors(here: LocalCluster, link: Link) -> int:
    """Return the number of errors with the source so far."""
    with urllib.request.urlopen(f"{here.inside_url(1)}/metrics", timeout=60) as answer:
        found = re.search(rf'^barnabas_link_errors{{link="{link.name}"}} ([0-9.]+)$', answer.read().decode(), re.M)
    assert found is not None
    return int(float(found[1]))


def test_link_from_kafka_renews_its_sessions(kafka: KraftCluster, here: LocalCluster, topic: str) -> None:
    [port] = kafka._login_ports.values()
    jaas = f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="linker" unsecuredLoginLifetimeSeconds="{TOKEN_S}";'
    goes_on(kafka, here, topic, {"bootstrap.servers": f"127.0.0.1:{port}", "sasl.jaas.config": jaas})


def test_link_from_ours_renews_its_sessions_with_signed_tokens(
    ours: LocalCluster, here: LocalCluster, provider: ShortLived, topic: str
) -> None:
    settings = {
        "bootstrap.servers": ours.listener_address(1, "OAUTH"),
        "sasl.jaas.config": f'{OAUTH_MODULE} required clientId="linker" clientSecret="secret";',
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
    }
    goes_on(ours, here, topic, settings)
    assert provider.given > LIFETIMES
