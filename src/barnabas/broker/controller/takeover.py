"""The first work of a new controller: it reads the cluster and makes the decisions that are pending. Pure."""

import logging

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.broker_machine import BrokerMachine
from barnabas.broker.controller.deletion_machine import DeletionMachine
from barnabas.broker.controller.effects import Elected, OpenChannel, StartTimer
from barnabas.broker.controller.elections import Strategy
from barnabas.broker.controller.events import (
    DeletionsChanged,
    IsrChangesNotified,
    LogDirEventsNotified,
    PreferredElectionRequested,
    Timer,
    TopicsChanged,
)
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine, write_leadership
from barnabas.broker.controller.program import ControllerState, Program, ask, leadership_of, read_leadership, write
from barnabas.broker.controller.reassignment_machine import ReassignmentMachine
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import ReplicaState
from barnabas.broker.controller.topic_machine import TopicMachine
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Delete, Exists, Get, GetChildren, SetData
from barnabas.broker.zookeeper_client.znodes import FinalizedFeatures, LeaderAndIsr, decode_preferred_replica_election

_log = logging.getLogger(__name__)

#: Brokers may still be starting after a take-over, so the first check of the balance comes soon, but not at once.
FIRST_REBALANCE_MS = 5_000


class Takeover:
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
    ) -> None:
        self._state = state
        self._requests = requests
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions
        self._reassignments = reassignments
        self._topics = topics
        self._brokers = brokers

    def run(self) -> Program[None]:
        context = self._state.context
        yield from self._ensure_features()
        # Set watches before reading, so that no change in between is missed.
        topics, deletions = yield from self._watch_and_clean()
        yield from self._read_cluster(topics)
        yield from self._deletions.initialize(deletions)
        # Brokers must know each other's addresses before they learn whom to follow.
        self._requests.add_metadata(context.brokers)
        self._requests.flush()
        yield from self._start_partitions()
        yield from self._go_on()
        if self._state.settings.auto_leader_rebalance_enable:
            self._state.emit(StartTimer(Timer.AUTO_LEADER_REBALANCE, FIRST_REBALANCE_MS))
        self._requests.flush()
        self._state.emit(Elected(context.epoch))
        self._state.note(
            "took over as controller",
            brokers=sorted(context.brokers),
            topics=len(context.topics),
            partitions=len(context.leadership),
        )
        _log.info(
            "[controller] took over in epoch %d with %d brokers, %d topics, %d partitions",
            context.epoch,
            len(context.brokers),
            len(context.topics),
            len(context.leadership),
        )

    def _ensure_features(self) -> Program[None]:
        """Create /feature, which says that feature versions are in use and that no feature is finalized."""
        [found] = yield from ask((Get(paths.FEATURE),))
        if not found.ok:
            yield from write((Create(paths.FEATURE, FinalizedFeatures().encode()),))
            return
        features: FinalizedFeatures | None = None
        try:
            features = FinalizedFeatures.decode(found.data or b"")
        except Malformed as error:
            _log.error("%s", error)
        wanted = FinalizedFeatures(features.features if features is not None and features.enabled else {})
        if features != wanted:
            yield from write((SetData(paths.FEATURE, wanted.encode()),))

    def _watch_and_clean(self) -> Program[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the topics, and the topics to delete. Remove notifications that are older than this reading."""
        topics, deletions, log_dirs, isrs, _ = yield from ask(
            (
                GetChildren(paths.BROKER_TOPICS, watch=TopicsChanged()),
                GetChildren(paths.DELETE_TOPICS, watch=DeletionsChanged()),
                GetChildren(paths.LOG_DIR_EVENT_NOTIFICATION, watch=LogDirEventsNotified()),
                GetChildren(paths.ISR_CHANGE_NOTIFICATION, watch=IsrChangesNotified()),
                Exists(paths.PREFERRED_REPLICA_ELECTION, watch=PreferredElectionRequested()),
            )
        )
        yield from write(Delete(f"{paths.LOG_DIR_EVENT_NOTIFICATION}/{name}") for name in log_dirs.children)
        yield from write(Delete(f"{paths.ISR_CHANGE_NOTIFICATION}/{name}") for name in isrs.children)
        return topics.children, deletions.children

    def _read_cluster(self, topics: tuple[str, ...]) -> Program[None]:
        context = self._state.context
        brokers = yield from self._brokers.load()
        for registration, epoch in brokers.values():
            context.add_broker(registration, epoch)
            self._state.emit(OpenChannel(registration, epoch))
        partitions = yield from self._topics.load(topics)
        for partition in partitions:
            if context.assignment(partition).is_being_reassigned:
                context.reassigning[partition] = None
        yield from self._read_states(partitions)

    def _read_states(self, partitions: list[TopicPartition]) -> Program[None]:
        context = self._state.context
        results = yield from ask(Get(paths.partition_state(each)) for each in partitions)
        reborn: dict[TopicPartition, frozenset[int]] = {}
        for partition, result in zip(partitions, results, strict=True):
            state = leadership_of(partition, result)
            if state is None or result.stat is None:
                continue
            context.leadership[partition] = state
            written = result.stat.mzxid
            younger = frozenset(each for each in state.isr if context.born(each) > written)
            if written and younger:
                reborn[partition] = younger
        yield from self._distrust(reborn)

    def _distrust(self, reborn: dict[TopicPartition, frozenset[int]]) -> Program[None]:
        """Take members that started after the ISR was written out of it: they were away, and no controller noticed.

        After a power cut they may have lost records that they acknowledged. So they leave the ISR if a member stays that was
        not away. If there is no such member, the leader at least begins a new epoch: then the records that it writes in place
        of lost ones can be distinguished from these. Kafka keeps such members in the ISR.
        """
        context = self._state.context
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        for partition, distrusted in reborn.items():
            state = context.leadership[partition]
            staying = tuple(each for each in state.isr if each not in distrusted)
            able = [
                each
                for each in context.assignment(partition).replicas
                if each in staying and context.is_online(each, partition)
            ]
            if able:
                changed = state.with_leader(state.leader if state.leader in able else able[0], staying)
            elif state.leader in distrusted:
                changed = state.with_leader(state.leader)
            else:
                continue
            if state.controller_epoch <= context.epoch:
                wanted[partition] = changed.by(context.epoch)
        written = yield from write_leadership(wanted)
        stale = [each for each, state in written.items() if not isinstance(state, LeaderAndIsr)]
        context.leadership.update({each: state for each, state in written.items() if isinstance(state, LeaderAndIsr)})
        context.leadership.update((yield from read_leadership(stale)))

    def _start_partitions(self) -> Program[None]:
        """Send every live replica its role, elect missing leaders, and take dead replicas out of their ISRs."""
        context = self._state.context
        self._replicas.initialize()
        self._partitions.initialize()
        replicas = context.replicas_of(context.partitions())
        # Kafka shrinks the ISRs and sends to the replicas first. Clients wait for leaders, so leaders come first here, as when
        # a broker fails.
        yield from self._partitions.bring_online()
        self._requests.flush()
        self._replicas.to_online(each for each in replicas if context.replica_state(each) is ReplicaState.ONLINE)
        self._requests.flush()
        yield from self._replicas.to_offline(
            [each for each in replicas if context.replica_state(each) is ReplicaState.DELETION_INELIGIBLE]
        )
        self._requests.flush()

    def _go_on(self) -> Program[None]:
        """Continue the work that the former controller left unfinished."""
        begun = yield from self._reassignments.from_znode()
        yield from self._reassignments.resume(lambda partition, _: partition not in begun)
        yield from self._deletions.resume()
        yield from self.elect_preferred_from_znode()

    def elect_preferred_from_znode(self) -> Program[None]:
        """Handle /admin/preferred_replica_election, which old tools write."""
        context = self._state.context
        yield from ask((Exists(paths.PREFERRED_REPLICA_ELECTION, watch=PreferredElectionRequested()),))
        [found] = yield from ask((Get(paths.PREFERRED_REPLICA_ELECTION),))
        if not found.ok:
            return
        wanted: list[TopicPartition] = []
        try:
            wanted = decode_preferred_replica_election(found.data or b"")
        except Malformed as error:
            _log.error("%s", error)
        electable = [
            each
            for each in dict.fromkeys(wanted)
            if each in context.leadership
            and not context.is_queued_for_deletion(each.topic)
            and context.assignment(each).replicas[:1] != (context.leadership[each].leader,)
        ]
        yield from self._partitions.to_online(electable, Strategy.PREFERRED)
        yield from write((Delete(paths.PREFERRED_REPLICA_ELECTION),))
        # Set the watch that reports the next creation.
        yield from ask((Exists(paths.PREFERRED_REPLICA_ELECTION, watch=PreferredElectionRequested()),))
