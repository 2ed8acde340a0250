"""`barnabas acls`: kafka-acls.sh."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security.authorizer import CLUSTER_NAME, SUPPORTED_OPERATIONS
from barnabas.cli._command import UsageError
from barnabas.cli._connection import run
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import CONNECTION, JSON, Option, Rule, Tool, excludes, needs
from barnabas.client.admin import acls as admin
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig

_CLUSTER: Final = ResourcePattern(AclResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)

#: Brokers do not report that group configs can be described and altered, but Kafka's tool accepts it.
_SUPPORTED: Final = {
    **SUPPORTED_OPERATIONS,
    AclResourceType.GROUP: (
        *SUPPORTED_OPERATIONS[AclResourceType.GROUP],
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
}

Plan = dict[ResourcePattern, list[Ace]]


def _pattern_type(text: str) -> PatternType:
    try:
        kind = PatternType[text.upper()]
    except KeyError:
        kind = PatternType.UNKNOWN
    if kind is PatternType.UNKNOWN:
        raise UsageError(f"Unknown resource-pattern-type: {text}; use literal, prefixed, any or match")
    return kind


def _principal(text: str) -> str:
    kind, colon, name = text.strip().partition(":")
    if not colon or not kind or not name:
        raise UsageError(f"expected a string in format principalType:principalName but got {text}")
    return f"{kind}:{name}"


_ROLES_RULE = "With --producer or --consumer operations are inferred, and no principal or host can be denied"
_CONSUMER_RULE = (
    "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option should be "
    "specified."
)
TOOL = Tool(
    kafka="kafka-acls.sh",
    options=(
        *CONNECTION,
        Option("--topic", "A topic; '*' for all.", many=True),
        Option("--cluster", "The cluster itself.", bool, name="whole_cluster"),
        Option("--group", "A consumer group; '*' for all.", many=True),
        Option("--transactional-id", "A transactional id; '*' for all.", many=True),
        Option("--idempotent", "With --producer: idempotent writes.", bool),
        Option("--delegation-token", "A token.", many=True),
        Option("--user-principal", "A user as a resource.", many=True),
        Option(
            "--resource-pattern-type",
            "literal, prefixed; to list or remove also any, match.",
            _pattern_type,
            default="literal",
        ),
        Option("--operation", "The operation to allow or deny. [All]", many=True),
        Option("--allow-principal", "A principal to allow.", _principal, metavar="User:NAME", many=True),
        Option("--deny-principal", "A principal to deny.", _principal, metavar="User:NAME", many=True),
        Option("--principal", "Only the entries of these.", _principal, metavar="User:NAME", many=True),
        Option("--allow-host", "A host to allow them from. [*]", many=True),
        Option("--deny-host", "A host to deny them from. [*]", many=True),
        Option("--producer", "All that a producer needs.", bool),
        Option("--consumer", "All that a consumer needs.", bool),
        Option("--force", "Assume yes and do not ask.", bool),
        JSON,
    ),
    rules=(
        excludes("--producer", "--operation", "--deny-principal", "--deny-host", says=_ROLES_RULE),
        excludes("--consumer", "--operation", "--deny-principal", "--deny-host", says=_ROLES_RULE),
        needs("--producer", "--topic", says="With --producer you must specify a --topic"),
        needs("--idempotent", "--producer", says="The --idempotent option is only available if --producer is set"),
        needs("--consumer", "--topic", "--group", says=_CONSUMER_RULE),
        Rule(
            lambda given: (
                "--consumer" not in given
                or "--producer" in given
                or given.isdisjoint(("--cluster", "--transactional-id"))
            ),
            ("--consumer", "--producer", "--cluster", "--transactional-id"),
            _CONSUMER_RULE,
        ),
    ),
    examples=(
        "barnabas acls --add --allow-principal User:ana --producer --topic orders",
        "barnabas acls --list --topic orders",
        "barnabas acls --remove --topic orders --force",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that the options name."""

    topic: Sequence[str]
    group: Sequence[str]
    transactional_id: Sequence[str]
    delegation_token: Sequence[str]
    user_principal: Sequence[str]
    whole_cluster: bool
    resource_pattern_type: PatternType

    def patterns(self, *, idempotent: bool = False) -> list[ResourcePattern]:
        named = {
            AclResourceType.TOPIC: self.topic,
            AclResourceType.GROUP: self.group,
            AclResourceType.TRANSACTIONAL_ID: self.transactional_id,
            AclResourceType.DELEGATION_TOKEN: self.delegation_token,
            AclResourceType.USER: self.user_principal,
        }
        kind = self.resource_pattern_type
        found = [ResourcePattern(resource, name.strip(), kind) for resource, names in named.items() for name in names]
        if (self.whole_cluster or idempotent) and kind is PatternType.LITERAL:
            found.append(_CLUSTER)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """Principals and hosts that are allowed or denied."""

    allow_principal: Sequence[str] = ()
    allow_host: Sequence[str] = ()
    deny_principal: Sequence[str] = ()
    deny_host: Sequence[str] = ()

    def entries(self, operations: Iterable[AclOperation]) -> list[Ace]:
        rules = (
            (Permission.ALLOW, self.allow_principal, self.allow_host or ("*",)),
            (Permission.DENY, self.deny_principal, self.deny_host or ("*",)),
        )
        return sorted(
            {
                Ace(principal, host.strip(), operation, permission)
                for permission, principals, hosts in rules
                for principal in principals
                for operation in operations
                for host in hosts
            }
        )


def parse_operation(text: str) -> AclOperation:
    """Parse `DescribeConfigs`, `describe_configs`, …"""
    squeezed = text.strip().replace("_", "").lower()
    for operation in AclOperation:
        if operation.name.replace("_", "").lower() == squeezed and operation > AclOperation.ANY:
            return operation
    names = ", ".join(_operation_name(operation) for operation in AclOperation if operation > AclOperation.ANY)
    raise UsageError(f"--operation {text}: it must be one of {names}")


def _operation_name(operation: AclOperation) -> str:
    return "".join(part.capitalize() for part in operation.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Operations, or the roles that stand for some."""

    operation: Sequence[str] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False


def plan_acls(patterns: Sequence[ResourcePattern], subjects: Subjects, rights: Rights) -> Plan:
    """Return the entries by resource that the roles or the operations require."""
    plan: dict[ResourcePattern, set[Ace]] = {}
    producer, consumer = rights.producer, rights.consumer
    if not producer and not consumer:
        wanted = [parse_operation(text) for text in rights.operation or ("All",)]
        for pattern in patterns:
            plan[pattern] = set(subjects.entries(wanted))
    for pattern in patterns:
        kind = pattern.resource_type
        if producer and kind is AclResourceType.TOPIC:
            needed = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
            plan.setdefault(pattern, set()).update(subjects.entries(needed))
        if producer and kind is AclResourceType.TRANSACTIONAL_ID:
            plan.setdefault(pattern, set()).update(subjects.entries((AclOperation.WRITE, AclOperation.DESCRIBE)))
        if consumer and kind is AclResourceType.TOPIC:
            plan.setdefault(pattern, set()).update(subjects.entries((AclOperation.READ, AclOperation.DESCRIBE)))
        if consumer and kind is AclResourceType.GROUP:
            plan.setdefault(pattern, set()).update(subjects.entries((AclOperation.READ,)))
    if producer and rights.idempotent:
        plan[_CLUSTER] = set(subjects.entries((AclOperation.IDEMPOTENT_WRITE,)))
    for pattern, entries in plan.items():
        valid = {*_SUPPORTED[pattern.resource_type], AclOperation.ALL}
        if any(entry.operation not in valid for entry in entries):
            names = ", ".join(_operation_name(operation) for operation in sorted(valid))
            raise UsageError(f"ResourceType {pattern.resource_type.name} only supports operations {names}")
    return {pattern: sorted(entries) for pattern, entries in plan.items()}


# -- actions ------------------------------------------------------------------------------------------------------------


def _lines(entries: Sequence[Ace]) -> str:
    return "\n".join(f"\t{entry}" for entry in entries)


def _planned(resources: Resources, subjects: Subjects, rights: Rights) -> Plan:
    patterns = resources.patterns(idempotent=rights.idempotent)
    if not patterns:
        raise UsageError(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
            "--delegation-token <Delegation Token ID>"
        )
    return plan_acls(patterns, subjects, rights)


@TOOL.action("--add", "Add entries.", ignores=("--force",))
async def _add(cluster: AsyncClient, resources: Resources, subjects: Subjects, rights: Rights) -> None:
    plan, kind = _planned(resources, subjects, rights), resources.resource_pattern_type
    if kind not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError(f"A '--resource-pattern-type' value of '{kind.name}' is not valid when adding acls.")
    if not all(plan.values()):
        raise UsageError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
    for pattern, entries in plan.items():
        say(f"Adding ACLs for resource `{pattern}`: \n {_lines(entries)} \n")
        await admin.create_acls(cluster, pattern, entries)


def _confirm(pattern: ResourcePattern, entries: Sequence[Ace]) -> bool:
    where = str(pattern).replace("ResourcePattern(", "ResourcePatternFilter(", 1)
    if entries:
        say(f"Are you sure you want to remove ACLs: \n {_lines(entries)} \n from resource filter `{where}`? (y/n)")
    else:
        say(f"Are you sure you want to delete all ACLs for resource filter `{where}`? (y/n)")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() == "y"


@TOOL.action("--remove", "Remove entries.")
def _remove(client: ClientConfig, resources: Resources, subjects: Subjects, rights: Rights, force: bool) -> None:
    plan = _planned(resources, subjects, rights)
    chosen = {pattern: entries for pattern, entries in plan.items() if force or _confirm(pattern, entries)}

    async def remove(cluster: AsyncClient) -> None:
        for pattern, entries in chosen.items():
            await admin.delete_acls(cluster, pattern, entries)

    run(client, remove)


@TOOL.action("--list", "List entries.", ignores=("--operation", "--force"))
async def _list(cluster: AsyncClient, resources: Resources, principal: Sequence[str], json: bool) -> None:
    found: dict[ResourcePattern, list[Ace]] = {}
    for pattern in resources.patterns() or [admin.ANY_RESOURCE]:
        found |= await admin.describe_acls(cluster, pattern)
    if json:
        say_json(
            [
                {
                    "resourceType": pattern.resource_type.name,
                    "name": pattern.name,
                    "patternType": pattern.pattern_type.name,
                    "principal": entry.principal,
                    "host": entry.host,
                    "operation": entry.operation.name,
                    "permissionType": entry.permission.name,
                }
                for pattern, entries in sorted(found.items())
                for entry in sorted(entries)
                if not principal or entry.principal in principal
            ]
        )
        return
    if not principal:
        _print(found)
    for name in principal:
        say(f"ACLs for principal `{name}`")
        _print({pattern: [e for e in entries if e.principal == name] for pattern, entries in found.items()})


def _print(found: Mapping[ResourcePattern, Sequence[Ace]]) -> None:
    for pattern, entries in sorted(found.items()):
        if entries:
            say(f"Current ACLs for resource `{pattern}`: \n {_lines(sorted(entries))} \n")
