"""A virtual clock, a random generator and a queue of events, shared by all processes; and the story of the run.

Everything in a simulation runs in the order of this queue, so that a seed is one run. Processes never see each other's loops:
they meet only on the simulated network, disk and ZooKeeper.
"""

import gc
import hashlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.testing.simulation.loop import SimLoop

#: 2026-01-01T00:00:00Z: where wall clocks begin.
EPOCH_MS = 1_767_225_600_000
#: Cyclic garbage is collected after so many steps, the same in every run; `SimCluster` collects before the audit, too.
COLLECT_EVERY = 200_000
#: With more events than this at one moment, some process spins.
EVENTS_AT_ONCE_MAX = 20_000


class Violation(AssertionError):
    """A promise was broken. `name` is the promise."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_s = self.began_s = 100.0
        self._events: list[tuple[float, int, Any, Any]] = []
        #: Number of pushed events: events of the same moment keep their order.
        self.numbers = 0
        self._at_once = 0
        self.steps = 0
        #: (when, who, what)
        self.story: list[tuple[float, str, str]] = []
        self.violation: Violation | None = None
        #: Host -> the last zxid that any of its clients got.
        self.zxids_sent: dict[str, int] = {}
        #: The loops of dead processes: kept, so that nothing of theirs is closed in the middle of the run.
        self.graveyard: list[object] = []
        #: The exception that caused the violation, if there is one.
        self.failure: BaseException | None = None

    # -- the queue ----------------------------------------------------------------------------------------------------

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def at(self, when_s: float, action: Callable[[], object]) -> None:
        self.push(when_s, None, action)

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        self.numbers += 1
        heappush(self._events, (self.now_s + delay_s, self.numbers, None, action))

    def push(self, when_s: float, loop: "SimLoop | None", what: Any) -> None:
        """Push an event. `what` is an action of the world, a timer of the loop, or None: the loop has callbacks to run."""
        self.numbers += 1
        heappush(self._events, (when_s, self.numbers, loop, what))

    @property
    def pending(self) -> "list[tuple[float, int, Any, Any]]":
        """The events to come, in no order: when, number, loop, what."""
        return self._events

    def run_until(self, end_s: float) -> None:
        events = self._events
        while events and self.violation is None:
            if events[0][0] > end_s:
                break
            when_s, _, loop, what = heappop(events)
            self.steps += 1
            if self.steps % COLLECT_EVERY == 0:
                gc.collect()
            if when_s > self.now_s:
                self.now_s = when_s
                self._at_once = 0
            else:
                self._at_once += 1
                if self._at_once > EVENTS_AT_ONCE_MAX:
                    self.violate("nothing spins", f"time stands still at {self.now_s:.6f} s")
            if loop is None:
                what()
            elif what is None:
                loop.run_ready()
            else:
                loop.timer_fired(what)
        if self.violation is not None:
            raise self.violation
        self.now_s = max(self.now_s, end_s)

    # -- chance -------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    # -- what happened --------------------------------------------------------------------------------------------------

    def note(self, subject: str, what: str) -> None:
        self.story.append((self.now_s, subject, what))

    def violate(self, name: str, detail: str) -> None:
        """End the run with the first promise that is broken."""
        if self.violation is None:
            self.violation = Violation(name, detail)
            self.note("oracle", f"BROKEN {name}: {detail}")

    def story_text(self, last: int | None = None) -> str:
        lines = self.story if last is None else self.story[-last:]
        return "\n".join(f"{when_s - 100:9.4f} {subject:<12} {what}" for when_s, subject, what in lines)

    def digest(self) -> str:
        """Return a hash of the story: equal for equal runs."""
        return hashlib.sha256(self.story_text().encode()).hexdigest()[:16]
