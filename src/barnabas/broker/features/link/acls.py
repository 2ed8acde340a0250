"""ACLs of the source, for the same principals here. Done by the broker that is controller. Owner: the event loop.

Entries about topics, groups and transactional ids come over. Those about the cluster itself do not: who may administer the
source need not administer this cluster. An entry that goes at the source goes here, if this broker has seen it there before.
"""

import logging
from collections.abc import Callable
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import ACL_PATTERNS, AclOperation, AclResourceType
from barnabas.broker.features.link.manager import Link
from barnabas.broker.security.acl import Entry, Filter, ResourcePattern
from barnabas.broker.security.acl_store import AclStore, AclUpdateFailed
from barnabas.client.admin.acls import describe_acls

log = logging.getLogger(__name__)

_COPIED: Final = (AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.TRANSACTIONAL_ID)

_Bindings = dict[ResourcePattern, frozenset[Entry]]


class AclCopier:
    def __init__(self, store: Callable[[], AclStore | None], *, is_active: Callable[[], bool]) -> None:
        """`store` answers None where no authorizer is configured."""
        self._store = store
        self._is_active = is_active
        #: What the source had, by link.
        self._seen: dict[str, _Bindings] = {}

    async def turn(self, link: Link) -> None:
        if not link.spec.acls or not link.runs or link.source is None or not self._is_active():
            return
        store = self._store()
        if store is None:
            raise Refused(ErrorCode.SECURITY_DISABLED, "ACLs cannot be copied: this cluster has no authorizer")
        there: _Bindings = {
            ResourcePattern(pattern.resource_type, pattern.name or "", pattern.pattern_type): frozenset(
                Entry(each.principal, each.host, each.operation, each.permission)
                for each in entries
                if AclOperation.UNKNOWN is not each.operation  # of a newer cluster: nothing here asks for it
            )
            for pattern, entries in (await describe_acls(link.source.client)).items()
            if pattern.resource_type in _COPIED and pattern.pattern_type in ACL_PATTERNS
        }
        seen = self._seen.get(link.name, {})
        problems: list[str] = []
        copied = dict(there)
        for pattern, entries in there.items():
            if entries - seen.get(pattern, frozenset()):
                try:
                    await store.add(pattern, entries)
                except AclUpdateFailed as error:  # of this one: others may keep somebody out
                    problems.append(str(error))
                    copied[pattern] = entries & seen.get(pattern, frozenset())
        gone = [
            _exactly(pattern, entry)
            for pattern, entries in seen.items()
            for entry in entries - there.get(pattern, frozenset())
        ]
        left = (
            {str(failure): None for removed in await store.remove(gone) for failure in removed.failures} if gone else {}
        )
        if left:
            problems += left
            copied |= {pattern: entries | copied.get(pattern, frozenset()) for pattern, entries in seen.items()}
        self._seen[link.name] = copied
        if problems:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(problems[:5]))
        if there != seen:
            log.info("link %s: ACLs of %d resources are those of the source", link.name, len(there))


def _exactly(pattern: ResourcePattern, entry: Entry) -> Filter:
    return Filter(
        pattern.resource_type,
        pattern.name,
        pattern.pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission,
    )
