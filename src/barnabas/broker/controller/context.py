"""The controller's copy of the cluster: brokers, topics, leaders, and the state of each partition and replica.

Owner: the controller's machine. Pure: it only stores. ZooKeeper holds the truth; watches refresh this copy, and each write to
ZooKeeper succeeds only if the copy is still right.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.states import PartitionState, ReplicaState, check_partition, check_replica
from barnabas.broker.zookeeper_client.znodes import (
    EPOCH_DURING_DELETE,
    BrokerRegistration,
    LeaderAndIsr,
    ReplicaAssignment,
)

_NOWHERE = ReplicaAssignment(())


class Replica(NamedTuple):
    """One copy of a partition."""

    partition: TopicPartition
    broker: int

    @property
    def topic(self) -> str:
        return self.partition.topic

    def __str__(self) -> str:
        return f"replica {self.broker} of {self.partition}"


class ControllerContext:
    def __init__(self) -> None:
        #: Epoch of this controller's term; 0 while this broker is not controller.
        self.epoch = 0
        #: Version of /controller_epoch when this term began: each write checks it.
        self.epoch_zk_version = 0
        #: Registered brokers, including those that are shutting down.
        self.brokers: dict[int, BrokerRegistration] = {}
        self.broker_epochs: dict[int, int] = {}
        #: Brokers in controlled shutdown: alive, but must not become leaders.
        self.shutting_down: set[int] = set()
        #: Epochs of registered brokers that count as gone because their ports refuse connections.
        self.suspects: dict[int, int] = {}
        #: Partitions whose replica on a broker sits in a failed log directory.
        self.offline_dirs: dict[int, set[TopicPartition]] = {}

        self.topics: set[str] = set()
        self.topic_ids: dict[str, TopicId] = {}
        self.topic_names: dict[TopicId, str] = {}
        self.assignments: dict[str, dict[int, ReplicaAssignment]] = {}
        #: Versions of the topic znodes that hold the assignments, as last read or written.
        self.assignment_versions: dict[str, int] = {}
        self.leadership: dict[TopicPartition, LeaderAndIsr] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[Replica, ReplicaState] = {}
        #: Partitions that are being reassigned, in the order in which their reassignments began.
        self.reassigning: dict[TopicPartition, None] = {}

        #: Topics that are queued for deletion.
        self.to_delete: set[str] = set()
        #: Topics of `to_delete` whose deletion has begun: their partitions do not exist any more.
        self.deletion_started: set[str] = set()
        #: Topics of `to_delete` that must wait for a broker or for a reassignment.
        self.deletion_ineligible: set[str] = set()

        self.unclean_elections = 0

    # --- brokers ------------------------------------------------------------------------------------------------------

    def add_broker(self, broker: BrokerRegistration, epoch: int) -> None:
        self.brokers[broker.id] = broker
        self.broker_epochs[broker.id] = epoch

    def remove_broker(self, broker: int) -> None:
        self.brokers.pop(broker, None)
        self.broker_epochs.pop(broker, None)

    def born(self, broker: int) -> int:
        """Return the epoch with which the broker's process registered first. Its page cache still holds all that it wrote
        since."""
        registration = self.brokers.get(broker)
        if registration is None:
            return 0
        return self.broker_epochs[broker] if registration.incarnation is None else registration.incarnation

    def is_live(self, broker: int) -> bool:
        return broker in self.brokers and broker not in self.shutting_down

    def live_ids(self) -> set[int]:
        """Return the live brokers, without those that are shutting down."""
        return set(self.brokers) - self.shutting_down

    def is_online(self, broker: int, partition: TopicPartition, *, or_shutting_down: bool = False) -> bool:
        """Whether the replica on this broker can serve."""
        if broker not in self.brokers or (broker in self.shutting_down and not or_shutting_down):
            return False
        failed = self.offline_dirs.get(broker)
        return failed is None or partition not in failed

    # --- topics -------------------------------------------------------------------------------------------------------

    def add_topic_id(self, topic: str, topic_id: TopicId) -> None:
        known = self.topic_ids.get(topic)
        if known is not None and known != topic_id:
            raise BrokenInvariant(f"topic {topic} has two ids: {known.hex()} and {topic_id.hex()}")
        self.topic_ids[topic] = topic_id
        self.topic_names[topic_id] = topic

    def remove_topic(self, topic: str) -> None:
        self.to_delete.discard(topic)
        self.deletion_started.discard(topic)
        self.deletion_ineligible.discard(topic)
        self.topics.discard(topic)
        self.assignment_versions.pop(topic, None)
        topic_id = self.topic_ids.pop(topic, None)
        if topic_id is not None:
            self.topic_names.pop(topic_id, None)
        for number, assignment in self.assignments.pop(topic, {}).items():
            partition = TopicPartition(topic, number)
            self.leadership.pop(partition, None)
            self.partition_states.pop(partition, None)
            self.reassigning.pop(partition, None)
            for broker in assignment.replicas:
                self.replica_states.pop(Replica(partition, broker), None)

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment:
        """Return the partition's assignment; an empty one if the partition is unknown."""
        return self.assignments.get(partition.topic, {}).get(partition.partition, _NOWHERE)

    def assign(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        self.assignments.setdefault(partition.topic, {})[partition.partition] = assignment

    def partitions(self) -> Iterator[TopicPartition]:
        for topic, numbers in self.assignments.items():
            for number in numbers:
                yield TopicPartition(topic, number)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self.assignments.get(topic, {})]

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[Replica]:
        return [Replica(each, broker) for each in partitions for broker in self.assignment(each).replicas]

    def replicas_of_topic(self, topic: str) -> list[Replica]:
        return self.replicas_of(self.partitions_of(topic))

    def replicas_on(self, brokers: Iterable[int]) -> list[Replica]:
        wanted = set(brokers)
        return [
            Replica(TopicPartition(topic, number), broker)
            for topic, numbers in self.assignments.items()
            for number, assignment in numbers.items()
            for broker in assignment.replicas
            if broker in wanted
        ]

    def partitions_led_by(self, broker: int) -> list[TopicPartition]:
        return [
            partition
            for partition, state in self.leadership.items()
            if state.leader == broker
            and not self.is_dying(partition.topic)
            and len(self.assignment(partition).replicas) > 1
        ]

    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        return [
            partition
            for partition, state in self.leadership.items()
            if not self.is_online(state.leader, partition) and not self.is_dying(partition.topic)
        ]

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the epoch for StopReplica: -2 overrides any epoch, -1 means that there is no leader epoch."""
        if self.is_queued_for_deletion(partition.topic):
            return EPOCH_DURING_DELETE
        state = self.leadership.get(partition)
        return state.leader_epoch if state else -1

    # --- states -------------------------------------------------------------------------------------------------------

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        return self.partition_states.get(partition, PartitionState.NON_EXISTENT)

    def move_partition(self, partition: TopicPartition, target: PartitionState) -> None:
        check_partition(partition, self.partition_state(partition), target)
        if target is PartitionState.NON_EXISTENT:
            self.partition_states.pop(partition, None)
        else:
            self.partition_states[partition] = target

    def partitions_in(self, *states: PartitionState, topic: str | None = None) -> list[TopicPartition]:
        wanted = set(states)
        return [
            partition
            for partition, state in self.partition_states.items()
            if state in wanted and (topic is None or partition.topic == topic)
        ]

    def replica_state(self, replica: Replica) -> ReplicaState:
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def move_replica(self, replica: Replica, target: ReplicaState) -> None:
        check_replica(replica, self.replica_state(replica), target)
        if target is ReplicaState.NON_EXISTENT:
            self.replica_states.pop(replica, None)
        else:
            self.replica_states[replica] = target

    def replicas_in(self, topic: str, state: ReplicaState) -> list[Replica]:
        return [each for each in self.replicas_of_topic(topic) if self.replica_state(each) is state]

    def is_any_replica_in(self, topic: str, state: ReplicaState) -> bool:
        return any(self.replica_state(each) is state for each in self.replicas_of_topic(topic))

    def are_all_replicas_in(self, topic: str, state: ReplicaState) -> bool:
        return all(self.replica_state(each) is state for each in self.replicas_of_topic(topic))

    # --- deletion -----------------------------------------------------------------------------------------------------

    def is_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.to_delete

    def is_dying(self, topic: str) -> bool:
        """Whether the topic is queued for deletion and does not wait for anything that needs leaders, such as a
        reassignment."""
        return topic in self.deletion_started or (topic in self.to_delete and topic not in self.deletion_ineligible)

    # --- counts for metrics -------------------------------------------------------------------------------------------

    def offline_partition_count(self) -> int:
        return sum(
            1
            for partition, state in self.leadership.items()
            if not self.is_queued_for_deletion(partition.topic) and not self.is_online(state.leader, partition)
        )

    def preferred_replica_imbalance_count(self) -> int:
        """Return the number of partitions that are not led by their preferred replica although it could lead."""
        count = 0
        for partition, state in self.leadership.items():
            replicas = self.assignment(partition).replicas
            if not replicas or self.is_queued_for_deletion(partition.topic):
                continue
            preferred = replicas[0]
            # A preferred replica that is still being added does not count until it is in sync.
            joining = preferred in self.assignment(partition).adding and preferred not in state.isr
            if state.leader != preferred and not joining:
                count += 1
        return count
