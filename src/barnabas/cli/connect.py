"""`barnabas connect`: Kafka Connect's connectors, from their own files, on Spark."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from barnabas.cli import _service
from barnabas.cli._needs import need, need_java
from barnabas.cli.tool import CONNECTION, Argument, Option, Tool
from barnabas.client.config import load_properties

TOOL = Tool(
    note="See [connect](connect.md).",
    about="""A connector's own JSON file, {"name": …, "config": {…}} or the config alone, runs as it is; of a folder, all its
    files. Options that cannot be honoured are refused by name before anything starts. Prints `ready connectors=…`. SIGTERM
    or Ctrl-C stops it; the next start goes on where this one ended.""",
    arguments=(
        Argument("places", "Files of connectors, or folders of them.", Path, many=True, what="a connector's file"),
    ),
    options=(
        *CONNECTION,
        Option(
            "--worker",
            "A worker's properties (connect-distributed.properties): bootstrap.servers, converters, client settings.",
            Path,
            metavar="FILE",
        ),
        Option(
            "--state",
            "The folder of checkpoints and of Spark's log.",
            Path,
            metavar="PATH",
            default=Path(".barnabas-connect"),
        ),
        Option("--master", "The Spark to run on: local[*], spark://host:port, …", metavar="URL", default="local[*]"),
        Option("--once", "End when everything that is there has been written.", bool),
        Option("--check", "Say whether the files can run, and start nothing.", bool),
    ),
    examples=(
        "barnabas connect orders-sink.json --bootstrap-server localhost:9092",
        "barnabas connect connectors/ --worker connect-distributed.properties --check",
    ),
)


@TOOL.main
def _connect(
    places: Sequence[Path],
    bootstrap_server: str | None,
    command_config: str | None,
    worker: Path | None,
    state: Path,
    master: str,
    once: bool,
    check: bool,
) -> int:
    commands = _commands()
    client = load_properties(command_config) if command_config else {}
    wanted = commands.Wanted(
        places=places,
        bootstrap=bootstrap_server or client.pop("bootstrap.servers", ""),
        client=client,
        worker_file=worker,
    )
    if check:
        commands.check(wanted)
        return 0
    need_java()
    _service.begin()
    return int(commands.run(wanted, master=master, state=state, once=once))


def _commands() -> Any:
    """Import the module that does the work, or raise an error that says what to install."""
    need("spark", "pyspark", "pyarrow")
    return importlib.import_module("barnabas.spark.connect.command")
