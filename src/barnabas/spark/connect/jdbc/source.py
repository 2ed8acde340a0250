"""Connect's JDBC source: tables or a query of PostgreSQL into topics, as they grow."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.spark.connect.connector import Connector, ConnectorClass
from barnabas.spark.connect.jdbc.options import SOURCE
from barnabas.spark.connect.jdbc.source_rows import RowRecords
from barnabas.spark.connect.jdbc.url import postgresql_uri
from barnabas.spark.connect.options import ConnectorRefused, Problem
from barnabas.spark.connect.source_flow import Flow
from barnabas.spark.pipelines.database import Database, fetch
from barnabas.spark.pipelines.sources import table as table_source
from barnabas.spark.pipelines.sources.sql_query import SqlQuery

_TABLES: Final = (
    "SELECT table_schema::text AS schema, table_name::text AS name FROM information_schema.tables "
    "WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_type = 'BASE TABLE' ORDER BY 1, 2"
)
#: Tables of barnabas itself in a database that it writes.
_OURS: Final = "barnabas_"


@dataclass(frozen=True)
class JdbcSource:
    connector: str
    uri: str
    prefix: str
    tables: tuple[str, ...]
    excluded: tuple[str, ...]
    schema_pattern: str
    query: str | None
    incrementing: str | None
    timestamp: str | None
    delay_ms: int
    best_fit: bool
    poll_ms: int

    def flows(self) -> list[Flow]:
        if self.query is not None:
            return [self._flow("query", self.prefix, None)]
        return [
            self._flow(f"{schema}.{name}", self.prefix + name, f"{schema}.{name}") for schema, name in self._tables()
        ]

    def _tables(self) -> list[tuple[str, str]]:
        with Database(self.uri).connect() as connection:
            found = [(row["schema"], row["name"]) for row in fetch(connection, _TABLES)]
        chosen = [each for each in found if self._is_wanted(*each)]
        missing = [each for each in self.tables if not any(each in _names(*one) for one in found)]
        if missing or not chosen:
            what = f"table {', '.join(missing)}" if missing else "table that the options choose"
            raise ConnectorRefused(f"connector {self.connector}: {Database(self.uri).name} has no {what}")
        return chosen

    def _is_wanted(self, schema: str, name: str) -> bool:
        names = _names(schema, name)
        if self.tables:
            return any(each in names for each in self.tables)
        is_excluded = any(each in names for each in self.excluded)
        return not is_excluded and not name.startswith(_OURS) and fnmatch.fnmatchcase(schema, self.schema_pattern)

    def _flow(self, flow: str, topic: str, table: str | None) -> Flow:
        source = table_source(
            self.uri,
            table,
            query=self.query,
            incrementing=self.incrementing,
            timestamp=self.timestamp,
            delay_ms=self.delay_ms if self.timestamp is not None and self.delay_ms else None,
        )
        query = SqlQuery.parse(source.options)
        columns = query.schema()
        if lacking := [each for each in query.cursor if each not in columns.names]:
            raise ConnectorRefused(
                f"connector {self.connector}: {table or 'the query'} has no column {', '.join(lacking)}"
            )
        name = "" if table is None else table.rpartition(".")[2]
        records = RowRecords.of(topic, name, columns, needed=self._needed(table), best_fit=self.best_fit)
        return Flow(flow, source, records, self.poll_ms, (topic,))

    def _needed(self, table: str | None) -> frozenset[str]:
        if table is None:
            return frozenset()
        database = Database(self.uri)
        with database.connect() as connection:
            return frozenset(each.name for each in database.table_columns(connection, table) if not each.nullable)


def _names(schema: str, name: str) -> Iterable[str]:
    return (name, f"{schema}.{name}")


# -- the class --------------------------------------------------------------------------------------------------------


def _check(connector: Connector) -> list[Problem]:
    o = connector.options
    problems = []
    try:
        postgresql_uri(o["connection.url"], None, None)
    except ValueError as error:
        problems.append(Problem("connection.url", str(error)))
    if o["mode"] in ("incrementing", "timestamp+incrementing") and not o["incrementing.column.name"]:
        problems.append(
            Problem("incrementing.column.name", f"mode={o['mode']} needs the column: it is not guessed here")
        )
    if o["mode"] in ("timestamp", "timestamp+incrementing") and len(o["timestamp.column.name"]) != 1:
        problems.append(
            Problem("timestamp.column.name", f"mode={o['mode']} needs one column here: coalesce several in `query`")
        )
    if o["query"] and (o["table.whitelist"] or o["table.include.list"]):
        problems.append(Problem("query", "a connector reads either tables or a query"))
    return problems


def _make(connector: Connector) -> JdbcSource:
    o = connector.options
    return JdbcSource(
        connector=connector.name,
        uri=postgresql_uri(o["connection.url"], o["connection.user"], o["connection.password"]),
        prefix=o["topic.prefix"],
        tables=o["table.whitelist"] or o["tables"],
        excluded=o["table.blacklist"],
        schema_pattern=(o["schema.pattern"] or "%").replace("%", "*"),
        query=o["query"] or None,
        incrementing=o["incrementing.column.name"] if "incrementing" in o["mode"] else None,
        timestamp=o["timestamp.column.name"][0] if "timestamp" in o["mode"] else None,
        delay_ms=o["timestamp.delay.interval.ms"],
        best_fit=o["numeric.mapping"] == "best_fit",
        poll_ms=o["poll.interval.ms"],
    )


CLASS: Final = ConnectorClass(
    name="io.confluent.connect.jdbc.JdbcSourceConnector",
    aliases=("io.aiven.connect.jdbc.JdbcSourceConnector",),
    kind="source",
    does="follows tables or a query of PostgreSQL by columns that grow, each row once",
    rows=SOURCE,
    check=_check,
    make=_make,
)
