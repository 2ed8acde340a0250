"""The options of the JDBC connectors."""

from typing import Final

from barnabas.spark.connect.jdbc.sink_rows import PK_MODES
from barnabas.spark.connect.jdbc.source_rows import NUMERIC_MAPPINGS
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

_MODES: Final = ("incrementing", "timestamp", "timestamp+incrementing")

SOURCE: Final[tuple[Row, ...]] = (
    *CONNECTION,
    Option("topic.prefix", "before the table's name; with `query` the topic itself", needed=True),
    Option(
        "mode",
        "how new rows are found: by "
        + ", ".join(f"`{each}`" for each in _MODES)
        + " (`bulk` is refused: `barnabas pipeline` reads tables whole)",
        one_of(*_MODES),
        needed=True,
    ),
    Option("incrementing.column.name", "the column that only grows"),
    Option("timestamp.column.name", "the column that every change sets to a later time", names, ""),
    Option("timestamp.delay.interval.ms", "rows younger than this wait for a later look", number, "0"),
    Option("table.whitelist", "the tables, by name or by `schema.name`; without it all of them", names, ""),
    Option("tables", "the same", names, ""),
    Option("table.blacklist", "tables to leave out", names, ""),
    Option("schema.pattern", "schemas of the tables, with `%`", default=""),
    Option("query", "a query instead of tables"),
    Option("poll.interval.ms", "least time between two looks", number, "5000"),
    Option(
        "numeric.mapping",
        "`none`: numerics are Decimals; `best_fit`: integers or float64, if they have up to 18 digits",
        one_of(*NUMERIC_MAPPINGS),
        "none",
    ),
    Without("batch.max.rows", "a look reads all the rows there are, in chunks"),
    Without("table.poll.interval.ms", "tables are listed when the connector starts"),
    Without("validate.non.null", "a row whose column is null is not read, as with PostgreSQL's comparison"),
    Refused("table.include.list", "name the tables in table.whitelist"),
    Refused("table.exclude.list", "name the tables in table.blacklist"),
    Refused("table.types", "tables are read; name a view in table.whitelist as a `query`", ("TABLE",)),
    Refused("catalog.pattern", "a connection sees one database"),
    Refused("query.suffix", "write it into `query`"),
    Refused("timestamp.initial", "rows are read from the first one"),
    Refused("timestamp.granularity", "times are Connect's Timestamp", ("connect_logical",)),
    Refused("numeric.precision.mapping", "use numeric.mapping", ("false",)),
    Refused(
        "transaction.isolation.mode", "queries run with the default of the database", ("DEFAULT", "READ_COMMITTED")
    ),
    Refused("db.fetch.size", "rows come in Arrow's batches"),
)
