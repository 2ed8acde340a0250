"""Sequential znodes that report changes: /config/changes, /kafka-acl-changes, /delegation_token/token_changes.

Every broker reads each of them once. A reader also deletes those that are older than a quarter of an hour, as in Kafka.
Owner: the event loop; `run` is one task.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from barnabas.base.clock import Clock
from barnabas.base.errors import Malformed
from barnabas.broker.zookeeper_client.operations import Delete, Get, Operation
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost, SessionExpired, ZkError

log = logging.getLogger(__name__)

EXPIRATION_MS = 15 * 60 * 1000
#: Pause before the next attempt to read a znode that a client has deleted or locked.
REPAIR_PAUSE_S = 5.0


class ChangeNotifications:
    """Calls `handle` with the data of every notification under `root`, in order, each once.

    Any client may write there. An unknown notification is logged and ignored, as in Kafka.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        root: str,
        prefix: str,
        handle: Callable[[bytes], Awaitable[None]],
        clock: Clock,
        *,
        reload: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`reload` is called with each new session, before new notifications are read: notifications live a quarter of an hour,
        so a broker that was away for longer has missed some."""
        self._session = session
        self._root = root
        self._prefix = prefix
        self._handle = handle
        self._clock = clock
        self._reload = reload
        self._is_reload_due = False
        #: Existing children that have been handled.
        self._seen: set[str] = set()
        self._changed = asyncio.Event()
        self._unsubscribe = session.on_state(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.RENEWED:
            self._is_reload_due = True
        if state in (SessionState.CONNECTED, SessionState.RENEWED):
            self._changed.set()  # the watches of the old session are gone, and may have missed a change

    async def start(self) -> None:
        """Skip the present notifications: the caller reads the whole state after this."""
        self._seen.update(await self._session.children(self._root, self._on_watch))

    def _on_watch(self, path: str) -> None:
        self._changed.set()

    def _number(self, name: str) -> int | None:
        """Return the sequence number; None if it is not a notification (our prefix and a number of ZooKeeper)."""
        digits = name.removeprefix(self._prefix)
        return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None

    async def run(self) -> None:
        """Handle notifications until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    if self._is_reload_due and self._reload is not None:
                        await self._reload()
                        self._is_reload_due = False
                    await self._read_new()
                except (ConnectionLost, SessionExpired) as error:
                    log.info("[notifications %s] cannot be read, trying again: %s", self._root, error)
                except ZkError as error:
                    # A client has deleted or locked the znode: that must not end every broker.
                    log.error("[notifications %s] cannot be read, check the znode and its ACL: %s", self._root, error)
                    await self._try_to_repair()
        finally:
            self._unsubscribe()

    async def _try_to_repair(self) -> None:
        """Create the znode again, as every broker does at its start. Without it no watch reports changes."""
        try:
            await self._session.ensure_path(self._root)
        except ZkError as error:
            log.error("[notifications %s] the znode cannot be created again, create it: %s", self._root, error)
            await asyncio.sleep(REPAIR_PAUSE_S)
        self._changed.set()

    async def _read_new(self) -> None:
        children = await self._session.children(self._root, self._on_watch)
        self._seen.intersection_update(children)
        numbers: dict[str, int] = {}
        for name in children:
            number = self._number(name)
            if number is not None:
                numbers[name] = number
            elif name not in self._seen:
                log.warning("[notifications %s] ignoring %s, which is not a notification: delete it", self._root, name)
                self._seen.add(name)
        names = sorted(numbers, key=numbers.__getitem__)
        fresh = [name for name in names if name not in self._seen]
        operations: list[Operation] = [Get(f"{self._root}/{name}") for name in fresh]
        for name, result in zip(fresh, (await self._session.batch(operations)).results, strict=True):
            if result.ok and result.data is not None:
                await self._handle_one(name, result.data)
            self._seen.add(name)
        await self._purge(names)

    async def _handle_one(self, name: str, data: bytes) -> None:
        try:
            await self._handle(data)
        except (ConnectionLost, SessionExpired):
            raise
        except Malformed as error:
            log.error("[notifications %s] ignoring %s, change the resource again: %s", self._root, name, error)
        except Exception:
            # Every broker reads it: a bad notification must not end them all.
            log.exception("[notifications %s] ignoring %s, which holds %r", self._root, name, data[:200])

    async def _purge(self, names: list[str]) -> None:
        if not names:
            return
        oldest = f"{self._root}/{names[0]}"
        stat = await self._session.exists(oldest)
        # Sequence numbers and creation times grow together: if the oldest is young, all are.
        if stat is None or self._clock.now_ms() - stat.mtime_ms <= EXPIRATION_MS:
            return
        results = (await self._session.batch([Get(f"{self._root}/{name}") for name in names])).results
        stale = [
            Delete(f"{self._root}/{name}")
            for name, result in zip(names, results, strict=True)
            if result.ok and result.stat is not None and self._clock.now_ms() - result.stat.mtime_ms > EXPIRATION_MS
        ]
        await self._session.batch(stale)


class ReloadOnReturn:
    """Calls `load` after every absence: notifications live a quarter of an hour, so some may have expired unread."""

    def __init__(self, session: ZooKeeperSession, load: Callable[[], Awaitable[None]], what: str) -> None:
        self._load = load
        self._what = what
        self._due = asyncio.Event()
        self._unsubscribe = session.on_state(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        if state in (SessionState.CONNECTED, SessionState.RENEWED):
            self._due.set()

    async def run(self) -> None:
        """Load after every absence, until cancelled."""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                try:
                    await self._load()
                except (ConnectionLost, SessionExpired) as error:
                    log.info("[notifications] %s wait for ZooKeeper: %s", self._what, error)  # then the state changes
                except ZkError as error:
                    log.error("[notifications] %s could not be read again, check their znodes: %s", self._what, error)
        finally:
            self._unsubscribe()
