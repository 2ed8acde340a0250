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
    """Another live broker has this id."""


async def create_top_level_paths(session: ZooKeeperSession) -> None:
    """Create the paths that every broker needs before it registers."""
    await session.ensure_paths(paths.PERSISTENT)


async def create_or_get_cluster_id(session: ZooKeeperSession, propose: Callable[[], str]) -> str:
    """Return the cluster's id: the first broker of a new cluster chooses it, all others read it."""
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
    """Return an id above those that operators may choose (`broker.id.generation.enable`). Never returns one twice."""
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
        #: How long to wait for the znode of an earlier process of the same broker: its session's timeout.
        self._wait_for_former_self_ms = wait_for_former_self_ms
        #: Closes the session of the earlier process, if its key is known.
        self._former = former
        #: The session that registered last: a znode of this session is ours, even if the server forgot to delete it.
        self._own_session_id = 0
        self._epoch = BrokerEpoch(-1)

    @property
    def epoch(self) -> BrokerEpoch:
        """The epoch of the last registration, -1 before the first. It rises with each."""
        return self._epoch

    @property
    def is_of_this_session(self) -> bool:
        """Whether the current session made the last registration."""
        return self._own_session_id == self._session.session_id

    @property
    def registration(self) -> BrokerRegistration:
        return self._registration

    async def announce(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Change the registered addresses, now and for later registrations."""
        self._registration = replace(self._registration, endpoints=endpoints)
        if self._epoch >= 0:
            await self._session.outlive(self._update)

    async def _update(self) -> None:
        """Write the endpoints into the znode, if this session owns it. If not, `register` writes them."""
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
                continue  # read the znode again
            except NoNode:
                return
            except TooLarge as error:
                _log.error("[broker %d] the new addresses are not registered: %s", stamped.id, error.message)
                return
            _log.info("[broker %d] registered %s", stamped.id, ", ".join(map(str, stamped.endpoints)))
            return

    async def register(self) -> BrokerEpoch:
        """Create the ephemeral znode. Raises `DuplicateBrokerId` if another broker has it."""
        endpoints = self._registration.endpoints
        epoch = await self._register()
        if self._registration.endpoints != endpoints:
            await self._update()  # they changed meanwhile
        return epoch

    async def _register(self) -> BrokerEpoch:
        deadline_s = self._clock.monotonic_s() + self._wait_for_former_self_ms / 1000
        path = paths.broker_id(self._registration.id)
        if self._former is not None:
            # Before the znode exists: if this process is killed while it registers, the next one has the key.
            await self._former.keep(await self._session.key())
        while True:
            stamped = replace(self._registration, timestamp_ms=self._clock.now_ms())
            try:
                # As in Kafka: create it empty and fill it in the same transaction, because only SetData returns the stat.
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
        _log.info("[broker %d] registered with epoch %d", self._registration.id, czxid)

    async def _settle_with_owner(self, path: str, deadline_s: float) -> int | None:
        """Return the epoch if the znode is ours already, None to try again."""
        gone = asyncio.Event()
        try:
            data, stat = await self._session.get(path, lambda _: gone.set())
        except NoNode:
            return None
        if stat.ephemeral_owner == self._session.session_id:
            return stat.czxid
        if self._own_session_id and stat.ephemeral_owner == self._own_session_id:
            # ZOOKEEPER-2985: an expired session's ephemeral may be left behind.
            _log.info(
                "[broker %d] deleting %s of its expired session 0x%x", self._registration.id, path, self._own_session_id
            )
            await self._delete_if_there(path, stat.version)
            return None
        owner = self._decode(data)
        if owner is not None and owner.endpoints == self._registration.endpoints:
            # This process has bound those addresses, so the process that registered them is dead, and its session will expire.
            if self._former is not None and await self._former.end(stat.ephemeral_owner):
                _log.info("[broker %d] closed the ZooKeeper session of its previous process", self._registration.id)
                return None
            is_former_self = True
        else:
            # The other process had other ports. If it is alive, its session continues, and nothing here closes it.
            is_former_self = self._former is not None and await self._former.was(stat.ephemeral_owner)
        remaining_s = deadline_s - self._clock.monotonic_s()
        if is_former_self and remaining_s > 0:
            _log.info(
                "[broker %d] waiting until the ZooKeeper session of its previous process expires",
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
