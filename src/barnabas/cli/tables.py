"""`barnabas tables`: keep topics as Delta and Iceberg tables with Spark."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from barnabas.base.hosts import address
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._needs import need, need_java
from barnabas.cli._output import say, say_json, table
from barnabas.cli._parsing import pairs
from barnabas.cli._tool import Bootstrap, CommandConfig, Json, check_action

if TYPE_CHECKING:
    from barnabas.client.config import ClientConfig
    from barnabas.spark.tables.catalogue import Catalogue, Known, Report
    from barnabas.spark.tables.definition import Definition
    from barnabas.spark.tables.state import State

_ACTIONS: Final = ("add", "list", "describe", "pause", "resume", "rebuild", "remove", "run")
#: An older report does not describe the current state.
_STALE_MS: Final = 60_000


def command(
    action: Annotated[str, typer.Argument(metavar="|".join(_ACTIONS), help="What to do.")],
    name: Annotated[
        str | None, typer.Argument(help="add: the topic; else the table. run, describe: all tables without it.")
    ] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    format: Annotated[
        str, typer.Option("--format", metavar="delta|iceberg", help="add: the table's format.")
    ] = "delta",
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="add: the table's folder, such as s3://lake/orders or ./orders.")
    ] = "",
    table_name: Annotated[
        str | None, typer.Option("--name", help="add: the table's name here; else the topic's.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(metavar="append|upsert", help="add: a row a record; or a row a key, which a tombstone deletes."),
    ] = "append",
    key: Annotated[
        str, typer.Option(metavar="COLUMN[,…]", help="add: columns by which rows are replaced; else the record's key.")
    ] = "",
    partition_by: Annotated[
        str, typer.Option(metavar="COLUMN[;…]", help="add: folders by value; Iceberg: also day(column) and the like.")
    ] = "",
    schema: Annotated[
        str, typer.Option(metavar="json|registry|raw", help="add: where columns come from; raw has the value's bytes.")
    ] = "json",
    envelope: Annotated[
        str, typer.Option(metavar="none|debezium", help="add: the format around the row in a value.")
    ] = "none",
    schema_registry: Annotated[
        str | None, typer.Option(metavar="URL", help="add: the registry, for --schema registry.")
    ] = None,
    registry_config: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="add: such as basic.auth.user.info=${env:REGISTRY_LOGIN}."),
    ] = None,
    subject: Annotated[str, typer.Option(help="add: the registry's subject; else TOPIC-value.")] = "",
    iceberg_table: Annotated[
        str, typer.Option("--table", metavar="NAMESPACE.NAME", help="add: an Iceberg table's name in its catalog.")
    ] = "",
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V", help="add: pyiceberg's catalog (type=, uri=, …); for a local folder a file is made."
        ),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(metavar="keep|stop", help="add: records that do not fit go to URL_errors, or stop the table."),
    ] = "keep",
    on_data_loss: Annotated[
        str, typer.Option(metavar="stop|skip", help="add: what to do when records were deleted before they were read.")
    ] = "stop",
    compact_files: Annotated[
        int, typer.Option(metavar="N", help="add: compact when there are this many small files; 0 for never.")
    ] = 64,
    keep_hours: Annotated[
        int, typer.Option(metavar="H", help="add: how long old versions of the table can be read.")
    ] = 168,
    master: Annotated[
        str, typer.Option(metavar="URL", help="run: the Spark to run on: local[*], spark://host:port, …")
    ] = "local[*]",
    once: Annotated[
        bool, typer.Option("--once", help="run: end when everything that is there now has been read.")
    ] = False,
    interval_s: Annotated[
        float,
        typer.Option("--interval", metavar="S", help="run: seconds between two batches of a table that has caught up."),
    ] = 10.0,
    batch_records: Annotated[
        int, typer.Option(metavar="N", help="run: at most this many records in a batch of a table.")
    ] = 1_000_000,
    tier_reads: Annotated[
        str,
        typer.Option(
            metavar="auto|direct|never", help="run: read history in object storage from there, not through brokers."
        ),
    ] = "auto",
    json: Json = False,
) -> None:
    """Keep topics as tables that DuckDB, Polars, Trino and Spark read.

    \b
    barnabas tables add orders --to ./orders --bootstrap-server localhost:9092
    barnabas tables run --bootstrap-server localhost:9092
    barnabas tables describe orders --bootstrap-server localhost:9092
    """
    check_action(action, _ACTIONS)
    check_installed(java=action == "run")
    client = options(bootstrap_server, command_config)
    if action == "run":
        _run(
            client,
            name,
            master=master,
            once=once,
            interval_s=interval_s,
            batch_records=batch_records,
            tier_reads=tier_reads,
        )
        return
    if name is None and action not in ("list", "describe"):
        raise UsageError(f"{action} needs {'a topic' if action == 'add' else 'the name of a table'}")
    from barnabas.spark.tables.catalogue import Catalogue

    with Catalogue(client) as catalogue:
        known = catalogue.read()
        if action == "add":
            assert name is not None
            given: dict[str, Any] = {
                "name": table_name or name,
                "topic": name,
                "format": format,
                "url": to,
                "mode": mode,
                "key": _listed(key, ","),
                "partition_by": _listed(partition_by, ";"),
                "schema": schema,
                "envelope": envelope,
                "registry": _registry(schema_registry, registry_config),
                "subject": subject,
                "table": iceberg_table,
                "catalog": pairs(catalog or (), option="--catalog"),
                "on_error": on_error,
                "on_loss": on_data_loss,
                "compact_files": compact_files,
                "keep_hours": keep_hours,
            }
            _add(catalogue, known, given)
        elif action == "list":
            _list(known, json=json)
        elif action == "describe":
            _describe(client, known, [known.table(name)] if name else list(known.tables.values()), json=json)
        else:
            assert name is not None
            _change(catalogue, known.table(name), action)


def check_installed(*, java: bool = False) -> None:
    need("spark", "pyspark", "pyarrow", "deltalake")
    if java:
        need_java()


def _listed(text: str, separator: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(separator) if each.strip())


def _registry(url: str | None, more: Sequence[str] | None) -> dict[str, str]:
    found = pairs(more or (), option="--registry-config")
    return found | ({"schema.registry.url": url} if url else {})


def _settings(client: "ClientConfig") -> dict[str, str]:
    """Return the settings with which Spark's tasks connect."""
    servers = ",".join(address(host, port) for host, port in client.bootstrap)
    return {**client.properties, "bootstrap.servers": servers}


def _run(client: "ClientConfig", name: str | None, *, master: str, **given: Any) -> None:
    from barnabas.base.host.parent import die_with_parent
    from barnabas.spark.options import TierReads
    from barnabas.spark.tables.command import run
    from barnabas.spark.tables.runner import RunOptions

    die_with_parent()

    if given["interval_s"] < 0 or given["batch_records"] < 1:
        raise UsageError("--interval must not be negative, and --batch-records at least 1")
    ways = [each.value for each in TierReads]
    if given["tier_reads"] not in ways:
        raise UsageError(f"--tier-reads is one of {', '.join(ways)}, not {given['tier_reads']!r}")
    chosen = RunOptions(
        once=given["once"],
        interval_s=given["interval_s"],
        records_max=given["batch_records"],
        names=(name,) if name else (),
        tier_reads=TierReads(given["tier_reads"]),
    )
    if not run(_settings(client), chosen, master=master):
        raise typer.Exit(1)


# -- definitions ----------------------------------------------------------------------------------------------------------


def _add(catalogue: "Catalogue", known: "Known", given: Mapping[str, Any]) -> None:
    from barnabas.spark.tables.definition import Definition, checked

    new = checked(Definition(**given))
    if new.name in known.tables:
        raise UsageError(f"there is already a table {new.name}; give this one another name with --name")
    for other in known.tables.values():
        if {new.url, new.errors().url} & {other.url, other.errors().url}:
            raise UsageError(f"table {other.name} is at {other.url} already")
    catalogue.define(replace(new, topic_id=catalogue.topic_id(new.topic)))
    say(f"Added table {new.name}: topic {new.topic} to {new.format} at {new.url}.")
    say("`barnabas tables run` fills it.")


def _change(catalogue: "Catalogue", old: "Definition", action: str) -> None:
    if action == "remove":
        catalogue.remove(old.name)
        say(f"Removed table {old.name}. The files at {old.url} stay.")
    elif action == "rebuild":
        catalogue.define(old.rebuilt(catalogue.topic_id(old.topic), now_ms=int(time.time() * 1000)))
        say(f"Table {old.name} will be emptied and filled again from the start of topic {old.topic}.")
    else:
        catalogue.define(replace(old, paused=action == "pause"))
        say(f"{'Paused' if action == 'pause' else 'Resumed'} table {old.name}.")


def _state(each: "Definition", report: "Report | None") -> str:
    if each.paused:
        return "paused"
    if report is None:
        return "new"
    return report.state


def _list(known: "Known", *, json: bool) -> None:
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


def _describe(client: "ClientConfig", known: "Known", found: "list[Definition]", *, json: bool) -> None:
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
