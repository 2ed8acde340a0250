"""Debezium's events: key, envelope and tombstone of a change, as its JSON converter writes them. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from barnabas import __version__
from barnabas.spark.connect import data
from barnabas.spark.connect.data import DataError, Field, Header, Record, Schema, to_milliseconds
from barnabas.spark.connect.debezium.types import ColumnType, Modes, type_of, value_of
from barnabas.spark.pipelines.database import Column

_OPTIONAL_LONG: Final = data.INT64.as_optional()
SNAPSHOTS: Final = Schema(
    "string", True, "io.debezium.data.Enum", 1, default="false",
    parameters=(("allowed", "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"),),
)  # fmt: skip
SOURCE: Final = data.struct(
    ("version", data.STRING),
    ("connector", data.STRING),
    ("name", data.STRING),
    ("ts_ms", data.INT64),
    ("snapshot", SNAPSHOTS),
    ("db", data.STRING),
    ("sequence", data.OPTIONAL_STRING),
    ("ts_us", _OPTIONAL_LONG),
    ("ts_ns", _OPTIONAL_LONG),
    ("schema", data.STRING),
    ("table", data.STRING),
    ("txId", _OPTIONAL_LONG),
    ("lsn", _OPTIONAL_LONG),
    ("xmin", _OPTIONAL_LONG),
    name="io.debezium.connector.postgresql.Source",
)
_TRANSACTION: Final = Schema(
    "struct", True, "event.block", 1,
    fields=(Field("id", data.STRING), Field("total_order", data.INT64), Field("data_collection_order", data.INT64)),
)  # fmt: skip
_OLD_KEY: Final = "__debezium.oldkey"
_NEW_KEY: Final = "__debezium.newkey"


def schema_name(text: str) -> str:
    """Return a name that Avro takes, too."""
    return ".".join(re.sub(r"[^A-Za-z0-9_]", "_", part) for part in text.split("."))


@dataclass(frozen=True)
class Table:
    """A table as its events have it."""

    #: `schema.name`.
    name: str
    topic: str
    columns: Mapping[str, ColumnType]
    #: Empty for a table without a primary key, whose events have no key.
    key: tuple[str, ...]
    key_schema: Schema | None
    row_schema: Schema
    value_schema: Schema

    @classmethod
    def of(cls, name: str, topic: str, columns: tuple[Column, ...], key: tuple[str, ...], modes: Modes) -> "Table":
        types = {
            each.name: type_of(each.kind, modes, optional=each.nullable and each.name not in key) for each in columns
        }
        prefix = schema_name(topic)
        fields = tuple(Field(each, types[each].schema) for each in types)
        row = Schema("struct", True, f"{prefix}.Value", fields=fields)
        keys = tuple(Field(each, types[each].schema) for each in key)
        value = Schema(
            "struct",
            name=f"{prefix}.Envelope",
            version=1,
            fields=(
                Field("before", row),
                Field("after", row),
                Field("source", SOURCE),
                Field("transaction", _TRANSACTION),
                Field("op", data.STRING),
                Field("ts_ms", _OPTIONAL_LONG),
                Field("ts_us", _OPTIONAL_LONG),
                Field("ts_ns", _OPTIONAL_LONG),
            ),
        )
        key_schema = Schema("struct", name=f"{prefix}.Key", fields=keys) if keys else None
        return cls(name, topic, types, key, key_schema, row, value)


@dataclass(frozen=True)
class Events:
    """Makes the events of a change, which is a row of the format `barnabas-postgres-log`."""

    #: The connector's `topic.prefix`.
    prefix: str
    database: str
    tables: Mapping[str, Table]
    #: Operations that give no event.
    skipped: frozenset[str] = frozenset("t")
    tombstones: bool = True
    #: Stands for a large value that an update left alone.
    unavailable: str = "__debezium_unavailable_value"

    def __call__(self, row: Mapping[str, Any]) -> Iterator[Record]:
        change, op, table = row, row["op"], self.tables[row["table"]]
        if op in self.skipped:
            return
        before, after = _row(change["before"]), _row(change["after"])
        if op == "u" and before is not None and after is not None and self._is_moved(table, before, after):
            yield from self._moved(table, change, before, after)
            return
        yield self._event(table, change, op, before, after)
        if op == "d" and self.tombstones and table.key:
            yield self._tombstone(table, self._key(table, before or {}))

    @staticmethod
    def _is_moved(table: Table, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return any(before.get(name) is not None and before[name] != after.get(name) for name in table.key)

    def _moved(
        self, table: Table, change: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Iterator[Record]:
        """Yield the events of a row that got another key: it is deleted under the old one and created under the new one."""
        old, new = self._key(table, before), self._key(table, after)
        gone = self._event(table, change, "d", before, None)
        yield Record(**{**vars(gone), "headers": (Header(_NEW_KEY, new, table.key_schema),)})
        if self.tombstones:
            yield self._tombstone(table, old)
        made = self._event(table, change, "c", None, after)
        yield Record(**{**vars(made), "headers": (Header(_OLD_KEY, old, table.key_schema),)})

    def _event(
        self,
        table: Table,
        change: Mapping[str, Any],
        op: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> Record:
        committed: datetime = change["committed"]
        now_us = to_milliseconds(committed) * 1000 + committed.microsecond % 1000
        unchanged = frozenset(change["unchanged"] or ())
        value = {
            "before": self._values(table, before, frozenset()),
            "after": self._values(table, after, unchanged),
            "source": self._source(table, change, now_us),
            "transaction": None,
            "op": op,
            "ts_ms": now_us // 1000,
            "ts_us": now_us,
            "ts_ns": now_us * 1000,
        }
        identity = after if after is not None else before
        key = self._key(table, identity) if table.key and identity is not None else None
        return Record(table.topic, value, table.value_schema, key, table.key_schema if key is not None else None)

    def _source(self, table: Table, change: Mapping[str, Any], committed_us: int) -> dict[str, Any]:
        schema, _, name = table.name.rpartition(".")
        is_snapshot = change["op"] == "r"
        before = None if is_snapshot else str(change["commit_lsn"])
        return {
            "version": __version__,
            "connector": "postgresql",
            "name": self.prefix,
            "ts_ms": committed_us // 1000,
            "snapshot": "true" if is_snapshot else "false",
            "db": self.database,
            "sequence": json.dumps([before, str(change["lsn"])], separators=(",", ":")),
            "ts_us": committed_us,
            "ts_ns": committed_us * 1000,
            "schema": schema,
            "table": name,
            "txId": change["xid"],
            "lsn": change["lsn"],
            "xmin": None,
        }

    def _values(self, table: Table, row: Mapping[str, Any] | None, unchanged: frozenset[str]) -> dict[str, Any] | None:
        if row is None:
            return None
        values = {}
        for name, column in table.columns.items():
            text = row.get(name)
            if name in unchanged:
                values[name] = self._unavailable(column)
            elif text is None:
                values[name] = None if column.schema.optional else column.empty
            else:
                values[name] = value_of(column, text, f"{table.name}, column {name}")
        return values

    def _unavailable(self, column: ColumnType) -> Any:
        match column.schema.type:
            case "bytes" if column.schema.name is None:
                return self.unavailable.encode()
            case "string":
                return self.unavailable
            case "array" if column.schema.values is not None and column.schema.values.type == "string":
                return [self.unavailable]
        return None if column.schema.optional else column.empty

    def _key(self, table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
        lacking = [name for name in table.key if row.get(name) is None]
        if lacking:
            raise DataError(f"{table.name}: the log does not have column {', '.join(lacking)} of the key")
        return {name: value_of(table.columns[name], row[name], f"{table.name}, column {name}") for name in table.key}

    def _tombstone(self, table: Table, key: dict[str, Any]) -> Record:
        return Record(table.topic, None, None, key, table.key_schema)


def _row(given: Any) -> dict[str, Any] | None:
    """Return a row: Arrow gives a map as pairs."""
    return None if given is None else dict(given)
