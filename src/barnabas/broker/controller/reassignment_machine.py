"""Moves partitions to other brokers (KIP-455): adds replicas, waits until they are in sync, removes the old ones. Pure.

The topic's znode holds each reassignment in progress (`adding_replicas`, `removing_replicas`), so that a new controller
continues it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from barnabas.base.errors import BrokenInvariant, ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.context import Replica
from barnabas.broker.controller.deletion_machine import DeletionMachine
from barnabas.broker.controller.elections import Strategy
from barnabas.broker.controller.events import Failure, ReassignmentsRequested
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine, write_leadership
from barnabas.broker.controller.program import ControllerState, Program, ask, read_leadership, write
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import REPLICA_TRANSITIONS, ReplicaState
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Delete, Exists, Get, SetData, ZkCode
from barnabas.broker.zookeeper_client.znodes import (
    LeaderAndIsr,
    ReplicaAssignment,
    TopicAssignment,
    decode_reassign_partitions,
    encode_reassign_partitions,
)

_log = logging.getLogger(__name__)

_UNKNOWN = Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")

Target = tuple[int, ...]


def _too_large(partition: TopicPartition) -> Failure:
    return Failure(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"{paths.topic(partition.topic)} would be {ZkCode.TOO_LARGE.value}: it lists the replicas of all partitions, the "
        "former and the new ones. Reassign fewer partitions of the topic at a time.",
    )


class ReassignmentMachine:
    def __init__(
        self,
        state: ControllerState,
        requests: RequestBatch,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: DeletionMachine,
    ) -> None:
        self._state = state
        self._requests = requests
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions

    # --- requests -----------------------------------------------------------------------------------------------------

    def alter(self, targets: Mapping[TopicPartition, Target | None]) -> Program[dict[TopicPartition, Failure | None]]:
        """Handle AlterPartitionReassignments. The latest request wins, also over one that came through ZooKeeper."""
        results: dict[TopicPartition, Failure | None] = {}
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        for partition, target in targets.items():
            failure = None if target is None else self._validate(partition, target)
            assignment = None if failure else self._plan(partition, target)
            if failure is not None:
                results[partition] = failure
            elif assignment is None:
                results[partition] = Failure(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            else:
                accepted[partition] = assignment
        yield from self._remove_from_znode(lambda partition, _: partition in accepted)
        results |= yield from self._trigger(accepted)
        return {partition: results[partition] for partition in targets}

    def from_znode(self) -> Program[set[TopicPartition]]:
        """Handle /admin/reassign_partitions, which old tools write. Return the partitions whose reassignment began."""
        # The watch is on the znode's existence. It is set again each time, so it reports the next creation.
        yield from ask((Exists(paths.REASSIGN_PARTITIONS, watch=ReassignmentsRequested()),))
        targets = yield from self._read_znode()
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        failed: set[TopicPartition] = set()
        for partition, target in targets.items():
            assignment = self._plan(partition, target)
            if assignment is None or not target or min(target) < 0:
                failed.add(partition)
            else:
                accepted[partition] = assignment
        results = yield from self._trigger(accepted)
        failed |= {partition for partition, failure in results.items() if failure is not None}
        if failed:
            _log.warning(
                "[controller] cannot begin these reassignments, see the errors above: %s",
                ", ".join(map(str, sorted(failed))),
            )
            yield from self._remove_from_znode(lambda partition, _: partition in failed)
        return set(results) - failed

    def resume(self, wanted: Callable[[TopicPartition, ReplicaAssignment], bool]) -> Program[None]:
        context = self._state.context
        for partition in list(context.reassigning):
            assignment = context.assignment(partition)
            if partition not in context.leadership:
                _log.error(
                    "[partition %s] its reassignment waits: repair %s, which cannot be read",
                    partition,
                    paths.partition_state(partition),
                )
            elif wanted(partition, assignment):
                yield from self._proceed(partition, assignment)

    def complete_if_in_sync(self, partitions: Iterable[TopicPartition]) -> Program[None]:
        """Complete reassignments whose new replicas are all in sync now: the ISR of these partitions has changed."""
        context = self._state.context
        for partition in partitions:
            if partition in context.reassigning and self._is_complete(partition, context.assignment(partition)):
                yield from self._proceed(partition, context.assignment(partition))

    def _validate(self, partition: TopicPartition, target: Target) -> Failure | None:
        def refuse(message: str) -> Failure:
            return Failure(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

        if not target:
            return refuse("Empty replica list specified in partition reassignment.")
        if len(set(target)) != len(target):
            return refuse(f"Duplicate replica ids in partition reassignment replica list: {list(target)}")
        if any(each < 0 for each in target):
            return refuse(f"Invalid broker id in replica list: {list(target)}")
        context = self._state.context
        adding = context.assignment(partition).reassign_to(target).adding
        if not set(adding) <= context.live_ids():
            return refuse(
                f"Replica assignment has brokers that are not alive. Replica list: {list(adding)}, "
                f"live broker list: {sorted(context.live_ids())}"
            )
        return None

    def _plan(self, partition: TopicPartition, target: Target | None) -> ReplicaAssignment | None:
        """Return the new assignment. None: there is nothing to cancel."""
        current = self._state.context.assignment(partition)
        if target is not None:
            return current.reassign_to(target)
        return current.reassign_to(current.origin) if current.is_being_reassigned else None

    def _trigger(
        self, accepted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Program[dict[TopicPartition, Failure | None]]:
        context = self._state.context
        results: dict[TopicPartition, Failure | None] = {}
        for partition, assignment in accepted.items():
            known = bool(context.assignment(partition).replicas) and partition in context.leadership
            if context.is_queued_for_deletion(partition.topic) or not known:
                results[partition] = _UNKNOWN
                continue
            isr = context.leadership[partition].isr
            if set(isr).isdisjoint(assignment.replicas):
                # Accepted, the reassignment would delete the only complete copies at once. Kafka deletes them.
                results[partition] = Failure(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"No replica of {list(assignment.replicas)} is in sync; only {list(isr)} are. "
                    "Wait until one is, or name one of these in the reassignment.",
                )
                continue
            results[partition] = yield from self._proceed(partition, assignment)
        return results

    # --- the steps of one reassignment --------------------------------------------------------------------------------

    def _proceed(self, partition: TopicPartition, wanted: ReplicaAssignment) -> Program[Failure | None]:
        self._deletions.halt((partition.topic,), "a reassignment is in progress")
        if not (yield from self._adopt(partition, wanted)):
            yield from self._deletions.resume_for((partition.topic,))
            return _too_large(partition)
        if self._is_complete(partition, wanted):
            yield from self._finish(partition, wanted)
        else:
            # All replicas get the larger replica list; the new ones start to follow.
            yield from self._raise_epoch(partition, wanted)
            self._replicas.to_new(
                each
                for each in (Replica(partition, broker) for broker in wanted.adding)
                if self._state.context.replica_state(each) in REPLICA_TRANSITIONS[ReplicaState.NEW]
            )
        return None

    def _adopt(self, partition: TopicPartition, wanted: ReplicaAssignment) -> Program[bool]:
        """Write the plan to ZooKeeper before adding any replica. Return False if the plan does not fit into the znode."""
        context = self._state.context
        current = context.assignment(partition)
        if current != wanted:
            # A plan that replaces another one may not need some of the replicas that were being added.
            unneeded = [each for each in current.replicas if each not in wanted.replicas]
            if context.leadership[partition].leader in unneeded:
                # Kafka removes the leader here and leaves the partition without one.
                context.assign(partition, current.without(*unneeded))
                yield from self._partitions.to_online((partition,), Strategy.OFFLINE)
            yield from self._remove_replicas(partition, unneeded)
            if not (yield from self._write_assignment(partition, wanted)):
                return False
            context.assign(partition, wanted)
            self._state.note(
                "reassignment began", topic=partition.topic, partition=partition.partition, replicas=list(wanted.target)
            )
        context.reassigning[partition] = None
        return True

    def _finish(self, partition: TopicPartition, wanted: ReplicaAssignment) -> Program[None]:
        context = self._state.context
        self._replicas.to_online(Replica(partition, broker) for broker in wanted.adding)
        done = ReplicaAssignment(wanted.target)
        context.assign(partition, done)
        yield from self._move_leader(partition, done)
        yield from self._remove_replicas(partition, wanted.removing)
        if not (yield from self._write_assignment(partition, done)):
            raise BrokenInvariant(f"{partition}: the assignment without the former replicas is larger than with them")
        yield from self._remove_from_znode(lambda each, target: each == partition and target == done.replicas)
        context.reassigning.pop(partition, None)
        # The leader and the replicas have changed since the last metadata.
        self._requests.add_metadata(context.brokers, (partition,))
        _log.info("[partition %s] is reassigned to %s", partition, list(done.replicas))
        self._state.note(
            "reassignment ended", topic=partition.topic, partition=partition.partition, replicas=list(done.replicas)
        )
        yield from self._deletions.resume_for((partition.topic,))

    def _is_complete(self, partition: TopicPartition, assignment: ReplicaAssignment) -> bool:
        if not assignment.is_being_reassigned:
            return True
        leadership = self._state.context.leadership.get(partition)
        return leadership is not None and set(assignment.target) <= set(leadership.isr)

    def _move_leader(self, partition: TopicPartition, done: ReplicaAssignment) -> Program[None]:
        context = self._state.context
        leader = context.leadership[partition].leader
        if leader in done.replicas and context.is_online(leader, partition):
            # The leader stays; a new epoch makes all replicas take the shorter replica list.
            yield from self._raise_epoch(partition, done)
        else:
            yield from self._partitions.to_online((partition,), Strategy.REASSIGN)

    def _remove_replicas(self, partition: TopicPartition, brokers: Iterable[int]) -> Program[None]:
        context = self._state.context
        leaving = [
            replica
            for replica in (Replica(partition, broker) for broker in brokers)
            if context.replica_state(replica) is not ReplicaState.NON_EXISTENT
        ]
        yield from self._replicas.to_offline(leaving, for_good=True)
        self._replicas.to_deletion_started(leaving)
        # Do not wait for the deletion. A broker that is down keeps its log, and uses it if the replica is assigned again.
        self._replicas.to_deletion_successful(leaving)
        self._replicas.to_non_existent(leaving)
        if leaving:
            # Send this before ZooKeeper forgets these replicas. The next controller would not know them, and one that leads
            # would go on leading.
            self._requests.flush()

    def _raise_epoch(self, partition: TopicPartition, assignment: ReplicaAssignment) -> Program[None]:
        """Keep leader and ISR, and raise the leader epoch: replicas accept LeaderAndIsr only with a higher epoch."""
        context = self._state.context
        state: LeaderAndIsr | None = context.leadership[partition]
        while True:
            if state is None:
                # Another program has damaged or deleted the znode. Wait with this partition only: the others still need the
                # controller.
                _log.error(
                    "[partition %s] its reassignment waits: repair %s, which cannot be read",
                    partition,
                    paths.partition_state(partition),
                )
                return
            wanted = state.with_leader(state.leader).by(context.epoch)
            written = (yield from write_leadership({partition: wanted}))[partition]
            if isinstance(written, LeaderAndIsr):
                break
            if written is not ZkCode.BAD_VERSION:
                _log.error(
                    "[partition %s] the controller could not raise the leader epoch: %s", partition, written.value
                )
                return
            state = (yield from read_leadership((partition,))).get(partition)
        context.leadership[partition] = written
        self._requests.add_leader_and_isr(assignment.origin, partition, written, assignment, is_new=False)
        # Brokers may create the new replicas in any good log directory.
        self._requests.add_leader_and_isr(assignment.adding, partition, written, assignment, is_new=True)

    def _write_assignment(self, partition: TopicPartition, assignment: ReplicaAssignment) -> Program[bool]:
        """Write the assignment. Partitions that were added since the last read stay; Kafka drops them.

        Return False if the assignment does not fit into the znode.
        """
        context, topic = self._state.context, partition.topic
        path, version = paths.topic(topic), context.assignment_versions[partition.topic]
        added: Mapping[int, ReplicaAssignment] = {}
        while True:
            partitions = {**added, **context.assignments[topic], partition.partition: assignment}
            data = TopicAssignment(context.topic_ids.get(topic), partitions).encode()
            [result] = yield from write((SetData(path, data, version),))
            if result.ok and result.stat is not None:
                context.assignment_versions[topic] = result.stat.version
                return True
            if result.code is ZkCode.TOO_LARGE:
                return False
            [found] = yield from ask((Get(path),))
            if result.code is not ZkCode.BAD_VERSION or found.stat is None:
                raise BrokenInvariant(f"{path} could not be written: {result.code.value}")
            added, version = _readable_partitions(topic, found.data), found.stat.version

    def _remove_from_znode(self, unwanted: Callable[[TopicPartition, Target], bool]) -> Program[None]:
        """Take partitions out of /admin/reassign_partitions, and delete the znode with the last one."""
        targets = yield from self._read_znode()
        if not targets:
            return
        remaining = {partition: target for partition, target in targets.items() if not unwanted(partition, target)}
        if remaining:
            data = encode_reassign_partitions(remaining)
            [result] = yield from write((SetData(paths.REASSIGN_PARTITIONS, data),))
            if result.code is ZkCode.NO_NODE:
                yield from write((Create(paths.REASSIGN_PARTITIONS, data),))
        else:
            yield from write((Delete(paths.REASSIGN_PARTITIONS),))
            # Set the watch that reports the next creation.
            yield from ask((Exists(paths.REASSIGN_PARTITIONS, watch=ReassignmentsRequested()),))

    def _read_znode(self) -> Program[dict[TopicPartition, Target]]:
        """Return the targets in /admin/reassign_partitions; none if the znode does not exist. A malformed znode is deleted."""
        [content] = yield from ask((Get(paths.REASSIGN_PARTITIONS),))
        if not content.ok:
            return {}
        try:
            return decode_reassign_partitions(content.data or b"")
        except Malformed as error:
            _log.error("%s", error)
            yield from write((Delete(paths.REASSIGN_PARTITIONS),))
            return {}


def _readable_partitions(topic: str, data: bytes | None) -> Mapping[int, ReplicaAssignment]:
    """Decode a topic's znode; return nothing if it cannot be read."""
    try:
        return TopicAssignment.decode(topic, data or b"").partitions
    except Malformed as error:
        _log.error("[controller] %s", error)
        return {}
