"""The events that the controller's machine handles. Pure values.

They have three sources: ZooKeeper (watches, answers, the session), brokers (answers to the controller's requests), and API
handlers. The machine answers each event of an API handler with exactly one `Reply`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client.operations import Result
from barnabas.broker.zookeeper_client.znodes import (
    LeaderAndIsr,
    LeaderRecoveryState,
    ProducerIdBlock,
    ReplicaAssignment,
)

R = TypeVar("R")

# --- the session ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Startup:
    """The broker is registered: watch /controller, and race for it if it does not exist."""


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """ZooKeeper removed the ephemeral znodes, such as /controller. The machine drops its work and answers NOT_CONTROLLER."""


@dataclass(frozen=True, slots=True)
class SessionRenewed:
    """A new session exists and the broker is registered again."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The machine failed: resign, so that another broker becomes controller and reads the state afresh."""

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
    """/controller was created, changed or deleted."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """/brokers/ids gained or lost a child."""


@dataclass(frozen=True, slots=True)
class BrokerModified:
    """/brokers/ids/N has new data: endpoints or features."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """/brokers/topics gained or lost a child."""


@dataclass(frozen=True, slots=True)
class TopicModified:
    """/brokers/topics/T has new data: perhaps more partitions."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeletionsChanged:
    """/admin/delete_topics gained or lost a child."""


@dataclass(frozen=True, slots=True)
class IsrChangesNotified:
    """/isr_change_notification gained a child: a broker of an old release wrote an ISR itself."""


@dataclass(frozen=True, slots=True)
class LogDirEventsNotified:
    """/log_dir_event_notification gained a child: a broker lost a log directory."""


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    """/admin/reassign_partitions was created, as old tools do it."""


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """/admin/preferred_replica_election was created, as old tools do it."""


# --- brokers' answers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered:
    broker_id: int
    #: Broker epoch in the request. If the broker has returned with another epoch, the answer says nothing about its new life.
    broker_epoch: int
    error: ErrorCode
    partition_errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class StopReplicaAnswered:
    """`partition_errors` holds only the partitions that the request asked to delete."""

    broker_id: int
    #: Broker epoch in the request.
    broker_epoch: int
    error: ErrorCode
    partition_errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class UpdateMetadataAnswered:
    broker_id: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerRefuses:
    """No process listens at the port of a registered broker: most likely its process is dead."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControllerRefuses:
    """The controller's port refuses connections, as another broker sees it."""

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


@dataclass(frozen=True, slots=True)
class Failure:
    code: ErrorCode
    message: str | None = None


class ApiEvent(Generic[R]):
    """A request of an API handler. The machine replies with an R, or with a `Failure` that refuses the request as a whole.

    A request equals only itself, because its reply names it.
    """

    __slots__ = ()


class ElectionType(Enum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ProposedIsr:
    """The ISR that a leader asks for (one partition of AlterPartition)."""

    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    recovery: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    #: AlterPartition v3: the broker epochs that the leader knew, -1 for an unknown one. Same order as `isr`.
    isr_epochs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitionReply:
    #: Error of the request as a whole.
    error: ErrorCode = ErrorCode.NONE
    #: Same keys as the request.
    partitions: Mapping[tuple[TopicId | str, int], LeaderAndIsr | ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class AlterPartition(ApiEvent[AlterPartitionReply]):
    broker_id: int
    broker_epoch: int
    #: Proposed ISRs by topic id (v2 and later) or name (v0, v1), and partition.
    partitions: Mapping[tuple[TopicId | str, int], ProposedIsr]
    version: int = 3


@dataclass(frozen=True, slots=True, eq=False)
class ElectLeaders(ApiEvent[Mapping[TopicPartition, int | Failure]]):
    """Reply: the new leader of each partition, or the reason why there is none. `partitions` None means all."""

    partitions: tuple[TopicPartition, ...] | None
    election_type: ElectionType


@dataclass(frozen=True, slots=True, eq=False)
class RenewLeaderEpoch(ApiEvent[None]):
    """A leader that truncated its log in this epoch needs a higher epoch before it goes on.

    Reply: there is a higher epoch, and the controller sends it to the leader.
    """

    partition: TopicPartition
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class AlterReassignments(ApiEvent[Mapping[TopicPartition, Failure | None]]):
    """Begin, replace or cancel reassignments: a target of None cancels. Reply: None for each that is accepted."""

    targets: Mapping[TopicPartition, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, eq=False)
class ListReassignments(ApiEvent[Mapping[TopicPartition, ReplicaAssignment]]):
    """`partitions` None means all reassignments in progress."""

    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdown(ApiEvent[tuple[TopicPartition, ...]]):
    """Reply: the partitions that the broker still leads and that another broker could take over."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class AllocateProducerIds(ApiEvent[ProducerIdBlock]):
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
Event = (
    SessionEvent
    | WatchEvent
    | AnswerEvent
    | BrokerRefuses
    | ControllerRefuses
    | ApiEvent[Any]
    | TimerFired
    | SettingsChanged
    | UncleanElectionEnabled
)
