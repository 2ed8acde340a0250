"""Chooses the loops of a cleaning: Python's, or compiled ones if numba is installed and the work is worth its start.

Both keep the same records and write the same bytes. To import numba takes half a second of CPU, in which Python cleans some
half a million records: a worker with less work does without numba. Owner: the worker.
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

#: A worker uses the compiled loops after this number of records, as `work_of` counts them.
WORTH: Final = 500_000
#: Estimated size of a record in the clean part, where offsets do not show the number of records.
_RECORD_BYTES: Final = 128


class KeyMap(Protocol):
    """The interface of `dirty_map.DirtyMap`; see its docstrings."""

    #: Flags of every record of the dirty part, in order.
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
    """The choice of one worker, job by job."""

    def __init__(self, *, worth: int = WORTH) -> None:
        self._worth = worth
        self._work = 0
        #: None: not loaded yet.
        self._compiled: Engine | None = None

    def engine(self, job: CleanJob) -> Engine:
        """Return the engine for `job`, which is the worker's next."""
        if self._compiled is None:
            self._work += work_of(job)
            if self._work < self._worth:
                return PYTHON
            self._compiled = load_compiled()
        return self._compiled


def work_of(job: CleanJob) -> int:
    """Return about how many small records a cleaning reads; a kilobyte counts as one record."""
    clean_bytes = sum(segment.size_bytes for segment in job.segments if segment.end_offset <= job.first_dirty_offset)
    all_bytes = sum(segment.size_bytes for segment in job.segments)
    return job.end_offset - job.first_dirty_offset + clean_bytes // _RECORD_BYTES + all_bytes // 1024


def load_compiled() -> Engine:
    """Return the compiled loops, or Python's if they are unavailable. No error of numba may fail a cleaning."""
    try:
        engine: Engine = importlib.import_module("barnabas.broker.storage.cleaner.compiled").ready()
    except ModuleNotFoundError as error:
        logger.info(
            "[log cleaner] no compiled loops, module %s is missing: `pip install barnabas[fast]` adds it", error.name
        )
        return PYTHON
    except Exception:
        logger.warning("[log cleaner] the compiled loops cannot be loaded, using Python's slower ones", exc_info=True)
        return PYTHON
    # Numba's heap is large, and none of it will become garbage.
    settle()
    return engine
