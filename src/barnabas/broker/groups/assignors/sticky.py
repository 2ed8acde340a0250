"""The assignor of streams groups (KIP-1071), Kafka's `sticky`: tasks stay where they were as far as the balance allows. Pure.

A process (an instance of the application) has a member for each of its threads. Active tasks go to the member that had them,
then to a member that had a standby of them, then to the least loaded process. Standbys of stateful tasks go to processes that
do not have the task. No process gets the same task twice.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from barnabas.broker.groups.streams_tasks import NO_TASKS, TaskId, Tasks


@dataclass(frozen=True, slots=True)
class StreamsMemberSpec:
    process_id: str
    #: The member's former target.
    current: Tasks = NO_TASKS


@dataclass(frozen=True, slots=True)
class StreamsSpec:
    members: Mapping[str, StreamsMemberSpec]
    #: Numbers of tasks by subtopology.
    task_counts: Mapping[str, int]
    #: Ids of subtopologies with state.
    stateful: frozenset[str]
    standby_replicas: int


def assign_sticky(spec: StreamsSpec) -> dict[str, Tasks]:
    if not spec.members:
        return {}
    return _Assignment(spec).run()


@dataclass(slots=True, eq=False)
class _Member:
    member_id: str
    process: "_Process"
    active: set[TaskId] = field(default_factory=set)
    standby: set[TaskId] = field(default_factory=set)

    @property
    def size(self) -> int:
        return len(self.active) + len(self.standby)


@dataclass(slots=True, eq=False)
class _Process:
    #: Position among the processes: decides between equal loads.
    number: int
    members: list[_Member] = field(default_factory=list)
    #: Tasks that a member of the process has, in any role.
    tasks: set[TaskId] = field(default_factory=set)
    #: Numbers of tasks over all members; a task is counted once for each member that has it.
    size: int = 0

    @property
    def load(self) -> float:
        return self.size / len(self.members)

    def least_loaded(self) -> _Member:
        return min(self.members, key=lambda member: member.size)


class _Quota:
    """How many tasks a member may keep from before. It falls as members reach it, so that no member stays short."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members

    @property
    def per_member(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def given(self, size: int) -> None:
        """Note that a member now has this number of tasks."""
        if self._members and size == self.per_member:
            self._members -= 1
            self._tasks -= size


class _Assignment:
    def __init__(self, spec: StreamsSpec) -> None:
        self._spec = spec
        self._members: dict[str, _Member] = {}
        self._processes: dict[str, _Process] = {}
        self._former_active: dict[TaskId, _Member] = {}
        self._former_standby: dict[TaskId, list[_Member]] = {}
        for member_id, each in sorted(spec.members.items()):
            process = self._processes.setdefault(each.process_id, _Process(len(self._processes)))
            member = self._members[member_id] = _Member(member_id, process)
            process.members.append(member)
            self._former_active.update(dict.fromkeys(each.current.active, member))
            for task in each.current.standby:
                self._former_standby.setdefault(task, []).append(member)
        active = sum(spec.task_counts.values())
        stateful = sum(count for each, count in spec.task_counts.items() if each in spec.stateful)
        self._active_quota = _Quota(active, len(self._members))
        self._quota = _Quota(active + stateful * spec.standby_replicas, len(self._members))

    def run(self) -> dict[str, Tasks]:
        self._assign_active()
        if self._spec.standby_replicas > 0:
            self._assign_standby()
        return {
            member_id: Tasks(frozenset(member.active), frozenset(member.standby))
            for member_id, member in self._members.items()
        }

    def _tasks(self, subtopologies: Iterable[str]) -> list[TaskId]:
        return [TaskId(each, number) for each in subtopologies for number in range(self._spec.task_counts[each])]

    def _give(self, member: _Member, task: TaskId, *, is_active: bool) -> None:
        (member.active if is_active else member.standby).add(task)
        member.process.tasks.add(task)
        member.process.size += 1
        if is_active:
            self._active_quota.given(member.size)
        self._quota.given(member.size)

    # -- active tasks --------------------------------------------------------------------------------------------------

    def _assign_active(self) -> None:
        # Partition by partition: the same partitions of several subtopologies then stay together.
        remaining = sorted(self._tasks(self._spec.task_counts), key=lambda task: (task.partition, task.subtopology))
        remaining = [task for task in remaining if not self._keep_active(self._former_active.get(task), task)]
        remaining = [
            task for task in remaining if not self._keep_active(_least_loaded(self._former_standby.get(task, ())), task)
        ]
        by_load = [(process.load, process.number, process) for process in self._processes.values()]
        heapq.heapify(by_load)
        for task in sorted(remaining):
            _, number, process = by_load[0]
            self._give(process.least_loaded(), task, is_active=True)
            heapq.heapreplace(by_load, (process.load, number, process))

    def _keep_active(self, member: _Member | None, task: TaskId) -> bool:
        if member is None or member.size >= self._active_quota.per_member:
            return False
        self._give(member, task, is_active=True)
        return True

    # -- standby tasks -------------------------------------------------------------------------------------------------

    def _assign_standby(self) -> None:
        """Find a place for every replica. If there are too few processes, the others have none."""
        stateful = [each for each in self._spec.task_counts if each in self._spec.stateful]
        tasks = sorted(self._tasks(stateful), key=lambda task: (task.partition, task.subtopology), reverse=True)
        missing: list[tuple[TaskId, int]] = []
        for task in tasks:
            for given in range(self._spec.standby_replicas):
                if not self._keep_standby(task):
                    missing.append((task, self._spec.standby_replicas - given))
                    break
        for task, replicas in sorted(missing, reverse=True):
            for _ in range(replicas):
                free = [process for process in self._processes.values() if task not in process.tasks]
                if not free:
                    break
                process = min(free, key=lambda process: (process.load, process.number))
                self._give(process.least_loaded(), task, is_active=False)

    def _keep_standby(self, task: TaskId) -> bool:
        """Let a member that had the task keep a standby of it: the one that had it active, else one that had a standby."""
        former = self._former_active.get(task)
        standbys = [each for each in self._former_standby.get(task, ()) if task not in each.process.tasks]
        for member in (former, _least_loaded(standbys)):
            if member is None or task in member.process.tasks or member.size >= self._quota.per_member:
                continue
            self._give(member, task, is_active=False)
            return True
        return False


def _least_loaded(members: Iterable[_Member]) -> _Member | None:
    return min(members, key=lambda member: (member.process.load, member.size), default=None)
