"""What the controller's machine is told. Pure values.

Three sources: ZooKeeper (watches, answers, the session), brokers (answers to the controller's requests), and API
handlers. Events of the last kind carry a `token`, and the machine answers each with exactly one `Reply`.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client.operations import Result
from barnabas.broker.zookeeper_client.znodes import LeaderRecoveryState

# --- the session ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Startup:
    """The broker is registered: watch /controller, and race for it if it is free."""


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """Ephemerals are gone, /controller among them. What was under way is dropped; its callers get NOT_CONTROLLER."""


@dataclass(frozen=True, slots=True)
class SessionRenewed:
    """A new session exists and the broker is registered again."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Something is wrong here: resign, so that another broker becomes controller and starts afresh."""

    reason: str


@dataclass(frozen=True, slots=True)
class ZkAnswered:
    """The answers to one `ZkBatch`, in the order of its operations."""

    batch_id: int
    results: tuple[Result, ...]
    #: True when /controller_epoch no longer had the version of the batch's guard: another broker is controller.
    moved: bool = False


@dataclass(frozen=True, slots=True)
class ZkLost:
    """The session ended, or was gone already, before this `ZkBatch` was answered."""

    batch_id: int


# --- watches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """/controller was made, changed or deleted."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """/brokers/ids has a child more or less."""


@dataclass(frozen=True, slots=True)
class BrokerModified:
    """/brokers/ids/N has new data: endpoints or features."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """/brokers/topics has a child more or less."""


@dataclass(frozen=True, slots=True)
class TopicModified:
    """/brokers/topics/T has new data: more partitions, perhaps."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeletionsChanged:
    """/admin/delete_topics has a child more or less."""


@dataclass(frozen=True, slots=True)
class IsrChangesNotified:
    """/isr_change_notification has a child more: a broker of an old release changed an ISR by itself."""


@dataclass(frozen=True, slots=True)
class LogDirEventsNotified:
    """/log_dir_event_notification has a child more: a broker lost a log directory."""


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    """/admin/reassign_partitions was made (the way of old tools)."""


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """/admin/preferred_replica_election was made (the way of old tools)."""


# --- brokers' answers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered:
    broker_id: int
    #: Of the request. An answer may be read after the broker has returned with another: it says nothing of the new life.
    broker_epoch: int
    error: ErrorCode
    partition_errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class StopReplicaAnswered:
    """`partition_errors` holds only the partitions that the request asked to delete."""

    broker_id: int
    #: Of the request.
    broker_epoch: int
    error: ErrorCode
    partition_errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class UpdateMetadataAnswered:
    broker_id: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerRefuses:
    """Nobody listens at the port of a broker that is registered: its process is dead, most likely."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControllerRefuses:
    """The same of the broker that is controller, as another broker sees it."""

    controller_id: int


# --- timers and settings ----------------------------------------------------------------------------------------------


class Timer(Enum):
    AUTO_LEADER_REBALANCE = "auto-leader-rebalance"


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: Timer


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    settings: ControllerSettings


@dataclass(frozen=True, slots=True)
class UncleanElectionEnabled:
    """`unclean.leader.election.enable` became true: for one topic, or by default (None)."""

    topic: str | None = None


# --- API handlers -----------------------------------------------------------------------------------------------------


class ElectionType(Enum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ProposedIsr:
    """A leader's wish for its partition (one partition of AlterPartition)."""

    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    recovery: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    #: AlterPartition v3: the broker epochs that the leader knew, -1 where it knew none. Same order as `isr`.
    isr_epochs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """Reply: `AlterPartitionReply`."""

    token: Hashable
    broker_id: int
    broker_epoch: int
    #: By topic id (v2 and later) or name (v0, v1).
    partitions: Mapping[tuple[TopicId | str, int], ProposedIsr]
    version: int = 3


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """Reply: `ElectLeadersReply`. `partitions` None means all."""

    token: Hashable
    partitions: tuple[TopicPartition, ...] | None
    election_type: ElectionType


@dataclass(frozen=True, slots=True)
class RenewLeaderEpoch:
    """Reply: `ElectLeadersReply`. A leader that has cut its log, in this epoch, needs a higher one before it goes on."""

    token: Hashable
    partition: TopicPartition
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AlterReassignments:
    """Reply: `AlterReassignmentsReply`. A target of None cancels."""

    token: Hashable
    targets: Mapping[TopicPartition, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class ListReassignments:
    """Reply: `ListReassignmentsReply`. `partitions` None means all that are under way."""

    token: Hashable
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """Reply: `ControlledShutdownReply`. `broker_epoch` -1: a broker that does not know its epoch."""

    token: Hashable
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Reply: `AllocateProducerIdsReply`."""

    token: Hashable
    broker_id: int
    broker_epoch: int


SessionEvent = Startup | SessionExpired | SessionRenewed | Abandon | ZkAnswered | ZkLost
WatchEvent = (
    ControllerChanged
    | BrokersChanged
    | BrokerModified
    | TopicsChanged
    | TopicModified
    | DeletionsChanged
    | IsrChangesNotified
    | LogDirEventsNotified
    | ReassignmentsRequested
    | PreferredElectionRequested
)
AnswerEvent = LeaderAndIsrAnswered | StopReplicaAnswered | UpdateMetadataAnswered
ApiEvent = (
    AlterPartition
    | ElectLeaders
    | RenewLeaderEpoch
    | AlterReassignments
    | ListReassignments
    | ControlledShutdown
    | AllocateProducerIds
)
Event = (
    SessionEvent
    | WatchEvent
    | AnswerEvent
    | BrokerRefuses
    | ControllerRefuses
    | ApiEvent
    | TimerFired
    | SettingsChanged
    | UncleanElectionEnabled
)
