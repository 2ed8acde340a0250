"""Access: users, tokens, rules; HTTPS; and a cluster with TLS and SASL."""

import asyncio
import base64
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.errors import ConfigError
from barnabas.cli.local_cluster import wait_until
from barnabas.client.config import client_config, load_properties
from barnabas.services.registry import access as access_module
from barnabas.services.registry.access import Access, SignedTokens, access_of, hash_password, hash_token, load
from barnabas.services.registry.errors import Refusal
from barnabas.testing import Cluster
from barnabas.wire.auth import login_pace
from barnabas.wire.auth.jwt import encode_unsecured
from barnabas.wire.auth.mechanisms.oauthbearer import TokenRules
from barnabas.wire.auth.registry import KeySetSettings
from tests.manual_time import ManualClock
from tests.oauth_provider import AUDIENCE, ISSUER, Provider, SigningKey, key_set, serving
from tests.pki import Authority
from tests.scenarios.registry.conftest import DEADLINE_S, Registry, config_for, running
from tests.scenarios.registry.test_api import A

TOKEN = "a-long-random-token"


def _access() -> Access:
    return access_of(
        {
            "users": {"ann": hash_password("secret"), "root": hash_password("boss")},
            "tokens": {"job": hash_token(TOKEN)},
            "rules": [
                {"users": ["*"], "read": ["shared-*"]},
                {"users": ["ann"], "read": ["ann.*"], "write": ["ann.own-*"]},
                {"users": ["job"], "write": ["shared-jobs"]},
                {"users": ["root"], "write": ["*"]},
            ],
        },
        "access.toml",
    )


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("user", "subject", "reads", "writes"),
    [
        ("ann", "ann.own-orders", True, True),
        ("ann", "ann.orders", True, False),
        ("ann", "annxown-orders", False, False),
        ("ann", "shared-x", True, False),
        ("ann", "other", False, False),
        ("job", "shared-jobs", True, True),
        ("job", "ann.own-orders", False, False),
        ("root", "anything\nat all", True, True),
        ("ann", None, False, False),
        ("root", None, True, True),
    ],
)
def test_rules_decide_which_users_may_read_and_write(user: str, subject: str | None, reads: bool, writes: bool) -> None:
    access = _access()
    assert access.may_write(user, subject) is writes
    if subject is not None:
        assert access.may_read(user, subject) is reads


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"user": {}}, "unknown table user: use users, tokens, jwt, rules"),
        ({"users": {"a": "secret"}}, "the value of a is not a hash"),
        ({"rules": [{"users": ["nobody"]}]}, "there is no user or token 'nobody'"),
        ({"rules": [{"users": ["*"], "writes": []}]}, "unknown entry writes: use users, read, write"),
        ({"rules": [{"users": "*"}]}, "users must be a list of strings"),
        ({"jwt": {}}, "needs jwks"),
        ({"jwt": {"jwks": "https://x", "isuer": "y"}}, "unknown entry isuer: use"),
        ({"jwt": {"jwks": "https://x", "audience": "y"}}, "audience must be a list of strings"),
        ({"jwt": {"jwks": "ftp://x"}}, "must be a URL"),
        ({"jwt": {"jwks": "file:///nowhere"}}, "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        access_of(document, "access.toml")


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(f'[users]\nann = "{hash_password("x")}"\n[[rules]]\nusers = ["ann"]\nwrite = ["*"]\n')
    assert load(file).may_write("ann", None)
    file.write_text("[users")
    with pytest.raises(ConfigError):
        load(file)
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[Registry]:
    with running(replace(config_for(cluster), access=_access()), headers=basic("root", "boss")) as registry:
        for subject in ("ann.own-orders", "shared-jobs", "other"):
            registry.register(subject, f'{{"type":"fixed","name":"F","size":{len(subject)}}}')
        yield registry


def test_request_without_sign_in_gets_nothing(guarded: Registry) -> None:
    for headers in (
        {"Authorization": ""},
        basic("root", "wrong"),
        basic("nobody", "boss"),
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic !"},
        {"Authorization": "Digest x"},
    ):
        answer = guarded.http.get("/subjects", headers=headers)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert "www-authenticate" in answer.headers


def test_a_user_sees_and_changes_what_the_rules_allow(guarded: Registry) -> None:
    ann = basic("ann", "secret")
    http = guarded.http
    assert http.get("/subjects", headers=ann).json() == ["ann.own-orders", "shared-jobs"]
    assert http.get("/subjects/other/versions/1", headers=ann).status_code == 403
    other = guarded.get("/subjects/other/versions/1")
    assert http.get(f"/schemas/ids/{other['id']}", headers=ann).status_code == 404
    assert http.get(f"/schemas/ids/{other['id']}/versions", headers=ann).json()["error_code"] == 40403
    assert [each["subject"] for each in http.get("/schemas", headers=ann).json()] == ["ann.own-orders", "shared-jobs"]
    for method, path, body in (
        ("POST", "/subjects/shared-jobs/versions", {"schema": A}),
        ("DELETE", "/subjects/shared-jobs", None),
        ("DELETE", "/subjects/shared-jobs/versions/1", None),
        ("PUT", "/config/shared-jobs", {"compatibility": "NONE"}),
        ("PUT", "/mode/shared-jobs", {"mode": "READONLY"}),
        ("PUT", "/config", {"compatibility": "NONE"}),
        ("PUT", "/mode", {"mode": "READONLY"}),
        ("DELETE", "/contexts/.x", None),
    ):
        answer = http.request(method, path, json=body, headers=ann)
        assert (answer.status_code, answer.json()["error_code"]) == (403, 40301), path
    assert http.put("/config/ann.own-orders", json={"compatibility": "NONE"}, headers=ann).status_code == 200
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert http.put("/config/shared-jobs", json={"compatibility": "NONE"}, headers=bearer).status_code == 200
    assert http.put("/config/ann.own-orders", json={"compatibility": "NONE"}, headers=bearer).status_code == 403
    assert http.get("/config", headers=ann).status_code == 200


def test_an_alias_does_not_lead_around_the_rules(guarded: Registry) -> None:
    http, ann = guarded.http, basic("ann", "secret")
    assert http.put("/config/ann.own-alias", json={"alias": "other"}, headers=ann).status_code == 200
    assert http.get("/subjects/ann.own-alias/versions/1", headers=ann).status_code == 403
    assert http.post("/subjects/ann.own-alias/versions", json={"schema": A}, headers=ann).status_code == 403


def test_instances_speak_https_with_each_other_and_a_secure_cluster(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    key = authority.issue("registry", subject="/CN=localhost")
    with Cluster(brokers=1, secure=True, config={"group.min.session.timeout.ms": "500"}) as cluster:
        file = cluster.command_config("client")
        assert file is not None
        config = replace(
            config_for(cluster, client=client_config(cluster.bootstrap, load_properties(file))),
            access=_access(),
            advertised_host="localhost",
            certificate=str(key),
            ca=str(authority.certificate),
        )
        trust = ssl.create_default_context(cafile=str(authority.certificate))
        headers = basic("root", "boss")
        with (
            running(config, headers=headers, verify=trust) as first,
            running(config, headers=headers, verify=trust) as second,
        ):
            assert first.url.startswith("https://localhost:")
            assert second.register("s", A)["id"] == 1
            assert first.get("/subjects/s/versions") == [1]
            assert first.is_primary is not second.is_primary
            answer = second.http.post("/subjects/s/versions", json={"schema": A}, headers=basic("ann", "secret"))
            assert answer.status_code == 403


# -- tokens that a provider has signed --------------------------------------------------------------------------------------


def _signed(url: str) -> Access:
    return access_of(
        {
            "jwt": {"jwks": url, "issuer": ISSUER, "audience": ["other", AUDIENCE], "refresh_s": 1},
            "users": {"ann": hash_password("secret")},
            "rules": [{"users": ["alice", "ann"], "write": ["orders-*"]}],
        },
        "access.toml",
    )


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_token_of_a_provider_signs_in_the_user_that_it_names(cluster: Cluster, tmp_path: Path) -> None:
    key, stranger = SigningKey("one"), SigningKey("one")
    file = tmp_path / "keys.json"
    file.write_text(key_set(key))
    access = _signed(file.as_uri())
    with running(config_for(cluster, access=access)) as registry:
        http = registry.http
        path = "/subjects/orders-value/versions"
        assert http.post(path, json={"schema": A}, headers=bearer(key.token())).status_code == 200
        assert http.post(path, json={"schema": A}, headers=basic("ann", "secret")).status_code == 200
        assert http.post(path, json={"schema": A}, headers=bearer(key.token(sub="bob"))).status_code == 403
        now = int(time.time())
        for wrong in (
            stranger.token(),
            key.token(iss="https://elsewhere"),
            key.token(aud="another"),
            key.token(exp=now - 100, iat=now - 200),
            key.token(exp=None),
            key.token(sub=None),
            encode_unsecured({"sub": "alice", "exp": now + 60, "iat": now, "iss": ISSUER, "aud": AUDIENCE}),
            "a.b.c",
        ):
            answer = http.post(path, json={"schema": A}, headers=bearer(wrong))
            assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
            assert "bearer" in answer.headers["www-authenticate"].lower()


def test_key_that_a_provider_adds_is_found(cluster: Cluster) -> None:
    with (
        serving(Provider(SigningKey("old"))) as provider,
        running(config_for(cluster, access=_signed(f"{provider.url}/jwks"))) as registry,
    ):
        new = SigningKey("new")
        provider.keys.append(new)

        def is_in() -> bool:
            return registry.http.get("/subjects", headers=bearer(new.token())).status_code == 200

        wait_until(is_in, DEADLINE_S, what="the new key")


async def test_signed_token_counts_until_it_ends(tmp_path: Path) -> None:
    key = SigningKey("one")
    file = tmp_path / "keys.json"
    file.write_text(key_set(key))
    clock = ManualClock(int(time.time() * 1000))
    access = _signed(file.as_uri())
    access.clock = clock
    access.signed = SignedTokens(KeySetSettings(file.as_uri(), 1, 1, 1), TokenRules(clock_skew_ms=0), clock)
    text = bearer(key.token())["Authorization"]

    assert await access.sign_in(text, "there") == "alice"
    assert await access.sign_in(text, "there") == "alice"
    clock.advance_ms(61_000)
    with pytest.raises(Refusal, match="Unauthorized"):
        await access.sign_in(text, "there")


# -- those who guess --------------------------------------------------------------------------------------------------------


async def test_guesses_of_one_address_wait_for_each_other_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_pace, "STEP_MS", 1)
    access = _access()
    access.clock = ManualClock()

    async def guess(host: str, token: str = "wrong") -> str | int:
        try:
            return await access.sign_in(f"Bearer {token}", host) or ""
        except Refusal as refusal:
            return refusal.status

    assert [await guess("bad") for _ in range(login_pace.FREE_FAILURES)] == [401] * login_pace.FREE_FAILURES
    together = login_pace.WAITING_MAX + 30
    guesses = [asyncio.create_task(guess("bad")) for _ in range(together)]
    await asyncio.sleep(0)
    assert sum(task.done() for task in guesses) == 30, "they are refused at once, and the others wait"
    assert await guess("good", TOKEN) == "job"
    found = await asyncio.gather(*guesses)
    assert (found.count(401), found.count(429)) == (login_pace.WAITING_MAX, 30)
    assert await guess("bad", TOKEN) == "job", "the right one is taken, if later"


def test_few_passwords_are_hashed_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    running_now: list[int] = []
    most = [0]

    def slow(password: str, salt: bytes | None = None) -> str:
        running_now.append(1)
        most[0] = max(most[0], len(running_now))
        assert hold.wait(DEADLINE_S)
        running_now.pop()
        return ""

    access = _access()
    monkeypatch.setattr(access_module, "hash_password", slow)

    async def guess(number: int) -> int:
        try:
            await access.sign_in(basic("ann", f"wrong {number}")["Authorization"], f"host {number}")
        except Refusal as refusal:
            return refusal.status
        raise AssertionError("a wrong password was taken")

    async def main() -> None:
        guesses = [asyncio.create_task(guess(number)) for number in range(150)]
        await asyncio.sleep(0)
        assert sum(task.done() for task in guesses) == 50
        hold.set()
        found = await asyncio.gather(*guesses)
        assert (found.count(401), found.count(429)) == (100, 50)

    asyncio.run(main())
    assert most[0] <= 2
