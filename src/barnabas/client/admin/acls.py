"""Access control entries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.client.core import ClientCore
from barnabas.client.errors import check, first_error
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

E = TypeVar("E", AclResourceType, PatternType, Permission)


@dataclass(frozen=True, slots=True, order=True)
class ResourcePattern:
    """The resources that entries apply to. In a filter, a name of None matches any name."""

    resource_type: AclResourceType
    name: str | None
    pattern_type: PatternType

    def __str__(self) -> str:
        return (
            f"ResourcePattern(resourceType={self.resource_type.name}, name={self.name}, "
            f"patternType={self.pattern_type.name})"
        )


@dataclass(frozen=True, slots=True, order=True)
class Ace:
    """One entry: it allows or denies a principal an operation, from a host."""

    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    def __str__(self) -> str:
        return (
            f"(principal={self.principal}, host={self.host}, operation={self.operation.name}, "
            f"permissionType={self.permission.name})"
        )


ANY_RESOURCE = ResourcePattern(AclResourceType.ANY, None, PatternType.ANY)


async def describe_acls(
    cluster: ClientCore, pattern: ResourcePattern = ANY_RESOURCE
) -> dict[ResourcePattern, list[Ace]]:
    response = await cluster.ask_any(
        DescribeAclsRequest(
            resource_type_filter=pattern.resource_type,
            resource_name_filter=pattern.name,
            pattern_type_filter=pattern.pattern_type,
            principal_filter=None,
            host_filter=None,
            operation=AclOperation.ANY,
            permission_type=Permission.ANY,
        ),
        DescribeAclsResponse,
    )
    check(response.error_code, response.error_message)
    return {
        ResourcePattern(
            _known(AclResourceType, resource.resource_type),
            resource.resource_name,
            _known(PatternType, resource.pattern_type),
        ): [
            Ace(entry.principal, entry.host, AclOperation(entry.operation), _known(Permission, entry.permission_type))
            for entry in resource.acls
        ]
        for resource in response.resources
    }


def _known(kind: type[E], number: int) -> E:
    """`UNKNOWN` for a number of a newer cluster."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


async def create_acls(cluster: ClientCore, pattern: ResourcePattern, entries: Iterable[Ace]) -> None:
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=pattern.resource_type,
                resource_name=pattern.name or "",
                resource_pattern_type=pattern.pattern_type,
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for entry in entries
        ]
    )

    response = await cluster.ask_controller(request, CreateAclsResponse, first_error=lambda r: first_error(r.results))
    for result in response.results:
        check(result.error_code, result.error_message)


async def delete_acls(cluster: ClientCore, pattern: ResourcePattern, entries: Sequence[Ace]) -> None:
    """Delete these entries of the matching resources, or all their entries if none are given."""

    def filter_of(entry: Ace | None) -> DeleteAclsFilter:
        return DeleteAclsFilter(
            resource_type_filter=pattern.resource_type,
            resource_name_filter=pattern.name,
            pattern_type_filter=pattern.pattern_type,
            principal_filter=entry.principal if entry else None,
            host_filter=entry.host if entry else None,
            operation=entry.operation if entry else AclOperation.ANY,
            permission_type=entry.permission if entry else Permission.ANY,
        )

    request = DeleteAclsRequest(filters=[filter_of(entry) for entry in entries] or [filter_of(None)])

    response = await cluster.ask_controller(
        request, DeleteAclsResponse, first_error=lambda r: first_error(r.filter_results)
    )
    for result in response.filter_results:
        check(result.error_code, result.error_message)
        for match in result.matching_acls:
            check(match.error_code, match.error_message)
