"""Access control lists: entries, resource patterns, filters over both, and the decisions of Kafka's `AclAuthorizer`.

Pure. A denying entry of a resource overrides every allowing one; a resource without any entry is closed unless
`allow.everyone.if.no.acl.found`. If some operations are allowed, they imply others; if they are denied, they do not.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import ACL_PATTERNS, ACL_RESOURCES, AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.security.principal import Principal
from barnabas.broker.zookeeper_client.paths import is_valid_name

WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
#: In a filter: matches every value.
ANY: Final = 1
#: In an entry: stands for every operation.
ALL: Final = AclOperation.ALL
MATCH: Final = PatternType.MATCH
#: Size of the cache of decisions. A full cache is cleared, and fills again: an order of use would cost memory.
DECISIONS_MAX: Final = 100_000
#: Longest name of a topic. Decisions about longer names are not cached: a client could make up any number of them.
NAME_CHARACTERS_MAX: Final = 249

#: Operations that, if allowed, also allow the key.
_IMPLIED_BY: Final[Mapping[int, tuple[int, ...]]] = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    resource_type: AclResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


@dataclass(frozen=True, slots=True)
class Entry:
    """Allows or denies a principal an operation, from an address."""

    #: `User:alice`, or `User:*` for all users.
    principal: str
    #: An address, or `*`.
    host: str
    #: An `AclOperation`, or `ALL`.
    operation: int
    permission: Permission


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects entries. None and `ANY` match everything."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def exact(self) -> ResourcePattern | None:
        """Return the only pattern that this can cover; None if it covers several, or is invalid."""
        if self.resource_type == ANY or self.pattern_type not in ACL_PATTERNS or not is_valid_name(self.name or ""):
            return None
        return ResourcePattern(AclResourceType(self.resource_type), self.name or "", PatternType(self.pattern_type))

    def covers(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (ANY, MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name in (self.name, WILDCARD)
        return self.name.startswith(pattern.name)

    def covers_entry(self, entry: Entry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission in (ANY, entry.permission)
        )


def check_creation(pattern: ResourcePattern, principal: str) -> None:
    """Refuse what Kafka refuses to store, with Kafka's messages."""
    if pattern.resource_type is AclResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise Refused(ErrorCode.INVALID_REQUEST, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not pattern.name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    if not is_valid_name(pattern.name):
        raise Refused(ErrorCode.INVALID_REQUEST, "Failed to create ACL")
    if ":" not in principal:
        # A Kafka broker of the cluster could not read the list.
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"expected a string in format principalType:principalName but got {principal}"
        )


class AclAuthorizer:
    """Decides by its entries. Owner: the event loop.

    A decision is cached until any entry changes, so that a repeated question costs one look-up in a dict.
    """

    def __init__(self, *, super_users: Iterable[str] = (), allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._literal: dict[AclResourceType, dict[str, frozenset[Entry]]] = {kind: {} for kind in ACL_RESOURCES}
        self._prefixed: dict[AclResourceType, dict[str, frozenset[Entry]]] = {kind: {} for kind in ACL_RESOURCES}
        #: Number of prefixes of each length: a name is looked up once per length, however many prefixes there are.
        self._prefix_lengths: dict[AclResourceType, Counter[int]] = {kind: Counter() for kind in ACL_RESOURCES}
        self._decisions: dict[tuple[Principal, str, AclOperation, AclResourceType, str], bool] = {}

    # -- entries ------------------------------------------------------------------------------------------------------

    def set_entries(self, pattern: ResourcePattern, entries: Iterable[Entry]) -> None:
        """Replace all entries of a resource; without entries, forget the resource."""
        table = self._table(pattern.pattern_type)[pattern.resource_type]
        held = frozenset(entries)
        before = table.get(pattern.name, frozenset())
        if before == held:
            return
        if pattern.pattern_type is PatternType.PREFIXED:
            self._count_prefix(pattern, bool(held) - bool(before))
        if held:
            table[pattern.name] = held
        else:
            del table[pattern.name]
        self._decisions.clear()

    def _count_prefix(self, pattern: ResourcePattern, more: int) -> None:
        lengths, length = self._prefix_lengths[pattern.resource_type], len(pattern.name)
        lengths[length] += more
        if not lengths[length]:
            del lengths[length]

    def _table(self, pattern_type: PatternType) -> dict[AclResourceType, dict[str, frozenset[Entry]]]:
        return self._literal if pattern_type is PatternType.LITERAL else self._prefixed

    def patterns(self) -> Iterator[ResourcePattern]:
        for pattern_type in ACL_PATTERNS:
            for resource_type, resources in self._table(pattern_type).items():
                for name in resources:
                    yield ResourcePattern(resource_type, name, pattern_type)

    def entries(self, pattern: ResourcePattern) -> frozenset[Entry]:
        return self._table(pattern.pattern_type)[pattern.resource_type].get(pattern.name, frozenset())

    def find(self, wanted: Filter) -> dict[ResourcePattern, list[Entry]]:
        """Return the entries that a filter covers, by resource, in a stable order."""
        found: dict[ResourcePattern, list[Entry]] = {}
        for pattern in self.patterns():
            if wanted.covers(pattern):
                entries = [entry for entry in self.entries(pattern) if wanted.covers_entry(entry)]
                if entries:
                    found[pattern] = sorted(entries, key=lambda e: (e.principal, e.host, e.operation, e.permission))
        return found

    # -- decisions ----------------------------------------------------------------------------------------------------

    def allows(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        key = (principal, host, operation, resource, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(str(principal), host, operation, resource, name)
            if len(name) <= NAME_CHARACTERS_MAX:
                if len(self._decisions) >= DECISIONS_MAX:
                    self._decisions.clear()
                self._decisions[key] = decision
        return decision

    def _decide(self, principal: str, host: str, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        if principal in self._super_users:
            return True
        entries = self._matching(resource, name)
        if not entries:
            return self._allow_if_no_acl
        denied = (operation, ALL)
        allowed = (operation, ALL, *_IMPLIED_BY.get(operation, ()))
        may = False
        for entry in entries:
            if entry.principal not in (principal, WILDCARD_PRINCIPAL) or entry.host not in (host, WILDCARD):
                continue
            if entry.permission is Permission.DENY:
                if entry.operation in denied:
                    return False
            elif entry.operation in allowed:
                may = True
        return may

    def _matching(self, resource: AclResourceType, name: str) -> list[Entry]:
        """Return the entries of every pattern that matches the name."""
        literal = self._literal[resource]
        entries = [*literal.get(name, ())]
        if name != WILDCARD:
            entries += literal.get(WILDCARD, ())
        prefixed = self._prefixed[resource]
        for length in self._prefix_lengths[resource]:
            if length <= len(name):
                entries += prefixed.get(name[:length], ())
        return entries

    def allows_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType
    ) -> bool:
        """Apply KIP-679: an allowed pattern counts unless a denied one covers all of it."""
        user = str(principal)
        if user in self._super_users:
            return True
        denied_names = self._names(self._literal, user, host, operation, resource, Permission.DENY)
        if WILDCARD in denied_names:
            return False
        if self._allow_if_no_acl:
            return True
        denied_prefixes = self._names(self._prefixed, user, host, operation, resource, Permission.DENY)

        def is_open(name: str) -> bool:
            return not any(name.startswith(prefix) for prefix in denied_prefixes)

        allowed_names = self._names(self._literal, user, host, operation, resource, Permission.ALLOW)
        if any(name == WILDCARD or (name not in denied_names and is_open(name)) for name in allowed_names):
            return True
        return any(map(is_open, self._names(self._prefixed, user, host, operation, resource, Permission.ALLOW)))

    @staticmethod
    def _names(
        table: Mapping[AclResourceType, Mapping[str, frozenset[Entry]]],
        principal: str,
        host: str,
        operation: AclOperation,
        resource: AclResourceType,
        permission: Permission,
    ) -> set[str]:
        """Return resources with an entry for exactly this operation: as in Kafka, implied operations do not count here."""
        return {
            name
            for name, entries in table[resource].items()
            if any(
                entry.permission is permission
                and entry.operation in (operation, ALL)
                and entry.principal in (principal, WILDCARD_PRINCIPAL)
                and entry.host in (host, WILDCARD)
                for entry in entries
            )
        }
