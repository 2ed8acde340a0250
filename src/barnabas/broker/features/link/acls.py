"""ACLs of the source, for the same principals here. Done by the broker that is controller. Owner: the event loop.

Only entries about what lies wholly within the mirrored names come over (`coverage`): the source is a stranger, and must open
nothing else of this cluster. Only an entry that the link itself added goes when it goes at the source: an entry that was here
before is this cluster's own. What a link added is written down in ZooKeeper before it is added, so that a controller that dies
in between leaves no entry that nobody removes.
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
#: Entries that one link adds: a source must not fill ZooKeeper.
ENTRIES_MAX: Final = 10_000
_NO_ENTRIES: Final[frozenset[Entry]] = frozenset()


class AclCopier:
    def __init__(
        self, store: Callable[[], AclStore | None], links: LinkStore, *, is_active: Callable[[], bool]
    ) -> None:
        """`store` answers None where no authorizer is configured. `links` remembers what each link added."""
        self._store = store
        self._links = links
        self._is_active = is_active
        #: What the source had at the last turn of this controller, by link.
        self._seen: dict[str, Bindings] = {}
        #: Links whose last turn could not do everything.
        self._unfinished: set[str] = set()

    async def turn(self, link: Link) -> None:
        if not self._is_active():
            self._seen.pop(link.name, None)  # another controller goes on from here
            return
        if not link.spec.acls or not link.runs or link.source is None:
            return
        store = self._store()
        if store is None:
            raise Refused(ErrorCode.SECURITY_DISABLED, "ACLs cannot be copied: this cluster has no authorizer")
        there = await self._of_source(link)
        if there == self._seen.get(link.name) and link.name not in self._unfinished:
            return
        added = await self._links.added_acls(link.name)
        problems: list[str] = []
        copied = await self._add(link, store, there, added, problems)
        problems += await self._remove(link, store, there, added)
        self._seen[link.name] = copied
        if problems:
            self._unfinished.add(link.name)
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(dict.fromkeys(problems[:5])))
        self._unfinished.discard(link.name)
        log.info("link %s: ACLs of %d mirrored resources are those of the source", link.name, len(there))

    async def _of_source(self, link: Link) -> Bindings:
        """The source's entries about what the link mirrors."""
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
        self, link: Link, store: AclStore, there: Bindings, added: Bindings, problems: list[str]
    ) -> Bindings:
        """What has been copied. `added` is kept up to date."""
        seen = self._seen.get(link.name, {})
        copied = dict(there)
        for pattern, entries in there.items():
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
            except AclUpdateFailed as error:  # of this resource: other entries may keep somebody out
                problems.append(str(error))
                copied[pattern] = entries & seen.get(pattern, _NO_ENTRIES)
        return copied

    async def _remove(self, link: Link, store: AclStore, there: Bindings, added: Bindings) -> list[str]:
        """What went wrong. Entries about names that the link does not mirror any more stay: they are this cluster's now."""
        problems: list[str] = []
        for pattern, mine in list(added.items()):
            gone = mine - there.get(pattern, _NO_ENTRIES)
            if not gone or not covers(link.spec, link.topics, pattern):
                continue
            removed = await store.remove([_exactly(pattern, entry) for entry in gone])
            failures = [str(failure) for each in removed for failure in each.failures]
            problems += failures
            if not failures:
                await self._links.write_added_acls(link.name, pattern, mine - gone)
        return problems


def _can_be_stored(pattern: ResourcePattern, entry: Ace) -> bool:
    """A list with another entry could not be read, and would keep everybody out. UNKNOWN is of a newer cluster."""
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
