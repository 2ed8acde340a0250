"""What is known about a record that went wrong: the error column, and where the record was."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from barnabas.spark.pipelines._fields import column
from barnabas.spark.pipelines._schema import columns_of

#: What an error column holds; null where nothing went wrong.
ERROR_TYPE: Final = StructType([StructField("class", StringType()), StructField("message", StringType())])
ERROR_DDL: Final = "struct<class: string, message: string>"
PLACE: Final = ("topic", "partition", "offset")


def place_of(df: DataFrame) -> Column:
    """`topic orders, partition 2, offset 41: `, as far as the DataFrame knows."""
    known = [name for name in PLACE if name in columns_of(df)]
    parts = [part for name in known for part in (F.lit(f", {name} "), column(name).cast("string"))]
    if not parts:
        return F.lit("")
    first = F.lit(f"{known[0]} ")
    return F.coalesce(F.concat(first, *parts[1:], F.lit(": ")), F.lit(""))
