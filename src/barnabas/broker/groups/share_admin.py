"""Administration of share groups: their offsets, which are states of share partitions, are set and deleted; groups are deleted.

Each operation has two parts: the machine notes what is to be done and says which states that takes, the driver asks the share
coordinators, and the machine notes what came of it. Only groups without members are changed.

Pure; owner: the group machine.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.broker.groups.group import Group, GroupEnvironment, Outcome
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.share import CHOSEN_BY_LEADER, CreateShareStates, ShareProtocol
from barnabas.broker.groups.share_group import ShareGroup
from barnabas.broker.groups.share_topics import StatePartitions
from barnabas.broker.runtime.machine import Result
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting

#: Kafka's words.
UNKNOWN_PARTITION: Final = "This server does not host this topic-partition."
NOTHING_TO_DELETE: Final = "There is no offset information to delete."


@dataclass(slots=True)
class Alteration:
    """The states to set, and the response, in which the errors of share coordinators are still missing."""

    create: CreateShareStates
    responses: list[altering.AlterShareGroupOffsetsResponseTopic]


@dataclass(slots=True)
class Deletion:
    """The states to delete, with the names of their topics, and the topics for which there is nothing to do."""

    partitions: Partitions
    names: Mapping[bytes, str] = field(default_factory=dict)
    refused: list[deleting.DeleteShareGroupOffsetsResponseTopic] = field(default_factory=list)


class ShareAdmin:
    def __init__(self, groups: dict[str, Group], protocol: ShareProtocol, env: GroupEnvironment) -> None:
        self._groups = groups
        self._protocol = protocol
        self._env = env

    def initialized(self, group_id: str) -> Partitions:
        """Return the partitions of existing topics that the group has begun to read. An unknown group has none."""
        group = self._protocol.find(group_id)
        if group is None:
            return {}
        return {
            topic_id: self._existing(topic_id, numbers) for topic_id, (_, numbers) in group.states.initialized.items()
        }

    def _existing(self, topic_id: bytes, numbers: frozenset[int]) -> frozenset[int]:
        name = self._env.topics.topic_name(topic_id)
        return frozenset() if name is None else numbers & frozenset(range(self._env.topics.partition_count(name)))

    # -- AlterShareGroupOffsets ----------------------------------------------------------------------------------------

    def begin_alter(self, request: altering.AlterShareGroupOffsetsRequest, now_ms: int) -> Result[Alteration]:
        """Note the states that are about to be set. A group that does not exist is created, and begins at these offsets."""
        out = Outcome()
        group_id = request.group_id
        group = self._protocol.require(group_id) if group_id in self._groups else ShareGroup(group_id)
        group.check_delete()
        epoch = group.group_epoch + 1
        plan = Alteration(CreateShareStates(group_id, epoch, {}), [])
        starts: dict[tuple[bytes, int], int] = {}
        wanted: dict[bytes, StatePartitions] = {}
        for topic in request.topics:
            topic_id = self._env.topics.topic_id(topic.topic_name)
            answers = altering.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id or bytes(16)
            )
            plan.responses.append(answers)
            count = self._env.topics.partition_count(topic.topic_name)
            numbers: set[int] = set()
            for each in topic.partitions:
                answer = altering.AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
                answers.partitions.append(answer)
                if topic_id is None or not 0 <= each.partition_index < count:
                    answer.error_code, answer.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_PARTITION
                elif each.start_offset < CHOSEN_BY_LEADER:
                    answer.error_code = ErrorCode.INVALID_REQUEST
                    answer.error_message = f"The start offset {each.start_offset} is negative."
                else:
                    starts[topic_id, each.partition_index] = each.start_offset
                    numbers.add(each.partition_index)
            if topic_id is not None and numbers:
                wanted[topic_id] = StatePartitions(topic.topic_name, frozenset(numbers))
        if wanted:
            # The epoch fences a leader that still holds the former states.
            out.records += [
                group.epoch_record(epoch, group.metadata_hash),
                group.states.begin(wanted).record(group_id),
            ]
            self._protocol.note_asked(group_id, wanted, now_ms)
        plan.create = CreateShareStates(group_id, epoch, starts)
        return out.result(plan)

    # -- DeleteShareGroupOffsets ---------------------------------------------------------------------------------------

    def begin_delete_offsets(self, group_id: str, topics: Collection[str]) -> Result[Deletion]:
        out = Outcome()
        group = self._protocol.require(group_id)
        group.check_delete()
        doomed: dict[bytes, frozenset[int]] = {}
        names: dict[bytes, str] = {}
        plan = Deletion(doomed, names)
        for name in dict.fromkeys(topics):
            topic_id = self._env.topics.topic_id(name)
            if topic_id is not None and topic_id in group.states.topic_ids:
                names[topic_id] = name
                doomed[topic_id] = self._states_of(group, topic_id)
                continue
            plan.refused.append(
                deleting.DeleteShareGroupOffsetsResponseTopic(
                    topic_name=name,
                    topic_id=topic_id or bytes(16),
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=UNKNOWN_PARTITION if topic_id is None else NOTHING_TO_DELETE,
                )
            )
        if names:
            out.records.append(group.states.begin_delete(names).record(group_id))
        return out.result(plan)

    def _states_of(self, group: ShareGroup, topic_id: bytes) -> frozenset[int]:
        """Return the partitions that may have a state. If a former deletion failed, it is not known which."""
        if topic_id in group.states.deleting:
            name = self._env.topics.topic_name(topic_id)
            return frozenset() if name is None else frozenset(range(self._env.topics.partition_count(name)))
        return self._existing(topic_id, group.states.known_partitions(topic_id))

    # -- DeleteGroups ----------------------------------------------------------------------------------------------------

    def begin_delete_groups(self, group_ids: Collection[str]) -> Result[dict[str, Deletion]]:
        """Return the states of those that are share groups without members. Others are left to `delete_groups`."""
        out = Outcome()
        plans: dict[str, Deletion] = {}
        for group_id in dict.fromkeys(group_ids):
            group = self._protocol.find(group_id)
            if group is None or group.members or not group.states.topic_ids:
                continue
            names = {
                topic_id: name
                for topic_id in group.states.topic_ids
                if (name := self._env.topics.topic_name(topic_id)) is not None
            }
            plans[group_id] = Deletion({topic_id: self._states_of(group, topic_id) for topic_id in names}, names)
            out.records.append(group.states.begin_delete(names).record(group_id))
        return out.result(plans)
