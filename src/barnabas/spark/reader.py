"""Spark's readers: a batch query's and a stream's. They plan on the driver and read on the executors.

A reader travels to the executors by pickle with its options. It asks the cluster through `OffsetLookup`, which lives on the
driver alone. Numba and the columns are loaded where rows are read, so that planning stays quick.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.spark.driver_reads import DriverReads, HasRows
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.offsets import (
    OffsetJson,
    OffsetRange,
    TriggerDelay,
    from_json,
    in_tasks,
    plan_ranges,
    rate_limited,
    report_data_loss,
    split_ranges,
    to_json,
    waiting_records,
)
from barnabas.spark.options import Limit, SourceOptions, Specific, TierReads
from barnabas.spark.progress import GroupProgress, progress_group
from barnabas.spark.pushdown import Bounds, asked_for_filters
from barnabas.spark.tier_plan import TierPlanner
from barnabas.spark.tier_slices import TierSlice, slices_in_tasks
from barnabas.spark.worker_memory import keep_imports

_log: Final = logging.getLogger("barnabas.spark")

_UNDIVIDED: Final = 1 << 62


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The ranges that one task reads."""

    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class TierTask(InputPartition):
    """The records that one task reads, some of them in object storage, in order."""

    url: str
    parts: tuple[OffsetRange | TierSlice, ...]


def _read(options: SourceOptions, columns: Sequence[str], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, RangePartition):  # a query without partitions gets an empty one of Spark's own
        from barnabas.spark.fetching import read_range, read_ranges

        keep_imports()
        if len(partition.ranges) == 1:
            yield from read_range(options, partition.ranges[0], columns)
        else:
            yield from read_ranges(options, partition.ranges, columns)
    elif isinstance(partition, TierTask):
        keep_imports()
        together: list[TierSlice] = []
        for part in partition.parts:
            if isinstance(part, TierSlice):
                together.append(part)
                continue
            yield from _read_slices(options, columns, partition.url, together)
            together = []
            yield from _read_range(options, columns, part)
        yield from _read_slices(options, columns, partition.url, together)


def _read_range(options: SourceOptions, columns: Sequence[str], wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    from barnabas.spark.fetching import read_range

    return read_range(options, wanted, columns)


def _read_slices(
    options: SourceOptions, columns: Sequence[str], url: str, parts: Sequence[TierSlice]
) -> Iterator[pa.RecordBatch]:
    if not parts:
        return iter(())
    from barnabas.spark.tier_reads import read_slices

    def from_brokers(part: TierSlice, first: int, until: int, error: Exception) -> Iterator[pa.RecordBatch]:
        rest = OffsetRange(part.partition, first, until, part.topic_id)
        _log.warning("%s is read through the brokers: %s", rest, error)
        return _read_range(options, columns, rest)

    return read_slices(
        url,
        options.store,
        parts,
        columns,
        read_committed=options.read_committed,
        elsewhere=from_brokers,
        insists=options.tier_reads is TierReads.DIRECT,
        check_crcs=options.consumer.check_crcs,
    )


class BarnabasReader(DataSourceReader):
    """A batch query: the offsets are fixed when it is planned."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        lookup = OffsetLookup(self._options)
        try:
            ranges = self._ranges(lookup)
            ids = lookup.topic_ids()
            ranges = [replace(each, topic_id=ids.get(each.partition.topic, b"")) for each in ranges]
            plan = TierPlanner(self._options).plan(lookup, ranges)
        finally:
            lookup.close()
        split = split_ranges(
            plan.ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.records_per_task,
        )
        tasks = [(each,) for each in split] if self._options.is_divided else in_tasks(split)
        sliced = [(each,) for each in plan.slices] if self._options.is_divided else slices_in_tasks(plan.slices)
        return [*(TierTask(plan.url, each) for each in sliced), *map(RangePartition, tasks)]

    def _ranges(self, lookup: OffsetLookup) -> list[OffsetRange]:
        bounds, options = self._bounds, self._options
        everything = lookup.partitions(required=True)
        wanted = [partition for partition in everything if bounds.admits(partition)]
        start = lookup.resolve(options.starting, everything, option="startingOffsets")
        if options.is_as_of:
            end = lookup.resolve_as_of(options.ending, everything)
        else:
            end = lookup.resolve(options.ending, everything, option="endingOffsets")
        if bounds.timestamp_from_ms is not None:
            at = max(0, bounds.timestamp_from_ms)
            young = lookup.at_time(dict.fromkeys(wanted, at))
            start |= {p: end[p] if young[p] < 0 else max(start[p], young[p]) for p in wanted}
        ranges = []
        for partition in wanted:
            if end[partition] < start[partition] and bounds.timestamp_from_ms is None:
                # Also an error with failOnDataLoss=false, as in Spark's own source: no record was lost, the options are wrong.
                raise ConfigError(
                    f"{partition} is to be read from offset {start[partition]} to {end[partition]}: startingOffsets is above "
                    "endingOffsets, or beyond the end of the log"
                )
            ranges.append(OffsetRange(partition, *bounds.cut(start[partition], max(start[partition], end[partition]))))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)


class BarnabasFilteringReader(BarnabasReader):
    """A batch query with filters pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return list(self._bounds.take(filters))


def batch_reader(options: SourceOptions, columns: tuple[str, ...]) -> BarnabasReader:
    kind = BarnabasFilteringReader if options.filter_pushdown and asked_for_filters() else BarnabasReader
    return kind(options, columns)


class BarnabasStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. On the driver one instance lives as long as the query; those on executors only `read`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._lookup: OffsetLookup | None = None
        self._progress: GroupProgress | None = None
        #: The end of a query with `Trigger.AvailableNow`.
        self._pinned: dict[TopicPartition, int] | None = None
        self._newest: dict[TopicPartition, int] | None = None
        #: First offsets of partitions that were added while the query runs.
        self._new_from: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, bytes] = {}
        #: For topics that were created again: the offset of the stream at which the reader noticed it, and where their
        #: partitions begin.
        self._recreated: tuple[OffsetJson, dict[TopicPartition, int]] = ({}, {})
        self._driver_reads = DriverReads(options, columns)
        self._tier = TierPlanner(options)
        self._delay: TriggerDelay | None = None
        if options.min_offsets_per_trigger is not None:
            self._delay = TriggerDelay(
                min_offsets=options.min_offsets_per_trigger, max_delay_ms=options.max_trigger_delay_ms
            )

    # -- offsets --------------------------------------------------------------------------------------------------------

    @property
    def lookup(self) -> OffsetLookup:
        if self._lookup is None:
            self._lookup = OffsetLookup(self._options)
        return self._lookup

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        partitions = self.lookup.partitions(required=True)
        starting: Limit = self._options.starting
        found = self.lookup.resolve(starting, partitions, option="startingOffsets")
        if isinstance(starting, Specific):
            found = self.lookup.checked(found, option="startingOffsets")
        return to_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit. Spark's Python limits do not combine; `latestOffset` looks at the options instead."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._pinned = self.lookup.latest(self.lookup.partitions(required=True))

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Return the end of the next micro-batch. Spark asks when all records below `start` are done, so that is progress to
        commit."""
        begin = from_json(start)
        self._commit(begin)
        latest = self._latest(begin)
        self._newest = latest
        self._notice_new_topics(start, latest)
        begin = self._begin(start)
        if isinstance(limit, ReadAllAvailable):
            return to_json(latest)
        self._note_new(begin, latest)
        if self._delay is not None and self._pinned is None:
            waiting = waiting_records(begin, latest, new_from=self._new_from)
            if self._delay.waits(waiting=waiting, now_ms=int(time.monotonic() * 1000)):
                return start
        if self._options.max_offsets_per_trigger is None:
            return to_json(latest)
        most = self._options.max_offsets_per_trigger
        return to_json(rate_limited(begin, latest, new_from=self._new_from, limit=most))

    def _latest(self, begin: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self._pinned is None:
            return self.lookup.latest(self.lookup.partitions(required=False, known=begin), known=begin)
        if missing := begin.keys() - self._pinned.keys():
            # Partitions that the broker did not know when it was asked at the start.
            found = self.lookup.partitions(required=False, known=begin)
            self._pinned |= self.lookup.latest([each for each in found if each in missing], known=begin)
        # The stream has read further already: a leader that was behind answered, or the topic was created again. Planning
        # reports it.
        shorter = [p for p, offset in begin.items() if self._pinned.get(p, offset) < offset]
        if shorter:
            self._pinned |= self.lookup.latest(shorter, known=begin)
        return self._pinned

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return None if self._newest is None else to_json(self._newest)

    def _notice_new_topics(self, start: OffsetJson, latest: dict[TopicPartition, int]) -> None:
        """Report topics of the same name with another id: an offset of the old topic means nothing in the new one."""
        ids = self.lookup.topic_ids()
        recreated = {name for name, found in ids.items() if self._topic_ids.get(name, found) != found and name in start}
        self._topic_ids |= ids
        if not recreated:
            return
        report_data_loss(
            f"Topic {', '.join(sorted(recreated))} was deleted and created again while the query ran: the offsets "
            f"it had read to, { {name: start[name] for name in sorted(recreated)} }, mean other records now",
            fail=self._options.fail_on_data_loss,
        )
        self._recreated = start, self.lookup.earliest([p for p in latest if p.topic in recreated])

    def _begin(self, start: OffsetJson) -> dict[TopicPartition, int]:
        """Return where a micro-batch begins: at the stream's offset, except for topics that were created again."""
        noticed_at, first_offsets = self._recreated
        return from_json(start) | (first_offsets if noticed_at == start else {})

    def _note_new(self, begin: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> None:
        unknown = [p for p in end if p not in begin and p not in self._new_from]
        if unknown:
            existing = set(self.lookup.partitions(required=False, known=unknown))
            self._new_from |= self.lookup.earliest([p for p in unknown if p in existing])

    # -- tasks ----------------------------------------------------------------------------------------------------------

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        begin, until = self._begin(start), from_json(end)
        self._note_new(begin, until)
        ranges = plan_ranges(begin, until, new_from=self._new_from, fail_on_data_loss=self._options.fail_on_data_loss)
        split = split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        split = [replace(each, topic_id=self._topic_ids.get(each.partition.topic, b"")) for each in split]
        self._new_from = {p: offset for p, offset in self._new_from.items() if p not in until}
        rows = self._driver_reads.read(split)
        if rows is None:
            return self._tasks(split)
        HasRows.hold(self, rows)
        # One task for all. Spark takes the rows from this process; a task that does not find them reads all ranges.
        return [RangePartition(tuple(split))]

    def _tasks(self, split: list[OffsetRange]) -> list[InputPartition]:
        """Make the tasks. A partition's records stay in order, wherever they are: only an option divides them among tasks."""
        plan = self._tier.plan(self.lookup, split, max_bytes=_UNDIVIDED)
        tiered: dict[TopicPartition, list[OffsetRange | TierSlice]] = {each.partition: [] for each in plan.slices}
        everything: list[OffsetRange | TierSlice] = [*plan.slices, *plan.ranges]
        for part in everything:
            if part.partition in tiered:
                tiered[part.partition].append(part)
        mixed = [tuple(sorted(parts, key=lambda part: part.from_offset)) for parts in tiered.values()]
        others = [each for each in split if each.partition not in tiered]
        if self._options.is_divided:
            mixed = [(part,) for parts in mixed for part in parts]
            return [*(TierTask(plan.url, parts) for parts in mixed), *(RangePartition((each,)) for each in others)]
        tasks = in_tasks(others, may_wait=self._driver_reads.are_small)
        return [*(TierTask(plan.url, parts) for parts in mixed), *map(RangePartition, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)

    # -- progress -------------------------------------------------------------------------------------------------------

    def commit(self, end: OffsetJson) -> None:
        self._commit(from_json(end))

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        group = progress_group(self._options)
        if group is None:
            return
        if self._progress is None:
            self._progress = GroupProgress(self._options.client(), group)
        self._progress.commit(offsets)

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
        if self._progress is not None:
            self._progress.close()
        self._driver_reads.close()
