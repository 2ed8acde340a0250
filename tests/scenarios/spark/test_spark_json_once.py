"""Json is parsed once a record, however many fields it has."""

from pyspark.sql import SparkSession

from barnabas.spark.pipelines.codecs import Json, decode


def test_a_record_is_parsed_once_however_many_fields_it_has(spark: SparkSession) -> None:
    """Spark's plan says so: it computed the parser's expression again for each field of the result."""
    fields = ", ".join(f"f{number} string" for number in range(30))
    records = spark.createDataFrame(
        [("t", 0, 0, '{"f3": "x"}')], "topic string, partition int, offset long, value string"
    )
    decoded = decode(records, Json(fields), mode="PERMISSIVE").select("data.f3", "data.f4", "error.message")
    plan = decoded._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json(") == 1, plan
    assert [tuple(row) for row in decoded.collect()] == [("x", None, None)]
