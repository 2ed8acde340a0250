"""The source and the sink take Kafka's client security settings, as `kafka.*` options."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

import barnabas.spark
from barnabas.testing import Cluster


def test_rows_go_through_a_cluster_with_tls_users_and_acls(
    spark: SparkSession, kafka_cluster: Callable[..., Cluster]
) -> None:
    cluster = kafka_cluster(brokers=1, secure=True)
    cluster.create_topic("orders", partitions=2)
    barnabas.spark.register(spark)
    options = {f"kafka.{name}": value for name, value in cluster.client_settings("admin").items()}
    rows = spark.range(1000).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("barnabas").options(**options).option("topic", "orders").mode("append").save()
    back = spark.read.format("barnabas").options(**options).option("subscribe", "orders").load()
    assert back.selectExpr("cast(value as string) as value").distinct().count() == 1000

    wrong = options | {"kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace('password="', 'password="x')}
    assert wrong != options
    with pytest.raises(Exception, match=r"(?i)authentication"):
        spark.read.format("barnabas").options(**wrong).option("subscribe", "orders").load().count()
