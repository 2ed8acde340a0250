"""The console with sign-in: authentication, permissions of users, and the audit log."""

import asyncio
import base64
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer as ConfluentProducer

from barnabas.base.errors import ConfigError
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls
from barnabas.client.admin.configs import ScramUpsert, alter_scram
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.errors import ClientError
from barnabas.services.console import guard as guard_module
from barnabas.services.console.settings import Settings
from barnabas.services.console.sign_in import Credentials, check_settings, registry_config
from barnabas.services.registry import wire
from barnabas.services.registry.access import access_of, hash_password
from barnabas.testing import Cluster
from barnabas.wire.auth import login_pace as throttle_module
from barnabas.wire.auth.authority import LocalAuthority
from barnabas.wire.auth.jwt import encode_unsecured
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from barnabas.wire.auth.mechanisms.scram import ScramMechanism
from tests.scenarios.console.conftest import DEADLINE_S, Console, answer_of
from tests.scenarios.registry.conftest import Registry, config_for
from tests.scenarios.registry.conftest import running as running_registry

ROOT, ALICE = ("root", "root-secret"), ("alice", 'alice "secret" \\')
UNSIGNED = f'{OAUTH_MODULE} required unsecuredValidatorAllowableClockSkewMs="3000";'
PRODUCE, RECORD = "/api/topics/alice-orders/messages", {"value": {"text": "personal data"}}
OPEN_PATHS = {"/api/session", "/api/openapi.json"}


# -- a cluster with users -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.users.oauthbearer.sasl.jaas.config": UNSIGNED,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:root",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Cluster(brokers=1, config=config) as cluster:
        asyncio.run(_provision(cluster))
        yield cluster


def users_address(cluster: Cluster) -> str:
    return cluster.listener_address(1, "USERS")


async def _provision(cluster: Cluster) -> None:
    async with AsyncClient(client_config(cluster.bootstrap)) as admin:
        for user, password in (ROOT, ALICE):
            await alter_scram(admin, user, upserts=[ScramUpsert(ScramMechanism.SHA_512, 4096, password)])
        new = [NewTopic(name=name, partitions=1) for name in ("alice-orders", "secret-plans")]
        await create_topics(admin, new)
        pattern = ResourcePattern(AclResourceType.TOPIC, "alice-", PatternType.PREFIXED)
        for operation in (AclOperation.READ, AclOperation.DESCRIBE):
            await create_acls(admin, pattern, [Ace("User:alice", "*", operation, Permission.ALLOW)])
    for user, password in (ROOT, ALICE):
        await _until_known(cluster, user, password)


async def _until_known(cluster: Cluster, user: str, password: str) -> None:
    """Wait until the broker knows the users and ACLs, which it reads from ZooKeeper."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="{user}" password="{quoted}";',
    }
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            async with AsyncClient(client_config(users_address(cluster), settings)) as client:
                if "alice-orders" in await client.all_topics():
                    return
        except ClientError:
            pass
        assert time.monotonic() < deadline, f"{user} is not known"
        await asyncio.sleep(0.05)


@contextmanager
def started(cluster: Cluster, **settings: Any) -> Iterator[Console]:
    client = client_config(users_address(cluster), {"security.protocol": "SASL_PLAINTEXT"})
    console = Console(Settings(**{"client": client, "port": 0, "sign_in": True, "read_write": True, **settings}))
    try:
        yield console
    finally:
        console.stop()


@pytest.fixture(scope="module")
def console(secured: Cluster) -> Iterator[Console]:
    with started(secured) as console:
        yield console


class Visitor:
    """A browser: it keeps cookies, and sends the CSRF token."""

    def __init__(self, console: Console, **more: Any) -> None:
        self.http = httpx.Client(base_url=console.server.url, timeout=DEADLINE_S, trust_env=False, **more)
        self.token: str | None = None

    def sign_in(self, user: str | None = None, password: str | None = None, token: str | None = None) -> httpx.Response:
        response = self.http.post("/api/session", json={"user": user, "password": password, "token": token})
        if response.status_code == 200:
            self.token = response.json()["csrfToken"]
        return response

    def get(self, path: str) -> Any:
        return answer_of(self.http.get(path))

    def change(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {"x-csrf-token": self.token or "", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return answer_of(self.http.request(method, path, json=body, headers=sent))


@pytest.fixture
def visit() -> Iterator[Callable[..., Visitor]]:
    """`visit(console, user, password)`: a browser of its own, signed in where credentials are given."""
    opened: list[Visitor] = []

    def make(console: Console, *credentials: str) -> Visitor:
        opened.append(Visitor(console))
        if credentials:
            assert opened[-1].sign_in(*credentials).status_code == 200
        return opened[-1]

    yield make
    for each in opened:
        each.http.close()


@pytest.fixture
def visitor(console: Console, visit: Callable[..., Visitor]) -> Callable[..., Visitor]:
    # All tests come from one address: the third failure of any of them would make the next one wait.
    console.server.app.state.services.guard._throttle.clear()
    return partial(visit, console)


Make = Callable[..., Visitor]


def endpoints(console: Console) -> list[tuple[str, str]]:
    paths = httpx.get(f"{console.server.url}/api/openapi.json", trust_env=False).json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


# -- signing in -----------------------------------------------------------------------------------------------------------


def test_strangers_get_nothing_but_the_page_and_its_description(console: Console, visitor: Make) -> None:
    stranger = visitor()
    found = {(method, path): stranger.http.request(method, path.replace("{", "").replace("}", "")).status_code
             for method, path in endpoints(console) if path not in OPEN_PATHS}  # fmt: skip
    assert len(found) > 5
    assert set(found.values()) == {401}, {each: status for each, status in found.items() if status != 401}
    assert stranger.get("/api/session")["signIn"] is True
    assert stranger.get("/api/session")["csrfToken"] is None


def test_a_user_sees_what_the_clusters_acls_let_him_see(visitor: Make) -> None:
    names = {
        user: {topic["name"] for topic in visitor(user, password).get("/api/topics")["topics"]}
        for user, password in (ROOT, ALICE)
    }
    assert {"alice-orders", "secret-plans"} <= names["root"]
    assert "alice-orders" in names["alice"]
    assert all(name.startswith("alice-") for name in names["alice"])


def test_a_user_changes_what_the_clusters_acls_let_him_change(visitor: Make) -> None:
    refused = visitor(*ALICE).change("POST", PRODUCE, RECORD)
    assert refused[0] == 403 and "AUTHORIZATION_FAILED" in refused[1], refused
    assert visitor(*ROOT).change("POST", PRODUCE, RECORD)["partition"] == 0


def test_a_token_of_the_cluster_signs_in(visitor: Make) -> None:
    someone = visitor()
    token = encode_unsecured({"sub": "root", "iat": time.time(), "exp": time.time() + 600})
    assert someone.sign_in(token=token).json()["user"] == "root"
    assert "secret-plans" in {each["name"] for each in someone.get("/api/topics")["topics"]}


def test_an_expired_token_does_not_sign_in(visitor: Make) -> None:
    token = encode_unsecured({"sub": "root", "iat": time.time() - 900, "exp": time.time() - 600})
    assert visitor().sign_in(token=token).status_code == 401


def test_the_cookie_is_for_the_browser_alone(visitor: Make) -> None:
    someone = visitor()
    cookie = someone.sign_in(*ALICE).headers["set-cookie"]
    parts = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= parts
    assert ALICE[1] not in cookie and ALICE[0] not in cookie


def test_a_cookie_that_was_changed_is_worth_nothing(visitor: Make) -> None:
    someone = visitor(*ALICE)
    [(name, value)] = someone.http.cookies.items()
    for forged in (value[:-2] + "xx", value.partition(".")[0], "." + value, value.replace(".", "..")):
        response = someone.http.get("/api/topics", headers={"cookie": f"{name}={forged}"})
        assert response.status_code == 401, forged


def test_signing_out_ends_the_session(visitor: Make) -> None:
    someone = visitor(*ALICE)
    [(name, value)] = someone.http.cookies.items()
    assert not isinstance(someone.change("DELETE", "/api/session"), tuple)
    assert someone.http.get("/api/topics", headers={"cookie": f"{name}={value}"}).status_code == 401


def test_a_stream_ends_with_its_session(console: Console, visitor: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.services.console.collector.SILENCE_S", 0.1)
    someone = visitor(*ALICE)
    with someone.http.stream("GET", "/api/events", params={"watch": "/api/topics"}) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("data:"))
        session = console.server.app.state.services.guard.sessions
        other = visitor()
        other.http.cookies.update(someone.http.cookies)
        other.token = someone.token
        before = len(session)
        other.change("DELETE", "/api/session")
        assert len(session) == before - 1
        for _ in lines:
            pass  # it ends


def test_wrong_passwords_are_slowed_down(secured: Cluster, visit: Make) -> None:
    with started(secured) as console:
        guesser = visit(console)
        statuses = [guesser.sign_in("root", f"guess-{number}").status_code for number in range(8)]
        assert statuses[: throttle_module.FREE_SIGN_INS] == [401] * throttle_module.FREE_SIGN_INS
        assert 429 in statuses
        # A wait of the console is long on this clock: also the right password is not tried meanwhile.
        guard = console.server.app.state.services.guard
        guard._throttle._addresses.latest("127.0.0.1").count = 12
        refused = guesser.sign_in(*ROOT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


def test_a_forged_address_buys_no_guesses_and_stands_in_no_log(
    secured: Cluster, visit: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with started(secured) as console, caplog.at_level(logging.INFO):
        guesser = visit(console)
        statuses = []
        for number in range(8):
            guesser.http.headers["x-forwarded-for"] = f'10.0.0.{number} user="admin" does=nothing'
            statuses.append(guesser.sign_in(f"user-{number}", "guess").status_code)
        assert 429 in statuses
    lines = [record.getMessage() for record in caplog.records if record.name == "barnabas.console.audit"]
    assert lines and all("from=127.0.0.1" in line and "does=nothing" not in line for line in lines)


def test_idle_strangers_do_not_lock_users_out(console: Console, visitor: Make) -> None:
    address = httpx.URL(console.server.url)
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket.create_connection((address.host, address.port or 0), timeout=DEADLINE_S))
        assert visitor(*ROOT).http.get("/api/topics").status_code == 200


def test_a_refused_user_gets_no_reason(visitor: Make) -> None:
    answers = [visitor().sign_in(user, "wrong") for user in ("alice", "nobody-of-this-name")]
    assert [answer.status_code for answer in answers] == [401, 401]
    assert answers[0].json() == answers[1].json()


def test_scripts_send_their_credentials_each_time(console: Console) -> None:
    basic = base64.b64encode(f"{ALICE[0]}:{ALICE[1]}".encode()).decode()
    token = encode_unsecured({"sub": "alice", "iat": time.time(), "exp": time.time() + 600})
    for header in (f"Basic {basic}", f"Bearer {token}"):
        with httpx.Client(
            base_url=console.server.url, headers={"authorization": header}, timeout=DEADLINE_S, trust_env=False
        ) as http:
            names = [each["name"] for each in http.get("/api/topics").json()["topics"]]
            assert "alice-orders" in names and all(name.startswith("alice-") for name in names)
            # The request has no cookie, so that no other site can have made the browser send it.
            refused = http.post(PRODUCE, json=RECORD)
            assert refused.status_code == 403 and "AUTHORIZATION" in refused.json()["error"]["code"], refused.text
            assert "set-cookie" not in refused.headers


@pytest.mark.parametrize(
    "header", ["Basic !!!", "Basic", "Digest x", "Bearer a b", "Basic " + base64.b64encode(b"alice").decode()]
)
def test_headers_without_valid_credentials(console: Console, header: str) -> None:
    response = httpx.get(f"{console.server.url}/api/topics", headers={"authorization": header}, trust_env=False)
    assert response.status_code in (400, 401)


def test_all_sessions_together_are_bounded(secured: Cluster, visit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.services.console.sessions.SESSIONS_MAX", 2)
    with started(secured) as console:
        answers = [visit(console).sign_in(*user).status_code for user in (ROOT, ALICE, ROOT)]
        assert answers == [200, 200, 503]


def test_a_users_client_ends_with_his_last_session(secured: Cluster, visit: Make) -> None:
    with started(secured) as console:
        guard = console.server.app.state.services.guard
        visitors = [visit(console, *ALICE) for _ in range(2)]
        assert len(guard._accounts) == 1
        visitors[0].change("DELETE", "/api/session")
        assert len(guard._accounts) == 1
        visitors[1].change("DELETE", "/api/session")
        assert len(guard._accounts) == 0


# -- changes --------------------------------------------------------------------------------------------------------------


def changes(console: Console) -> list[tuple[str, str]]:
    return [(method, path) for method, path in endpoints(console) if method != "GET" and path not in OPEN_PATHS]


def test_no_change_goes_ahead_without_its_token(console: Console, visitor: Make) -> None:
    someone, other = visitor(*ROOT), visitor(*ROOT)
    wanted = changes(console)
    assert len(wanted) >= 2
    for method, path in wanted:
        plain = path.replace("{", "").replace("}", "")
        for token in ("", "guess", other.token or ""):
            answer = someone.change(method, plain, {}, x_csrf_token=token)
            assert answer[:2] == (403, "CSRF"), (method, path, token, answer)


def test_no_change_goes_ahead_from_another_site(console: Console, visitor: Make) -> None:
    someone = visitor(*ROOT)
    for method, path in changes(console):
        plain = path.replace("{", "").replace("}", "")
        for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
            answer = someone.change(method, plain, {}, **headers)
            assert answer[:2] == (403, "WRONG_ORIGIN"), (method, path, headers, answer)


def test_a_console_that_only_reads_changes_nothing(secured: Cluster, visit: Make) -> None:
    with started(secured, read_write=False) as console:
        root = visit(console, *ROOT)
        for method, path in changes(console):
            answer = root.change(method, path.replace("{", "").replace("}", ""), {})
            assert answer[:2] == (403, "READ_ONLY"), (method, path, answer)


def test_changes_need_the_token_on_loopback_too(secured: Cluster, visit: Make) -> None:
    with started(secured, client=client_config(secured.bootstrap), sign_in=False) as console:
        someone = visit(console)
        assert someone.change("POST", PRODUCE, RECORD)[:2] == (403, "CSRF")
        assert someone.get("/api/session")["signIn"] is False
        someone.token = someone.get("/api/session")["csrfToken"]
        assert someone.change("POST", PRODUCE, RECORD)["partition"] == 0
        rebound = someone.http.get("/api/session", headers={"host": "evil.example"})
        assert rebound.status_code == 421 and someone.token not in rebound.text


@pytest.fixture(scope="module")
def registry(secured: Cluster) -> Iterator[Registry]:
    """A registry that knows alice and an administrator by their passwords of the cluster."""
    access = access_of(
        {
            "users": {user: hash_password(password) for user, password in (ROOT, ALICE)},
            "rules": [{"users": ["alice"], "write": ["alice-*"]}, {"users": ["root"], "write": ["*"]}],
        },
        "access.toml",
    )
    headers = {"Authorization": "Basic " + base64.b64encode(":".join(ROOT).encode()).decode()}
    with running_registry(replace(config_for(secured), access=access), headers=headers) as registry:
        registry.register("secret-value", '{"type":"record","name":"Secret","fields":[]}')
        registry.register("alice-value", '{"type":"record","name":"Alices","fields":[]}')
        yield registry


def test_the_registry_is_asked_as_the_signed_in_user(secured: Cluster, visit: Make, registry: Registry) -> None:
    with started(secured, schema_registry=registry.url) as console:
        alice, root = visit(console, *ALICE), visit(console, *ROOT)
        assert alice.get("/api/subjects")["subjects"] == ["alice-value"]
        assert root.get("/api/subjects")["subjects"] == ["alice-value", "secret-value"]
        for path in ("/api/subjects/secret-value", "/api/subjects/secret-value/versions/1",
                     "/api/subjects/secret-value/check?schema=%22int%22"):  # fmt: skip
            assert alice.get(path)[:2] == (403, "REGISTRY_40301")
        body = {"schema": '{"type":"record","name":"Alices","fields":[],"doc":"new"}'}
        assert alice.change("POST", "/api/subjects/secret-value/versions", body)[:2] == (403, "REGISTRY_40301")
        assert alice.change("DELETE", "/api/subjects/secret-value/versions/1")[:2] == (403, "REGISTRY_40301")
        assert alice.change("POST", "/api/subjects/alice-value/versions", body)["id"] == 3
        assert alice.change("DELETE", "/api/subjects/alice-value/versions/2") == {"deleted": 2}


def test_records_are_decoded_with_the_users_own_rights(secured: Cluster, visit: Make, registry: Registry) -> None:
    ids = {name: registry.get(f"/subjects/{name}-value/versions/1")["id"] for name in ("secret", "alice")}

    async def write() -> None:
        async with AsyncClient(client_config(secured.bootstrap)) as admin:
            await create_topics(admin, [NewTopic(name="alice-framed", partitions=1)])

    asyncio.run(write())
    producer = ConfluentProducer({"bootstrap.servers": secured.bootstrap})
    for schema_id in ids.values():
        producer.produce("alice-framed", value=wire.frame(schema_id, b" "))
    assert producer.flush(DEADLINE_S) == 0
    with started(secured, schema_registry=registry.url) as console:
        path = "/api/topics/alice-framed/messages?value=registry&from=oldest"
        seen = {
            user[0]: [record["value"] for record in visit(console, *user).get(path)["records"]]
            for user in (ROOT, ALICE)
        }
        assert f"schema {ids['secret']}: " in seen["alice"][0]["note"], seen["alice"]
        assert "not found" in seen["alice"][0]["note"]
        assert "not found" not in seen["root"][0]["note"]


def test_a_user_whom_the_registry_does_not_know_is_still_signed_in(secured: Cluster, visit: Make) -> None:
    access = access_of({"users": {"root": hash_password("another")}, "rules": []}, "access.toml")
    with (
        running_registry(replace(config_for(secured), access=access)) as registry,
        started(secured, schema_registry=registry.url) as console,
    ):
        root = visit(console, *ROOT)
        for _ in range(30):  # the failures of one user must not slow the others down
            assert root.get("/api/subjects")[:2] == (403, "REGISTRY_SIGN_IN")
        pace = registry.config.access._pace
        assert pace.wait_ms("127.0.0.1", 10**9) == 0
        assert "secret-plans" in str(root.get("/api/topics"))


@pytest.mark.parametrize(
    ("url", "goes"),
    [("http://127.0.0.1:8081", True), ("http://localhost:8081,https://registry.example", True),
     ("http://registry.example:8081", False), ("https://registry.example,http://registry.example", False)],
)  # fmt: skip
def test_passwords_go_to_a_registry_over_https_or_stay_here(url: str, goes: bool) -> None:
    settings = Settings(client=client_config("localhost:9092"), sign_in=True, schema_registry=url)
    for credentials in (Credentials("alice", password="secret"), Credentials("alice", token="secret")):
        found = registry_config(settings, credentials)
        assert ("secret" in str(found)) is goes
    assert registry_config(settings, Credentials("alice:bob", password="secret")) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schema_registry": "http://alice:secret@localhost:8081"}, "--schema-registry-config"),
        ({"schema_registry": "http://localhost:8081,http://token@localhost"}, "--schema-registry-config"),
        ({"schema_registry_config": {"bearer.auth.token": "x"}}, "needs --schema-registry"),
        ({"schema_registry": "http://localhost", "schema_registry_config": {"basic.auth.user.info": "a:b"}, "sign_in": True},
         "with their own credentials"),
    ],
)  # fmt: skip
def test_a_registry_that_the_console_cannot_ask_safely_is_refused(settings: dict[str, Any], message: str) -> None:
    sasl = client_config("localhost:9092", {"security.protocol": "SASL_PLAINTEXT"})
    with pytest.raises(ConfigError, match=message) as refused:
        check_settings(Settings(client=sasl, **settings))
    assert "secret" not in str(refused.value)


def test_a_console_without_sign_in_has_credentials_of_its_own_for_the_registry(
    secured: Cluster, visit: Make, registry: Registry
) -> None:
    open_console = {"client": client_config(secured.bootstrap), "sign_in": False, "schema_registry": registry.url}
    with started(secured, **open_console, schema_registry_config={"basic.auth.user.info": ":".join(ALICE)}) as console:
        assert visit(console).get("/api/subjects")["subjects"] == ["alice-value"]
    with started(secured, **open_console) as console:
        assert visit(console).get("/api/subjects")[:2] == (403, "REGISTRY_SIGN_IN")


def test_a_users_password_is_set_and_not_written_down(visitor: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "barnabas"):
        answer = visitor(*ROOT).change(
            "PUT", "/api/users/carol", {"password": "carols-secret", "mechanism": "SCRAM-SHA-512"}
        )
    assert not isinstance(answer, tuple), answer
    assert "carols-secret" not in str(answer)
    lines = [record.getMessage() for record in caplog.records]
    assert any("/users/{user}" in line and "carol" in line for line in lines), lines
    assert not any("carols-secret" in line for line in lines)


def test_every_change_is_written_down(visitor: Make, caplog: pytest.LogCaptureFixture) -> None:
    root, alice = visitor(*ROOT), visitor(*ALICE)
    with caplog.at_level(logging.INFO, "barnabas.console.audit"):
        root.change("POST", PRODUCE, RECORD)
        alice.change("POST", PRODUCE, RECORD)
    lines = [record.getMessage() for record in caplog.records if record.name == "barnabas.console.audit"]
    done = next(line for line in lines if "does=POST /topics/{topic}/messages" in line)
    failed = next(line for line in lines if "fails=POST /topics/{topic}/messages" in line)
    assert 'user="root"' in done and "alice-orders" in done and "from=127.0.0.1" in done
    assert 'user="alice"' in failed and "alice-orders" in failed
    # Readers of the log may lack the right to read the topic.
    assert not any(RECORD["value"]["text"] in line for line in lines)


def test_no_secret_is_written_down(visitor: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        root = visitor(*ROOT)
        visitor(*ALICE)
        visitor().sign_in("alice", "a-wrong-guess")
        root.get("/api/topics")
    logged = "\n".join(
        str(record.__dict__)
        for record in caplog.records
        if record.name.startswith(("barnabas.console", "barnabas.services"))
    )
    assert "sign-in" in logged
    for secret in (ROOT[1], ALICE[1], "a-wrong-guess", root.token or "-", *root.http.cookies.values()):
        assert secret not in logged


def test_a_log_line_hides_what_is_secret_in_a_change() -> None:
    body = {
        "user": "bob",
        "password": "pw-1",
        "list": [{"sasl.jaas.config": "pw-2"}],
        "configs": {"ssl.key-store.password": "pw-3"},
    }
    shown = guard_module._described({"user": "bob"}, {}, body)
    assert "bob" in shown and "pw-" not in shown
    assert len(guard_module._described({"name": "x" * 100_000})) < 3000


# -- bounds ---------------------------------------------------------------------------------------------------------------


def test_a_stranger_can_send_little(visitor: Make) -> None:
    response = visitor().http.post("/api/session", json={"user": "a", "password": "x" * 200_000})
    assert response.status_code == 413


def test_a_body_is_bounded_before_it_is_read(visitor: Make) -> None:
    root = visitor(*ROOT)

    def endless() -> Iterator[bytes]:
        yield b'{"value": "'
        for _ in range(64):
            yield b"x" * 1_000_000

    headers = {"x-csrf-token": root.token or "", "content-type": "application/json"}
    try:
        status = root.http.post(PRODUCE, content=endless(), headers=headers).status_code
    except httpx.TransportError:
        return  # the console hung up on the rest of it
    assert status == 413


def test_searches_are_bounded_by_user_and_in_all(console: Console) -> None:
    from barnabas.services.console.errors import Refusal
    from barnabas.services.console.web import User

    guard = console.server.app.state.services.guard
    users = [User(f"user-{number}", None) for number in range(20)]
    with pytest.raises(Refusal, match="too many searches"), _nested(guard, [users[0]] * 10) as begun:
        raise AssertionError("not reached")
    assert guard._searches == {}
    begun = 0
    with pytest.raises(Refusal, match="too many searches"), _nested(guard, users):
        begun += 1
    assert begun == 0 and guard._searches == {}


@contextmanager
def _nested(guard: Any, users: list[Any]) -> Iterator[None]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for user in users:
            stack.enter_context(guard.searching(user))
        yield


# -- HTTPS ----------------------------------------------------------------------------------------------------------------


def test_over_https_the_cookie_is_bound_to_the_host(secured: Cluster, tmp_path: Path) -> None:
    authority = LocalAuthority.create("console test")
    (tmp_path / "ca.pem").write_text(authority.certificate_pem)
    (tmp_path / "console.pem").write_text(authority.issue("console", ["localhost", "127.0.0.1"]))
    with started(secured, certificate=str(tmp_path / "console.pem"), host="0.0.0.0") as console:
        port = console.server.url.rpartition(":")[2]
        tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=tls, timeout=DEADLINE_S, trust_env=False
        ) as http:
            response = http.post("/api/session", json={"user": ALICE[0], "password": ALICE[1]})
            cookie = response.headers["set-cookie"]
            assert cookie.startswith("__Host-") and "; secure" in cookie.lower()
            assert response.headers["strict-transport-security"].startswith("max-age=")
            assert http.get("/api/topics").status_code == 200
