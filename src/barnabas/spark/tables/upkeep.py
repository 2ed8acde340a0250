"""Compacts small files, and removes old versions: the upkeep of a table that is written a little at a time.

`deltalake` and `pyiceberg` do it on the driver after a batch of the table, so it never competes with a batch. Readers of an
older version keep its files for `keep_hours`. Files that a dead run left, which no version names, are deleted after the same
time.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from barnabas.spark.pipelines.delta_upsert import STAGE
from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergTarget
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.places import DeltaPlace, IcebergPlace, place_of, sizes_of
from barnabas.spark.tables.storing import catalog_settings, delta_storage

if TYPE_CHECKING:
    import pyarrow.fs
    from deltalake import DeltaTable
    from pyiceberg.table import FileScanTask, Table

log: Final = logging.getLogger("barnabas.spark")

#: A smaller file counts as small.
SMALL_BYTES: Final = 32 * 1024 * 1024
#: Bytes that are put together at a time, in the memory of the driver.
_AT_A_TIME_BYTES: Final = 256 * 1024 * 1024
_EVERY_S: Final = 3600.0
#: Each commit to an Iceberg table writes the list of all its snapshots.
SNAPSHOTS_MAX: Final = 500


class Upkeep:
    """The upkeep of one run's tables. May be called from a thread per table."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Time of the last removal of old files, by URL.
        self._removed_s: dict[str, float] = {}

    def after_batch(self, table: Definition) -> None:
        """Compact the table and its table of errors, and remove their old versions."""
        for each in (table, table.errors()):
            place = place_of(each)
            if isinstance(place, DeltaPlace):
                self._delta(each, place.table)
            elif isinstance(place, IcebergPlace):
                self._iceberg(each, place.table)

    def _is_time(self, table: Definition) -> bool:
        now_s = self._clock()
        if now_s - self._removed_s.get(table.url, float("-inf")) < _EVERY_S:
            return False
        self._removed_s[table.url] = now_s
        return True

    def _delta(self, table: Definition, existing: "DeltaTable | None") -> None:
        if existing is None:
            return
        small = sum(size < SMALL_BYTES for size in sizes_of(existing))
        if table.compact_files and small >= table.compact_files:
            existing.optimize.compact(target_size=4 * SMALL_BYTES)
            log.info("table %s: put %d small files together", table.name, small)
        if self._is_time(table):
            # In full: also files that no version ever named.
            existing.vacuum(table.keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
            filesystem = DeltaTarget(table.url, StructType(), [], delta_storage(table)).filesystem()
            _remove_leftovers(filesystem, STAGE, table, keep=set())

    def _iceberg(self, table: Definition, existing: "Table | None") -> None:
        if existing is None or existing.current_snapshot() is None:
            return
        if table.compact_files:
            compact(existing, table.compact_files)
        if len(existing.metadata.snapshots) > SNAPSHOTS_MAX:
            first = sorted(existing.metadata.snapshots, key=lambda each: each.timestamp_ms)[: -SNAPSHOTS_MAX // 2]
            existing.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in first]).commit()
        if self._is_time(table):
            oldest = datetime.now(UTC) - timedelta(hours=table.keep_hours)
            existing.refresh()
            old = [each for each in existing.metadata.snapshots if each.timestamp_ms < oldest.timestamp() * 1000]
            if len(old) > 1:
                existing.maintenance.expire_snapshots().older_than(oldest).commit()
                existing.refresh()
            target = IcebergTarget(table.table, StructType(), catalog_settings(table), location=existing.location())
            filesystem, folder = target.folder()
            keep = {_path(each, target.settings) for each in named_files(existing)}
            for part in ("data", "metadata", STAGE):
                _remove_leftovers(filesystem, f"{folder}/{part}", table, keep=keep)


def compact(table: "Table", files_min: int) -> int:
    """Put the small files of an Iceberg table together if there are at least `files_min`; return their number."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

    small = [task for task in table.scan().plan_files() if task.file.file_size_in_bytes < SMALL_BYTES]
    if len(small) < files_min:
        return 0
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
        for tasks in _at_a_time(small):
            scan = ArrowScan(transaction.table_metadata, table.io, table.schema(), AlwaysTrue())
            for task in tasks:
                change.delete_data_file(task.file)
            for data_file in _dataframe_to_data_files(transaction.table_metadata, scan.to_table(tasks), table.io):
                change.append_data_file(data_file)
    return len(small)


def _at_a_time(tasks: "Iterable[FileScanTask]") -> "Iterable[list[FileScanTask]]":
    group: list[FileScanTask] = []
    size_bytes = 0
    for task in tasks:
        group.append(task)
        size_bytes += task.file.file_size_in_bytes
        if size_bytes >= _AT_A_TIME_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def named_files(table: "Table") -> set[str]:
    """Return every file that some version of an Iceberg table needs, whichever program wrote it."""
    found = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    found |= {each.statistics_path for each in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    read: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found |= {entry.data_file.file_path for entry in entries}
    return found | read


def _path(uri: str, settings: Mapping[str, str]) -> str:
    """Return a path in the form of the table's filesystem. Programs write a URL in several ways: `file:///a/b` and
    `file:/a/b`."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO.parse_location(uri, dict(settings))[2]


def _remove_leftovers(filesystem: "pyarrow.fs.FileSystem", folder: str, table: Definition, *, keep: set[str]) -> None:
    """Delete files that no version names, once they are too old to belong to a batch in progress."""
    import pyarrow.fs

    oldest_s = time.time() - table.keep_hours * 3600
    selector = pyarrow.fs.FileSelector(folder, recursive=True, allow_not_found=True)
    for found in filesystem.get_file_info(selector):
        if found.is_file and found.path not in keep and found.mtime is not None and found.mtime.timestamp() < oldest_s:
            filesystem.delete_file(found.path)
