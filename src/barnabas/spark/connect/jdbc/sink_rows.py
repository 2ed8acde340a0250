"""What the JDBC sink makes of a record: the table, the columns, the key, and whether the row is deleted. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.spark.connect.data import INT32, INT64, STRING, DataError, Field, Record, Schema

#: Columns of `pk.mode=kafka`, unless `pk.fields` names others.
KAFKA_COLUMNS: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
PK_MODES: Final = ("none", "kafka", "record_key", "record_value")


class TableRow(NamedTuple):
    table: str
    #: A struct: the columns, those of the key first.
    columns: Schema
    keys: tuple[str, ...]
    values: dict[str, Any]
    is_deleted: bool = False


@dataclass(frozen=True)
class RowMaker:
    table_format: str = "${topic}"
    #: Tables of some topics by their names (Aiven's `topics.to.tables.mapping`).
    tables: Mapping[str, str] = field(default_factory=dict)
    #: Whether other characters than letters, digits and _ become _ in the name of a table.
    normalizes: bool = False
    pk_mode: str = "none"
    pk_fields: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    deletes: bool = False

    def __call__(self, record: Record) -> TableRow:
        """:raises DataError: if the record has no columns, or its key lacks a field."""
        if record.value is None:
            return self._deletion(record)
        schema = record.value_schema
        if schema is None or schema.type != "struct":
            kind = "no schema" if schema is None else f"schema type {schema.type}"
            raise DataError(
                f"the sink needs a value with the schema of a struct, and this one has {kind}: use a converter with schemas "
                "(JsonConverter with schemas.enable=true, AvroConverter)"
            )
        keys = self._keys(record)
        columns = [each for each, _ in keys]
        values = {each.name: value for each, value in keys}
        for each in schema.fields:
            if each.name not in values and (not self.only or each.name in self.only):
                columns.append(each)
                values[each.name] = record.value.get(each.name)
        if not columns:
            raise DataError("no field of the value is in fields.whitelist")
        for each in columns:
            _require_column(each)
        return TableRow(self.table_of(record.topic), Schema("struct", fields=tuple(columns)), _names(keys), values)

    def table_of(self, topic: str) -> str:
        table = self.tables.get(topic) or self.table_format.replace("${topic}", topic)
        if self.normalizes:
            table = "".join(each if each.isascii() and (each.isalnum() or each in "_.") else "_" for each in table)
        return table

    def _deletion(self, record: Record) -> TableRow:
        if not self.deletes:
            raise DataError(
                "the value is null: set delete.enabled=true with pk.mode=record_key, or drop tombstones by the transform Filter"
            )
        keys = self._keys(record)
        columns = Schema("struct", fields=tuple(each for each, _ in keys))
        values = {each.name: value for each, value in keys}
        return TableRow(self.table_of(record.topic), columns, _names(keys), values, is_deleted=True)

    def _keys(self, record: Record) -> list[tuple[Field, Any]]:
        match self.pk_mode:
            case "kafka":
                names = self.pk_fields or KAFKA_COLUMNS
                place = ((STRING, record.topic), (INT32, record.partition), (INT64, record.offset))
                return [(Field(name, schema), value) for name, (schema, value) in zip(names, place, strict=True)]
            case "record_key":
                return self._of_key(record)
            case "record_value":
                return self._chosen(record.value_schema, record.value, "value")
        return []

    def _of_key(self, record: Record) -> list[tuple[Field, Any]]:
        schema = record.key_schema
        if schema is None or record.key is None:
            raise DataError("pk.mode=record_key needs a key with a schema: set key.converter to one that has schemas")
        if schema.type == "struct":
            return self._chosen(schema, record.key, "key")
        if len(self.pk_fields) != 1:
            raise DataError(f"the key is a {schema.type}, so pk.fields must name its one column")
        return [(Field(self.pk_fields[0], schema), record.key)]

    def _chosen(self, schema: Schema | None, value: Any, what: str) -> list[tuple[Field, Any]]:
        if schema is None or schema.type != "struct" or value is None:
            raise DataError(f"the {what} is not a struct with the fields of the primary key")
        names = self.pk_fields or tuple(each.name for each in schema.fields)
        chosen = []
        for name in names:
            found = schema.field(name)
            if found is None:
                raise DataError(f"the {what} has no field {name}, which pk.fields names")
            if value.get(name) is None:
                raise DataError(f"field {name} of the primary key is null")
            chosen.append((found, value[name]))
        return chosen


def _names(keys: list[tuple[Field, Any]]) -> tuple[str, ...]:
    return tuple(each.name for each, _ in keys)


def _require_column(field: Field) -> None:
    if field.schema.type in ("struct", "map"):
        raise DataError(
            f"field {field.name} is a {field.schema.type}, which no column holds: use the transform Flatten"
        )
    if field.schema.type == "array" and (
        field.schema.values is None or field.schema.values.type in ("struct", "map", "array")
    ):
        raise DataError(
            f"field {field.name} is an array of {field.schema.values and field.schema.values.type}: no column holds it"
        )
    if "." in field.name:
        raise DataError(f"field {field.name} has a dot in its name: rename it, or use Flatten with delimiter=_")
