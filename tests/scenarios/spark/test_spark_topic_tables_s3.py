"""Tables in a bucket, as `barnabas tables` makes them: all settings of the store come from the environment of the run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from barnabas.client.config import client_config
from barnabas.spark.tables.catalogue import Catalogue
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.storing import catalog_settings, delta_storage
from barnabas.testing import Kafka
from tests.moto_server import s3_server
from tests.scenarios.spark.test_spark_topic_tables_command import User, user
from tests.topic_tables import Tables, duckdb_rows, polars_rows

__all__ = ["user"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    with s3_server("lake") as environment:
        yield environment


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_in_a_bucket_has_every_record_and_grows_and_deletes(
    spark: SparkSession,
    kafka: Kafka,
    user: User,
    bucket: dict[str, str],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tasks get the credentials from the run: the session was started before these were set."""
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    tables = Tables(spark, kafka, tmp_path)
    catalog = ["--catalog", "type=sql", "--catalog", f"uri=sqlite:///{tmp_path}/c.db"] if kind == "iceberg" else []
    topics = {mode: kafka.topic(f"{kind}-{mode}", partitions=2) for mode in ("append", "upsert")}
    for mode, topic in topics.items():
        to = f"s3://lake/{kind}/{mode}"
        user("add", topic, "--name", mode, "--to", to, "--format", kind, "--mode", mode, *catalog)
    with Catalogue(client_config(kafka.bootstrap)) as catalogue:
        known = catalogue.read().tables
    append, upsert = known["append"], known["upsert"]
    tables.produce(append, *((str(n), {"n": n}, n % 2) for n in range(500)), ("bad", b"no JSON", 0))
    tables.produce(upsert, *((str(n % 100), {"n": n}, n % 2) for n in range(500)))
    user("run", "--once")
    tables.produce(append, *((str(n), {"n": n, "new": "x"}, n % 2) for n in range(500, 600)))
    tables.produce(upsert, *((str(n), None, n % 2) for n in range(50)))
    user("run", "--once")

    assert duckdb_rows(append, "SELECT count(*), count(DISTINCT n), sum(n), count(new) FROM lake") == [
        (600, 600, sum(range(600)), 100)
    ]
    rows = polars_rows(append)
    assert len({(row["_partition"], row["_offset"]) for row in rows}) == 600
    assert [row["value"] for row in polars_rows(append.errors())] == [b"no JSON"]
    assert sorted((row["_key"], row["n"]) for row in polars_rows(upsert)) == sorted(
        (str(n % 100).encode(), n) for n in range(450, 500)
    )
    [described, _] = user.json("describe")
    assert (described["rows"], described["errors"], described["lag"]) == (600, 1, 0)
    assert not list(tmp_path.rglob("*.parquet")), "nothing is on this disk"


def test_settings_of_the_catalog_win_over_the_environment() -> None:
    given = {
        "AWS_ENDPOINT_URL": "http://all",
        "AWS_ENDPOINT_URL_S3": "http://s3",
        "AWS_DEFAULT_REGION": "there",
        "AZURE_STORAGE_ACCOUNT_KEY": "k",
        "PATH": "/bin",
    }
    in_s3 = Definition(name="t", topic="t", url="s3://lake/t", catalog={"type": "sql", "s3.region": "here"})
    assert catalog_settings(in_s3, given) == {"type": "sql", "s3.endpoint": "http://s3", "s3.region": "here"}
    assert delta_storage(in_s3, given) == {name: value for name, value in given.items() if name.startswith("AWS_")}
    in_azure = Definition(name="t", topic="t", url="az://lake/t", catalog={"type": "rest"})
    assert delta_storage(in_azure, given) == {"AZURE_STORAGE_ACCOUNT_KEY": "k"}
    assert catalog_settings(in_azure, given) == {"type": "rest"}
    local = Definition(name="t", topic="t", url="file:///lake/t")
    assert (delta_storage(local, given), catalog_settings(local, given)) == ({}, {})
