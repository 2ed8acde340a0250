"""Time, chance and the trace of one simulated run: everything that happens comes out of one seed.

A run is a heap of (time, number, action). Nothing else moves time, so the same seed gives the same run, step by step.
"""

import heapq
import random
from collections.abc import Callable


class InvariantBroken(AssertionError):
    """A named promise of the cluster does not hold."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        #: (time, who, format, arguments): put into words only when somebody wants to read it.
        self.trace: list[tuple[int, str, str, tuple[object, ...]]] = []

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._numbers, action))

    def note(self, who: str, words: str, *arguments: object) -> None:
        self.trace.append((self.now_ms, who, words, arguments))

    def run_until(self, end_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(heap)
            self.steps += 1
            action()
        self.now_ms = end_ms

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def story(self, last: int | None = None) -> str:
        lines = self.trace if last is None else self.trace[-last:]
        return "\n".join(f"{at:>7} ms  {who:<10} {words % arguments}" for at, who, words, arguments in lines)
