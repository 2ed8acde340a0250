"""Invariants that hold at every moment, not only at the end. They are checked twenty times a second and at each answer to a
client.

A defect that shows here need not wait for the second fault that would turn it into a lost record.
"""

from typing import TYPE_CHECKING, Any

from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.state import Role
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.control_invariants import SETTLED_S, ControlInvariants

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

EVERY_S = 0.05
#: Allowance beyond a second `replica.lag.time.max.ms`: the leader checks every half of it, and its loop may be busy.
LAG_SLACK_S = 1.0
#: How long a leader and its followers may need to hear of an election, while nothing is cut and the controller stays.
ELECTED_S = 2.5
#: How long a leader may need to write to disk that its log begins elsewhere.
BEGUN_S = 1.0


class Invariants:
    """Owner: the world. Reads the memory of the brokers and changes nothing."""

    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        #: (broker, partition) -> log end when the log was last open, in this life or an earlier one.
        self.ends: dict[tuple[int, TopicPartition], int] = {}
        #: (broker, partition) -> leader epoch of the last record then. Epoch and offset together identify all records of the
        #: log.
        self.last_epochs: dict[tuple[int, TopicPartition], int | None] = {}
        #: (broker, life, partition) -> (leader epoch, high watermark, topic id) at the last look.
        self._before: dict[tuple[int, int, TopicPartition], tuple[int, int, Any]] = {}
        self._last = self._before
        #: (partition, leader epoch) -> (broker, life) that led in it.
        self._leaders: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        #: Partition -> highest high watermark that any replica had.
        self._committed: dict[TopicPartition, int] = {}
        #: Partition -> highest log start that a leader had.
        self._starts: dict[TopicPartition, int] = {}
        #: Partition -> smallest `min.insync.replicas` that any leader had.
        self._least: dict[TopicPartition, int] = {}
        #: (leader, its life, partition, follower in the ISR that is behind) -> (since when, its log end).
        self._behind: dict[tuple[int, int, TopicPartition, int], tuple[float, int]] = {}

        #: (partition, replica that has not heard of an election) -> (a value whose change restarts the time, since when).
        self._ignorant: dict[tuple[TopicPartition, int], tuple[object, float]] = {}
        #: (broker, life, partition) -> since when its log was seen to begin above offset 0.
        self._beginning: dict[tuple[int, int, TopicPartition], float] = {}
        #: (broker, partition) whose log is closed and whose end is not known.
        self._unknown: set[tuple[int, TopicPartition]] = set()
        #: Partition -> highest offset that a client has been given as committed.
        self._shown: dict[TopicPartition, int] = {}
        #: (broker, its life, partition) -> (pending ISR proposal, since when, the controller then).
        self._proposed: dict[tuple[int, int, TopicPartition], tuple[object, float, object]] = {}
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._control = ControlInvariants(cluster)
        scenario = cluster.scenario
        #: Whether every record must be on disk before it is committed. The copy of a log that an administrator moves is not on
        #: disk at once.
        self._is_flushed = scenario.fixed.get("log.flush.interval.messages") == "1" and not scenario.has_admin

    def start(self) -> None:
        for process in self._cluster.brokers.values():
            process.on_start = self.note_ends
        # Look after `Damage`: partitions that it excuses are skipped here.
        self._world.after(EVERY_S + 0.002, self._look)

    def heard(self, name: str, message: str) -> None:
        """Look at a broker's log line."""
        self._control.heard(name, message)

    def note_ends(self, process: BrokerProcess) -> None:
        """Note the log ends of a dead process: its memory can be read until its next life begins."""
        for partition in getattr(process.broker, "replicas", ()):
            self._note_end(process, partition)

    def _note_end(self, process: BrokerProcess, partition: Any) -> None:
        key = (process.id, partition.tp)
        if partition.log is None:
            # A clean stop or a failed directory closed the log: it may hold more than at the last look.
            self._unknown.add(key)
        else:
            self._unknown.discard(key)
            end = self.ends[key] = partition.log.log_end_offset
            self.last_epochs[key] = partition.log.epochs.epoch_at(end - 1)

    def _look(self) -> None:
        self._world.after(EVERY_S, self._look)
        behind: dict[tuple[int, int, TopicPartition, int], tuple[float, int]] = {}
        self._states = self._cluster.partition_states()
        # A replica that was moved away may return, and is then empty.
        self._last, self._before = self._before, {}
        for process in self._cluster.brokers.values():
            if not process.is_up:
                self.note_ends(process)
                continue
            for partition in getattr(process.broker, "replicas", ()):
                self._note_end(process, partition)
                if partition.log is not None and not self._cluster.is_ignored(partition.tp):
                    self._look_at(process, partition, behind)
        self._behind = behind
        self._look_at_isr()
        self._look_at_elected()
        self._control.look(self._states)

    def _may_begin_in_tier(self, process: BrokerProcess, partition: Any) -> bool:
        """Whether the replica may begin again where the tier ends, with an emptied log: it is out of sync, and behind what its
        leader has on disk.
        """
        log, state = partition.log, self._states.get(partition.tp)
        is_out_of_sync = state is not None and process.id not in state.isr
        return log.is_tiered and not partition.is_leader and is_out_of_sync and not log.size_bytes

    def _look_at(self, process: BrokerProcess, partition: Any, behind: Any) -> None:
        tp, log, machine = partition.tp, partition.log, partition.machine
        end, committed = log.log_end_offset, log.high_watermark
        key = (process.id, process.lives, tp)
        epoch, floor, topic_id = self._last.get(key, (-1, -1, partition.topic_id))
        self._before[key] = (machine.leader_epoch, committed, partition.topic_id)
        if committed > self._committed.get(tp, -1):
            self._committed[tp] = committed
        if tp in self._cluster.oracle.excused:
            return
        if topic_id == partition.topic_id:
            if machine.leader_epoch < epoch:
                self._broken(
                    "a leader epoch never goes back", f"{tp} on {process.name}: {epoch}, then {machine.leader_epoch}"
                )
            if end < floor and not self._may_begin_in_tier(process, partition):
                self._broken(
                    "no replica truncates committed records",
                    f"{tp} on {process.name} ends at {end}; {floor} was committed",
                )
        for first, last in log.producers.unreplicated.items():
            if last < committed:
                self._broken(
                    "an ended transaction does not hold back the last stable offset",
                    f"{tp} on {process.name}: [{first}, {last}] is below the high watermark {committed}, and unstable",
                )
            elif log.last_stable_offset > max(first, log.log_start_offset):  # the first records may have been deleted
                self._broken(
                    "a transaction is stable when its end is committed",
                    f"{tp} on {process.name}: [{first}, {last}] below {log.last_stable_offset}, committed {committed}",
                )
        if partition.resting:
            self._look_at_rest(process, partition)
        if machine.is_leader:
            self._look_at_leader(process, partition, behind)
            if log.epochs.latest_epoch != machine.leader_epoch:
                self._broken(
                    "a leader's log has its epoch",
                    f"{tp} on {process.name}: {machine.leader_epoch}, its log {log.epochs.latest_epoch}",
                )
            if committed > log.recovery_point and self._is_flushed:
                self._broken(
                    "committed records are on their leader's disk",
                    f"{tp} on {process.name}: {committed} is committed, {log.recovery_point} is on disk",
                )

    def _look_at_rest(self, process: BrokerProcess, partition: Any) -> None:
        """Check that a partition that a follower's fetch session leaves out is in sync and has no news for the follower."""
        log, machine = partition.log, partition.machine
        here = (machine.role, machine.leader_epoch, log.log_end_offset, log.high_watermark, log.log_start_offset)
        for want in partition.resting:
            known = (
                Role.LEADER,
                want.current_leader_epoch,
                want.fetch_offset,
                want.sent_high_watermark,
                want.sent_log_start,
            )
            follower = want.position.broker_id
            sessions = process.broker.context.fetch_sessions._sessions  # type: ignore[union-attr]
            is_served = sessions.get(want.session.id) is want.session and want.session.partitions[want.key] is want
            if here != known and self._is_beginning(process, partition):
                continue
            if here != known or follower not in machine.isr or not is_served:
                self._broken(
                    "a fetch session leaves out only followers with all news",
                    f"{partition.tp} on {process.name}: {here}, where broker {follower} knows {known}; "
                    f"in sync are {sorted(machine.isr)}",
                )

    def _is_beginning(self, process: BrokerProcess, partition: Any) -> bool:
        """Whether the mirror begins later than its source: followers hear of it when that is on disk."""
        log = partition.log
        if not (self._cluster.may_begin_later and log.log_start_offset == log.log_end_offset > 0):
            return False
        since_s = self._beginning.setdefault((process.id, process.lives, partition.tp), self._world.now_s)
        return self._world.now_s - since_s < BEGUN_S

    def _look_at_leader(self, process: BrokerProcess, partition: Any, behind: Any) -> None:
        tp, machine = partition.tp, partition.machine
        self._starts[tp] = max(partition.log.log_start_offset, self._starts.get(tp, -1))
        me = (process.id, process.lives)
        known = self._leaders.setdefault((tp, machine.leader_epoch), me)
        if known != me:
            self._broken(
                "one life of one broker leads in an epoch",
                f"{tp} epoch {machine.leader_epoch}: broker {known[0]} in life {known[1]}, and {me[0]} in life {me[1]}",
            )
        self._note_least(partition)
        self._look_at_proposal(process, partition)
        end = partition.log.log_end_offset
        if process.is_paused or machine.pending is not None:
            return
        for follower in machine.followers:
            # By the leader's clock, which may have jumped back.
            lags = not follower.is_caught_up(end, process.clock.now_ms(), machine.replica_lag_time_max_ms)
            if lags and follower.broker_id in machine.isr:
                key = (*me, tp, follower.broker_id)
                since_s, stands = self._behind.get(key, (self._world.now_s, follower.log_end))
                if stands != follower.log_end:
                    since_s = self._world.now_s
                behind[key] = (since_s, follower.log_end)
                limit_s = machine.replica_lag_time_max_ms / 1000 + LAG_SLACK_S
                if self._world.now_s - since_s > limit_s:
                    self._broken(
                        "a lagging replica leaves the ISR",
                        f"{tp}: broker {follower.broker_id} stands at {follower.log_end} of {end} for {limit_s:.0f} s",
                    )

    def _look_at_proposal(self, process: BrokerProcess, partition: Any) -> None:
        """Check that a leader uses the ISR in ZooKeeper and gets an answer to its proposals."""
        tp, machine = partition.tp, partition.machine
        state = self._states.get(tp)
        epochs = (process.id, machine.leader_epoch, machine.partition_epoch)
        is_known = state is not None and (state.leader, state.leader_epoch, state.partition_epoch) == epochs
        if state is not None and is_known and machine.isr != frozenset(state.isr):
            self._broken(
                "a leader uses the ISR in ZooKeeper",
                f"{tp} on {process.name}: {sorted(machine.isr)}, where ZooKeeper has {state.isr}",
            )
        key, controller = (process.id, process.lives, tp), self._cluster.controller()
        if (
            machine.pending is None
            or controller is None
            or not (controller.is_serving and process.is_serving and self._cluster.zookeeper.is_serving)
            or controller.host.refuses
            or process.host.refuses
            or not self._cluster.network.is_whole(process.name, controller.name, self._cluster.zookeeper.name)
        ):
            self._proposed.pop(key, None)
            return
        same = (controller, controller.lives, self._cluster.zookeeper.lives)
        proposal, since_s, among = self._proposed.get(key, (None, 0.0, None))
        if proposal is not machine.pending or among != same:
            self._proposed[key] = (machine.pending, self._world.now_s, same)
        elif self._world.now_s - since_s > SETTLED_S:
            self._broken(
                "an ISR proposal gets an answer", f"{tp} on {process.name}: {machine.pending} for {SETTLED_S:.0f} s"
            )

    def _look_at_isr(self) -> None:
        """Check that in-sync replicas have all committed records, and that no broker leads in an epoch that ZooKeeper does not
        have.
        """
        for tp, state in self._states.items():
            committed = self._committed.get(tp)
            if committed is None or tp in self._cluster.oracle.excused:
                continue
            if self._cluster.may_begin_later and self._starts.get(tp, -1) >= committed:
                continue  # the mirror begins later than its source: there are no records below
            for broker in state.isr:
                end = self.ends.get((broker, tp))
                if (
                    end is not None
                    and (broker, tp) not in self._unknown
                    and end < committed
                    and not self._is_damaged(broker, tp)
                ):
                    self._broken(
                        "an in-sync replica has all committed records",
                        f"{tp}: broker {broker} of ISR {state.isr} ends at {end}; {committed} is committed",
                    )
            if (tp, state.leader_epoch + 1) in self._leaders:
                self._broken(
                    "ZooKeeper knows every leader epoch",
                    f"{tp}: {state.leader_epoch}, and broker {self._leaders[tp, state.leader_epoch + 1][0]} leads in the next",
                )

    def _look_at_elected(self) -> None:
        """Check that leader and followers hear of an election soon: one bad disk or partition must not keep a broker from the
        others.
        """
        cluster = self._cluster
        controller = cluster.controller()
        ignorant: dict[tuple[TopicPartition, int], tuple[object, float]] = {}
        if controller is not None and controller.is_serving and cluster.network.is_calm:
            for tp, state in self._states.items():
                if cluster.is_ignored(tp) or cluster.is_being_deleted(tp.topic):
                    continue
                for broker in sorted({state.leader, *state.isr, *cluster.settled_replicas(tp)}):
                    process = cluster.brokers.get(broker)
                    if process is None or not process.is_serving or _knows(process, tp, state):
                        continue
                    if cluster.network.hosts[process.name].refuses or not cluster.is_registered(broker):
                        continue
                    if process.is_short_of_descriptors:
                        continue  # a deletion is answered when checkpoints are written, and later requests wait for it
                    same = (process.lives, state.leader_epoch, controller.id, controller.lives)
                    known, since_s = self._ignorant.get((tp, broker), (None, 0.0))
                    if known != same:
                        since_s = self._world.now_s
                    ignorant[tp, broker] = (same, since_s)
                    if self._world.now_s - since_s > ELECTED_S:
                        self._broken(
                            "replicas learn of an election",
                            f"{tp}: broker {broker} does not know of leader {state.leader} in epoch {state.leader_epoch}",
                        )
        self._ignorant = ignorant

    def unfinished(self) -> list[str]:
        """Describe the work that a cluster in sync has not finished."""
        found: list[str] = []
        for process in self._cluster.brokers.values():
            for partition in getattr(process.broker, "replicas", ()):
                if partition.future_log is not None:
                    found.append(f"{partition.tp} on {process.name} is being moved to another directory")
                if partition.machine.pending is not None:
                    found.append(f"{partition.tp} on {process.name} has not heard of {partition.machine.pending}")
                leader = self._cluster.log_of(partition.machine.leader, partition.tp)
                log = partition.log
                if leader is not None and log is not None and log.log_start_offset < leader.log_start_offset:
                    found.append(f"{partition.tp} on {process.name} has what its leader has deleted")
        return found

    def shown(self, whom: str, tp: TopicPartition, offset: int) -> None:
        """Check the offset that a client was given as committed: `min.insync.replicas` replicas must have it, or the object
        store, because a follower that was out of sync may have emptied its log.
        """
        if tp in self._cluster.oracle.excused or self._cluster.is_ignored(tp) or offset <= self._shown.get(tp, -1):
            return
        self._shown[tp] = offset
        for process in self._cluster.brokers.values():
            replicas = getattr(process.broker, "replicas", None)
            partition = replicas.hosted.get(tp) if replicas is not None else None
            if partition is not None:
                self._note_end(process, partition)
                if partition.machine.is_leader:
                    self._note_least(partition)  # The setting may have changed a moment ago.
        holders = [
            broker
            for broker in self._cluster.brokers
            if self.ends.get((broker, tp), -1) > offset or (broker, tp) in self._unknown or self._is_damaged(broker, tp)
        ]
        if len(holders) < self._least.get(tp, 1) and not self._cluster.is_in_store(tp, offset):
            self._broken(
                "committed records are on enough replicas",
                f"{whom} got {tp} offset {offset}, which is only on {holders}",
            )

    def _note_least(self, partition: Any) -> None:
        least = partition.machine.effective_min_isr
        self._least[partition.tp] = min(least, self._least.get(partition.tp, least))

    def _is_damaged(self, broker: int, tp: TopicPartition) -> bool:
        faults = self._cluster.faults
        return faults is not None and faults.damage.is_damaged(broker, tp)

    def _broken(self, name: str, detail: str) -> None:
        self._world.violate(name, detail)


def _knows(process: BrokerProcess, tp: TopicPartition, state: LeaderAndIsr) -> bool:
    """Whether a replica leads or follows as ZooKeeper says, or has reported that it cannot."""
    partition = process.broker.replicas.hosted.get(tp) if process.broker is not None else None
    if partition is None:
        return False
    if partition.machine.role is Role.OFFLINE:
        return True
    return partition.machine.leader_epoch >= state.leader_epoch and partition.is_leader == (state.leader == process.id)
