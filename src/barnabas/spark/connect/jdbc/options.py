"""The options of the JDBC connectors."""

from typing import Final

from barnabas.spark.connect.jdbc.sink_rows import PK_MODES
from barnabas.spark.connect.options import Option, Refused, Row, Without, flag, names, number, one_of, pairs

_UTC: Final = ("utc", "z", "gmt", "etc/utc")

CONNECTION: Final[tuple[Row, ...]] = (
    Option("connection.url", "`jdbc:postgresql://host:port/database?…`", needed=True),
    Option("connection.user", "the user"),
    Option("connection.password", "the password", is_secret=True),
    Refused("dialect.name", "only PostgreSQL can be used", ("PostgreSqlDatabaseDialect",)),
    Without("connection.attempts", "a query that fails to connect is tried again as `max.retries` says"),
    Without("connection.backoff.ms", "as `connection.attempts`"),
    Without("quote.sql.identifiers", "names of tables and columns are always quoted"),
    Refused("db.timezone", "times without a zone are those of UTC", _UTC),
    Refused("db.date.timezone", "days are those of UTC", _UTC),
    Refused("date.timezone", "days are those of UTC", _UTC),
)

SINK: Final[tuple[Row, ...]] = (
    *CONNECTION,
    Option("insert.mode", "`insert` or `upsert`", one_of("insert", "upsert"), "insert"),
    Option("table.name.format", "the table's name, with `${topic}`", default="${topic}"),
    Option("topics.to.tables.mapping", "`topic:table,…` (Aiven)", pairs, ""),
    Option("table.name.normalize", "other characters than letters, digits and _ become _ (Aiven)", flag, "false"),
    Option(
        "pk.mode",
        "where the primary key comes from: " + ", ".join(f"`{each}`" for each in PK_MODES),
        one_of(*PK_MODES),
        "none",
    ),
    Option("pk.fields", "the columns of the primary key", names, ""),
    Option("fields.whitelist", "fields of the value that are written, beside those of the key", names, ""),
    Option("fields.included", "the same (Confluent)", names, ""),
    Option("delete.enabled", "a record without a value deletes the row of its key", flag, "false"),
    Option("auto.create", "make a table that is missing", flag, "false"),
    Option("auto.evolve", "add columns that the table lacks", flag, "false"),
    Option("max.retries", "how often a batch is tried again that the database refused", number, "10"),
    Option("retry.backoff.ms", "the pause before it", number, "3000"),
    Without("batch.size", "rows are copied in bulk, a batch of Spark in one transaction"),
    Refused("table.types", "rows go into tables", ("TABLE",)),
    Refused("mssql.use.merge.holdlock", "only PostgreSQL can be used"),
    Refused("trim.sensitive.log", "values of rows are not logged", ("true", "false")),
)
