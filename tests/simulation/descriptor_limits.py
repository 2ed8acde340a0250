"""Brokers that run out of descriptors for a while: another process takes all but a few, and gives them back.

No disk is at fault, so no directory goes offline and no broker stops. The brokers repeat later what they could not do. Only a
partition whose log could not be created stays offline until its broker restarts; here the operator restarts it. Owner: the
world.
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
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.encounter_clients import EncounterClient, TopicRemaker
from tests.simulation.load import Client
from tests.simulation.triggers import TimedFaults

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: How many descriptors are left, and for how long.
DESCRIPTORS_LEFT = (0, 0, 0, 1, 2, 3, 6)
SHORT_S = (1.0, 6.0)
#: About as many descriptors as a new log needs.
FEW = (4, 6)
#: How many logs a client moves in one meeting, one after the other.
TRIES = 4
#: How often a broker may log the same line within a second: it has some twenty logs, and retries after a second at most.
SAME_MAX = 200


class Scarcity(TimedFaults):
    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (self.run_short_of_descriptors, self.run_short_as_a_transaction_ends, self.invite_the_needy)

    def run_short_of_descriptors(self) -> None:
        """Take the descriptors of one broker; others can do what it cannot."""
        if any(each.is_short_of_descriptors for each in self._cluster.brokers.values()):
            return
        broker = self._choose(self._serving())
        if broker is not None:
            run_short(self._cluster, broker, self._world.between(*SHORT_S))

    def run_short_as_a_transaction_ends(self) -> None:
        """Take the descriptors of a coordinator that has decided a transaction and is about to write that it is complete."""
        found: list[BrokerProcess] = []

        def is_time() -> bool:
            found[:] = [each for each in self._serving() if _has_decided(each) and not each.is_short_of_descriptors]
            return bool(found)

        self._when(is_time, lambda: run_short(self._cluster, found[0], self._world.between(*SHORT_S), left=0))

    def invite_the_needy(self) -> None:
        descriptor_clients = self._choose(
            each for each in self._cluster.clients if isinstance(each, ShortDescriptorRecreator | ShortDescriptorMover)
        )
        if descriptor_clients is not None:
            self._alone(descriptor_clients.takes_s)
            descriptor_clients.invite()


def _has_decided(broker: BrokerProcess) -> bool:
    """Whether the broker coordinates a transaction whose end is decided and whose markers are not written everywhere yet."""
    return bool(broker.broker.transactions.coordinator.markers._decided)  # type: ignore[union-attr]


def run_short(cluster: "SimCluster", broker: BrokerProcess, seconds: float, *, left: int | None = None) -> None:
    """Take nearly all descriptors of a broker for so many seconds or until its process ends. `left`: None chooses at random."""
    world, life = cluster.world, broker.lives
    left, keeps = world.random.choice(DESCRIPTORS_LEFT) if left is None else left, world.chance(0.5)
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
        cluster.world.note(broker.name, f"is restarted by its operator: it could not create the logs of {lost}")
        broker.kill()
        broker.start()


def without_logs(broker: BrokerProcess) -> list[TopicPartition]:
    """Return the partitions that are offline on the broker because there was no descriptor to create the log."""
    replicas, logs = getattr(broker.broker, "replicas", ()), getattr(broker.broker, "logs", None)
    return [
        each.tp
        for each in replicas
        if each.machine.role is Role.OFFLINE and logs is not None and logs.get(each.tp) is None
    ]


def deleted_files(cluster: "SimCluster") -> set[str]:
    """Return the files and directories on disk whose names mark them for deletion."""
    return {
        f"{broker.name}:{path}"
        for broker in cluster.brokers.values()
        for path in broker.storage.files("/")
        if path.endswith(DELETED_SUFFIX) or DELETE_DIR_SUFFIX in path
    }


def unowned_logs(cluster: "SimCluster") -> Iterator[str]:
    """Describe logs on disk that their broker does not know, and logs without a topic id."""
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


class RepeatedLogLines:
    """Finds brokers that retry without a pause: they log the same line again and again."""

    def __init__(self, cluster: "SimCluster") -> None:
        self._world = cluster.world
        self._second = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def heard(self, name: str, message: str) -> None:
        """Count a broker's log line."""
        if int(self._world.now_s) != self._second:
            self._second = int(self._world.now_s)
            self._counts.clear()
        self._counts[name, message] += 1
        if self._counts[name, message] > SAME_MAX:
            self._world.violate("nothing spins", f"{name} says more than {SAME_MAX} times in a second: {message}")


class ShortDescriptorRecreator(TopicRemaker):
    """Deletes a topic of a broker that has no descriptor to write its checkpoints, and creates it again after the deletion."""

    takes_s = 5.0

    async def _delete_what_is_named(self, cluster: AsyncClient, broker: BrokerProcess, tp: TopicPartition) -> bool:
        if not await self._until(lambda: self._is_named(broker, tp)) or not broker.is_serving:
            return False
        self.note(f"deletes {tp} while {broker.name} has no descriptor")
        life = broker.lives
        broker.leave_descriptors(0)
        try:
            await self._delete(cluster, tp)
            is_gone = await self._until(lambda: self.cluster.data_at(paths.topic(tp.topic)) is None, 0.5)
        finally:
            if broker.is_up and broker.lives == life:
                end_scarcity(self.cluster, broker)
        return is_gone or await self._until(lambda: self.cluster.data_at(paths.topic(tp.topic)) is None)


class ShortDescriptorMover(EncounterClient):
    """Has a broker with a few descriptors move a log to another directory: they may or may not suffice to begin the move."""

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


def descriptor_clients(cluster: "SimCluster") -> list[Client]:
    return [ShortDescriptorRecreator(cluster, "remaker"), ShortDescriptorMover(cluster, "mover")]
