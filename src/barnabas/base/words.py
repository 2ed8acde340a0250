"""Constants of Kafka's protocol, each defined once for brokers, clients, tools and Spark."""

from enum import IntEnum
from typing import Final

#: `isolation.level`, numbered as in Fetch and ListOffsets.
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
ISOLATION_LEVELS: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}

#: Special values that ListOffsets takes instead of a timestamp.
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
#: The values of `auto.offset.reset`, and the special timestamp of ListOffsets that each means.
OFFSET_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}


class AclOperation(IntEnum):
    """The operation that an entry allows or denies; `ANY` appears only in filters, `ALL` in entries."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
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

    # Enum's own hash is a call into Python, and every authorization hashes an operation.
    __hash__ = int.__hash__

    @classmethod
    def _missing_(cls, value: object) -> "AclOperation":
        return cls.UNKNOWN  # a newer cluster may have more


class AclResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    __hash__ = int.__hash__


#: The resource types of entries; `ANY` appears only in filters.
ACL_RESOURCES: Final = tuple(each for each in AclResourceType if each > AclResourceType.ANY)
#: The operations that a request can need; an entry may have `ALL` instead.
ACL_OPERATIONS: Final = tuple(each for each in AclOperation if each > AclOperation.ALL)


class PatternType(IntEnum):
    """How an entry's resource name is matched. `ANY` and `MATCH` (all that apply to a name) appear only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


#: The pattern types of entries.
ACL_PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


ACL_PERMISSIONS: Final = (Permission.DENY, Permission.ALLOW)


class ConfigResourceType(IntEnum):
    """The kind of resource in DescribeConfigs and AlterConfigs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The source of a setting's value."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> "ConfigSource":
        return cls.UNKNOWN  # a newer cluster may have more


class AlterOperation(IntEnum):
    """The change that IncrementalAlterConfigs makes to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SecurityProtocol(IntEnum):
    """Numbered as in ZooKeeper and UpdateMetadata."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


#: Sorted by number.
SECURITY_PROTOCOLS: Final = tuple(each.name for each in SecurityProtocol)

#: Kafka 4's name of KIP-890's feature: at level 2 the epoch rises with every transaction.
TRANSACTION_VERSION: Final = "transaction.version"
#: Kafka 4's name of the feature of share groups (KIP-932).
SHARE_VERSION: Final = "share.version"
#: Kafka 4's name of the feature of streams groups (KIP-1071).
STREAMS_VERSION: Final = "streams.version"
