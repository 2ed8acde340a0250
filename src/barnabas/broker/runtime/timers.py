"""The interface of timers, which the event loop implements, or a test with a manual clock; and one timer for many deadlines."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

#: Deadlines in the same slot end together, up to this much late. Kafka's own timer has slots of 1 ms.
SLOT_MS: Final = 4
#: No slot has a timer.
_NEVER: Final = 1 << 62

T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    def time(self) -> float:
        """Return a monotonic time in seconds."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once on the owner's thread after `delay_s` seconds. An asyncio loop is a `Timers`."""
        ...


class Deadlines(Generic[T]):
    """Deadlines of many items, most of which are removed early. Owner: the event loop.

    One timer serves all of them: adding and removing an item only changes a dictionary.
    """

    __slots__ = ("_armed", "_on_due", "_order", "_slots", "_timer", "_timers")

    def __init__(self, timers: Timers, on_due: Callable[[T], None]) -> None:
        self._timers = timers
        self._on_due = on_due
        #: Items by slot; a slot that became empty stays until its time.
        self._slots: dict[int, dict[T, None]] = {}
        #: The slots, as a heap.
        self._order: list[int] = []
        self._armed = _NEVER
        self._timer: Timer | None = None

    def add(self, item: T, delay_ms: int) -> int:
        """Return the slot, which `remove` needs. It is never 0."""
        slot = (int(self._timers.time() * 1000) + delay_ms) // SLOT_MS + 1
        items = self._slots.get(slot)
        if items is None:
            self._slots[slot] = {item: None}
            heappush(self._order, slot)
            if slot < self._armed:
                self._arm(slot)
        else:
            items[item] = None
        return slot

    def remove(self, item: T, slot: int) -> None:
        items = self._slots.get(slot)
        if items is not None:
            items.pop(item, None)

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = slot
        self._timer = self._timers.call_later(max(0.0, slot * SLOT_MS / 1000 - self._timers.time()), self._tick)

    def _tick(self) -> None:
        order, slots = self._order, self._slots
        # The timer may come a fraction of a millisecond early: its own slot has ended all the same.
        last = max(self._armed, int(self._timers.time() * 1000) // SLOT_MS)
        self._timer, self._armed = None, _NEVER
        due: list[T] = []
        while order and (order[0] <= last or not slots[order[0]]):
            due.extend(slots.pop(heappop(order)))
        if order:
            self._arm(order[0])
        for item in due:
            self._on_due(item)
