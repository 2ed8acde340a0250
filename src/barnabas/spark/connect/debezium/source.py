"""Debezium's connector for PostgreSQL: the changes of many tables into a topic each, in Debezium's envelope."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from barnabas.spark.connect.connector import Connector, ConnectorClass
from barnabas.spark.connect.debezium.envelope import Events, Table
from barnabas.spark.connect.debezium.types import DECIMALS, TIMES, Modes
from barnabas.spark.connect.options import (
    ConnectorRefused,
    Option,
    Problem,
    Refused,
    Row,
    Without,
    flag,
    names,
    number,
    one_of,
)
from barnabas.spark.connect.source_flow import Flow
from barnabas.spark.pipelines.connector import Source, registering, text_options
from barnabas.spark.pipelines.database import Database, fetch
from barnabas.spark.pipelines.sources.watched_tables import WatchedTables

#: Most changes in a batch, which ends with a transaction.
_ROWS_MAX: Final = 100_000
_TABLES: Final = (
    "SELECT n.nspname::text AS schema, c.relname::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema') "
    "AND n.nspname NOT LIKE 'pg_toast%' AND c.relpersistence = 'p' ORDER BY 1, 2"
)


def _patterns(text: str) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(each, re.IGNORECASE) for each in names(text))
    except re.error as error:
        raise ValueError(f"not a list of regular expressions: {error}") from None


ROWS: Final[tuple[Row, ...]] = (
    Option("database.hostname", "the server", needed=True),
    Option("database.port", "its port", number, "5432"),
    Option("database.user", "a user with the right to replicate", needed=True),
    Option("database.password", "the password", is_secret=True),
    Option("database.dbname", "the database", needed=True),
    Option("database.sslmode", "as libpq's sslmode", default="prefer"),
    Option("database.sslrootcert", "the authorities of the server's certificate"),
    Option("database.sslcert", "the certificate of the client"),
    Option("database.sslkey", "its key"),
    Option("topic.prefix", "topics are `prefix.schema.table`", needed=True),
    Option("table.include.list", "regular expressions of `schema.table`; without it all tables", _patterns, ""),
    Option("table.exclude.list", "the tables to leave out", _patterns, ""),
    Option("schema.include.list", "regular expressions of schemas", _patterns, ""),
    Option("schema.exclude.list", "the schemas to leave out", _patterns, ""),
    Option("column.include.list", "regular expressions of `schema.table.column`", _patterns, ""),
    Option("column.exclude.list", "the columns to leave out", _patterns, ""),
    Option("slot.name", "the replication slot, made if it is missing", default="debezium"),
    Option("publication.name", "the publication, made if it is missing", default="dbz_publication"),
    Option(
        "publication.autocreate.mode",
        "`disabled`: the publication must be there. With the others it is made for the tables that are read",
        one_of("all_tables", "filtered", "disabled"),
        "all_tables",
    ),
    Option(
        "snapshot.mode",
        "`initial`, or `no_data` (`never`): changes alone",
        one_of("initial", "no_data", "never"),
        "initial",
    ),
    Option(
        "decimal.handling.mode", "numerics as Connect's Decimal, as double or as text", one_of(*DECIMALS), "precise"
    ),
    Option("time.precision.mode", "the form of times", one_of(*TIMES), "adaptive"),
    Option("tombstones.on.delete", "a delete is followed by a record without a value", flag, "true"),
    Option("skipped.operations", "operations without events: c, u, d, t, or none", names, "t"),
    Option(
        "unavailable.value.placeholder",
        "stands for a large value that an update left alone",
        default="__debezium_unavailable_value",
    ),
    Option(
        "heartbeat.interval.ms",
        "after so long without a change the slot moves on; no heartbeat record is written",
        number,
        "0",
    ),
    Option("poll.interval.ms", "least time between two looks at the log", number, "500"),
    Refused("plugin.name", "the log is read with pgoutput, which every PostgreSQL has", ("pgoutput",)),
    Refused(
        "slot.drop.on.stop", "the slot stays, or changes would be lost: pg_drop_replication_slot drops it", ("false",)
    ),
    Refused("heartbeat.action.query", "heartbeat.interval.ms moves the slot on without it"),
    Refused(
        "signal.data.collection", "incremental snapshots are not there: a connector of its own reads a new table whole"
    ),
    Refused("provide.transaction.metadata", "txId and lsn of `source` order the changes", ("false",)),
    Refused("message.key.columns", "use the transform ValueToKey", ()),
    Refused("hstore.handling.mode", "an hstore is text", ("json",)),
    Refused("interval.handling.mode", "an interval is a number of microseconds", ("numeric",)),
    Refused("binary.handling.mode", "bytea is bytes", ("bytes",)),
    Refused(
        "include.unknown.datatypes",
        "types without a form of their own are texts, as PostgreSQL prints them",
        ("false", "true"),
    ),
    Refused("schema.name.adjustment.mode", "names are those that Avro takes", ("avro", "none")),
    Refused("topic.delimiter", "topics are `prefix.schema.table`: use the transform RegexRouter", (".",)),
    Without("slot.max.retries", "the flow tries again to get a slot that another session has, for half a minute"),
    Without("slot.retry.delay.ms", "as `slot.max.retries`"),
    Without("status.update.interval.ms", "the slot moves when a batch is done"),
    Without("max.batch.size", f"a batch has up to {_ROWS_MAX:,} changes, or one transaction"),
    Without("max.queue.size", "there is no queue: Spark asks for a batch when the last one is done"),
    Without("snapshot.fetch.size", "rows come in Arrow's batches"),
    Without("database.tcpKeepAlive", "the operating system decides"),
    Without("database.server.name", "the former name of topic.prefix, which is the one that is used"),
)


@dataclass(frozen=True)
class DebeziumSource:
    connector: Connector

    @property
    def uri(self) -> str:
        o = self.connector.options
        query = {"sslmode": o["database.sslmode"]}
        query |= {name: o[f"database.{name}"] for name in ("sslrootcert", "sslcert", "sslkey") if o[f"database.{name}"]}
        user = quote(o["database.user"], safe="")
        password = f":{quote(o['database.password'], safe='')}" if o["database.password"] else ""
        host, port, database = o["database.hostname"], o["database.port"], quote(o["database.dbname"], safe="")
        return f"postgresql://{user}{password}@{host}:{port}/{database}?{urlencode(query, quote_via=quote)}"

    def flows(self) -> list[Flow]:
        o, uri = self.connector.options, self.uri
        tables = self._tables(uri)
        options = text_options(
            uri=uri,
            tables=tables,
            slot=o["slot.name"],
            publication=o["publication.name"],
            publish=o["publication.autocreate.mode"] != "disabled",
            snapshot=o["snapshot.mode"] == "initial",
            maxRowsPerTrigger=_ROWS_MAX,
            heartbeatMs=o["heartbeat.interval.ms"],
        )
        events = Events(
            prefix=o["topic.prefix"],
            database=o["database.dbname"],
            tables=self._described(WatchedTables.parse(options)),
            skipped=frozenset(o["skipped.operations"]) - {"none"},
            tombstones=o["tombstones.on.delete"],
            unavailable=o["unavailable.value.placeholder"],
        )
        source = Source(
            "barnabas-postgres-log",
            options,
            register=registering("barnabas.spark.pipelines.sources.postgres_log", "PostgresLogSource"),
        )
        topics = tuple(each.topic for each in events.tables.values())
        return [Flow("log", source, events, o["poll.interval.ms"], topics)]

    def _tables(self, uri: str) -> list[str]:
        o = self.connector.options
        with Database(uri).connect() as connection:
            found = [(row["schema"], row["name"]) for row in fetch(connection, _TABLES)]
        chosen = [
            f"{schema}.{name}"
            for schema, name in found
            if _is_chosen(schema, o["schema.include.list"], o["schema.exclude.list"])
            and _is_chosen(f"{schema}.{name}", o["table.include.list"], o["table.exclude.list"])
        ]
        if not chosen:
            raise ConnectorRefused(
                f"connector {self.connector.name}: no table of {Database(uri).name} is chosen by the options"
            )
        return chosen

    def _described(self, watched: WatchedTables) -> dict[str, Table]:
        o, described = self.connector.options, {}
        modes = Modes(o["decimal.handling.mode"], o["time.precision.mode"])
        for each in watched.tables:
            facts = each.facts()
            columns = tuple(
                column
                for column in each.read_columns(facts)
                if _is_chosen(f"{each.table}.{column.name}", o["column.include.list"], o["column.exclude.list"])
                or column.name in facts.primary_key
            )
            topic = f"{o['topic.prefix']}.{each.table}"
            described[each.table] = Table.of(each.table, topic, columns, facts.primary_key, modes)
        return described


def _is_chosen(name: str, include: Sequence[re.Pattern[str]], exclude: Sequence[re.Pattern[str]]) -> bool:
    if include:
        return any(each.fullmatch(name) for each in include)
    return not any(each.fullmatch(name) for each in exclude)


def _check(connector: Connector) -> list[Problem]:
    o = connector.options
    problems = []
    for one, other in (("table.include.list", "table.exclude.list"), ("column.include.list", "column.exclude.list")):
        if o[one] and o[other]:
            problems.append(Problem(other, f"does not go with {one}"))
    if unknown := sorted(set(o["skipped.operations"]) - {"c", "u", "d", "t", "none"}):
        problems.append(Problem("skipped.operations", f"{', '.join(unknown)} is not one of c, u, d, t, none"))
    return problems


CLASS: Final = ConnectorClass(
    name="io.debezium.connector.postgresql.PostgresConnector",
    kind="source",
    does="reads the changes of tables of PostgreSQL from its log, through one slot, into a topic for each table",
    rows=ROWS,
    check=_check,
    make=DebeziumSource,
)
