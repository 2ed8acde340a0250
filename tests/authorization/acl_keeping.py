"""How ACLs are stored and found: znodes, notifications, filters. The same for Apache Kafka and for our broker.

Recorded as `tests/golden/kafka-3.9.1/acls.json`.
"""

import json
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient

from barnabas.base.errors import ErrorCode
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security.acl import ALL, ANY, MATCH
from barnabas.client.asynchronous import AsyncClient
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tests.authorization.entries import Acl
from tests.authorization.table import Asker, client_of

GOLDEN: Final = Path(__file__).parents[1] / "golden/kafka-3.9.1/acls.json"
_TOPIC, _GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
_PREFIXED, _DENY = PatternType.PREFIXED, Permission.DENY

ACLS: Final = (
    Acl(_TOPIC, "orders", AclOperation.READ),
    Acl(_TOPIC, "orders", AclOperation.WRITE, host="10.0.0.1"),
    Acl(_TOPIC, "orders", AclOperation.ALTER_CONFIGS, _DENY, principal="User:bob"),
    Acl(_TOPIC, "*", AclOperation.DESCRIBE, principal="User:*"),
    Acl(_TOPIC, "ord", ALL, pattern=_PREFIXED),
    Acl(_TOPIC, "orders", AclOperation.DELETE, _DENY, pattern=_PREFIXED),
    Acl(_TOPIC, "*", AclOperation.CREATE, pattern=_PREFIXED),
    Acl(_TOPIC, "with a space:and a colon", AclOperation.READ),
    Acl(_GROUP, "orders", AclOperation.READ),
    Acl(_GROUP, "payments", AclOperation.DESCRIBE_CONFIGS, pattern=_PREFIXED),
    Acl(AclResourceType.CLUSTER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE),
    Acl(AclResourceType.TRANSACTIONAL_ID, "ledger", AclOperation.WRITE, principal="User:CN=alice,O=Acme"),
    Acl(AclResourceType.DELEGATION_TOKEN, "token", AclOperation.DESCRIBE),
    Acl(AclResourceType.USER, "User:bob", AclOperation.CREATE_TOKENS),
)

#: Title -> resource type, name, pattern type, principal, host, operation, permission.
FILTERS: Final[dict[str, tuple[int, str | None, int, str | None, str | None, int, int]]] = {
    "anything": (ANY, None, ANY, None, None, ANY, ANY),
    "topics": (_TOPIC, None, ANY, None, None, ANY, ANY),
    "any type called orders": (ANY, "orders", ANY, None, None, ANY, ANY),
    "orders, literal": (_TOPIC, "orders", PatternType.LITERAL, None, None, ANY, ANY),
    "orders, prefixed": (_TOPIC, "orders", _PREFIXED, None, None, ANY, ANY),
    "orders, any pattern": (_TOPIC, "orders", ANY, None, None, ANY, ANY),
    "orders, what matches": (_TOPIC, "orders", MATCH, None, None, ANY, ANY),
    "ord, what matches": (_TOPIC, "ord", MATCH, None, None, ANY, ANY),
    "orders-2, what matches": (_TOPIC, "orders-2", MATCH, None, None, ANY, ANY),
    "*, what matches": (_TOPIC, "*", MATCH, None, None, ANY, ANY),
    "*, literal": (_TOPIC, "*", PatternType.LITERAL, None, None, ANY, ANY),
    "*, any pattern": (_TOPIC, "*", ANY, None, None, ANY, ANY),
    "every type, what matches orders": (ANY, "orders", MATCH, None, None, ANY, ANY),
    "literal": (ANY, None, PatternType.LITERAL, None, None, ANY, ANY),
    "prefixed": (ANY, None, _PREFIXED, None, None, ANY, ANY),
    "what matches no name": (ANY, None, MATCH, None, None, ANY, ANY),
    "of alice": (ANY, None, ANY, "User:alice", None, ANY, ANY),
    "of everybody": (ANY, None, ANY, "User:*", None, ANY, ANY),
    "from one host": (ANY, None, ANY, None, "10.0.0.1", ANY, ANY),
    "from anywhere": (ANY, None, ANY, None, "*", ANY, ANY),
    "reading": (ANY, None, ANY, None, None, AclOperation.READ, ANY),
    "all operations": (ANY, None, ANY, None, None, ALL, ANY),
    "denied": (ANY, None, ANY, None, None, ANY, _DENY),
    "allowed to alice on orders": (_TOPIC, "orders", MATCH, "User:alice", "*", ANY, Permission.ALLOW),
    "nothing": (_TOPIC, "nothing", PatternType.LITERAL, None, None, ANY, ANY),
}
#: One after the other: a later deletion does not find the entries that an earlier one deleted.
DELETIONS: Final = ("orders, what matches", "any type called orders", "denied", "prefixed", "anything")


def _fields(title: str) -> dict[str, Any]:
    names = ("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter")
    return dict(zip((*names, "operation", "permission_type"), FILTERS[title], strict=True))


#: The ACLs under which alice requests the deletion of a topic by its id.
DOOMED: Final = {
    "nothing": (),
    "seeing it": (Acl(_TOPIC, "doomed", AclOperation.DESCRIBE, pattern=_PREFIXED),),
    "deleting it": (Acl(_TOPIC, "doomed", AclOperation.DELETE, pattern=_PREFIXED),),
    "deleting without seeing it": (
        Acl(_TOPIC, "doomed", AclOperation.DELETE, pattern=_PREFIXED),
        Acl(_TOPIC, "doomed", AclOperation.DESCRIBE, _DENY, _PREFIXED),
    ),
}


async def deletions_by_id(bootstrap: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    async with AsyncClient(client_of(bootstrap, "admin")) as admin, AsyncClient(client_of(bootstrap, "alice")) as alice:
        asker = Asker(admin, alice)
        for number, (title, acls) in enumerate(DOOMED.items()):
            topic = CreatableTopic(name=f"doomed-{number}", num_partitions=1, replication_factor=1)
            made = await admin.ask_any(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse)
            if acls:
                await asker.add(acls)
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=made.topics[0].topic_id)])
            [result] = (await alice.ask_any(request, DeleteTopicsResponse)).responses
            found[title] = [ErrorCode(result.error_code).name, str(result.name)]
            if acls:
                await asker.remove(acls)
    return found


async def kept(bootstrap: str, zookeeper: str) -> dict[str, Any]:
    """Return everything that is recorded."""
    async with AsyncClient(client_of(bootstrap, "admin")) as admin:
        asker = Asker(admin, admin)
        for acl in ACLS:
            await asker.add((acl,))
        found: dict[str, Any] = {"znodes": _znodes(zookeeper)}
        found["described"] = {title: await _described(admin, title) for title in FILTERS}
        found["deleted"] = {title: await _deleted(admin, title) for title in DELETIONS}
        found["znodes after"] = _without_order(_znodes(zookeeper))
    found["deletions by id"] = await deletions_by_id(bootstrap)
    return found


async def _described(admin: AsyncClient, title: str) -> list[str]:
    answer = await admin.ask_any(DescribeAclsRequest(**_fields(title)), DescribeAclsResponse)
    return sorted(
        f"{found.resource_type}/{found.pattern_type}/{found.resource_name} "
        f"{acl.principal}@{acl.host} {acl.operation}/{acl.permission_type}"
        for found in answer.resources
        for acl in found.acls
    )


async def _deleted(admin: AsyncClient, title: str) -> list[str]:
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(title))])
    answer = await admin.ask_any(request, DeleteAclsResponse)
    return sorted(
        f"{acl.resource_type}/{acl.pattern_type}/{acl.resource_name} "
        f"{acl.principal}@{acl.host} {acl.operation}/{acl.permission_type} {acl.error_code}"
        for acl in answer.filter_results[0].matching_acls
    )


def _znodes(zookeeper: str) -> dict[str, Any]:
    """Return the znodes below /kafka-acl and the like, with lists in a stable order."""
    client = KazooClient(zookeeper)
    client.start()
    found: dict[str, Any] = {}
    try:
        for root in ("/kafka-acl", "/kafka-acl-extended", "/kafka-acl-changes", "/kafka-acl-extended-changes"):
            pending = [root]
            while pending:
                path = pending.pop()
                data, _ = client.get(path)
                found[path] = _readable(data)
                pending += [f"{path}/{child}" for child in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return dict(sorted(found.items()))


def _without_order(znodes: dict[str, Any]) -> dict[str, list[str]]:
    """Return the remaining resources, and the notifications of one request, which come in any order."""
    notified = sorted(json.dumps(data) for path, data in znodes.items() if "_changes_" in path)
    return {"left": [path for path in znodes if "_changes_" not in path], "told": notified}


def _readable(data: bytes | None) -> Any:
    if not data or not data.startswith(b"{"):
        return (data or b"").decode()
    value = json.loads(data)
    if "acls" in value:
        value["acls"].sort(key=lambda each: json.dumps(each, sort_keys=True))
    return value


def load() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(GOLDEN.read_text())
    return recorded


def save(recorded: dict[str, Any]) -> None:
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")
