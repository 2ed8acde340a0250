"""A broker's place in the cluster: its ephemeral znode, its epoch, its generated id, and the cluster's id.

Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from barnabas.base.clock import Clock
from barnabas.base.errors import BarnabasError, Malformed
from barnabas.base.ids import BrokerEpoch
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.former_session import FormerSession
from barnabas.broker.zookeeper_client.operations import Create, SetData
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import BadVersion, NodeExists, NoNode, TooLarge
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint, decode_cluster_id, encode_cluster_id

_log = logging.getLogger(__name__)


class DuplicateBrokerId(BarnabasError):
    """Another broker has this id, and is alive."""


async def create_top_level_paths(session: ZooKeeperSession) -> None:
    """What every broker makes sure of before it registers."""
    await session.ensure_paths(paths.PERSISTENT)


async def create_or_get_cluster_id(session: ZooKeeperSession, propose: Callable[[], str]) -> str:
    """The cluster's id: the first broker of a new cluster chooses it, all others find it."""
    while True:
        try:
            data, _ = await session.get(paths.CLUSTER_ID)
        except NoNode:
            proposed = propose()
            try:
                await session.create(paths.CLUSTER_ID, encode_cluster_id(proposed), make_path=True)
            except NodeExists:
                continue
            return proposed
        return decode_cluster_id(data or b"")


async def generate_broker_id(session: ZooKeeperSession, *, reserved_broker_max_id: int) -> int:
    """An id above those that people may choose by hand (`broker.id.generation.enable`). Never given twice."""
    await session.ensure_path(paths.BROKER_SEQUENCE_ID)
    stat = await session.set(paths.BROKER_SEQUENCE_ID, b"")
    return stat.version + reserved_broker_max_id


class BrokerRegistrar:
    """Registers one broker, and registers it again after its session expired."""

    def __init__(
        self,
        session: ZooKeeperSession,
        registration: BrokerRegistration,
        *,
        clock: Clock,
        wait_for_former_self_ms: int,
        former: FormerSession | None = None,
    ) -> None:
        self._session = session
        self._registration = registration
        self._clock = clock
        #: How long a znode that an earlier process of the same broker left may take to go: its session's time-out.
        self._wait_for_former_self_ms = wait_for_former_self_ms
        #: Closes that session, where its key is known.
        self._former = former
        #: The session that registered last: a znode of that one is ours, even if the server forgot to delete it.
        self._own_session_id = 0
        self._epoch = BrokerEpoch(-1)

    @property
    def epoch(self) -> BrokerEpoch:
        """The epoch of the last registration, -1 before the first. It rises with each."""
        return self._epoch

    @property
    def is_of_this_session(self) -> bool:
        """Whether the last registration was made by the session that there is now."""
        return self._own_session_id == self._session.session_id

    @property
    def registration(self) -> BrokerRegistration:
        return self._registration

    async def announce(self, endpoints: tuple[Endpoint, ...]) -> None:
        """The broker listens elsewhere: change its registration, and keep to that when it registers again."""
        self._registration = replace(self._registration, endpoints=endpoints)
        if self._epoch >= 0:
            await self._session.outlive(self._update)

    async def _update(self) -> None:
        """Write the endpoints into the znode, if this session owns it. If not, `register` will write them."""
        path = paths.broker_id(self._registration.id)
        while True:
            try:
                data, stat = await self._session.get(path)
                if stat.ephemeral_owner != self._session.session_id:
                    return
                present = self._decode(data)
                if present is not None and present.endpoints == self._registration.endpoints:
                    return
                stamped = replace(self._registration, timestamp_ms=self._clock.now_ms())
                await self._session.set(path, stamped.encode(), stat.version)
            except BadVersion:
                continue  # the loop looks at what is there now
            except NoNode:
                return
            except TooLarge as error:
                _log.error("the new addresses are not registered: %s", error.message)
                return
            _log.info("broker %d registered %s", stamped.id, ", ".join(map(str, stamped.endpoints)))
            return

    async def register(self) -> BrokerEpoch:
        """Makes the ephemeral znode. Raises `DuplicateBrokerId` if another broker has it."""
        endpoints = self._registration.endpoints
        epoch = await self._register()
        if self._registration.endpoints != endpoints:
            await self._update()  # they changed meanwhile
        return epoch

    async def _register(self) -> BrokerEpoch:
        deadline_s = self._clock.monotonic_s() + self._wait_for_former_self_ms / 1000
        path = paths.broker_id(self._registration.id)
        if self._former is not None:
            # Before the znode is there: a process that is killed as it registers leaves the key to what it left.
            await self._former.keep(await self._session.key())
        while True:
            stamped = replace(self._registration, timestamp_ms=self._clock.now_ms())
            try:
                # Kafka makes it empty and fills it in the same transaction: only the second answers with the status.
                results = await self._session.transaction(
                    [Create(path, ephemeral=True), SetData(path, stamped.encode(), 0)]
                )
                stat = results[1].stat
                assert stat is not None
                self._registered(stat.czxid)
                return self._epoch
            except NodeExists:
                czxid = await self._settle_with_owner(path, deadline_s)
                if czxid is not None:
                    self._registered(czxid)
                    return self._epoch

    def _registered(self, czxid: int) -> None:
        self._own_session_id = self._session.session_id
        self._epoch = BrokerEpoch(czxid)
        if self._registration.incarnation is None:
            self._registration = replace(self._registration, incarnation=czxid)
        _log.info("broker %d is registered with epoch %d", self._registration.id, czxid)

    async def _settle_with_owner(self, path: str, deadline_s: float) -> int | None:
        """The epoch if the znode is ours already, None if it is worth trying again."""
        gone = asyncio.Event()
        try:
            data, stat = await self._session.get(path, lambda _: gone.set())
        except NoNode:
            return None
        if stat.ephemeral_owner == self._session.session_id:
            return stat.czxid
        if self._own_session_id and stat.ephemeral_owner == self._own_session_id:
            # ZOOKEEPER-2985: an expired session's ephemeral may be left behind.
            _log.info("deleting %s of the expired session 0x%x", path, self._own_session_id)
            await self._delete_if_there(path, stat.version)
            return None
        owner = self._decode(data)
        if owner is not None and owner.endpoints == self._registration.endpoints:
            # This process has bound those addresses, so the process that registered them is dead, and its session will expire.
            if self._former is not None and await self._former.end(stat.ephemeral_owner):
                _log.info("closed the ZooKeeper session of the previous process of broker %d", self._registration.id)
                return None
            is_former_self = True
        else:
            # It had other ports. If it lives, its session lives on; nobody ends it here.
            is_former_self = self._former is not None and await self._former.was(stat.ephemeral_owner)
        remaining_s = deadline_s - self._clock.monotonic_s()
        if is_former_self and remaining_s > 0:
            _log.info(
                "waiting until the ZooKeeper session of the previous process of broker %d expires",
                self._registration.id,
            )
            try:
                async with asyncio.timeout(remaining_s):
                    await gone.wait()
            except TimeoutError:
                pass
            else:
                return None
        where = ", ".join(map(str, owner.endpoints)) if owner else "an unknown address"
        raise DuplicateBrokerId(
            f"broker.id={self._registration.id} is taken: a broker at {where} registered it in {path} "
            f"(session 0x{stat.ephemeral_owner:x}). Give this broker another id, or stop that one first."
        )

    def _decode(self, data: bytes | None) -> BrokerRegistration | None:
        try:
            return BrokerRegistration.decode(self._registration.id, data) if data else None
        except Malformed as error:
            _log.error("%s", error)
            return None

    async def _delete_if_there(self, path: str, version: int) -> None:
        try:
            await self._session.delete(path, version)
        except NoNode:
            _log.debug("%s was already deleted", path)
