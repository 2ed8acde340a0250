"""What only our brokers can do, and whether all of the cluster can: on only while every live broker announces it.

Kafka 3.9 in ZooKeeper mode stops at any finalized feature in /feature, so that znode stays as 3.9 writes it. A broker of
ours announces its features in its own registration (`features` of /brokers/ids/N, where a 3.9 broker has none), and each
broker looks at all registrations. So a mixed cluster runs without them, and they come back when the last Kafka broker has
left. Owner: the event loop.
"""

import logging
from collections.abc import Mapping
from typing import Final

from barnabas.coordination import paths
from barnabas.coordination.operations import Get, Operation
from barnabas.coordination.session import ConnectionLost, NoNode, SessionExpired, ZooKeeperSession
from barnabas.coordination.znodes import BrokerRegistration

log = logging.getLogger(__name__)

#: Kafka 4's name for the new consumer groups (KIP-848).
GROUP_VERSION: Final = "group.version"
#: Kafka 4's name for KIP-890: 2 is an epoch bump per transaction.
TRANSACTION_VERSION: Final = "transaction.version"

#: Announced by this release: name -> (lowest, highest version).
ANNOUNCED: Final[Mapping[str, tuple[int, int]]] = {GROUP_VERSION: (0, 1), TRANSACTION_VERSION: (0, 2)}


class ClusterFeatures:
    """Starts with nothing on: `refresh` looks."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._levels: dict[str, int] = {}
        #: Rises with every change, so that clients can tell newer answers from older ones.
        self.epoch = 0

    @property
    def levels(self) -> Mapping[str, int]:
        """The highest version of each feature that every live broker has; features at 0 are left out."""
        return self._levels

    def level(self, feature: str) -> int:
        return self._levels.get(feature, 0)

    async def refresh(self) -> None:
        """Look at all registrations; called when brokers come and go."""
        try:
            names = await self._session.children(paths.BROKER_IDS)
            reads: list[Operation] = [Get(paths.broker_id(int(name))) for name in names]
            results = (await self._session.batch(reads)).results
        except (NoNode, ConnectionLost, SessionExpired) as error:
            log.info("cannot look at the brokers' features: %s", error)
            return
        registrations = [
            BrokerRegistration.decode(int(name), result.data)
            for name, result in zip(names, results, strict=True)
            if result.ok and result.data
        ]
        levels = common_levels([registration.features for registration in registrations])
        if levels != self._levels:
            log.info("features that every broker has: %s", levels or "none")
            self._levels = levels
            self.epoch += 1


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
