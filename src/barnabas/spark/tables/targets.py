"""The targets of a topic's rows: the sinks of `pipelines`, with the order of a log for upserts.

Of two changes of a key in one partition the one with the higher offset is newer, as in Kafka's compaction. If a key is in
two partitions (the topic got more of them), the record with the later time is newer.
"""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from barnabas.spark.pipelines.cdc import DELETED
from barnabas.spark.pipelines.delta_upsert import STAGE, DeltaUpsertTarget, quoted, with_one_zero
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.exactly_once import Task
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergTarget
from barnabas.spark.tables.definition import OFFSET, PARTITION, TIMESTAMP, Definition
from barnabas.spark.tables.storing import catalog_settings, delta_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

_ROW: Final = "_row"
_ORDER: Final = (PARTITION, OFFSET, TIMESTAMP)

Target = DeltaTarget | IcebergTarget


def target_of(table: Definition, columns: StructType) -> Target:
    """Return a target that is ready to stage rows of these columns. Raises `TableMismatch` if the table cannot take them."""
    target: Target
    if table.format == "iceberg":
        catalog = catalog_settings(table)
        kind = IcebergUpserts if table.mode == "upsert" else IcebergTarget
        target = kind(table.table, columns, catalog, merge=True, location=table.url, partition_by=table.partition_by)
        if isinstance(target, IcebergUpserts):
            target.keys = list(table.keys)
    elif table.mode == "upsert":
        target = DeltaUpserts(table.url, columns, table.keys, soft=False, storage=delta_storage(table), merge=True)
        target.partition_by = list(table.partition_by)
    else:
        target = DeltaTarget(table.url, columns, list(table.partition_by), delta_storage(table), merge=True)
    target.plan()
    return target


class DeltaUpserts(DeltaUpsertTarget):
    """A target that merges changes in the order of the log."""

    ordered_by = _ORDER
    are_cdc = False

    def last_changes(self, changes: "pyarrow.Table") -> "pyarrow.Table":
        return last_in_log(changes, self.keys)

    def newer(self) -> str:
        part, offset, time = (quoted(name) for name in _ORDER)
        return f"((c.{part} = t.{part} AND c.{offset} > t.{offset}) OR (c.{part} <> t.{part} AND c.{time} >= t.{time}))"


def last_in_log(changes: "pyarrow.Table", keys: Sequence[str]) -> "pyarrow.Table":
    """Return the last change of each key: by offset within a partition, and by time between partitions."""
    last = _last(with_one_zero(changes, keys), [*keys, PARTITION], [(OFFSET, "ascending")])
    return _last(last, keys, [(TIMESTAMP, "ascending"), (PARTITION, "ascending")])


def _last(changes: "pyarrow.Table", by: Sequence[str], order: list[tuple[str, str]]) -> "pyarrow.Table":
    import pyarrow
    import pyarrow.compute as compute

    order_of = compute.sort_indices(changes.select([name for name, _ in order]), sort_keys=order)
    names = changes.select(list(by)).take(order_of)
    rows = pyarrow.array(range(changes.num_rows), pyarrow.int64())
    last = names.append_column(_ROW, rows).group_by(list(by)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return changes.take(order_of.take(last.combine_chunks()))


class IcebergUpserts(IcebergTarget):
    """Stages changes beside the table's data; publishes by deleting the rows that they replace, and appending the new ones."""

    keys: Sequence[str] = ()

    def columns(self) -> StructType:
        return StructType([field for field in self.schema.fields if field.name != DELETED])

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem, folder = self.folder()
        if self.is_local:
            filesystem.create_dir(f"{folder}/{STAGE}/{task.query_id}", recursive=True)
        staged: list[dict[str, object]] = []
        deleted = StructField(DELETED, self.schema[DELETED].dataType)
        for number, table in enumerate(
            files.in_chunks(rows, StructType([*self.written.fields, deleted]), what=self.what)
        ):
            name = f"{STAGE}/{task.query_id}/{task.partition:05}-{number:06}-{uuid.uuid4().hex}.parquet"
            files.write_parquet(filesystem, f"{folder}/{name}", table)
            staged.append({"path": name})
        return staged

    def _commit(self, table: "Table", items: Sequence[dict[str, object]], marks: dict[str, str]) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        table.metadata.properties["commit.retry.num-retries"] = "0"  # of this copy
        filesystem, folder = self.folder()
        parts = [parquet.read_table(f"{folder}/{item['path']}", filesystem=filesystem) for item in items]
        has_changed = False
        with table.transaction() as transaction:
            if parts:
                changes = last_in_log(pyarrow.concat_tables(parts), self.keys)
                changes, replaced = self._newer(table, changes)
                if replaced.num_rows:
                    transaction.delete(matching(replaced, self.keys))
                    has_changed = True
                kept = changes.filter(pyarrow.compute.invert(changes.column(DELETED))).drop_columns([DELETED])
                if kept.num_rows:
                    self._append(transaction, kept)
                    has_changed = True
            if not has_changed:
                with transaction.update_snapshot().fast_append():
                    pass  # a snapshot without changes: a catalog compares snapshots to notice a second writer
            transaction.set_properties(marks)
        self.discard(items)

    def _newer(self, table: "Table", changes: "pyarrow.Table") -> "tuple[pyarrow.Table, pyarrow.Table]":
        """Return the changes that are newer than the table's rows of their keys, and the keys that the table has."""
        import pyarrow
        import pyarrow.compute as compute

        rows = pyarrow.array(range(changes.num_rows), pyarrow.int64())
        mine = changes.select([*self.keys, *_ORDER]).append_column(_ROW, rows)
        fields = tuple(dict.fromkeys((*self.keys, *_ORDER)))
        stored = table.scan(row_filter=matching(changes, self.keys), selected_fields=fields).to_arrow()
        stored = stored.select([*self.keys, *_ORDER]).cast(mine.drop_columns([_ROW]).schema)
        both = mine.join(stored, list(self.keys), join_type="inner", right_suffix="_there")
        same = compute.equal(both.column(PARTITION), both.column(f"{PARTITION}_there"))
        by_offset = compute.greater(both.column(OFFSET), both.column(f"{OFFSET}_there"))
        by_time = compute.greater_equal(both.column(TIMESTAMP), both.column(f"{TIMESTAMP}_there"))
        newer = compute.if_else(same, by_offset, by_time)
        older = both.filter(compute.invert(newer)).column(_ROW)
        keep = compute.invert(compute.is_in(rows, value_set=older.combine_chunks()))
        return changes.filter(keep), both.filter(newer).select(list(self.keys))

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Do nothing but discard: no reader sees the staged files."""
        self.discard(items)


def matching(rows: "pyarrow.Table", keys: Sequence[str]) -> "BooleanExpression":
    """A filter for the rows of these keys."""
    from pyiceberg.expressions import And, EqualTo, In, Or, Reference

    if len(keys) == 1:
        return In(Reference(keys[0]), rows.column(keys[0]).to_pylist())  # type: ignore[call-arg]
    each: list[BooleanExpression] = [
        And(*(EqualTo(Reference(name), value) for name, value in row.items()))  # type: ignore[call-arg]
        for row in rows.select(list(keys)).to_pylist()
    ]
    # Build a balanced tree: a chain would be too deep for recursion.
    while len(each) > 1:
        each = [Or(*each[at : at + 2]) if at + 1 < len(each) else each[at] for at in range(0, len(each), 2)]
    return each[0]
