"""OAUTHBEARER and delegation tokens on a real cluster: brokers and clients authenticate with signed tokens."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as AdminResource
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

from barnabas.base.config.properties import format_properties
from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.client.admin.links import create_link, delete_link, describe_links
from barnabas.client.admin.tokens import DelegationToken, create_token, describe_tokens
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from barnabas.client.errors import AuthenticationFailed, ClientError
from barnabas.testing import wait_until
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from tests.oauth_provider import AUDIENCE, ISSUER, Provider, SigningKey, serving
from tests.scenarios.security.secured import PLAIN_MODULE, SCRAM_MODULE, bootstrap_of, kafka_python_comes_in
from tests.support.command_line import CliRunner

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serving(Provider(SigningKey("one", "ES256"), SigningKey("two", "RS256"))) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(provider: Provider) -> Iterator[LocalCluster]:
    config = {
        "listeners": "OAUTH://127.0.0.1:0,SCRAM://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "OAUTH:SASL_PLAINTEXT,SCRAM:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "OAUTH",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            f'{OAUTH_MODULE} required clientId="broker" clientSecret="broker-secret";'
        ),
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.scram.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="a" user_bob="b";',
        "delegation.token.secret.key": "token-key",
        "password.encoder.secret": "of these tests",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker;User:admin;User:ANONYMOUS",
    }
    with LocalCluster(brokers=2, config=config) as running:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(running, "PLAINTEXT")})
        everything = [
            AclBinding(kind, "*", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.ALL, AclPermissionType.ALLOW)
            for kind in (AdminResource.TOPIC, AdminResource.GROUP)
        ]  # fmt: skip
        for future in admin.create_acls(everything).values():
            future.result(60)
        yield running


# -- Links ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger() -> Iterator[Provider]:
    """A provider whose key is in no key set."""
    with serving(Provider(SigningKey("stranger", "ES256"))) as running:
        yield running


@pytest.mark.parametrize(
    ("whose", "secret", "words"),
    [("provider", "wrong", "no token: .*/token answered 401"), ("stranger", "alice-secret", "invalid_token")],
)
def test_link_whose_token_is_refused_says_by_whom_and_why(
    request: pytest.FixtureRequest, cluster: LocalCluster, whose: str, secret: str, words: str
) -> None:
    configs = {
        "bootstrap.servers": bootstrap_of(cluster, "OAUTH"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTH_MODULE} required clientId="alice" clientSecret="{secret}";',
        "sasl.oauthbearer.token.endpoint.url": f"{request.getfixturevalue(whose).url}/token",
        "link.refresh.interval.ms": "200",
    }
    name = f"refused-{whose}"
    with BlockingClient(client_config(bootstrap_of(cluster, "PLAINTEXT"))) as client:
        client.run(create_link(client.core, name, configs=configs, topics="nothing"))

        def error() -> str:
            [link] = client.run(describe_links(client.core, [name]))
            return link.error or ""

        wait_until(lambda: error() != "", 60, what="the link says what is wrong")
        assert re.search(words, error())
        assert secret not in error()
        client.run(delete_link(client.core, name))


@pytest.mark.parametrize("url", ["file:///etc/hostname", " file:///etc/hostname"])
def test_link_does_not_send_files_of_a_broker_as_its_token(cluster: LocalCluster, url: str) -> None:
    configs = {
        "bootstrap.servers": bootstrap_of(cluster, "OAUTH"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTH_MODULE} required;",
        "sasl.oauthbearer.token.endpoint.url": url,
    }
    with (
        BlockingClient(client_config(bootstrap_of(cluster, "PLAINTEXT"))) as client,
        pytest.raises(ClientError, match="a link takes no token from a file of the brokers"),
    ):
        client.run(create_link(client.core, "files", configs=configs, topics="nothing"))


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------------


def oauth(cluster: LocalCluster, token: Callable[[], str], **more: object) -> dict[str, Any]:
    """confluent-kafka's."""
    return {
        "bootstrap.servers": bootstrap_of(cluster, "OAUTH"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token(), time.time() + 60),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_confluent_kafka_with_a_callback(cluster: LocalCluster, provider: Provider, topic: str) -> None:
    outcome: list[KafkaError | None] = []
    producer = Producer(oauth(cluster, provider.keys[0].token, acks="all"))
    producer.produce(topic, b"hello", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    assert outcome == [None]
    consumer = Consumer(oauth(cluster, provider.keys[1].token, group_id=topic, auto_offset_reset="earliest"))
    try:
        consumer.subscribe([topic])
        message = consumer.poll(60)
        assert message is not None and message.error() is None and message.value() == b"hello"
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "claims", [{"exp": 1_700_000_000}, {"aud": "payroll"}, {"iss": "https://elsewhere"}, {"sub": None}]
)
def test_confluent_kafka_with_an_invalid_token(
    cluster: LocalCluster, provider: Provider, claims: dict[str, Any]
) -> None:
    errors: list[int] = []
    bad = oauth(cluster, lambda: provider.keys[0].token(**claims))
    admin = AdminClient(bad | {"error_cb": lambda error: errors.append(error.code())})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    deadline_s = time.monotonic() + 60
    while KafkaError._AUTHENTICATION not in errors:
        assert time.monotonic() < deadline_s
        admin.poll(0.1)


class AioTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class PythonTokens(KafkaPythonTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def test_aiokafka_and_kafka_python_with_their_providers(cluster: LocalCluster, provider: Provider, topic: str) -> None:
    common: dict[str, Any] = {
        "bootstrap_servers": bootstrap_of(cluster, "OAUTH"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
    }
    good, forged = provider.keys[0].token(), SigningKey("one", "ES256").token()

    async def aio() -> None:
        async with asyncio.timeout(60):
            async with AIOKafkaProducer(sasl_oauth_token_provider=AioTokens(good), **common) as producer:
                await producer.send_and_wait(topic, b"hello")
            async with AIOKafkaConsumer(
                topic, auto_offset_reset="earliest", sasl_oauth_token_provider=AioTokens(good), **common
            ) as consumer:
                assert (await consumer.getone()).value == b"hello"
            refused = AIOKafkaProducer(sasl_oauth_token_provider=AioTokens(forged), **common)
            with pytest.raises(AioKafkaError):
                await refused.start()
            await refused.stop()

    asyncio.run(aio())
    producer = kafka.KafkaProducer(sasl_oauth_token_provider=PythonTokens(good), **common)
    try:
        assert producer.send(topic, b"again").get(60).offset == 1
    finally:
        producer.close()
    assert kafka_python_comes_in({"token": forged, **common}) == [False]


def java_settings(url: str, client: str, secret: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTH_MODULE} required clientId="{client}" clientSecret="{secret}" extension_traceId="7";',
        "sasl.oauthbearer.token.endpoint.url": url,
    }


def tool(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def test_tools_get_their_token_from_the_endpoint(
    cluster: LocalCluster, provider: Provider, tmp_path: Path, topic: str
) -> None:
    file = tmp_path / "client.properties"
    address = ("--bootstrap-server", bootstrap_of(cluster, "OAUTH"), "--command-config", str(file))
    file.write_text(format_properties(java_settings(f"{provider.url}/token", "alice", "alice-secret")))
    status, output = tool("topics", *address, "--create", "--topic", topic, "--partitions", "2")
    assert status == 0, output
    file.write_text(format_properties(java_settings(f"{provider.url}/token", "alice", "guess")))
    status, output = tool("topics", *address, "--list")
    assert status == 1 and "answered 401" in output and "guess" not in output
    # Mallory is authenticated, but has no permissions.
    file.write_text(format_properties(java_settings(f"{provider.url}/token", "mallory", "mallory-secret")))
    status, output = tool("topics", *address, "--list")
    assert status == 0 and topic not in output


def test_session_ends_with_its_token_and_is_renewed_with_the_next(cluster: LocalCluster, provider: Provider) -> None:
    """Tokens of four seconds, used for longer: our clients authenticate again on their open connections."""
    address = bootstrap_of(cluster, "OAUTH").split(",")[0]
    key = provider.keys[0]
    given: Counter[str] = Counter()

    def short_lived(path: str, authorization: str, body: str) -> tuple[int, str]:
        given[authorization] += 1
        return 200, json.dumps({"access_token": key.token(sub="alice", exp=time.time() + 4)})

    def both_came_back() -> bool:
        return len(given) == 2 and min(given.values()) > 1

    short = Provider(key)
    short.answer = short_lived  # type: ignore[method-assign]

    async def asynchronous(settings: dict[str, str]) -> None:
        async with AsyncClient(client_config(address, settings)) as client:
            connection = await client.any_connection()
            while not both_came_back():
                await client.refresh(())
                await asyncio.sleep(0.1)
            assert not connection.closed

    def blocking(settings: dict[str, str]) -> None:
        with BlockingClient(client_config(address, settings)) as client:
            connection = client.any_connection()
            while not both_came_back():
                client.refresh([])
                time.sleep(0.1)
            assert client.any_connection() is connection

    async def story(url: str) -> None:
        # Get a new token long before the session is renewed: with the old one the next session would end within a second, and
        # brokers refuse to renew it that soon.
        early = {"sasl.login.refresh.window.factor": "0.5"}
        one, other = (java_settings(url, name, "x") | early for name in ("one", "other"))
        await asyncio.gather(asynchronous(one), asyncio.to_thread(blocking, other))

    with serving(short) as running:
        asyncio.run(story(f"{running.url}/token"))


def test_unsecured_tokens_where_they_are_asked_for() -> None:
    line = (
        f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker" unsecuredValidatorAllowableClockSkewMs="3000";'
    )
    settings = {
        "listeners": "OAUTH://127.0.0.1:0",
        "listener.security.protocol.map": "OAUTH:SASL_PLAINTEXT",
        "inter.broker.listener.name": "OAUTH",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": line,
    }
    with LocalCluster(brokers=1, config=settings) as running:
        # librdkafka creates unsecured tokens itself.
        admin = AdminClient(
            {
                "bootstrap.servers": bootstrap_of(running, "OAUTH"),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "enable.sasl.oauthbearer.unsecure.jwt": True,
                "sasl.oauthbearer.config": "principal=alice",
            }
        )
        assert len(admin.list_topics(timeout=60).brokers) == 1


# -- delegation tokens ------------------------------------------------------------------------------------------------


def own_plain(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{user}" password="{password}";',
    }


def own_token(mechanism: str, token_id: str, hmac: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="{token_id}" password="{hmac}" tokenauth="true";',
    }


def with_cluster(address: str, settings: dict[str, str], what: Callable[[AsyncClient], Any]) -> Any:
    async def story() -> Any:
        async with AsyncClient(client_config(address, settings)) as client:
            return await what(client)

    return asyncio.run(story())


def test_token_from_the_tool_opens_connections_for_its_owner_until_it_is_expired(
    cluster: LocalCluster, tmp_path: Path, topic: str
) -> None:
    scram = bootstrap_of(cluster, "SCRAM")
    file = tmp_path / "client.properties"
    file.write_text(format_properties(own_plain("alice", "a")))
    address = ("--bootstrap-server", scram, "--command-config", str(file))
    status, output = tool(
        "delegation-tokens", *address, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob", "--json"
    )  # fmt: skip
    assert status == 0, output
    (made,) = json.loads(output)
    assert (made["owner"], made["renewers"]) == ("User:alice", ["User:bob"])
    token, hmac = made["tokenId"], made["hmac"]

    wait_until(lambda: all(opens(each, own_token("SCRAM-SHA-256", token, hmac)) for each in scram.split(",")))
    for mechanism in MECHANISMS:
        with_cluster(scram, own_token(mechanism, token, hmac), lambda client: client.topics([topic], auto_create=True))
    with pytest.raises(AuthenticationFailed):
        with_cluster(scram, own_token("SCRAM-SHA-256", token, "AAAA"), lambda client: client.refresh(()))

    # A client that logs in with a token can neither create nor describe tokens.
    for refused in (create_token, describe_tokens):
        with pytest.raises(ClientError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
            with_cluster(scram, own_token("SCRAM-SHA-256", token, hmac), refused)
    with pytest.raises(ClientError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
        with_cluster(bootstrap_of(cluster, "PLAINTEXT"), {}, create_token)

    file.write_text(format_properties(own_plain("bob", "b")))
    status, output = tool("delegation-tokens", *address, "--renew", "--hmac", hmac, "--renew-time-period", "60000")
    assert status == 0 and "Completed renew operation. New expiry date : " in output
    status, output = tool("delegation-tokens", *address, "--describe")
    assert re.search(r"Total number of tokens : [1-9]", output) and token in output
    status, output = tool("delegation-tokens", *address, "--describe", "--owner-principal", "User:carol")
    assert "Total number of tokens : 0" in output
    status, output = tool("delegation-tokens", *address, "--expire", "--hmac", hmac, "--expiry-time-period", "-1")
    assert status == 0 and "Completed expire operation" in output
    for each in scram.split(","):
        wait_until(lambda each=each: not opens(each, own_token("SCRAM-SHA-256", token, hmac)))  # type: ignore[misc]
    status, output = tool("delegation-tokens", *address, "--renew", "--hmac", hmac, "--renew-time-period", "1")
    assert status == 1 and "DELEGATION_TOKEN_NOT_FOUND" in output


def opens(address: str, settings: dict[str, str]) -> bool:
    try:
        with_cluster(address, settings, lambda client: client.refresh(()))
    except AuthenticationFailed:
        return False
    return True


def test_token_for_another_needs_permission(cluster: LocalCluster) -> None:
    scram = bootstrap_of(cluster, "SCRAM")

    async def for_alice(client: AsyncClient) -> DelegationToken:
        return await create_token(client, owner="User:alice")

    with pytest.raises(ClientError, match="DELEGATION_TOKEN_AUTHORIZATION_FAILED"):
        with_cluster(scram, own_plain("bob", "b"), for_alice)
    status, output = tool(
        "acls", "--bootstrap-server", bootstrap_of(cluster, "PLAINTEXT"), "--add", "--allow-principal", "User:bob",
        "--operation", "CreateTokens", "--operation", "DescribeTokens", "--user-principal", "User:alice",
    )  # fmt: skip
    assert status == 0, output

    def granted() -> bool:
        try:
            token = with_cluster(scram, own_plain("bob", "b"), for_alice)
        except ClientError:
            return False
        assert (token.owner, token.requester) == ("User:alice", "User:bob")
        return True

    wait_until(granted)
