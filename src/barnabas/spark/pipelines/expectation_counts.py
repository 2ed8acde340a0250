"""Counts rows that met expectations, from the metrics that a query observes. Needs no Spark, so a live view can use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

#: `expectations.<dataset>` is the metric; in it `rows`, and the failures of each expectation as `<action>:<name>`.
PREFIX: Final = "expectations."
ROWS: Final = "rows"
#: Separates the dataset from a number if stacked decorators give it several metrics.
STACKED: Final = "#"


class ExpectationCount(NamedTuple):
    """How many rows of a batch met an expectation, and how many did not."""

    dataset: str
    name: str
    action: str
    passed: int
    failed: int


class _Row(Protocol):
    def asDict(self) -> dict[str, object]: ...  # noqa: N802  (Spark's name)


def counts(observed: Mapping[str, _Row | Mapping[str, object]]) -> list[ExpectationCount]:
    """Return the counts among observed metrics: `query.lastProgress.observedMetrics`, or that part of a progress in JSON."""
    found = []
    for metric, row in observed.items():
        if not metric.startswith(PREFIX):
            continue
        values = dict(row) if isinstance(row, Mapping) else row.asDict()
        rows = _number(values.pop(ROWS, 0))
        for key, failed in values.items():
            action, _, name = key.partition(":")
            lost = _number(failed)
            dataset = metric.removeprefix(PREFIX).partition(STACKED)[0]
            found.append(ExpectationCount(dataset, name, action, rows - lost, lost))
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass
class Tally:
    """Counts of all batches of a query; each batch once, however often Spark reports its progress."""

    totals: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    #: The last batch that was counted.
    batch_id: int = -1

    def add(self, batch_id: int, observed: Mapping[str, _Row | Mapping[str, object]]) -> None:
        if batch_id <= self.batch_id:
            return
        self.batch_id = batch_id
        for one in counts(observed):
            passed, failed = self.totals.get(one[:3], (0, 0))
            self.totals[one[:3]] = (passed + one.passed, failed + one.failed)

    def counts(self) -> list[ExpectationCount]:
        return [ExpectationCount(*key, *value) for key, value in self.totals.items()]
