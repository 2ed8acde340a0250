"""Collects requests to brokers, so that one event sends at most one request of each kind to each broker. Pure."""

from collections.abc import Iterable
from operator import itemgetter

from barnabas.base.ids import ZERO_TOPIC_ID, TopicPartition
from barnabas.broker.controller.effects import (
    LeaderAndIsrState,
    MetadataState,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    StopReplicaState,
)
from barnabas.broker.controller.program import ControllerState
from barnabas.broker.zookeeper_client.znodes import (
    LEADER_DURING_DELETE,
    BrokerRegistration,
    LeaderAndIsr,
    ReplicaAssignment,
)


class RequestBatch:
    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, StopReplicaState]] = {}
        self._metadata_brokers: set[int] = set()
        self._metadata_partitions: dict[TopicPartition, None] = {}

    def clear(self) -> None:
        self._leader_and_isr.clear()
        self._stop_replica.clear()
        self._metadata_brokers.clear()
        self._metadata_partitions.clear()

    def add_leader_and_isr(
        self,
        brokers: Iterable[int],
        partition: TopicPartition,
        leadership: LeaderAndIsr,
        assignment: ReplicaAssignment,
        *,
        is_new: bool,
    ) -> None:
        """Send LeaderAndIsr to `brokers`, and UpdateMetadata to all other brokers."""
        # All brokers share one value, so that it is translated to the wire only once.
        state = LeaderAndIsrState(leadership, assignment, is_new)
        for broker in brokers:
            if broker < 0:
                continue
            states = self._leader_and_isr.setdefault(broker, {})
            known = states.get(partition)
            keeps_new = known is not None and known.is_new and not is_new
            states[partition] = LeaderAndIsrState(leadership, assignment, is_new=True) if keeps_new else state
        self.add_metadata(self._state.context.brokers, (partition,))

    def add_stop_replica(self, broker: int, partition: TopicPartition, *, delete: bool) -> None:
        if broker < 0:
            return
        states = self._stop_replica.setdefault(broker, {})
        known = states.get(partition)
        states[partition] = StopReplicaState(
            leader_epoch=self._state.context.leader_epoch(partition),
            delete=delete or (known is not None and known.delete),
        )

    def add_metadata(self, brokers: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> None:
        self._metadata_brokers.update(brokers)
        self._metadata_partitions.update(dict.fromkeys(partitions))

    def ask_suspect(self, broker: BrokerRegistration, broker_epoch: int) -> None:
        """Send a request that a broker with this epoch answers, and that a new process at the same address refuses."""
        context = self._state.context
        self._state.emit(
            SendUpdateMetadata(
                brokers={broker.id: broker_epoch},
                controller_epoch=context.epoch,
                partitions={},
                topic_ids={},
                live_brokers=tuple(sorted((*context.brokers.values(), broker), key=lambda each: each.id)),
            )
        )

    def flush(self) -> None:
        """Turn the collected requests into effects: new leaders first, then the metadata, then the replicas that stop."""
        self._flush_leader_and_isr()
        self._flush_metadata()
        self._flush_stop_replica()

    def _flush_leader_and_isr(self) -> None:
        """Send to brokers that become leaders first, and to a broker in controlled shutdown last."""
        context = self._state.context
        requests: list[tuple[int, SendLeaderAndIsr]] = []
        for broker, states in sorted(self._leader_and_isr.items()):
            if broker not in context.brokers:
                continue
            leaders = {state.leadership.leader for state in states.values()}
            request = SendLeaderAndIsr(
                broker_id=broker,
                broker_epoch=context.broker_epochs[broker],
                controller_epoch=context.epoch,
                partitions=states,
                topic_ids={
                    topic: context.topic_ids.get(topic, ZERO_TOPIC_ID)
                    for topic in dict.fromkeys(each.topic for each in states)
                },
                live_leaders=tuple(each for number, each in sorted(context.brokers.items()) if number in leaders),
            )
            turn = 2 if broker in context.shutting_down else 0 if broker in leaders else 1
            requests.append((turn, request))
        for _, request in sorted(requests, key=itemgetter(0)):
            self._state.emit(request)
        self._leader_and_isr = {}

    def _flush_metadata(self) -> None:
        context = self._state.context
        brokers = {
            broker: context.broker_epochs[broker]
            for broker in sorted(self._metadata_brokers)
            if broker in context.brokers
        }
        if brokers:
            states = {
                partition: state
                for partition in self._metadata_partitions
                if (state := self._metadata_state(partition)) is not None
            }
            self._state.emit(
                SendUpdateMetadata(
                    brokers=brokers,
                    controller_epoch=context.epoch,
                    partitions=states,
                    topic_ids={
                        topic: context.topic_ids[topic]
                        for topic in dict.fromkeys(each.topic for each in states)
                        if topic in context.topic_ids
                    },
                    live_brokers=tuple(each for _, each in sorted(context.brokers.items())),
                )
            )
        self._metadata_brokers = set()
        self._metadata_partitions = {}

    def _metadata_state(self, partition: TopicPartition) -> MetadataState | None:
        """Return the partition's metadata; None while it has no leader yet."""
        context = self._state.context
        leadership = context.leadership.get(partition)
        if leadership is None:
            return None
        deleting = context.is_queued_for_deletion(partition.topic)
        replicas = context.assignment(partition).replicas
        return MetadataState(
            controller_epoch=leadership.controller_epoch,
            leader=LEADER_DURING_DELETE if deleting else leadership.leader,
            leader_epoch=0 if deleting else leadership.leader_epoch,
            isr=leadership.isr,
            partition_epoch=0 if deleting else leadership.partition_epoch,
            replicas=replicas,
            offline_replicas=tuple(each for each in replicas if not context.is_online(each, partition)),
        )

    def _flush_stop_replica(self) -> None:
        context = self._state.context
        for broker, states in sorted(self._stop_replica.items()):
            if broker not in context.brokers:
                continue
            self._state.emit(
                SendStopReplica(
                    broker_id=broker,
                    broker_epoch=context.broker_epochs[broker],
                    controller_epoch=context.epoch,
                    partitions=states,
                )
            )
        self._stop_replica = {}
