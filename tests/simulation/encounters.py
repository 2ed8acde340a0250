"""Encounters of two faults: each seed of the profile has all of them, by turns, several times.

As `timed_broker_faults.py`, with other kinds. `encounter_clients.py` has the ones that need clients. Owner: the world.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.base.ids import TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.encounter_clients import EncounterClient
from tests.simulation.triggers import TimedFaults

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

#: Notifications that no broker can parse.
SENSELESS = (b"no json", b"", b"[]", b'{"version":1}', b'{"version":2,"entity_path":7}')
#: How long a directory stays broken: by then the controller has noticed it and another broker leads.
BROKEN_S = 4.5
#: First field of a digest ACL in a snapshot; its length and the user name follow.
SCHEME = b"digest"
LENGTH_BYTES = 4
#: Bytes that every user name has.
NAME_BYTES = 20


class Encounters(TimedFaults):
    def __init__(self, faults: "Faults") -> None:
        super().__init__(faults)
        self._turns: list[Callable[[], None]] = []

    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (self.meet,)

    def meet(self) -> None:
        """Bring about the next encounter; each round has another order."""
        if not self._turns:
            self._turns = [
                self._write_news_without_sense,
                self._damage_an_acl,
                self._break_the_directory_of_a_leader,
                self._break_the_disk_under_long_polls,
                *(partial(self._invite, each) for each in self._cluster.clients if isinstance(each, EncounterClient)),
            ]
            self._world.random.shuffle(self._turns)
        self._turns.pop()()

    def _invite(self, schemer: EncounterClient) -> None:
        self._alone(schemer.takes_s)
        schemer.invite()

    # -- ZooKeeper ----------------------------------------------------------------------------------------------------------

    def _write_news_without_sense(self) -> None:
        """Write invalid notifications: all brokers read them, and one broker has just begun to listen."""
        if not self._cluster.zookeeper.is_serving:
            return
        self._alone(1.0)
        self._write_nonsense()
        broker = self._choose(self._serving(self._cluster.controller()))
        if broker is None or not self._faults._may_kill(broker):
            return
        broker.kill()
        broker.start()
        self._when(lambda: getattr(broker.broker, "registrar", None) is not None, self._write_nonsense)

    def _write_nonsense(self) -> None:
        self._cluster.stranger.write(paths.config_change(), self._choose(SENSELESS))

    def _damage_an_acl(self) -> None:
        """Kill ZooKeeper and damage a byte of the user name in an ACL of its newest snapshot. An older snapshot exists."""

        def damage() -> None:
            path, newest = self._newest_of_two_snapshots() or ("", b"")
            name = newest.find(SCHEME) + len(SCHEME) + LENGTH_BYTES
            self._alone(2.0)
            self._damage(path, name + self._world.random.randrange(NAME_BYTES))

        def is_time() -> bool:
            found = self._newest_of_two_snapshots()
            return found is not None and SCHEME in found[1]

        self._alone(1.0)
        self._when(is_time, damage, within_s=1.0)

    # -- disks --------------------------------------------------------------------------------------------------------------

    def _leaders(self) -> list[tuple[TopicPartition, BrokerProcess]]:
        """Return healthy leaders, of partitions whose replicas are all in sync, that the cluster can do without."""
        return [
            (tp, broker)
            for tp, state in self._states().items()
            if len(state.isr) == len(self._cluster.settled_replicas(tp))
            and (broker := self._cluster.brokers.get(state.leader)) in self._serving()
            and broker is not None
            and not broker.storage.faults
            and self._cluster.log_of(broker.id, tp) is not None
            and self._faults.damage.may_lose(broker)
        ]

    def _repair(self, broker: BrokerProcess) -> None:
        if self._faults._has_ended:
            return
        self._note(f"the directories of {broker.name} are repaired")
        broker.mend_directories()
        if not broker.is_up:
            broker.start()

    def _break_the_directory_of_a_leader(self) -> None:
        """Let writes fail, and nothing else, until another broker must have become leader."""
        tp, leader = self._choose(self._leaders()) or (None, None)
        if tp is None or leader is None:
            return
        self._alone(BROKEN_S + 0.5)
        folder = self._cluster.log_of(leader.id, tp).log_dir
        self._note(f"{folder} of {leader.name}, which leads {tp}, fails")
        leader.storage.fail_writes(folder)
        self._world.after(BROKEN_S, lambda: self._repair(leader))

    def _break_the_disk_under_long_polls(self) -> None:
        """Let several readers wait at one partition. Reads begin to fail when a record is about to be committed, so the broker
        notices it when it looks for the records of the first reader.
        """
        found: list[tuple[TopicPartition, BrokerProcess]] = []

        def is_time() -> bool:
            found[:] = [pair for pair in self._leaders() if self._is_about_to_commit(*pair)]
            return bool(found)

        def strike() -> None:
            tp, leader = found[0]
            self._alone(2.0)
            folder = self._cluster.log_of(leader.id, tp).log_dir
            self._note(f"{folder} of {leader.name} cannot be read, as {tp} is about to be committed")
            leader.storage.fail_reads(folder)
            self._world.after(1.5, lambda: self._repair(leader))

        self._alone(2.0)
        self._when(is_time, strike)

    def _is_about_to_commit(self, tp: TopicPartition, leader: BrokerProcess) -> bool:
        """Whether all replicas have a record and the leader does not know it yet."""
        replicas = leader.broker.replicas  # type: ignore[union-attr]
        partition = replicas.hosted.get(tp)
        if partition is None or partition.log is None or not partition.is_leader:
            return False
        end = partition.log.log_end_offset
        waiting = replicas.hosted.fetch_purgatory.watchers.get(partition, ())
        if end == partition.log.high_watermark or len(waiting) < 2:
            return False
        logs = [self._cluster.log_of(each, tp) for each in self._cluster.settled_replicas(tp)]
        return all(log is not None and log.log_end_offset >= end for log in logs)
