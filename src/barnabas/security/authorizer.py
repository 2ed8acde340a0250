"""The question that every API asks before it acts, and who may answer it.

Operations and resource types have Kafka's numbers: they travel in ACLs and in authorized-operations bit fields.
"""

from enum import IntEnum
from typing import Final, Protocol

from barnabas.security.principal import Principal


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    # Enum's own is a call into Python, and every authorization hashes one.
    __hash__ = int.__hash__


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    __hash__ = int.__hash__


#: The name of the one resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"

#: What can be allowed on each type: the bits of an authorized-operations field.
SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    # Settings of groups can be described and altered, but Kafka 3.9 does not tell so here.
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}


class Authorizer(Protocol):
    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool: ...

    def allows_on_any(self, principal: Principal, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether there is any resource of the type on which the principal may do it (KIP-679)."""
        ...


class AllowEverything:
    """No `authorizer.class.name`: everyone may do everything, as in Kafka."""

    def allows(self, principal: Principal, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        return True

    def allows_on_any(self, principal: Principal, host: str, operation: Operation, resource: ResourceType) -> bool:
        return True
