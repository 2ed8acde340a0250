"""Fields of a DataFrame, or of one struct column of it: found by name, rewritten in place.

Every transform works on either: `of=None` means the DataFrame's own columns, `of="value"` the fields of the struct column
`value`, as Connect's `MaskField$Value` does. A path (`address.city`) reaches into structs; a field whose own name has a dot is
found first. A struct that is null stays null: a tombstone passes every transform.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from barnabas.spark.pipelines._schema import columns_of, schema_of

#: The replacement of a field: nothing, itself under another name or value, or several fields.
Named: TypeAlias = tuple[str, Column]
Change: TypeAlias = Callable[[StructField, Column], list[Named]]
Path: TypeAlias = tuple[str, ...]


class TransformError(ValueError):
    """A transform that does not fit the DataFrame, found while the plan is made. Names the transform and the field."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """Return the DataFrame's column of just this name, dots and all."""
    return F.col(quoted(name))


def without(df: DataFrame, name: str) -> DataFrame:
    """Drop a column. `DataFrame.drop` makes Spark look for datasets that a pipeline has not defined yet."""
    return df.select(*[column(one) for one in columns_of(df) if one != name])


def column_type(df: DataFrame, name: str, caller: str) -> DataType:
    """Return the type of a column that a transform needs."""
    schema = schema_of(df)
    if name not in schema.names:
        raise TransformError(f"{caller}: no column {name!r}; there are {', '.join(schema.names)}")
    return schema[name].dataType


def fields_of(df: DataFrame, of: str | None, caller: str) -> StructType:
    """Return the fields that a transform may see."""
    if of is None:
        return schema_of(df)
    kind = column_type(df, of, caller)
    if not isinstance(kind, StructType):
        raise TransformError(f"{caller}: column {of!r} is {kind.simpleString()}, which has no fields: decode it first")
    return kind


def resolve(fields: StructType, path: str, caller: str) -> Path:
    """Return the names that lead to a field; a name with dots in it is tried before a path."""
    found = _find(fields, path)
    if found is None:
        raise TransformError(f"{caller}: no field {path!r}; there are {', '.join(fields.names)}")
    return found


def _find(fields: StructType, path: str) -> Path | None:
    if path in fields.names:
        return (path,)
    for at, letter in enumerate(path):
        if letter == "." and (head := path[:at]) in fields.names:
            kind = fields[head].dataType
            below = _find(kind, path[at + 1 :]) if isinstance(kind, StructType) else None
            if below is not None:
                return (head, *below)
    return None


def read(of: str | None, path: Path) -> Column:
    """Return the value at a path."""
    names = path if of is None else (of, *path)
    value = column(names[0])
    for name in names[1:]:
        value = value.getField(name)
    return value


def each(fields: StructType, of: str | None) -> Iterable[tuple[StructField, Column]]:
    for field in fields.fields:
        yield field, read(of, (field.name,))


def put(df: DataFrame, of: str | None, named: list[Named], caller: str) -> DataFrame:
    """Return the DataFrame with these fields in place of all fields of `of`."""
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TransformError(f"{caller}: more than one field would be named {', '.join(map(repr, twice))}")
    if of is None:
        return df.select(*[value.alias(name) for name, value in named])
    if not named:
        raise TransformError(f"{caller}: no field of {of!r} would be left")
    return df.withColumn(of, _struct(column(of), named))


def _struct(whole: Column, named: list[Named]) -> Column:
    packed = F.struct(*[value.alias(name) for name, value in named])
    return F.when(whole.isNotNull(), packed)


def rewrite(df: DataFrame, of: str | None, changes: Mapping[str, Change], caller: str) -> DataFrame:
    """Change the fields at these paths; every other field stays where and what it is."""
    fields = fields_of(df, of, caller)
    found = {resolve(fields, path, caller): change for path, change in changes.items()}
    return put(df, of, _rewritten(fields, found, (), of), caller)


def _rewritten(fields: StructType, changes: Mapping[Path, Change], above: Path, of: str | None) -> list[Named]:
    named: list[Named] = []
    for field in fields.fields:
        path = (*above, field.name)
        value = read(of, path)
        if path in changes:
            named += changes[path](field, value)
        elif any(other[: len(path)] == path for other in changes) and isinstance(field.dataType, StructType):
            named.append((field.name, _struct(value, _rewritten(field.dataType, changes, path, of))))
        else:
            named.append((field.name, value))
    return named
