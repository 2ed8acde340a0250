"""Moves replicas between their states: new, online, offline, and the steps of a deletion. Pure."""

import logging
from collections.abc import Iterable, Sequence

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.context import Replica
from barnabas.broker.controller.journal import changes
from barnabas.broker.controller.partition_state_machine import write_leadership
from barnabas.broker.controller.program import ControllerState, Program, read_leadership
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import PartitionState, ReplicaState
from barnabas.broker.zookeeper_client.operations import ZkCode
from barnabas.broker.zookeeper_client.znodes import NO_LEADER, LeaderAndIsr

_log = logging.getLogger(__name__)


class ReplicaStateMachine:
    def __init__(self, state: ControllerState, requests: RequestBatch) -> None:
        self._state = state
        self._requests = requests

    def initialize(self) -> None:
        """Set the state of every replica as a new controller finds it."""
        context = self._state.context
        for replica in context.replicas_of(context.partitions()):
            # A deletion may have been in progress on a dead broker. Ineligible is the safe state: both offline and online can
            # be reached from it.
            online = context.is_online(replica.broker, replica.partition)
            context.replica_states[replica] = ReplicaState.ONLINE if online else ReplicaState.DELETION_INELIGIBLE

    def to_new(self, replicas: Iterable[Replica]) -> None:
        """Send the replicas the leader to follow, if there is one."""
        context = self._state.context
        for replica in replicas:
            leadership = context.leadership.get(replica.partition)
            if leadership is not None and leadership.leader == replica.broker:
                _log.error(
                    "[partition %s] broker %d leads already and cannot be a new replica",
                    replica.partition,
                    replica.broker,
                )
                continue
            context.move_replica(replica, ReplicaState.NEW)
            if leadership is not None:
                self._send_leadership(replica, leadership, is_new=True)

    def to_online(self, replicas: Iterable[Replica]) -> None:
        context = self._state.context
        for replica in replicas:
            before = context.replica_state(replica)
            context.move_replica(replica, ReplicaState.ONLINE)
            leadership = context.leadership.get(replica.partition)
            # A new replica has got its request already.
            if before is not ReplicaState.NEW and leadership is not None and not self._led_before(replica, leadership):
                self._send_leadership(replica, leadership, is_new=False)

    def _led_before(self, replica: Replica, leadership: LeaderAndIsr) -> bool:
        """Whether the replica led, and no leader was elected since.

        It must not go on leading in an epoch of its former life: that life may have had records that this one has lost. The
        next election raises the epoch, unless the state in ZooKeeper cannot be read.
        """
        is_offline = self._state.context.partition_states.get(replica.partition) is PartitionState.OFFLINE
        return is_offline and leadership.leader == replica.broker

    def to_offline(self, replicas: Sequence[Replica], *, for_good: bool = False) -> Program[None]:
        """Send StopReplica, take the replicas out of their ISRs, and send the new ISRs to the leaders.

        `for_good`: the replicas are about to be deleted. Otherwise they may return with all their records.
        """
        context = self._state.context
        by_broker: dict[int, list[TopicPartition]] = {}
        for replica in replicas:
            self._requests.add_stop_replica(replica.broker, replica.partition, delete=False)
            by_broker.setdefault(replica.broker, []).append(replica.partition)
            context.move_replica(replica, ReplicaState.OFFLINE)
        for broker, partitions in by_broker.items():
            # The ISR of a topic that is being deleted does not matter: its znodes are deleted as well.
            staying = [each for each in partitions if not context.is_dying(each.topic)]
            # The metadata lists offline replicas, so it changes even if the ISR does not.
            self._requests.add_metadata(context.brokers, staying)
            yield from self._leave_isr(broker, staying, for_good=for_good)

    def to_deletion_started(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            self._state.context.move_replica(replica, ReplicaState.DELETION_STARTED)
            self._requests.add_stop_replica(replica.broker, replica.partition, delete=True)

    def to_deletion_successful(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            self._state.context.move_replica(replica, ReplicaState.DELETION_SUCCESSFUL)

    def to_deletion_ineligible(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            self._state.context.move_replica(replica, ReplicaState.DELETION_INELIGIBLE)

    def to_non_existent(self, replicas: Iterable[Replica]) -> None:
        context = self._state.context
        for replica in replicas:
            context.move_replica(replica, ReplicaState.NON_EXISTENT)
            context.assign(replica.partition, context.assignment(replica.partition).without(replica.broker))

    def _send_leadership(self, replica: Replica, leadership: LeaderAndIsr, *, is_new: bool) -> None:
        assignment = self._state.context.assignment(replica.partition)
        self._requests.add_leader_and_isr((replica.broker,), replica.partition, leadership, assignment, is_new=is_new)

    def _leave_isr(self, broker: int, partitions: Iterable[TopicPartition], *, for_good: bool) -> Program[None]:
        context = self._state.context
        known = {each: context.leadership[each] for each in partitions if each in context.leadership}
        while known:
            wanted = {
                partition: changed.by(context.epoch)
                for partition, state in known.items()
                if (changed := self._without(partition, state, broker, for_good=for_good)) is not None
                and state.controller_epoch <= context.epoch
            }
            written = yield from write_leadership(wanted)
            written_isrs = {each: state for each, state in written.items() if isinstance(state, LeaderAndIsr)}
            if written_isrs:
                self._state.note("replicas left the ISR", broker=broker, **changes(known, written_isrs))
            again = []
            for partition, state in written.items():
                if isinstance(state, LeaderAndIsr):
                    self._announce(partition, state, besides=broker)
                elif state is ZkCode.BAD_VERSION:
                    again.append(partition)
                else:
                    _log.error(
                        "[partition %s] the controller could not take broker %d out of the ISR: %s",
                        partition,
                        broker,
                        state.value,
                    )
            known = yield from read_leadership(again)
            for partition, state in known.items():
                # The replica has left the ISR already, for example by our own write whose answer was lost with a connection.
                # The leader may not know it.
                if self._without(partition, state, broker, for_good=for_good) is None:
                    self._announce(partition, state, besides=broker)

    def _without(
        self, partition: TopicPartition, state: LeaderAndIsr, broker: int, *, for_good: bool
    ) -> LeaderAndIsr | None:
        """Return the state in which this broker does not lead and, if other replicas are in sync, is not in the ISR.

        None: it is in that state already. The last live replica stays in the ISR: when it returns, it has every committed
        record. If all fail at once, each of them has. One may have lost its power and another only its session, and the
        controller cannot tell them apart: so it takes none of them out.
        """
        if broker not in state.isr:
            return None
        isr = tuple(each for each in state.isr if each != broker)
        if not (for_good and isr) and not any(self._state.context.is_online(each, partition) for each in isr):
            isr = state.isr
        if isr == state.isr and state.leader != broker:
            return None
        return state.with_leader(NO_LEADER if state.leader == broker else state.leader, isr)

    def _announce(self, partition: TopicPartition, state: LeaderAndIsr, *, besides: int) -> None:
        context = self._state.context
        context.leadership[partition] = state
        assignment = context.assignment(partition)
        recipients = [each for each in assignment.replicas if each != besides]
        self._requests.add_leader_and_isr(recipients, partition, state, assignment, is_new=False)
