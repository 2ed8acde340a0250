"""Offsets over time: how fast they grow, since when they stand still. Pure."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

#: What was not noted within this time starts its rate anew.
_GAP_S: Final = 600.0
_REMEMBERED_MAX: Final = 100_000

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Sample:
    at_s: float
    value: int
    #: When it last was another one; infinitely long ago where that was never seen.
    moved_s: float
    seen_s: float
    #: What the rate counts from, and what it will count from next.
    from_s: float
    from_value: int
    next_s: float
    next_value: int


class Growth(Generic[K]):
    def __init__(self, rate_s: float = 5.0) -> None:
        """A rate is taken over at least `rate_s`, once that has passed: records and commits come in batches."""
        self._rate_s = rate_s
        self._samples: dict[K, _Sample] = {}

    def note(self, key: K, value: int, now_s: float) -> None:
        last = self._samples.get(key)
        if last is None or now_s - last.at_s > _GAP_S or value < last.value:
            if len(self._samples) >= _REMEMBERED_MAX:
                self._samples.clear()
            self._samples[key] = _Sample(now_s, value, -math.inf, now_s, now_s, value, now_s, value)
            return
        if value != last.value:
            last.moved_s = now_s
        if now_s - last.next_s >= self._rate_s:
            last.from_s, last.from_value = last.next_s, last.next_value
            last.next_s, last.next_value = now_s, value
        last.at_s, last.value = now_s, value

    def value(self, key: K) -> int:
        return self._samples[key].value

    def last(self, key: K, default: int) -> int:
        sample = self._samples.get(key)
        return default if sample is None else sample.value

    def age_s(self, key: K, now_s: float) -> float:
        sample = self._samples.get(key)
        return now_s - sample.at_s if sample is not None else math.inf

    def is_still(self, key: K, now_s: float, for_s: float) -> bool:
        """Whether it has been looked at for so long, and has not moved."""
        sample = self._samples.get(key)
        return sample is not None and now_s - max(sample.moved_s, sample.seen_s) >= for_s

    def rate(self, key: K, *, over_s: float = 0.0) -> float | None:
        """A second, over the last seconds; None where that is one sample, or not so many seconds."""
        sample = self._samples.get(key)
        if sample is None or sample.at_s <= sample.from_s + over_s:
            return None
        return (sample.value - sample.from_value) / (sample.at_s - sample.from_s)

    def still_s(self, key: K) -> float:
        """For how long it was seen not to move."""
        sample = self._samples.get(key)
        return 0.0 if sample is None else sample.at_s - max(sample.moved_s, sample.seen_s)
