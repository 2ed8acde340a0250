"""Format `barnabas-delta-upsert`: applies changes to a Delta table with `deltalake`, each batch once.

Executors stage changes as Parquet files in the table's folder, under `_barnabas_stage`, which Delta ignores. The
driver takes the last change of each key and merges them in one commit, which also names the query and the batch (Delta's `txn`
action). A batch that the log already names is not merged again.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.cdc import DELETED, SEQUENCE, UNCHANGED_COLUMNS, check_changes, has_unchanged
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.delta_table import STORAGE, DeltaTarget, storage_of
from barnabas.spark.pipelines.sinks.exactly_once import (
    ONCE_OPTIONS,
    STREAM_OPTIONS,
    Batch,
    BatchWriter,
    Claim,
    StreamOptions,
    StreamWriter,
    Task,
    once_of,
)
from barnabas.spark.pipelines.sinks.table_schema import columns_named, flag

if TYPE_CHECKING:
    import pyarrow
    from deltalake import CommitProperties, DeltaTable

STAGE: Final = "_barnabas_stage"
_OPTIONS: Final = ("path", "key", "deletes", "mergeSchema", *STREAM_OPTIONS, *ONCE_OPTIONS)
_ROW: Final = "_row"
_KEPT: Final = "_barnabas_kept_"


class DeltaUpsertSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-delta-upsert"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite), StreamOptions.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._target(schema, overwrite), once_of(self.options))

    def _target(self, schema: StructType, overwrite: bool) -> "DeltaUpsertTarget":
        if overwrite:
            raise ValueError("barnabas-delta-upsert applies changes; it does not overwrite")
        if "path" not in self.options:
            raise ValueError("barnabas-delta-upsert needs the option path: the table's folder or URI")
        check_names(self.options, _OPTIONS, what="format barnabas-delta-upsert", prefixes=(STORAGE,))
        keys = columns_named(self.options.get("key", ""))
        check_changes(schema, keys)
        deletes = self.options.get("deletes", "hard")
        if deletes not in ("hard", "soft"):
            raise ValueError(f"deletes={deletes!r} of barnabas-delta-upsert is not valid: use hard or soft")
        storage, merge = storage_of(self.options), flag(self.options, "mergeSchema")
        target = DeltaUpsertTarget(
            self.options["path"], schema, keys, soft=deletes == "soft", storage=storage, merge=merge
        )
        target.plan()
        return target


class DeltaUpsertTarget(DeltaTarget):
    """Stages like the appending target, in another folder; publishes by a merge. `schema` is that of the changes."""

    #: Columns that decide which of two changes is newer.
    ordered_by: tuple[str, ...] = (SEQUENCE,)
    #: The rows have the columns of `cdc`. A topic's own column may be named `_unchanged` as well.
    are_cdc: bool = True

    def __init__(
        self,
        path: str,
        schema: StructType,
        keys: Sequence[str],
        *,
        soft: bool,
        storage: Mapping[str, str],
        merge: bool = False,
    ) -> None:
        self.keys = list(keys)
        self.soft = soft
        super().__init__(path, schema, [], storage, merge=merge)

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem = self.filesystem()
        folder = f"{STAGE}/{task.query_id}"
        if "://" not in self.path:
            filesystem.create_dir(folder, recursive=True)
        staged: list[dict[str, object]] = []
        # A deleted row needs only its key: the merge checks the table's nullable columns.
        for number, table in enumerate(files.in_chunks(rows, self.schema, what=self.what)):
            for name in (*self.keys, *self.ordered_by):
                if nulls := table.column(name).null_count:
                    raise ValueError(f"{nulls} changes for Delta table {self.path} have no {name}")
            # Sorted by name the files are in the order of the rows: of equal changes the last one wins.
            name = f"{folder}/{task.batch_number:010}-{task.partition:05}-{number:06}-{uuid.uuid4().hex}.parquet"
            files.write_parquet(filesystem, name, table)
            staged.append({"path": name})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Claim | None) -> None:
        super().publish(items, batch)
        if isinstance(batch, Batch):
            self._discard_leftovers(batch)

    def _publish(
        self, table: "DeltaTable", items: Sequence[dict[str, object]], properties: "CommitProperties", now_ms: int
    ) -> None:
        before = table.version()
        if items:
            changes = self._staged(items)
            last = self.last_changes(changes)
            if self.marks is not None:
                last = keep_unchanged(last, changes, self.keys)
            self._merge(table, last, properties)
        if table.version() == before:
            # A merge without changes commits nothing, and the table would not know that it has the batch.
            columns = self.partition_by or None
            table.create_write_transaction([], "append", table.schema(), columns, commit_properties=properties)
        self.discard(items)

    def last_changes(self, changes: "pyarrow.Table") -> "pyarrow.Table":
        """Return the last change of each key."""
        return last_of_each_key(changes, self.keys)

    def newer(self) -> str:
        """Return the condition that a change `c` is newer than the row `t`. A row without a sequence is older than all
        changes."""
        name = quoted(SEQUENCE)
        return f"(t.{name} IS NULL OR c.{name} >= t.{name})"

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Discard the staged files, which no reader sees."""
        self.discard(items)

    def _discard_leftovers(self, batch: Batch) -> None:
        """Delete files that attempts of this query left when they died: its batches come one after the other."""
        import pyarrow.fs

        filesystem = self.filesystem()
        folder = pyarrow.fs.FileSelector(f"{STAGE}/{batch.query_id}", allow_not_found=True)
        for found in filesystem.get_file_info(folder):
            if found.is_file and int(found.base_name.partition("-")[0]) <= batch.number:
                filesystem.delete_file(found.path)

    def _staged(self, items: Sequence[dict[str, object]]) -> "pyarrow.Table":
        import pyarrow
        import pyarrow.parquet as parquet

        filesystem = self.filesystem()
        parts = []
        for path in sorted(cast(str, item["path"]) for item in items):
            with filesystem.open_input_file(path) as source:
                parts.append(parquet.read_table(source))
        return pyarrow.concat_tables(parts)

    def _merge(self, table: "DeltaTable", changes: "pyarrow.Table", properties: "CommitProperties") -> None:
        match = " AND ".join(f"t.{quoted(key)} = c.{quoted(key)}" for key in self.keys)
        newer = self.newer()
        values = {quoted(name): f"c.{quoted(name)}" for name in self.columns().names}
        # For values that a change left alone, the table keeps its own.
        kept = {
            quoted(name): f"CASE WHEN c.{quoted(_KEPT + name)} THEN t.{quoted(name)} ELSE c.{quoted(name)} END"
            for name in self.columns().names
            if _KEPT + name in changes.column_names
        }
        merge = table.merge(changes, match, source_alias="c", target_alias="t", commit_properties=properties)
        if self.soft:
            merge = merge.when_matched_update(values | kept, predicate=newer).when_not_matched_insert(values)
        else:
            gone = f"c.{quoted(DELETED)}"
            merge = merge.when_matched_delete(f"{gone} AND {newer}")
            merge = merge.when_matched_update(values | kept, predicate=f"NOT {gone} AND {newer}")
            merge = merge.when_not_matched_insert(values, predicate=f"NOT {gone}")
        merge.execute()

    def columns(self) -> StructType:
        apart = {self.marks} if self.soft else {self.marks, DELETED}
        return StructType([field for field in self.schema.fields if field.name not in apart])

    @property
    def marks(self) -> str | None:
        """Return the column with the names of the columns that a change left alone."""
        return UNCHANGED_COLUMNS if self.are_cdc and has_unchanged(self.schema) else None


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def last_of_each_key(changes: "pyarrow.Table", keys: Sequence[str]) -> "pyarrow.Table":
    """Return the change of each key with the largest sequence; of equal ones, the one that was staged last."""
    import pyarrow

    changes = with_one_zero(changes, keys)
    rows = pyarrow.array(range(changes.num_rows), pyarrow.int64())
    ordered = changes.append_column(_ROW, rows).sort_by([(SEQUENCE, "ascending"), (_ROW, "ascending")])
    ordered = ordered.drop_columns([_ROW]).append_column(_ROW, rows)
    last = ordered.group_by(list(keys)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return ordered.take(last).drop_columns([_ROW])


def keep_unchanged(last: "pyarrow.Table", changes: "pyarrow.Table", keys: Sequence[str]) -> "pyarrow.Table":
    """Return the last changes, with the values that they left alone taken from earlier changes of the batch.

    For a value that no change of the batch has, a column `_barnabas_kept_NAME` says that the table keeps its own.
    """
    import pyarrow
    import pyarrow.compute as compute

    marked = [row for row, names in enumerate(last.column(UNCHANGED_COLUMNS).to_pylist()) if names]
    if not marked:
        return last.drop_columns([UNCHANGED_COLUMNS])
    wanted = {
        tuple(row[key] for key in keys): at for at, row in zip(marked, last.take(marked).to_pylist(), strict=True)
    }
    missing = {at: set(last.column(UNCHANGED_COLUMNS)[at].as_py()) for at in marked}
    values: dict[str, dict[int, object]] = {name: {} for names in missing.values() for name in names}
    rows = pyarrow.array(range(changes.num_rows), pyarrow.int64())
    columns = list(dict.fromkeys([*keys, SEQUENCE, UNCHANGED_COLUMNS, *values]))
    ordered = with_one_zero(changes.select(columns), keys).append_column(_ROW, rows)
    for row in ordered.sort_by([(SEQUENCE, "descending"), (_ROW, "descending")]).to_pylist():
        at = wanted.get(tuple(row[key] for key in keys))
        if at is not None:
            for name in missing[at] - set(row[UNCHANGED_COLUMNS] or ()):
                values[name][at] = row[name]
                missing[at].remove(name)
    for name, found in values.items():
        at_column, kind = last.schema.get_field_index(name), last.schema.field(name)
        if found:
            mask = pyarrow.array([at in found for at in range(last.num_rows)])
            new = pyarrow.array([found[at] for at in sorted(found)], kind.type)
            filled = compute.replace_with_mask(last.column(at_column).combine_chunks(), mask, new)
            last = last.set_column(at_column, kind, filled)
        if any(name in names for names in missing.values()):
            kept = pyarrow.array([name in missing.get(at, ()) for at in range(last.num_rows)])
            last = last.append_column(_KEPT + name, kept)
    return last.drop_columns([UNCHANGED_COLUMNS])


def with_one_zero(changes: "pyarrow.Table", keys: Sequence[str]) -> "pyarrow.Table":
    """Make -0.0 to 0.0: a table compares keys as equal, but grouping, joining and `isin` do not."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    for name in keys:
        at = changes.schema.get_field_index(name)
        if types.is_floating(changes.column(at).type):
            changes = changes.set_column(at, changes.schema.field(at), compute.add(changes.column(at), 0.0))
    return changes
