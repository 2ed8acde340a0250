"""ACLs in ZooKeeper, as Kafka's `AclAuthorizer` stores them, and the notifications of changes.

Owner: the event loop. The store feeds one `AclAuthorizer`: with everything when it starts, then with each changed resource. A
write checks the znode's version, so that two brokers that change one resource lose nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from barnabas.base.clock import Clock
from barnabas.base.errors import BarnabasError, ErrorCode, Malformed
from barnabas.base.words import (
    ACL_OPERATIONS,
    ACL_PATTERNS,
    ACL_PERMISSIONS,
    ACL_RESOURCES,
    AclResourceType,
    PatternType,
    Permission,
)
from barnabas.broker.security.acl import ALL, AclAuthorizer, Entry, Filter, ResourcePattern
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.notifications import ChangeNotifications, ReloadOnReturn
from barnabas.broker.zookeeper_client.operations import Get, GetChildren
from barnabas.broker.zookeeper_client.operations import Operation as ZkOperation
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import BadVersion, NodeExists, NoNode, TooLarge
from barnabas.broker.zookeeper_client.znodes_security import AclChange, AclEntry, decode_acls, encode_acls

log = logging.getLogger(__name__)

#: Kafka's number of attempts, if other brokers change the same resource at the same time.
UPDATE_ATTEMPTS_MAX: Final = 10

#: Kafka's names of resource types, in paths and in notifications.
_TYPE_NAMES: Final = {kind: kind.name.title().replace("_", "") for kind in ACL_RESOURCES}
_OPERATION_NAMES: Final = {
    **{int(operation): operation.name.title().replace("_", "") for operation in ACL_OPERATIONS},
    ALL: "All",
}
_OPERATIONS: Final = {name: number for number, name in _OPERATION_NAMES.items()}


#: The only entry of a resource whose list cannot be read.
DENY_ALL: Final = Entry("User:*", "*", ALL, Permission.DENY)


class AclUpdateFailed(BarnabasError):
    """The ACLs of a resource could not be written."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(message)
        self.code = code


class AclUnreadable(AclUpdateFailed):
    """The stored list of the resource cannot be read, so it is not overwritten either."""


class Removed(NamedTuple):
    """The result of one filter."""

    entries: list[tuple[ResourcePattern, Entry]]
    #: Resources that the filter covers and that could not be changed: their entries may still apply.
    failures: list[AclUpdateFailed]


def to_stored(entry: Entry) -> AclEntry:
    return AclEntry(
        principal=entry.principal,
        permission_type=entry.permission.name.title(),
        host=entry.host,
        operation=_OPERATION_NAMES[entry.operation],
    )


def from_stored(path: str, stored: AclEntry) -> Entry:
    operation = _OPERATIONS.get(stored.operation)
    permission = Permission.__members__.get(stored.permission_type.upper())
    if operation is None or permission not in ACL_PERMISSIONS:
        raise Malformed(f"{path}: {stored.permission_type} {stored.operation} is not a valid ACL entry")
    return Entry(stored.principal, stored.host, operation, permission)


def path_of(pattern: ResourcePattern) -> str:
    return paths.acl_resource(
        _TYPE_NAMES[pattern.resource_type], pattern.name, prefixed=pattern.pattern_type is PatternType.PREFIXED
    )


class AclStore:
    def __init__(self, session: ZooKeeperSession, authorizer: AclAuthorizer, clock: Clock) -> None:
        self._session = session
        self._authorizer = authorizer
        #: Reads and writes of one resource must not overtake each other, or an outdated answer would win.
        self._lock = asyncio.Lock()
        self._reload = ReloadOnReturn(session, self.load, "ACLs")
        self._notifications = [
            ChangeNotifications(session, root, paths.ACL_CHANGE_PREFIX, handle, clock)
            for root, handle in (
                (paths.ACL_LITERAL_CHANGES, self._on_literal_change),
                (paths.ACL_EXTENDED_CHANGES, self._on_prefixed_change),
            )
        ]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read everything that is stored; `run` then follows changes."""
        await self._session.ensure_paths(paths.ACL_PERSISTENT)
        for notifications in self._notifications:
            await notifications.start()
        await self.load()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for notifications in self._notifications:
                tasks.create_task(notifications.run(), name="acl changes")
            tasks.create_task(self._reload.run(), name="acl reload")

    async def load(self) -> None:
        """Read everything that is stored now. Writes nothing."""
        async with self._lock:
            roots = [(kind, pattern_type) for pattern_type in ACL_PATTERNS for kind in ACL_RESOURCES]
            listings: list[ZkOperation] = [
                GetChildren(paths.acl_resource_type(_TYPE_NAMES[kind], prefixed=pattern_type is PatternType.PREFIXED))
                for kind, pattern_type in roots
            ]
            answers = (await self._session.batch(listings)).results
            patterns = [
                ResourcePattern(kind, name, pattern_type)
                for (kind, pattern_type), answer in zip(roots, answers, strict=True)
                for name in answer.children
            ]
            reads: list[ZkOperation] = [Get(path_of(pattern)) for pattern in patterns]
            results = (await self._session.batch(reads)).results if reads else ()
            for pattern in set(self._authorizer.patterns()) - set(patterns):
                self._authorizer.set_entries(pattern, ())
            known = set(self._authorizer.patterns())
            for pattern, result in zip(patterns, results, strict=True):
                try:
                    self._authorizer.set_entries(pattern, _decode(pattern, result.data) if result.ok else ())
                except Malformed as error:
                    log.error("[acl] an access control list cannot be read, correct or delete its znode: %s", error)
                    if pattern not in known:
                        # Kafka treats it as empty, which may allow everything.
                        self._authorizer.set_entries(pattern, (DENY_ALL,))

    async def _on_literal_change(self, data: bytes) -> None:
        await self._on_change(data, prefixed=False)

    async def _on_prefixed_change(self, data: bytes) -> None:
        await self._on_change(data, prefixed=True)

    async def _on_change(self, data: bytes, *, prefixed: bool) -> None:
        try:
            await self._changed(AclChange.decode(data, prefixed=prefixed))
        except Malformed as error:
            # The list cannot be read: the known entries of the resource stay in force.
            log.error("[acl] a change cannot be read, the former entries stay; correct the znode: %s", error)

    async def _changed(self, change: AclChange) -> None:
        kind = AclResourceType.__members__.get(change.resource_type)
        if kind not in ACL_RESOURCES:
            log.warning(
                "[acl] ignoring a change of the unknown resource type %s, delete the notification", change.resource_type
            )
            return
        pattern = ResourcePattern(kind, change.name, PatternType.PREFIXED if change.prefixed else PatternType.LITERAL)
        async with self._lock:
            entries, _ = await self._read(pattern)
            self._authorizer.set_entries(pattern, entries)
        log.info("[acl] %s %s changed: %d entries", change.resource_type, change.name, len(entries))

    async def _read(self, pattern: ResourcePattern) -> tuple[frozenset[Entry], int | None]:
        """Return the entries and the znode's version, None if there is no znode."""
        try:
            data, stat = await self._session.get(path_of(pattern))
        except NoNode:
            return frozenset(), None
        return _decode(pattern, data), stat.version

    async def entries_of(self, pattern: ResourcePattern) -> frozenset[Entry]:
        """Return the stored entries of the resource. :raises AclUnreadable:"""
        try:
            entries, _ = await self._read(pattern)
        except Malformed as error:
            raise _unreadable(error) from error
        return entries

    # -- writing ------------------------------------------------------------------------------------------------------

    async def add(self, pattern: ResourcePattern, entries: Iterable[Entry]) -> None:
        added = frozenset(entries)
        await self._update(pattern, lambda held: held | added)

    async def remove(self, filters: Sequence[Filter]) -> list[Removed]:
        """Remove entries, and return those of each filter. An entry that matches two filters is in both results. A resource
        that cannot be changed does not affect the others."""
        removed = [Removed([], []) for _ in filters]
        concerned = dict.fromkeys(p for p in self._authorizer.patterns() if any(wanted.covers(p) for wanted in filters))
        # Another broker may have changed a resource a moment ago: resources that are named exactly are read from ZooKeeper.
        concerned |= dict.fromkeys(pattern for wanted in filters if (pattern := wanted.exact()) is not None)
        for pattern in concerned:
            try:
                before, after = await self._update(
                    pattern,
                    lambda held, pattern=pattern: frozenset(  # type: ignore[misc]
                        entry for entry in held if not any(f.covers(pattern) and f.covers_entry(entry) for f in filters)
                    ),
                )
            except AclUpdateFailed as error:
                log.error("[acl] entries of %s are not removed, try again: %s", pattern.name, error)
                for wanted, result in zip(filters, removed, strict=True):
                    if wanted.covers(pattern):
                        result.failures.append(error)
                continue
            for wanted, result in zip(filters, removed, strict=True):
                if wanted.covers(pattern):
                    result.entries.extend((pattern, entry) for entry in before - after if wanted.covers_entry(entry))
        return removed

    async def _update(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Entry]], frozenset[Entry]]
    ) -> tuple[frozenset[Entry], frozenset[Entry]]:
        """Return the entries before and after. They apply here at once, on other brokers after they read the notification."""
        async with self._lock:
            before, after = await self._write(pattern, change)
            self._authorizer.set_entries(pattern, after)
        if before != after:
            prefixed = pattern.pattern_type is PatternType.PREFIXED
            notice = AclChange(pattern.resource_type.name, pattern.name, prefixed=prefixed)
            await self._session.create(paths.acl_change(prefixed=prefixed), notice.encode(), sequence=True)
        return before, after

    async def _write(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Entry]], frozenset[Entry]]
    ) -> tuple[frozenset[Entry], frozenset[Entry]]:
        path = path_of(pattern)
        # If nothing changes, nothing is written, so an outdated ZooKeeper server could not refuse the write: catch up first.
        await self._session.catch_up("/")
        tried: tuple[frozenset[Entry], frozenset[Entry]] | None = None
        for _ in range(UPDATE_ATTEMPTS_MAX):
            try:
                before, version = await self._read(pattern)
            except Malformed as error:
                raise _unreadable(error) from error
            if tried is not None and before == tried[1]:
                return tried  # probably our own write: its answer was lost with the connection
            after = change(before)
            if after == before:
                return before, after
            tried = (before, after)
            try:
                if version is None:
                    await self._session.create(path, _encode(after), make_path=True)
                elif after:
                    await self._session.set(path, _encode(after), version)
                else:
                    await self._session.delete(path, version)
            except (BadVersion, NodeExists, NoNode):
                continue  # another broker changed it: read it again
            except TooLarge as error:
                raise AclUpdateFailed(error.message or str(error), error.code) from error
            return before, after
        raise AclUpdateFailed(
            f"other brokers changed the ACLs of {pattern.name} {UPDATE_ATTEMPTS_MAX} times in a row; try again"
        )


def _unreadable(error: Malformed) -> AclUnreadable:
    return AclUnreadable(f"{error}; delete that znode first")


def _encode(entries: frozenset[Entry]) -> bytes:
    ordered = sorted(entries, key=lambda e: (e.principal, e.host, e.operation, e.permission))
    return encode_acls(to_stored(entry) for entry in ordered)


def _decode(pattern: ResourcePattern, data: bytes | None) -> frozenset[Entry]:
    path = path_of(pattern)
    return frozenset(from_stored(path, stored) for stored in decode_acls(path, data))
