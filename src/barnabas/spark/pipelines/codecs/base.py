"""Decodes and encodes a column, record by record: the mode decides what one bad record does.

`decode` puts the decoded value into a new column and keeps the bytes: a dead letter needs them. Every error names the record's
topic, partition and offset if the DataFrame has them.

    PERMISSIVE  the record stays, with null and an error `struct<class, message>`; good records have a null error
    DROP        the record is dropped; the query's progress has their number, as observed metric `decode.<column>`
    FAIL        the query fails

Codecs in Python run as Arrow UDFs, one call per batch. They are marked nondeterministic: otherwise Spark might
evaluate them once for the data and again for the error.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from barnabas.spark.pipelines._errors import ERROR_DDL, ERROR_TYPE, place_of
from barnabas.spark.pipelines._fields import TransformError, column_type, without
from barnabas.spark.pipelines._fields import column as column_named
from barnabas.spark.pipelines._schema import columns_of
from barnabas.spark.pipelines.codecs.registry import RegistryError, UnknownSchema

Mode: TypeAlias = Literal["PERMISSIVE", "DROP", "FAIL"]
Direction: TypeAlias = Literal["decode", "encode"]

#: Converts a record's value. Returns or raises the exception if it cannot. Created once per batch, on the executor.
Convert: TypeAlias = Callable[[object], object]
MakeConvert: TypeAlias = Callable[[], Convert]

_names = itertools.count(1)


class ConvertsBatches(ABC):
    """A `Convert` that may convert a whole batch at once."""

    @abstractmethod
    def whole(self, values: pa.Array, arrow_type: pa.DataType) -> pa.Array | None:
        """Return the values of a batch without errors; None if each record has to be converted by itself."""

    @abstractmethod
    def __call__(self, data: object) -> object: ...


class CodecError(ValueError):
    """A codec that is not valid: a schema that does not parse, a type without a counterpart. Raised while the plan is made."""


class FormatCodec(Protocol):
    """A format of records. Both methods are called on the driver, while the plan is made.

    The columns they make are `struct<data, error>`.
    """

    def decoder(self) -> Callable[[Column], Column]: ...

    def encoder(self, kind: DataType) -> Callable[[Column], Column]: ...


def decode(
    df: DataFrame,
    codec: FormatCodec,
    *,
    column: str = "value",
    into: str = "data",
    mode: Mode = "PERMISSIVE",
    error: str = "error",
    name: str | None = None,
) -> DataFrame:
    """Add `into`, the decoded value of `column`. Null stays null. `name` is that of the metric (mode DROP)."""
    kind = column_type(df, column, "decode")
    if not isinstance(kind, BinaryType | StringType):
        raise TransformError(f"decode: column {column!r} is {kind.simpleString()}, not bytes")
    raw = column_named(column).cast("binary")
    return _applied(df, codec.decoder()(raw), "decode", column, into, mode, error, name)


def encode(
    df: DataFrame,
    codec: FormatCodec,
    *,
    column: str = "data",
    into: str = "value",
    mode: Mode = "FAIL",
    error: str = "error",
    name: str | None = None,
) -> DataFrame:
    """Put the encoded bytes of `column` into `into`. Null stays null: a tombstone."""
    kind = column_type(df, column, "encode")
    return _applied(df, codec.encoder(kind)(column_named(column)), "encode", column, into, mode, error, name)


def _applied(
    df: DataFrame,
    result: Column,
    direction: Direction,
    column: str,
    into: str,
    mode: Mode,
    error: str,
    name: str | None,
) -> DataFrame:
    if mode not in ("PERMISSIVE", "DROP", "FAIL"):
        raise TransformError(f"{direction}: mode {mode!r} is not valid: use PERMISSIVE, DROP or FAIL")
    before = column_named(error) if error in columns_of(df) else None
    place = place_of(df)
    both = f"_{direction}.{into}"
    df = df.withColumn(both, result)
    problem = column_named(both).getField("error")
    message = F.concat(place, F.lit(f"{column}: "), problem.getField("message"))
    found = F.when(
        problem.isNotNull(), F.struct(problem.getField("class").alias("class"), message.alias("message"))
    ).cast(ERROR_DDL)
    # A record keeps its first error.
    first = found if before is None else F.coalesce(before, found)
    df = without(df.withColumn(into, column_named(both).getField("data")).withColumn(error, first), both)
    if mode == "PERMISSIVE":
        return df
    bad = column_named(error).isNotNull()
    if mode == "FAIL":
        df = df.filter(F.when(bad, F.raise_error(column_named(error).getField("message"))).otherwise(F.lit(True)))
    else:
        metric = name or f"{direction}.{column}.{next(_names)}"
        df = df.observe(metric, F.count(F.lit(1)).alias("rows"), F.count_if(bad).alias("dropped")).filter(~bad)
    return without(df, error)


def by_record(make: MakeConvert, data_type: DataType) -> Callable[[Column], Column]:
    """Return a column of `struct<data, error>` by a Python function of one record."""
    return _by_batch(lambda _: make(), data_type)


def by_typed_record(make: Callable[[DataType], Convert], data_type: DataType) -> Callable[[Column], Column]:
    """Do the same with a function that needs the type of its values: a column by itself does not have it."""
    return _by_batch(lambda given: make(from_arrow_type(given)), data_type)


def _by_batch(make: Callable[[pa.DataType], Convert], data_type: DataType) -> Callable[[Column], Column]:
    result = StructType([StructField("data", data_type), StructField("error", ERROR_TYPE)])
    arrow_type = to_arrow_type(data_type, timezone="UTC")

    def convert_batch(values: pa.Array) -> pa.Array:
        return convert_all(values, make(values.type), arrow_type)

    # pyspark's own stub forgets this function
    convert_column = F.arrow_udf(convert_batch, result).asNondeterministic()  # type: ignore[attr-defined]
    return cast(Callable[[Column], Column], convert_column)


def convert_all(values: pa.Array, convert: Convert, arrow_type: pa.DataType) -> pa.Array:
    """Return every record's value or error. If the registry is away, which says nothing about the records, the batch fails."""
    error_type = to_arrow_type(ERROR_TYPE)
    fields = [pa.field("data", arrow_type), pa.field("error", error_type)]
    if isinstance(convert, ConvertsBatches) and (whole := convert.whole(values, arrow_type)) is not None:
        return pa.StructArray.from_arrays([whole, pa.nulls(len(values), error_type)], fields=fields)
    data: list[object] = []
    errors: list[dict[str, str] | None] = []
    for value in _in_python(values):
        converted, problem = None, None
        if isinstance(value, Exception):
            problem = error_of(value)
        elif value is not None:
            try:
                converted = convert(value)
            except UnknownSchema as error:
                problem = error_of(error)
            except RegistryError:
                raise
            except Exception as error:  # arbitrary bytes make a codec raise anything; the error column gets it
                problem = error_of(error)
        data.append(converted)
        errors.append(problem)
    # Values first: some may not fit the column, which is an error, too.
    fitted = _to_arrow(data, errors, arrow_type)
    return pa.StructArray.from_arrays([fitted, pa.array(errors, error_type)], fields=fields)


def _in_python(values: pa.Array) -> list[object]:
    """Return the values for a codec in Python; an exception for those that Python does not have, such as a time after 9999."""
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        return [_or_exception(each) for each in values]


def _or_exception(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError) as error:
        return error


def _to_arrow(data: list[object], errors: list[dict[str, str] | None], arrow_type: pa.DataType) -> pa.Array:
    try:
        return pa.array(data, arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # The column cannot hold some value: find it, and let the others through.
        for at, value in enumerate(data):
            try:
                pa.array([value], arrow_type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                data[at], errors[at] = None, error_of(error)
        return pa.array(data, arrow_type)


def error_of(error: Exception) -> dict[str, str]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"class": name, "message": str(error) or kind.__name__}
