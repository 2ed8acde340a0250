"""Transforms of a record's headers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StructType,
)

from barnabas.spark.pipelines._fields import (
    TransformError,
    column,
    column_type,
    fields_of,
    read,
    resolve,
    rewrite,
)
from barnabas.spark.pipelines._schema import columns_of
from barnabas.spark.pipelines.transforms.fields import dropped

HEADERS: Final = "headers"


HEADERS_TYPE: Final = "array<struct<key: string, value: binary>>"


def headers_or_none_yet(df: DataFrame) -> Column:
    """Return the record's headers, never null, also of a source that was read without `includeHeaders`."""
    nothing = F.array().cast(HEADERS_TYPE)
    return F.coalesce(column(HEADERS), nothing) if HEADERS in columns_of(df) else nothing


def header(key: str, value: Column) -> Column:
    """Return one header; a value that is not bytes is written as text."""
    return F.struct(F.lit(key).alias("key"), value.alias("value"))


def _as_bytes(kind: DataType, value: Column) -> Column:
    return value if isinstance(kind, BinaryType) else value.cast("string").cast("binary")


@dataclass(frozen=True)
class InsertHeader:
    """Add a header with a fixed text."""

    header: str
    value_literal: str

    def __call__(self, df: DataFrame) -> DataFrame:
        new = F.array(header(self.header, F.lit(self.value_literal).cast("binary")))
        return df.withColumn(HEADERS, F.concat(headers_or_none_yet(df), new).cast(HEADERS_TYPE))


@dataclass(frozen=True)
class DropHeaders:
    """Remove all headers of these names."""

    headers: Sequence[str]

    def __call__(self, df: DataFrame) -> DataFrame:
        column_type(df, HEADERS, "DropHeaders")
        return df.withColumn(HEADERS, F.filter(column(HEADERS), lambda one: ~one.getField("key").isin(*self.headers)))


Move: TypeAlias = Literal["copy", "move"]


@dataclass(frozen=True)
class HeaderFrom:
    """Copy or move fields into headers, one field into one header."""

    fields: Sequence[str]
    headers: Sequence[str]
    operation: Move = "copy"
    of: str | None = "value"

    def __post_init__(self) -> None:
        if len(self.fields) != len(self.headers) or not self.fields:
            raise TransformError("HeaderFrom: as many headers as fields, and at least one")
        if self.operation not in ("copy", "move"):
            raise TransformError(f"HeaderFrom: operation {self.operation!r} is not valid: use copy or move")

    def __call__(self, df: DataFrame) -> DataFrame:
        known = fields_of(df, self.of, "HeaderFrom")
        new: list[Column] = []
        for name, key in zip(self.fields, self.headers, strict=True):
            path = resolve(known, name, "HeaderFrom")
            kind = _type_at(known, path)
            new.append(header(key, _as_bytes(kind, read(self.of, path))))
        df = df.withColumn(HEADERS, F.concat(headers_or_none_yet(df), F.array(*new)).cast(HEADERS_TYPE))
        if self.operation == "move":
            df = rewrite(df, self.of, dict.fromkeys(self.fields, dropped), "HeaderFrom")
        return df


def _type_at(fields: StructType, path: tuple[str, ...]) -> DataType:
    kind: DataType = fields
    for name in path:
        assert isinstance(kind, StructType)
        kind = kind[name].dataType
    if isinstance(kind, StructType | ArrayType | MapType):
        raise TransformError(f"HeaderFrom: field {'.'.join(path)!r} is {kind.simpleString()}; encode it first")
    return kind
