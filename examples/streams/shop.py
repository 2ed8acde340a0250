"""What the files of `transformations/` share: where the topics are, and what is in them."""

import os

from pyspark.sql import DataFrame

from barnabas.spark.pipelines import sources
from barnabas.spark.pipelines.codecs import Json, decode

BOOTSTRAP = os.environ.get("BARNABAS_BOOTSTRAP_SERVER", "127.0.0.1:9092")
ORDER = "id long, customer string, price double, at timestamp"
PAYMENT = "order_id long, paid_at timestamp"


def records(topic: str, schema: str) -> DataFrame:
    """The values of a topic's records. What is not JSON of the schema is counted and dropped."""
    return decode(sources.topic(topic, bootstrap=BOOTSTRAP).stream(), Json(schema), mode="DROP").select("data.*")
