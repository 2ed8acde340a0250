"""Format `barnabas-delta-upsert`: applies changes to a Delta table with `deltalake`, each batch once.

Executors put changes aside as Parquet files in the table's folder, under `_barnabas_stage`, which Delta does not look at. The
driver takes the last change of each key and merges them in one commit, which also names the query and the batch (Delta's `txn`
action); a batch that the log already names is left alone.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.cdc import DELETED, SEQUENCE, check_changes
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.exactly_once import Batch, BatchWriter, StreamWriter, Task

if TYPE_CHECKING:
    import pyarrow
    from deltalake import CommitProperties, DeltaTable

STAGE: Final = "_barnabas_stage"
_STORAGE: Final = "storage."
_OPTIONS: Final = ("path", "key", "deletes")
_ROW: Final = "_row"


class DeltaUpsertSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-delta-upsert"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ValueError("barnabas-delta-upsert applies changes; it does not overwrite")
        return BatchWriter(self._target(schema))

    def _target(self, schema: StructType) -> "DeltaUpsertTarget":
        if "path" not in self.options:
            raise ValueError("barnabas-delta-upsert needs the option path: the table's folder or URI")
        check_names(self.options, _OPTIONS, what="format barnabas-delta-upsert", prefixes=(_STORAGE,))
        keys = [each.strip() for each in self.options.get("key", "").split(",") if each.strip()]
        check_changes(schema, keys)
        storage = {
            name[len(_STORAGE) :]: value for name, value in self.options.items() if name.lower().startswith(_STORAGE)
        }
        deletes = self.options.get("deletes", "hard")
        if deletes not in ("hard", "soft"):
            raise ValueError(f"deletes of barnabas-delta-upsert are hard or soft, not {deletes!r}")
        return DeltaUpsertTarget(self.options["path"], schema, keys, soft=deletes == "soft", storage=storage)


class DeltaUpsertTarget(DeltaTarget):
    """Stages like the target that appends, elsewhere; publishes by a merge. `schema` is that of the changes."""

    def __init__(
        self, path: str, schema: StructType, keys: Sequence[str], *, soft: bool, storage: Mapping[str, str]
    ) -> None:
        super().__init__(path, schema, [], storage)
        self.keys = list(keys)
        self.soft = soft

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem = self._filesystem()
        folder = f"{STAGE}/{task.query_id}"
        if "://" not in self.path:
            filesystem.create_dir(folder, recursive=True)
        staged: list[dict[str, object]] = []
        for table in files.in_chunks(rows, to_arrow_schema(self.schema, timezone="UTC")):
            for name in (*self.keys, SEQUENCE):
                if nulls := table.column(name).null_count:
                    raise ValueError(f"{nulls} changes for Delta table {self.path} have no {name}")
            name = f"{folder}/{task.batch_number:010}-{task.partition:05}-{uuid.uuid4().hex}.parquet"
            files.write_parquet(filesystem, name, table)
            staged.append({"path": name})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        from deltalake import CommitProperties, Transaction

        table = self._made()
        if batch is not None:
            last = table.transaction_version(batch.query_id)
            if last is not None and last >= batch.number:
                self.discard(items)
                return
        done = [Transaction(batch.query_id, batch.number, int(time.time() * 1000))] if batch is not None else None
        changes = last_of_each_key(self._staged(items), self.keys)
        self._merge(table, changes, CommitProperties(app_transactions=done))
        self.discard(items)
        if batch is not None:
            self._discard_leftovers(batch)

    def _discard_leftovers(self, batch: Batch) -> None:
        """Files that attempts of this query left when they died: its batches come one after the other."""
        import pyarrow.fs

        filesystem = self._filesystem()
        folder = pyarrow.fs.FileSelector(f"{STAGE}/{batch.query_id}", allow_not_found=True)
        for found in filesystem.get_file_info(folder):
            if found.is_file and int(found.base_name.partition("-")[0]) <= batch.number:
                filesystem.delete_file(found.path)

    def _staged(self, items: Sequence[dict[str, object]]) -> "pyarrow.Table":
        import pyarrow
        import pyarrow.parquet as parquet

        filesystem = self._filesystem()
        parts = []
        for path in sorted(cast(str, item["path"]) for item in items):
            with filesystem.open_input_file(path) as source:
                parts.append(parquet.read_table(source))
        return pyarrow.concat_tables(parts)

    def _merge(self, table: "DeltaTable", changes: "pyarrow.Table", properties: "CommitProperties") -> None:
        match = " AND ".join(f"t.{quoted(key)} = c.{quoted(key)}" for key in self.keys)
        newer = f"c.{quoted(SEQUENCE)} >= t.{quoted(SEQUENCE)}"
        values = {quoted(name): f"c.{quoted(name)}" for name in self._columns()}
        merge = table.merge(changes, match, source_alias="c", target_alias="t", commit_properties=properties)
        if self.soft:
            merge = merge.when_matched_update(values, predicate=newer).when_not_matched_insert(values)
        else:
            gone = f"c.{quoted(DELETED)}"
            merge = merge.when_matched_delete(f"{gone} AND {newer}")
            merge = merge.when_matched_update(values, predicate=f"NOT {gone} AND {newer}")
            merge = merge.when_not_matched_insert(values, predicate=f"NOT {gone}")
        merge.execute()

    def _columns(self) -> list[str]:
        return [name for name in self.schema.names if self.soft or name != DELETED]

    def _made(self) -> "DeltaTable":
        """The table, which the first batch makes; its columns must be those of the changes."""
        from deltalake import DeltaTable

        storage = self.storage or None
        if not DeltaTable.is_deltatable(self.path, storage):
            kept = StructType([field for field in self.schema.fields if field.name in self._columns()])
            arrow = to_arrow_schema(kept, timezone="UTC")
            DeltaTable.create(self.path, arrow, "ignore", storage_options=storage)
        table = DeltaTable(self.path, storage_options=storage)
        columns = [field.name for field in table.schema().fields]
        if set(columns) != set(self._columns()):
            raise ValueError(f"Delta table {self.path} has the columns {columns}; the changes have {self._columns()}")
        return table


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def last_of_each_key(changes: "pyarrow.Table", keys: Sequence[str]) -> "pyarrow.Table":
    """The change of each key with the largest sequence; of equal ones, the one that was staged last."""
    import pyarrow

    rows = pyarrow.array(range(changes.num_rows), pyarrow.int64())
    ordered = changes.append_column(_ROW, rows).sort_by([(SEQUENCE, "ascending"), (_ROW, "ascending")])
    ordered = ordered.drop_columns([_ROW]).append_column(_ROW, rows)
    last = ordered.group_by(list(keys)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return ordered.take(last).drop_columns([_ROW])
