"""Offsets over time: how fast they grow, and since when they are unchanged. Pure."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

#: After a gap of this length the rate is measured from the beginning.
_GAP_S: Final = 600.0
_REMEMBERED_MAX: Final = 100_000

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Sample:
    at_s: float
    value: int
    #: When the value last changed; -inf if it was never seen to change.
    moved_s: float
    seen_s: float
    #: Start of the current measurement, and (below) of the next one.
    from_s: float
    from_value: int
    next_s: float
    next_value: int


class Growth(Generic[K]):
    def __init__(self, rate_s: float = 5.0) -> None:
        """A rate is measured over at least `rate_s`, because records and commits arrive in batches."""
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
        """Whether the value has been observed for this long without a change."""
        sample = self._samples.get(key)
        return sample is not None and now_s - max(sample.moved_s, sample.seen_s) >= for_s

    def rate(self, key: K, *, over_s: float = 0.0) -> float | None:
        """Change per second; None if there is only one sample, or the samples span less than `over_s`."""
        sample = self._samples.get(key)
        if sample is None or sample.at_s <= sample.from_s + over_s:
            return None
        return (sample.value - sample.from_value) / (sample.at_s - sample.from_s)

    def still_s(self, key: K) -> float:
        """Return how long the value was observed without a change."""
        sample = self._samples.get(key)
        return 0.0 if sample is None else sample.at_s - max(sample.moved_s, sample.seen_s)
