"""Maps each event to the program that handles it, and holds the programs that need no module of their own. Pure."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.broker_machine import BrokerMachine
from barnabas.broker.controller.context import Replica
from barnabas.broker.controller.deletion_machine import DeletionMachine
from barnabas.broker.controller.effects import (
    Reply,
    StartTimer,
)
from barnabas.broker.controller.elections import Strategy, can_lead
from barnabas.broker.controller.events import (
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ApiEvent,
    BrokerModified,
    BrokerRefuses,
    BrokersChanged,
    ControlledShutdown,
    DeletionsChanged,
    ElectionType,
    ElectLeaders,
    Event,
    Failure,
    IsrChangesNotified,
    LeaderAndIsrAnswered,
    ListReassignments,
    LogDirEventsNotified,
    PreferredElectionRequested,
    ReassignmentsRequested,
    RenewLeaderEpoch,
    SettingsChanged,
    StopReplicaAnswered,
    Timer,
    TimerFired,
    TopicModified,
    TopicsChanged,
    UncleanElectionEnabled,
    UpdateMetadataAnswered,
)
from barnabas.broker.controller.isr_machine import IsrMachine
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine
from barnabas.broker.controller.program import ControllerState, Program, ask, read_leadership, write
from barnabas.broker.controller.reassignment_machine import ReassignmentMachine
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.takeover import Takeover
from barnabas.broker.controller.topic_machine import TopicMachine
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Delete, Get, GetChildren, SetData, ZkCode
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, ProducerIdBlock, ReplicaAssignment, decode_isr_change

R = TypeVar("R")

_log = logging.getLogger(__name__)


class EventHandlers:
    def __init__(
        self,
        state: ControllerState,
        requests: RequestBatch,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: DeletionMachine,
        reassignments: ReassignmentMachine,
        topics: TopicMachine,
        brokers: BrokerMachine,
        isr: IsrMachine,
        takeover: Takeover,
    ) -> None:
        self._state = state
        self._requests = requests
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions
        self._reassignments = reassignments
        self._topics = topics
        self._brokers = brokers
        self._isr = isr
        self._takeover = takeover
        #: Whether the machine has replied to the current API event.
        self.has_replied = False

    def program(self, event: Event) -> Program[None]:
        if isinstance(event, SettingsChanged):
            self._state.settings = event.settings
            return _nothing()
        if not self._state.is_active:
            # The machine answers API events with NOT_CONTROLLER; other events concern only the controller.
            return _nothing()
        if isinstance(event, ApiEvent):
            return self._api(event)
        match event:
            case BrokersChanged():
                return self._brokers.brokers_changed()
            case BrokerModified(broker):
                return self._brokers.broker_modified(broker)
            case TopicsChanged():
                return self._topics.topics_changed()
            case TopicModified(topic):
                return self._topics.topic_modified(topic)
            case DeletionsChanged():
                return self._topics.deletions_changed()
            case IsrChangesNotified():
                return self._isr_changes()
            case LogDirEventsNotified():
                return self._brokers.log_dir_events()
            case ReassignmentsRequested():
                return self._reassign_from_znode()
            case PreferredElectionRequested():
                return self._takeover.elect_preferred_from_znode()
            case LeaderAndIsrAnswered():
                return self._brokers.leader_and_isr_answered(event)
            case StopReplicaAnswered():
                return self._replicas_deleted(event)
            case UpdateMetadataAnswered(broker, error):
                return self._brokers.metadata_answered(broker, error)
            case BrokerRefuses(broker, broker_epoch):
                return self._brokers.broker_refuses(broker, broker_epoch)
            case TimerFired(Timer.AUTO_LEADER_REBALANCE):
                return self._rebalance()
            case UncleanElectionEnabled(topic):
                return self._elect_unclean(topic)
        raise TypeError(f"no handler for {event}")

    def _api(self, event: ApiEvent[Any]) -> Program[None]:
        match event:
            case AlterPartition():
                reply, granted = yield from self._isr.alter(event)
                self._reply(event, reply)
                yield from self._reassignments.complete_if_in_sync(granted)
            case ElectLeaders():
                self._reply(event, (yield from self._elect_leaders(event)))
            case RenewLeaderEpoch():
                self._reply(event, (yield from self._renew_leader_epoch(event)))
            case AlterReassignments(targets):
                self._reply(event, (yield from self._reassignments.alter(targets)))
            case ListReassignments():
                self._reply(event, self._list_reassignments(event))
            case ControlledShutdown():
                self._reply(event, (yield from self._brokers.controlled_shutdown(event)))
            case AllocateProducerIds():
                self._reply(event, (yield from self._allocate_producer_ids(event)))

    def _reply(self, event: ApiEvent[R], value: R | Failure) -> None:
        """Reply after sending the requests that follow from the decision: a client with a reply knows that they are on their
        way."""
        self._requests.flush()
        self._state.emit(Reply(event, value))
        self.has_replied = True

    # --- elections ----------------------------------------------------------------------------------------------------

    def _elect_leaders(self, event: ElectLeaders) -> Program[Mapping[TopicPartition, int | Failure]]:
        context = self._state.context
        wanted = tuple(context.partitions()) if event.partitions is None else event.partitions
        results: dict[TopicPartition, int | Failure] = {}
        electable: list[TopicPartition] = []
        for partition in dict.fromkeys(wanted):
            failure = self._why_not_elect(partition, event.election_type)
            if failure is None:
                electable.append(partition)
            else:
                results[partition] = failure
        preferred = event.election_type is ElectionType.PREFERRED
        strategy = Strategy.PREFERRED if preferred else Strategy.OFFLINE_UNCLEAN
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        for partition, result in (yield from self._partitions.to_online(electable, strategy)).items():
            results[partition] = result.leader if isinstance(result, LeaderAndIsr) else Failure(code, result.message)
        return {partition: results[partition] for partition in dict.fromkeys(wanted)}

    def _renew_leader_epoch(self, event: RenewLeaderEpoch) -> Program[Failure | None]:
        context, partition = self._state.context, event.partition
        state = context.leadership.get(partition)
        if state is None or context.is_queued_for_deletion(partition.topic):
            return Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if state.leader != event.leader or state.leader_epoch < event.leader_epoch:
            return Failure(ErrorCode.FENCED_LEADER_EPOCH, f"{state.leader} leads")
        if state.leader_epoch == event.leader_epoch:
            [result] = (yield from self._partitions.to_online([partition], Strategy.RENEWAL)).values()
            if isinstance(result, Failure):
                return result
        return None

    def _why_not_elect(self, partition: TopicPartition, election_type: ElectionType) -> Failure | None:
        context = self._state.context
        replicas = context.assignment(partition).replicas
        if not replicas:
            return Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        if context.is_queued_for_deletion(partition.topic):
            return Failure(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        state = context.leadership.get(partition)
        if state is None:
            return None
        if election_type is ElectionType.PREFERRED:
            needed = state.leader != replicas[0]
        else:
            needed = not context.is_live(state.leader)
        return None if needed else Failure(ErrorCode.ELECTION_NOT_NEEDED)

    def _elect_unclean(self, topic: str | None) -> Program[None]:
        yield from self._partitions.bring_online(topic)

    def _rebalance(self) -> Program[None]:
        """Move leadership back to preferred replicas, for brokers where too many of them do not lead."""
        context = self._state.context
        settings = self._state.settings
        by_preferred: dict[int, list[TopicPartition]] = {}
        for partition in context.partitions():
            replicas = context.assignment(partition).replicas
            if replicas and not context.is_queued_for_deletion(partition.topic):
                by_preferred.setdefault(replicas[0], []).append(partition)
        misplaced: list[TopicPartition] = []
        for broker, partitions in sorted(by_preferred.items()):
            elsewhere = [
                each for each in partitions if each in context.leadership and context.leadership[each].leader != broker
            ]
            if len(elsewhere) * 100 > settings.leader_imbalance_per_broker_percentage * len(partitions):
                misplaced += [each for each in elsewhere if can_lead(context, each, context.leadership[each], broker)]
        yield from self._partitions.to_online(misplaced, Strategy.PREFERRED)
        if settings.auto_leader_rebalance_enable:
            interval_ms = settings.leader_imbalance_check_interval_seconds * 1000
            self._state.emit(StartTimer(Timer.AUTO_LEADER_REBALANCE, interval_ms))

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _list_reassignments(self, event: ListReassignments) -> Mapping[TopicPartition, ReplicaAssignment]:
        context = self._state.context
        wanted: Iterable[TopicPartition] = context.reassigning if event.partitions is None else event.partitions
        assignments = {partition: context.assignment(partition) for partition in wanted}
        return {partition: state for partition, state in assignments.items() if state.is_being_reassigned}

    def _reassign_from_znode(self) -> Program[None]:
        yield from self._reassignments.from_znode()

    def _replicas_deleted(self, event: StopReplicaAnswered) -> Program[None]:
        context = self._state.context
        if context.broker_epochs.get(event.broker_id) != event.broker_epoch:
            return  # the broker got the request again, or gets it when it returns
        failed: list[Replica] = []
        done: list[Replica] = []
        for partition, error in event.partition_errors.items():
            if partition.topic in context.deletion_started:
                bad = event.error is not ErrorCode.NONE or error is not ErrorCode.NONE
                (failed if bad else done).append(Replica(partition, event.broker_id))
        if failed:
            yield from self._deletions.fail_replicas(failed)
        if done:
            yield from self._deletions.complete_replicas(done)

    def _isr_changes(self) -> Program[None]:
        """Read ISRs that brokers of old releases wrote themselves; such a broker leaves a notification."""
        context = self._state.context
        [listed] = yield from ask((GetChildren(paths.ISR_CHANGE_NOTIFICATION, watch=IsrChangesNotified()),))
        notes = [f"{paths.ISR_CHANGE_NOTIFICATION}/{name}" for name in listed.children]
        results = yield from ask(Get(path) for path in notes)
        changed: dict[TopicPartition, None] = {}
        for result in results:
            try:
                changed.update(dict.fromkeys(decode_isr_change(result.data or b"") if result.ok else ()))
            except Malformed as error:
                _log.error("[controller] %s", error)
        known = [each for each in changed if context.assignment(each).replicas]
        context.leadership.update((yield from read_leadership(known)))
        self._requests.add_metadata(context.brokers, known)
        yield from self._reassignments.complete_if_in_sync(known)
        yield from write(Delete(path) for path in notes)

    def _allocate_producer_ids(self, event: AllocateProducerIds) -> Program[ProducerIdBlock | Failure]:
        epoch = self._state.context.broker_epochs.get(event.broker_id)
        if epoch is None:
            return Failure(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if epoch != event.broker_epoch:
            return Failure(ErrorCode.STALE_BROKER_EPOCH)
        while True:
            [found] = yield from ask((Get(paths.LATEST_PRODUCER_ID_BLOCK),))
            try:
                block = (
                    ProducerIdBlock.decode(found.data).next_for(event.broker_id)
                    if found.data
                    else ProducerIdBlock.first_for(event.broker_id)
                )
            except (OverflowError, Malformed) as error:
                # Do not start again at 0: ids that are allocated twice would mix up two producers.
                return Failure(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            if found.stat is None:
                operation: Create | SetData = Create(paths.LATEST_PRODUCER_ID_BLOCK, block.encode())
            else:
                operation = SetData(paths.LATEST_PRODUCER_ID_BLOCK, block.encode(), found.stat.version)
            [written] = yield from write((operation,))
            if written.ok:
                return block
            if written.code not in (ZkCode.BAD_VERSION, ZkCode.NODE_EXISTS):
                return Failure(ErrorCode.UNKNOWN_SERVER_ERROR, f"cannot allocate producer ids: {written.code.value}")


def _nothing() -> Program[None]:
    yield from ()
