"""One batch of a table: reads the new records of the topic, lets tasks stage them, and publishes them once.

The table itself remembers its position in each partition, in the commit that has the rows. So a batch begins where the table
is, whichever run wrote the last one: there is no checkpoint that could be behind or ahead of the table, and of two writers
one finds that the table has moved (`Overtaken`). Records that do not fit go to a table of errors, which remembers its own
offsets and is published first: a record is in it before the table moves past it, and once.
"""

import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow
import pyarrow.compute as compute
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.offsets import rate_limited
from barnabas.spark.options import TierReads, source_options
from barnabas.spark.pipelines.sinks.exactly_once import NOWHERE, Span, Task
from barnabas.spark.tables import inference, names, renames, rows
from barnabas.spark.tables.definition import OFFSET, PARTITION, SOURCE_MARK, VERSION_MARK, Definition
from barnabas.spark.tables.places import Place, place_of
from barnabas.spark.tables.reading import Reading, plan_reading, records_of
from barnabas.spark.tables.targets import Target, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

log: Final = logging.getLogger("barnabas.spark")

Positions = dict[TopicPartition, int]

#: Most records that do not fit, in memory at a time.
_ERRORS_HELD: Final = 10_000
#: How often to read again if JSON has new fields: the first look may show objects, the next one fields within them.
_LOOKS_MAX: Final = 5
#: Records of each partition that a first look reads if the table has no columns yet.
_FIRST_RECORDS: Final = 1000


class TableStopped(BarnabasError):
    """A table that cannot go on until a person decides. The message says what happened, and what to do."""


@dataclass(frozen=True)
class Cluster:
    """Where topics are read: settings of clients by Kafka's names, `bootstrap.servers` among them."""

    settings: Mapping[str, str]
    #: Whether tasks read tiered records from object storage (the source's option `tierReads`).
    tier_reads: str = TierReads.AUTO.value

    def options(self, table: Definition, **more: str) -> dict[str, str]:
        loss = {"failOnDataLoss": "true" if table.on_loss == "stop" else "false"}
        kafka = {f"kafka.{name}": value for name, value in self.settings.items()}
        ours = {"kafka.isolation.level": "read_committed", "includeHeaders": "true", "tierReads": self.tier_reads}
        return kafka | ours | loss | more


@dataclass(frozen=True)
class Filled:
    """The sums of a batch."""

    #: Offsets that it passed. Some have no row: aborted transactions, markers, records that compaction removed.
    offsets: int = 0
    rows: int = 0
    errors: int = 0
    took_ms: int = 0
    #: Records that wait for the next batch.
    waiting: int = 0


@dataclass(frozen=True)
class Plan:
    """Where a table is, and the records of its next batch."""

    #: -1 for a partition that the table does not know.
    marks: Positions
    starts: Positions
    ends: Positions
    #: The ends of the topic.
    latest: Positions

    @property
    def records(self) -> int:
        return sum(self.ends[each] - self.starts[each] for each in self.ends)

    @property
    def waiting(self) -> int:
        return sum(max(0, self.latest[each] - self.ends.get(each, self.starts[each])) for each in self.latest)


def plan(
    table: Definition, place: Place, lookup: OffsetLookup, *, records_max: int, until: Positions | None = None
) -> Plan:
    """Plan the next batch; it ends before the offsets `until`."""
    partitions = _partitions(table, lookup)
    _require_own_rows(table, place, partitions)
    marks = {each: _or_nowhere(place.known(table.mark(each.partition))) for each in partitions}
    earliest = lookup.earliest(partitions)
    starts = {each: earliest[each] if marks[each] == NOWHERE else marks[each] for each in partitions}
    gone = [f"{each} from {starts[each]} to {earliest[each]}" for each in partitions if starts[each] < earliest[each]]
    if gone and table.on_loss == "stop":
        # Raise here, and not in a task: to try again does not bring the records back.
        raise TableStopped(
            f"records were deleted from the topic before they were read: {', '.join(gone)}. `barnabas tables rebuild "
            f"{table.name}` makes the table as the topic is. To go on without them, remove the table and add it again with "
            "--on-data-loss skip: it keeps its rows"
        )
    latest = lookup.latest(partitions, known=starts)
    ahead = [f"{each} at {starts[each]} of {latest[each]}" for each in partitions if starts[each] > latest[each]]
    if ahead:
        raise TableStopped(
            f"the table has more than the topic: {', '.join(ahead)}. The topic has lost records that the table has; "
            f"`barnabas tables rebuild {table.name}` makes it as the topic is"
        )
    wanted = latest if until is None else {each: min(latest[each], until.get(each, starts[each])) for each in latest}
    ends = rate_limited(starts, wanted, new_from={}, limit=records_max)
    return Plan(marks, starts, {each: end for each, end in ends.items() if end > starts[each]}, latest)


def _require_own_rows(table: Definition, place: Place, partitions: Collection[TopicPartition]) -> None:
    """Check that the offsets that the table remembers are those of the rows that it has."""
    columns = place.columns()
    if columns is None:
        return
    source, began_with = place.known(SOURCE_MARK), place.known(VERSION_MARK)
    if source is not None and source != table.source:
        raise TableStopped(
            f"the table at {table.where} has the rows of another topic (source {source:012x}): not of topic {table.topic} "
            f"with the id {table.topic_id or '-'} (source {table.source:012x}). Records of both would be mixed in it. Add the "
            f"table with another --to; or empty it and fill it from this topic: `barnabas tables rebuild {table.name}`"
        )
    has_offsets = {PARTITION, OFFSET} <= {*columns.names}
    if source is None and has_offsets and all(place.known(table.mark(each.partition)) is None for each in partitions):
        count = place.facts().rows
        if count:
            raise TableStopped(
                f"the table at {table.where} has {count} rows of a topic, but does not remember their offsets: it is a clone "
                "or another copy of rows alone, or another program has written them. To fill it would write rows "
                "a second time. Add the table with another --to; or empty it and fill it again: "
                f"`barnabas tables rebuild {table.name}`"
            )
    if began_with is not None and (what := place.set_back_since(began_with)) is not None:
        known = ", ".join(f"{part} to {at}" for part, at in sorted(_remembered(table, place).items()))
        raise TableStopped(
            f"the table at {table.where} was set back: {what}, after the last batch, which began with {began_with}. It still "
            f"remembers its last positions ({known}), so it would never get the lost rows again. `barnabas tables rebuild "
            f"{table.name}` makes it as the topic is"
        )


def _remembered(table: Definition, place: Place) -> dict[str, int]:
    found: dict[str, int] = {}
    while (at := place.known(table.mark(len(found)))) is not None:
        found[f"{table.topic}-{len(found)}"] = at
    return found


def lookup_of(table: Definition, cluster: Cluster) -> OffsetLookup:
    return OffsetLookup(source_options(cluster.options(table, subscribe=table.topic), streaming=False))


def _partitions(table: Definition, lookup: OffsetLookup) -> list[TopicPartition]:
    found = lookup.partitions(required=True)
    _require_same_topic(table, {lookup.topic_ids().get(table.topic, b"")})
    return found


def _require_same_topic(table: Definition, found: Collection[bytes]) -> None:
    if any(each.hex() != table.topic_id for each in found):
        raise TableStopped(
            f"topic {table.topic} was deleted and made again: its offsets mean other records now. "
            f"`barnabas tables rebuild {table.name}` fills the table from the new topic"
        )


def _or_nowhere(mark: int | None) -> int:
    return NOWHERE if mark is None else mark


def fill(
    spark: SparkSession, table: Definition, cluster: Cluster, *, records_max: int, until: Positions | None = None
) -> Filled:
    """Write one batch, or no batch if there is no new record. Raises `Overtaken` if another run was faster."""
    began_s = time.monotonic()
    lookup = lookup_of(table, cluster)
    try:
        _rebuild(table, lookup)
        place = place_of(table)
        planned = plan(table, place, lookup, records_max=records_max, until=until)
    finally:
        lookup.close()
    if not planned.ends:
        return Filled()
    if table.schema == "registry" and place.columns() is not None:
        renames.follow(table)
        place = place_of(table)
    is_new = place.columns() is None
    known = rows.value_columns(place.columns())
    looked = table.schema == "json" and not known.fields
    if looked:
        known = _first_look(spark, table, cluster, planned)
    read = _reading(spark, table, cluster, planned.starts, planned.ends)
    check: names.Check | None = None
    for _ in range(_LOOKS_MAX):
        found_rows, batch = _rows(spark, table, planned, read, known, check)
        staged = batch.stage(found_rows)
        if table.schema != "json":
            break
        seen = rows.seen_row(found_rows.seen(), table)
        wanted = inference.merged(known, seen) if looked else inference.joined(known, seen)
        found = _admitted(spark, table, read, wanted, known)
        is_checked = check is not None or not (found.refused or found_rows.unseen())
        if found.columns == known and is_checked:
            break
        # There were fields that the table does not have: read the batch again, with them. If one of them cannot have a
        # column, or Spark may not find it by its name, each record is checked.
        batch.abandon(staged)
        known = found.columns
        if found.refused or found_rows.unseen() or check is not None:
            check = names.Check(known, rows.rules_of(table), found.is_full, table.envelope == "debezium")
    else:
        raise TableStopped(f"the JSON of topic {table.topic} shows new fields each time it is read; use --schema raw")
    batch.check(staged)
    batch.publish(staged)
    if is_new:
        renames.follow(table)  # notes the fields by which it finds renames later
    took_ms = int((time.monotonic() - began_s) * 1000)
    return Filled(planned.records, staged.rows, staged.errors, took_ms, planned.waiting)


def _first_look(spark: SparkSession, table: Definition, cluster: Cluster, planned: Plan) -> StructType:
    """Return the columns that the first records show; look at all records if a required column is missing."""
    starts = planned.starts
    few = {each: min(end, starts[each] + _FIRST_RECORDS) for each, end in planned.ends.items()}
    needed = rows.columns_needed(table)
    for ends in [few] if few == planned.ends else [few, planned.ends]:
        read = _reading(spark, table, cluster, starts, ends)
        seen = rows.look(records_of(spark, read), table)
        wanted = inference.merged(StructType(), seen)  # the order that it has later, whatever is found
        found = _admitted(spark, table, read, wanted, StructType()).columns
        if found.fields and needed <= {*rows.columns_beside(found).names}:
            break
    return found


def _admitted(
    spark: SparkSession, table: Definition, read: Reading, wanted: StructType, known: StructType
) -> names.Admitted:
    """Return the wanted columns that the table may have."""
    rules = rows.rules_of(table)
    found = names.admitted(wanted, known, rules)
    votes: dict[names.Path, int] = {}
    while found.contested:
        task = VoteTask(names.Votes(found.contested, is_envelope=table.envelope == "debezium"))
        for [line] in records_of(spark, read).select("value").mapInArrow(task, "votes string").collect():
            for path, count in json.loads(line):
                votes[tuple(path)] = votes.get(tuple(path), 0) + count
        found = names.admitted(wanted, known, rules, votes)
    return found


def _reading(spark: SparkSession, table: Definition, cluster: Cluster, starts: Positions, ends: Positions) -> Reading:
    cores = spark.sparkContext.defaultParallelism
    planned = plan_reading(cluster.options(table), table.topic, starts, ends, cores=cores)
    # Offsets and places are read at two moments: the topic may be another one by now.
    _require_same_topic(table, planned.topic_ids)
    return planned


def _rows(
    spark: SparkSession,
    table: Definition,
    planned: Plan,
    read: Reading,
    known: StructType,
    check: names.Check | None,
) -> "tuple[rows.Rows, _Batch]":
    direct = rows.direct_of(table, known)
    if direct is None:
        found_rows = rows.to_rows(records_of(spark, read, check=check), table, known)
        return found_rows, _Batch(table, planned, target_of(table, found_rows.columns))
    target = target_of(table, rows.row_columns(table, rows.value_of(table, known)))
    records = records_of(spark, read, direct=direct, target=target, job=table.name, check=check)
    return rows.to_rows(records, table, known), _Batch(table, planned, target)


def _rebuild(table: Definition, lookup: OffsetLookup) -> None:
    """Empty a table once for each request to rebuild it, and its positions with it; its table of errors first."""
    for each in (table.errors(), table) if table.generation else ():
        place = place_of(each)
        columns = place.columns()
        if columns is None or _or_nowhere(place.known(table.rebuilt_mark)) >= table.generation:
            continue
        kept = rows.columns_kept(each, columns)
        forgotten = {table.mark(part.partition): NOWHERE for part in _partitions(table, lookup)}
        own = {SOURCE_MARK: table.source, VERSION_MARK: place.version()}
        place.empty(kept, forgotten | own | {table.rebuilt_mark: table.generation})


@dataclass(frozen=True)
class Staged:
    """The files that all tasks have staged."""

    main: list[dict[str, Any]]
    bad: list[dict[str, Any]]
    rows: int
    errors: int
    first_error: str | None


class _Batch:
    """The two targets of a batch."""

    def __init__(self, table: Definition, planned: Plan, main: Target) -> None:
        self._table = table
        self._planned = planned
        self._main = main
        self._errors: Target | None = None
        self._error_marks: Positions = {}
        there = place_of(table)
        self._version, self._errors_version = there.version(), -1
        #: The last rebuilding that the rows follow. A table that begins with them must not be emptied for it.
        self._rebuilt = max(table.generation, _or_nowhere(there.known(table.rebuilt_mark)))
        self._known_bad: dict[int, set[int]] = {}
        if table.on_error == "keep":
            place = place_of(table.errors())
            _require_own_rows(table.errors(), place, planned.latest)
            self._errors_version = place.version()
            self._error_marks = {each: _or_nowhere(place.known(table.mark(each.partition))) for each in planned.ends}
            starts, marks = planned.starts, self._error_marks
            if ahead := [each for each in planned.ends if marks[each] > starts[each]]:
                # A run died between the two commits. A record that did not fit then may fit now: schemas change.
                found = place.offsets()
                self._known_bad = {
                    each.partition: {at for at in found.get(each.partition, ()) if starts[each] <= at < marks[each]}
                    for each in ahead
                }
            self._errors = target_of(table.errors(), rows.ERROR_COLUMNS)

    def stage(self, found_rows: rows.Rows) -> Staged:
        work = StageTask(self._table.name, found_rows.names, self._main, self._errors, self._known_bad)
        found = [json.loads(row[0]) for row in found_rows.frame.mapInArrow(work, "staged string").collect()]
        return Staged(
            main=[item for each in found for item in each["main"]],
            bad=[item for each in found for item in each["bad"]],
            rows=sum(each["rows"] for each in found),
            errors=sum(each["errors"] for each in found),
            first_error=min((each["first_error"] for each in found if each["first_error"]), default=None),
        )

    def check(self, staged: Staged) -> None:
        """Raise before readers see anything of the batch if the table stops at errors."""
        if staged.errors and self._errors is None:
            self.abandon(staged)
            raise TableStopped(
                f"{staged.errors} records do not fit, the first of them: {staged.first_error}. With --on-error keep they go "
                "to the table of errors"
            )

    def publish(self, staged: Staged) -> None:
        ends, marks = self._planned.ends, self._planned.marks
        try:
            if self._errors is not None and staged.bad:
                past = {each: max(ends[each], self._error_marks[each]) for each in ends}
                self._errors.publish(staged.bad, self._span(self._error_marks, past, self._errors_version))
            self._main.publish(staged.main, self._span({each: marks[each] for each in ends}, ends, self._version))
        except Exception:
            self.abandon(staged)
            raise

    def _span(self, starts: Positions, ends: Positions, version: int) -> Span:
        first, last = ({self._table.mark(each.partition): at for each, at in part.items()} for part in (starts, ends))
        rebuilt = {self._table.rebuilt_mark: self._rebuilt} if self._rebuilt > 0 else {}
        return Span(first, last | {SOURCE_MARK: self._table.source, VERSION_MARK: version} | rebuilt)

    def abandon(self, staged: Staged) -> None:
        for target, items in ((self._main, staged.main), (self._errors, staged.bad)):
            if target is not None and items:
                try:
                    target.abandon(items)
                except FileNotFoundError:
                    continue  # the commit that failed has discarded them


@dataclass(frozen=True)
class StageTask:
    """Stages a task's rows: good rows for the table, the others for the table of errors."""

    #: Name of the job, which staged files have in their folder's name, if they have a folder.
    job: str
    #: The names of the rows' columns.
    names: tuple[str, ...]
    main: Target
    errors: Target | None
    #: Offsets, by partition, that the table of errors has already.
    known_bad: Mapping[int, Collection[int]]

    def __call__(self, batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        context = cast(TaskContext, TaskContext.get())
        task = Task(self.job, 0, context.partitionId(), context.taskAttemptId())
        named = (batch.rename_columns(list(self.names)) for batch in batches)
        split = _Split(named, self._stage_errors(task), self.known_bad)
        main = self.main.stage(split.good(), task)
        split.flush()
        found = {
            "main": [*split.before, *main],
            "bad": split.staged,
            "rows": split.rows,
            "errors": split.errors,
            "first_error": split.first_error,
        }
        yield pyarrow.RecordBatch.from_pydict({"staged": [json.dumps(found)]})

    def _stage_errors(self, task: Task) -> "Callable[[pyarrow.RecordBatch], list[dict[str, object]]]":
        target = self.errors
        if target is None:
            return lambda _: []
        return lambda batch: target.stage(iter([batch]), task)


@dataclass(frozen=True)
class VoteTask:
    """Counts for each of some fields the records of a task that have a value in it."""

    votes: names.Votes

    def __call__(self, batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        counts = self.votes.of(value for batch in batches for value in batch.column(0).to_pylist())
        yield pyarrow.RecordBatch.from_pydict({"votes": [json.dumps(list(counts.items()))]})


class _Split:
    """Rows on their way to the table. Takes out those that do not fit, and stages them whenever there are many."""

    def __init__(
        self,
        batches: "Iterator[pyarrow.RecordBatch]",
        stage: "Callable[[pyarrow.RecordBatch], list[dict[str, object]]]",
        known_bad: Mapping[int, Collection[int]],
    ) -> None:
        self._batches = batches
        self._stage = stage
        self._known_bad = known_bad
        self._held: list[pyarrow.RecordBatch] = []
        #: Items that were staged where the records were read.
        self.before: list[dict[str, object]] = []
        self.staged: list[dict[str, object]] = []
        self.rows = 0
        self.errors = 0
        self.first_error: str | None = None

    def good(self) -> "Iterator[pyarrow.RecordBatch]":
        for batch in self._batches:
            batch = self._without_reports(batch)
            fits = compute.is_null(batch.column(rows.REASON))
            if batch.num_rows and not compute.all(fits).as_py():
                self._take(batch.filter(compute.invert(fits)))
                batch = batch.filter(fits)
            self.rows += batch.num_rows
            yield batch.drop_columns([rows.REASON, rows.RAW])

    def _without_reports(self, batch: "pyarrow.RecordBatch") -> "pyarrow.RecordBatch":
        reports = batch.column(rows.PUT_ASIDE)
        for report in reports.drop_null().to_pylist():
            found = json.loads(report)
            self.before += found["main"]
            self.rows += found["rows"]
        return batch.filter(reports.is_null()).drop_columns([rows.PUT_ASIDE])

    def _take(self, bad: "pyarrow.RecordBatch") -> None:
        places = zip(bad.column(PARTITION).to_pylist(), bad.column(OFFSET).to_pylist(), strict=True)
        new = [offset not in self._known_bad.get(partition, ()) for partition, offset in places]
        bad = bad.filter(pyarrow.array(new, pyarrow.bool_()))
        if not bad.num_rows:
            return
        self.errors += bad.num_rows
        self.first_error = self.first_error or bad.column(rows.REASON)[0].as_py()
        others = {"value": rows.RAW, "reason": rows.REASON}
        taken = [bad.column(others.get(name, name)) for name in rows.ERROR_COLUMNS.names]
        self._held.append(pyarrow.RecordBatch.from_arrays(taken, names=rows.ERROR_COLUMNS.names))
        if sum(each.num_rows for each in self._held) >= _ERRORS_HELD:
            self.flush()

    def flush(self) -> None:
        for each in self._held:
            self.staged += self._stage(each)
        self._held = []


def resolved(table: Definition, environment: Mapping[str, str]) -> Definition:
    """Return the definition with `${env:NAME}` filled in: passwords need not be in the cluster's topic."""
    from barnabas.base.config.properties import resolve_variables

    provider = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }

    def fill_in(values: Mapping[str, str]) -> dict[str, str]:
        filled = resolve_variables({**provider, **values}, environment)
        return {name: filled[name] for name in values}

    return replace(table, catalog=fill_in(table.catalog), registry=fill_in(table.registry))
