"""The columns and keys that are read of a PostgreSQL table, and what the source creates on the server; without a server."""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import BooleanType, DateType, DecimalType, StringType, TimestampType

from barnabas.spark.pipelines.database import Column, DatabaseError
from barnabas.spark.pipelines.sources.change_rows import has_no_value
from barnabas.spark.pipelines.sources.watched_table import Facts, Watched

ID, NAME = Column("id", "integer", nullable=False), Column("name", "text")
TWICE = Column("twice", "integer", is_generated=True)
KEYED = Facts((ID, NAME, TWICE), primary_key=("id",), identity="d", index_key=(), is_partitioned=False)
KEYLESS = replace(KEYED, primary_key=())


def watched(**options: str) -> Watched:
    return Watched.parse({"uri": "postgresql://x/y", "table": "people", **options})


def names(found: list[Column]) -> list[str]:
    return [each.name for each in found]


def test_generated_and_excluded_columns_are_not_read() -> None:
    assert names(watched().read_columns(KEYED)) == ["id", "name"]
    assert names(watched(exclude="name").read_columns(KEYED)) == ["id"]
    assert names(watched(columns="id").read_columns(KEYED)) == ["id"]


@pytest.mark.parametrize(
    ("options", "facts", "said"),
    [
        ({"exclude": "id"}, KEYED, "column id of the key cannot be left out"),
        ({"columns": "name"}, KEYED, "column id of the key cannot be left out"),
        ({"columns": "id,twice"}, KEYED, "column twice is generated"),
        ({"exclude": "naem"}, KEYED, "has no column naem; it has id, name, twice"),
        ({}, replace(KEYED, primary_key=("twice",)), "column twice of the key is generated"),
        ({}, replace(KEYED, columns=(ID, Column("_error", "text"))), "has a column _error, a name of barnabas"),
    ],
)
def test_columns_that_cannot_be_read_so_are_named(options: dict[str, str], facts: Facts, said: str) -> None:
    with pytest.raises(DatabaseError, match=said):
        watched(**options).read_columns(facts)


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        (KEYED, ("id",)),
        (KEYLESS, ()),
        (replace(KEYED, identity="n"), ()),
        (replace(KEYLESS, identity="i", index_key=("name",)), ("name",)),
        (replace(KEYLESS, identity="f"), ("id", "name")),
        (replace(KEYED, identity="f"), ("id",)),
    ],
)
def test_columns_by_which_the_log_identifies_a_row(facts: Facts, key: tuple[str, ...]) -> None:
    assert facts.log_key == key


class Asked:
    """Stands for a connection; remembers the statements."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def cursor(self) -> "Asked":
        return self

    def __enter__(self) -> "Asked":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def execute(self, statement: str, parameters: Any) -> None:
        self.statements.append(statement)


def test_table_without_a_key_is_published_only_with_replica_identity_full() -> None:
    source = Asked()
    for facts in (KEYLESS, replace(KEYED, identity="n"), replace(KEYLESS, is_partitioned=True)):
        with pytest.raises(DatabaseError, match=r"has no primary key .* Nothing was created"):
            watched()._publish(source, facts)
    with pytest.raises(DatabaseError, match="would not reach partitions that are added later"):
        watched(replicaIdentity="full")._publish(source, replace(KEYLESS, is_partitioned=True))
    assert source.statements == []
    watched(replicaIdentity="full")._publish(source, KEYLESS)
    assert source.statements == [
        'ALTER TABLE "public"."people" REPLICA IDENTITY FULL',
        'CREATE PUBLICATION "barnabas_people" FOR TABLE "public"."people"',
    ]


def test_replica_identity_full_does_not_change_a_table_with_a_key() -> None:
    source = Asked()
    watched(replicaIdentity="full")._publish(source, KEYED)
    assert source.statements == ['CREATE PUBLICATION "barnabas_people" FOR TABLE "public"."people"']


def test_partitioned_table_is_published_as_one() -> None:
    source = Asked()
    watched()._publish(source, replace(KEYED, is_partitioned=True))
    assert source.statements[0].endswith("WITH (publish_via_partition_root = true)")


def test_only_types_with_values_that_spark_does_not_have_are_checked() -> None:
    assert has_no_value('"n"', DecimalType(8, 2)) == """"n" = 'NaN' OR abs("n") >= 1e6 OR "n" <> round("n", 2)"""
    assert has_no_value('"d"', DateType()) and has_no_value('"d"', TimestampType())
    assert has_no_value('"t"', StringType()) is None and has_no_value('"b"', BooleanType()) is None
