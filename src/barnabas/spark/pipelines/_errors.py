"""The error column of a record that could not be used, and the record's place as text."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from barnabas.spark.pipelines._fields import column
from barnabas.spark.pipelines._schema import columns_of

#: The type of an error column; null for a good record.
ERROR_TYPE: Final = StructType([StructField("class", StringType()), StructField("message", StringType())])
ERROR_DDL: Final = "struct<class: string, message: string>"
PLACE: Final = ("topic", "partition", "offset")


def place_of(df: DataFrame) -> Column:
    """Return `topic orders, partition 2, offset 41: `, as far as the DataFrame has these columns."""
    known = [name for name in PLACE if name in columns_of(df)]
    parts = [part for name in known for part in (F.lit(f", {name} "), column(name).cast("string"))]
    if not parts:
        return F.lit("")
    first = F.lit(f"{known[0]} ")
    return F.coalesce(F.concat(first, *parts[1:], F.lit(": ")), F.lit(""))
