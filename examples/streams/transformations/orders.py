"""Topics become tables once; the other flows read these. An order that the shop sent twice passes once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from shop import ORDER, records


@dp.table
def orders() -> DataFrame:
    """Deduplication: the second of two orders with one id is dropped, if it comes within the watermark."""
    return records("orders", ORDER).withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["id"])
