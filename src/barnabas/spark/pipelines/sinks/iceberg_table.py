"""Format `barnabas-iceberg`: appends to an Iceberg table with `pyiceberg`, each batch once.

Executors write Parquet files beside the table's data; the driver adds them in one Iceberg transaction that also sets the table
property `barnabas.batch.<query id>`. A batch that the property already covers is left alone. The rows of a partitioned table
are divided by the driver, because only the catalog's side knows the partition transforms.
"""

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
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_CATALOG = "catalog."
_OPTIONS = ("table",)


class IcebergSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-iceberg"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> "IcebergTarget":
        if overwrite:
            raise ValueError("barnabas-iceberg appends; it does not overwrite")
        check_names(self.options, _OPTIONS, what="format barnabas-iceberg", prefixes=(_CATALOG,))
        if self.options.get("table", "").count(".") < 1:
            raise ValueError("barnabas-iceberg needs the option table: namespace.name")
        settings = {
            name[len(_CATALOG) :]: value for name, value in self.options.items() if name.lower().startswith(_CATALOG)
        }
        target = IcebergTarget(self.options["table"], schema, settings)
        # Executors put their files into the table's folder: it must be there before they start.
        target.location = target.load().location()
        return target


class IcebergTarget:
    def __init__(self, table: str, schema: StructType, settings: Mapping[str, str]) -> None:
        self.table = table
        self.schema = schema
        self.settings = dict(settings)
        self.location = ""

    def load(self) -> "Table":
        """The table, which the first writer makes, unpartitioned."""
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._catalog()
        try:
            return catalog.load_table(self.table)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            return catalog.create_table_if_not_exists(self.table, schema=self._arrow_schema())

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem, folder = self._folder()
        filesystem.create_dir(f"{folder}/data")
        staged: list[dict[str, object]] = []
        for table in files.in_chunks(rows, self._arrow_schema()):
            name = f"data/{task.partition:05}-{uuid.uuid4().hex}.parquet"
            files.write_parquet(filesystem, f"{folder}/{name}", table)
            staged.append({"path": name})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Batch | None) -> None:
        import pyarrow.parquet as parquet

        table = self.load()
        mark = f"barnabas.batch.{batch.query_id}" if batch is not None else ""
        if batch is not None and int(table.properties.get(mark, "-1")) >= batch.number:
            self.discard(items)
            return
        names = [cast(str, item["path"]) for item in items]
        divided = not table.spec().is_unpartitioned()
        with table.transaction() as transaction:
            if divided:
                filesystem, folder = self._folder()
                for name in names:
                    transaction.append(parquet.read_table(f"{folder}/{name}", filesystem=filesystem))
            else:
                transaction.add_files([f"{self._uri()}/{name}" for name in names])
            if batch is not None:
                transaction.set_properties({mark: str(batch.number)})
        if divided:
            self.discard(items)

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        filesystem, folder = self._folder()
        for item in items:
            filesystem.delete_file(f"{folder}/{item['path']}")

    def _folder(self) -> "tuple[pyarrow.fs.FileSystem, str]":
        import pyarrow.fs

        return cast("tuple[pyarrow.fs.FileSystem, str]", pyarrow.fs.FileSystem.from_uri(self._uri()))

    def _uri(self) -> str:
        return self.location if "://" in self.location else f"file://{self.location}"

    def _catalog(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        settings = {key: value for key, value in self.settings.items() if key != "name"}
        return load_catalog(self.settings.get("name", "barnabas"), **settings)

    def _arrow_schema(self) -> "pyarrow.Schema":
        return to_arrow_schema(self.schema, timezone="UTC")
