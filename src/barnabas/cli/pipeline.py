"""`barnabas pipeline`: the work of Kafka Connect and Kafka Streams, done on Spark."""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from barnabas.cli._needs import need, need_java
from barnabas.cli._pipeline_replay import Letters, replay_letters
from barnabas.cli.tool import BOOTSTRAP, COMMAND_CONFIG, Argument, Option, Tool
from barnabas.client.config import ClientConfig

TOOL = Tool(
    note="See [pipelines](pipelines.md).",
    about="""A project is a folder with a spark-pipeline.yml and Python or SQL files, as pyspark.pipelines has them.
    `barnabas pipeline offsets` shows how far a flow has read, and lets it read records again.""",
    arguments=(
        Argument("project", "The project's folder or spec file.", Path, default=Path(), what="the folder to make"),
    ),
    options=(
        replace(BOOTSTRAP, help="The cluster that has the topics.", default="127.0.0.1:9092"),
        COMMAND_CONFIG,
        Option("--continuous", "Do not stop when everything has been read.", bool),
        Option("--master", "The Spark to run on: local[*], spark://host:port, …", metavar="URL", default="local[*]"),
        Option("--json", "One JSON object an event; one document for status.", bool),
        Option("--refresh", "Update only this dataset.", metavar="NAME", many=True),
        Option("--full-refresh", "Reset this dataset or sink, and compute it again.", metavar="NAME", many=True),
        Option("--full-refresh-all", "Reset and compute everything.", bool),
        Option("--sinks-again", "With a full refresh: write all rows to the sinks again, after what is there.", bool),
        Option("--empty-sinks", "With a full refresh: first delete what is in the sinks.", bool),
        Option(
            "--trigger-interval-ms",
            "Continuous: least time between two batches of a flow.",
            int,
            metavar="MS",
            default=500,
        ),
        Option(
            "--refresh-views-s",
            "Continuous: how often materialized views are computed again.",
            float,
            metavar="S",
            default=60.0,
        ),
        Option("--failures-max", "Continuous: failures in a row after which a flow stays down.", int, default=5),
        Option("--report", "Report progress to the console, through a topic of the cluster.", bool, off="--no-report"),
        Option("--from", "The dead-letter topic.", metavar="TOPIC", name="from_topic"),
        Option("--to", "Where to send them; without it, where each came from.", metavar="TOPIC", name="to_topic"),
        Option("--exception-class", "Only those whose exception's class contains this.", metavar="TEXT"),
        Option("--group", "The consumer group that remembers how far it got.", metavar="NAME"),
        Option("--from-beginning", "Also what was replayed before.", bool),
        Option("--max-records", "At most this many.", int, least=1),
        Option("--max-replays", "Leave records that were replayed this often already.", int, least=1, default=5),
        Option("--dry-run", "Say what would be done, and do nothing.", bool),
    ),
    examples=(
        "barnabas pipeline init orders",
        "barnabas pipeline run orders --continuous",
        "barnabas pipeline replay --from orders-dead --dry-run",
    ),
)


@TOOL.action("init", "Make a project.", needs=("project",))
def _init(project: Path, bootstrap_server: str) -> None:
    _commands().init(project, bootstrap=bootstrap_server)


@TOOL.action("validate", "Check a project.")
def _validate(project: Path, master: str) -> None:
    _commands(java=True).validate(project, master=master)


@TOOL.action("run", "Run a project.")
def _run(
    project: Path,
    continuous: bool,
    master: str,
    json: bool,
    refresh: Sequence[str],
    full_refresh: Sequence[str],
    full_refresh_all: bool,
    sinks_again: bool,
    empty_sinks: bool,
    trigger_interval_ms: int,
    refresh_views_s: float,
    failures_max: int,
    report: bool,
) -> None:
    commands = _commands(java=True)
    options = commands.RunOptions(
        continuous=continuous,
        refresh=tuple(refresh),
        full_refresh=tuple(full_refresh),
        full_refresh_all=full_refresh_all,
        sinks_again=sinks_again,
        empty_sinks=empty_sinks,
        trigger_ms=trigger_interval_ms,
        views_s=refresh_views_s,
        failures_max=failures_max,
    )
    commands.run(project, options, master=master, as_json_lines=json, with_reports=report)


@TOOL.action("status", "Show how a project runs.")
def _status(project: Path, json: bool, command_config: str | None) -> None:
    _commands().show_status(project, as_json_document=json, command_config=command_config)


@TOOL.action("replay", "Send dead letters back to the topics that they came from, each once.", needs=("--from",))
def _replay(client: ClientConfig, letters: Letters, json: bool) -> None:
    replay_letters(client, letters, json=json)


def _commands(*, java: bool = False) -> Any:
    """Import the module that does the work, or raise an error that says what to install."""
    need("spark", "pyspark", "pyarrow", "yaml")
    if java:
        need_java()
    return importlib.import_module("barnabas.spark.pipelines.command")
