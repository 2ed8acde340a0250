"""Format `barnabas-iceberg`: appends to an Iceberg table with `pyiceberg`, each batch once.

Executors write Parquet files beside the table's data; the driver adds them in one Iceberg transaction that also sets the table
property `barnabas.batch.<query id>`. A batch that the property already covers is not added again. The driver divides
the rows of a partitioned table, because only the catalog's side knows the partition transforms.
"""

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.options import check_names
from barnabas.spark.pipelines.sinks import files
from barnabas.spark.pipelines.sinks.exactly_once import (
    ONCE_OPTIONS,
    STREAM_OPTIONS,
    BatchWriter,
    Claim,
    Standing,
    StreamOptions,
    StreamWriter,
    Task,
    once_of,
)
from barnabas.spark.pipelines.sinks.iceberg_nulls import keep_nulls
from barnabas.spark.pipelines.sinks.table_schema import Fit, TableMismatch, fit, flag, same_types

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

_CATALOG = "catalog."
#: Pauses between attempts to commit, when others commit to the table at the same time.
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_OPTIONS = ("table", "mergeSchema", *STREAM_OPTIONS, *ONCE_OPTIONS)
_SQLITE: Final = "sqlite:///"
#: Prefix of the properties of a table that say which batches it has.
MARK: Final = "barnabas.batch."
#: Prefix of the properties with a batch's identity, for people.
NOTE: Final = "barnabas.identity."


class IcebergSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "barnabas-iceberg"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._target(schema, overwrite), StreamOptions.parse(self.options))

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
    """Return the settings of the catalog among the options of the format."""
    return {name[len(_CATALOG) :]: value for name, value in options.items() if name.lower().startswith(_CATALOG)}


def mark_of(table: "Table", name: str) -> int | None:
    found = table.properties.get(MARK + name)
    return None if found is None else int(found)


def _note_of(table: "Table", name: str) -> str | None:
    return table.properties.get(NOTE + name)


def load_catalog_of(options: Mapping[str, str]) -> "Catalog":
    return _load(settings_of(options))


def _load(settings: Mapping[str, str]) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    keep_nulls()
    if (file := settings.get("uri", "")).startswith(_SQLITE):
        # SQLite makes the file, not its folder.
        Path(file.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    # Some kinds of catalog store their name with a table.
    return load_catalog(settings.get("name", "barnabas"), **{key: settings[key] for key in settings if key != "name"})


def partition_of(text: str) -> "tuple[str, str]":
    """Return the column and Iceberg's transform of it: `city`, `day(at)`, `bucket(16, id)`, `truncate(4, name)`."""
    found = re.fullmatch(r"(\w+)\((?:(\d+)\s*,\s*)?([^()]+)\)", text.strip())
    if found is None:
        return text.strip(), "identity"
    name, width, column = found[1].lower(), found[2], found[3].strip()
    if name in ("bucket", "truncate") and width:
        return column, f"{name}[{width}]"
    if name in ("year", "month", "day", "hour") and width is None:
        return column, name
    raise ValueError(f"{text!r} is not a partition: use a column, year, month, day or hour of one, bucket(N, column)")


class IcebergTarget:
    def __init__(
        self,
        table: str,
        schema: StructType,
        settings: Mapping[str, str],
        *,
        merge: bool = False,
        replaces: bool = False,
        location: str = "",
        partition_by: Sequence[str] = (),
    ) -> None:
        """`location`, `partition_by`: for a table that does not exist yet. A partition is a column, or `day(column)`."""
        self.table = table
        self.schema = schema
        self.settings = dict(settings)
        self.merge = merge
        self.replaces = replaces
        self.location = location
        self.partition_by = list(partition_by)
        #: The columns of the rows as the table has them, or gets them when the batch is published.
        self.written = self.columns()

    def plan(self) -> None:
        """Refuse rows that the table cannot take. Also creates the table: executors put their files into its folder."""
        table = self.existing() if self.location else self.load()
        if table is None:
            return
        self.location = table.location()
        self.written = self._fit(table).written

    @property
    def what(self) -> str:
        return f"Iceberg table {self.table}"

    def _fit(self, table: "Table") -> Fit:
        existing = from_arrow_schema(table.schema().as_arrow())
        return fit(self.columns(), existing, what=self.what, merge=self.merge, can_widen=True)

    def _evolve(self, table: "Table") -> "Table":
        """Return the table with the columns that the rows were written with."""
        found = self._fit(table)
        if not same_types(found.written, self.written):
            raise TableMismatch(f"{self.what} was changed while the batch was written: run it again")
        if not found.added and not found.widened:
            return table
        with table.update_schema() as change:
            change.union_by_name(to_arrow_schema(StructType([*found.added, *found.widened]), timezone="UTC"))
        return table.refresh()

    def load(self) -> "Table":
        """Return the table, which the first writer creates."""
        catalog = self._catalog()
        if (found := self.existing(catalog)) is not None:
            return found
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        schema, location = to_arrow_schema(self.columns(), timezone="UTC"), self.location or None
        if not self.partition_by:
            return catalog.create_table_if_not_exists(self.table, schema, location)
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),  # another writer made it first
            catalog.create_table_transaction(self.table, schema, location) as transaction,
            transaction.update_spec() as spec,
        ):
            for text in self.partition_by:
                spec.add_field(*partition_of(text))
        return catalog.load_table(self.table)

    def existing(self, catalog: "Catalog | None" = None) -> "Table | None":
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return (catalog or self._catalog()).load_table(self.table)
        except NoSuchTableError:
            return None

    def columns(self) -> StructType:
        """Return the columns that go into the table."""
        return self.schema

    def stage(self, rows: "Iterator[pyarrow.RecordBatch]", task: Task) -> list[dict[str, object]]:
        filesystem, folder = self.folder()
        if self.is_local:
            filesystem.create_dir(f"{folder}/data")
        staged: list[dict[str, object]] = []
        for table in files.in_chunks(rows, self.written, what=self.what):
            files.require_named_times(table, what=self.what)
            name = f"data/{task.partition:05}-{uuid.uuid4().hex}.parquet"
            files.write_parquet(filesystem, f"{folder}/{name}", table)
            staged.append({"path": name})
        return staged

    def publish(self, items: Sequence[dict[str, object]], batch: Claim | None) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for pause_s in (*_PAUSES_S, None):
            table = self.load()
            marks: dict[str, str] = {}
            kept = items
            if batch is not None:
                standing = batch.standing(partial(mark_of, table), partial(_note_of, table), self.what)
                if standing is Standing.LEAVE:
                    self.discard(items)
                    return
                if standing is Standing.SKIP:
                    if self.replaces:
                        raise ValueError(
                            f"{self.what}: a batch of output mode complete is the whole result, and cannot be skipped"
                        )
                    kept = []
                marks = {MARK + name: str(number) for name, number in batch.marks.items()}
                marks |= {NOTE + name: text for name, text in batch.notes(self.what).items()}
            try:
                self._commit(self._evolve(table), kept, marks)
            except CommitFailedException:
                # Another writer has committed: perhaps this batch, by another driver of the query. pyiceberg would not check
                # that.
                if pause_s is None:
                    raise
                time.sleep(pause_s)
            else:
                if items and not kept:
                    self.discard(items)
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
                filesystem, folder = self.folder()
                for name in names:
                    self._append(transaction, parquet.read_table(f"{folder}/{name}", filesystem=filesystem))
            elif names:
                # The names are new, so pyiceberg need not read the table's files to look for them.
                transaction.add_files([f"{self._uri()}/{name}" for name in names], check_duplicate_files=False)
            if marks and not names:
                # Add a snapshot, though an empty one: a catalog compares snapshots, not properties, to notice a second writer.
                with transaction.update_snapshot().fast_append():
                    pass
            if marks:
                transaction.set_properties(marks)
        if divided:
            self.discard(items)

    def _append(self, transaction: "Transaction", rows: "pyarrow.Table") -> None:
        """Append rows that pyiceberg divides. It finds those of a partition by value, and 0.0 equals -0.0, which is another
        one."""
        transaction.append(rows)
        snapshot = transaction.table_metadata.current_snapshot()
        added = 0 if snapshot is None or snapshot.summary is None else int(snapshot.summary.get("added-records") or 0)
        if added != rows.num_rows:
            raise TableMismatch(
                f"{self.what} does not take these rows: pyiceberg makes {added} of {rows.num_rows} when it divides them into "
                "partitions. It cannot tell 0.0 from -0.0"
            )

    def discard(self, items: Sequence[dict[str, object]]) -> None:
        filesystem, folder = self.folder()
        for item in items:
            filesystem.delete_file(f"{folder}/{item['path']}")

    def abandon(self, items: Sequence[dict[str, object]]) -> None:
        """Discard the files, except those that the table names: a commit that failed may have reached the catalog."""
        table = self.existing()
        live = (
            set() if table is None else {each.file.file_path.rpartition("/")[2] for each in table.scan().plan_files()}
        )
        self.discard([item for item in items if cast(str, item["path"]).rpartition("/")[2] not in live])

    def folder(self) -> "tuple[pyarrow.fs.FileSystem, str]":
        """Return the filesystem by the catalog's settings: `s3.endpoint` and the like apply to our files, too."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = PyArrowFileIO(dict(self.settings))
        scheme, host, path = io.parse_location(self._uri(), io.properties)
        return io.fs_by_scheme(scheme, host), path

    @property
    def is_local(self) -> bool:
        """Whether folders have to be created: an object store has none."""
        return self._uri().startswith("file:")

    def _uri(self) -> str:
        return self.location if "://" in self.location else f"file://{self.location}"

    def _catalog(self) -> "Catalog":
        return _load(self.settings)
