"""Delegation tokens in ZooKeeper, as Kafka stores them, and the notifications of changes.

Owner: the event loop. The store feeds one `DelegationTokens`. A change applies here at once, on other brokers after they have
read the notification.
"""

import asyncio
import logging
from collections.abc import Callable

from barnabas.base.clock import Clock
from barnabas.base.errors import Malformed
from barnabas.broker.security.tokens import DelegationTokens
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.notifications import ChangeNotifications, ReloadOnReturn
from barnabas.broker.zookeeper_client.operations import Get, Operation
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost, NodeExists, NoNode, SessionExpired, ZkError
from barnabas.broker.zookeeper_client.znodes_security import DelegationTokenInfo

log = logging.getLogger(__name__)


class TokenStore:
    def __init__(self, session: ZooKeeperSession, tokens: DelegationTokens, clock: Clock) -> None:
        self._session = session
        self._tokens = tokens
        self._clock = clock
        #: Reads and writes must not overtake each other, or an outdated answer would win.
        self._lock = asyncio.Lock()
        self._reload = ReloadOnReturn(session, self._load, "delegation tokens")
        self._notifications = ChangeNotifications(
            session, paths.DELEGATION_TOKEN_CHANGES, paths.TOKEN_CHANGE_PREFIX, self._on_notification, clock
        )

    async def start(self) -> None:
        """Read everything that is stored; `run` then follows changes."""
        await self._session.ensure_paths((paths.DELEGATION_TOKENS, paths.DELEGATION_TOKEN_CHANGES))
        await self._notifications.start()
        await self._load()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._notifications.run(), name="token changes")
            tasks.create_task(self._reload.run(), name="token reload")

    async def remove_expired(self, interval_ms: int, is_controller: Callable[[], bool]) -> None:
        """Remove expired tokens until cancelled, on the controller only: one broker's task is enough."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if not is_controller():
                continue
            for info in self._tokens.expired(now_ms=self._clock.now_ms()):
                log.info("[delegation token %s] of %s has expired", info.token_id, info.owner)
                try:
                    await self.remove(info.token_id)
                except (ConnectionLost, SessionExpired) as error:
                    log.info("[delegation tokens] cannot remove expired ones, trying again: %s", error)
                    break
                except ZkError as error:
                    # A client has locked the znode, or put a child below it: that must not end one broker after the other.
                    log.error(
                        "[delegation token %s] has expired and stays in ZooKeeper, delete its znode: %s",
                        info.token_id,
                        error,
                    )

    async def _load(self) -> None:
        async with self._lock:
            ids = await self._session.children(paths.DELEGATION_TOKENS)
            reads: list[Operation] = [Get(paths.delegation_token(token_id)) for token_id in ids]
            results = (await self._session.batch(reads)).results if reads else ()
            for info in [each for each in self._tokens if each.token_id not in ids]:
                self._tokens.removed(info.token_id)
            for token_id, result in zip(ids, results, strict=True):
                self._take(token_id, result.data if result.ok else None)

    async def _on_notification(self, data: bytes) -> None:
        token_id = data.decode("utf-8", "replace")
        async with self._lock:
            try:
                stored, _ = await self._session.get(paths.delegation_token(token_id))
            except NoNode:
                stored = None
            self._take(token_id, stored)

    def _take(self, token_id: str, data: bytes | None) -> None:
        if not data:
            self._tokens.removed(token_id)
            return
        try:
            self._tokens.changed(DelegationTokenInfo.decode(data))
        except Malformed as error:
            # A token that cannot be read does not count.
            log.error("[delegation token %s] cannot be read, delete its znode: %s", token_id, error)
            self._tokens.removed(token_id)

    async def write(self, info: DelegationTokenInfo) -> None:
        path, data = paths.delegation_token(info.token_id), info.encode()
        async with self._lock:
            try:
                await self._session.set(path, data)
            except NoNode:
                try:
                    await self._session.create(path, data)
                except NodeExists:
                    await self._session.set(path, data)
            self._tokens.changed(info)
        await self._notify(info.token_id)

    async def remove(self, token_id: str) -> None:
        async with self._lock:
            try:
                await self._session.delete(paths.delegation_token(token_id))
            except NoNode:
                log.info("[delegation token %s] was removed by another broker", token_id)
            self._tokens.removed(token_id)
        await self._notify(token_id)

    async def _notify(self, token_id: str) -> None:
        await self._session.create(paths.delegation_token_change(), token_id.encode(), sequence=True)
