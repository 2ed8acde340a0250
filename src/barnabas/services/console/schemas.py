"""Schemas of the configured registry: subjects, versions, texts."""

from typing import Any

from barnabas.services.console.errors import Refusal, bad_request
from barnabas.services.console.registered import Registered
from barnabas.services.console.web import FLAG, NUMBER, TEXT, Call, Endpoint


def _registry(call: Call) -> Registered:
    """Return the registry with the user's rights: it decides what the user may read and change."""
    if call.user.registered is None:
        raise Refusal(501, "NO_REGISTRY", "the console was started without --schema-registry")
    return call.user.registered


async def subjects(call: Call) -> dict[str, Any]:
    names = await _registry(call).ask("GET", "subjects", deleted=call.flag("deleted") or None)
    search = call.text("search").lower()
    found = sorted(name for name in names if search in name.lower())
    start, count = call.number("start", 0), call.number("count", 1_000, high=10_000)
    return {"total": len(found), "start": start, "subjects": found[start : start + count]}


async def subject(call: Call) -> dict[str, Any]:
    registry, name = _registry(call), call.path["subject"]
    versions = await registry.ask("GET", "subjects", name, "versions")
    level = await registry.ask("GET", "config", name, defaultToGlobal=True)
    return {
        "subject": name,
        "versions": versions,
        "compatibility": level.get("compatibilityLevel") or level.get("compatibility"),
    }


async def version(call: Call) -> dict[str, Any]:
    found = await _registry(call).ask("GET", "subjects", call.path["subject"], "versions", call.path["version"])
    return {
        "subject": found["subject"],
        "version": found["version"],
        "id": found["id"],
        "type": found.get("schemaType", "AVRO"),
        "schema": found["schema"],
        "references": found.get("references") or [],
    }


async def register(call: Call) -> dict[str, Any]:
    body = {"schema": call.given("schema"), "schemaType": str(call.body.get("type") or "AVRO").upper()}
    if references := call.body.get("references"):
        body["references"] = references
    found = await _registry(call).ask("POST", "subjects", call.path["subject"], "versions", body=body)
    return {"id": found["id"]}


async def check(call: Call) -> dict[str, Any]:
    """Check whether a schema may follow the last version of its subject."""
    body = {"schema": call.text("schema"), "schemaType": (call.text("type") or "AVRO").upper()}
    if not body["schema"]:
        raise bad_request("schema is missing")
    found = await _registry(call).ask(
        "POST", "compatibility", "subjects", call.path["subject"], "versions", "latest", body=body, verbose=True
    )
    return {"isCompatible": found["is_compatible"], "messages": found.get("messages") or []}


async def delete(call: Call) -> dict[str, Any]:
    found = await _registry(call).ask("DELETE", "subjects", call.path["subject"], "versions", call.path["version"])
    return {"deleted": found}


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/subjects",
        handler=subjects,
        summary="Subjects of the schema registry.",
        query={"search": TEXT, "deleted": FLAG, "start": NUMBER, "count": NUMBER},
    ),
    Endpoint(method="GET", path="/subjects/{subject}", handler=subject, summary="A subject's versions and level."),
    Endpoint(
        method="GET", path="/subjects/{subject}/versions/{version}", handler=version, summary="One version: its schema."
    ),
    Endpoint(
        method="GET",
        path="/subjects/{subject}/check",
        handler=check,
        summary="Whether a schema may follow the last version.",
        query={"schema": TEXT, "type": TEXT},
    ),
    Endpoint(
        method="POST",
        path="/subjects/{subject}/versions",
        handler=register,
        summary="Register a schema.",
        body={
            "type": "object",
            "properties": {"schema": TEXT, "type": TEXT, "references": {"type": "array"}},
            "required": ["schema"],
        },
    ),
    Endpoint(
        method="DELETE",
        path="/subjects/{subject}/versions/{version}",
        handler=delete,
        summary="Delete a version (softly: it can still be read by its id).",
    ),
]
