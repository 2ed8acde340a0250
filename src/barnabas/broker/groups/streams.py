"""The protocol of streams groups (KIP-1071): members join, stay and leave by one request, StreamsGroupHeartbeat.

As for consumer groups, a heartbeat updates the member and perhaps the group epoch, computes a target assignment for a new
epoch, and moves the member one step towards it. In addition a member that joins brings its topology. The coordinator resolves
it against the topics that exist: it has missing internal topics created, and gives out tasks once all topics exist and fit.

As in Kafka 4.3, there are no static members, no warm-up tasks and no changes of a topology: the fields of the protocol that
ask for them are refused, or stay empty.

Pure; owner: the group machine.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import streams_records as records
from barnabas.broker.groups.assignors.sticky import StreamsMemberSpec, StreamsSpec, assign_sticky
from barnabas.broker.groups.classic_group import ClassicGroup
from barnabas.broker.groups.consumer_group import JOINING_EPOCH, LEAVING_EPOCH, LEAVING_STATIC_EPOCH
from barnabas.broker.groups.group import Group, GroupEnvironment, Outcome, Requester, refuse_blank
from barnabas.broker.groups.streams_group import Creation, Endpoint, StreamsGroup, StreamsMember, TaskState
from barnabas.broker.groups.streams_reconciliation import reconcile_tasks
from barnabas.broker.groups.streams_tasks import NO_TASKS, TaskId, Tasks, by_subtopology, task_set
from barnabas.broker.groups.streams_topics import ConfiguredTopology, InternalTopic, StatusCode, configure
from barnabas.broker.groups.streams_topology import StreamsTopology
from barnabas.broker.groups.subscriptions import metadata_hash_of, topics_named
from barnabas.broker.runtime.machine import Result, SendToDriver
from barnabas.wire.messages.streams_group_describe import DescribedGroup
from barnabas.wire.messages.streams_group_heartbeat import (
    EndpointToPartitions,
    ResponseEndpoint,
    ResponseTaskIds,
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TopicPartition,
)

STREAMS_SESSION: Final = "streams session"
STREAMS_REBALANCE: Final = "streams rebalance"
#: Time-outs that remove a member, by (group id, member id).
_MEMBER_TIMERS: Final = (STREAMS_SESSION, STREAMS_REBALANCE)
#: Ends the time in which members of a new group are waited for, by (group id).
STREAMS_INITIAL: Final = "streams initial delay"
_STANDBYS: Final = "num.standby.replicas"


#: Names in an error, with the reasons of the controller.
_REASONS_SHOWN: Final = 3

#: Whether the requester may create a topic.
MayCreate = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class CreateInternalTopics:
    """A message to the driver: have the controller create these topics, and report what came of it."""

    group_id: str
    topics: tuple[InternalTopic, ...]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """The epoch of the group and its topology after a heartbeat, before the records are in the log."""

    group_epoch: int
    configured: ConfiguredTopology
    settings: Mapping[str, str]


class StreamsProtocol:
    """Operations on streams groups of one shard."""

    def __init__(self, groups: dict[str, Group], env: GroupEnvironment) -> None:
        self._groups = groups
        self._env = env

    def find(self, group_id: str) -> StreamsGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def require(self, group_id: str, missing: str = "Group") -> StreamsGroup:
        group = self.find(group_id)
        if group is None:
            known = f"Group {group_id} is not a streams group." if group_id in self._groups else None
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, known or f"{missing} {group_id} not found.")
        return group

    # -- the request ---------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: StreamsGroupHeartbeatRequest,
        requester: Requester,
        now_ms: int,
        may_create: MayCreate = lambda topic: True,
    ) -> Result[StreamsGroupHeartbeatResponse]:
        _check(request)
        out = Outcome()
        if request.member_epoch == LEAVING_EPOCH:
            return out.result(self._leave(request, out))
        is_joining = request.member_epoch == JOINING_EPOCH
        group = self._group_for(request.group_id, out, is_joining=is_joining)
        owned = _owned(request)
        self._check_size(group, request.member_id)
        member = self._member_for(group, request, owned)
        updated = _updated(member, request, requester)
        statuses: list[Status] = []
        topology = self._topology(group, request, out)
        if updated.topology_epoch < topology.epoch:
            statuses.append(
                StatusCode.STALE_TOPOLOGY.status(
                    f"The member's topology epoch {updated.topology_epoch} is behind the group's topology epoch "
                    f"{topology.epoch}."
                )
            )
        config = self._env.group_config(group.group_id)
        found = self._refresh(group, topology, member, updated, owned, config, out)
        members = {**group.members, updated.member_id: updated}
        target_epoch, targets = self._assign(group, members, found, config, out, statuses, now_ms)
        moved = reconcile_tasks(
            updated,
            target_epoch=target_epoch,
            target=targets.get(updated.member_id, NO_TASKS),
            owned=owned,
            active_must_wait=group.may_not_run_active(updated.process_id),
            copy_must_wait=group.may_not_run_copy(updated.process_id),
        )
        if moved != updated:
            out.records.append(moved.assignment_record(group.group_id))
            self._watch_revocation(group.group_id, moved, out)
        out.set_timer((STREAMS_SESSION, group.group_id, moved.member_id), config.streams_session_timeout_ms)
        if request.shutdown_application and group.shutdown_member_id is None:
            group.shutdown_member_id = moved.member_id
        response = StreamsGroupHeartbeatResponse(
            member_id=moved.member_id,
            member_epoch=moved.member_epoch,
            heartbeat_interval_ms=config.streams_heartbeat_interval_ms,
            status=statuses,
        )
        self._add_assignment(response, request, group, member, moved, owned, found.configured)
        asked = self._create_missing(group, found.configured, config, may_create, out, statuses, now_ms)
        if group.is_empty:
            out.then = lambda: self._begin(group.group_id, found.configured, asked, config)
        if group.shutdown_member_id is not None:
            statuses.append(
                StatusCode.SHUTDOWN_APPLICATION.status(
                    f"Streams group member {group.shutdown_member_id} encountered a fatal error and requested a shutdown "
                    "for the entire application."
                )
            )
        return out.result(response)

    def _group_for(self, group_id: str, out: Outcome, *, is_joining: bool) -> StreamsGroup:
        """Return the group. A member that joins may create it, or convert an empty classic group."""
        former = self._groups.get(group_id)
        if is_joining and former is None:
            return StreamsGroup(group_id)
        if is_joining and isinstance(former, ClassicGroup) and former.is_empty:
            out.records.extend(former.tombstones())
            return StreamsGroup(group_id)
        return self.require(group_id, "Streams group")

    def _check_size(self, group: StreamsGroup, member_id: str) -> None:
        size_max = self._env.settings().streams_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {size_max} members.",
            )

    @staticmethod
    def _member_for(group: StreamsGroup, request: StreamsGroupHeartbeatRequest, owned: Tasks | None) -> StreamsMember:
        received = request.member_epoch
        if received == JOINING_EPOCH:
            # A member that starts over, for example because a response was lost, keeps its tasks.
            return group.members.get(request.member_id) or StreamsMember(member_id=request.member_id)
        member = group.require_member(request.member_id)
        if received == member.member_epoch:
            return member
        if received == member.previous_member_epoch and owned is not None and owned.is_within(member.assigned):
            return member  # the answer with the new epoch was lost
        relation = "greater" if received > member.member_epoch else "smaller"
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a {relation} member epoch ({received}) than the one known by the group "
            f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
        )

    @staticmethod
    def _topology(group: StreamsGroup, request: StreamsGroupHeartbeatRequest, out: Outcome) -> StreamsTopology:
        """Return the group's topology. The first member brings it; others must have the same, or an earlier one."""
        if request.topology is None:
            if group.topology is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "The group has no topology. The member must rejoin.")
            return group.topology
        topology = StreamsTopology.of(request.topology)
        topology.check()
        if group.topology is None:
            out.records.append(records.topology(group.group_id, topology.record()))
            return topology
        if group.topology.epoch <= topology.epoch and group.topology != topology:
            raise Refused(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return group.topology

    # -- topics and epochs ---------------------------------------------------------------------------------------------

    def _refresh(
        self,
        group: StreamsGroup,
        topology: StreamsTopology,
        member: StreamsMember,
        updated: StreamsMember,
        owned: Tasks | None,
        config: GroupConfig,
        out: Outcome,
    ) -> _Epoch:
        """Write the changed member, and a new group epoch if the member, the topics or the settings have changed."""
        has_changed = updated != group.members.get(updated.member_id)
        if has_changed:
            out.records.append(updated.metadata_record(group.group_id))
        topics = self._env.topics
        configured, metadata_hash = group.configured, group.metadata_hash
        if configured is None or configured.topology != topology or group.topics_version != topics.version:
            metadata_hash = metadata_hash_of(topics_named(topology.required_topics(), topics))
            if configured is None or configured.topology != topology or configured.metadata_hash != metadata_hash:
                configured = group.configured = configure(topology, metadata_hash, topics)
            group.topics_version = topics.version
        if configured.is_ready:
            _check_tasks(configured, owned)
        metadata_hash = configured.metadata_hash
        validated = topology.epoch if configured.is_ready else -1
        settings = {_STANDBYS: str(config.streams_num_standby_replicas)}
        epoch = group.group_epoch
        if (
            has_changed
            or metadata_hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or settings != group.assignment_settings
        ):
            epoch += 1
            self._env.counts.streams_group_rebalance(1)
            out.records.append(
                records.group_epoch(
                    group.group_id,
                    epoch,
                    metadata_hash=metadata_hash,
                    validated_topology_epoch=validated,
                    settings=settings,
                )
            )
        return _Epoch(epoch, configured, settings)

    def _begin(
        self, group_id: str, configured: ConfiguredTopology, asked: Mapping[str, Creation], config: GroupConfig
    ) -> Result[None]:
        """The first member is in the log, and perhaps it made the group: note the soft state, and wait for other members."""
        out = Outcome()
        group = self.find(group_id)
        if group is not None:
            group.configured = configured
            group.creations.update(asked)
            if config.streams_initial_rebalance_delay_ms > 0 and not group.is_delayed:
                group.is_delayed = True
                out.set_timer((STREAMS_INITIAL, group_id), config.streams_initial_rebalance_delay_ms)
        return out.result()

    def _assign_first(self, group: StreamsGroup, out: Outcome, now_ms: int) -> None:
        group.is_delayed = False
        configured = group.configured
        if group.is_empty or group.group_epoch <= group.target_epoch:
            return
        if configured is None or configured.topology != group.topology:
            return  # the next heartbeat computes both
        found = _Epoch(group.group_epoch, configured, group.assignment_settings)
        _write_target(group, group.members, found, out, now_ms)

    def _assign(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsMember],
        found: _Epoch,
        config: GroupConfig,
        out: Outcome,
        statuses: list[Status],
        now_ms: int,
    ) -> tuple[int, Mapping[str, Tasks]]:
        """Compute the target of a new epoch, unless it is too early for that. Returns the target epoch and the targets."""
        is_first = group.is_empty and config.streams_initial_rebalance_delay_ms > 0
        if is_first or group.is_delayed:
            detail = "Assignment delayed due to the configured initial rebalance delay."
            statuses.append(StatusCode.ASSIGNMENT_DELAYED.status(detail))
            return group.target_epoch, {}
        if group.target_epoch >= found.group_epoch:
            return group.target_epoch, group.target
        since_ms = now_ms - group.target_timestamp_ms
        if 0 <= since_ms < config.streams_assignment_interval_ms:
            detail = "Assignment delayed due to the configured assignment interval."
            statuses.append(StatusCode.ASSIGNMENT_DELAYED.status(detail))
            return group.target_epoch, group.target
        return found.group_epoch, _write_target(group, members, found, out, now_ms)

    # -- internal topics -----------------------------------------------------------------------------------------------

    def _create_missing(
        self,
        group: StreamsGroup,
        configured: ConfiguredTopology,
        config: GroupConfig,
        may_create: MayCreate,
        out: Outcome,
        statuses: list[Status],
        now_ms: int,
    ) -> dict[str, Creation]:
        """Report what is wrong with the topics, and have missing ones created. Returns those that were asked for now."""
        problem = configured.problem
        if problem is None:
            group.creations.clear()
            return {}
        detail = problem.status_detail
        statuses.append(status := Status(status_code=problem.status_code, status_detail=detail))
        forbidden = [each.name for each in configured.missing if not may_create(each.name)]
        if forbidden:
            status.status_detail = f"{detail}; Unauthorized to CREATE on topics {', '.join(forbidden)}."
            return {}
        # An error is shown for this time, and then the creation is tried again.
        retry_ms = 2 * config.streams_heartbeat_interval_ms
        recent = {name: each for name, each in group.creations.items() if 0 <= now_ms - each.since_ms < retry_ms}
        failed = [f"{name} ({each.error})" for name, each in recent.items() if each.error is not None]
        if failed:
            more = f" and {len(failed) - _REASONS_SHOWN} more" if len(failed) > _REASONS_SHOWN else ""
            status.status_detail = f"{detail}; Creation failed: {', '.join(failed[:_REASONS_SHOWN])}{more}."
        asked = tuple(each for each in configured.missing if each.name not in recent)
        if not asked:
            return {}
        creations = dict.fromkeys((each.name for each in asked), Creation(now_ms))
        group.creations.update(creations)
        out.effects.append(SendToDriver(CreateInternalTopics(group.group_id, asked)))
        return creations

    def topics_created(self, group_id: str, errors: Mapping[str, str], now_ms: int) -> Result[None]:
        """Note what the controller answered. Members hear of errors with their next heartbeats."""
        group = self.find(group_id)
        if group is not None:
            for name, error in errors.items():
                if name in group.creations:
                    group.creations[name] = Creation(now_ms, error)
        return Result()

    # -- the answer ----------------------------------------------------------------------------------------------------

    def _add_assignment(
        self,
        response: StreamsGroupHeartbeatResponse,
        request: StreamsGroupHeartbeatRequest,
        group: StreamsGroup,
        before: StreamsMember,
        moved: StreamsMember,
        owned: Tasks | None,
        configured: ConfiguredTopology,
    ) -> None:
        """Add the tasks, if the member needs to know them, and where the tasks of all instances run."""
        has_moved = moved.assigned != before.assigned
        has_missed_answer = request.member_epoch != before.member_epoch or (
            owned is not None and owned != moved.assigned
        )
        if request.member_epoch == JOINING_EPOCH or has_moved or has_missed_answer:
            response.active_tasks = _listed(moved.assigned.active)
            response.standby_tasks = _listed(moved.assigned.standby)
            response.warmup_tasks = _listed(moved.assigned.warmup)
        if moved.endpoint is not None and (has_moved or request.member_epoch == JOINING_EPOCH):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != request.endpoint_information_epoch:
            others = (each for each in group.members.values() if each.member_id != moved.member_id)
            response.partitions_by_user_endpoint = [
                self._partitions_of(each, each.endpoint, configured)
                for each in (*others, moved)
                if each.endpoint is not None
            ]
        if group.group_id in self._groups:
            # A new group object is made when the records are replayed, and begins at 0.
            response.endpoint_information_epoch = group.endpoint_epoch

    def _partitions_of(
        self, member: StreamsMember, endpoint: Endpoint, configured: ConfiguredTopology
    ) -> EndpointToPartitions:
        inputs = {each.subtopology_id: each.inputs for each in configured.topology.subtopologies}

        def partitions(tasks: Iterable[TaskId]) -> list[TopicPartition]:
            found = [
                TopicPartition(
                    topic=topic,
                    partitions=[number for number in numbers if number < self._env.topics.partition_count(topic)],
                )
                for subtopology, numbers in by_subtopology(tasks).items()
                for topic in inputs.get(subtopology, ())
            ]
            return [each for each in found if each.partitions]

        return EndpointToPartitions(
            user_endpoint=ResponseEndpoint(host=endpoint.host, port=endpoint.port),
            active_partitions=partitions(member.assigned.active),
            standby_partitions=partitions(member.assigned.standby),
        )

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(self, request: StreamsGroupHeartbeatRequest, out: Outcome) -> StreamsGroupHeartbeatResponse:
        group = self.require(request.group_id)
        member = group.require_member(request.member_id)
        if request.shutdown_application and group.shutdown_member_id is None:
            group.shutdown_member_id = member.member_id
        self._remove(group, member, out)
        return StreamsGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch, status=[])

    @staticmethod
    def _remove(group: StreamsGroup, member: StreamsMember, out: Outcome) -> None:
        group_id, member_id = group.group_id, member.member_id
        out.records += [
            records.current_assignment_tombstone(group_id, member_id),
            records.target_assignment_tombstone(group_id, member_id),
            records.member_metadata_tombstone(group_id, member_id),
            group.epoch_record(group.group_epoch + 1),
        ]
        for what in _MEMBER_TIMERS:
            out.cancel_timer((what, group_id, member_id))

    # -- time-outs -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _watch_revocation(group_id: str, member: StreamsMember, out: Outcome) -> None:
        """Limit the time in which the member must give up tasks: its own rebalance time-out."""
        key = (STREAMS_REBALANCE, group_id, member.member_id)
        if member.state is TaskState.UNREVOKED_TASKS:
            out.set_timer(key, member.rebalance_timeout_ms)
        else:
            out.cancel_timer(key)

    def loaded(self, group: StreamsGroup, out: Outcome) -> None:
        timeout_ms = self._env.group_config(group.group_id).streams_session_timeout_ms
        for member in group.members.values():
            out.set_timer((STREAMS_SESSION, group.group_id, member.member_id), timeout_ms)
            if member.state is TaskState.UNREVOKED_TASKS:
                out.set_timer((STREAMS_REBALANCE, group.group_id, member.member_id), member.rebalance_timeout_ms)

    def timer_fired(self, what: object, group: StreamsGroup, rest: list[object], out: Outcome, now_ms: int) -> None:
        if what == STREAMS_INITIAL:
            self._assign_first(group, out, now_ms)
            return
        member = group.members.get(str(rest[0]))
        if member is None or (what == STREAMS_REBALANCE and member.state is not TaskState.UNREVOKED_TASKS):
            return
        self._remove(group, member, out)

    def describe(self, group_id: str) -> DescribedGroup:
        try:
            return self.require(group_id).describe()
        except Refused as refusal:
            return DescribedGroup(group_id=group_id, error_code=refusal.code, error_message=refusal.message)


def _write_target(
    group: StreamsGroup, members: Mapping[str, StreamsMember], found: _Epoch, out: Outcome, now_ms: int
) -> dict[str, Tasks]:
    """Compute the targets of an epoch, and write those that have changed. No member has a task while topics are missing."""
    configured = found.configured
    spec = StreamsSpec(
        members={
            member_id: StreamsMemberSpec(member.process_id, group.target.get(member_id, NO_TASKS))
            for member_id, member in members.items()
        },
        task_counts=configured.task_counts if configured.is_ready else {},
        stateful=configured.stateful,
        standby_replicas=int(found.settings.get(_STANDBYS, "0")),
    )
    targets = assign_sticky(spec)
    for member_id, tasks in targets.items():
        if group.target.get(member_id) != tasks:
            out.records.append(records.target_assignment(group.group_id, member_id, tasks))
    out.records.append(records.target_epoch(group.group_id, found.group_epoch, timestamp_ms=now_ms))
    return targets


def _check(request: StreamsGroupHeartbeatRequest) -> None:
    _check_supported(request)
    for text, name in (
        (request.member_id, "MemberId"),
        (request.group_id, "GroupId"),
        (request.rack_id, "RackId"),
    ):
        refuse_blank(text, name)
    listed = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    epoch = request.member_epoch
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        for tasks, name in zip(listed, ("ActiveTasks", "StandbyTasks", "WarmupTasks"), strict=True):
            if tasks:
                raise _invalid(f"{name} must be empty when (re-)joining.")
        if request.topology is None:
            raise _invalid("Topology must be non-null when (re-)joining.")
    elif epoch == LEAVING_STATIC_EPOCH:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVING_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    elif request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")
    if any(tasks is not None for tasks in listed) and any(tasks is None for tasks in listed):
        raise _invalid("If one task-type is non-null, all must be non-null.")


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    """Refuse what Kafka 4.3 refuses, with its words."""
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise _invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise _invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(each.source_topic_regex for each in request.topology.subtopologies):
        raise _invalid("Regular expressions for source topics are not supported yet.")


def _invalid(reason: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, reason)


def _updated(member: StreamsMember, request: StreamsGroupHeartbeatRequest, requester: Requester) -> StreamsMember:
    endpoint, tags = request.user_endpoint, request.client_tags
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=requester.client_id,
        client_host=requester.client_host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags=member.client_tags
        if tags is None
        else tuple(sorted({each.key: each.value for each in tags}.items())),
    )


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return Tasks(task_set(active), task_set(standby), task_set(warmup))


def _check_tasks(configured: ConfiguredTopology, owned: Tasks | None) -> None:
    for subtopology, number in () if owned is None else owned.all():
        count = configured.task_counts.get(subtopology)
        if count is None:
            raise _invalid(f"Subtopology {subtopology} does not exist in the topology.")
        if not 0 <= number < count:
            raise _invalid(
                f"Task {number} for subtopology {subtopology} is invalid. Number of tasks for this subtopology: {count}"
            )


def _listed(tasks: Collection[TaskId]) -> list[ResponseTaskIds]:
    return [
        ResponseTaskIds(subtopology_id=subtopology, partitions=numbers)
        for subtopology, numbers in by_subtopology(tasks).items()
    ]
