"""Deletes topics, and waits for brokers that are down and for reassignments in progress. Pure.

A topic is deleted once every replica has reported that its data is gone. A replica that cannot report this is ineligible, and
its topic waits; when the broker returns, the controller tries the deletion again.
"""

import logging
from collections.abc import Iterable

from barnabas.broker.controller.context import Replica
from barnabas.broker.controller.journal import NAMED_MAX
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine
from barnabas.broker.controller.program import ControllerState, Program, ask, write
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import REPLICA_TRANSITIONS, PartitionState, ReplicaState
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Delete, GetChildren, ZkCode

_log = logging.getLogger(__name__)


class DeletionMachine:
    def __init__(
        self,
        state: ControllerState,
        requests: RequestBatch,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
    ) -> None:
        self._state = state
        self._requests = requests
        self._partitions = partitions
        self._replicas = replicas

    def initialize(self, queued: Iterable[str]) -> Program[None]:
        """Take over the deletions that a new controller finds in /admin/delete_topics."""
        context = self._state.context
        queued = set(queued)
        if not self._state.settings.delete_topic_enable:
            yield from self.forget_requests(queued)
            return
        context.to_delete |= queued
        moving = {partition.topic for partition in context.reassigning}
        for topic in queued & context.topics:
            if topic in moving or not self._are_all_online(topic):
                context.deletion_ineligible.add(topic)

    def enqueue(self, topics: Iterable[str]) -> Program[None]:
        context = self._state.context
        wanted = set(topics)
        context.to_delete |= wanted
        moving = {partition.topic for partition in context.reassigning}
        self.halt(wanted & moving, "a reassignment is in progress")
        yield from self.resume()

    def forget_requests(self, topics: Iterable[str]) -> Program[None]:
        """Remove deletion requests that cannot be carried out: there is no such topic, or `delete.topic.enable` is false."""
        yield from write(Delete(paths.delete_topic(topic)) for topic in sorted(topics))

    def halt(self, topics: Iterable[str], reason: str) -> None:
        context = self._state.context
        halted = context.to_delete & set(topics)
        context.deletion_ineligible |= halted
        if halted:
            _log.info("[controller] deletion of %s halted: %s", ", ".join(sorted(halted)), reason)

    def resume_for(self, topics: Iterable[str]) -> Program[None]:
        """Try deletions again that waited: a broker came back, or a reassignment ended."""
        context = self._state.context
        # Kafka forgets here that a topic may also wait for a reassignment, and deletes the topic while it is being reassigned.
        moving = {partition.topic for partition in context.reassigning}
        resumed = (context.to_delete & set(topics)) - moving
        if resumed:
            context.deletion_ineligible -= resumed
            yield from self.resume()

    def fail_replicas(self, replicas: Iterable[Replica]) -> Program[None]:
        """Mark replicas that could not delete their data."""
        context = self._state.context
        failed = [each for each in replicas if context.is_queued_for_deletion(each.topic)]
        if not failed:
            return
        self._replicas.to_deletion_ineligible(
            each for each in failed if self._may_move(each, ReplicaState.DELETION_INELIGIBLE)
        )
        self.halt({each.topic for each in failed}, "a replica could not be deleted")
        yield from self.resume()

    def complete_replicas(self, replicas: Iterable[Replica]) -> Program[None]:
        """Mark replicas that have deleted their data."""
        context = self._state.context
        self._replicas.to_deletion_successful(
            each
            for each in replicas
            # The answer may arrive after the controller has given the replica up or started it again.
            if context.is_queued_for_deletion(each.topic) and self._may_move(each, ReplicaState.DELETION_SUCCESSFUL)
        )
        yield from self.resume()

    def resume(self) -> Program[None]:
        context = self._state.context
        retry: list[str] = []
        start: list[str] = []
        for topic in sorted(context.to_delete):
            if context.are_all_replicas_in(topic, ReplicaState.DELETION_SUCCESSFUL):
                yield from self._complete(topic)
                continue
            if context.is_any_replica_in(topic, ReplicaState.DELETION_STARTED):
                continue
            if context.is_any_replica_in(topic, ReplicaState.DELETION_INELIGIBLE):
                retry.append(topic)
            if topic not in context.deletion_ineligible:
                start.append(topic)
        if retry:
            failed = [each for topic in retry for each in context.replicas_in(topic, ReplicaState.DELETION_INELIGIBLE)]
            yield from self._replicas.to_offline(failed)
        if start:
            _log.info("[controller] deleting %s", ", ".join(start))
            self._state.note("topics are being deleted", count=len(start), topics=start[:NAMED_MAX])
            yield from self._start(start)

    def _start(self, topics: list[str]) -> Program[None]:
        context = self._state.context
        unseen = [
            each for topic in topics if topic not in context.deletion_started for each in context.partitions_of(topic)
        ]
        existing = [each for each in unseen if context.partition_state(each) is not PartitionState.NON_EXISTENT]
        self._partitions.to_offline(existing)
        self._partitions.to_non_existent(existing)
        context.deletion_started.update(topics)
        # Brokers stop serving the topics before their data goes.
        self._requests.add_metadata(
            context.brokers, (each for topic in topics for each in context.partitions_of(topic))
        )

        alive: list[Replica] = []
        dead: list[Replica] = []
        for topic in topics:
            for replica in context.replicas_of_topic(topic):
                if not context.is_online(replica.broker, replica.partition):
                    dead.append(replica)
                elif context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL:
                    alive.append(replica)
        # Dead replicas were offline before; after a change of controller they are ineligible already.
        self._replicas.to_deletion_ineligible(
            each for each in dead if self._may_move(each, ReplicaState.DELETION_INELIGIBLE)
        )
        yield from self._replicas.to_offline(alive)
        self._replicas.to_deletion_started(alive)
        self.halt({each.topic for each in dead}, "some of its replicas are offline")

    def _complete(self, topic: str) -> Program[None]:
        """Remove the topic, its settings and the deletion request: every replica is gone."""
        context = self._state.context
        partitions = context.partitions_of(topic)
        self._replicas.to_non_existent(context.replicas_in(topic, ReplicaState.DELETION_SUCCESSFUL))
        deletions = [
            Delete(path) for each in partitions for path in (paths.partition_state(each), paths.topic_partition(each))
        ]
        results = yield from write(
            [
                *deletions,
                Delete(paths.topic_partitions(topic)),
                Delete(paths.topic(topic)),
            ]
        )
        if results[-1].code is ZkCode.NOT_EMPTY:
            yield from self._delete_recursive(paths.topic(topic))
        yield from write(
            (Delete(paths.config_entity(paths.TOPICS, topic)), Delete(paths.delete_topic(topic))),
        )
        context.remove_topic(topic)
        _log.info("[controller] topic %s is deleted", topic)

    def _delete_recursive(self, path: str) -> Program[None]:
        """Delete a topic's znode together with children that another program left below it."""
        levels = [[path]]
        while levels[-1]:
            results = yield from ask(GetChildren(each) for each in levels[-1])
            levels.append(
                [f"{each}/{name}" for each, result in zip(levels[-1], results, strict=True) for name in result.children]
            )
        yield from write(Delete(each) for level in reversed(levels) for each in level)

    def _may_move(self, replica: Replica, target: ReplicaState) -> bool:
        return self._state.context.replica_state(replica) in REPLICA_TRANSITIONS[target]

    def _are_all_online(self, topic: str) -> bool:
        context = self._state.context
        return all(context.is_online(each.broker, each.partition) for each in context.replicas_of_topic(topic))
