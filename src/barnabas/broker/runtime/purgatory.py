"""Where requests wait for a condition: keyed by what wakes them, bounded by a timer, never polled.

Owner: the event loop. An operation completes exactly once: because its condition came true when one of its keys was
checked, or because its time ran out.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from barnabas.broker.runtime.timers import Timer, Timers


class DelayedOperation(ABC):
    """One waiting request. Subclasses say when it is done, and what to do then."""

    __slots__ = ("_keys", "_timer", "completed")

    def __init__(self) -> None:
        self.completed = False
        self._keys: tuple[Hashable, ...] = ()
        self._timer: Timer | None = None

    @abstractmethod
    def is_satisfied(self) -> bool:
        """Whether the condition has come true. Cheap: it is asked each time one of the keys is checked."""

    def is_satisfied_by(self, key: Hashable) -> bool:
        """The same, when one of its keys was checked: an operation with thousands of them looks at this one alone."""
        return self.is_satisfied()

    def waits_for(self) -> dict[str, Any]:
        """In plain values, for whoever looks inside."""
        return {}

    @property
    def expires_s(self) -> float | None:
        """When its time is up, by the clock of the timers; None where nobody can tell."""
        when = getattr(self._timer, "when", None)
        return when() if when is not None else None

    @abstractmethod
    def on_complete(self, *, expired: bool) -> None:
        """Called once, with what ended the wait."""


class Purgatory:
    """Operations waiting under their keys. A key is any hashable; partitions use themselves."""

    def __init__(self, name: str, timers: Timers) -> None:
        self.name = name
        self._timers = timers
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        """How many operations wait."""
        return self._size

    def __iter__(self) -> Iterator[DelayedOperation]:
        """Each that waits, once."""
        for key, watchers in self._watchers.items():
            for operation in watchers:
                if operation._keys[0] == key:
                    yield operation

    @property
    def watched_keys(self) -> int:
        return len(self._watchers)

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], *, timeout_ms: int
    ) -> bool:
        """Complete now if the condition already holds; else wait. True when it completed now."""
        if operation.is_satisfied():
            operation.completed = True
            operation.on_complete(expired=False)
            return True
        self.watch(operation, keys, timeout_ms=timeout_ms)
        return False

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], *, timeout_ms: int) -> None:
        """Wait: the caller knows that the condition does not hold."""
        operation._keys = tuple(dict.fromkeys(keys))
        watchers = self._watchers
        for key in operation._keys:
            waiting = watchers.get(key)
            if waiting is None:
                watchers[key] = {operation: None}
            else:
                waiting[operation] = None
        operation._timer = self._timers.call_later(max(0, timeout_ms) / 1000, lambda: self._expire(operation))
        self._size += 1

    def watch_also(self, operation: DelayedOperation, key: Hashable) -> None:
        """One more key for an operation that waits; one that does not wait yet has it among those that `watch` gets."""
        if operation._timer is not None:
            operation._keys = (*operation._keys, key)
            self._watchers.setdefault(key, {})[operation] = None

    def check(self, key: Hashable) -> int:
        """Something happened to `key`: complete whatever that satisfies. Returns how many completed."""
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        completed = 0
        # Of a copy: a look at the log may find that its disk has failed, and then everybody who waits for it is woken.
        for operation in list(watchers):
            if not operation.completed and operation.is_satisfied_by(key):
                completed += self._finish(operation, False)
        return completed

    def cancel(self, operation: DelayedOperation) -> None:
        """Forget an operation whose client has gone: nothing is called."""
        if not operation.completed:
            operation.completed = True
            self._forget(operation)

    def _expire(self, operation: DelayedOperation) -> None:
        self._finish(operation, True)

    def _finish(self, operation: DelayedOperation, expired: bool) -> bool:
        """False where it was completed already."""
        if operation.completed:
            return False
        operation.completed = True
        self._forget(operation)
        operation.on_complete(expired=expired)
        return True

    def _forget(self, operation: DelayedOperation) -> None:
        if operation._timer is not None:
            operation._timer.cancel()
            operation._timer = None
        for key in operation._keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
        self._size -= 1
