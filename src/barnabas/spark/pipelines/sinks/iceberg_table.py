"""Format `barnabas-iceberg`: appends to an Iceberg table with `pyiceberg`, each batch once.

Executors write Parquet files beside the table's data; the driver adds them in one Iceberg transaction that also sets the table
property `barnabas.batch.<query id>`. A batch that the property already covers is left alone. The rows of a partitioned table
are divided by the driver, because only the catalog's side knows the partition transforms.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.exactly_once import ONCE_OPTIONS, Batch, BatchWriter, StreamWriter, Task, once_of
from barnabas.spark.pipelines.sinks.table_schema import Fit, TableMismatch, fit, flag, same_types

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_CATALOG = "catalog."
#: Between attempts to commit, when others commit to the table at the same time.
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_OPTIONS = ("table", "mergeSchema", *ONCE_OPTIONS)


class IcebergSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-iceberg"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._target(schema, overwrite), once_of(self.options))

    def _target(self, schema: StructType, overwrite: bool) -> "IcebergTarget":
        check_names(self.options, _OPTIONS, what="format barnabas-iceberg", prefixes=(_CATALOG,))
        if self.options.get("table", "").count(".") < 1:
            raise ValueError("barnabas-iceberg needs the option table: namespace.name")
        settings = settings_of(self.options)
        merge = flag(self.options, "mergeSchema")
        target = IcebergTarget(self.options["table"], schema, settings, merge=merge, replaces=overwrite)
        target.plan()
        return target


def settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Of the catalog, among the options of the format."""
    return {name[len(_CATALOG) :]: value for name, value in options.items() if name.lower().startswith(_CATALOG)}


def load_catalog_of(options: Mapping[str, str]) -> "Catalog":
    return _load(settings_of(options))


def _load(settings: Mapping[str, str]) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    # Some kinds of catalog write their name down with a table.
    return load_catalog(settings.get("name", "barnabas"), **{key: settings[key] for key in settings if key != "name"})


class IcebergTarget:
    def __init__(
        self,
        table: str,
        schema: StructType,
        settings: Mapping[str, str],
        *,
        merge: bool = False,
        replaces: bool = False,
    ) -> None:
        self.table = table
        self.schema = schema
        self.settings = dict(settings)
        self.merge = merge
        self.replaces = replaces
        self.location = ""
        #: The columns of the rows as the table has them, or is given them when the batch is published.
        self.written = schema

    def plan(self) -> None:
        """Refuse rows that the table cannot take. Executors put their files into its folder: it must be there by now."""
        table = self.load()
        self.location = table.location()
        self.written = self._fit(table).written

    @property
    def what(self) -> str:
        return f"Iceberg table {self.table}"

    def _fit(self, table: "Table") -> Fit:
        there = from_arrow_schema(table.schema().as_arrow())
        return fit(self.schema, there, what=self.what, merge=self.merge, can_widen=True)

    def _evolve(self, table: "Table") -> "Table":
        """With the columns that the rows were written with."""
        found = self._fit(table)
        if not same_types(found.written, self.written):
            raise TableMismatch(f"{self.what} was changed while the batch was written: run it again")
        if not found.added and not found.widened:
            return table
        with table.update_schema() as change:
            change.union_by_name(to_arrow_schema(StructType([*found.added, *found.widened]), timezone="UTC"))
        return table.refresh()

    def load(self) -> "Table":
        """The table, which the first writer makes, unpartitioned."""
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._catalog()
        try:
            return catalog.load_table(self.table)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            made = to_arrow_schema(self.schema, timezone="UTC")
            return catalog.create_table_if_not_exists(self.table, schema=made)

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem, folder = self._folder()
        filesystem.create_dir(f"{folder}/data")
        staged: list[dict[str, object]] = []
        for table in files.in_chunks(rows, self.written, what=self.what):
            name = f"data/{task.partition:05}-{uuid.uuid4().hex}.parquet"
            files.write_parquet(filesystem, f"{folder}/{name}", table)
            staged.append({"path": name})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for pause_s in (*_PAUSES_S, None):
            table = self.load()
            mark = f"barnabas.batch.{batch.query_id}" if batch is not None else ""
            if batch is not None and int(table.properties.get(mark, "-1")) >= batch.number:
                self.discard(items)
                return
            try:
                self._commit(self._evolve(table), items, {mark: str(batch.number)} if batch is not None else {})
            except CommitFailedException:
                # Somebody else has committed: perhaps this batch, by another driver of the query. pyiceberg would not look.
                if pause_s is None:
                    raise
                time.sleep(pause_s)
            else:
                return

    def _commit(self, table: "Table", items: Sequence[dict[str, object]], marks: dict[str, str]) -> None:
        import pyarrow.parquet as parquet
        from pyiceberg.table import ALWAYS_TRUE

        table.metadata.properties["commit.retry.num-retries"] = "0"  # of this copy
        names = [cast(str, item["path"]) for item in items]
        divided = not table.spec().is_unpartitioned()
        with table.transaction() as transaction:
            if self.replaces and table.current_snapshot() is not None:
                transaction.delete(ALWAYS_TRUE)
            if divided:
                filesystem, folder = self._folder()
                for name in names:
                    transaction.append(parquet.read_table(f"{folder}/{name}", filesystem=filesystem))
            elif names:
                transaction.add_files([f"{self._uri()}/{name}" for name in names])
            if marks:
                transaction.set_properties(marks)
        if divided:
            self.discard(items)

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        filesystem, folder = self._folder()
        for item in items:
            filesystem.delete_file(f"{folder}/{item['path']}")

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """A commit that failed may have reached the catalog: files that the table names stay."""
        live = {task.file.file_path.rpartition("/")[2] for task in self.load().scan().plan_files()}
        self.discard([item for item in items if cast(str, item["path"]).rpartition("/")[2] not in live])

    def _folder(self) -> "tuple[pyarrow.fs.FileSystem, str]":
        import pyarrow.fs

        return cast("tuple[pyarrow.fs.FileSystem, str]", pyarrow.fs.FileSystem.from_uri(self._uri()))

    def _uri(self) -> str:
        return self.location if "://" in self.location else f"file://{self.location}"

    def _catalog(self) -> "Catalog":
        return _load(self.settings)
