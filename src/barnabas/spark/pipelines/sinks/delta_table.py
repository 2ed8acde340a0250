"""Format `barnabas-delta`: appends to a Delta table with `deltalake`, each batch once.

Executors write Parquet files into the table's folder; the driver adds them to the log in one commit that also names the
query and the batch (Delta's `txn` action). If the log already names a batch, it is not added again, and its files are removed.

Rows that the table cannot take are refused before any is written. If the table has constraints, the driver lets deltalake write
the rows instead, which checks them.
"""

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import quote

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.exactly_once import (
    ONCE_OPTIONS,
    STREAM_OPTIONS,
    BatchWriter,
    Claim,
    Overtaken,
    Span,
    Standing,
    StreamOptions,
    StreamWriter,
    Task,
    once_of,
)
from barnabas.spark.pipelines.sinks.table_schema import (
    Fit,
    TableMismatch,
    columns_named,
    fit,
    flag,
    same_types,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs
    from deltalake import CommitProperties, DeltaTable

STORAGE = "storage."
_OPTIONS = ("path", "partitionBy", "mergeSchema", *STREAM_OPTIONS, *ONCE_OPTIONS)
#: Key in the information of a commit: the identity of the batch, under the name of its query.
_NOTE = "barnabas.batch."
#: Number of commits in which to look for the note of a batch that is refused.
_NOTES_MAX = 1_000
#: Features of the protocol that need nothing from a program that appends files.
_HARMLESS = frozenset(
    {"appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata", "timestampNtz", "vacuumProtocolCheck"}
)


class DeltaSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite), StreamOptions.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._target(schema, overwrite), once_of(self.options))

    def _target(self, schema: StructType, overwrite: bool) -> "DeltaTarget":
        check_names(self.options, _OPTIONS, what="format barnabas-delta", prefixes=(STORAGE,))
        if "path" not in self.options:
            raise ValueError("barnabas-delta needs the option path: the table's folder or URI")
        partition_by = columns_named(self.options.get("partitionBy", ""))
        unknown = sorted(set(partition_by) - set(schema.names))
        if unknown:
            raise ValueError(f"partitionBy names {', '.join(unknown)}, which the rows do not have: {schema.names}")
        target = DeltaTarget(
            self.options["path"],
            schema,
            partition_by,
            storage_of(self.options),
            merge=flag(self.options, "mergeSchema"),
            replaces=overwrite,
        )
        target.plan()
        return target


def storage_of(options: Mapping[str, str]) -> dict[str, str]:
    return {name[len(STORAGE) :]: value for name, value in options.items() if name.lower().startswith(STORAGE)}


class DeltaTarget:
    def __init__(
        self,
        path: str,
        schema: StructType,
        partition_by: list[str],
        storage: Mapping[str, str],
        *,
        merge: bool = False,
        replaces: bool = False,
    ) -> None:
        self.path = path.removeprefix("file://")
        self.schema = schema
        self.partition_by = partition_by
        self.storage = dict(storage)
        self.merge = merge
        self.replaces = replaces
        #: The rows' columns as the table has them; the columns of the rows if the table does not exist yet.
        self.written = self.columns()

    def plan(self) -> None:
        """Refuse rows that the table cannot take, before any of them is written."""
        if binary := [name for name in self.partition_by if isinstance(self.schema[name].dataType, BinaryType)]:
            # Partition values are text in Delta's log, and readers do not all turn it back into the same bytes.
            raise TableMismatch(f"{self.what} cannot be partitioned by {', '.join(binary)}, which is binary")
        table = self.existing()
        if table is not None:
            self.written = self._fit(table).written

    def _fit(self, table: "DeltaTable") -> Fit:
        partitions = table.metadata().partition_columns
        if partitions != self.partition_by:
            raise TableMismatch(f"{self.what} is partitioned by {partitions}, not by {self.partition_by}")
        # Delta stores Spark's own description of a schema.
        existing = StructType.fromJson(json.loads(table.schema().to_json()))
        return fit(self.columns(), existing, what=self.what, merge=self.merge)

    def columns(self) -> StructType:
        """Return the columns that go into the table."""
        return self.schema

    @property
    def what(self) -> str:
        return f"Delta table {self.path}"

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem = self.filesystem()
        staged: list[dict[str, object]] = []
        for table in files.in_chunks(rows, self.written, what=self.what):
            for values, part in files.by_partition(table, self.partition_by):
                name = f"{_folder(values)}part-{task.partition:05}-{uuid.uuid4().hex}.zstd.parquet"
                if values and "://" not in self.path:
                    filesystem.create_dir(name.rpartition("/")[0], recursive=True)
                size = files.write_parquet(filesystem, name, part)
                staged.append({"path": name, "size": size, "values": values, "stats": files.statistics(part)})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Claim | None) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        table = self._made()
        now_ms = int(time.time() * 1000)
        done = notes = None
        if batch is not None:
            standing = batch.standing(table.transaction_version, partial(_note_of, table), self.what)
            if standing is not Standing.WRITE:
                self.discard(items)
                items = []
            if standing is Standing.LEAVE:
                return
            if standing is Standing.SKIP and self.replaces:
                raise ValueError(
                    f"{self.what}: a batch of output mode complete is the whole result, and cannot be skipped"
                )
            done = [Transaction(name, version, now_ms) for name, version in batch.marks.items()]
            notes = {_NOTE + name: text for name, text in batch.notes(self.what).items()}
        try:
            self._publish(table, items, CommitProperties(custom_metadata=notes, app_transactions=done), now_ms)
        except CommitFailedError as error:
            if not isinstance(batch, Span):
                raise
            # Delta refuses a second commit of the same names from the same version: another writer was first.
            raise Overtaken(f"{self.what} was changed meanwhile: {_one_line(error)}") from error

    def _publish(
        self, table: "DeltaTable", items: Sequence[dict[str, object]], properties: "CommitProperties", now_ms: int
    ) -> None:
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, RemoveAction

        mode: Literal["append", "overwrite"] = "overwrite" if self.replaces else "append"
        if _has_rules(table):
            # deltalake checks constraints when it writes. It also notices another writer that commits the same batch.
            try:
                write_deltalake(table, self._read(items), mode=mode, commit_properties=properties)
            except CommitFailedError:
                raise  # another writer, not these rows
            except DeltaError as error:
                raise TableMismatch(
                    f"{self.what} does not take these rows{_rules(table)}: {_one_line(error)}"
                ) from error
            self.discard(items)
            return
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
        table.create_write_transaction(
            actions, mode, table.schema(), self.partition_by or None, commit_properties=properties
        )

    def _read(self, items: Sequence[dict[str, object]]) -> "pyarrow.Table":
        """Return the staged rows, with their partition columns, which are not in the files."""
        import pyarrow
        import pyarrow.parquet as parquet

        filesystem, schema = self.filesystem(), self._arrow_schema()
        parts = []
        for item in items:
            part = parquet.read_table(cast(str, item["path"]), filesystem=filesystem)
            for name, value in cast("dict[str, str | None]", item["values"]).items():
                text = pyarrow.array([value] * part.num_rows, pyarrow.string())
                part = part.append_column(name, text.cast(schema.field(name).type))
            parts.append(part.select(schema.names).cast(schema))
        return pyarrow.concat_tables(parts) if parts else schema.empty_table()

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        filesystem = self.filesystem()
        for item in items:
            filesystem.delete_file(cast(str, item["path"]))

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Discard the files, except those that the log names: a commit that failed may have reached it."""
        table = self.existing()
        live = set() if table is None else {uri.rpartition("/")[2] for uri in table.file_uris()}
        self.discard([item for item in items if cast(str, item["path"]).rpartition("/")[2] not in live])

    def existing(self) -> "DeltaTable | None":
        from deltalake import DeltaTable

        storage = self.storage or None
        return DeltaTable(self.path, storage_options=storage) if DeltaTable.is_deltatable(self.path, storage) else None

    def _made(self) -> "DeltaTable":
        """Return the table, which the first batch creates, with every column that these rows need."""
        from deltalake import DeltaTable
        from deltalake import Schema as DeltaSchema

        table = self.existing()
        if table is None:
            arrow = to_arrow_schema(self.columns(), timezone="UTC")
            DeltaTable.create(
                self.path, arrow, "ignore", self.partition_by or None, storage_options=self.storage or None
            )
            table = DeltaTable(self.path, storage_options=self.storage or None)
        found = self._fit(table)
        if found.added:
            new = to_arrow_schema(StructType(list(found.added)), timezone="UTC")
            table.alter.add_columns(DeltaSchema.from_arrow(new).fields)
            table.update_incremental()
            found = self._fit(table)
        if not same_types(found.written, self.written):
            raise TableMismatch(f"{self.what} was changed while the batch was written: run it again")
        return table

    def _arrow_schema(self) -> "pyarrow.Schema":
        return to_arrow_schema(self.written, timezone="UTC")

    def filesystem(self) -> "pyarrow.fs.FileSystem":
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        if "://" in self.path:
            return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.path, self.storage or None))
        local = pyarrow.fs.LocalFileSystem()
        local.create_dir(self.path)
        return pyarrow.fs.SubTreeFileSystem(self.path, local)


def _note_of(table: "DeltaTable", name: str) -> str | None:
    """Return the identity of the last batch of this name, if the table's log still has it."""
    found = (commit.get(_NOTE + name) for commit in table.history(_NOTES_MAX))
    return next((str(note) for note in found if note is not None), None)


def _folder(values: Mapping[str, str | None]) -> str:
    """Return a folder for each value of a partition column. Delta has the values in its log, but Polars reads them here."""
    names = ("__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="") for value in values.values())
    return "".join(f"{quote(name, safe='')}={value}/" for name, value in zip(values, names, strict=True))


def _has_rules(table: "DeltaTable") -> bool:
    """Whether writers have to do more than add files: the table has constraints, generated columns, or mapped names."""
    config = table.metadata().configuration
    mapped = (config.get("delta.columnMapping.mode") or "none") != "none"
    features = set(table.protocol().writer_features or ())
    described = json.loads(table.schema().to_json())["fields"]
    metadata = {name for field in described for name in field.get("metadata") or {}}
    return (
        mapped
        or any(name.startswith("delta.constraints.") for name in config)
        or bool(metadata & {"delta.invariants", "delta.generationExpression"})
        or bool(features - _HARMLESS)
    )


def _rules(table: "DeltaTable") -> str:
    config = table.metadata().configuration.items()
    rules = [f"{name.removeprefix('delta.constraints.')}: {rule}" for name, rule in config if ".constraints." in name]
    return f" (constraints: {', '.join(rules)})" if rules else ""


def _one_line(error: Exception) -> str:
    """Return the message without the lines that deltalake draws around the rows that it shows."""
    return " ".join(re.sub(r"\+[-+]+\+", "", str(error)).split())
