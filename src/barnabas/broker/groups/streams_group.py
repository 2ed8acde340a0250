"""A streams group (KIP-1071): the coordinator gives the tasks of a Kafka Streams application to its members.

The first member brings the topology. The group epoch grows when members, topics or settings change, and each epoch gets a
target assignment. Members move towards it one by one: they give up tasks that are no longer theirs, and get tasks that are
free by then. Members are immutable values.

All of this is hard state, unless a field says otherwise: only replay changes it. Pure; owner: the group machine.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import streams_records as records
from barnabas.broker.groups.consumer_group import MEMBER_EPOCH_FROM
from barnabas.broker.groups.group import CheckCommit, Expiry, GroupType
from barnabas.broker.groups.streams_tasks import NO_TASKS, TaskId, Tasks, by_subtopology, task_set
from barnabas.broker.groups.streams_topics import ConfiguredTopology
from barnabas.broker.groups.streams_topology import StreamsTopology
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages import streams_group_describe as described
from barnabas.wire.messages import streams_group_records as written

#: The group epoch and the target epoch of a group without records.
FIRST_EPOCH: Final = 1


class TaskState(IntEnum):
    """A member's progress towards the target; the numbers are those in the records."""

    STABLE = 1
    #: The member was asked to give up tasks, and has not confirmed it yet.
    UNREVOKED_TASKS = 2
    #: The member waits for tasks that other members have not given up yet.
    UNRELEASED_TASKS = 3
    #: The record was written by a version that knows more states than this one.
    UNKNOWN = 127


class StreamsGroupState(Enum):
    EMPTY = "Empty"
    #: Topics of the topology are missing or do not fit.
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Creation(NamedTuple):
    """An internal topic that was asked for."""

    since_ms: int
    #: The controller's reason not to create it; None: it has not answered yet.
    error: str | None = None


class Endpoint(NamedTuple):
    """Where an instance answers queries for its state."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    member_id: str
    #: The member's epoch. The previous one is accepted too, because an answer may have been lost.
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: TaskState = TaskState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    #: The instance of the application; its threads are members of their own.
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    #: Tasks that the member may run.
    assigned: Tasks = NO_TASKS
    #: Tasks that the member still has and has been asked to give up. Disjoint from `assigned`.
    pending_revocation: Tasks = NO_TASKS
    #: The epochs in which the active tasks in both were assigned.
    active_epochs: Mapping[TaskId, int] = field(default_factory=dict)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is TaskState.STABLE and self.member_epoch == target_epoch

    def check_commit(self, received: int, readers: Mapping[str, str]) -> "CheckCommit":
        """Return a check for commits with an earlier epoch: the task must have been the member's since then (KIP-1251)."""

        def check(topic: str, partition: int) -> None:
            subtopology = readers.get(topic)
            if subtopology is None:
                raise Refused(ErrorCode.STALE_MEMBER_EPOCH, f"Topic {topic} is not in the topology.")
            since = self.active_epochs.get(TaskId(subtopology, partition))
            if since is None:
                reason = f"Task {subtopology}-{partition} is not assigned or pending revocation for member."
                raise Refused(ErrorCode.STALE_MEMBER_EPOCH, reason)
            if received < since:
                raise Refused(
                    ErrorCode.STALE_MEMBER_EPOCH,
                    f"Received member epoch {received} is older than assignment epoch {since} for task "
                    f"{subtopology}-{partition}.",
                )

        return check

    def metadata_record(self, group_id: str) -> KeyValue:
        endpoint = self.endpoint
        value = written.StreamsGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=None if endpoint is None else written.Endpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[written.KeyValue(key=key, value=value) for key, value in self.client_tags],
        )
        return records.member_metadata(group_id, self.member_id, value)

    def assignment_record(self, group_id: str) -> KeyValue:
        def listed(tasks: Iterable[TaskId], *, is_active: bool = False) -> list[written.CurrentTaskIds]:
            return [
                written.CurrentTaskIds(
                    subtopology_id=subtopology,
                    partitions=numbers,
                    assignment_epochs=[self.active_epochs[TaskId(subtopology, number)] for number in numbers]
                    if is_active
                    else None,
                )
                for subtopology, numbers in by_subtopology(tasks).items()
            ]

        value = written.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            active_tasks=listed(self.assigned.active, is_active=True),
            standby_tasks=listed(self.assigned.standby),
            warmup_tasks=listed(self.assigned.warmup),
            active_tasks_pending_revocation=listed(self.pending_revocation.active, is_active=True),
            standby_tasks_pending_revocation=listed(self.pending_revocation.standby),
            warmup_tasks_pending_revocation=listed(self.pending_revocation.warmup),
        )
        return records.current_assignment(group_id, self.member_id, value)

    def with_metadata(self, value: written.StreamsGroupMemberMetadataValue) -> "StreamsMember":
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
            client_tags=tuple((each.key, each.value) for each in value.client_tags),
        )

    def with_assignment(self, value: written.StreamsGroupCurrentMemberAssignmentValue) -> "StreamsMember":
        epochs: dict[TaskId, int] = {}
        for each in (*value.active_tasks, *value.active_tasks_pending_revocation):
            # Kafka 4.1 wrote no epochs: the tasks count as assigned in the member's epoch.
            since = each.assignment_epochs or ()
            if len(since) != len(each.partitions):
                since = [value.member_epoch] * len(each.partitions)
            tasks = (TaskId(each.subtopology_id, number) for number in each.partitions)
            epochs.update(zip(tasks, since, strict=True))
        known = value.state in (1, 2, 3)
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=TaskState(value.state) if known else TaskState.UNKNOWN,
            assigned=Tasks(task_set(value.active_tasks), task_set(value.standby_tasks), task_set(value.warmup_tasks)),
            pending_revocation=Tasks(
                task_set(value.active_tasks_pending_revocation),
                task_set(value.standby_tasks_pending_revocation),
                task_set(value.warmup_tasks_pending_revocation),
            ),
            active_epochs=epochs,
        )

    def describe(self, target: Tasks) -> described.Member:
        endpoint = self.endpoint
        return described.Member(
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=None if endpoint is None else described.Endpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[described.KeyValue(key=key, value=value) for key, value in self.client_tags],
            assignment=_described(self.assigned),
            target_assignment=_described(target),
        )


@dataclass(slots=True, eq=False)
class StreamsGroup:
    group_id: str
    group_epoch: int = FIRST_EPOCH
    #: The group epoch of the target assignment; at most `group_epoch`.
    target_epoch: int = FIRST_EPOCH
    #: When the target was computed.
    target_timestamp_ms: int = 0
    #: Stands for the topics of the topology, as they were when the group epoch last changed.
    metadata_hash: int = 0
    #: Epoch of the topology all of whose topics exist and fit; -1: there is no such topology.
    validated_topology_epoch: int = -1
    #: Settings with which the target of this epoch is computed.
    assignment_settings: Mapping[str, str] = field(default_factory=dict)
    #: None until the first member brought it.
    topology: StreamsTopology | None = None
    members: dict[str, StreamsMember] = field(default_factory=dict)
    #: Target assignments by member id.
    target: dict[str, Tasks] = field(default_factory=dict)
    #: Member ids by active task. No other member gets a task before it is given up.
    active_owners: dict[TaskId, str] = field(default_factory=dict)
    #: Member ids by standby or warm-up task: no process gets the same task twice.
    copy_owners: dict[TaskId, set[str]] = field(default_factory=dict)
    #: Derived from the topology.
    readers: Mapping[str, str] = field(default_factory=dict)
    #: Soft state: the topology with the topics that existed at `topics_version`.
    configured: ConfiguredTopology | None = None
    #: Soft state: the version of the cluster's topics that the group has used. 0: it must be checked.
    topics_version: int = 0
    #: Soft state: whether the first assignment waits for more members.
    is_delayed: bool = False
    #: Soft state: internal topics that the controller was asked for, while topics are missing.
    creations: dict[str, Creation] = field(default_factory=dict)
    #: Soft state: grows when tasks of a member with an endpoint change.
    endpoint_epoch: int = 0
    #: Soft state: the member that asked the whole application to stop.
    shutdown_member_id: str | None = None

    type = GroupType.STREAMS

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.group_epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_disposable(self) -> bool:
        return not self.members

    def require_member(self, member_id: str) -> StreamsMember:
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and topic in self.readers

    def may_not_run_active(self, process_id: str) -> Callable[[TaskId], bool]:
        """Return whether an active task must wait: a member has it, or the process has a copy of its state."""
        return lambda task: task in self.active_owners or self._has_copy(process_id, task)

    def may_not_run_copy(self, process_id: str) -> Callable[[TaskId], bool]:
        """Return whether a standby or warm-up task must wait: the process has the task."""

        def must_wait(task: TaskId) -> bool:
            owner = self.active_owners.get(task)
            is_active_here = owner is not None and self.members[owner].process_id == process_id
            return is_active_here or self._has_copy(process_id, task)

        return must_wait

    def _has_copy(self, process_id: str, task: TaskId) -> bool:
        return any(self.members[owner].process_id == process_id for owner in self.copy_owners.get(task, ()))

    # -- requests of other protocols -----------------------------------------------------------------------------------

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, api_version: int, is_transactional: bool
    ) -> CheckCommit | None:
        if generation < 0 and not self.members:
            return None  # an administrator
        if is_transactional and generation < 0 and not member_id and instance_id is None:
            return None  # transactional producers may leave out the consumer
        member = self.require_member(member_id)
        if not is_transactional and api_version < MEMBER_EPOCH_FROM:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the streams group protocol",
            )
        if generation == member.member_epoch:
            return None
        if generation > member.member_epoch:
            raise Refused(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"Received member epoch {generation} is newer than current member epoch {member.member_epoch}.",
            )
        return member.check_commit(generation, self.readers)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.require_member(member_id or "")
        if member_epoch != member.member_epoch:
            raise Refused(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"The received member epoch {member_epoch} does not match the expected member epoch {member.member_epoch}.",
            )

    def check_offset_delete(self) -> None:
        """Allow the deletion of offsets: a topic that no member reads may lose them at any time."""

    def check_delete(self) -> None:
        if self.members:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def expiry(self) -> Expiry | None:
        return Expiry(since_ms=None)

    # -- the log -------------------------------------------------------------------------------------------------------

    def tombstones(self) -> list[KeyValue]:
        group_id = self.group_id
        return [
            *(records.current_assignment_tombstone(group_id, member_id) for member_id in self.members),
            *(records.target_assignment_tombstone(group_id, member_id) for member_id in self.members),
            records.target_epoch_tombstone(group_id),
            *(records.member_metadata_tombstone(group_id, member_id) for member_id in self.members),
            records.topology_tombstone(group_id),
            records.group_epoch_tombstone(group_id),
        ]

    def epoch_record(self, epoch: int) -> KeyValue:
        """Return the record of a new epoch that changes nothing else."""
        return records.group_epoch(
            self.group_id,
            epoch,
            metadata_hash=self.metadata_hash,
            validated_topology_epoch=self.validated_topology_epoch,
            settings=self.assignment_settings,
        )

    def set_topology(self, topology: StreamsTopology | None) -> None:
        self.topology = topology
        self.readers = {} if topology is None else topology.readers()

    def put(self, member: StreamsMember) -> None:
        """Add or replace a member."""
        self._release(member.member_id)
        self.members[member.member_id] = member
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                self.active_owners[task] = member.member_id
            for task in (*tasks.standby, *tasks.warmup):
                self.copy_owners.setdefault(task, set()).add(member.member_id)

    def remove(self, member_id: str) -> None:
        self._release(member_id)
        self.members.pop(member_id, None)
        self.target.pop(member_id, None)
        if not self.members:
            self.shutdown_member_id = None

    def _release(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                if self.active_owners.get(task) == member_id:
                    del self.active_owners[task]
            for task in (*tasks.standby, *tasks.warmup):
                owners = self.copy_owners.get(task, set())
                owners.discard(member_id)
                if not owners:
                    self.copy_owners.pop(task, None)

    # -- descriptions -------------------------------------------------------------------------------------------------

    def describe(self) -> described.DescribedGroup:
        topology = self.topology
        if topology is None:
            shown = None
        elif self.configured is not None and self.configured.topology == topology:
            shown = self.configured.describe()
        else:
            shown = ConfiguredTopology(topology, 0, {}, {}).describe()
        return described.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state_name(),
            group_epoch=self.group_epoch,
            assignment_epoch=self.target_epoch,
            topology=shown,
            members=[
                member.describe(self.target.get(member_id, NO_TASKS)) for member_id, member in self.members.items()
            ],
        )

    def validate(self) -> None:
        """Check the invariants, for tests and debugging."""
        active: dict[TaskId, str] = {}
        copies: dict[TaskId, set[str]] = {}
        places: Counter[tuple[str, TaskId]] = Counter()
        for member in self.members.values():
            assert not member.assigned.overlaps(member.pending_revocation)
            held = member.assigned | member.pending_revocation
            assert member.active_epochs.keys() == held.active
            for task in held.active:
                assert task not in active, f"{task} has two owners"
                active[task] = member.member_id
            for task in (*held.standby, *held.warmup):
                copies.setdefault(task, set()).add(member.member_id)
            places.update((member.process_id, task) for task in held.all())
            assert member.member_epoch <= self.group_epoch
        assert active == self.active_owners
        assert copies == self.copy_owners
        assert all(count == 1 for count in places.values()), "a process has a task twice"
        assert self.target_epoch <= self.group_epoch
        targeted = Counter(task for each in self.target.values() for task in each.active)
        assert all(count == 1 for count in targeted.values()), "two members have the same active task as their target"


def _described(tasks: Tasks) -> described.Assignment:
    def listed(some: Iterable[TaskId]) -> list[described.TaskIds]:
        return [
            described.TaskIds(subtopology_id=subtopology, partitions=numbers)
            for subtopology, numbers in by_subtopology(some).items()
        ]

    return described.Assignment(
        active_tasks=listed(tasks.active), standby_tasks=listed(tasks.standby), warmup_tasks=listed(tasks.warmup)
    )
