"""Brokers that run out of descriptors for a while: something else takes all but a few, and gives them back.

No disk is at fault, so no directory goes offline, and nobody stops. What could not be done is done later. Only a log that
could not be made is out of reach until its broker starts again: whoever runs the cluster sees to that. Owner: the world.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.client.asynchronous import AsyncClient
from barnabas.coordination import paths
from barnabas.core.ids import TopicPartition
from barnabas.replication.state import Role
from barnabas.storage.names import DELETE_DIR_SUFFIX, DELETED_SUFFIX
from tests.simulation.lying_in_wait import LyingInWait
from tests.simulation.process import BrokerProcess
from tests.simulation.witnesses import Remaker

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: How many are left, and for how long.
LEFT = (0, 0, 0, 1, 2, 3, 6)
SHORT_S = (1.0, 6.0)
#: How often a broker may say the same within a second: it has some twenty logs, and tries again after a second at the most.
SAME_MAX = 200


class Scarcity(LyingInWait):
    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (self.run_short_of_descriptors, self.make_again_what_could_not_be_forgotten)

    def run_short_of_descriptors(self) -> None:
        """One broker; others can do what it cannot."""
        if any(each.is_short_of_descriptors for each in self._cluster.brokers.values()):
            return
        broker = self._choose(self._serving())
        if broker is not None:
            run_short(self._cluster, broker, self._world.between(*SHORT_S))

    def make_again_what_could_not_be_forgotten(self) -> None:
        for each in self._cluster.clients:
            if isinstance(each, NeedyRemaker):
                self._alone(each.takes_s)
                each.invite()


def run_short(cluster: "SimCluster", broker: BrokerProcess, seconds: float) -> None:
    """Nearly all descriptors of a broker are taken, for so long or until its process ends."""
    world, life = cluster.world, broker.lives
    left, keeps = world.random.choice(LEFT), world.chance(0.5)
    world.note(broker.name, f"gets {left} more descriptors{', and keeps them' if keeps else ''} for {seconds:.2f} s")
    broker.leave_descriptors(left, keeps_what_it_closes=keeps)

    def give_back() -> None:
        if broker.is_up and broker.lives == life:
            end_scarcity(cluster, broker)

    world.after(seconds, give_back)


def end_scarcity(cluster: "SimCluster", broker: BrokerProcess) -> None:
    cluster.world.note(broker.name, "gets descriptors again")
    broker.leave_descriptors(None)
    if lost := without_logs(broker):
        cluster.world.note(broker.name, f"is restarted by its operator: it could not make the logs of {lost}")
        broker.kill()
        broker.start()


def without_logs(broker: BrokerProcess) -> list[TopicPartition]:
    """Partitions that are offline here because there was no descriptor for a log that did not exist."""
    replicas, logs = getattr(broker.broker, "replicas", ()), getattr(broker.broker, "logs", None)
    return [
        each.tp
        for each in replicas
        if each.machine.role is Role.OFFLINE and logs is not None and logs.get(each.tp) is None
    ]


def what_is_deleted(cluster: "SimCluster") -> set[str]:
    """Files and directories of logs that are on disk, under names that say that they are to be deleted."""
    return {
        f"{broker.name}:{path}"
        for broker in cluster.brokers.values()
        for path in broker.storage.files("/")
        if path.endswith(DELETED_SUFFIX) or DELETE_DIR_SUFFIX in path
    }


class Echoes:
    """Who says the same again and again tries the same again and again, without a pause."""

    def __init__(self, cluster: "SimCluster") -> None:
        self._world = cluster.world
        self._second = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def heard(self, who: str, message: str) -> None:
        """What a broker logs."""
        if int(self._world.now_s) != self._second:
            self._second = int(self._world.now_s)
            self._counts.clear()
        self._counts[who, message] += 1
        if self._counts[who, message] > SAME_MAX:
            self._world.violate("nothing spins", f"{who} says more than {SAME_MAX} times in a second: {message}")


class NeedyRemaker(Remaker):
    """Deletes a topic of a broker that has no descriptor to write its checkpoints with, and makes it again when it is gone."""

    takes_s = 5.0

    async def _delete_what_is_named(self, cluster: AsyncClient, broker: BrokerProcess, tp: TopicPartition) -> bool:
        if not await self._until(lambda: self._is_named(broker, tp)) or not broker.is_serving:
            return False
        self.note(f"has {tp} deleted while {broker.name} has no descriptor")
        life = broker.lives
        broker.leave_descriptors(0)
        try:
            await self._delete(cluster, tp)
            is_gone = await self._until(lambda: self.cluster.data_at(paths.topic(tp.topic)) is None, 0.5)
        finally:
            if broker.is_up and broker.lives == life:
                end_scarcity(self.cluster, broker)
        return is_gone or await self._until(lambda: self.cluster.data_at(paths.topic(tp.topic)) is None)
