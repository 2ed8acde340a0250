"""Decides which replicas are in sync when leaders ask with AlterPartition. Pure.

A request is checked against the broker's epoch, the leader epoch and the partition epoch (the znode's version), in this order.
A request for the current state is granted without a write, so that repeating a request after a lost answer does no harm.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.events import AlterPartition, AlterPartitionReply, ProposedIsr
from barnabas.broker.controller.journal import changes
from barnabas.broker.controller.partition_state_machine import write_leadership
from barnabas.broker.controller.program import ControllerState, Program, read_leadership
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.zookeeper_client.operations import ZkCode
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, LeaderRecoveryState

_log = logging.getLogger(__name__)

Key = tuple[TopicId | str, int]
Answer = LeaderAndIsr | ErrorCode


class IsrMachine:
    def __init__(self, state: ControllerState, requests: RequestBatch) -> None:
        self._state = state
        self._requests = requests

    def alter(self, event: AlterPartition) -> Program[tuple[AlterPartitionReply, list[TopicPartition]]]:
        """Return the reply, and the partitions whose ISR is now the one that their leader asked for."""
        context = self._state.context
        if context.broker_epochs.get(event.broker_id) != event.broker_epoch:
            _log.info(
                "[controller] AlterPartition of broker %d has a stale broker epoch %d",
                event.broker_id,
                event.broker_epoch,
            )
            return AlterPartitionReply(ErrorCode.STALE_BROKER_EPOCH), []
        named = {key: self._name(key) for key in event.partitions}
        answers: dict[Key, Answer] = {}
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        keys: dict[TopicPartition, Key] = {}
        for key, proposed in event.partitions.items():
            partition = named[key]
            if partition is None:
                answers[key] = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            keys[partition] = key
            decision = self._decide(partition, event.broker_id, proposed, event.version)
            if isinstance(decision, ErrorCode) or decision is context.leadership[partition]:
                answers[key] = decision
            else:
                wanted[partition] = decision
        before = {each: context.leadership.get(each) for each in wanted}
        written = yield from write_leadership(wanted)
        stale = [partition for partition, state in written.items() if state is ZkCode.BAD_VERSION]
        context.leadership.update((yield from read_leadership(stale)))
        for partition, state in written.items():
            answers[keys[partition]] = self._take_over(partition, wanted[partition], state)
        changed = {each: state for each, state in written.items() if isinstance(state, LeaderAndIsr)}
        if changed:
            self._state.note("ISR changed", **changes(before, changed))
        self._requests.add_metadata(context.brokers, keys)
        granted = [partition for partition, key in keys.items() if isinstance(answers[key], LeaderAndIsr)]
        reply: Mapping[Key, Answer] = {key: answers[key] for key in event.partitions}
        return AlterPartitionReply(partitions=reply), granted

    def _name(self, key: Key) -> TopicPartition | None:
        topic, number = key
        name = topic if isinstance(topic, str) else self._state.context.topic_names.get(topic)
        return None if name is None else TopicPartition(name, number)

    def _decide(self, partition: TopicPartition, broker: int, proposed: ProposedIsr, version: int) -> Answer:
        """Return the state to write, the current state if it is the wanted one, or the error."""
        context = self._state.context
        current = context.leadership.get(partition)
        if current is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if proposed.partition_epoch > current.partition_epoch or proposed.leader_epoch > current.leader_epoch:
            # The leader's state is newer than ours: this broker is probably not controller any more.
            return ErrorCode.NOT_CONTROLLER
        if proposed.leader_epoch < current.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if (broker, proposed.isr, proposed.recovery) == (current.leader, current.isr, current.recovery):
            return current
        if proposed.partition_epoch < current.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if proposed.recovery is LeaderRecoveryState.RECOVERING and (
            len(proposed.isr) > 1 or current.recovery is LeaderRecoveryState.RECOVERED
        ):
            return ErrorCode.INVALID_REQUEST
        if broker != current.leader or broker not in proposed.isr:
            # The same epoch with another leader is impossible unless the request is forged.
            return ErrorCode.INVALID_REQUEST
        if not set(proposed.isr) <= set(context.assignment(partition).replicas):
            # Kafka with ZooKeeper does not check this. A broker outside the replica set must not become leader.
            return ErrorCode.INVALID_REQUEST
        if not self._is_eligible(proposed):
            # KIP-841: a broker that is not alive, or is about to stop, cannot join the ISR.
            return ErrorCode.INELIGIBLE_REPLICA if version >= 2 else ErrorCode.OPERATION_NOT_ATTEMPTED
        return LeaderAndIsr(
            leader=broker,
            isr=proposed.isr,
            leader_epoch=proposed.leader_epoch,
            recovery=proposed.recovery,
            partition_epoch=proposed.partition_epoch,
            controller_epoch=context.epoch,
        )

    def _is_eligible(self, proposed: ProposedIsr) -> bool:
        context = self._state.context
        if not all(context.is_live(each) for each in proposed.isr):
            return False
        # KIP-903: the replica that the leader saw in sync may be a former life of the broker, which has lost its disk since.
        epochs = proposed.isr_epochs or ()
        return all(
            epoch in (-1, context.broker_epochs[each]) for each, epoch in zip(proposed.isr, epochs, strict=False)
        )

    def _take_over(self, partition: TopicPartition, wanted: LeaderAndIsr, state: LeaderAndIsr | ZkCode) -> Answer:
        context = self._state.context
        if isinstance(state, LeaderAndIsr):
            context.leadership[partition] = state
            return state
        if state is not ZkCode.BAD_VERSION:
            _log.error("[partition %s] the controller could not write the ISR: %s", partition, state.value)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        found = context.leadership[partition]
        # The state is either our own write, whose answer was lost with a connection, or another controller's write.
        ours = replace(wanted, partition_epoch=found.partition_epoch) == found
        return found if ours else ErrorCode.INVALID_UPDATE_VERSION
