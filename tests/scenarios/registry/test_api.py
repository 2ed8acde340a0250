"""The REST API over HTTP: requests of clients, and the codes and messages that they rely on."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.scenarios.registry.conftest import Registry

Subject = Callable[[], str]


def record(*fields: tuple[str, Any], name: str = "R") -> str:
    """An Avro record without defaults."""
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}, separators=(",", ":")
    )


def optional(name: str, type_: str = "string") -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None}


A = record(("a", "string"))
AB = record(("a", "string"), ("b", "string"))
#: Reads what was written with A.
A_B = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, optional("b")]})


# -- registering and looking up ---------------------------------------------------------------------------------------------


def test_the_same_schema_has_one_id_in_all_subjects_and_one_version_in_each(
    registry: Registry, subject: Subject
) -> None:
    one, other = subject(), subject()
    schema = record(("a", "string"), name="OfThisTestAlone")
    first = registry.register(one, schema)
    assert registry.register(one, schema) == first
    again = registry.register(other, schema)
    assert (again["id"], again["version"]) == (first["id"], 1)
    assert registry.get(f"/schemas/ids/{first['id']}/versions") == [
        {"subject": one, "version": 1},
        {"subject": other, "version": 1},
    ]
    assert set(registry.get(f"/schemas/ids/{first['id']}/subjects")) == {one, other}


def test_a_schema_comes_back_in_its_canonical_form(registry: Registry, subject: Subject) -> None:
    name = subject()
    spaced = json.dumps(json.loads(A), indent=2)
    registered = registry.register(name, spaced)
    assert registry.get(f"/schemas/ids/{registered['id']}")["schema"] == A
    assert registry.http.get(f"/schemas/ids/{registered['id']}/schema").text == A
    assert registry.http.get(f"/subjects/{name}/versions/latest/schema").text == A
    found = registry.get(f"/subjects/{name}/versions/1")
    assert (found["subject"], found["version"], found["id"], found["schema"]) == (name, 1, registered["id"], A)
    assert "schemaType" not in found
    assert registry.get(f"/schemas/guids/{found['guid']}")["schema"] == A
    assert registry.get(f"/schemas/guids/{found['guid']}/ids") == [{"context": ".", "id": found["id"]}]


def test_a_schema_is_looked_up_under_its_subject(registry: Registry, subject: Subject) -> None:
    name = subject()
    assert registry.post(f"/subjects/{name}", {"schema": A}) == (404, 40401, f"Subject '{name}' not found.")
    registered = registry.register(name, A)
    found = registry.post(f"/subjects/{name}", {"schema": A})
    assert (found["id"], found["version"]) == (registered["id"], 1)
    assert registry.post(f"/subjects/{name}", {"schema": AB}) == (404, 40403, "Schema not found")
    assert registry.post(f"/subjects/{name}", {"schema": ""}) == (404, 40403, "Schema not found")


def test_an_invalid_schema_is_refused(registry: Registry, subject: Subject) -> None:
    status, code, message = registry.register(subject(), '{"type":"nonsense"}')
    assert (status, code) == (422, 42201)
    assert message.startswith("Invalid schema of type AVRO, details: ")
    assert registry.register(subject(), "") == (422, 42201, "Empty schema")
    assert registry.register(subject(), A, schemaType="XML") == (422, 42201, "Invalid schema type XML")


def test_a_subject_with_slashes_and_other_characters_is_one_subject(registry: Registry, subject: Subject) -> None:
    name = f"a/b c%é-{subject()}"
    registered = registry.register(quote(name, safe=""), A)
    assert registry.get(f"/subjects/{quote(name, safe='')}/versions/1")["id"] == registered["id"]
    assert name in registry.get("/subjects")


def test_versions_are_numbers_or_latest(registry: Registry, subject: Subject) -> None:
    name = subject()
    assert registry.get(f"/subjects/{name}/versions") == (404, 40401, f"Subject '{name}' not found.")
    assert registry.get(f"/subjects/{name}/versions/1") == (404, 40401, f"Subject '{name}' not found.")
    registry.register(name, A)
    registry.register(name, A_B)
    assert registry.get(f"/subjects/{name}/versions") == [1, 2]
    assert registry.get(f"/subjects/{name}/versions/latest")["version"] == 2
    assert registry.get(f"/subjects/{name}/versions/-1")["version"] == 2
    assert registry.get(f"/subjects/{name}/versions/9") == (404, 40402, "Version 9 not found.")
    for bad in ("0", "-2", "earliest", str(2**31)):
        status, code, message = registry.get(f"/subjects/{name}/versions/{bad}")
        assert (status, code) == (422, 42202)
        assert message == (
            f"The specified version '{bad}' is not a valid version id. "
            'Allowed values are between [1, 2^31-1] and the string "latest"'
        )


def test_an_unknown_id_is_not_found(registry: Registry) -> None:
    assert registry.get("/schemas/ids/2147483647") == (404, 40403, "Schema 2147483647 not found")
    assert registry.get("/schemas/ids/2147483647/versions") == (404, 40403, "Schema not found")
    assert registry.get("/schemas/ids/abc")[0] == 404


def test_lists_have_pages_and_prefixes(registry: Registry, subject: Subject) -> None:
    stem = subject()
    names = [f"{stem}-{letter}" for letter in "abc"]
    for name in names:
        registry.register(name, A)
    assert registry.get("/subjects", subjectPrefix=stem) == names
    assert registry.get("/subjects", subjectPrefix=stem, offset=1, limit=1) == names[1:2]
    assert registry.get("/subjects", subjectPrefix=stem, offset=1, limit=0) == names[1:]
    registry.register(names[0], A_B)
    found = registry.get("/schemas", subjectPrefix=stem)
    assert [(each["subject"], each["version"]) for each in found] == [
        (names[0], 1), (names[0], 2), (names[1], 1), (names[2], 1),
    ]  # fmt: skip
    latest = registry.get("/schemas", subjectPrefix=stem, latestOnly="true")
    assert [(each["subject"], each["version"]) for each in latest] == [(names[0], 2), (names[1], 1), (names[2], 1)]


def test_metadata_and_rules_are_kept_returned_and_inherited(registry: Registry, subject: Subject) -> None:
    name = subject()
    metadata = {"properties": {"owner": "team"}, "tags": {"a": ["PII"]}}
    rule = {"name": "check", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "message.a != ''"}
    rule_set = {"domainRules": [rule]}
    registry.register(name, A, metadata=metadata, ruleSet=rule_set)
    found = registry.get(f"/subjects/{name}/versions/1")
    assert found["metadata"] == metadata
    assert found["ruleSet"] == {"domainRules": [rule | {"disabled": False}]}
    registry.register(name, A_B)
    assert registry.get(f"/subjects/{name}/versions/2")["metadata"] == metadata
    assert registry.get(f"/subjects/{name}/metadata", key="owner", value="team")["version"] == 2
    assert registry.get(f"/subjects/{name}/metadata", key="owner", value="x") == (404, 40403, "Schema not found")
    other = registry.register(subject(), A)
    assert other["id"] != found["id"], "a schema with rules is another schema than the one without"
    bad = registry.register(name, A, ruleSet={"domainRules": [{"name": "1", "type": "CEL", "mode": "WRITE"}]})
    assert bad[:2] == (422, 42210)
    odd = registry.register(name, A, ruleSet={"domainRules": [rule | {"kind": "OTHER"}]})
    assert odd == (422, 42210, "Invalid rule kind: OTHER")


# -- compatibility ----------------------------------------------------------------------------------------------------------


def test_an_incompatible_schema_is_refused_with_its_reasons(registry: Registry, subject: Subject) -> None:
    name = subject()
    registry.register(name, A)
    status, code, message = registry.register(name, AB)
    assert (status, code) == (409, 409)
    assert message.startswith(
        f'Schema being registered is incompatible with an earlier schema for subject "{name}", details: '
        "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', "
    )
    assert message.endswith("{validateFields: 'false', compatibility: 'BACKWARD'}]")
    assert registry.get(f"/subjects/{name}/versions") == [1]


def test_compatibility_is_checked_without_registering(registry: Registry, subject: Subject) -> None:
    name = subject()
    path = f"/compatibility/subjects/{name}/versions"
    assert registry.post(f"{path}/latest", {"schema": A}) == {"is_compatible": True}
    assert registry.post(f"{path}/3", {"schema": A}) == (404, 40402, "Version 3 not found.")
    registry.register(name, A)
    assert registry.post(f"{path}/latest", {"schema": A_B}) == {"is_compatible": True}
    assert registry.post(f"{path}/1", {"schema": AB}) == {"is_compatible": False}
    found = registry.post(path, {"schema": AB}, verbose="true")
    assert found["is_compatible"] is False
    assert found["messages"][1:] == [
        "{oldSchemaVersion: 1}",
        f"{{oldSchema: '{A}'}}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]
    assert registry.post(path, {"schema": "x"})[:2] == (422, 42201)
    assert registry.post(path, {"schema": "x"}, verbose="true")["is_compatible"] is False
    assert registry.post(path, {"schema": '{"type":"string"}', "schemaType": "JSON"}, verbose="true")["messages"] == [
        "Incompatible because of different schema type",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]


def test_the_level_of_the_subject_decides(registry: Registry, subject: Subject) -> None:
    name = subject()
    registry.register(name, A)
    path = f"/compatibility/subjects/{name}/versions"
    for level, is_compatible in (("NONE", True), ("FORWARD_TRANSITIVE", True), ("FULL", False)):
        assert registry.put(f"/config/{name}", {"compatibility": level}) == {"compatibility": level}
        assert registry.post(path, {"schema": AB})["is_compatible"] is is_compatible


def test_settings_of_a_subject(registry: Registry, subject: Subject) -> None:
    name = subject()
    missing = (404, 40408, f"Subject '{name}' does not have subject-level compatibility configured")
    assert registry.get(f"/config/{name}") == missing
    assert registry.get(f"/config/{name}", defaultToGlobal="true") == {"compatibilityLevel": "BACKWARD"}
    assert registry.put(f"/config/{name}", {"compatibility": "full"}) == {"compatibility": "FULL"}
    assert registry.get(f"/config/{name}") == {"compatibilityLevel": "FULL"}
    assert registry.put(f"/config/{name}", {"normalize": True}) == {"normalize": True, "compatibility": "FULL"}
    assert registry.put(f"/config/{name}", {"compatibility": "SOME"}) == (
        422,
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive",
    )
    assert registry.delete(f"/config/{name}") == {"normalize": True, "compatibilityLevel": "FULL"}
    assert registry.get(f"/config/{name}") == missing
    assert registry.delete(f"/config/{name}") == (404, 40401, f"Subject '{name}' not found.")


def test_settings_of_all_subjects(own_registry: Registry) -> None:
    assert own_registry.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert own_registry.put("/config", {"compatibility": "FULL_TRANSITIVE"}) == {"compatibility": "FULL_TRANSITIVE"}
    assert own_registry.get("/config") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert own_registry.get("/config/any", defaultToGlobal="true") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert own_registry.delete("/config") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert own_registry.get("/config") == {"compatibilityLevel": "BACKWARD"}


def test_defaults_and_overrides_fill_in_what_is_registered(registry: Registry, subject: Subject) -> None:
    name = subject()
    registry.put(
        f"/config/{name}",
        {
            "defaultMetadata": {"properties": {"owner": "nobody", "kept": "yes"}},
            "overrideMetadata": {"properties": {"kept": "forced"}},
        },
    )
    registry.register(name, A, metadata={"properties": {"owner": "me", "kept": "mine"}})
    assert registry.get(f"/subjects/{name}/versions/1")["metadata"] == {"properties": {"kept": "forced", "owner": "me"}}


def test_a_subject_may_take_schemas_that_are_not_quite_right(registry: Registry, subject: Subject) -> None:
    name = subject()
    schema = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}'
    assert registry.register(name, schema)[:2] == (422, 42201)
    registry.put(f"/config/{name}", {"validateNewSchemas": False})
    assert registry.register(name, schema)["version"] == 1


def test_an_alias_stands_for_another_subject(registry: Registry, subject: Subject) -> None:
    name, alias = subject(), subject()
    registered = registry.register(name, A)
    registry.put(f"/config/{alias}", {"alias": name})
    assert registry.get(f"/subjects/{alias}/versions/latest")["id"] == registered["id"]


# -- references -------------------------------------------------------------------------------------------------------------


def test_a_schema_may_refer_to_others_and_those_to_others(registry: Registry, subject: Subject) -> None:
    inner, middle, outer = subject(), subject(), subject()
    registry.register(inner, record(("x", "int"), name="Inner"))
    first = registry.register(
        middle,
        record(("i", "Inner"), name="Middle"),
        references=[{"name": "Inner", "subject": inner, "version": 1}],
    )
    second = registry.register(
        outer,
        record(("m", "Middle"), name="Outer"),
        references=[{"name": "Middle", "subject": middle, "version": 1}],
    )
    assert registry.get(f"/subjects/{inner}/versions/1/referencedby") == [first["id"]]
    assert registry.get(f"/subjects/{middle}/versions/latest/referencedby") == [second["id"]]
    assert registry.get(f"/schemas/ids/{second['id']}")["references"] == [
        {"name": "Middle", "subject": middle, "version": 1}
    ]
    key = f"{{magic=1,keytype=SCHEMA,subject={inner},version=1}}"
    refused = (422, 42206, f"One or more references exist to the schema {key}.")
    assert registry.delete(f"/subjects/{inner}/versions/1") == refused
    assert registry.delete(f"/subjects/{inner}") == refused
    missing = registry.register(subject(), A, references=[{"name": "N", "subject": "none", "version": 1}])
    assert missing[:2] == (422, 42201)
    assert 'No schema reference found for subject "none" and version 1' in missing[2]


# -- deleting ---------------------------------------------------------------------------------------------------------------


def test_a_version_is_deleted_softly_then_for_good(registry: Registry, subject: Subject) -> None:
    name = subject()
    first = registry.register(name, A)
    registry.register(name, A_B)
    assert registry.delete(f"/subjects/{name}/versions/1", permanent="true") == (
        404, 40407, f"Subject '{name}' Version 1 was not deleted first before being permanently deleted",
    )  # fmt: skip
    assert registry.delete(f"/subjects/{name}/versions/1") == 1
    assert registry.delete(f"/subjects/{name}/versions/1") == (
        404, 40406, f"Subject '{name}' Version 1 was soft deleted.Set permanent=true to delete permanently",
    )  # fmt: skip
    assert registry.get(f"/subjects/{name}/versions") == [2]
    assert registry.get(f"/subjects/{name}/versions", deleted="true") == [1, 2]
    assert registry.get(f"/subjects/{name}/versions", deletedOnly="true") == [1]
    assert registry.get(f"/subjects/{name}/versions", deletedAsNegative="true") == [-1, 2]
    assert registry.get(f"/subjects/{name}/versions/1") == (404, 40402, "Version 1 not found.")
    assert registry.get(f"/subjects/{name}/versions/1", deleted="true")["deleted"] is True
    assert registry.get(f"/schemas/ids/{first['id']}")["schema"] == A, "data that was written can still be read"
    assert registry.post(f"/subjects/{name}", {"schema": A}) == (404, 40403, "Schema not found")
    assert registry.post(f"/subjects/{name}", {"schema": A}, deleted="true")["version"] == 1
    assert registry.delete(f"/subjects/{name}/versions/1", permanent="true") == 1
    assert registry.get(f"/subjects/{name}/versions", deleted="true") == [2]
    assert registry.delete(f"/subjects/{name}/versions/latest") == 2
    assert registry.delete(f"/subjects/{name}/versions/7") == (404, 40402, "Version 7 not found.")


def test_a_subject_is_deleted_softly_then_for_good(registry: Registry, subject: Subject) -> None:
    name = subject()
    assert registry.delete(f"/subjects/{name}") == (404, 40401, f"Subject '{name}' not found.")
    registry.register(name, A)
    registry.register(name, A_B)
    registry.put(f"/config/{name}", {"compatibility": "NONE"})
    assert registry.delete(f"/subjects/{name}", permanent="true") == (
        404, 40405, f"Subject '{name}' was not deleted first before being permanently deleted",
    )  # fmt: skip
    assert registry.delete(f"/subjects/{name}") == [1, 2]
    assert registry.delete(f"/subjects/{name}") == (
        404, 40404, f"Subject '{name}' was soft deleted.Set permanent=true to delete permanently",
    )  # fmt: skip
    assert name not in registry.get("/subjects")
    assert name in registry.get("/subjects", deleted="true")
    assert name in registry.get("/subjects", deletedOnly="true")
    again = registry.register(name, A)
    assert again["version"] == 3, "a number that was given is not given again"
    assert registry.get(f"/subjects/{name}/versions", deleted="true") == [2, 3]
    assert registry.delete(f"/subjects/{name}") == [3]
    assert registry.delete(f"/subjects/{name}", permanent="true") == [2, 3]
    assert name not in registry.get("/subjects", deleted="true")
    assert registry.get(f"/config/{name}")[1] == 40408


def test_an_id_is_not_given_again_when_its_schema_is_gone_for_good(own_registry: Registry) -> None:
    registered = own_registry.register("s", A)
    own_registry.delete("/subjects/s")
    own_registry.delete("/subjects/s", permanent="true")
    assert own_registry.get(f"/schemas/ids/{registered['id']}")[1] == 40403
    assert own_registry.register("s", AB)["id"] == registered["id"] + 1


# -- modes ------------------------------------------------------------------------------------------------------------------


def test_a_subject_that_is_read_only_refuses_writes(registry: Registry, subject: Subject) -> None:
    name = subject()
    registry.register(name, A)
    assert registry.get(f"/mode/{name}") == (
        404,
        40409,
        f"Subject '{name}' does not have subject-level mode configured",
    )
    assert registry.get(f"/mode/{name}", defaultToGlobal="true") == {"mode": "READWRITE"}
    assert registry.put(f"/mode/{name}", {"mode": "READONLY"}) == {"mode": "READONLY"}
    refused = (422, 42205, f"Subject {name} in context  is in read-only mode")
    assert registry.register(name, A_B) == refused
    assert registry.delete(f"/subjects/{name}") == refused
    assert registry.put(f"/config/{name}", {"compatibility": "NONE"}) == refused
    assert registry.delete(f"/mode/{name}") == {"mode": "READONLY"}
    assert registry.register(name, A_B)["version"] == 2
    assert registry.put(f"/mode/{name}", {"mode": "ASLEEP"}) == (
        422, 42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.",
    )  # fmt: skip


def test_ids_and_versions_are_imported(registry: Registry, subject: Subject) -> None:
    name, taken = subject(), subject()
    assert registry.register(name, A, id=900_001) == (422, 42205, f"Subject {name} in context  is not in import mode")
    registry.put(f"/mode/{name}", {"mode": "IMPORT"})
    assert registry.register(name, A) == (422, 42205, f"Subject {name} in context  is not in read-write mode")
    found = registry.register(name, record(("imported", "int")), id=900_001, version=7)
    assert (found["id"], found["version"]) == (900_001, 7)
    assert registry.get("/schemas/ids/900001")["schema"] == record(("imported", "int"))
    assert registry.register(name, record(("other", "int")), id=900_001, version=8)[:2] == (422, 42205)
    registry.register(taken, A)
    assert registry.put(f"/mode/{taken}", {"mode": "IMPORT"}) == (
        422, 42205, "Cannot import since found existing subjects",
    )  # fmt: skip
    assert registry.put(f"/mode/{taken}", {"mode": "IMPORT"}, force="true") == {"mode": "IMPORT"}


def test_an_import_cannot_take_the_ids_of_all_others(own_registry: Registry) -> None:
    own_registry.put("/mode/imported", {"mode": "IMPORT"})
    for last in (2**31 - 1, 2**31 - 2):
        assert own_registry.register("imported", A, id=last)[:2] == (422, 42205)
    registered = own_registry.register("s", A)
    assert own_registry.get("/subjects/s/versions/1")["id"] == registered["id"] == 1


def test_the_mode_of_all_subjects(own_registry: Registry) -> None:
    assert own_registry.get("/mode") == {"mode": "READWRITE"}
    own_registry.put("/mode", {"mode": "READONLY"})
    assert own_registry.get("/mode") == {"mode": "READONLY"}
    assert own_registry.register("s", A)[:2] == (422, 42205)
    own_registry.put("/mode/s", {"mode": "READWRITE"})
    assert own_registry.register("s", A)["id"] == 1
    own_registry.put("/mode", {"mode": "READONLY_OVERRIDE"})
    assert own_registry.register("s", A_B)[:2] == (422, 42205), "over whatever subjects say"
    own_registry.delete("/mode")
    assert own_registry.get("/mode") == {"mode": "READWRITE"}


# -- contexts ---------------------------------------------------------------------------------------------------------------


def test_each_context_has_ids_of_its_own(own_registry: Registry) -> None:
    registry = own_registry
    assert registry.get("/contexts") == ["."]
    assert registry.register("s", A)["id"] == 1
    assert registry.register(":.dev:s", AB)["id"] == 1
    assert registry.get("/contexts") == [".", ".dev"]
    assert registry.get("/subjects") == [":.dev:s", "s"]
    assert registry.get("/schemas/ids/1")["schema"] == A
    assert registry.get("/schemas/ids/1", subject=":.dev:")["schema"] == AB
    assert registry.get("/schemas/ids/1", subject=":.dev:s")["schema"] == AB
    # The same below /contexts.
    assert registry.get("/contexts/.dev/subjects") == [":.dev:s"]
    assert registry.get("/contexts/.dev/subjects/s/versions/1")["schema"] == AB
    assert registry.get("/contexts/.dev/schemas/ids/1")["schema"] == AB
    assert registry.post("/contexts/.dev/subjects/s", {"schema": AB})["id"] == 1
    assert registry.put("/contexts/.dev/config", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    assert registry.get("/config/:.dev:s", defaultToGlobal="true") == {"compatibilityLevel": "NONE"}
    assert registry.get("/config/s", defaultToGlobal="true") == {"compatibilityLevel": "BACKWARD"}
    # A subject without a context is found where it is.
    assert registry.post("/subjects/s", {"schema": AB})["subject"] == ":.dev:s"
    assert registry.delete("/contexts/.dev")[:2] == (422, 42205)
    registry.delete("/subjects/:.dev:s")
    registry.delete("/subjects/:.dev:s", permanent="true")
    assert registry.delete("/contexts/.dev") is None
    assert registry.get("/contexts") == ["."]


def test_a_reference_stays_in_its_context(own_registry: Registry) -> None:
    own_registry.register(":.dev:inner", record(("x", "int"), name="Inner"))
    reference = [{"name": "Inner", "subject": "inner", "version": 1}]
    assert own_registry.register(":.dev:outer", record(("i", "Inner"), name="Outer"), references=reference)["id"] == 2
    assert own_registry.register("outer", record(("i", "Inner"), name="Outer"), references=reference)[1] == 42201


# -- HTTP -------------------------------------------------------------------------------------------------------------------


def test_content_types(registry: Registry) -> None:
    def asked(accept: str) -> tuple[int, str]:
        answer = registry.http.get("/subjects", headers={"Accept": accept})
        return answer.status_code, answer.headers["content-type"]

    assert asked("*/*") == (200, "application/vnd.schemaregistry.v1+json")
    assert asked("application/json") == (200, "application/json")
    assert asked("text/html, application/vnd.schemaregistry+json; q=0.5") == (
        200,
        "application/vnd.schemaregistry+json",
    )
    assert asked("*/whatever") == (200, "application/vnd.schemaregistry.v1+json")
    assert asked("text/html")[0] == 406
    answer = registry.http.post("/subjects/s/versions", content=b"<x/>", headers={"Content-Type": "text/xml"})
    assert (answer.status_code, answer.json()["error_code"]) == (415, 415)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example:8081"}, 421),
        ({"Host": "evil.example:8081", "Origin": "http://evil.example:8081"}, 421),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_page_of_another_site_registers_nothing(
    registry: Registry, subject: Subject, headers: dict[str, str], status: int
) -> None:
    name = subject()
    answer = registry.http.post(f"/subjects/{name}/versions", json={"schema": A}, headers=headers)
    assert (answer.status_code, answer.json()["error_code"]) == (status, status)
    assert registry.get(f"/subjects/{name}/versions")[1] == 40401


def test_a_browser_may_open_an_address_of_the_registry_itself(registry: Registry) -> None:
    own = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Accept": "text/html,*/*;q=0.8"}
    assert registry.http.get("/subjects", headers=own).status_code == 200
    same = {"Origin": registry.url, "Sec-Fetch-Site": "same-origin"}
    assert registry.http.get("/subjects", headers=same).status_code == 200
    assert registry.http.get("/subjects", headers={"Host": "localhost:8081"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"schema":' + b"[" * 500 + b"]" * 500 + b"}", 400),
        (b'{"schema":7}', 422),
        (b'{"schema":"\\"int\\"","id":"x"}', 422),
        (b'{"schema":"\\"int\\"","references":{}}', 422),
        (b'{"schema":"\\"int\\"","references":[{"name":"a"}]}', 422),
        (b'{"schema":"\\"int\\"","metadata":{"properties":{"a":1}}}', 422),
        (b'{"schema":"\\"int\\"","ruleSet":[]}', 422),
        (b'{"schema":"' + b"x" * (5 * 1024 * 1024) + b'"}', 413),
    ],
)
def test_an_invalid_body_is_refused(registry: Registry, body: bytes, status: int) -> None:
    answer = registry.http.post("/subjects/s/versions", content=body)
    assert answer.status_code == status
    assert answer.json()["error_code"] == status


def test_unknown_paths_and_methods_are_refused(registry: Registry) -> None:
    assert registry.get("/nowhere") == (404, 404, "HTTP 404 Not Found")
    assert registry.put("/subjects", {}) == (405, 405, "HTTP 405 Method Not Allowed")
    assert registry.get("/") == {}
    assert registry.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]
    assert registry.get("/v1/metadata/version")["version"].startswith("barnabas-")
    clusters = registry.get("/v1/metadata/id")["scope"]["clusters"]
    assert clusters["kafka-cluster"] and clusters["schema-registry-cluster"].startswith("registry-")


@pytest.mark.parametrize("name", [":.:", "__GLOBAL", "__EMPTY", ":.c:", "a\nb", "*"])
def test_an_invalid_subject_is_refused(registry: Registry, name: str) -> None:
    answer = registry.http.post(f"/subjects/{quote(name, safe='')}/versions", json={"schema": A})
    assert answer.status_code == 422
    assert answer.json()["error_code"] == 42208
