"""What the controller's machine wants done. Pure values, translated to the wire by the driver.

Effects are to be carried out in order. At most one `ZkBatch` is outstanding: the machine takes further events while it
waits, and works on them after the answer, so that what it decides is serial, as in Kafka.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.events import Timer
from barnabas.broker.zookeeper_client.operations import Guard, Operation
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, LeaderAndIsr, ProducerIdBlock, ReplicaAssignment

# --- ZooKeeper --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ZkBatch:
    """Carry these out in order, pipelined, and answer with `ZkAnswered(batch_id, …)`.

    They are independent but for order (a parent is made before its child). With a guard they are all writes, each a
    transaction with a check of /controller_epoch; if that check fails, answer `moved=True` and the results do not matter. An
    operation that failed because the connection was lost is repeated on the next one, for as long as the session lives.
    """

    batch_id: int
    operations: tuple[Operation, ...]
    guard: Guard | None = None
    #: It is better carried out after brokers have answered what was sent to them, if they do so soon.
    when_quiet: bool = False


# --- requests to brokers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAndIsrState:
    """One partition of a LeaderAndIsr request."""

    leadership: LeaderAndIsr
    assignment: ReplicaAssignment
    #: The replica may be made in any log directory; otherwise one that is missing is a fault.
    is_new: bool


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    broker_id: int
    broker_epoch: int
    controller_epoch: int
    partitions: Mapping[TopicPartition, LeaderAndIsrState]
    topic_ids: Mapping[str, TopicId]
    #: Brokers that lead one of the partitions, so that the receiver can connect before its metadata has them.
    live_leaders: tuple[BrokerRegistration, ...]


@dataclass(frozen=True, slots=True)
class MetadataState:
    """One partition of an UpdateMetadata request."""

    controller_epoch: int
    #: -2 while the topic is being deleted: forget it.
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """Goes to each of `brokers`, which differ only in their epoch."""

    #: Broker id -> broker epoch.
    brokers: Mapping[int, int]
    controller_epoch: int
    partitions: Mapping[TopicPartition, MetadataState]
    topic_ids: Mapping[str, TopicId]
    live_brokers: tuple[BrokerRegistration, ...]


@dataclass(frozen=True, slots=True)
class StopReplicaState:
    #: -2 while the topic is being deleted: overrides any other epoch.
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    broker_id: int
    broker_epoch: int
    controller_epoch: int
    partitions: Mapping[TopicPartition, StopReplicaState]


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """From now on requests may go to this broker. An open channel to an older incarnation is closed first; one to the same goes
    on at the new address, with all that waits in it."""

    broker: BrokerRegistration
    broker_epoch: int
    #: It counts as gone until it answers: nothing waits for that.
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class WatchController:
    """Keep a connection to the broker that is controller, to learn of its end. None: there is no controller to watch."""

    broker: BrokerRegistration | None


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """Forget what has not been sent to this broker."""

    broker_id: int


# --- the controller ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Elected:
    """This broker is controller; the cluster has been read, and what needed a decision has one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This broker is not controller any more: close all channels, cancel all timers."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    timer: Timer
    delay_ms: int


# --- replies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    code: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitionReply:
    #: Of the request as a whole.
    error: ErrorCode = ErrorCode.NONE
    #: Same keys as the request.
    partitions: Mapping[tuple[TopicId | str, int], LeaderAndIsr | ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ElectLeadersReply:
    #: The new leader, or why there is none.
    partitions: Mapping[TopicPartition, int | Failure]


@dataclass(frozen=True, slots=True)
class AlterReassignmentsReply:
    #: None: accepted.
    partitions: Mapping[TopicPartition, Failure | None]


@dataclass(frozen=True, slots=True)
class ListReassignmentsReply:
    partitions: Mapping[TopicPartition, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class ControlledShutdownReply:
    #: Partitions that the broker still leads.
    remaining: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsReply:
    block: ProducerIdBlock


ReplyValue = (
    AlterPartitionReply
    | ElectLeadersReply
    | AlterReassignmentsReply
    | ListReassignmentsReply
    | ControlledShutdownReply
    | AllocateProducerIdsReply
    | Failure
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the API event that carried `token`. A `Failure` refuses the request as a whole."""

    token: Hashable
    value: ReplyValue


Effect = (
    ZkBatch
    | SendLeaderAndIsr
    | SendUpdateMetadata
    | SendStopReplica
    | OpenChannel
    | CloseChannel
    | WatchController
    | Elected
    | Resigned
    | StartTimer
    | Reply
)
