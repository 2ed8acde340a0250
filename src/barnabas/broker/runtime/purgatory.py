"""Requests that wait for a condition: found by the keys that wake them, limited by a timer, never polled.

Owner: the event loop. An operation completes exactly once: because its condition held when one of its keys was checked, or
because its time ran out.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from barnabas.broker.runtime.timers import SLOT_MS, Deadlines, Timers


class DelayedOperation(ABC):
    """One waiting request. Subclasses define when it is done, and what happens then."""

    __slots__ = ("_keys", "_slot", "completed")

    def __init__(self) -> None:
        self.completed = False
        self._keys: tuple[Hashable, ...] = ()
        #: Where its deadline is; 0 while it does not wait.
        self._slot = 0

    @abstractmethod
    def is_satisfied(self) -> bool:
        """Whether the condition holds. Must be cheap: it is called each time one of the keys is checked."""

    def is_satisfied_by(self, key: Hashable) -> bool:
        """Whether the condition holds, after this key was checked: operations with thousands of keys examine only this one."""
        return self.is_satisfied()

    def waits_for(self) -> dict[str, Any]:
        """Describe the condition in plain values, for the console and the CLI."""
        return {}

    @property
    def expires_s(self) -> float | None:
        """When the wait ends, by the clock of the timers; None if it does not wait."""
        return self._slot * SLOT_MS / 1000 if self._slot else None

    @abstractmethod
    def on_complete(self, *, expired: bool) -> None:
        """Finish the request. Called once; `expired` means that the time ran out."""


class Purgatory:
    """Operations waiting under their keys. A key is any hashable; partitions use themselves."""

    def __init__(self, name: str, timers: Timers) -> None:
        self.name = name
        self._deadlines: Deadlines[DelayedOperation] = Deadlines(timers, self._expire)
        #: The operations by key. A caller that checks a key for each request looks first whether the key is here.
        self.watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Return the number of waiting operations."""
        return self._size

    def __iter__(self) -> Iterator[DelayedOperation]:
        """Yield each waiting operation once."""
        for key, watchers in self.watchers.items():
            for operation in watchers:
                if operation._keys[0] == key:
                    yield operation

    @property
    def watched_keys(self) -> int:
        return len(self.watchers)

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], *, timeout_ms: int
    ) -> bool:
        """Complete now if the condition holds; otherwise wait. Return whether it completed now."""
        if operation.is_satisfied():
            operation.completed = True
            operation.on_complete(expired=False)
            return True
        self.watch(operation, keys, timeout_ms=timeout_ms)
        return False

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], *, timeout_ms: int) -> None:
        """Wait. The caller knows that the condition does not hold."""
        operation._keys = tuple(dict.fromkeys(keys))
        watchers = self.watchers
        for key in operation._keys:
            waiting = watchers.get(key)
            if waiting is None:
                watchers[key] = {operation: None}
            else:
                waiting[operation] = None
        operation._slot = self._deadlines.add(operation, max(0, timeout_ms))
        self._size += 1

    def watch_also(self, operation: DelayedOperation, key: Hashable) -> None:
        """Add a key to a waiting operation. One that does not wait yet gets this key with `watch`."""
        if operation._slot:
            operation._keys = (*operation._keys, key)
            self.watchers.setdefault(key, {})[operation] = None

    def check(self, key: Hashable) -> int:
        """Complete the operations under `key` whose condition holds now. Return their number."""
        watchers = self.watchers.get(key)
        if not watchers:
            return 0
        completed = 0
        # Iterate over a copy: a check may find that a disk has failed, and that wakes all operations which wait for it.
        for operation in list(watchers):
            if not operation.completed and operation.is_satisfied_by(key):
                completed += self._finish(operation, False)
        return completed

    def cancel(self, operation: DelayedOperation) -> None:
        """Forget an operation whose client has disconnected, without calling `on_complete`."""
        if not operation.completed:
            operation.completed = True
            self._forget(operation)

    def _expire(self, operation: DelayedOperation) -> None:
        self._finish(operation, True)

    def _finish(self, operation: DelayedOperation, expired: bool) -> bool:
        """Complete an operation. Return False if it had completed before."""
        if operation.completed:
            return False
        operation.completed = True
        self._forget(operation)
        operation.on_complete(expired=expired)
        return True

    def _forget(self, operation: DelayedOperation) -> None:
        self._deadlines.remove(operation, operation._slot)
        operation._slot = 0
        for key in operation._keys:
            watchers = self.watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self.watchers[key]
        self._size -= 1
