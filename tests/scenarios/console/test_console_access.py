"""ACLs, quotas and users, changed here and seen by another client; schemas of a registry."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as AclResource

from barnabas.testing import Cluster
from tests.scenarios.console.conftest import DEADLINE_S, Console, running
from tests.scenarios.registry.conftest import config_for
from tests.scenarios.registry.conftest import running as running_registry


@pytest.fixture(scope="module")
def authorized() -> Iterator[Cluster]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Cluster(brokers=1, config=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def access_console(authorized: Cluster) -> Iterator[Console]:
    with (
        running_registry(config_for(authorized)) as registry,
        running(authorized, read_write=True, schema_registry=registry.url) as console,
    ):
        yield console


def test_entry_added_here_is_seen_by_others_and_removed(access_console: Console, authorized: Cluster) -> None:
    entry = {"resource": "TOPIC", "name": "orders", "pattern": "PREFIXED", "principal": "User:ann", "operation": "READ"}
    access_console.change("POST", "/api/acls", entry)
    admin = AdminClient({"bootstrap.servers": authorized.bootstrap})
    everything = AclBindingFilter(
        AclResource.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    (found,) = admin.describe_acls(everything).result(DEADLINE_S)
    assert (found.name, found.principal, found.operation) == ("orders", "User:ann", AclOperation.READ)
    listed = access_console.get("/api/acls", search="ANN")["acls"]
    assert listed == [entry | {"host": "*", "permission": "ALLOW"}]
    assert access_console.get("/api/acls", search="nobody")["total"] == 0
    access_console.change("DELETE", "/api/acls", listed[0])
    assert admin.describe_acls(everything).result(DEADLINE_S) == []
    wrong = entry | {"operation": "FLY"}
    assert access_console.change("POST", "/api/acls", wrong)[:2] == (400, "BAD_REQUEST")


def test_cluster_without_an_authorizer_says_so(console: Console) -> None:
    assert console.get("/api/acls")[1] == "SECURITY_DISABLED"


def test_quotas_are_set_and_taken_back(access_console: Console) -> None:
    for entity in ({"user": "ann"}, {"user": None}, {"user": "ann", "client-id": "c"}, {"ip": "127.0.0.1"}):
        name = "connection_creation_rate" if "ip" in entity else "producer_byte_rate"
        access_console.change("PATCH", "/api/quotas", {"entity": entity, "quotas": {name: 1024}})
        assert {"entity": entity, "quotas": {name: 1024}} in access_console.get("/api/quotas")["quotas"]
        access_console.change("PATCH", "/api/quotas", {"entity": entity, "quotas": {name: None}})
    assert access_console.get("/api/quotas")["quotas"] == []
    unknown = {"entity": {"planet": "mars"}, "quotas": {}}
    assert access_console.change("PATCH", "/api/quotas", unknown)[:2] == (400, "BAD_REQUEST")


def test_users_are_listed_without_passwords(access_console: Console) -> None:
    body = {"password": "geheim", "mechanism": "SCRAM-SHA-512"}
    access_console.change("PUT", "/api/users/ann", body)
    answer = access_console.http.get("/api/users")
    assert answer.json()["users"] == [
        {"user": "ann", "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}]}
    ]
    assert "geheim" not in answer.text
    access_console.change("DELETE", "/api/users/ann/SCRAM-SHA-512")
    assert access_console.get("/api/users")["users"] == []
    assert access_console.change("PUT", "/api/users/ann", {"password": "x", "mechanism": "MD5"})[0] == 400


def test_schemas_are_registered_checked_and_shown(access_console: Console, console: Console) -> None:
    def record(*fields: str) -> str:
        return json.dumps(
            {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in fields]}
        )

    path = "/api/subjects/a%2Fb-value"
    first = access_console.change("POST", f"{path}/versions", {"schema": record("a")})
    assert access_console.get("/api/subjects", search="A/B")["subjects"] == ["a/b-value"]
    assert access_console.get(path) == {"subject": "a/b-value", "versions": [1], "compatibility": "BACKWARD"}
    version = access_console.get(f"{path}/versions/1")
    assert version["id"] == first["id"] and json.loads(version["schema"]) == json.loads(record("a"))
    assert access_console.get(f"{path}/check", schema=record("a"))["isCompatible"] is True
    verdict = access_console.get(f"{path}/check", schema=record("a", "b"))
    assert verdict["isCompatible"] is False and verdict["messages"]
    refused = access_console.change("POST", f"{path}/versions", {"schema": record("a", "b")})
    assert refused[:2] == (409, "REGISTRY_409")
    assert access_console.get(f"{path}/versions/9")[:2] == (404, "REGISTRY_40402")
    assert console.get("/api/subjects")[:2] == (501, "NO_REGISTRY")
