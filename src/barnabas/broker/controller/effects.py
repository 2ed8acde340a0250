"""The actions that the controller's machine asks for. Pure values; the driver translates them to the wire.

The driver carries effects out in order. At most one `ZkBatch` is outstanding: meanwhile the machine queues further events, and
works on them after the answer, so that its decisions are serial, as in Kafka.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.events import ApiEvent, Timer
from barnabas.broker.zookeeper_client.operations import Guard, Operation
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, LeaderAndIsr, ReplicaAssignment

# --- ZooKeeper --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ZkBatch:
    """Carry out these operations in order, pipelined, and answer with `ZkAnswered(batch_id, …)`.

    The operations depend on each other only by their order (a parent is created before its child). With a guard they are all
    writes, each in a transaction that checks /controller_epoch; if that check fails, answer `moved=True`, and the results do
    not matter. An operation that fails because the connection was lost is repeated on the next one, as long as the session
    lives.
    """

    batch_id: int
    operations: tuple[Operation, ...]
    guard: Guard | None = None
    #: Wait, but not long, until brokers have answered the requests that were sent to them.
    when_quiet: bool = False


# --- requests to brokers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAndIsrState:
    """One partition of a LeaderAndIsr request."""

    leadership: LeaderAndIsr
    assignment: ReplicaAssignment
    #: The broker may create the replica in any log directory; if False, a missing replica is a fault.
    is_new: bool


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    broker_id: int
    broker_epoch: int
    controller_epoch: int
    partitions: Mapping[TopicPartition, LeaderAndIsrState]
    topic_ids: Mapping[str, TopicId]
    #: Brokers that lead one of the partitions, so that the receiver can connect to them before its metadata has them.
    live_leaders: tuple[BrokerRegistration, ...]


@dataclass(frozen=True, slots=True)
class MetadataState:
    """One partition of an UpdateMetadata request."""

    controller_epoch: int
    #: -2 while the topic is being deleted: the broker forgets the partition.
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """Send the same metadata to each of `brokers`; only the broker epochs differ."""

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
    """Open a channel for requests to this broker.

    An open channel to an older incarnation is closed first. One to the same incarnation keeps its queue and moves to the new
    address.
    """

    broker: BrokerRegistration
    broker_epoch: int
    #: The broker counts as gone until it answers: nothing waits for its answer.
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class WatchController:
    """Keep a connection to the controller's broker, to notice when it ends. None: there is no controller to watch."""

    broker: BrokerRegistration | None


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """Close the channel, and forget the requests that have not been sent to this broker."""

    broker_id: int


# --- the controller ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Elected:
    """This broker is controller: it has read the cluster and made the decisions that were pending."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This broker is not controller any more: close all channels, cancel all timers."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    timer: Timer
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to an API handler's request. A `Failure` refuses the request as a whole."""

    request: ApiEvent[Any]
    value: object


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
