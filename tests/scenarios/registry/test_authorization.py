"""The rights at every route: of the owner of a subject, another user, a stranger and an administrator."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import httpx
import pytest

from barnabas.services.registry.access import OPEN, access_of, hash_token
from barnabas.services.registry.api import Api
from barnabas.services.registry.forwarding import Forwarder
from barnabas.testing import Cluster
from tests.scenarios.registry.conftest import Registry, config_for, running

OWNER, OTHER, STRANGER, ADMIN = "owner", "other", "stranger", "admin"
USERS: Final = (OWNER, OTHER, STRANGER, ADMIN)
RULES: Final = [
    {"users": [OWNER], "write": ["own-*", ":.own:*"]},
    {"users": [OTHER], "write": ["other-*", ":.other:*"]},
    {"users": [ADMIN], "write": ["*"]},
]
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The status that each user gets. A stranger always gets 401."""

    path: str
    owner: int = 200
    other: int = 403
    admin: int = 200
    body: Any = None

    def status(self, user: str) -> int:
        return {OWNER: self.owner, OTHER: self.other, ADMIN: self.admin, STRANGER: 401}[user]


NEW: Final = {"schema": "NEW"}
ROWS: Final[dict[tuple[str, str], Row]] = {
    ("GET", ""): Row(path="/", other=200),
    ("GET", "subjects"): Row(path="/subjects", other=200),
    ("POST", "subjects/{subject}"): Row(path="/subjects/{subject}", body={"schema": "SAME"}),
    ("DELETE", "subjects/{subject}"): Row(path="/subjects/{subject}"),
    ("GET", "subjects/{subject}/metadata"): Row(path="/subjects/{subject}/metadata"),
    ("GET", "subjects/{subject}/versions"): Row(path="/subjects/{subject}/versions"),
    ("POST", "subjects/{subject}/versions"): Row(path="/subjects/{subject}/versions", body=NEW),
    ("GET", "subjects/{subject}/versions/{version}"): Row(path="/subjects/{subject}/versions/1"),
    ("DELETE", "subjects/{subject}/versions/{version}"): Row(path="/subjects/{subject}/versions/1"),
    ("GET", "subjects/{subject}/versions/{version}/schema"): Row(path="/subjects/{subject}/versions/1/schema"),
    ("GET", "subjects/{subject}/versions/{version}/referencedby"): Row(
        path="/subjects/{subject}/versions/1/referencedby"
    ),
    ("GET", "schemas"): Row(path="/schemas", other=200),
    ("GET", "schemas/types"): Row(path="/schemas/types", other=200),
    ("GET", "schemas/ids/{id}"): Row(path="/schemas/ids/{id}?fetchMaxId=true", other=404),
    ("GET", "schemas/ids/{id}/schema"): Row(path="/schemas/ids/{id}/schema", other=404),
    ("GET", "schemas/ids/{id}/subjects"): Row(path="/schemas/ids/{id}/subjects", other=404),
    ("GET", "schemas/ids/{id}/versions"): Row(path="/schemas/ids/{id}/versions", other=404),
    ("GET", "schemas/guids/{guid}"): Row(path="/schemas/guids/{guid}", other=404),
    ("GET", "schemas/guids/{guid}/ids"): Row(path="/schemas/guids/{guid}/ids", other=200),
    ("POST", "compatibility/subjects/{subject}/versions"): Row(
        path="/compatibility/subjects/{subject}/versions", body=NEW
    ),
    ("POST", "compatibility/subjects/{subject}/versions/{version}"): Row(
        path="/compatibility/subjects/{subject}/versions/latest", body=NEW
    ),
    ("GET", "config"): Row(path="/config", other=200),
    ("PUT", "config"): Row(path="/config", owner=403, body={"compatibility": "NONE"}),
    ("DELETE", "config"): Row(path="/config", owner=403),
    ("GET", "config/{subject}"): Row(path="/config/{subject}"),
    ("PUT", "config/{subject}"): Row(path="/config/{subject}", body={"compatibility": "FULL"}),
    ("DELETE", "config/{subject}"): Row(path="/config/{subject}"),
    ("GET", "mode"): Row(path="/mode", other=200),
    ("PUT", "mode"): Row(path="/mode", owner=403, body={"mode": "READWRITE"}),
    ("DELETE", "mode"): Row(path="/mode", owner=403),
    ("GET", "mode/{subject}"): Row(path="/mode/{subject}"),
    ("PUT", "mode/{subject}"): Row(path="/mode/{subject}", body={"mode": "READWRITE"}),
    ("DELETE", "mode/{subject}"): Row(path="/mode/{subject}"),
    ("GET", "contexts"): Row(path="/contexts", other=200),
    ("DELETE", "contexts/{context}"): Row(path="/contexts/.unused", owner=403),
    ("GET", "v1/metadata/id"): Row(path="/v1/metadata/id", other=200),
    ("GET", "v1/metadata/version"): Row(path="/v1/metadata/version", other=200),
}


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[Registry]:
    tokens = {user: hash_token(user) for user in (OWNER, OTHER, ADMIN)}
    access = access_of({"tokens": tokens, "rules": RULES}, "access.toml")
    with running(replace(config_for(cluster), access=access), headers=_as(ADMIN)) as registry:
        yield registry


def _as(user: str) -> dict[str, str]:
    return {"Authorization": "" if user == STRANGER else f"Bearer {user}"}


def _schema(marker: str) -> str:
    return json.dumps({"type": "record", "name": marker, "fields": [{"name": f"field_{marker}", "type": "int"}]})


@dataclass(frozen=True)
class Thing:
    """A subject of its own, with settings, and a schema that nothing else has."""

    subject: str
    marker: str
    id: int
    guid: str

    @property
    def reference(self) -> dict[str, Any]:
        return {"name": self.marker, "subject": self.subject, "version": 1}

    def fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            texts = {"SAME": _schema(self.marker), "NEW": json.dumps({"type": "fixed", "name": self.marker, "size": 3})}
            return {name: texts.get(str(each), each) for name, each in value.items()}
        return value


def make(registry: Registry, prefix: str = "own-", **more: Any) -> Thing:
    marker = f"M{next(_numbers):04}"
    subject = f"{prefix}{marker}"
    made = registry.register(subject, _schema(marker), **more)
    assert registry.put(f"/config/{subject}", {"compatibility": "NONE"})["compatibility"] == "NONE"
    registry.put(f"/mode/{subject}", {"mode": "READWRITE"})
    return Thing(subject, marker, made["id"], made["guid"])


_kept: dict[str, Thing] = {}


def read_only(registry: Registry, prefix: str) -> Thing:
    """A thing that several tests only look at."""
    if prefix not in _kept:
        _kept[prefix] = make(registry, prefix)
    return _kept[prefix]


def ask(registry: Registry, user: str, method: str, path: str, body: Any = None) -> httpx.Response:
    return registry.http.request(method, path, json=body, headers=_as(user))


def test_every_route_has_a_row(guarded: Registry) -> None:
    routes = Api(guarded.server.node, cast(Forwarder, None), OPEN).routes()
    assert {(route.method, route.pattern) for route in routes} == ROWS.keys()


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("prefix", ["own-", ":.own:"])
@pytest.mark.parametrize("route", ROWS, ids=" ".join)
def test_route_answers_each_user_as_its_row_says(
    guarded: Registry, route: tuple[str, str], prefix: str, user: str
) -> None:
    row, thing = ROWS[route], read_only(guarded, prefix) if route[0] == "GET" else make(guarded, prefix)
    path = row.path.format(subject=thing.subject, id=thing.id, guid=thing.guid)
    if prefix != "own-" and "/ids/" in path:
        path += ("&" if "?" in path else "?") + f"subject={prefix}"
    answer = ask(guarded, user, route[0], path, thing.fill(row.body))
    assert answer.status_code == row.status(user), answer.text
    if user in (OTHER, STRANGER):
        assert f"field_{thing.marker}" not in answer.text
        if answer.status_code == 200:
            assert thing.subject not in answer.text and ".own" not in answer.text
    if user == OTHER:
        assert guarded.get(f"/subjects/{thing.subject}/versions") == [1], "nothing changed"
        assert guarded.get(f"/config/{thing.subject}") == {"compatibilityLevel": "NONE"}


# -- what references lead to ------------------------------------------------------------------------------------------------


def _referring(thing: Thing, name: str) -> dict[str, Any]:
    schema = {"type": "record", "name": name, "fields": [{"name": "x", "type": thing.marker}]}
    return {"schema": json.dumps(schema), "references": [thing.reference]}


@pytest.mark.parametrize(
    "path",
    [
        "/subjects/{subject}/versions",
        "/subjects/{subject}",
        "/compatibility/subjects/{subject}/versions",
        "/compatibility/subjects/{subject}/versions/latest?verbose=true",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_schema_may_not_refer_to_a_subject_that_its_user_may_not_read(
    guarded: Registry, path: str, exists: bool
) -> None:
    secret, mine = make(guarded), make(guarded, "other-")
    if not exists:
        secret = replace(secret, subject="own-that-does-not-exist")
    body = _referring(secret, f"R{next(_numbers)}")
    answer = ask(guarded, OTHER, "POST", path.format(subject=mine.subject), body)
    assert (answer.status_code, answer.json()["error_code"]) == (403, 40301), answer.text
    assert guarded.get(f"/subjects/{mine.subject}/versions") == [1]
    if exists:
        allowed = ask(guarded, ADMIN, "POST", f"/subjects/{mine.subject}/versions", body)
        assert allowed.status_code == 200, allowed.text


def test_reference_through_a_readable_subject_is_not_followed_either(guarded: Registry) -> None:
    secret, middle = make(guarded), f"other-{next(_numbers)}"
    guarded.post(f"/subjects/{middle}/versions", _referring(secret, "Middle"))
    body = {
        "schema": '{"type":"record","name":"Top","fields":[{"name":"x","type":"Middle"}]}',
        "references": [{"name": "Middle", "subject": middle, "version": 1}],
    }
    assert ask(guarded, OTHER, "POST", "/subjects/other-top/versions", body).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/subjects/{subject}/versions/1",
        "/subjects/{subject}/versions/1/schema",
        "/schemas/ids/{id}",
        "/schemas/ids/{id}/schema",
        "/schemas/guids/{guid}",
    ],
)
def test_resolved_form_needs_the_right_to_read_what_it_shows(guarded: Registry, path: str) -> None:
    secret, subject = make(guarded), f"other-{next(_numbers)}"
    made = guarded.post(f"/subjects/{subject}/versions", _referring(secret, f"R{next(_numbers)}"))
    path = path.format(subject=subject, **made)
    plain, resolved = (ask(guarded, OTHER, "GET", each) for each in (path, f"{path}?format=resolved"))
    assert plain.status_code == 200 and f"field_{secret.marker}" not in plain.text
    assert resolved.status_code == 403 and f"field_{secret.marker}" not in resolved.text
    assert f"field_{secret.marker}" in ask(guarded, ADMIN, "GET", f"{path}?format=resolved").text


def test_referrers_contexts_and_guids_of_others_are_not_listed(guarded: Registry) -> None:
    mine, context = make(guarded, "other-"), make(guarded, ":.hidden:")
    referrer = guarded.post(f"/subjects/own-{next(_numbers)}/versions", _referring(mine, f"R{next(_numbers)}"))
    path = f"/subjects/{mine.subject}/versions/1/referencedby"
    assert ask(guarded, OTHER, "GET", path).json() == []
    assert ask(guarded, ADMIN, "GET", path).json() == [referrer["id"]]
    assert ask(guarded, OTHER, "GET", "/contexts").json() == ["."]
    assert ".hidden" in ask(guarded, ADMIN, "GET", "/contexts").json()
    assert ask(guarded, OTHER, "GET", f"/schemas/guids/{context.guid}/ids").json() == []
    assert "maxId" not in ask(guarded, OTHER, "GET", f"/schemas/ids/{mine.id}?fetchMaxId=true").json()
    assert "maxId" in ask(guarded, ADMIN, "GET", f"/schemas/ids/{mine.id}?fetchMaxId=true").json()


def test_look_up_finds_nothing_in_contexts_of_others(guarded: Registry) -> None:
    name = f"other-{next(_numbers)}"
    body = {"schema": _schema(f"M{next(_numbers)}")}
    guarded.post(f"/subjects/:.hidden:{name}/versions", body)
    assert ask(guarded, OTHER, "POST", f"/subjects/{name}", body).json()["error_code"] in (40401, 40403)
    assert ask(guarded, ADMIN, "POST", f"/subjects/{name}", body).status_code == 200


@pytest.mark.parametrize("name", [":.__GLOBAL:", ":.hidden:", ":.:", ""])
@pytest.mark.parametrize("user", [OWNER, OTHER])
def test_settings_of_contexts_need_the_right_to_write_all_that_is_in_them(
    guarded: Registry, user: str, name: str
) -> None:
    for path, body in ((f"/config/{name}", {"compatibility": "NONE"}), (f"/mode/{name}", {"mode": "IMPORT"})):
        assert ask(guarded, user, "PUT", path, body).status_code == 403
    assert ask(guarded, user, "DELETE", f"/mode/{name}?recursive=true").status_code == 403


def test_rules_for_some_subjects_of_a_context_do_not_reach_its_settings() -> None:
    rules = [{"users": ["some"], "write": [":.c:a-*", ":.c:"]}, {"users": ["all"], "write": [":.c:*"]}, {"users": ["contexts"],
             "write": [":*"]}]  # fmt: skip
    access = access_of(
        {"tokens": {user: hash_token(user) for user in ("some", "all", "contexts")}, "rules": rules}, "x"
    )
    assert [access.may_write(user, ":.c:") for user in ("some", "all", "contexts")] == [False, True, True]
    assert not access.may_write("contexts", ":.__GLOBAL:")
