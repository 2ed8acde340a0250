"""Meetings: each seed of this profile brings all of these about, by turns, several times.

As `timed_broker_faults.py`, with other kinds. What needs clients of its own is in `encounter_clients.py`. Owner: the world.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.base.ids import TopicPartition
from barnabas.broker.zookeeper_client import paths
from tests.simulation.encounter_clients import Schemer
from tests.simulation.process import BrokerProcess
from tests.simulation.triggers import LyingInWait

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

#: Notifications that no broker can make sense of.
SENSELESS = (b"no json", b"", b"[]", b'{"version":1}', b'{"version":2,"entity_path":7}')
#: How long a directory stays broken: the controller has found out by then, and somebody else leads.
BROKEN_S = 4.5
#: What an ACL of ours begins with, in a snapshot: scheme, length, and the name of who may.
SCHEME = b"digest"
LENGTH_BYTES = 4
#: So many bytes of the name are there in any case.
NAME_BYTES = 20


class Meetings(LyingInWait):
    def __init__(self, faults: "Faults") -> None:
        super().__init__(faults)
        self._turns: list[Callable[[], None]] = []

    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (self.meet,)

    def meet(self) -> None:
        """The next of all kinds: in each round they come in another order."""
        if not self._turns:
            self._turns = [
                self._write_news_without_sense,
                self._damage_an_acl,
                self._break_the_directory_of_a_leader,
                self._break_the_disk_under_long_polls,
                *(partial(self._invite, each) for each in self._cluster.clients if isinstance(each, Schemer)),
            ]
            self._world.random.shuffle(self._turns)
        self._turns.pop()()

    def _invite(self, schemer: Schemer) -> None:
        self._alone(schemer.takes_s)
        schemer.invite()

    # -- ZooKeeper ----------------------------------------------------------------------------------------------------------

    def _write_news_without_sense(self) -> None:
        """All brokers read it; one of them has just begun to listen."""
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
        """ZooKeeper dies, and a byte of the name in an ACL has gone bad, in its newest snapshot. There is an older one."""

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
        """Of partitions whose replicas are all in sync: leaders that are well, and that others can do without."""
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
        self._note(f"the directories of {broker.name} are mended")
        broker.mend_directories()
        if not broker.is_up:
            broker.start()

    def _break_the_directory_of_a_leader(self) -> None:
        """Writes fail, and nothing else happens until another must have taken its place."""
        tp, leader = self._choose(self._leaders()) or (None, None)
        if tp is None or leader is None:
            return
        self._alone(BROKEN_S + 0.5)
        folder = self._cluster.log_of(leader.id, tp).log_dir
        self._note(f"{folder} of {leader.name}, which leads {tp}, fails")
        leader.storage.fail_writes(folder)
        self._world.after(BROKEN_S, lambda: self._repair(leader))

    def _break_the_disk_under_long_polls(self) -> None:
        """Several readers wait at one partition. When a record is about to be committed, nothing can be read any more: who
        looks for the first of them finds out."""
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
        """All replicas have a record, and the leader does not know yet."""
        replicas = leader.broker.replicas  # type: ignore[union-attr]
        partition = replicas.hosted.get(tp)
        if partition is None or partition.log is None or not partition.is_leader:
            return False
        end = partition.log.log_end_offset
        waiting = replicas.hosted.fetch_purgatory._watchers.get(partition, ())
        if end == partition.log.high_watermark or len(waiting) < 2:
            return False
        logs = [self._cluster.log_of(each, tp) for each in self._cluster.settled_replicas(tp)]
        return all(log is not None and log.log_end_offset >= end for log in logs)
