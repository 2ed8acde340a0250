"""The transactional ids of the exactly-once sink: `prefix/query/start/batch/partition/attempt`, and `prefix/query/driver`."""

from typing import Final

#: A start uses its transactional ids again after this number of batches: by then an attempt that lingers is fenced. So a
#: coordinator has to remember only a bounded number of ids.
ID_CYCLE: Final = 4


def query_prefix(prefix: str, query: str) -> str:
    return f"{prefix}/{query}/"


def batch_prefix(prefix: str, query: str, run: str, batch: int) -> str:
    """Return the common beginning of the ids of a batch's tasks; partition and attempt follow."""
    return f"{query_prefix(prefix, query)}{run}/{batch % ID_CYCLE}/"


def driver_id(prefix: str, query: str) -> str:
    return f"{query_prefix(prefix, query)}driver"


def run_of(transactional_id: str, query_prefix: str) -> str | None:
    """Return the start of the query that a task's id belongs to; None for the id of the driver."""
    run, *task = transactional_id.removeprefix(query_prefix).rsplit("/", 3)
    return run if len(task) == 3 else None
