"""Tasks of a streams group (KIP-1071): a task is one partition of the input of a subtopology. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol


class TaskId(NamedTuple):
    subtopology: str
    partition: int


TaskSet = frozenset[TaskId]


class ListedTasks(Protocol):
    """How messages and records list tasks: partitions by subtopology."""

    subtopology_id: str
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class Tasks:
    #: Tasks that read and process the partition.
    active: TaskSet = frozenset()
    #: Tasks that only keep a copy of the state.
    standby: TaskSet = frozenset()
    #: Tasks that restore the state, and become active afterwards.
    warmup: TaskSet = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def overlaps(self, other: "Tasks") -> bool:
        """Whether a task is in both, in the same role."""
        return not (
            self.active.isdisjoint(other.active)
            and self.standby.isdisjoint(other.standby)
            and self.warmup.isdisjoint(other.warmup)
        )

    def is_within(self, other: "Tasks") -> bool:
        return self.active <= other.active and self.standby <= other.standby and self.warmup <= other.warmup

    def __or__(self, other: "Tasks") -> "Tasks":
        return Tasks(self.active | other.active, self.standby | other.standby, self.warmup | other.warmup)

    def __and__(self, other: "Tasks") -> "Tasks":
        return Tasks(self.active & other.active, self.standby & other.standby, self.warmup & other.warmup)

    def __sub__(self, other: "Tasks") -> "Tasks":
        return Tasks(self.active - other.active, self.standby - other.standby, self.warmup - other.warmup)

    def all(self) -> Iterable[TaskId]:
        yield from self.active
        yield from self.standby
        yield from self.warmup


NO_TASKS: Final = Tasks()


def task_set(listed: Iterable[ListedTasks]) -> TaskSet:
    return frozenset(TaskId(each.subtopology_id, number) for each in listed for number in each.partitions)


def by_subtopology(tasks: Iterable[TaskId]) -> dict[str, list[int]]:
    """Return the partitions by subtopology, all in order."""
    found: dict[str, list[int]] = {}
    for subtopology, partition in sorted(tasks):
        found.setdefault(subtopology, []).append(partition)
    return found
