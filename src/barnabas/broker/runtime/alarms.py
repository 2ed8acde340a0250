"""The timers of one machine, by key."""

from collections.abc import Callable, Hashable
from typing import Final

from barnabas.broker.runtime.timers import Timer, Timers

#: The event loop counts in milliseconds: a timer may fire this much early.
TIMER_PRECISION_S: Final = 0.001


class _Alarm:
    __slots__ = ("deadline_s", "fires_at_s", "timer")

    def __init__(self, deadline_s: float, timer: Timer) -> None:
        self.deadline_s = deadline_s
        #: When the timer fires: never after the deadline.
        self.fires_at_s = deadline_s
        self.timer = timer


class Alarms:
    """Owner: the event loop. A postponed alarm keeps its timer, which checks the new deadline when it fires. This is frequent:
    each request of a member postpones the end of its session.
    """

    __slots__ = ("_alarms", "_fired", "_timers")

    def __init__(self, timers: Timers, fired: Callable[[Hashable], None]) -> None:
        self._timers = timers
        self._fired = fired
        self._alarms: dict[Hashable, _Alarm] = {}

    def set(self, key: Hashable, delay_ms: int) -> None:
        """Set an alarm. It replaces one with the same key."""
        delay_s = delay_ms / 1000 if delay_ms > 0 else 0.0
        deadline_s = self._timers.time() + delay_s
        alarm = self._alarms.get(key)
        if alarm is not None:
            if alarm.fires_at_s <= deadline_s:
                alarm.deadline_s = deadline_s
                return
            alarm.timer.cancel()
        self._arm(key, deadline_s, delay_s)

    def _arm(self, key: Hashable, deadline_s: float, delay_s: float) -> None:
        def fire() -> None:
            left_s = alarm.deadline_s - self._timers.time()
            if left_s > TIMER_PRECISION_S:
                self._arm(key, alarm.deadline_s, left_s)
                return
            del self._alarms[key]
            self._fired(key)

        alarm = self._alarms[key] = _Alarm(deadline_s, self._timers.call_later(delay_s, fire))

    def cancel(self, key: Hashable) -> None:
        alarm = self._alarms.pop(key, None)
        if alarm is not None:
            alarm.timer.cancel()

    def clear(self) -> None:
        for alarm in self._alarms.values():
            alarm.timer.cancel()
        self._alarms.clear()
