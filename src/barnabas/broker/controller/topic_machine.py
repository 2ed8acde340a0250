"""Handles topics that are created, enlarged or deleted, as /brokers/topics and /admin/delete_topics report it. Pure."""

import logging
from collections.abc import Iterable, Sequence

from barnabas.base.errors import Malformed, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import check_topic_name
from barnabas.broker.controller.deletion_machine import DeletionMachine
from barnabas.broker.controller.elections import Strategy
from barnabas.broker.controller.events import DeletionsChanged, TopicModified, TopicsChanged
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine
from barnabas.broker.controller.program import ControllerState, Program, ask, write
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Get, GetChildren, SetData
from barnabas.broker.zookeeper_client.znodes import TopicAssignment

_log = logging.getLogger(__name__)


class TopicMachine:
    def __init__(
        self,
        state: ControllerState,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: DeletionMachine,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions

    def topics_changed(self) -> Program[None]:
        context = self._state.context
        [listed] = yield from ask((GetChildren(paths.BROKER_TOPICS, watch=TopicsChanged()),))
        topics = set(listed.children)
        for topic in sorted(context.topics - topics):
            _log.warning(
                "[controller] another program deleted %s: delete topics with barnabas topics, or brokers keep their logs",
                paths.topic(topic),
            )
            context.remove_topic(topic)
        added = yield from self.load(sorted(topics - context.topics))
        yield from self.create(added)

    def topic_modified(self, topic: str) -> Program[None]:
        """Handle a change of the topic's znode: more partitions, or a reassignment that this controller wrote."""
        context = self._state.context
        [found] = yield from ask((Get(paths.topic(topic), watch=TopicModified(topic)),))
        if topic not in context.topics or not found.ok:
            return
        assignment = self._decode(topic, found.data)
        if assignment is None:
            return
        assert found.stat is not None
        context.assignment_versions[topic] = found.stat.version
        known = context.assignments.get(topic, {})
        added = {number: each for number, each in sorted(assignment.partitions.items()) if number not in known}
        if not added:
            return
        if context.is_queued_for_deletion(topic):
            _log.warning("[controller] topic %s is being deleted, so it gets no new partitions: create it again", topic)
            data = TopicAssignment(context.topic_ids.get(topic), dict(known)).encode()
            yield from write((SetData(paths.topic(topic), data),))
            return
        for number, each in added.items():
            context.assign(TopicPartition(topic, number), each)
        yield from self.create([TopicPartition(topic, number) for number in added])

    def deletions_changed(self) -> Program[None]:
        context = self._state.context
        [listed] = yield from ask((GetChildren(paths.DELETE_TOPICS, watch=DeletionsChanged()),))
        wanted = set(listed.children)
        unknown = wanted - context.topics
        if not self._state.settings.delete_topic_enable:
            unknown = wanted
        if unknown:
            _log.warning(
                "[controller] not deleting %s: no such topic, or delete.topic.enable is false",
                ", ".join(sorted(unknown)),
            )
            yield from self._deletions.forget_requests(unknown)
        if wanted - unknown:
            yield from self._deletions.enqueue(wanted - unknown)

    def load(self, topics: Sequence[str]) -> Program[list[TopicPartition]]:
        """Read topics into the context, and give an id to topics that have none."""
        context = self._state.context
        results = yield from ask(Get(paths.topic(topic), watch=TopicModified(topic)) for topic in topics)
        added: list[TopicPartition] = []
        without_id: dict[str, TopicAssignment] = {}
        for topic, result in zip(topics, results, strict=True):
            assignment = self._decode(topic, result.data) if result.ok else None
            if assignment is None:
                continue
            if assignment.topic_id is None:
                assignment = TopicAssignment(self._state.new_topic_id(), assignment.partitions)
                without_id[topic] = assignment
            context.topics.add(topic)
            assert assignment.topic_id is not None
            assert result.stat is not None
            context.assignment_versions[topic] = result.stat.version
            context.add_topic_id(topic, assignment.topic_id)
            for number, each in sorted(assignment.partitions.items()):
                partition = TopicPartition(topic, number)
                context.assign(partition, each)
                added.append(partition)
        yield from write(SetData(paths.topic(topic), each.encode()) for topic, each in without_id.items())
        return added

    def create(self, partitions: Iterable[TopicPartition]) -> Program[None]:
        """Elect a leader for each new partition, and send one request to each broker."""
        new = list(partitions)
        replicas = self._state.context.replicas_of(new)
        self._partitions.to_new(new)
        self._replicas.to_new(replicas)
        yield from self._partitions.to_online(new, Strategy.OFFLINE)
        self._replicas.to_online(replicas)

    def _decode(self, topic: str, data: bytes | None) -> TopicAssignment | None:
        try:
            check_topic_name(topic)
            return TopicAssignment.decode(topic, data or b"")
        except (Refused, Malformed) as error:
            # One unreadable topic must not keep the others from having leaders.
            _log.error("[controller] %s", error)
            return None
