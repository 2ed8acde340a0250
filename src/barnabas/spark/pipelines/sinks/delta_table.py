"""Format `barnabas-delta`: appends to a Delta table with `deltalake`, each batch once.

Executors write Parquet files into the table's folder; the driver adds them to the log in one commit that also names the
query and the batch (Delta's `txn` action). A batch that the log already names is left alone, and its files are removed.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.exactly_once import Batch, BatchWriter, StreamWriter, Task

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs
    from deltalake import DeltaTable

_STORAGE = "storage."
_OPTIONS = ("path", "partitionBy")


class DeltaSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> "DeltaTarget":
        if overwrite:
            raise ValueError("barnabas-delta appends; it does not overwrite")
        check_names(self.options, _OPTIONS, what="format barnabas-delta", prefixes=(_STORAGE,))
        if "path" not in self.options:
            raise ValueError("barnabas-delta needs the option path: the table's folder or URI")
        partition_by = [each.strip() for each in self.options.get("partitionBy", "").split(",") if each.strip()]
        unknown = sorted(set(partition_by) - set(schema.names))
        if unknown:
            raise ValueError(f"partitionBy names {', '.join(unknown)}, which the rows do not have: {schema.names}")
        storage = {
            name[len(_STORAGE) :]: value for name, value in self.options.items() if name.lower().startswith(_STORAGE)
        }
        return DeltaTarget(self.options["path"], schema, partition_by, storage)


class DeltaTarget:
    def __init__(self, path: str, schema: StructType, partition_by: list[str], storage: Mapping[str, str]) -> None:
        self.path = path.removeprefix("file://")
        self.schema = schema
        self.partition_by = partition_by
        self.storage = dict(storage)

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem = self._filesystem()
        staged: list[dict[str, object]] = []
        for table in files.in_chunks(rows, self._arrow_schema()):
            for values, part in files.by_partition(table, self.partition_by):
                # No folder per partition value: Delta reads the values from its log, and names need no escaping.
                name = f"part-{task.partition:05}-{uuid.uuid4().hex}.zstd.parquet"
                size = files.write_parquet(filesystem, name, part)
                staged.append({"path": name, "size": size, "values": values, "stats": files.statistics(part)})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        table = self._table()
        if batch is not None:
            last = table.transaction_version(batch.query_id)
            if last is not None and last >= batch.number:
                self.discard(items)
                return
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                cast(str, item["path"]),
                cast(int, item["size"]),
                cast("dict[str, str | None]", item["values"]),
                now_ms,
                True,
                cast(str, item["stats"]),
            )
            for item in items
        ]
        done = [Transaction(batch.query_id, batch.number, now_ms)] if batch is not None else None
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            self.partition_by or None,
            commit_properties=CommitProperties(app_transactions=done),
        )

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        filesystem = self._filesystem()
        for item in items:
            filesystem.delete_file(cast(str, item["path"]))

    def _table(self) -> "DeltaTable":
        """The table, which the first batch makes."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.path, self.storage or None):
            DeltaTable.create(
                self.path,
                self._arrow_schema(),
                "ignore",
                self.partition_by or None,
                storage_options=self.storage or None,
            )
        table = DeltaTable(self.path, storage_options=self.storage or None)
        partitions, columns = table.metadata().partition_columns, [each.name for each in table.schema().fields]
        if partitions != self.partition_by:
            raise ValueError(f"Delta table {self.path} is partitioned by {partitions}, not by {self.partition_by}")
        if columns != self.schema.names:
            raise ValueError(f"Delta table {self.path} has the columns {columns}; the rows have {self.schema.names}")
        return table

    def _arrow_schema(self) -> "pyarrow.Schema":
        return to_arrow_schema(self.schema, timezone="UTC")

    def _filesystem(self) -> "pyarrow.fs.FileSystem":
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        if "://" in self.path:
            return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.path, self.storage or None))
        local = pyarrow.fs.LocalFileSystem()
        local.create_dir(self.path)
        return pyarrow.fs.SubTreeFileSystem(self.path, local)
