"""The interface of authorizers, which every API asks before it acts.

Operations and resource types have Kafka's numbers: they travel in ACLs and in authorized-operations bit fields.
"""

from typing import Final, Protocol

from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.security.principal import Principal

#: The name of the one resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"

#: The operations that exist for each resource type: the bits of an authorized-operations field.
SUPPORTED_OPERATIONS: Final = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    # Settings of groups can be described and altered, but Kafka 3.9 omits that here.
    AclResourceType.GROUP: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    AclResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}


class Authorizer(Protocol):
    def allows(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool: ...

    def allows_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType
    ) -> bool:
        """Whether there is any resource of the type on which the principal may do the operation (KIP-679)."""
        ...


class AllowEverything:
    """Allows everything: used without `authorizer.class.name`, as in Kafka."""

    def allows(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return True

    def allows_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType
    ) -> bool:
        return True
