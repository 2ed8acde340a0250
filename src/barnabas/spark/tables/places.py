"""A table as it is now, in either format: its contents, its positions, and a way to empty it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.spark.pipelines.sinks.delta_table import DeltaTarget
from barnabas.spark.pipelines.sinks.iceberg_table import MARK, IcebergTarget, mark_of
from barnabas.spark.tables.definition import OFFSET, PARTITION, Definition
from barnabas.spark.tables.storing import catalog_settings, delta_storage

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Facts:
    """The figures of a table that readers see now."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    #: Delta's version, or the id of Iceberg's snapshot.
    version: str = "-"
    #: Time of the last commit, by any writer.
    committed_ms: int | None = None


class Place(Protocol):
    def columns(self) -> StructType | None:
        """Return the columns; None if there is no table yet."""
        ...

    def known(self, mark: str) -> int | None:
        """Return the number that the table remembers under this name."""
        ...

    def version(self) -> int:
        """Return Delta's version, or the id of Iceberg's snapshot; -1 if there is no table."""
        ...

    def set_back_since(self, version: int) -> str | None:
        """Name the operation that set the table back to an older state after it had this version. None if there was none.

        Readers then see older rows, but a table still remembers the offsets of the rows that it lost.
        """
        ...

    def facts(self) -> Facts: ...

    def offsets(self) -> dict[int, set[int]]:
        """Return the offsets of all records that have a row, by partition."""
        ...

    def empty(self, columns: StructType, marks: Mapping[str, int]) -> None:
        """Delete all rows, and all columns but these, in one commit that remembers `marks`."""
        ...


def place_of(table: Definition) -> Place:
    return IcebergPlace(table) if table.format == "iceberg" else DeltaPlace(table)


class DeltaPlace:
    def __init__(self, table: Definition) -> None:
        self.table: DeltaTable | None = DeltaTarget(table.url, StructType(), [], delta_storage(table)).existing()

    def columns(self) -> StructType | None:
        if self.table is None:
            return None
        return StructType.fromJson(_json(self.table.schema().to_json()))

    def known(self, mark: str) -> int | None:
        return None if self.table is None else self.table.transaction_version(mark)

    def version(self) -> int:
        return -1 if self.table is None else self.table.version()

    def set_back_since(self, version: int) -> str | None:
        since = self.version() - version
        for commit in self.table.history(since) if self.table is not None and since > 0 else ():
            if commit.get("operation") == "RESTORE" and commit.get("version", 0) > version:
                return f"RESTORE made version {commit.get('version')}"
        return None

    def facts(self) -> Facts:
        if self.table is None:
            return Facts()
        sizes = sizes_of(self.table)
        [last] = self.table.history(1)
        return Facts(self.table.count(), len(sizes), sum(sizes), str(self.table.version()), last.get("timestamp"))

    def offsets(self) -> dict[int, set[int]]:
        return {} if self.table is None else _by_partition(self.table.to_pyarrow_table(columns=[PARTITION, OFFSET]))

    def empty(self, columns: StructType, marks: Mapping[str, int]) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        assert self.table is not None
        now_ms = int(time.time() * 1000)
        done = [Transaction(name, position, now_ms) for name, position in marks.items()]
        write_deltalake(
            self.table,
            to_arrow_schema(columns, timezone="UTC").empty_table(),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=self.table.metadata().partition_columns or None,
            commit_properties=CommitProperties(app_transactions=done),
        )


class IcebergPlace:
    def __init__(self, table: Definition) -> None:
        self.table: Table | None = IcebergTarget(table.table, StructType(), catalog_settings(table)).existing()

    def columns(self) -> StructType | None:
        return None if self.table is None else from_arrow_schema(self.table.schema().as_arrow())

    def known(self, mark: str) -> int | None:
        return None if self.table is None else mark_of(self.table, mark)

    def version(self) -> int:
        snapshot = None if self.table is None else self.table.current_snapshot()
        return -1 if snapshot is None else snapshot.snapshot_id

    def set_back_since(self, version: int) -> str | None:
        assert self.table is not None
        if version == -1 or self.table.snapshot_by_id(version) is None:
            return None  # the snapshot has expired, so it cannot be seen which snapshots came after it
        snapshot = self.table.current_snapshot()
        while snapshot is not None and snapshot.parent_snapshot_id is not None:
            if snapshot.parent_snapshot_id == version:
                return None
            snapshot = self.table.snapshot_by_id(snapshot.parent_snapshot_id)
            if snapshot is None:
                return None  # this snapshot has expired, and may have come after it
        return f"a rollback made snapshot {self.version()} the current one"

    def facts(self) -> Facts:
        snapshot = None if self.table is None else self.table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return Facts()
        totals = ("total-records", "total-data-files", "total-files-size")
        rows, files, size_bytes = (int(snapshot.summary.get(name) or 0) for name in totals)
        return Facts(rows, files, size_bytes, str(snapshot.snapshot_id), snapshot.timestamp_ms)

    def offsets(self) -> dict[int, set[int]]:
        wanted = (PARTITION, OFFSET)
        return {} if self.table is None else _by_partition(self.table.scan(selected_fields=wanted).to_arrow())

    def rename(self, names: Mapping[str, str], properties: dict[str, str]) -> None:
        """Rename columns and set the properties in one commit. Iceberg knows columns by id: files stay as they are."""
        assert self.table is not None
        with self.table.transaction() as transaction:
            if names:
                with transaction.update_schema() as change:
                    for old, new in names.items():
                        change.rename_column(old, new)
            if properties:
                transaction.set_properties(properties)

    def empty(self, columns: StructType, marks: Mapping[str, int]) -> None:
        from pyiceberg.table import ALWAYS_TRUE

        assert self.table is not None
        with self.table.transaction() as transaction:
            transaction.delete(ALWAYS_TRUE)
            with transaction.update_schema(allow_incompatible_changes=True) as change:
                for field in self.table.schema().fields:
                    if field.name not in columns.names:
                        change.delete_column(field.name)
            with transaction.update_snapshot().fast_append():
                pass
            transaction.set_properties({MARK + name: str(position) for name, position in marks.items()})


def _by_partition(rows: "pyarrow.Table") -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for partition, offset in zip(rows.column(PARTITION).to_pylist(), rows.column(OFFSET).to_pylist(), strict=True):
        found.setdefault(partition, set()).add(offset)
    return found


def sizes_of(table: "DeltaTable") -> list[int]:
    """Return the sizes of a Delta table's files, in bytes."""
    return [int(size) for size in table.get_add_actions(flatten=True)["size_bytes"].to_pylist()]


def _json(text: str) -> dict[str, object]:
    import json

    found: dict[str, object] = json.loads(text)
    return found
