"""Sources of pipelines: topics, files, PostgreSQL, SQLite, made-up rows. No JAR in any of them."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from barnabas.spark.pipelines._flows import active_flow
from barnabas.spark.pipelines.connector import (
    Source,
    note_group,
    pipeline_name,
    register_topics,
    registering,
    text_options,
    topic_options,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Source", "changes", "files", "synthetic", "table", "topic"]


def topic(
    name: str | Sequence[str] | None = None,
    *,
    bootstrap: str,
    pattern: str | None = None,
    starting: str = "earliest",
    ending: str | None = None,
    max_records: int | None = None,
    headers: bool = False,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Source:
    """Topics of any Kafka cluster, by name or by `pattern`.

    `starting`: earliest, latest, JSON of offsets, or a time with its zone (`2026-11-01T00:00Z`): the first record of each
    partition that is not older, or the end if there is none. `ending`: the same, for the end of a batch. `max_records`: most
    records of a batch. `group`: the consumer group that shows the progress; in a pipeline there is one anyway, named for
    pipeline and flow. Records of aborted and of open transactions are not read:
    `options={"kafka.isolation.level": "read_uncommitted"}` reads them. `options`: any other of the format `barnabas`, such as
    `kafka.security.protocol` or `failOnDataLoss`.
    """
    if (name is None) == (pattern is None):
        raise ValueError("sources.topic needs either a name or pattern=")
    given = topic_options(bootstrap) | text_options(
        subscribe=name if name is None or isinstance(name, str) else ",".join(name),
        subscribePattern=pattern,
        maxOffsetsPerTrigger=max_records,
        includeHeaders=headers or None,
    )
    given |= _limit("starting", starting) | ({} if ending is None else _limit("ending", ending))
    # A sink that failed to commit leaves aborted records in a topic, which do not belong in a table.
    given |= {"kafka.isolation.level": "read_committed"} | dict(options or {})
    pipeline = pipeline_name()
    if group is not None:
        given["kafka.group.id"] = group
    elif pipeline is not None and "kafka.group.id" not in given:
        # Two flows that read one topic have different positions.
        flow = active_flow()
        given.setdefault("groupIdPrefix", pipeline if flow is None else f"{pipeline}-{flow}")
    if pipeline is not None:
        note_group(bootstrap, _group(given))
    return Source("barnabas", given, register=register_topics)


def _limit(which: Literal["starting", "ending"], text: str) -> dict[str, str]:
    """Return the options for the start or end of reading."""
    if text in ("earliest", "latest") or text.lstrip().startswith("{"):
        return {f"{which}Offsets": text}
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{which}={text!r} is not valid: use earliest, latest, JSON of offsets, or a time such as 2026-11-01T00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{which}={text!r} has no time zone: write {text}Z for UTC")
    options = {f"{which}Timestamp": str(int(moment.timestamp() * 1000))}
    return options | ({"startingOffsetsByTimestampStrategy": "latest"} if which == "starting" else {})


def _group(options: Mapping[str, str]) -> str:
    """Return the group for the progress."""
    from barnabas.spark.options import source_options
    from barnabas.spark.progress import progress_group

    return progress_group(source_options(options, streaming=True)) or ""


def files(
    path: str,
    *,
    format: Literal["json", "csv", "parquet", "orc", "text", "avro", "xml", "binaryFile"],
    schema: "StructType | str | None" = None,
    max_files: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Source:
    """Read the files of a folder, by Spark itself. A stream reads each new file once; it needs `schema`, except for text."""
    given = {"path": path} | text_options(maxFilesPerTrigger=max_files) | dict(options or {})
    return Source(format, given, schema)


def table(
    uri: str,
    name: str | None = None,
    *,
    query: str | None = None,
    incrementing: str | None = None,
    timestamp: str | None = None,
    delay_ms: int | None = None,
    max_rows: int | None = None,
    schema: "StructType | str | None" = None,
) -> Source:
    """Read a table or a query of PostgreSQL (`postgresql://…`) or SQLite (`sqlite:///…`).

    A stream needs `incrementing`, a column that only grows, or `timestamp`, one that every change sets to a later time, or
    both, which is safest; `delay_ms` leaves rows younger than that by `timestamp` to a later batch. `schema`: for SQLite tables
    without types.
    """
    cursor = [each for each in (timestamp, incrementing) if each is not None]
    given = text_options(
        uri=uri, table=name, query=query, cursor=cursor or None, delayMs=delay_ms, maxRowsPerTrigger=max_rows
    )
    return Source("barnabas-sql", given, schema, registering("barnabas.spark.pipelines.sources.sql_query", "SqlSource"))


def changes(
    uri: str,
    table: str | None = None,
    *,
    tables: Sequence[str] = (),
    slot: str | None = None,
    publication: str | None = None,
    snapshot: bool = True,
    max_rows: int | None = None,
    columns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mode: Literal["FAIL", "PERMISSIVE"] = "FAIL",
    replica_identity: Literal["full"] | None = None,
) -> Source:
    """Read the changes of a PostgreSQL table from its log: the table's columns, `_deleted`, `_sequence` and `_unchanged`, as
    `cdc` applies them.

    First come the rows that the table has (`snapshot`), then every change since, in the order of commits. The server needs
    `wal_level=logical`, the user the right to replicate. `slot` and `publication` are created if they are missing. The slot
    keeps the server's log until the stream has read it: drop it (`pg_drop_replication_slot`) when you remove the pipeline.
    `max_rows`: a batch ends with the transaction that reaches this number of changes.

    `columns`, or all but `exclude`, are read; never generated columns, which the log does not have. A value that Spark
    does not have (NaN, infinity, years before 1 or after 9999, more than 38 digits) fails the query. With `mode="PERMISSIVE"`
    it is null, and the column `_error` (`struct<class, message>`) of its row says why: `dead_letter.split(rows,
    error="_error")` within `foreachBatch` keeps such rows apart.

    A table without a primary key is refused before anything is created: once it is published, PostgreSQL refuses every UPDATE
    and DELETE of it. `replica_identity="full"` sets REPLICA IDENTITY FULL, with which PostgreSQL logs the whole old row
    instead; a row is then known by all its columns.

    `tables` instead of a table: one slot and one publication (`barnabas`, unless they are named) for all of them. The rows of
    several tables have no common columns, so each row is a change: `table, op, before, after, unchanged, lsn, commit_lsn, xid,
    committed, number`, see `barnabas.spark.pipelines.sources.postgres_log`.
    """
    if (table is None) == (not tables):
        raise ValueError("sources.changes needs either a table or tables=")
    if tables:
        if columns or exclude or mode != "FAIL":
            raise ValueError("columns, exclude and mode are of one table: with tables= choose from the rows themselves")
        many = text_options(
            uri=uri,
            tables=list(tables),
            slot=slot,
            publication=publication,
            snapshot=snapshot,
            maxRowsPerTrigger=max_rows,
            replicaIdentity=replica_identity,
        )
        module = "barnabas.spark.pipelines.sources.postgres_log"
        return Source("barnabas-postgres-log", many, register=registering(module, "PostgresLogSource"))
    given = text_options(
        uri=uri,
        table=table,
        slot=slot,
        publication=publication,
        snapshot=snapshot,
        maxRowsPerTrigger=max_rows,
        columns=list(columns) or None,
        exclude=list(exclude) or None,
        mode=None if mode == "FAIL" else mode,
        replicaIdentity=replica_identity,
    )
    return Source(
        "barnabas-postgres-changes",
        given,
        register=registering("barnabas.spark.pipelines.sources.postgres_changes", "PostgresChangesSource"),
    )


def synthetic(
    columns: Mapping[str, str] | None = None, *, rows_per_second: float = 10, rows: int | None = None, seed: int = 0
) -> Source:
    """Make up rows, so many a second, up to `rows`; see `barnabas.spark.pipelines.sources.generator` for kinds of columns."""
    given = text_options(rowsPerSecond=rows_per_second, rows=rows, seed=seed)
    if columns is not None:
        given["columns"] = json.dumps(dict(columns))
    return Source(
        "barnabas-synthetic",
        given,
        register=registering("barnabas.spark.pipelines.sources.generator", "SyntheticSource"),
    )
