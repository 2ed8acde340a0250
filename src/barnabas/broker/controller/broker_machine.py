"""Handle brokers that come, go, return and fail, as /brokers/ids and their answers report it. Pure."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.context import Replica
from barnabas.broker.controller.deletion_machine import DeletionMachine
from barnabas.broker.controller.effects import CloseChannel, OpenChannel
from barnabas.broker.controller.elections import Strategy
from barnabas.broker.controller.events import (
    BrokerModified,
    BrokersChanged,
    ControlledShutdown,
    Failure,
    LeaderAndIsrAnswered,
    LogDirEventsNotified,
)
from barnabas.broker.controller.journal import NAMED_MAX
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine
from barnabas.broker.controller.program import ControllerState, Program, ask, registration_of, until_quiet, write
from barnabas.broker.controller.reassignment_machine import ReassignmentMachine
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import REPLICA_TRANSITIONS, ReplicaState
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Delete, Get, GetChildren
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, LeaderAndIsr, decode_log_dir_event

_log = logging.getLogger(__name__)

#: Replicas of a broker in controlled shutdown that are moved at once. Brokers take some ten milliseconds for so many, and
#: producers may wait that long for acknowledgements.
SHUTDOWN_STEP = 500
#: The epoch in a ControlledShutdown request of a release that has no broker epochs.
UNKNOWN_BROKER_EPOCH = -1


class BrokerMachine:
    def __init__(
        self,
        state: ControllerState,
        requests: RequestBatch,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: DeletionMachine,
        reassignments: ReassignmentMachine,
    ) -> None:
        self._state = state
        self._requests = requests
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions
        self._reassignments = reassignments

    # --- membership ---------------------------------------------------------------------------------------------------

    def load(self) -> Program[dict[int, tuple[BrokerRegistration, int]]]:
        """Return the registered brokers with their epochs. Sets a watch for changes."""
        [listed] = yield from ask((GetChildren(paths.BROKER_IDS, watch=BrokersChanged()),))
        ids = sorted(int(name) for name in listed.children if paths.is_broker_id(name))
        results = yield from ask(Get(paths.broker_id(each), watch=BrokerModified(each)) for each in ids)
        brokers: dict[int, tuple[BrokerRegistration, int]] = {}
        for broker, result in zip(ids, results, strict=True):
            registration = registration_of(broker, result)
            if registration is not None and result.stat is not None:
                brokers[broker] = (registration, result.stat.czxid)
        return brokers

    def brokers_changed(self) -> Program[None]:
        context = self._state.context
        found = yield from self.load()
        has_lost_suspects = self._forget_suspects(found)
        found = {broker: each for broker, each in found.items() if broker not in context.suspects}
        came = sorted(set(found) - set(context.brokers))
        went = sorted(set(context.brokers) - set(found))
        # The same id with a higher epoch: the broker went and returned between two reads.
        bounced = sorted(
            each for each in set(found) & set(context.brokers) if found[each][1] > context.broker_epochs[each]
        )
        if came or went or bounced:
            _log.info("[controller] brokers that came: %s, went: %s, bounced: %s", came, went, bounced)
            self._state.note("brokers changed", came=came, went=went, bounced=bounced)
        # Kafka starts the new brokers before it handles the failed ones. Clients wait for new leaders, so here the failed come
        # first.
        gone, here = sorted((*went, *bounced)), sorted((*came, *bounced))
        if gone:
            yield from self._remove(gone)
        if here:
            for broker in here:
                self._state.emit(OpenChannel(*found[broker]))
                context.add_broker(*found[broker])
            yield from self._on_startup(here)
        elif has_lost_suspects:
            # Unclean elections waited until the suspect's session had ended.
            yield from self._partitions.bring_online()

    def _remove(self, brokers: Sequence[int]) -> Program[None]:
        for broker in brokers:
            self._state.emit(CloseChannel(broker))
            self._state.context.remove_broker(broker)
        yield from self._on_failure(brokers)
        # Send StopReplica while the broker counts as gone: requests for its former life must not reach the new one.
        self._requests.flush()

    # --- suspects -----------------------------------------------------------------------------------------------------

    def broker_refuses(self, broker: int, broker_epoch: int) -> Program[None]:
        """Treat a broker whose port refuses connections as gone.

        Its process is dead, and ZooKeeper reports that only when its session expires. The controller does not wait for that. If
        the broker lives after all, the epochs of the new leaders fence it, and it counts as back once it answers.
        """
        context = self._state.context
        registration = context.brokers.get(broker)
        is_self = broker == self._state.settings.broker_id
        if registration is None or context.broker_epochs[broker] != broker_epoch or is_self:
            return
        _log.warning(
            "[controller] broker %d refuses connections and counts as gone until it answers: look whether its process runs",
            broker,
        )
        context.suspects[broker] = broker_epoch
        self._state.note("broker counts as gone", broker=broker)
        yield from self._remove((broker,))
        self._state.emit(OpenChannel(registration, broker_epoch, is_suspect=True))
        self._requests.ask_suspect(registration, broker_epoch)

    def metadata_answered(self, broker: int, error: ErrorCode) -> Program[None]:
        context = self._state.context
        if broker in context.suspects and error is ErrorCode.NONE:
            _log.warning("[controller] broker %d answers again and counts as alive; there is nothing to do", broker)
            del context.suspects[broker]
            self._state.note("broker answers again", broker=broker)
            yield from self.brokers_changed()
        elif broker not in context.suspects and error is not ErrorCode.NONE:
            _log.error(
                "[controller] broker %d refused UpdateMetadata with %s: its metadata is stale, see its log",
                broker,
                error.name,
            )

    def _forget_suspects(self, found: Mapping[int, tuple[BrokerRegistration, int]]) -> bool:
        """Forget the suspects whose session has ended or who registered again. Return whether there were any."""
        suspects = self._state.context.suspects
        over = [broker for broker, epoch in suspects.items() if broker not in found or found[broker][1] != epoch]
        for broker in over:
            del suspects[broker]
            self._state.emit(CloseChannel(broker))
        return bool(over)

    # --- what membership means ----------------------------------------------------------------------------------------

    def broker_modified(self, broker: int) -> Program[None]:
        """Send the broker's new endpoints or features to all brokers."""
        context = self._state.context
        [result] = yield from ask((Get(paths.broker_id(broker), watch=BrokerModified(broker)),))
        known = context.brokers.get(broker)
        if known is None or not result.ok or result.stat is None or result.stat.czxid != context.broker_epochs[broker]:
            return
        now = registration_of(broker, result)
        if now is None or (now.endpoints, now.features) == (known.endpoints, known.features):
            return
        context.brokers[broker] = now
        if now.endpoints != known.endpoints:
            self._state.emit(OpenChannel(now, context.broker_epochs[broker]))
        self._requests.add_metadata(context.brokers)

    def _on_startup(self, brokers: Sequence[int]) -> Program[None]:
        context = self._state.context
        for broker in brokers:
            context.offline_dirs.pop(broker, None)
        # The other brokers need only its address. The new broker needs all metadata, and before it learns which replicas it
        # hosts.
        self._requests.flush()
        self._requests.add_metadata(each for each in context.brokers if each not in brokers)
        self._requests.flush()
        self._requests.add_metadata(brokers, context.leadership)
        self._requests.flush()
        hosted = context.replicas_on(brokers)
        self._replicas.to_online(
            each
            for each in hosted
            if each.topic not in context.deletion_started
            and context.replica_state(each) in REPLICA_TRANSITIONS[ReplicaState.ONLINE]
        )
        yield from self._partitions.bring_online()
        yield from self._reassignments.resume(lambda _, assignment: any(each in brokers for each in assignment.target))
        yield from self._deletions.resume_for(each.topic for each in hosted)

    def _on_failure(self, brokers: Sequence[int]) -> Program[None]:
        context = self._state.context
        for broker in brokers:
            context.offline_dirs.pop(broker, None)
            context.shutting_down.discard(broker)
        yield from self._on_offline(context.replicas_on(brokers))

    def _on_offline(self, replicas: Sequence[Replica]) -> Program[None]:
        """Elect leaders for the partitions that these replicas led; after that take them out of their ISRs."""
        context = self._state.context
        self._partitions.to_offline(context.partitions_with_offline_leader())
        elected = yield from self._partitions.bring_online()
        # Clients wait for the new leaders: send these before writing anything else.
        self._requests.flush()
        if elected:
            yield from until_quiet()
        doomed = [each for each in replicas if context.is_dying(each.topic)]
        staying = [each for each in replicas if not context.is_dying(each.topic)]
        yield from self._replicas.to_offline(
            [each for each in staying if context.replica_state(each) in REPLICA_TRANSITIONS[ReplicaState.OFFLINE]]
        )
        yield from self._deletions.fail_replicas(doomed)
        if not staying and not any(isinstance(each, LeaderAndIsr) for each in elected.values()):
            # No request names a partition, so this is the only way in which the brokers learn that the broker is gone.
            self._requests.add_metadata(context.brokers)

    # --- log directories ----------------------------------------------------------------------------------------------

    def log_dir_events(self) -> Program[None]:
        """Send LeaderAndIsr for every replica of a broker that lost a directory: its answer says which ones it cannot serve."""
        context = self._state.context
        [listed] = yield from ask((GetChildren(paths.LOG_DIR_EVENT_NOTIFICATION, watch=LogDirEventsNotified()),))
        events = [f"{paths.LOG_DIR_EVENT_NOTIFICATION}/{name}" for name in listed.children]
        results = yield from ask(Get(path) for path in events)
        brokers: set[int] = set()
        for result in results:
            try:
                brokers.update((decode_log_dir_event(result.data or b""),) if result.ok else ())
            except Malformed as error:
                _log.error("[controller] %s", error)
        failing = sorted(brokers & set(context.brokers))
        if failing:
            _log.info("[controller] log directories failed on brokers %s", failing)
            self._replicas.to_online(
                each
                for each in context.replicas_on(failing)
                if context.replica_state(each) in REPLICA_TRANSITIONS[ReplicaState.ONLINE]
                and each.topic not in context.deletion_started
            )
        yield from write(Delete(path) for path in events)

    def leader_and_isr_answered(self, event: LeaderAndIsrAnswered) -> Program[None]:
        context = self._state.context
        if event.error is not ErrorCode.NONE:
            _log.error(
                "[controller] broker %d refused LeaderAndIsr with %s: see its log", event.broker_id, event.error.name
            )
            return
        if context.broker_epochs.get(event.broker_id) != event.broker_epoch:
            return
        before = context.offline_dirs.get(event.broker_id, set())
        now = set(before)
        for partition, error in event.partition_errors.items():
            if error is ErrorCode.KAFKA_STORAGE_ERROR:
                now.add(partition)
            elif error is ErrorCode.NONE:
                now.discard(partition)
        context.offline_dirs[event.broker_id] = now
        failed = sorted(now - before)
        if failed:
            _log.info("[controller] broker %d cannot serve %s", event.broker_id, ", ".join(map(str, failed)))
            some = [str(each) for each in failed[:NAMED_MAX]]
            self._state.note("replicas failed", broker=event.broker_id, count=len(failed), partitions=some)
            yield from self._on_offline([Replica(each, event.broker_id) for each in failed])

    # --- controlled shutdown ------------------------------------------------------------------------------------------

    def controlled_shutdown(self, event: ControlledShutdown) -> Program[tuple[TopicPartition, ...] | Failure]:
        """Move the leadership away from a broker that is about to stop. The reply names the partitions that it still leads."""
        context = self._state.context
        broker = event.broker_id
        if broker not in context.brokers:
            return Failure(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker} does not exist.")
        if event.broker_epoch != UNKNOWN_BROKER_EPOCH and event.broker_epoch < context.broker_epochs[broker]:
            return Failure(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Received controlled shutdown request from an old broker epoch {event.broker_epoch} for broker "
                f"{broker}. Current broker epoch is {context.broker_epochs[broker]}.",
            )
        _log.info("[controller] broker %d is shutting down", broker)
        context.shutting_down.add(broker)
        self._state.note("broker is shutting down", broker=broker)
        led: list[Replica] = []
        followed: list[Replica] = []
        for replica in context.replicas_on((broker,)):
            state = context.leadership.get(replica.partition)
            alone = len(context.assignment(replica.partition).replicas) == 1
            if state is None or alone or context.is_dying(replica.topic):
                continue
            (led if state.leader == broker else followed).append(replica)
        for few in _few_at_a_time(led):
            yield from self._partitions.to_online([each.partition for each in few], Strategy.CONTROLLED_SHUTDOWN)
            self._requests.flush()
            yield from until_quiet()
        for few in _few_at_a_time(followed):
            yield from self._replicas.to_offline(
                [each for each in few if context.replica_state(each) in REPLICA_TRANSITIONS[ReplicaState.OFFLINE]]
            )
            self._requests.flush()
            yield from until_quiet()
        # Leave out partitions that no other broker can take over: they have one replica, or their other brokers are stopping
        # too.
        staying = context.live_ids()
        return tuple(
            partition
            for partition in context.partitions_led_by(broker)
            if not staying.isdisjoint(context.assignment(partition).replicas)
        )


def _few_at_a_time(replicas: Sequence[Replica]) -> Iterator[Sequence[Replica]]:
    """Yield the replicas in steps. A stopping broker can wait; producers to its partitions wait for one step only."""
    for begin in range(0, len(replicas), SHUTDOWN_STEP):
        yield replicas[begin : begin + SHUTDOWN_STEP]
