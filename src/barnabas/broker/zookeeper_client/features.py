"""Features that only Barnabas brokers have. A feature is on only while every live broker announces it.

Kafka 3.9 in ZooKeeper mode stops at any finalized feature in /feature, so that znode stays as 3.9 writes it. A Barnabas
broker announces its features in its own registration (`features` of /brokers/ids/N, which a 3.9 broker leaves empty), and each
broker reads all registrations. So a mixed cluster runs without the features, and they are on again when the last Kafka
broker has left. Owner: the event loop.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.base.words import SHARE_VERSION, STREAMS_VERSION, TRANSACTION_VERSION
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Get, GetChildren, Operation, ZkCode
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration

log = logging.getLogger(__name__)

#: Kafka 4's name for the new consumer groups (KIP-848).
GROUP_VERSION: Final = "group.version"
#: A Barnabas feature: topics that mirror another cluster's. A broker that does not know them must not lead one.
LINK_VERSION: Final = "barnabas.link"

#: Announced by this release: name -> (lowest, highest version).
ANNOUNCED: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    SHARE_VERSION: (0, 2),  # 2: dead-letter topics (KIP-1191)
    STREAMS_VERSION: (0, 1),
    LINK_VERSION: (0, 1),
}

#: Kinds of groups that a cluster refuses while a broker does not have the feature.
_REPORTED: Final = ((SHARE_VERSION, "share groups"), (STREAMS_VERSION, "streams groups"))


class ClusterFeatures:
    """Begins with no feature; `refresh` reads them. From then on `on_change` is called when brokers come or go.

    It uses a watch of ZooKeeper: a broker may return at once as another version, and the controller's updates do not show that.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._levels: dict[str, int] = {}
        #: ZooKeeper's number of the last change among the brokers: one for the whole cluster. A client reads features from
        #: several brokers, and believes the one with the highest epoch.
        self.epoch = 0
        #: Brokers without a feature, as logged last.
        self._without: dict[str, frozenset[int]] = {}
        #: Epoch of each broker's registration when it was last read.
        self._broker_epochs: Mapping[int, int] = {}
        #: Called with the brokers that have registered again since the last look.
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
        """Read all registrations."""
        while not await self._session.outlive(self._look):
            pass

    def _watched(self, path: str) -> None:
        self.on_change()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.RENEWED:
            self.on_change()  # watches of the old session are gone

    async def _look(self) -> bool:
        """Read the registrations. Return False if brokers came or went meanwhile: read again."""
        [listed] = (await self._session.batch([GetChildren(paths.BROKER_IDS, self._watched)])).results
        if listed.stat is None:
            return True  # no broker ever registered
        names = [name for name in listed.children if paths.is_broker_id(name)]
        reads: list[Operation] = [Get(paths.broker_id(int(name))) for name in names]
        results = (await self._session.batch(reads)).results
        epoch = listed.stat.pzxid
        announced: dict[int, Mapping[str, tuple[int, int]]] = {}
        for name, result in zip(names, results, strict=True):
            if result.code is ZkCode.NO_NODE or (result.stat is not None and result.stat.czxid > epoch):
                return False
            announced[int(name)] = _announced(int(name), result.data)
        if epoch > self.epoch:
            levels = common_levels(list(announced.values()))
            if levels != self._levels:
                log.info("[features] every broker has: %s", levels or "none")
            for feature, what in _REPORTED:
                self._report(feature, what, {broker for broker in announced if feature not in announced[broker]})
            self._levels, self.epoch = levels, epoch
            before = self._broker_epochs
            now = {int(name): result.stat.czxid for name, result in zip(names, results, strict=True) if result.stat}
            # Keep absent brokers too: the controller may not have noticed, and they may be back before it does.
            self._broker_epochs = {**before, **now}
            if returned := {broker for broker in now if now[broker] != before.get(broker, now[broker])}:
                self.on_returned(returned)
        return True

    def _report(self, feature: str, what: str, without: Collection[int]) -> None:
        """Log it when a kind of groups goes off or on: librdkafka does not report the refusals to its user."""
        if without == self._without.get(feature, frozenset()):
            return
        self._without[feature] = frozenset(without)
        if without:
            log.warning(
                "[features] %s are off, and their requests are refused with UNSUPPORTED_VERSION: these brokers do "
                "not have %s: %s; replace them by brokers of this release",
                what,
                feature,
                ", ".join(map(str, sorted(without))),
            )
        else:
            log.info("[features] %s are on again: every broker has %s", what, feature)


def _announced(broker_id: int, data: bytes | None) -> Mapping[str, tuple[int, int]]:
    try:
        return BrokerRegistration.decode(broker_id, data or b"").features
    except Malformed as error:
        log.warning(
            "[features] broker %d counts as without features, its registration is damaged: %s", broker_id, error
        )
        return {}


def common_levels(announced: list[Mapping[str, tuple[int, int]]]) -> dict[str, int]:
    """Return the highest level of each feature that all brokers have. Pure."""
    if not announced:
        return {}
    levels: dict[str, int] = {}
    for feature, (_, highest) in announced[0].items():
        level = min(broker.get(feature, (0, 0))[1] for broker in announced)
        if level > 0:
            levels[feature] = min(level, highest)
    return levels
