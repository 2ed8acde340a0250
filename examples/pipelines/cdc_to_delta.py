"""Change data capture: Debezium's changes of a database's table keep a Delta table as the database is.

python examples/pipelines/cdc_to_delta.py --bootstrap localhost:9092 --input shop.public.customers --table /tmp/customers
"""

from _topics import main, read
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.cdc import debezium, debezium_schema, upsert_into_delta
from barnabas.spark.pipelines.codecs import Json, decode

CUSTOMER = "id long, name string, city string"


def pipeline(spark: SparkSession, bootstrap: str, input: str, table: str, checkpoint: str) -> DataStreamWriter:
    records = read(spark, bootstrap, input)
    changes = debezium(decode(records, Json(debezium_schema(CUSTOMER)), mode="FAIL"))
    return upsert_into_delta(table, keys=["id"]).writer(changes, checkpoint=checkpoint)


if __name__ == "__main__":
    main(pipeline)
