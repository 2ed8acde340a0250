"""`barnabas tables`: keep topics as Delta and Iceberg tables with Spark."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.base.hosts import address
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._needs import need, need_java
from barnabas.cli._output import say, say_json, table
from barnabas.cli._parsing import pairs
from barnabas.cli.tool import CONNECTION, JSON, Argument, OneOf, Option, Tool, words
from barnabas.client.config import ClientConfig

if TYPE_CHECKING:
    from barnabas.spark.tables.catalogue import Catalogue, Known, Report
    from barnabas.spark.tables.definition import Definition
    from barnabas.spark.tables.state import State

#: An older report does not describe the current state.
_STALE_MS: Final = 60_000


def _connect(bootstrap_server: str | None, command_config: str | None) -> ClientConfig:
    check_installed()
    return options(bootstrap_server, command_config)


def _split(text: str) -> tuple[str, ...]:
    """Split at semicolons: a transform of Iceberg's has commas."""
    return tuple(each.strip() for each in text.split(";") if each.strip())


TOOL = Tool(
    note="See [topics as tables](tables.md).",
    about="DuckDB, Polars, Trino and Spark read the tables.",
    connect=_connect,
    arguments=(
        Argument("topic", "The topic.", what="a topic"),
        Argument("name", "The table; run and describe: all of them without it.", what="the name of a table"),
    ),
    options=(
        *CONNECTION,
        Option("--format", "The table's format.", metavar="delta|iceberg", default="delta"),
        Option("--to", "The table's folder, such as s3://lake/orders or ./orders.", metavar="URL", default=""),
        Option("--name", "The table's name here; else the topic's.", name="table_name"),
        Option(
            "--mode",
            "A row a record; or a row a key, which a tombstone deletes.",
            metavar="append|upsert",
            default="append",
        ),
        Option(
            "--key",
            "Columns by which rows are replaced; else the record's key.",
            words,
            metavar="COLUMN[,…]",
            default="",
        ),
        Option(
            "--partition-by",
            "Folders by value; Iceberg: also day(column) and the like.",
            _split,
            metavar="COLUMN[;…]",
            default="",
        ),
        Option(
            "--schema",
            "Where columns come from; raw has the value's bytes.",
            metavar="json|registry|raw",
            default="json",
        ),
        Option("--envelope", "The format around the row in a value.", metavar="none|debezium", default="none"),
        Option("--schema-registry", "The registry, for --schema registry.", metavar="URL"),
        Option("--registry-config", "Such as basic.auth.user.info=${env:REGISTRY_LOGIN}.", metavar="K=V", many=True),
        Option("--subject", "The registry's subject; else TOPIC-value.", default=""),
        Option(
            "--table",
            "An Iceberg table's name in its catalog.",
            metavar="NAMESPACE.NAME",
            default="",
            name="iceberg_table",
        ),
        Option(
            "--catalog",
            "pyiceberg's catalog (type=, uri=, …); for a local folder a file is made.",
            metavar="K=V",
            many=True,
        ),
        Option(
            "--on-error",
            "Records that do not fit go to URL_errors, or stop the table.",
            metavar="keep|stop",
            default="keep",
        ),
        Option(
            "--on-data-loss",
            "What to do when records were deleted before they were read.",
            metavar="stop|skip",
            default="stop",
        ),
        Option("--compact-files", "Compact when there are this many small files; 0 for never.", int, default=64),
        Option("--keep-hours", "How long old versions of the table can be read.", int, metavar="H", default=168),
        Option("--master", "The Spark to run on: local[*], spark://host:port, …", metavar="URL", default="local[*]"),
        Option("--once", "End when everything that is there now has been read.", bool),
        Option(
            "--interval",
            "Seconds between two batches of a table that has caught up.",
            float,
            metavar="S",
            least=0,
            default=10.0,
            name="interval_s",
        ),
        Option("--batch-records", "At most this many records in a batch of a table.", int, least=1, default=1_000_000),
        Option(
            "--tier-reads",
            "Read history in object storage from there, not through brokers.",
            OneOf("auto", "direct", "never"),
            default="auto",
        ),
        JSON,
    ),
    examples=(
        "barnabas tables add orders --to ./orders",
        "barnabas tables run",
        "barnabas tables describe orders",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """The table to add."""

    topic: str
    table_name: str | None
    format: str
    to: str
    mode: str
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    schema: str
    envelope: str
    schema_registry: str | None
    registry_config: Sequence[str]
    subject: str
    iceberg_table: str
    catalog: Sequence[str]
    on_error: str
    on_data_loss: str
    compact_files: int
    keep_hours: int

    def definition(self) -> "Definition":
        from barnabas.spark.tables.definition import Definition, checked

        url = {"schema.registry.url": self.schema_registry} if self.schema_registry else {}
        return checked(
            Definition(
                name=self.table_name or self.topic,
                topic=self.topic,
                format=self.format,
                url=self.to,
                mode=self.mode,
                key=self.key,
                partition_by=self.partition_by,
                schema=self.schema,
                envelope=self.envelope,
                registry=pairs(self.registry_config, option="--registry-config") | url,
                subject=self.subject,
                table=self.iceberg_table,
                catalog=pairs(self.catalog, option="--catalog"),
                on_error=self.on_error,
                on_loss=self.on_data_loss,
                compact_files=self.compact_files,
                keep_hours=self.keep_hours,
            )
        )


@TOOL.action("add", "Keep a topic as a table.", needs=("topic",))
def _add(client: ClientConfig, new: New) -> None:
    from barnabas.spark.tables.catalogue import Catalogue

    with Catalogue(client) as catalogue:
        known, added = catalogue.read(), new.definition()
        if added.name in known.tables:
            raise UsageError(f"there is already a table {added.name}; give this one another name with --name")
        for other in known.tables.values():
            if {added.url, added.errors().url} & {other.url, other.errors().url}:
                raise UsageError(f"table {other.name} is at {other.url} already")
        catalogue.define(replace(added, topic_id=catalogue.topic_id(added.topic)))
    say(f"Added table {added.name}: topic {added.topic} to {added.format} at {added.url}.")
    say("`barnabas tables run` fills it.")


@TOOL.action("list", "List the tables.")
def _list(client: ClientConfig, json: bool) -> None:
    from barnabas.spark.tables.catalogue import Catalogue

    with Catalogue(client) as catalogue:
        _print_list(catalogue.read(), json=json)


@TOOL.action("describe", "Show what tables have, and how far they are behind.")
def _describe(client: ClientConfig, name: str | None, json: bool) -> None:
    from barnabas.spark.tables.catalogue import Catalogue

    with Catalogue(client) as catalogue:
        known = catalogue.read()
        found = [known.table(name)] if name else list(known.tables.values())
        _print_described(client, known, found, json=json)


@contextmanager
def _changed(client: ClientConfig, name: str) -> Iterator[tuple["Catalogue", "Definition"]]:
    from barnabas.spark.tables.catalogue import Catalogue

    with Catalogue(client) as catalogue:
        yield catalogue, catalogue.read().table(name)


@TOOL.action("pause", "Stop filling a table for a while.", needs=("name",))
def _pause(client: ClientConfig, name: str) -> None:
    with _changed(client, name) as (catalogue, old):
        catalogue.define(replace(old, paused=True))
    say(f"Paused table {old.name}.")


@TOOL.action("resume", "Fill it again.", needs=("name",))
def _resume(client: ClientConfig, name: str) -> None:
    with _changed(client, name) as (catalogue, old):
        catalogue.define(replace(old, paused=False))
    say(f"Resumed table {old.name}.")


@TOOL.action("rebuild", "Empty a table, and fill it from the start of its topic.", needs=("name",))
def _rebuild(client: ClientConfig, name: str) -> None:
    with _changed(client, name) as (catalogue, old):
        catalogue.define(old.rebuilt(catalogue.topic_id(old.topic), now_ms=int(time.time() * 1000)))
    say(f"Table {old.name} will be emptied and filled again from the start of topic {old.topic}.")


@TOOL.action("remove", "Forget a table; its files stay.", needs=("name",))
def _remove(client: ClientConfig, name: str) -> None:
    with _changed(client, name) as (catalogue, old):
        catalogue.remove(old.name)
    say(f"Removed table {old.name}. The files at {old.url} stay.")


@TOOL.action("run", "Fill the tables, until Ctrl-C or with --once.")
def _run(
    client: ClientConfig,
    name: str | None,
    master: str,
    once: bool,
    interval_s: float,
    batch_records: int,
    tier_reads: str,
) -> int:
    check_installed(java=True)
    from barnabas.base.host.parent import die_with_parent
    from barnabas.spark.options import TierReads
    from barnabas.spark.tables.command import run
    from barnabas.spark.tables.runner import RunOptions

    die_with_parent()
    chosen = RunOptions(
        once=once,
        interval_s=interval_s,
        records_max=batch_records,
        names=(name,) if name else (),
        tier_reads=TierReads(tier_reads),
    )
    return int(not run(_settings(client), chosen, master=master))


def check_installed(*, java: bool = False) -> None:
    need("spark", "pyspark", "pyarrow", "deltalake")
    if java:
        need_java()


def _settings(client: ClientConfig) -> dict[str, str]:
    """Return the settings with which Spark's tasks connect."""
    servers = ",".join(address(host, port) for host, port in client.bootstrap)
    return {**client.properties, "bootstrap.servers": servers}


def _state(each: "Definition", report: "Report | None") -> str:
    if each.paused:
        return "paused"
    if report is None:
        return "new"
    return report.state


def _print_list(known: "Known", *, json: bool) -> None:
    found = sorted(known.tables.values(), key=lambda each: each.name)
    if json:
        say_json(
            [asdict(each) | {"state": _state(each, known.reports.get(each.name))} for each in found]
            + [{"name": name, "unreadable": why} for name, why in sorted(known.unreadable.items())]
        )
        return
    rows: list[tuple[str, ...]] = [
        (
            each.name,
            _state(each, known.reports.get(each.name)),
            each.topic,
            each.format,
            each.mode,
            each.schema,
            each.url,
        )
        for each in found
    ]
    rows += [(name, "unreadable", "-", "-", "-", "-", why) for name, why in sorted(known.unreadable.items())]
    table(("TABLE", "STATE", "TOPIC", "FORMAT", "MODE", "SCHEMA", "URL"), rows)


# -- describe -------------------------------------------------------------------------------------------------------------


def _print_described(client: ClientConfig, known: "Known", found: "list[Definition]", *, json: bool) -> None:
    import os

    from barnabas.spark.tables.filling import Cluster, resolved
    from barnabas.spark.tables.state import state_of

    cluster = Cluster(_settings(client))
    documents = []
    for each in sorted(found, key=lambda one: one.name):
        report = known.reports.get(each.name)
        state, error = None, report.error if report is not None else None
        try:
            state = state_of(resolved(each, os.environ), cluster)
        # The libraries of both formats may raise any error; the other tables are still described.
        except Exception as failure:
            error = str(failure) or type(failure).__name__
        documents.append(as_document(each, report, state, error))
    if json:
        say_json(documents)
        return
    for document in documents:
        for line in lines_of(document):
            say(line)


def as_document(
    each: "Definition", report: "Report | None", state: "State | None", error: str | None
) -> dict[str, Any]:
    """Return one table as a JSON document."""
    document: dict[str, Any] = {**asdict(each), "state": _state(each, report), "error": error}
    if report is not None:
        document["report"] = asdict(report)
    if state is not None:
        facts = state.facts
        document |= {
            "rows": facts.rows,
            "files": facts.files,
            "size_bytes": facts.size_bytes,
            "version": facts.version,
            "committed_ms": facts.committed_ms,
            "lag": state.lag,
            "behind_ms": state.behind_ms,
            "errors": state.errors,
            "positions": {str(partition): offset for partition, offset in state.positions.items()},
        }
    return document


def lines_of(document: Mapping[str, Any]) -> list[str]:
    """Format the document for people."""
    lines = [
        f"Table: {document['name']}\tState: {document['state']}\tTopic: {document['topic']}\t"
        f"Format: {document['format']}\tMode: {document['mode']}\tSchema: {document['schema']}",
        f"  at {document['url']}" + (f", {document['table']} in its catalog" if document["table"] else ""),
    ]
    if document["error"]:
        lines.append(f"  Error: {document['error']}")
    if "rows" in document:
        behind_ms, committed_ms = document["behind_ms"], document["committed_ms"]
        fresh = "up to date" if not document["lag"] else f"{document['lag']:,} records behind"
        if document["lag"] and behind_ms is not None:
            fresh += f", the oldest for {behind_ms / 1000:.1f} s"
        if committed_ms is not None:
            fresh += f"; last commit {max(0.0, time.time() - committed_ms / 1000):.0f} s ago"
        lines += [
            f"  {document['rows']:,} rows in {document['files']:,} files, {document['size_bytes'] / 1e6:.1f} MB, "
            f"version {document['version']}",
            f"  {fresh}",
            f"  {document['errors']:,} records that do not fit"
            + (f", in {document['url']}_errors" if document["errors"] else ""),
        ]
    report = document.get("report")
    if report and report["state"] == "filling" and time.time() * 1000 - report["at_ms"] < _STALE_MS:
        lines.append(f"  last batch {report['batch_rows']:,} rows in {report['batch_ms'] / 1000:.1f} s")
    return lines
