"""Which loops a cleaning runs: Python's, or compiled ones where numba is installed and the work is worth its start.

Both keep the same records and write the same bytes. Numba takes half a second of CPU to import, which is what Python needs
for some half a million records: a worker that has had less to do than that goes without. Owner: the worker.
"""

import importlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from barnabas.base.garbage import settle
from barnabas.broker.storage.cleaner.dirty_map import DirtyMap
from barnabas.broker.storage.cleaner.job import CleanJob, CleanStats
from barnabas.broker.storage.cleaner.retention import BatchFilter
from barnabas.broker.storage.cleaner.transactions import TransactionTracker

logger = logging.getLogger(__name__)

#: A worker takes the compiled loops once it has had so many records to clean, as `work_of` counts them.
WORTH: Final = 500_000
#: Of a record in what has been cleaned before, where the offsets do not tell how many there are.
_RECORD_BYTES: Final = 128


class KeyMap(Protocol):
    """`dirty_map.DirtyMap`, whose docstrings hold."""

    #: Of every record of the dirty part, in order.
    flags: bytearray
    latest_offset: int
    is_full: bool
    without_key: int

    @property
    def utilization(self) -> float: ...

    def index(self, piece: bytes) -> int: ...

    def close(self) -> None: ...

    def flags_of_clean(self, piece: bytes) -> bytearray: ...


class Engine(NamedTuple):
    key_map: Callable[[int, TransactionTracker], KeyMap]
    batch_filter: Callable[[CleanJob, TransactionTracker, CleanStats], BatchFilter]


PYTHON: Final = Engine(DirtyMap, BatchFilter)


class EngineChoice:
    """Of one worker, job by job."""

    def __init__(self, *, worth: int = WORTH) -> None:
        self._worth = worth
        self._work = 0
        #: None: not asked for yet.
        self._compiled: Engine | None = None

    def engine(self, job: CleanJob) -> Engine:
        """For `job`, which is the worker's next."""
        if self._compiled is None:
            self._work += work_of(job)
            if self._work < self._worth:
                return PYTHON
            self._compiled = load_compiled()
        return self._compiled


def work_of(job: CleanJob) -> int:
    """About how many small records a cleaning reads; a kilobyte takes as long as one of them."""
    clean_bytes = sum(segment.size_bytes for segment in job.segments if segment.end_offset <= job.first_dirty_offset)
    all_bytes = sum(segment.size_bytes for segment in job.segments)
    return job.end_offset - job.first_dirty_offset + clean_bytes // _RECORD_BYTES + all_bytes // 1024


def load_compiled() -> Engine:
    """The compiled loops, ready to run; Python's where they cannot be had. Nothing of numba may fail a cleaning."""
    try:
        engine: Engine = importlib.import_module("barnabas.broker.storage.cleaner.compiled").ready()
    except ModuleNotFoundError as error:
        logger.info("no compiled loops: there is no module %s; `pip install barnabas[fast]` brings it", error.name)
        return PYTHON
    except Exception:
        logger.warning("the compiled loops cannot be loaded: Python's clean in their place", exc_info=True)
        return PYTHON
    # Numba's heap is large, and none of it will be garbage.
    settle()
    return engine
