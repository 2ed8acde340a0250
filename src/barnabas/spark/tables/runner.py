"""All tables of a cluster, filled by one Spark application.

Each table has a thread of its own while it is being filled, and its jobs share Spark's cores fairly. A table that fails starts
again after a pause that doubles; a table that a person has to decide about waits for its definition to change. The others
go on. The runner follows the definitions: tables are added, pause, and are removed while it runs.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from barnabas.client.config import client_config
from barnabas.client.errors import ClientError
from barnabas.spark.options import TierReads
from barnabas.spark.pipelines.failures import cause_of
from barnabas.spark.pipelines.sinks.exactly_once import Overtaken
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch
from barnabas.spark.tables import filling
from barnabas.spark.tables.catalogue import Catalogue, Report
from barnabas.spark.tables.definition import BadDefinition, Definition
from barnabas.spark.tables.filling import Cluster, Filled, Positions, TableStopped
from barnabas.spark.tables.inference import NameClash
from barnabas.spark.tables.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("barnabas.spark")

#: Pauses between a failure and the next attempt.
_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: How long to listen for new definitions at a time.
_LISTEN_S: Final = 0.5
#: Least time between two reports of a table that goes well.
_REPORT_S: Final = 5.0
#: Errors that a repetition would not mend.
_DECISIONS: Final = (TableStopped, TableMismatch, BadDefinition, NameClash)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    once: bool = False
    #: Time from the end of a batch to the beginning of the next one, if no record waits.
    interval_s: float = 10.0
    #: Most records in one batch of a table.
    records_max: int = 1_000_000
    #: Tables that are filled at the same time.
    tables_max: int = 4
    #: Only these tables; all tables if this is empty.
    names: tuple[str, ...] = ()
    #: Whether tasks read tiered records from object storage.
    tier_reads: TierReads = TierReads.AUTO


@dataclass
class _Turn:
    """One table in this run."""

    definition: Definition
    next_s: float = 0.0
    failures: int = 0
    #: Why the table waits for its definition to change.
    stopped: str | None = None
    #: Where a run that ends stops reading: at the ends of the topic when the run began.
    until: Positions | None = None
    done: bool = False
    batch: "Future[Filled] | None" = None
    total: Filled = field(default_factory=Filled)
    reported_s: float = float("-inf")
    error: str | None = None


class Runner:
    """Owner: the thread that calls `run`; tables are filled in threads of its pool."""

    def __init__(
        self,
        spark: "SparkSession",
        settings: Mapping[str, str],
        options: RunOptions,
        *,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._cluster = Cluster(settings, options.tier_reads.value)
        self._options = options
        self._tell = tell
        self._clock = clock
        self._turns: dict[str, _Turn] = {}
        self._catalogue = Catalogue(client_config(None, dict(settings), client_id="barnabas-tables"))
        #: Definitions that this program cannot read, with the reason.
        self._unreadable: dict[str, str] = {}
        self._upkeep = Upkeep()
        self._stopping = False

    def stop(self) -> None:
        """End when the batches in progress have ended. May be called from any thread."""
        self._stopping = True

    def run(self) -> bool:
        """Run until all records are read (`once`) or until `stop`; return whether every table is well."""
        with ThreadPoolExecutor(self._options.tables_max, thread_name_prefix="table") as pool:
            try:
                known = self._catalogue.read()
                for name in self._options.names:
                    known.table(name)  # raises if there is no such table, or its definition cannot be read
                while not self._stopping:
                    self._follow()
                    self._start(pool)
                    if self._options.once and all(each.done for each in self._turns.values()):
                        break
                    self._wait()
                self._finish()
            finally:
                self._catalogue.close()
        return not self._unreadable and not any(each.error for each in self._turns.values())

    # -- definitions ------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Take over changed definitions."""
        known = self._catalogue.known
        wanted = {name: table for name, table in known.tables.items() if self._is_wanted(name)}
        unreadable = {name: why for name, why in known.unreadable.items() if self._is_wanted(name)}
        for name, why in unreadable.items():
            if self._unreadable.get(name) != why:
                self._tell(f"table {name} cannot be filled: {why}")
        self._unreadable = unreadable
        for name in [name for name in self._turns if name not in wanted]:
            if self._turns[name].batch is None:
                del self._turns[name]
        for name, table in wanted.items():
            turn = self._turns.get(name)
            if turn is None:
                self._turns[name] = _Turn(table, done=table.paused)
            elif turn.definition != table and turn.batch is None:
                was_paused = turn.definition.paused
                self._turns[name] = _Turn(table, done=table.paused, until=turn.until, total=turn.total)
                if table.paused and not was_paused:
                    self._report(name, "paused", None, Filled())

    def _is_wanted(self, name: str) -> bool:
        return not self._options.names or name in self._options.names

    # -- batches ----------------------------------------------------------------------------------------------------------

    def _start(self, pool: ThreadPoolExecutor) -> None:
        now_s = self._clock()
        for name, turn in self._turns.items():
            idle = turn.batch is None and not turn.done and not turn.definition.paused
            if idle and turn.stopped is None and turn.next_s <= now_s:
                turn.batch = pool.submit(self._fill, name, turn)

    def _fill(self, name: str, turn: _Turn) -> Filled:
        """Fill one batch. Runs in a thread of the pool."""
        table = filling.resolved(turn.definition, os.environ)
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", name)
        context.setJobDescription(f"table {name}")
        if self._options.once and turn.until is None:
            lookup = filling.lookup_of(table, self._cluster)
            try:
                turn.until = lookup.latest(lookup.partitions(required=True))
            finally:
                lookup.close()
        filled = filling.fill(
            self._spark, table, self._cluster, records_max=self._options.records_max, until=turn.until
        )
        if filled.rows or filled.errors:
            try:
                self._upkeep.after_batch(table)
            except Exception:
                # The batch is in the table. Another writer may have been faster: the next batch tries again.
                log.warning(
                    "table %s: cannot compact it or remove old versions; the next batch tries again",
                    name,
                    exc_info=True,
                )
        return filled

    def _wait(self) -> None:
        """Wait until a batch ends, a definition comes, or it is time for a table."""
        batches = [each.batch for each in self._turns.values() if each.batch is not None]
        if batches:
            wait(batches, timeout=_LISTEN_S, return_when=FIRST_COMPLETED)
        try:
            self._catalogue.wait(0.0 if batches else _LISTEN_S)
        except ClientError as error:
            if self._options.once:
                raise
            log.warning("cannot read the definitions of tables, trying again: %s", error)
        self._collect()

    def _finish(self) -> None:
        batches = [each.batch for each in self._turns.values() if each.batch is not None]
        wait(batches)
        self._collect()
        for name, turn in self._turns.items():
            if turn.error is None and not turn.definition.paused:
                self._report(name, "ended", None, turn.total)

    def _collect(self) -> None:
        for name, turn in self._turns.items():
            if turn.batch is not None and turn.batch.done():
                future, turn.batch = turn.batch, None
                self._ended(name, turn, future)

    def _ended(self, name: str, turn: _Turn, future: "Future[Filled]") -> None:
        try:
            filled = future.result()
        except Overtaken as error:
            # Another run works on this table. Both may go on: the later one looks again.
            log.info("table %s: %s", name, error)
            turn.next_s = self._clock() + _PAUSES_S[0]
            return
        except _DECISIONS as error:
            turn.stopped = turn.error = _first_line(error)
            turn.done = self._options.once
            self._report(name, "stopped", turn.error, Filled())
            return
        except Exception as error:
            turn.error = _first_line(error)
            log.warning("table %s failed", name, exc_info=error)
            turn.next_s = self._clock() + _PAUSES_S[min(turn.failures, len(_PAUSES_S) - 1)]
            turn.failures += 1
            turn.done = self._options.once and turn.failures > len(_PAUSES_S) // 2
            self._report(name, "failed", turn.error, Filled())
            return
        turn.error, turn.failures = None, 0
        turn.total = Filled(
            offsets=turn.total.offsets + filled.offsets,
            rows=turn.total.rows + filled.rows,
            errors=turn.total.errors + filled.errors,
            took_ms=filled.took_ms,
        )
        if filled.rows or filled.errors:
            self._report(name, "filling", None, filled)
        has_more = filled.waiting > 0
        # Not after a batch without rows: records behind aborted transactions have yet to be read.
        turn.done = self._options.once and not filled.offsets
        turn.next_s = self._clock() + (0.0 if has_more or self._options.once else self._options.interval_s)

    # -- reports ----------------------------------------------------------------------------------------------------------

    def _report(self, name: str, state: str, error: str | None, filled: Filled) -> None:
        turn = self._turns[name]
        now_s = self._clock()
        if state == "filling" and now_s - turn.reported_s < _REPORT_S and not self._options.once:
            return
        turn.reported_s = now_s
        counted = f"{filled.rows:,} rows" + (f", {filled.errors:,} errors" if filled.errors else "")
        said = error or (f"{counted} in {filled.took_ms / 1000:.1f} s" if state == "filling" else counted)
        if state != "paused":
            self._tell(f"table {name} {state}: {said}")
        report = Report(
            state=state,
            at_ms=int(time.time() * 1000),
            error=error,
            batch_rows=filled.rows,
            batch_errors=filled.errors,
            batch_ms=filled.took_ms,
        )
        try:
            self._catalogue.report(name, report)
        except ClientError as error:
            log.warning("table %s: cannot write its report: %s", name, error)


def _first_line(error: BaseException) -> str:
    """Return the line for a person: the last line of a Python traceback among Spark's."""
    text = str(error) or type(error).__name__
    return cause_of(text) if isinstance(error, PySparkException) else text.splitlines()[0]
