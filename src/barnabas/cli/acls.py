"""`barnabas acls`: kafka-acls.sh."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import typer

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security.authorizer import CLUSTER_NAME, SUPPORTED_OPERATIONS
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Bootstrap, CommandConfig, Json, exactly_one
from barnabas.client.admin import acls as admin
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.client.asynchronous import AsyncClient

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


def command(
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    add: Annotated[bool, typer.Option("--add", help="Add entries.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove entries.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List entries.")] = False,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="A topic; '*' for all.")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster itself.")] = False,
    group: Annotated[list[str] | None, typer.Option("--group", help="A consumer group; '*' for all.")] = None,
    transactional_id: Annotated[
        list[str] | None, typer.Option("--transactional-id", help="A transactional id; '*' for all.")
    ] = None,
    idempotent: Annotated[bool, typer.Option("--idempotent", help="With --producer: idempotent writes.")] = False,
    delegation_token: Annotated[list[str] | None, typer.Option("--delegation-token", help="A token.")] = None,
    user_principal: Annotated[list[str] | None, typer.Option("--user-principal", help="A user as a resource.")] = None,
    resource_pattern_type: Annotated[
        str, typer.Option("--resource-pattern-type", help="literal, prefixed; to list or remove also any, match.")
    ] = "literal",
    operation: Annotated[
        list[str] | None, typer.Option("--operation", help="The operation to allow or deny. [All]")
    ] = None,
    allow_principal: Annotated[
        list[str] | None, typer.Option("--allow-principal", metavar="User:NAME", help="A principal to allow.")
    ] = None,
    deny_principal: Annotated[
        list[str] | None, typer.Option("--deny-principal", metavar="User:NAME", help="A principal to deny.")
    ] = None,
    principal: Annotated[
        list[str] | None, typer.Option("--principal", metavar="User:NAME", help="With --list: only theirs.")
    ] = None,
    allow_host: Annotated[list[str] | None, typer.Option("--allow-host", help="A host to allow them from. [*]")] = None,
    deny_host: Annotated[list[str] | None, typer.Option("--deny-host", help="A host to deny them from. [*]")] = None,
    producer: Annotated[bool, typer.Option("--producer", help="All that a producer needs.")] = False,
    consumer: Annotated[bool, typer.Option("--consumer", help="All that a consumer needs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Assume yes and do not ask.")] = False,
    json: Json = False,
) -> None:
    """List, add and remove access control entries."""
    action = exactly_one("Command", list=list_, add=add, remove=remove)
    if action == "list" and (producer or consumer or allow_host or allow_principal or deny_host or deny_principal):
        raise UsageError('Option "[list]" can\'t be used with roles, principals or hosts to allow or deny')
    if (producer or consumer) and (operation or deny_principal or deny_host):
        raise UsageError(
            "With --producer or --consumer operations are inferred, and no principal or host can be denied"
        )
    if principal and action != "list":
        raise UsageError("The --principal option is only available if --list is set")
    if producer and not topic:
        raise UsageError("With --producer you must specify a --topic")
    if idempotent and not producer:
        raise UsageError("The --idempotent option is only available if --producer is set")
    if consumer and (not topic or not group or (not producer and (cluster or transactional_id))):
        raise UsageError(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option "
            "should be specified."
        )
    kind = _pattern_type(resource_pattern_type)
    patterns = _patterns(
        kind,
        {
            AclResourceType.TOPIC: topic,
            AclResourceType.GROUP: group,
            AclResourceType.TRANSACTIONAL_ID: transactional_id,
            AclResourceType.DELEGATION_TOKEN: delegation_token,
            AclResourceType.USER: user_principal,
        },
        cluster=cluster or idempotent,
    )
    config = options(bootstrap_server, command_config)
    if action == "list":
        run(config, lambda connected: _list(connected, patterns, [_principal(name) for name in principal or ()], json))
        return
    if not patterns:
        raise UsageError(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
            "--delegation-token <Delegation Token ID>"
        )
    subjects = _Subjects(allow_principal, allow_host, deny_principal, deny_host)
    plan = plan_acls(
        patterns, subjects, operation or ["All"], producer=producer, consumer=consumer, idempotent=idempotent
    )
    if action == "add":
        if kind not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise UsageError(f"A '--resource-pattern-type' value of '{kind.name}' is not valid when adding acls.")
        if not all(plan.values()):
            raise UsageError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
        run(config, lambda connected: _add(connected, plan))
    else:
        chosen = {pattern: entries for pattern, entries in plan.items() if force or _confirm(pattern, entries)}
        run(config, lambda connected: _remove(connected, chosen))


def _pattern_type(text: str) -> PatternType:
    try:
        kind = PatternType[text.upper()]
    except KeyError:
        kind = PatternType.UNKNOWN
    if kind is PatternType.UNKNOWN:
        raise UsageError(f"Unknown resource-pattern-type: {text}; use literal, prefixed, any or match")
    return kind


def _patterns(
    kind: PatternType, named: Mapping[AclResourceType, Sequence[str] | None], *, cluster: bool
) -> list[ResourcePattern]:
    found = [ResourcePattern(resource, name.strip(), kind) for resource, names in named.items() for name in names or ()]
    if cluster and kind is PatternType.LITERAL:
        found.append(_CLUSTER)
    return found


def _principal(text: str) -> str:
    kind, colon, name = text.strip().partition(":")
    if not colon or not kind or not name:
        raise UsageError(f"expected a string in format principalType:principalName but got {text}")
    return f"{kind}:{name}"


class _Subjects:
    """Principals and hosts that are allowed or denied."""

    def __init__(
        self,
        allow: Sequence[str] | None,
        allow_hosts: Sequence[str] | None,
        deny: Sequence[str] | None,
        deny_hosts: Sequence[str] | None,
    ) -> None:
        self._rules = (
            (Permission.ALLOW, [_principal(text) for text in allow or ()], list(allow_hosts or ["*"])),
            (Permission.DENY, [_principal(text) for text in deny or ()], list(deny_hosts or ["*"])),
        )

    def entries(self, operations: Iterable[AclOperation]) -> list[Ace]:
        return sorted(
            {
                Ace(principal, host.strip(), operation, permission)
                for permission, principals, hosts in self._rules
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


def plan_acls(
    patterns: Sequence[ResourcePattern],
    subjects: _Subjects,
    operations: Sequence[str],
    *,
    producer: bool,
    consumer: bool,
    idempotent: bool,
) -> Plan:
    """Return the entries by resource that the roles or the operations require."""
    plan: dict[ResourcePattern, set[Ace]] = {}
    if not producer and not consumer:
        wanted = [parse_operation(text) for text in operations]
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
    if producer and idempotent:
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


async def _add(cluster: AsyncClient, plan: Plan) -> None:
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


async def _remove(cluster: AsyncClient, plan: Plan) -> None:
    for pattern, entries in plan.items():
        await admin.delete_acls(cluster, pattern, entries)


async def _list(
    cluster: AsyncClient, patterns: Sequence[ResourcePattern], principals: Sequence[str], json: bool
) -> None:
    found: dict[ResourcePattern, list[Ace]] = {}
    for pattern in patterns or [admin.ANY_RESOURCE]:
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
                if not principals or entry.principal in principals
            ]
        )
        return
    if not principals:
        _print(found)
    for principal in principals:
        say(f"ACLs for principal `{principal}`")
        _print({pattern: [e for e in entries if e.principal == principal] for pattern, entries in found.items()})


def _print(found: Mapping[ResourcePattern, Sequence[Ace]]) -> None:
    for pattern, entries in sorted(found.items()):
        if entries:
            say(f"Current ACLs for resource `{pattern}`: \n {_lines(sorted(entries))} \n")
