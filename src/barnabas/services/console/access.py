"""Access: ACLs, quotas, users with SCRAM passwords."""

from enum import IntEnum
from typing import Any, Final, TypeVar

from barnabas.base.config.definitions.quotas import CLIENT_QUOTAS, IP_QUOTAS
from barnabas.base.words import (
    ACL_OPERATIONS,
    ACL_PATTERNS,
    ACL_PERMISSIONS,
    ACL_RESOURCES,
    AclOperation,
    AclResourceType,
    PatternType,
    Permission,
)
from barnabas.client.admin import acls, configs
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.services.console.errors import bad_request
from barnabas.services.console.web import NUMBER, TEXT, Call, Endpoint, whole
from barnabas.wire.auth.mechanisms.scram import ScramMechanism

E = TypeVar("E", bound=IntEnum)

QUOTAS: Final = tuple(each.name for each in (*CLIENT_QUOTAS, *IP_QUOTAS))
ENTITIES: Final = ("user", "client-id", "ip")


def _word(kind: type[E], value: object, name: str) -> E:
    try:
        return kind[str(value).upper()]
    except KeyError:
        raise bad_request(f"{name}={value} is not valid: use {', '.join(each.name for each in kind)}") from None


# -- ACLs -------------------------------------------------------------------------------------------------------------------


async def acl_list(call: Call) -> dict[str, Any]:
    search = call.text("search").lower()
    rows = [
        {
            "resource": pattern.resource_type.name,
            "name": pattern.name,
            "pattern": pattern.pattern_type.name,
            "principal": entry.principal,
            "host": entry.host,
            "operation": entry.operation.name,
            "permission": entry.permission.name,
        }
        for pattern, entries in (await acls.describe_acls(call.cluster.client)).items()
        for entry in entries
    ]
    found = [row for row in rows if search in f"{row['name']} {row['principal']} {row['resource']}".lower()]
    found.sort(key=lambda row: (row["resource"], row["name"] or "", row["principal"], row["operation"]))
    return {
        "total": len(found),
        "acls": found[: call.number("count", 1_000, high=10_000)],
        "words": {
            "resource": [each.name for each in ACL_RESOURCES],
            "operation": [AclOperation.ALL.name, *(each.name for each in ACL_OPERATIONS)],
            "pattern": [each.name for each in ACL_PATTERNS],
            "permission": [each.name for each in ACL_PERMISSIONS],
        },
    }


def _acl(call: Call) -> tuple[ResourcePattern, Ace]:
    """Return the ACL entry in the body, in the format of the list."""
    pattern = ResourcePattern(
        _word(AclResourceType, call.given("resource"), "resource"),
        call.given("name"),
        _word(PatternType, call.body.get("pattern") or "LITERAL", "pattern"),
    )
    entry = Ace(
        call.given("principal"),
        str(call.body.get("host") or "*"),
        _word(AclOperation, call.given("operation"), "operation"),
        _word(Permission, call.body.get("permission") or "ALLOW", "permission"),
    )
    return pattern, entry


async def add_acl(call: Call) -> dict[str, Any]:
    pattern, entry = _acl(call)
    await acls.create_acls(call.cluster.client, pattern, [entry])
    return {"added": f"{pattern} {entry}"}


async def remove_acl(call: Call) -> dict[str, Any]:
    pattern, entry = _acl(call)
    await acls.delete_acls(call.cluster.client, pattern, [entry])
    return {"removed": f"{pattern} {entry}"}


# -- quotas -----------------------------------------------------------------------------------------------------------------


async def quota_list(call: Call) -> dict[str, Any]:
    found = await configs.describe_quotas(call.cluster.client, {}, strict=False)
    found.sort(key=lambda row: sorted((kind, name or "") for kind, name in row[0].items()))
    rows = [{"entity": entity, "quotas": values} for entity, values in found]
    return {"quotas": rows, "names": QUOTAS, "entities": ENTITIES}


async def set_quota(call: Call) -> dict[str, Any]:
    """Set quotas. A value of null removes a quota; an entity's name of null stands for the default."""
    entity = call.given("entity", dict)
    if not entity or any(kind not in ENTITIES for kind in entity):
        raise bad_request(f"entity is an object with some of {', '.join(ENTITIES)}")
    changes: dict[str, float | None] = {}
    for name, value in call.given("quotas", dict).items():
        if value is not None and not isinstance(value, int | float):
            raise bad_request(f"{name} is a number, or null")
        changes[str(name)] = value
    await configs.alter_quotas(call.cluster.client, entity, changes)
    return {"changed": sorted(changes)}


# -- users ------------------------------------------------------------------------------------------------------------------


async def user_list(call: Call) -> dict[str, Any]:
    found = await configs.describe_scram(call.cluster.client, None)
    return {
        "users": [
            {
                "user": user,
                "credentials": [
                    {"mechanism": mechanism.sasl_name, "iterations": iterations}
                    for mechanism, iterations in sorted(credentials)
                ],
            }
            for user, credentials in sorted(found.items())
        ],
        "mechanisms": [each.sasl_name for each in ScramMechanism],
    }


def _mechanism(value: object) -> ScramMechanism:
    found = next((each for each in ScramMechanism if each.sasl_name == str(value).upper()), None)
    if found is None:
        raise bad_request(f"mechanism={value} is not valid: use {', '.join(each.sasl_name for each in ScramMechanism)}")
    return found


async def set_user(call: Call) -> dict[str, Any]:
    """The console hashes the password itself: it is neither sent to a broker nor logged."""
    password = call.given("password")
    if not password:
        raise bad_request("the password is empty")
    upsert = configs.ScramUpsert(
        _mechanism(call.given("mechanism")),
        whole(call.body.get("iterations") or configs.SCRAM_ITERATIONS_DEFAULT, "iterations", low=4096, high=16384),
        password,
    )
    await configs.alter_scram(call.cluster.client, call.path["user"], upserts=[upsert])
    return {"set": call.path["user"]}


async def remove_user(call: Call) -> dict[str, Any]:
    mechanism = _mechanism(call.path["mechanism"])
    await configs.alter_scram(call.cluster.client, call.path["user"], deletions=[mechanism])
    return {"removed": call.path["user"]}


_ACL: Final = {
    "type": "object",
    "properties": {
        "resource": {"enum": [each.name for each in ACL_RESOURCES]},
        "name": TEXT,
        "pattern": {"enum": [each.name for each in ACL_PATTERNS]},
        "principal": TEXT,
        "host": TEXT,
        "operation": {"enum": [AclOperation.ALL.name, *(each.name for each in ACL_OPERATIONS)]},
        "permission": {"enum": [each.name for each in ACL_PERMISSIONS]},
    },
    "required": ["resource", "name", "principal", "operation"],
}
ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/acls",
        handler=acl_list,
        summary="Access control entries, by part of a name, principal or kind of resource.",
        query={"search": TEXT, "count": NUMBER},
    ),
    Endpoint(method="POST", path="/acls", handler=add_acl, summary="Add an entry.", body=_ACL),
    Endpoint(method="DELETE", path="/acls", handler=remove_acl, summary="Remove exactly this entry.", body=_ACL),
    Endpoint(method="GET", path="/quotas", handler=quota_list, summary="Quotas of users, clients and addresses."),
    Endpoint(
        method="PATCH",
        path="/quotas",
        handler=set_quota,
        summary="Set or remove (null) quotas of one entity. A name of null stands for the default.",
        body={
            "type": "object",
            "properties": {"entity": {"type": "object"}, "quotas": {"type": "object"}},
            "required": ["entity", "quotas"],
        },
    ),
    Endpoint(
        method="GET", path="/users", handler=user_list, summary="Users with SCRAM passwords, never the passwords."
    ),
    Endpoint(
        method="PUT",
        path="/users/{user}",
        handler=set_user,
        summary="Set a user's SCRAM password.",
        body={
            "type": "object",
            "properties": {"password": TEXT, "mechanism": TEXT, "iterations": NUMBER},
            "required": ["password", "mechanism"],
        },
    ),
    Endpoint(
        method="DELETE",
        path="/users/{user}/{mechanism}",
        handler=remove_user,
        summary="Remove a user's SCRAM password of one mechanism.",
    ),
]
