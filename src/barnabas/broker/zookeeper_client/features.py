"""Features that only our brokers have. A feature is on only while every live broker announces it.

Kafka 3.9 in ZooKeeper mode stops at any finalized feature in /feature, so that znode stays as 3.9 writes it. A broker of
ours announces its features in its own registration (`features` of /brokers/ids/N, where a 3.9 broker has none), and each
broker looks at all registrations. So a mixed cluster runs without them, and they come back when the last Kafka broker has
left. Owner: the event loop.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.base.words import TRANSACTION_VERSION
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Get, GetChildren, Operation, ZkCode
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration

log = logging.getLogger(__name__)

#: Kafka 4's name for the new consumer groups (KIP-848).
GROUP_VERSION: Final = "group.version"
#: Ours: topics that mirror another cluster's. A broker that does not know them must not lead one.
LINK_VERSION: Final = "barnabas.link"

#: Announced by this release: name -> (lowest, highest version).
ANNOUNCED: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    LINK_VERSION: (0, 1),
}


class ClusterFeatures:
    """Starts with nothing on: `refresh` looks. From then on `on_change` is called when brokers have come or gone.

    That is a watch of ZooKeeper: a broker may return at once as another version, and what the controller tells looks as before.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._levels: dict[str, int] = {}
        #: ZooKeeper's number of the last change among the brokers: one for the whole cluster. A client reads features from
        #: several brokers, and believes the one with the highest epoch.
        self.epoch = 0
        #: Of each broker, as it was last seen.
        self._broker_epochs: Mapping[int, int] = {}
        #: Called with those that have registered anew since they were last looked at.
        self.on_returned: Callable[[Collection[int]], object] = lambda brokers: None
        self.on_change: Callable[[], object] = lambda: None
        session.on_state(self._session_changed)

    @property
    def levels(self) -> Mapping[str, int]:
        """The highest version of each feature that every live broker has; features at 0 are left out."""
        return self._levels

    def level(self, feature: str) -> int:
        return self._levels.get(feature, 0)

    async def refresh(self) -> None:
        """Look at all registrations."""
        while not await self._session.outlive(self._look):
            pass

    def _watched(self, path: str) -> None:
        self.on_change()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.RENEWED:
            self.on_change()  # watches of the old session are gone

    async def _look(self) -> bool:
        """False: brokers came or went in between, look again."""
        [listed] = (await self._session.batch([GetChildren(paths.BROKER_IDS, self._watched)])).results
        if listed.stat is None:
            return True  # no broker was ever there
        names = [name for name in listed.children if paths.is_broker_id(name)]
        reads: list[Operation] = [Get(paths.broker_id(int(name))) for name in names]
        results = (await self._session.batch(reads)).results
        epoch = listed.stat.pzxid
        announced: list[Mapping[str, tuple[int, int]]] = []
        for name, result in zip(names, results, strict=True):
            if result.code is ZkCode.NO_NODE or (result.stat is not None and result.stat.czxid > epoch):
                return False
            announced.append(_announced(int(name), result.data))
        if epoch > self.epoch:
            levels = common_levels(announced)
            if levels != self._levels:
                log.info("features that every broker has: %s", levels or "none")
            self._levels, self.epoch = levels, epoch
            before = self._broker_epochs
            now = {int(name): result.stat.czxid for name, result in zip(names, results, strict=True) if result.stat}
            # Also of those that are away: the controller may not have said so, and they may be back before it does.
            self._broker_epochs = {**before, **now}
            if returned := {each for each in now if now[each] != before.get(each, now[each])}:
                self.on_returned(returned)
        return True


def _announced(broker_id: int, data: bytes | None) -> Mapping[str, tuple[int, int]]:
    try:
        return BrokerRegistration.decode(broker_id, data or b"").features
    except Malformed as error:
        log.warning("broker %d is treated as having no features: %s", broker_id, error)
        return {}


def common_levels(announced: list[Mapping[str, tuple[int, int]]]) -> dict[str, int]:
    """Pure: what all of them can do."""
    if not announced:
        return {}
    levels: dict[str, int] = {}
    for feature, (_, highest) in announced[0].items():
        level = min(broker.get(feature, (0, 0))[1] for broker in announced)
        if level > 0:
            levels[feature] = min(level, highest)
    return levels
