"""Dead letters: orders that are no JSON, or that nobody can ship, go to a topic of their own and say why; the rest goes on.

One query writes both, so every order is in one of the two topics, once. When the cause is mended:
`barnabas pipeline replay --from orders-dead`.

    python examples/pipelines/dead_letters.py --bootstrap localhost:9092 --input orders --output clean --dead orders-dead
"""

from _topics import main, read, to_topic
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from barnabas.spark.pipelines.codecs import Json, decode, encode
from barnabas.spark.pipelines.dead_letter import to_topics
from barnabas.spark.pipelines.expectations import Expectations

ORDER = "id long not null, pieces int"


def pipeline(
    spark: SparkSession, bootstrap: str, input: str, output: str, dead: str, checkpoint: str
) -> DataStreamWriter:
    orders = decode(read(spark, bootstrap, input, includeHeaders="true"), Json(ORDER))
    checked = orders.transform(
        Expectations("orders", quarantine={"something to ship": "data.pieces > 0 or error is not null"})
    )
    ready = encode(checked, Json(), into="clean", mode="PERMISSIVE")
    both = to_topics(ready, topic=output, dead_letter_topic=dead, value="clean", pipeline="orders")
    return to_topic(both, bootstrap, None, checkpoint)


if __name__ == "__main__":
    main(pipeline)
