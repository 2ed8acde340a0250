"""`barnabas pipeline`: the work of Kafka Connect and Kafka Streams, done on Spark."""

import importlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from barnabas.cli import _pipeline_replay as replaying
from barnabas.cli._command import UsageError
from barnabas.cli._needs import need, need_java
from barnabas.cli._tool import CommandConfig


class Action(StrEnum):
    INIT = "init"
    VALIDATE = "validate"
    RUN = "run"
    STATUS = "status"
    REPLAY = "replay"


def command(
    action: Annotated[
        Action,
        typer.Argument(
            help="init makes a project, validate checks it, run runs it, status shows it; replay sends dead letters back."
        ),
    ],
    project: Annotated[
        Path, typer.Argument(help="The project's folder or spec file; for init, the folder to make.")
    ] = Path(),
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Do not stop when everything has been read.")
    ] = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help="The Spark to run on: local[*], spark://host:port, …")
    ] = "local[*]",
    json: Annotated[bool, typer.Option("--json", help="One JSON object an event; one document for status.")] = False,
    refresh: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Update only this dataset.")] = None,
    full_refresh: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Reset this dataset or sink, and compute it again.")
    ] = None,
    full_refresh_all: Annotated[bool, typer.Option("--full-refresh-all", help="Reset and compute everything.")] = False,
    sinks_again: Annotated[
        bool,
        typer.Option(
            "--sinks-again", help="With a full refresh: write all rows to the sinks again, after what is there."
        ),
    ] = False,
    empty_sinks: Annotated[
        bool, typer.Option("--empty-sinks", help="With a full refresh: first delete what is in the sinks.")
    ] = False,
    trigger_interval_ms: Annotated[
        int, typer.Option(metavar="MS", help="Continuous: least time between two batches of a flow.")
    ] = 500,
    refresh_views_s: Annotated[
        float, typer.Option(metavar="S", help="Continuous: how often materialized views are computed again.")
    ] = 60.0,
    failures_max: Annotated[
        int, typer.Option(metavar="N", help="Continuous: failures in a row after which a flow stays down.")
    ] = 5,
    report: Annotated[
        bool,
        typer.Option(
            "--report/--no-report", help="run: report progress to the console, through a topic of the cluster."
        ),
    ] = True,
    bootstrap_server: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            metavar="HOST:PORT",
            envvar="BARNABAS_BOOTSTRAP_SERVER",
            help="init: the cluster that the project uses; replay: the one that has the topics.",
        ),
    ] = "127.0.0.1:9092",
    from_topic: replaying.From = None,
    to_topic: replaying.To = None,
    exception_class: replaying.ExceptionClass = None,
    group: replaying.Group = None,
    from_beginning: replaying.FromBeginning = False,
    max_records: replaying.MaxRecords = None,
    max_replays: replaying.MaxReplays = 5,
    dry_run: replaying.DryRun = False,
    command_config: CommandConfig = None,
) -> None:
    """Run pipelines on Spark: topics, files, tables in; topics, tables, lakes out.

    A project is a folder with a spark-pipeline.yml and Python or SQL files, as `pyspark.pipelines` has them.
    `barnabas pipeline offsets` shows how far a flow has read, and lets it read records again.
    """
    if action is Action.INIT:
        if project == Path():
            raise UsageError("init needs the folder to make: barnabas pipeline init NAME")
        _commands().init(project, bootstrap=bootstrap_server)
    elif action is Action.VALIDATE:
        _commands(java=True).validate(project, master=master)
    elif action is Action.REPLAY:
        replaying.replay_letters(
            from_topic,
            to_topic=to_topic,
            exception_class=exception_class,
            group=group,
            from_beginning=from_beginning,
            limit=max_records,
            replays_max=max_replays,
            dry_run=dry_run,
            bootstrap_server=bootstrap_server,
            command_config=command_config,
            json=json,
        )
    elif action is Action.STATUS:
        _commands().show_status(project, as_json_document=json, command_config=command_config)
    else:
        commands = _commands(java=True)
        options = commands.RunOptions(
            continuous=continuous,
            refresh=tuple(refresh or ()),
            full_refresh=tuple(full_refresh or ()),
            full_refresh_all=full_refresh_all,
            sinks_again=sinks_again,
            empty_sinks=empty_sinks,
            trigger_ms=trigger_interval_ms,
            views_s=refresh_views_s,
            failures_max=failures_max,
        )
        commands.run(project, options, master=master, as_json_lines=json, with_reports=report)


def _commands(*, java: bool = False) -> Any:
    """Import the module that does the work, or raise an error that says what to install."""
    need("spark", "pyspark", "pyarrow", "yaml")
    if java:
        need_java()
    return importlib.import_module("barnabas.spark.pipelines.command")
