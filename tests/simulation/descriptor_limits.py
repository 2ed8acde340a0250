"""Brokers that run out of descriptors for a while: something else takes all but a few, and gives them back.

No disk is at fault, so no directory goes offline, and nobody stops. What could not be done is done later. Only a log that
could not be made is out of reach until its broker starts again: whoever runs the cluster sees to that. Owner: the world.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.state import Role
from barnabas.broker.storage.names import DELETE_DIR_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX, STRAY_DIR_SUFFIX
from barnabas.broker.zookeeper_client import paths
from barnabas.client.admin.partitions import alter_replica_log_dirs
from barnabas.client.asynchronous import AsyncClient
from tests.simulation.encounter_clients import Remaker, Schemer
from tests.simulation.load import Client
from tests.simulation.process import BrokerProcess
from tests.simulation.triggers import LyingInWait

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: How many are left, and for how long.
LEFT = (0, 0, 0, 1, 2, 3, 6)
SHORT_S = (1.0, 6.0)
#: About as many as a new log needs.
FEW = (4, 6)
#: How many logs are moved like that, one after the other.
TRIES = 4
#: How often a broker may say the same within a second: it has some twenty logs, and tries again after a second at the most.
SAME_MAX = 200


class Scarcity(LyingInWait):
    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (self.run_short_of_descriptors, self.run_short_as_a_transaction_ends, self.invite_the_needy)

    def run_short_of_descriptors(self) -> None:
        """One broker; others can do what it cannot."""
        if any(each.is_short_of_descriptors for each in self._cluster.brokers.values()):
            return
        broker = self._choose(self._serving())
        if broker is not None:
            run_short(self._cluster, broker, self._world.between(*SHORT_S))

    def run_short_as_a_transaction_ends(self) -> None:
        """Its coordinator has decided, and has no descriptor when it is to write that all is done."""
        found: list[BrokerProcess] = []

        def is_time() -> bool:
            found[:] = [each for each in self._serving() if _has_decided(each) and not each.is_short_of_descriptors]
            return bool(found)

        self._when(is_time, lambda: run_short(self._cluster, found[0], self._world.between(*SHORT_S), left=0))

    def invite_the_needy(self) -> None:
        needy = self._choose(each for each in self._cluster.clients if isinstance(each, NeedyRemaker | NeedyMover))
        if needy is not None:
            self._alone(needy.takes_s)
            needy.invite()


def _has_decided(broker: BrokerProcess) -> bool:
    """Whether it coordinates a transaction whose end is decided, and not written everywhere yet."""
    return bool(broker.broker.transactions.coordinator.markers._decided)  # type: ignore[union-attr]


def run_short(cluster: "SimCluster", broker: BrokerProcess, seconds: float, *, left: int | None = None) -> None:
    """Nearly all descriptors of a broker are taken, for so long or until its process ends. `left`: None is up to chance."""
    world, life = cluster.world, broker.lives
    left, keeps = world.random.choice(LEFT) if left is None else left, world.chance(0.5)
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


def nobodys(cluster: "SimCluster") -> Iterator[str]:
    """Logs on disk that their broker does not know, and logs that do not know their topic."""
    for broker in cluster.brokers.values():
        logs = broker.broker.logs.all_logs()  # type: ignore[union-attr]
        known = {log.directory for log in logs}
        there = {path.rpartition("/")[0] for path in broker.storage.files("/") if path.endswith(LOG_SUFFIX)}
        for path in sorted(there - known):
            if not path.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX)):
                yield f"{broker.name} does not know {path}"
        for log in logs:
            if log.topic_id is None:
                yield f"{log.directory} of {broker.name} has no topic id"


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


class NeedyMover(Schemer):
    """Has a log moved to another directory by a broker with a few descriptors: they are enough to begin with it, or not."""

    takes_s = 1.5

    async def _meet(self, cluster: AsyncClient) -> None:
        await cluster.refresh(())
        for _ in range(TRIES):
            await self._move(cluster)

    async def _move(self, cluster: AsyncClient) -> None:
        tp = self.chance.choice(self.cluster.partitions)
        broker = self.chance.choice(list(self.cluster.brokers.values()))
        log = self.cluster.log_of(broker.id, tp)
        if log is None:
            return
        await cluster.link(broker.id)
        folder = "/two" if log.log_dir == "/one" else "/one"
        left, life = self.chance.randint(*FEW), broker.lives
        self.note(f"moves the log of {tp} on {broker.name} to {folder}, with {left} descriptors")
        broker.leave_descriptors(left)
        try:
            await alter_replica_log_dirs(cluster, broker.id, {tp: folder})
            await self.pause(0.0, 0.1)
        finally:
            if broker.is_up and broker.lives == life:
                end_scarcity(self.cluster, broker)


def needy(cluster: "SimCluster") -> list[Client]:
    return [NeedyRemaker(cluster, "remaker"), NeedyMover(cluster, "mover")]
