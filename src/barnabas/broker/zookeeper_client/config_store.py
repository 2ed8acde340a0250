"""Settings in ZooKeeper: /config/<type>/<entity>, and the notifications of changes.

Owner: the event loop. The store keeps nothing: it reads, writes, and calls a listener.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from barnabas.base.clock import Clock
from barnabas.base.errors import Malformed
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.notifications import ChangeNotifications
from barnabas.broker.zookeeper_client.operations import Get, GetChildren, Operation
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import (
    BadVersion,
    ConnectionLost,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    ZkError,
)
from barnabas.broker.zookeeper_client.znodes import (
    decode_config,
    decode_config_change,
    encode_config,
    encode_config_change,
)

log = logging.getLogger(__name__)

#: These znodes are deleted with their last setting.
_SHORT_LIVED = (paths.CLIENTS, paths.USERS, paths.IPS, paths.GROUPS, paths.CLIENT_METRICS)
_ENTITY_TYPES = (*paths.CONFIG_ENTITY_TYPES, paths.GROUPS, paths.CLIENT_METRICS)

#: (entity type, sanitized entity name)
Entity = tuple[str, str]
#: (entity type, sanitized entity name, settings as they are now)
ConfigListener = Callable[[str, str, Mapping[str, str]], None]
#: Maps the present settings to the new ones; None: no change. Called again if another broker has written meanwhile.
Change = Callable[[Mapping[str, str]], Mapping[str, str] | None]
#: Changes an entity's settings in ZooKeeper and on this broker: (entity type, name, change).
ChangeConfig = Callable[[str, str, Change], Awaitable[None]]


class ConfigStore:
    def __init__(self, session: ZooKeeperSession, clock: Clock) -> None:
        self._session = session
        self._listener: ConfigListener | None = None
        self._known: Callable[[], Iterable[Entity]] = tuple
        self._notifications = ChangeNotifications(
            session,
            paths.CONFIG_CHANGES,
            paths.CONFIG_CHANGE_PREFIX,
            self._on_notification,
            clock,
            reload=self._reload,
        )

    async def read(self, entity_type: str, name: str) -> dict[str, str]:
        """Return an entity's settings; empty if it has none."""
        path = paths.config_entity(entity_type, name)
        try:
            data, _ = await self._session.get(path)
        except NoNode:
            return {}
        return _decode(path, data)

    async def read_many(self, entity_type: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return settings by name; empty for an entity without settings."""
        reads: list[Operation] = [Get(paths.config_entity(entity_type, name)) for name in names]
        results = (await self._session.batch(reads)).results
        return {
            name: _decode(paths.config_entity(entity_type, name), result.data) if result.ok else {}
            for name, result in zip(names, results, strict=True)
        }

    async def read_new(self, entity_type: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Like `read_many`, for entities that another broker has just announced: this broker's ZooKeeper server may not have
        them yet, and no notification will report their settings."""
        if not names:
            return {}  # a fail-over: nothing is new
        try:
            await self._session.catch_up(paths.config_type(entity_type))
        except NoNode:
            return {name: {} for name in names}  # all of them were deleted
        return await self.read_many(entity_type, names)

    async def read_all(self, entity_type: str) -> dict[str, dict[str, str]]:
        try:
            names = await self._session.children(paths.config_type(entity_type))
        except NoNode:
            return {}
        return await self.read_many(entity_type, names)

    async def read_user_clients(self) -> dict[str, dict[str, str]]:
        """Return the settings of client ids of single users, by `user/clients/client id`."""
        users = await self._session.children(paths.config_type(paths.USERS))
        roots = [f"{user}/{paths.CLIENTS}" for user in users]
        listings: list[Operation] = [GetChildren(paths.config_entity(paths.USERS, root)) for root in roots]
        results = (await self._session.batch(listings)).results if listings else ()
        names = [f"{root}/{name}" for root, result in zip(roots, results, strict=True) for name in result.children]
        return await self.read_many(paths.USERS, names) if names else {}

    async def write(self, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        """Replace an entity's settings, then notify every broker. Deletes the znode of a user, client, address, group
        or subscription with its last setting."""
        await self.change(entity_type, name, lambda found: settings)

    async def change(self, entity_type: str, name: str, change: Change) -> Mapping[str, str] | None:
        """Change the settings and return them; None if they stay. Calls the listener here, and notifies every broker.

        If two brokers change one setting each at the same time, both changes are kept. In Kafka one of them is lost.
        """
        if entity_type in _SHORT_LIVED:
            # If there is nothing to remove, nothing is written, so an outdated server could not refuse the write: catch up
            # first.
            await self._session.catch_up("/")
        tried: Mapping[str, str] | None = None
        while True:
            found, version = await self._read_version(entity_type, name)
            # Probably our own write: its answer was lost with the connection.
            is_done = tried is not None and found == tried
            wanted = tried if is_done else change(found)
            if wanted is None:
                return None
            if not is_done:
                tried = wanted
                try:
                    await self._put_over(version, entity_type, name, wanted)
                except (BadVersion, NodeExists):
                    continue  # another broker has written meanwhile
            if self._listener is not None:
                # Call it now: the client that changed the settings here reads its write, and listener calls keep the order of
                # writes.
                self._listener(entity_type, name, wanted)
            data = encode_config_change(f"{entity_type}/{name}")
            await self._session.create(paths.config_change(), data, sequence=True)
            return wanted

    async def _read_version(self, entity_type: str, name: str) -> tuple[dict[str, str], int | None]:
        """Return the settings, and the version of their znode; None if there is no znode."""
        path = paths.config_entity(entity_type, name)
        try:
            data, stat = await self._session.get(path)
        except NoNode:
            return {}, None
        return _decode(path, data), stat.version

    async def _put_over(self, version: int | None, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        is_to_go = not settings and entity_type in _SHORT_LIVED
        if is_to_go and (version is None or await self._removed(entity_type, name, version)):
            return
        path, data = paths.config_entity(entity_type, name), encode_config(settings)
        if version is None:
            await self._session.create(path, data, make_path=True)
            return
        try:
            await self._session.set(path, data, version)
        except NoNode as error:
            raise BadVersion(f"{path} was deleted") from error

    async def _removed(self, entity_type: str, name: str, version: int) -> bool:
        """Delete the entity's znode as Kafka does; return False if it still has child znodes."""
        try:
            await self._session.delete(paths.config_entity(entity_type, name), version)
        except NoNode:
            return True
        except NotEmpty:
            return False
        user, separator, _ = name.partition(f"/{paths.CLIENTS}/")
        if separator:
            await self._remove_user_if_empty(user)
        return True

    async def _remove_user_if_empty(self, user: str) -> None:
        """Delete a user's znode after its last client, unless the user has settings."""
        path = paths.config_entity(paths.USERS, user)
        try:
            await self._session.delete(paths.config_entity(paths.USERS, f"{user}/{paths.CLIENTS}"))
            data, stat = await self._session.get(path)
            if not _decode(path, data):
                await self._session.delete(path, stat.version)
        except (NotEmpty, NoNode, BadVersion):
            return  # another client has written, or is writing

    async def start(self, listener: ConfigListener, *, known: Callable[[], Iterable[Entity]]) -> None:
        """Pass the settings of all entities to the listener; `run` passes changes.

        `known`: the entities with settings that the listener knows. After an absence it also learns which of them have none
        now.
        """
        self._listener, self._known = listener, known
        await self._notifications.start()
        for (entity_type, name), settings in (await self._read_everything()).items():
            listener(entity_type, name, settings)

    async def _read_everything(self) -> dict[Entity, dict[str, str]]:
        everything = await asyncio.gather(*(self.read_all(each) for each in _ENTITY_TYPES))
        found = {
            (entity_type, name): settings
            for entity_type, entities in zip(_ENTITY_TYPES, everything, strict=True)
            for name, settings in entities.items()
        }
        return found | {(paths.USERS, name): each for name, each in (await self.read_user_clients()).items()}

    async def _reload(self) -> None:
        assert self._listener is not None
        # Before the rest is read: an entity that is announced meanwhile may be newer than the listing.
        known = tuple(self._known())
        try:
            found = await self._read_everything()
        except (ConnectionLost, SessionExpired):
            raise
        except ZkError as error:
            # A client has deleted or locked a znode that every broker reads.
            log.error("[settings] cannot be read again after an absence, check their znodes and ACLs: %s", error)
            return
        lost: dict[Entity, dict[str, str]] = {entity: {} for entity in known if entity not in found}
        for (entity_type, name), settings in (*found.items(), *lost.items()):
            try:
                self._listener(entity_type, name, settings)
            except Exception:
                # As with notifications: one bad entity must not end the broker.
                log.exception("[settings of %s %s] ignored after an error, correct them", entity_type, name)

    async def run(self) -> None:
        await self._notifications.run()

    async def _on_notification(self, data: bytes) -> None:
        assert self._listener is not None
        entity_type, _, name = decode_config_change(data).partition("/")
        settings = await self.read(entity_type, name)
        log.info("[settings of %s %s] changed: %s", entity_type, name, ", ".join(sorted(settings)) or "none left")
        self._listener(entity_type, name, settings)


def _decode(path: str, data: bytes | None) -> dict[str, str]:
    """Decode settings. Settings that cannot be read count as empty, as in Kafka."""
    try:
        return decode_config(path, data)
    except Malformed as error:
        log.error("[settings] ignoring a znode that cannot be read, write it again: %s", error)
        return {}
