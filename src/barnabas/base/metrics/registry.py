"""Counters, gauges and histograms that cost almost nothing on the hot path.

A metric is a plain object with plain numbers; owner: the event loop. Names and labels are looked up once, when a metric is
created, and not when it counts. Exposition (`barnabas.base.metrics.exposition`) reads the numbers at each scrape.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

#: Upper bounds of the latency buckets, in milliseconds.
LATENCY_BUCKETS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Histogram:
    """Counts of observations in milliseconds per bucket, and their sum."""

    __slots__ = ("buckets", "total_ms", "zeros")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.total_ms = 0.0
        #: Observations of 0 ms that are not in the buckets. Several histograms can share this counter, so that one add counts
        #: in all.
        self.zeros = Counter()

    @property
    def count(self) -> int:
        return self.zeros.value + sum(self.buckets)

    def observe_ms(self, value_ms: float) -> None:
        self.buckets[bisect_left(LATENCY_BUCKETS_MS, value_ms)] += 1
        self.total_ms += value_ms


class Gauge:
    """A number that `read` computes at each scrape."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read


#: Labels and value of one series.
Row = tuple[Mapping[str, str], float]


class Table:
    """Series that come and go, for example one per partition: `read` yields the current ones at each scrape."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], Iterable[Row]]) -> None:
        self.read = read


Metric = Counter | Histogram | Gauge | Table
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """All series with one name."""

    name: str
    help: str
    kind: type[Metric]
    series: dict[Labels, Metric] = field(default_factory=dict)


class Registry:
    """Every metric of one broker, by name and labels."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        metric = self._get_or_add(name, help, Counter, labels, Counter)
        assert isinstance(metric, Counter)
        return metric

    def histogram(self, name: str, help: str, **labels: str) -> Histogram:
        metric = self._get_or_add(name, help, Histogram, labels, Histogram)
        assert isinstance(metric, Histogram)
        return metric

    def gauge(self, name: str, help: str, read: Callable[[], float], **labels: str) -> Gauge:
        """Add a gauge. A second one with the same name and labels replaces the first, whose owner was replaced, too."""
        self.remove(name, **labels)
        metric = self._get_or_add(name, help, Gauge, labels, lambda: Gauge(read))
        assert isinstance(metric, Gauge)
        return metric

    def table(self, name: str, help: str, read: Callable[[], Iterable[Row]]) -> None:
        self.remove(name)
        self._get_or_add(name, help, Table, {}, lambda: Table(read))

    def remove(self, name: str, **labels: str) -> None:
        """Remove one series, for example because its topic is deleted."""
        family = self._families.get(name)
        if family is not None:
            family.series.pop(_key(labels), None)

    def families(self) -> Iterator[Family]:
        yield from self._families.values()

    def _get_or_add(
        self, name: str, help: str, kind: type[Metric], labels: dict[str, str], make: Callable[[], Metric]
    ) -> Metric:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(name, help, kind)
        if family.kind is not kind:
            raise ValueError(f"metric {name} is a {family.kind.__name__}, not a {kind.__name__}")
        key = _key(labels)
        metric = family.series.get(key)
        if metric is None:
            metric = family.series[key] = make()
        return metric


def _key(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
