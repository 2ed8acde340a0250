"""Access control lists: CreateAcls, DescribeAcls and DeleteAcls v1 to v3 (KIP-140, prefixed patterns KIP-290).

Any broker serves them, as in Kafka with ZooKeeper. Without an authorizer all of them answer SECURITY_DISABLED.
"""

from barnabas.base.errors import ErrorCode, Malformed, Refused
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
from barnabas.broker.runtime.turns import in_turns
from barnabas.broker.security.acl import ALL, ANY, MATCH, AclAuthorizer, Entry, Filter, ResourcePattern, check_creation
from barnabas.broker.security.acl_store import AclStore, AclUpdateFailed
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from barnabas.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from barnabas.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

_RESOURCE_TYPES = frozenset(ACL_RESOURCES)
_OPERATIONS = frozenset({*ACL_OPERATIONS, ALL})


class AclApi:
    def __init__(self, context: BrokerContext, store: AclStore | None) -> None:
        self._context = context
        self._store = store

    @serves("DescribeAcls", refusal())
    async def describe(self, call: Call, request: DescribeAclsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.DESCRIBE)
        authorizer = self._context.authorizer
        if not isinstance(authorizer, AclAuthorizer):
            raise Refused(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
        return DescribeAclsResponse(
            error_message=None,
            resources=[
                DescribeAclsResource(
                    resource_type=pattern.resource_type,
                    resource_name=pattern.name,
                    pattern_type=pattern.pattern_type,
                    acls=[
                        AclDescription(
                            principal=entry.principal,
                            host=entry.host,
                            operation=entry.operation,
                            permission_type=entry.permission,
                        )
                        for entry in entries
                    ],
                )
                async for pattern, entries in in_turns(authorizer.find(_filter(request)).items(), size=50)
            ],
        )

    @serves("CreateAcls", refusal("results <- creations"))
    async def create(self, call: Call, request: CreateAclsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        store = self._require_store()
        bindings = [_binding(creation) for creation in request.creations]
        results = [AclCreationResult(error_message=None) for _ in bindings]
        wanted: dict[ResourcePattern, list[int]] = {}
        for index, (pattern, entry) in enumerate(bindings):
            try:
                check_creation(pattern, entry.principal)
            except Refused as refused:
                results[index].error_code, results[index].error_message = refused.code, refused.message
            else:
                wanted.setdefault(pattern, []).append(index)
        for pattern, indexes in wanted.items():
            try:
                await store.add(pattern, [bindings[index][1] for index in indexes])
            except AclUpdateFailed as error:
                for index in indexes:
                    results[index].error_code, results[index].error_message = error.code, str(error)
        return CreateAclsResponse(results=results)

    @serves("DeleteAcls", refusal("filter_results <- filters"))
    async def delete(self, call: Call, request: DeleteAclsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        store = self._require_store()
        removed = await store.remove([_filter(wanted) for wanted in request.filters])
        return DeleteAclsResponse(
            filter_results=[
                DeleteAclsFilterResult(
                    error_code=ErrorCode.UNKNOWN_SERVER_ERROR if result.failures else ErrorCode.NONE,
                    error_message="; ".join(map(str, result.failures[:5])) or None,
                    matching_acls=[
                        DeleteAclsMatchingAcl(
                            error_message=None,
                            resource_type=pattern.resource_type,
                            resource_name=pattern.name,
                            pattern_type=pattern.pattern_type,
                            principal=entry.principal,
                            host=entry.host,
                            operation=entry.operation,
                            permission_type=entry.permission,
                        )
                        for pattern, entry in result.entries
                    ],
                )
                for result in removed
            ]
        )

    def _require_store(self) -> AclStore:
        if self._store is None:
            raise Refused(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
        return self._store


def _binding(creation: AclCreation) -> tuple[ResourcePattern, Entry]:
    """Convert a creation. Unknown numbers end the connection, as in Kafka: no client of the supported versions sends them."""
    known = (
        creation.operation in _OPERATIONS
        and creation.resource_type in _RESOURCE_TYPES
        and creation.resource_pattern_type in ACL_PATTERNS
        and creation.permission_type in ACL_PERMISSIONS
    )
    if not known:
        raise Malformed(f"an ACL to be created contains unknown elements: {creation}")
    pattern = ResourcePattern(
        AclResourceType(creation.resource_type), creation.resource_name, PatternType(creation.resource_pattern_type)
    )
    permission = Permission(creation.permission_type)
    return pattern, Entry(creation.principal, creation.host, creation.operation, permission)


def _filter(wire: DescribeAclsRequest | DeleteAclsFilter) -> Filter:
    known = (
        (wire.resource_type_filter in _RESOURCE_TYPES or wire.resource_type_filter == ANY)
        and wire.pattern_type_filter in (ANY, MATCH, *ACL_PATTERNS)
        and (wire.operation in _OPERATIONS or wire.operation == ANY)
        and wire.permission_type in (ANY, *ACL_PERMISSIONS)
    )
    if not known:
        raise Malformed("a filter of ACLs contains unknown elements")
    return Filter(
        resource_type=wire.resource_type_filter,
        name=wire.resource_name_filter,
        pattern_type=wire.pattern_type_filter,
        principal=wire.principal_filter,
        host=wire.host_filter,
        operation=wire.operation,
        permission=wire.permission_type,
    )
