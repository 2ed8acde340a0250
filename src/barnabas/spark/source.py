"""The data sources: `barnabas`, a Kafka cluster's topics, read and written. Spark makes one per query, on the driver."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.base.errors import ConfigError
from barnabas.spark.options import source_options, wants_headers

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
#: The schema of Spark's own `kafka` source.
SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SCHEMA_WITH_HEADERS: Final = StructType([*SCHEMA.fields, StructField("headers", ArrayType(_HEADER))])


def schema_for(*, headers: bool) -> StructType:
    return SCHEMA_WITH_HEADERS if headers else SCHEMA


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a query reads: all, or those that its own `.schema(…)` names. Fewer columns are read faster."""
    types = {field.name: field.dataType for field in SCHEMA_WITH_HEADERS.fields}
    for field in schema.fields:
        if field.name not in types:
            raise ConfigError(f"there is no column '{field.name}'; the columns are {', '.join(types)}")
        if field.dataType != types[field.name]:
            wanted, actual = field.dataType.simpleString(), types[field.name].simpleString()
            raise ConfigError(f"column '{field.name}' is {actual}, not {wanted}: read it as it is and cast it")
    names: Sequence[str] = schema.fieldNames()
    if not names or len(set(names)) < len(names):
        raise ConfigError("a schema needs at least one column, and each column once")
    return tuple(names)


class BarnabasDataSource(DataSource):
    """`spark.read.format("barnabas")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "barnabas"

    def schema(self) -> StructType:
        return schema_for(headers=wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from barnabas.spark.reader import batch_reader

        return batch_reader(source_options(self.options, streaming=False), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from barnabas.spark.reader import BarnabasStreamReader

        return BarnabasStreamReader(source_options(self.options, streaming=True), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from barnabas.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from barnabas.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
