"""A batch of operations that is being sent to ZooKeeper."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.broker.zookeeper_client.operations import (
    Guard,
    MultiRead,
    Operation,
    Result,
)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    results: tuple[Result, ...]
    #: The guard failed: another broker is controller. The results are then meaningless.
    moved: bool = False


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request: an operation, several guarded writes in one transaction, or several reads in one."""

    order: tuple[int, int]
    operation: Operation | MultiRead
    batch: "PendingBatch"
    #: Indexes of the batch's operations that it carries.
    indexes: tuple[int, ...]
    #: Whether it is a transaction that begins with the check of the batch's guard.
    is_guarded: bool = False
    sent_s: float = 0.0
    #: How often its connection was lost.
    losses: int = 0

    def __lt__(self, other: "PendingRequest") -> bool:
        return self.order < other.order


class PendingBatch:
    """Operations whose answers the caller awaits together."""

    __slots__ = ("done", "guard", "missing", "operations", "results")

    def __init__(
        self, operations: Sequence[Operation], guard: Guard | None, done: "asyncio.Future[BatchAnswer]"
    ) -> None:
        self.operations = operations
        self.guard = guard
        self.done = done
        self.results: list[Result | None] = [None] * len(operations)
        self.missing = len(operations)

    def is_open_before(self, index: int) -> bool:
        """Whether an earlier operation has no answer yet."""
        return any(result is None for result in self.results[:index])

    def settle(self, index: int, result: Result) -> None:
        self.results[index] = result
        self.missing -= 1
        if self.missing == 0 and not self.done.done():
            self.done.set_result(BatchAnswer(tuple(result for result in self.results if result is not None)))

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def stop_moved(self) -> None:
        if not self.done.done():
            self.done.set_result(BatchAnswer((), moved=True))
