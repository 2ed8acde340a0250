"""Settings in ZooKeeper: /config/<type>/<entity>, and the notifications of changes.

Owner: the event loop. The store keeps nothing: it reads, writes, and tells a listener.
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

#: Quotas and credentials come and go with whom they are for.
_SHORT_LIVED = (paths.CLIENTS, paths.USERS, paths.IPS)

#: (entity type, sanitized entity name)
Entity = tuple[str, str]
#: (entity type, sanitized entity name, settings as they are now)
ConfigListener = Callable[[str, str, Mapping[str, str]], None]
#: What the settings are to be, of what they are; None: as they are. Called again where somebody else has written meanwhile.
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
        """Empty if the entity has no settings."""
        path = paths.config_entity(entity_type, name)
        try:
            data, _ = await self._session.get(path)
        except NoNode:
            return {}
        return _decode(path, data)

    async def read_many(self, entity_type: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Settings by name; empty for an entity without settings."""
        reads: list[Operation] = [Get(paths.config_entity(entity_type, name)) for name in names]
        results = (await self._session.batch(reads)).results
        return {
            name: _decode(paths.config_entity(entity_type, name), result.data) if result.ok else {}
            for name, result in zip(names, results, strict=True)
        }

    async def read_new(self, entity_type: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """As `read_many`, of entities that others have just told of: the server of ours may not have heard of them yet, and no
        notification will say that their settings came."""
        if not names:
            return {}  # a fail-over: nothing is new
        try:
            await self._session.catch_up(paths.config_type(entity_type))
        except NoNode:
            return {name: {} for name in names}  # somebody has deleted all of them
        return await self.read_many(entity_type, names)

    async def read_all(self, entity_type: str) -> dict[str, dict[str, str]]:
        try:
            names = await self._session.children(paths.config_type(entity_type))
        except NoNode:
            return {}
        return await self.read_many(entity_type, names)

    async def read_user_clients(self) -> dict[str, dict[str, str]]:
        """Settings of client ids of single users, by `user/clients/client id`."""
        users = await self._session.children(paths.config_type(paths.USERS))
        roots = [f"{user}/{paths.CLIENTS}" for user in users]
        listings: list[Operation] = [GetChildren(paths.config_entity(paths.USERS, root)) for root in roots]
        results = (await self._session.batch(listings)).results if listings else ()
        names = [f"{root}/{name}" for root, result in zip(roots, results, strict=True) for name in result.children]
        return await self.read_many(paths.USERS, names) if names else {}

    async def write(self, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        """Replaces an entity's settings, then tells every broker. Users, clients and addresses that have none left go."""
        await self.change(entity_type, name, lambda found: settings)

    async def change(self, entity_type: str, name: str, change: Change) -> Mapping[str, str] | None:
        """The settings as they are then; None where they stay. Tells the listener here, and every broker.

        Two who change one setting each, on whatever brokers, write all of them: in Kafka one of them is lost.
        """
        if entity_type in _SHORT_LIVED:
            # Where there is nothing to remove, nothing is written that a server which is behind others could refuse.
            await self._session.catch_up("/")
        tried: Mapping[str, str] | None = None
        while True:
            found, version = await self._read_version(entity_type, name)
            # Our own write, most likely: a lost connection takes the answer along.
            is_done = tried is not None and found == tried
            wanted = tried if is_done else change(found)
            if wanted is None:
                return None
            if not is_done:
                tried = wanted
                try:
                    await self._put_over(version, entity_type, name, wanted)
                except (BadVersion, NodeExists):
                    continue  # somebody has written meanwhile
            if self._listener is not None:
                # At once: who changed it here reads what was written, and who writes next is told of next.
                self._listener(entity_type, name, wanted)
            data = encode_config_change(f"{entity_type}/{name}")
            await self._session.create(paths.config_change(), data, sequence=True)
            return wanted

    async def _read_version(self, entity_type: str, name: str) -> tuple[dict[str, str], int | None]:
        """Settings, and the version of their znode; None: there is none."""
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
        """Whether nothing is left of the entity; False where something stands below it. As Kafka cleans up."""
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
        """Deletes a user's znode after its last client, unless the user has settings."""
        path = paths.config_entity(paths.USERS, user)
        try:
            await self._session.delete(paths.config_entity(paths.USERS, f"{user}/{paths.CLIENTS}"))
            data, stat = await self._session.get(path)
            if not _decode(path, data):
                await self._session.delete(path, stat.version)
        except (NotEmpty, NoNode, BadVersion):
            return  # another client has written, or is writing

    async def start(self, listener: ConfigListener, *, known: Callable[[], Iterable[Entity]]) -> None:
        """Passes all settings of topics, brokers, users, clients and addresses to the listener; `run` passes changes.

        `known`: who has settings as far as the listener knows. After an absence, those that have none any more are told of too.
        """
        self._listener, self._known = listener, known
        await self._notifications.start()
        for (entity_type, name), settings in (await self._read_everything()).items():
            listener(entity_type, name, settings)

    async def _read_everything(self) -> dict[Entity, dict[str, str]]:
        everything = await asyncio.gather(*(self.read_all(each) for each in paths.CONFIG_ENTITY_TYPES))
        found = {
            (entity_type, name): settings
            for entity_type, entities in zip(paths.CONFIG_ENTITY_TYPES, everything, strict=True)
            for name, settings in entities.items()
        }
        return found | {(paths.USERS, name): each for name, each in (await self.read_user_clients()).items()}

    async def _reload(self) -> None:
        assert self._listener is not None
        # Before the rest is read: who is heard of meanwhile may be newer than what was listed.
        known = tuple(self._known())
        try:
            found = await self._read_everything()
        except (ConnectionLost, SessionExpired):
            raise
        except ZkError as error:
            # Somebody has deleted or locked what every broker reads.
            log.error("settings cannot be read again: %s", error)
            return
        lost: dict[Entity, dict[str, str]] = {entity: {} for entity in known if entity not in found}
        for (entity_type, name), settings in (*found.items(), *lost.items()):
            try:
                self._listener(entity_type, name, settings)
            except Exception:
                # As with notifications: what is wrong with one must not end the broker.
                log.exception("ignoring the settings of %s %s", entity_type, name)

    async def run(self) -> None:
        await self._notifications.run()

    async def _on_notification(self, data: bytes) -> None:
        assert self._listener is not None
        entity_type, _, name = decode_config_change(data).partition("/")
        settings = await self.read(entity_type, name)
        log.info("settings of %s %s changed: %s", entity_type, name, ", ".join(sorted(settings)) or "none left")
        self._listener(entity_type, name, settings)


def _decode(path: str, data: bytes | None) -> dict[str, str]:
    """What cannot be read sets nothing, as in Kafka."""
    try:
        return decode_config(path, data)
    except Malformed as error:
        log.error("ignoring settings: %s", error)
        return {}
