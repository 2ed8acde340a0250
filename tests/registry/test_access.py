"""Who may do what: users, tokens, rules; HTTPS; and the cluster behind it with TLS and SASL."""

import base64
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.client.config import client_config, load_properties
from barnabas.core.errors import ConfigError
from barnabas.registry.access import Access, access_of, hash_password, hash_token, load
from barnabas.testing import Cluster
from tests.pki import Authority
from tests.registry.conftest import Registry, config_for, running
from tests.registry.test_api import A

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
def test_rules_say_who_may_read_and_write(user: str, subject: str | None, reads: bool, writes: bool) -> None:
    access = _access()
    assert access.may_write(user, subject) is writes
    if subject is not None:
        assert access.may_read(user, subject) is reads


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"user": {}}, "user is none of users, tokens, rules"),
        ({"users": {"a": "secret"}}, "the value of a is no hash"),
        ({"rules": [{"users": ["nobody"]}]}, "there is no user or token 'nobody'"),
        ({"rules": [{"users": ["*"], "writes": []}]}, "writes is none of users, read, write"),
        ({"rules": [{"users": "*"}]}, "users must be a list of strings"),
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


def test_who_does_not_sign_in_gets_nothing(guarded: Registry) -> None:
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
    assert http.get(f"/schemas/ids/{other['id']}/versions", headers=ann).json() == []
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
