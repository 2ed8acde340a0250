"""The ACLs under which every API is requested.

There are two tables. `allow` has nothing but one entry; `deny` allows everything except for one entry. Each has every operation
of every type of resource, as a literal name, as a prefix and as `*`. A third table, `mixed`, has cases with more than one
entry: hosts, principals, patterns against each other, operations that imply others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from barnabas.base.words import ACL_RESOURCES, AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security.acl import ALL
from tests.authorization.probes import BAD_TOPIC, GROUP, NEW_TOPIC, NO_GROUP, OPEN_TXN, OTHER_OWNER, OWNER, TOPIC, TXN

ALICE: Final = "User:alice"


@dataclass(frozen=True)
class Acl:
    resource: AclResourceType
    name: str
    operation: int
    permission: Permission = Permission.ALLOW
    pattern: PatternType = PatternType.LITERAL
    principal: str = ALICE
    host: str = "*"


#: Names of each type in the requests, and a prefix that they have.
LITERAL: Final = {
    AclResourceType.TOPIC: (TOPIC, NEW_TOPIC, BAD_TOPIC),
    AclResourceType.GROUP: (GROUP, NO_GROUP),
    AclResourceType.CLUSTER: ("kafka-cluster",),
    AclResourceType.TRANSACTIONAL_ID: (TXN, OPEN_TXN),
    AclResourceType.USER: (f"User:{OWNER}", f"User:{OTHER_OWNER}"),
}
PREFIX: Final = {
    AclResourceType.TOPIC: "ord",
    AclResourceType.GROUP: "pay",
    # A cluster has only this name.
    AclResourceType.CLUSTER: "kafka-cluster",
    AclResourceType.TRANSACTIONAL_ID: "led",
    AclResourceType.USER: "User:b",
}
OPERATIONS: Final[dict[AclResourceType, tuple[int, ...]]] = {
    AclResourceType.TOPIC: (3, 4, 5, 6, 7, 8, 10, 11, ALL),
    AclResourceType.GROUP: (3, 6, 8, 10, 11, ALL),
    AclResourceType.CLUSTER: (5, 7, 8, 9, 10, 11, 12, ALL),
    AclResourceType.TRANSACTIONAL_ID: (4, 8, ALL),
    AclResourceType.USER: (13, 14, ALL),
    AclResourceType.DELEGATION_TOKEN: (8, ALL),
}
PATTERNS: Final = ("literal", "prefixed", "wildcard")

#: Entries that allow alice everything: the base of the `deny` table.
EVERYTHING: Final = tuple(
    Acl(resource, "kafka-cluster" if resource is AclResourceType.CLUSTER else "*", ALL) for resource in ACL_RESOURCES
)


def operation_name(operation: int) -> str:
    return "ALL" if operation == ALL else AclOperation(operation).name


def single(permission: Permission) -> Iterator[tuple[str, tuple[Acl, ...]]]:
    """Yield a title such as `TOPIC.READ literal` and its entries, for every type, operation and pattern."""
    for resource, operations in OPERATIONS.items():
        for operation in operations:
            for pattern in PATTERNS:
                acls = _standing_on(resource, operation, permission, pattern)
                if acls:
                    yield f"{resource.name}.{operation_name(operation)} {pattern}", acls


def _standing_on(resource: AclResourceType, operation: int, permission: Permission, pattern: str) -> tuple[Acl, ...]:
    if pattern == "wildcard":
        # A cluster has only one name.
        return () if resource is AclResourceType.CLUSTER else (Acl(resource, "*", operation, permission),)
    if resource not in LITERAL:
        return ()  # the names of tokens are random
    if pattern == "prefixed":
        return (Acl(resource, PREFIX[resource], operation, permission, PatternType.PREFIXED),)
    return tuple(Acl(resource, name, operation, permission) for name in LITERAL[resource])


def mixed() -> Iterator[tuple[str, tuple[Acl, ...]]]:
    yield from _hosts_and_principals()
    yield from _patterns()
    yield from _implications()
    yield from _on_any_topic()


def _hosts_and_principals() -> Iterator[tuple[str, tuple[Acl, ...]]]:
    allow = tuple(Acl(resource, names[0], ALL) for resource, names in LITERAL.items())
    for title, change in (
        ("this host", {"host": "127.0.0.1"}),
        ("another host", {"host": "10.1.2.3"}),
        ("everybody", {"principal": "User:*"}),
        ("somebody else", {"principal": "User:bob"}),
        ("another kind of principal", {"principal": "Group:alice"}),
    ):
        changed = tuple(replace(acl, **change) for acl in allow)  # type: ignore[arg-type]
        yield f"allowed to {title}", changed
        denied = tuple(replace(acl, permission=Permission.DENY) for acl in changed)
        yield f"denied to {title}", (*EVERYTHING, *denied)


def _patterns() -> Iterator[tuple[str, tuple[Acl, ...]]]:
    def topic(name: str, permission: Permission, pattern: PatternType = PatternType.LITERAL) -> Acl:
        return Acl(AclResourceType.TOPIC, name, ALL, permission, pattern)

    prefixed, allow, deny = PatternType.PREFIXED, Permission.ALLOW, Permission.DENY
    yield "a literal is no prefix", (topic("ord", allow),)
    yield "a prefix that is the whole name", (topic(TOPIC, allow, prefixed),)
    yield "a prefix that is longer than the name", (topic(f"{TOPIC}-n", allow, prefixed),)
    yield "a prefix called *", (topic("*", allow, prefixed),)
    yield "a literal against a prefix", (topic(TOPIC, allow), topic("ord", deny, prefixed))
    yield "a prefix against a literal", (topic("ord", allow, prefixed), topic(TOPIC, deny))
    yield "a prefix against a longer one", (topic("o", allow, prefixed), topic("orders-", deny, prefixed))
    yield "everything against a literal", (topic("*", allow), topic(TOPIC, deny))
    yield "a literal against everything", (topic(TOPIC, allow), topic("*", deny))
    yield "an entry for others closes a topic", (replace(topic(TOPIC, allow), principal="User:bob"),)


def _implications() -> Iterator[tuple[str, tuple[Acl, ...]]]:
    """READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS; none of them denies it."""
    pairs = (
        (AclOperation.READ, AclOperation.DESCRIBE),
        (AclOperation.WRITE, AclOperation.DESCRIBE),
        (AclOperation.DELETE, AclOperation.DESCRIBE),
        (AclOperation.ALTER, AclOperation.DESCRIBE),
        (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
    )
    for strong, weak in pairs:
        for denied, allowed in ((strong, weak), (weak, strong)):
            yield (
                f"{allowed.name} allowed, {denied.name} denied",
                (
                    Acl(AclResourceType.TOPIC, TOPIC, allowed),
                    Acl(AclResourceType.TOPIC, TOPIC, denied, Permission.DENY),
                ),
            )


def _on_any_topic() -> Iterator[tuple[str, tuple[Acl, ...]]]:
    """KIP-679: whether there is any topic that may be written."""
    write, deny, prefixed = AclOperation.WRITE, Permission.DENY, PatternType.PREFIXED

    def topic(name: str, permission: Permission, pattern: PatternType = PatternType.LITERAL) -> Acl:
        return Acl(AclResourceType.TOPIC, name, write, permission, pattern)

    allow = Permission.ALLOW
    yield "any: a topic that is denied", (topic(TOPIC, allow), topic(TOPIC, deny))
    yield "any: another topic is denied", (topic(TOPIC, allow), topic("other", deny))
    yield "any: a shorter prefix is denied", (topic(TOPIC, allow), topic("ord", deny, prefixed))
    yield "any: a longer prefix is denied", (topic("ord", allow, prefixed), topic("orders", deny, prefixed))
    yield "any: the same prefix is denied", (topic("ord", allow, prefixed), topic("ord", deny, prefixed))
    yield "any: a prefix is denied of everything", (topic("*", allow), topic("ord", deny, prefixed))
    yield "any: everything is denied", (topic(TOPIC, allow), topic("*", deny))
    yield "any: denied to another host", (topic(TOPIC, allow), replace(topic("*", deny), host="10.1.2.3"))
    yield "any: allowed to somebody else", (replace(topic(TOPIC, allow), principal="User:bob"),)
