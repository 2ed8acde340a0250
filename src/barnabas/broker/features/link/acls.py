"""Copies the source's ACLs for the same principals here. Runs on the controller. Owner: the event loop.

Only entries about resources wholly within the mirrored names are copied (`coverage`): the source is not trusted, and must not
grant access to anything else in this cluster. Only entries that the link itself added are removed when they disappear at the
source: entries that existed before belong to this cluster. The link records an entry in ZooKeeper before it adds it, so that
after a crash of the controller no entry is forgotten.
"""

import logging
from collections.abc import Callable
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import ACL_OPERATIONS, ACL_PATTERNS, ACL_PERMISSIONS, AclOperation, AclResourceType
from barnabas.broker.features.link.coverage import covers
from barnabas.broker.features.link.manager import Link
from barnabas.broker.features.link.store import Bindings, LinkStore
from barnabas.broker.security.acl import Entry, Filter, ResourcePattern, check_creation
from barnabas.broker.security.acl_store import AclStore, AclUpdateFailed
from barnabas.client.admin.acls import Ace, describe_acls

log = logging.getLogger(__name__)

_COPIED: Final = (AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.TRANSACTIONAL_ID)
#: Limit of entries that one link adds: a source must not fill ZooKeeper.
ENTRIES_MAX: Final = 10_000
_NO_ENTRIES: Final[frozenset[Entry]] = frozenset()


class AclCopier:
    def __init__(
        self, store: Callable[[], AclStore | None], links: LinkStore, *, is_active: Callable[[], bool]
    ) -> None:
        """`store` returns None if no authorizer is configured. `links` records which entries each link added."""
        self._store = store
        self._links = links
        self._is_active = is_active
        #: The source's entries as of this controller's last turn, by link.
        self._seen: dict[str, Bindings] = {}
        #: Links whose last turn was incomplete.
        self._unfinished: set[str] = set()

    async def turn(self, link: Link) -> None:
        if not self._is_active():
            self._seen.pop(link.name, None)  # another controller continues
            return
        if not link.spec.acls or not link.runs or link.source is None:
            return
        store = self._store()
        if store is None:
            raise Refused(ErrorCode.SECURITY_DISABLED, "ACLs cannot be copied: this cluster has no authorizer")
        at_source = await self._of_source(link)
        if at_source == self._seen.get(link.name) and link.name not in self._unfinished:
            return
        added = await self._links.added_acls(link.name)
        problems: list[str] = []
        copied = await self._add(link, store, at_source, added, problems)
        problems += await self._remove(link, store, at_source, added)
        self._seen[link.name] = copied
        if problems:
            self._unfinished.add(link.name)
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(dict.fromkeys(problems[:5])))
        self._unfinished.discard(link.name)
        log.info("[link %s] the ACLs of %d mirrored resources match the source", link.name, len(at_source))

    async def _of_source(self, link: Link) -> Bindings:
        """Return the source's entries about resources that the link mirrors."""
        assert link.source is not None
        found: Bindings = {}
        for described, entries in (await describe_acls(link.source.client)).items():
            if described.resource_type not in _COPIED or described.pattern_type not in ACL_PATTERNS:
                continue
            pattern = ResourcePattern(described.resource_type, described.name or "", described.pattern_type)
            if covers(link.spec, link.topics, pattern):
                found[pattern] = frozenset(
                    Entry(each.principal, each.host, each.operation, each.permission)
                    for each in entries
                    if _can_be_stored(pattern, each)
                )
        count = sum(map(len, found.values()))
        if count > ENTRIES_MAX:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"the source has {count} ACL entries about mirrored names; a link copies at most {ENTRIES_MAX}",
            )
        return found

    async def _add(
        self, link: Link, store: AclStore, at_source: Bindings, added: Bindings, problems: list[str]
    ) -> Bindings:
        """Add entries and return those that exist now. Updates `added`."""
        seen = self._seen.get(link.name, {})
        copied = dict(at_source)
        for pattern, entries in at_source.items():
            new = entries - seen.get(pattern, _NO_ENTRIES)
            if not new:
                continue
            mine = added.get(pattern, _NO_ENTRIES)
            try:
                wanted = new - await store.entries_of(pattern)
                if wanted - mine:
                    mine = added[pattern] = mine | wanted
                    await self._links.write_added_acls(link.name, pattern, mine)
                if wanted:
                    await store.add(pattern, wanted)
            # The other entries of this resource are still worth adding: they may deny access.
            except AclUpdateFailed as error:
                problems.append(str(error))
                copied[pattern] = entries & seen.get(pattern, _NO_ENTRIES)
        return copied

    async def _remove(self, link: Link, store: AclStore, at_source: Bindings, added: Bindings) -> list[str]:
        """Remove entries; return the problems. Entries about names that are no longer mirrored stay: this cluster owns them
        now."""
        problems: list[str] = []
        for pattern, mine in list(added.items()):
            gone = mine - at_source.get(pattern, _NO_ENTRIES)
            if not gone or not covers(link.spec, link.topics, pattern):
                continue
            removed = await store.remove([_exactly(pattern, entry) for entry in gone])
            failures = [str(failure) for each in removed for failure in each.failures]
            problems += failures
            if not failures:
                await self._links.write_added_acls(link.name, pattern, mine - gone)
        return problems


def _can_be_stored(pattern: ResourcePattern, entry: Ace) -> bool:
    """Whether the entry is valid. An unreadable list would deny access to everyone. UNKNOWN comes from a newer cluster."""
    try:
        check_creation(pattern, entry.principal)
    except Refused:
        return False
    return entry.operation in (*ACL_OPERATIONS, AclOperation.ALL) and entry.permission in ACL_PERMISSIONS


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
