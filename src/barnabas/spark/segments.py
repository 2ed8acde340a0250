"""Format `barnabas-log`: rows straight from the segment files of a log directory, Kafka's or ours, without a broker.

    spark.read.format("barnabas-log").load("/var/lib/kafka/data")

For backfills and analysis: it costs the brokers nothing. The executors must see the folder: local, or mounted. Every machine
can read the URL of an object store that brokers tier to (`s3://bucket/history`, see `spark.tier_log`).
"""

import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.client.fetching import whole_batches_end
from barnabas.spark.offsets import report_data_loss
from barnabas.spark.options import STORE_PREFIX, check_names, parse_offsets, store_settings, wants_headers
from barnabas.spark.pushdown import Bounds, asked_for_filters
from barnabas.spark.segment_plan import PartitionLog, Replaced, SegmentSlice, find_logs, last_stable_offset, slices
from barnabas.spark.source import columns_of, schema_for
from barnabas.spark.tier_log import StoreLog, find_store_logs, is_store, read_store_slice
from barnabas.spark.tier_slices import TierSlice, relevant
from barnabas.spark.worker_memory import keep_imports

if TYPE_CHECKING:
    from barnabas.spark.columns import BatchDecoder

#: Every option, by the name that users write.
OPTIONS: Final = (
    "path",
    "paths",
    "topic",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "includeHeaders",
    "failOnDataLoss",
    "isolationLevel",
    "beyondHighWatermark",
    "maxBytesPerPartition",
    "filterPushdown",
)
#: Half a second's work: with fewer bytes the cost of a task shows.
DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 16 * 1024 * 1024
#: How often files may be replaced while they are planned or opened.
_REPLANS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The checked options. Travels to the executors as it is."""

    paths: tuple[str, ...]
    #: The path is the URL of an object store, and these are its settings.
    is_store: bool = False
    store: Mapping[str, str] = field(default_factory=dict)
    #: None: all but Kafka's own topics.
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    starting: Mapping[TopicPartition, int] | int = EARLIEST
    ending: Mapping[TopicPartition, int] | int = LATEST
    fail_on_data_loss: bool = True
    read_committed: bool = False
    beyond_high_watermark: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    filter_pushdown: bool = False

    def takes(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return not topic.startswith("__")


def log_options(options: Mapping[str, str]) -> LogOptions:
    """Parse and check `options`. Raises `ConfigError`."""
    given = {name.lower(): value for name, value in options.items()}
    # A pipeline that reads a cluster may change only the format: its connection settings are not needed here, and not refused.
    given = {name: value for name, value in given.items() if not name.startswith("kafka.") or name == _ISOLATION}
    check_names(
        {name: value for name, value in given.items() if name != _ISOLATION},
        OPTIONS,
        what="segment reader",
        prefixes=(STORE_PREFIX,),
    )
    named = given.get("topic", given.get("subscribe"))
    topics = None if named is None else tuple(name.strip() for name in named.split(",") if name.strip())
    if topics is not None and "subscribepattern" in given:
        raise ConfigError("only one of topic, subscribe and subscribePattern can be specified")
    max_bytes = given.get("maxbytesperpartition", str(DEFAULT_MAX_BYTES))
    if not max_bytes.isdecimal() or int(max_bytes) == 0:
        raise ConfigError(f"maxBytesPerPartition must be positive, not '{max_bytes}'")
    isolation = given.get("isolationlevel", given.get(_ISOLATION, "read_uncommitted"))
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"isolationLevel is '{isolation}': use read_committed or read_uncommitted")
    paths = _paths(given)
    stores = [path for path in paths if is_store(path)]
    if stores and len(paths) > 1:
        raise ConfigError(f"{stores[0]} is an object store: read it alone, and log directories with another query")
    if stores and _flag(given, "beyondHighWatermark", default=False):
        raise ConfigError("beyondHighWatermark is for log directories: an object store has only what is committed")
    return LogOptions(
        paths=tuple(path if path in stores else path.removeprefix("file://") for path in paths),
        is_store=bool(stores),
        store=store_settings(given),
        topics=topics,
        pattern=given.get("subscribepattern"),
        starting=_limit(given, "startingOffsets", EARLIEST),
        ending=_limit(given, "endingOffsets", LATEST),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        read_committed=isolation == "read_committed",
        beyond_high_watermark=_flag(given, "beyondHighWatermark", default=False),
        max_bytes=int(max_bytes),
        filter_pushdown=_flag(given, "filterPushdown", default=False),
    )


_ISOLATION: Final = "kafka.isolation.level"


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = list(json.loads(given["paths"])) if "paths" in given else []
    if "path" in given:
        found += [path.strip() for path in given["path"].split(",") if path.strip()]
    if not found:
        raise ConfigError("option 'path' must name a log directory or a partition's folder in it")
    return tuple(found)


def _limit(given: Mapping[str, str], name: str, default: int) -> Mapping[TopicPartition, int] | int:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    return parse_offsets(text, name)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is '{text}': use true or false")
    return text == "true"


@dataclass(frozen=True)
class SlicePartition(InputPartition):
    """The slices that one task reads."""

    slice: SegmentSlice | TierSlice


class SegmentReader(DataSourceReader):
    def __init__(self, options: LogOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        for _ in range(_REPLANS):
            with suppress(Replaced):
                return [SlicePartition(each) for each in self._slices()]
        raise ConfigError(f"files in {', '.join(self._options.paths)} are replaced faster than they can be listed")

    def _slices(self) -> list[SegmentSlice | TierSlice]:
        options = self._options
        logs: Mapping[TopicPartition, PartitionLog | StoreLog]
        if options.is_store:
            logs = find_store_logs(options.paths[0], options.store)
        else:
            logs = find_logs(options.paths, beyond_high_watermark=options.beyond_high_watermark)
        if options.topics is not None and (
            missing := sorted(set(options.topics) - {partition.topic for partition in logs})
        ):
            raise ConfigError(f"no folder of topic {', '.join(missing)} in {', '.join(options.paths)}")
        found: list[SegmentSlice | TierSlice] = []
        for partition, log in logs.items():
            if options.takes(partition.topic) and self._bounds.admits(partition):
                start, until = self._bounds.cut(*self._range(log))
                max_bytes, read_committed = options.max_bytes, options.read_committed
                if isinstance(log, StoreLog):
                    part = log.slices(start=start, until=until, max_bytes=max_bytes, read_committed=read_committed)
                    self._report_holes(part, start)
                    found += part
                else:
                    found += slices(log, start=start, until=until, max_bytes=max_bytes, read_committed=read_committed)
        return found

    def _report_holes(self, found: Sequence[TierSlice], start: int) -> None:
        """Report holes. Brokers remove the oldest segments first, so another program removed a segment that is missing in
        between."""
        ends = [start, *(each.until_offset for each in found)]
        for end, each in zip(ends, found, strict=False):
            if each.from_offset > end:
                report_data_loss(
                    f"{each.partition} from offset {end} to {each.from_offset} is not in {self._options.paths[0]}, "
                    "although the records behind it are",
                    fail=self._options.fail_on_data_loss,
                )

    def _range(self, log: PartitionLog | StoreLog) -> tuple[int, int]:
        if isinstance(log, StoreLog):
            end = log.last_stable if self._options.read_committed else log.end
        else:
            end = last_stable_offset(log) if self._options.read_committed else log.high_watermark
        start = _resolve(self._options.starting, log.partition, log.log_start, end, default=EARLIEST)
        until = _resolve(self._options.ending, log.partition, log.log_start, end, default=LATEST)
        if start < log.log_start:
            report_data_loss(
                f"{log.partition} is to be read from offset {start}, its log begins with {log.log_start}",
                fail=self._options.fail_on_data_loss,
            )
        return max(start, log.log_start), max(start, min(until, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            return iter(())  # a query without partitions gets an empty one of Spark's own
        if isinstance(partition.slice, TierSlice):
            keep_imports()
            return read_store_slice(
                self._options.paths[0],
                self._options.store,
                partition.slice,
                self._columns,
                read_committed=self._options.read_committed,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
        return _rows(self._options, self._columns, partition.slice)


class FilteringSegmentReader(SegmentReader):
    """A reader with filters on topic, partition and offset pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return list(self._bounds.take(filters))


def _resolve(
    limit: Mapping[TopicPartition, int] | int, partition: TopicPartition, start: int, end: int, *, default: int
) -> int:
    offset = limit if isinstance(limit, int) else limit.get(partition, default)
    if offset == EARLIEST:
        return start
    return end if offset == LATEST else offset


def _rows(options: LogOptions, columns: Sequence[str], part: SegmentSlice) -> Iterator[pa.RecordBatch]:
    keep_imports()
    with ExitStack() as opened:
        for each, fd in _opened(options, part, opened):
            yield from _decoded(options, columns, each, fd)


def _opened(options: LogOptions, part: SegmentSlice, stack: ExitStack) -> list[tuple[SegmentSlice, int]]:
    """Open the slice as it was planned, or the slices that hold its offsets now. An open file does not change under the
    reader."""
    parts = [part]
    for _ in range(_REPLANS):
        found = []
        for each in parts:
            with suppress(FileNotFoundError):
                fd = os.open(each.path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                if each.is_in(fd):
                    found.append((each, fd))
        if len(found) == len(parts):
            return found
        parts = _planned_again(options, part)
    raise ConfigError(f"{part.path} is replaced faster than it can be read")


def _planned_again(options: LogOptions, part: SegmentSlice) -> list[SegmentSlice]:
    """Find where the offsets of a slice are now. Offsets that no file has any more are data loss."""

    def lost(why: str) -> list[SegmentSlice]:
        place = f"{part.partition} from offset {part.from_offset} to {part.until_offset}"
        report_data_loss(f"Cannot read {place}: {why}", fail=options.fail_on_data_loss)
        return []

    folder = Path(part.path).parent
    if not folder.is_dir():
        return lost(f"{folder} is gone")
    log = find_logs([str(folder)], beyond_high_watermark=True)[part.partition]
    if log.topic_id != part.topic_id:
        return lost("the topic was deleted and created again")
    if not log.segments:
        return lost(f"{part.path} is gone")
    if log.log_start > part.from_offset:
        lost(f"{part.path} is gone, the log begins with {log.log_start}")
    start = max(part.from_offset, log.log_start)
    committed = options.read_committed
    with suppress(Replaced):
        return slices(log, start=start, until=part.until_offset, max_bytes=1 << 62, read_committed=committed)
    return [part]


def _decoded(options: LogOptions, columns: Sequence[str], part: SegmentSlice, fd: int) -> Iterator[pa.RecordBatch]:
    from barnabas.spark.columns import BatchDecoder

    decoder = BatchDecoder(
        part.partition,
        from_offset=part.from_offset,
        to_offset=part.until_offset,
        columns=columns,
        read_committed=options.read_committed,
    )
    if part.sealed:
        # The map lives as long as a row of it does.
        data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        data.madvise(mmap.MADV_SEQUENTIAL)
        view = memoryview(data)[part.start : part.end]
        yield from decoder.decode(view, relevant(part.aborted, view), cut=False)
    else:
        yield from _read_growing(fd, decoder, part, cut=options.beyond_high_watermark)


def _read_growing(fd: int, decoder: "BatchDecoder", part: SegmentSlice, *, cut: bool) -> Iterator[pa.RecordBatch]:
    """Read the newest segment in pieces. A broker may append to it, and truncate it above the high watermark."""
    position, want = part.start, _READ_BYTES
    while position < part.end and not decoder.done:
        data = memoryview(os.pread(fd, min(want, part.end - position), position))
        size = whole_batches_end(data)
        if size:
            yield from decoder.decode(data[:size], relevant(part.aborted, data))
            position += size
        elif position + want < part.end and len(data) == want:
            want *= 2  # a batch larger than a piece
        else:
            # Below the high watermark every batch is whole.
            yield from decoder.decode(data, cut=cut)
            return


class BarnabasLogDataSource(DataSource):
    """`spark.read.format("barnabas-log")`."""

    @classmethod
    def name(cls) -> str:
        return "barnabas-log"

    def schema(self) -> StructType:
        return schema_for(headers=wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = log_options(self.options)
        kind = FilteringSegmentReader if options.filter_pushdown and asked_for_filters() else SegmentReader
        return kind(options, columns_of(schema))
